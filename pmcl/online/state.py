"""The state of an online posterior, what an update did, and its settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from pmcl.compile import CompiledModel
from pmcl.continual import AbstractStrategy
from pmcl.online.drift import AbstractDrift, Static
from pmcl.online.families import FAMILIES
from pmcl.online.families.anchor import Anchors
from pmcl.online.families.predict import is_network
from pmcl.online.gaussian import MeanField
from pmcl.online.memory import AbstractMemory, Stored
from pmcl.online.rows import RowBatch, Rows, padding
from pmcl.online.search.arrival import enough
from pmcl.online.search.bound import Remainder, Target
from pmcl.online.search.climb import climb
from pmcl.online.search.exact import LARGEST, is_gaussian, normal_entries
from pmcl.online.search.search import Search, Way
from pmcl.online.search.start import AbstractStart, Start

PRIOR = Search(steps=3000, draws=20, learning_rate=5e-2)  # for the normal nearest to a prior


@dataclass(frozen=True, eq=False)
class RowModel:
    """A model, and what is known of it before any data.

    Attributes
    ----------
    rows : Rows
    prior : MeanField
        The model's prior of z, or the normal nearest to it.
    normal : ndarray of bool of shape (dim,)
        Entries that are normal in the model's prior, and independent of all others.
    gaussian : bool
        Whether the likelihood is Gaussian in z too: updates are exact then.
    """

    rows: Rows
    prior: MeanField
    normal: np.ndarray
    gaussian: bool

    @property
    def enough(self) -> float:
        """Nats that a search may leave."""
        compiled = self.rows.compiled
        return enough(compiled.dim, network=is_network(compiled))

    @property
    def remainder(self) -> Remainder | None:
        """What the normal `prior` lacks of the model's prior; None: nothing."""
        return None if self.normal.all() else Remainder(self.prior, self.normal)


class State(NamedTuple):
    """What is known: a normal times the likelihood of the stored rows.

    Attributes
    ----------
    q : MeanField, Full or LowRank
        Of everything but the stored rows; this is what the next update begins with.
    predictive : MeanField, Full or LowRank
        Of everything: the projection of q times the stored rows' likelihood.
    memory : Stored
    time : float
        Of the last batch.
    seen : int
        Rows so far, since all began again where that is what happened.
    updates : int
    anchors : Anchors, optional
        Of a network with covariances: where its predictors are linearised.
    scores : tuple of float
        What the drifts of a :class:`LearnedDrift` have foretold so far (nats).
    branches : tuple of normals
        What is known under each of them.
    """

    q: Any
    predictive: Any
    memory: Stored
    time: float
    seen: int
    updates: int
    anchors: Anchors | None = None
    scores: tuple[float, ...] = ()
    branches: tuple[Any, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all rows so far are stored: no row is in q as yet."""
        return self.seen == len(self.memory)


class Info(NamedTuple):
    """How an update went.

    Attributes
    ----------
    rows : int
        That arrived.
    stored : int
        In the memory after it.
    exact : bool
        Whether it needed no search.
    steps : int
        Of all searches.
    skipped : int
        Steps that were left out because a gradient was not finite.
    lower_bound : float
        Mean over the last tenth of the last search's steps (nats); NaN where there was none.
    clamped : int
        Entries of z at which the factors of the stored rows were more than all that is known.
    khat : float
        The largest of the projections'; NaN where looking would have cost more than the update, and
        where one point is followed.
    log_evidence : float
        Log density of the batch given what was known before it, by weighted draws (nats); NaN where
        k-hat is, and as good as that; of a network with covariances as it is linearised. With a
        :class:`ChangePoint` a change may have come before the batch; with a :class:`LearnedDrift`
        it is by the drift that was shown before the batch came.
    drift : int
        Which of the drifts of a :class:`LearnedDrift` it was, or with a :class:`ChangePoint`
        whether all started again; 0 with others.
    left : float
        What a search had still to gain of the lower bound where it ended (nats), the most of all
        searches; NaN where there was none, and where it took some of the rows at a time.
    divergence : float
        Of what rows that are gone make of what was known from the normal in its place
        (Kullback-Leibler, nats); with a residual memory of what all rows give from what that
        normal gives with the stored ones. NaN where no rows are gone, and where it was not looked
        at: in other families than the full one, in networks, and where looking would cost more
        than the update.
    """

    rows: int
    stored: int
    exact: bool
    steps: int
    skipped: int
    lower_bound: float
    clamped: int
    khat: float
    log_evidence: float
    drift: int = 0
    left: float = np.nan
    divergence: float = np.nan


class Settings(NamedTuple):
    """How updates are made.

    Attributes
    ----------
    memory : AbstractMemory or None
    drift : AbstractDrift
    search : Search or GaussNewton
    start : AbstractStart
    method : AbstractStrategy or None
        What holds one z near earlier ones, in place of variational inference.
    power : float
        Of every row's likelihood; 1 is Bayes' rule.
    strength : float
        Factor of what holds means near earlier ones; 1 is Bayes' rule. There is no memory then.
    family : {"mean_field", "low_rank", "full"}
    """

    memory: AbstractMemory | None = None
    drift: AbstractDrift = Static()  # noqa: RUF009
    search: Any = Search()  # noqa: RUF009
    start: AbstractStart = Start()  # noqa: RUF009
    method: AbstractStrategy | None = None
    power: float = 1.0
    strength: float = 1.0
    family: str = "mean_field"

    def more(self, known: MeanField, prior: MeanField) -> Array | None:
        """Precision with which means are held beyond that which is known; None: none.

        References
        ----------
        Loo et al. (2021), section 2, whose lambda is the strength: of what is known beyond the
        model's prior.
        """
        if self.strength == 1:
            return None
        learned = jnp.maximum(known.factor.precision - prior.factor.precision, 0.0)
        return (self.strength - 1) * learned

    def weights(self, age: np.ndarray) -> np.ndarray:
        """How often the likelihood of rows of some age counts."""
        return self.power * np.asarray(self.drift.weight(jnp.asarray(age)))


def prepare(
    rows: Rows, key: Array, advance: Callable[[int, str], None] = lambda n, note: None
) -> RowModel:
    """Find the normal that a model's prior is, or the one nearest to it by a search."""
    origin = jnp.zeros(rows.compiled.dim)
    normal_key, search_key = jax.random.split(key)
    standard = MeanField(origin, origin)
    log_prior = Partial(CompiledModel.log_prior, rows.compiled)  # equal where the models are
    normal, factor = normal_entries(log_prior, standard, normal_key)
    # Adam never forgets the slopes far above a tiny scale, so a search does not begin there.
    begin = jnp.asarray(rows.compiled.initial, origin.dtype)
    begin = jnp.where(jnp.isfinite(begin), begin, 0.0)  # PyMC's may lie at a transform's end
    known = MeanField(
        jnp.where(normal, factor.shift / factor.precision, begin),
        jnp.where(normal, -jnp.log(jnp.where(normal, factor.precision, 1.0)) / 2, 0.0),
    )
    problem = RowModel(rows, known, np.asarray(normal), gaussian=False)
    if problem.remainder is None:
        return problem
    nothing = RowBatch({}, jnp.zeros(0))
    found = climb(
        rows,
        known,
        Target(known, nothing, problem.remainder),
        Way(PRIOR, advance=advance),
        search_key,
    )
    return replace(problem, prior=found.q)


def init(problem: RowModel, family: str = "mean_field", rank: int = 0) -> State:
    """Return what is known before any data: the prior."""
    prior: Any = problem.prior
    if family != "mean_field":
        prior = FAMILIES[family].independent(problem.prior, rank)
    nothing = Stored({}, np.zeros(0), np.zeros(0, "U1"))
    return State(prior, prior, nothing, 0.0, 0, 0, no_anchors(problem, family))


def no_anchors(problem: RowModel, family: str) -> Anchors | None:
    """Return the anchors of a network before any data; None where predictors stay as they are."""
    if family == "mean_field" or not is_network(problem.rows.compiled):
        return None
    return Anchors.none(problem.prior.mean)


def is_exact(problem: RowModel, arrived: Stored, key: Array) -> bool:
    """Whether the posterior is normal after a batch: told at all of its rows."""
    rows = problem.rows
    if problem.remainder is not None or rows.compiled.dim > LARGEST:
        return False
    batch = as_batch(rows, arrived, np.ones(len(arrived)))
    return bool(is_gaussian(rows, problem.prior, batch.data, key))


def drifted(problem: RowModel, drift: AbstractDrift, q: Any, elapsed: float) -> Any:
    """Return an approximation after some time without data."""
    return drift.move(q, problem.prior, jnp.asarray(elapsed)) if elapsed > 0 else q


def as_batch(rows: Rows, part: Stored, weights: np.ndarray) -> RowBatch:
    """Arrays of a length of which there are few: what was compiled for it serves again."""
    index = padding(len(part))
    filled = np.concatenate([weights, np.zeros(len(index) - len(part))])
    data = {k: jnp.asarray(v) for k, v in rows.take(part.data, index).items()}
    return RowBatch(data, jnp.asarray(filled, jnp.result_type(float)))
