"""Online variational inference: `init` and `update`, pure functions of a state."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import jit
from pmcl.continual import AbstractStrategy, OnlineLaplace
from pmcl.metrics.importance import importance_diagnostics
from pmcl.online import point, projection, residual
from pmcl.online.drift import AbstractDrift, Static
from pmcl.online.gaussian import Factor, MeanField
from pmcl.online.memory import AbstractMemory, Candidates, ResidualMemory, Stored
from pmcl.online.narrow import Narrow, narrow
from pmcl.online.projection import AnyRows, Search
from pmcl.online.rows import Batch, Rows, padding
from pmcl.online.start import AbstractStart, Start

_ROUNDING = 1e-5  # in the prior's standard deviations
_LEAST = 1e-3  # of the prior's precision: what is left where more than there is was divided out
PRIOR = Search(steps=3000, draws=20, learning_rate=5e-2)  # for the normal nearest to a prior
_DRAWS = 500
POINT = 1e-6  # standard deviation of what is one point
_DEAR = 10**9  # products of rows, draws and entries of z: k-hat is not looked at beyond


@dataclass(frozen=True, eq=False)
class Problem:
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
    def remainder(self) -> projection.Remainder | None:
        """What the normal `prior` lacks of the model's prior; None: nothing."""
        return None if self.normal.all() else projection.Remainder(self.prior, self.normal)


class State(NamedTuple):
    """What is known: a normal times the likelihood of the stored rows.

    Attributes
    ----------
    q : MeanField
        Of everything but the stored rows; this is what the next update begins with.
    predictive : MeanField
        Of everything: the projection of q times the stored rows' likelihood.
    memory : Stored
    time : float
        Of the last batch.
    seen : int
        Rows so far.
    updates : int
    """

    q: MeanField
    predictive: MeanField
    memory: Stored
    time: float
    seen: int
    updates: int


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
        The larger of the projections'; NaN where looking would have cost more than the update, and
        where one point is followed.
    """

    rows: int
    stored: int
    exact: bool
    steps: int
    skipped: int
    lower_bound: float
    clamped: int
    khat: float


class Settings(NamedTuple):
    """How updates are made.

    Attributes
    ----------
    memory : AbstractMemory or None
    drift : AbstractDrift
    search : Search
    start : AbstractStart
    method : AbstractStrategy or None
        What holds one z near earlier ones, in place of variational inference.
    power : float
        Of every row's likelihood; 1 is Bayes' rule.
    strength : float
        Factor of what holds means near earlier ones; 1 is Bayes' rule. There is no memory then.
    """

    memory: AbstractMemory | None = None
    drift: AbstractDrift = Static()  # noqa: RUF009
    search: Search = Search()  # noqa: RUF009
    start: AbstractStart = Start()  # noqa: RUF009
    method: AbstractStrategy | None = None
    power: float = 1.0
    strength: float = 1.0

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
) -> Problem:
    """Find the normal that a model's prior is, or the one nearest to it by a search."""
    origin = jnp.zeros(rows.compiled.dim)
    normal_key, search_key = jax.random.split(key)
    standard = MeanField(origin, origin)
    normal, factor = projection.normal_entries(rows.compiled.log_prior, standard, normal_key)
    known = MeanField(
        jnp.where(normal, factor.shift / factor.precision, 0.0),
        jnp.where(normal, -jnp.log(jnp.where(normal, factor.precision, 1.0)) / 2, 0.0),
    )
    problem = Problem(rows, known, np.asarray(normal), gaussian=False)
    if problem.remainder is None:
        return problem
    nothing = Batch({}, jnp.zeros(0))
    found = projection.climb(
        rows, known, known, nothing, PRIOR, search_key, remainder=problem.remainder,
        advance=advance,
    )  # fmt: skip
    return replace(problem, prior=found.q)


def init(problem: Problem) -> State:
    """Return what is known before any data: the prior."""
    nothing = Stored({}, np.zeros(0), np.zeros(0, "U1"))
    return State(problem.prior, problem.prior, nothing, 0.0, 0, 0)


def is_exact(problem: Problem, arrived: Stored, key: Array) -> bool:
    """Whether the posterior is normal after a batch: told at all of its rows."""
    rows = problem.rows
    if problem.remainder is not None or rows.compiled.dim > projection.LARGEST:
        return False
    batch = as_batch(rows, arrived, np.ones(len(arrived)))
    return bool(projection.is_gaussian(rows, problem.prior, batch.data, key))


def drifted(problem: Problem, drift: AbstractDrift, q: MeanField, elapsed: float) -> MeanField:
    """Return an approximation after some time without data."""
    return drift.move(q, problem.prior, jnp.asarray(elapsed)) if elapsed > 0 else q


def update(
    problem: Problem,
    state: State,
    arrived: Stored,
    settings: Settings,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> tuple[State, Info]:
    """Return what is known after a batch, which came at one time.

    References
    ----------
    Nguyen et al. (2018), Algorithm 1; with a residual memory Kurle et al. (2020), Algorithm 1; with
    a power of the likelihood and a strength Loo et al. (2021), section 2, with beta = 1 / power and
    lambda = strength.
    """
    rows, rule = problem.rows, settings.memory
    time = float(arrived.times[0])
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), dtype=np.uint32))
    moved = state.q
    if state.updates:
        moved = drifted(problem, settings.drift, state.q, time - state.time)
    if settings.method is not None:
        return _point(problem, state, arrived, settings, settings.method, moved, key, advance)
    keys = jax.random.split(key, 4)
    everything = state.memory.add(rows, arrived)
    untouched = state.seen == len(state.memory)  # q is the prior as yet
    known = state.predictive if state.updates else None
    work = _Work(problem, settings, advance, first=not state.updates)

    def weighted(part: Stored) -> Batch:
        return as_batch(rows, part, settings.weights(time - part.times))

    clamped = 0
    kept = np.zeros(len(everything), bool)
    if rule is None:
        q = predictive = work.project(
            moved, weighted(everything), keys[0], None if untouched else moved, untouched
        )
    elif not isinstance(rule, ResidualMemory):
        kept = rule.keep(_candidates(rows, everything, state), rng)
        q = moved
        if not kept.all():
            out = weighted(everything.take(rows, ~kept))
            q = work.project(moved, out, keys[0], known if untouched else moved, untouched)
            untouched = False
        part = weighted(everything.take(rows, kept))
        predictive = work.project(q, part, keys[1], known if untouched else q, untouched)
    else:
        batch = weighted(everything)
        predictive = work.project(moved, batch, keys[0], known, untouched)
        found = work.residuals(predictive, batch, rule, keys[1])
        n = len(everything)
        weights = np.asarray(batch.weights)
        begun = moved.factor
        if untouched and problem.remainder is not None:
            begun = begun.times(
                residual.of_prior(rows, predictive, problem.prior, keys[3], rule.draws)
            )
        factor = residual.debiased(found.factor, predictive, begun, batch.weights)
        power = weights[:n] ** (2 if rule.score == "misfit" else 1)
        score = np.asarray(getattr(found, rule.score))[:n] * power
        kept = rule.keep(_candidates(rows, everything, state, score), rng)
        q = moved
        if not kept.all():
            least = _LEAST * problem.prior.factor.precision
            q, clamped = _divided(begun, predictive, factor, weights, kept, len(arrived), least)
    memory = everything.take(rows, kept)
    khat = float(np.max([_khat(problem, *one, keys[2]) for one in work.projected]))
    info = Info(
        len(arrived), len(memory), problem.gaussian, work.steps, work.skipped, work.lower_bound,
        clamped, khat,
    )  # fmt: skip
    new = State(q, predictive, memory, time, state.seen + len(arrived), state.updates + 1)
    return new, info


def _point(
    problem: Problem,
    state: State,
    arrived: Stored,
    settings: Settings,
    method: AbstractStrategy,
    moved: MeanField,
    key: Array,
    advance: Callable[[int, str], None],
) -> tuple[State, Info]:
    """Update one z; `q` is the penalty as a normal, `predictive` is all but a point."""
    rows = problem.rows
    start_key, key = jax.random.split(key)
    batch = as_batch(rows, arrived, np.ones(len(arrived)))
    q, found, steps = follow(
        problem, rows, state, moved, batch, settings, method, (start_key, key), advance
    )
    info = Info(
        len(arrived), 0, exact=False, steps=steps, skipped=found.skipped,
        lower_bound=np.nan, clamped=0, khat=np.nan,
    )  # fmt: skip
    updates, seen = state.updates + 1, state.seen + len(arrived)
    time = float(arrived.times[0])
    return State(q, a_point(found.mean), state.memory, time, seen, updates), info


def follow(
    problem: Problem,
    rows: AnyRows,
    state: State,
    moved: MeanField,
    batch: Batch,
    settings: Settings,
    method: AbstractStrategy,
    keys: tuple[Array, Array],
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> tuple[MeanField, point.Found, int]:
    """Return the penalty on one z after a batch, where the search for it ended, and its steps."""
    first = not state.updates
    # a point is as narrow where nothing is known
    known = None if first else state.predictive._replace(log_sd=problem.prior.log_sd)
    begun = begin(problem, rows, problem.prior, batch, settings, known, keys[0], advance)
    # Laplace propagation begins with the model's prior; the others without one, as published.
    before = moved if not first or isinstance(method, OnlineLaplace) else None
    q, found = point.held(
        method, rows, begun.q.mean, before, batch, settings.search, keys[1], advance,
        narrow=begun.narrow, first=first,
    )  # fmt: skip
    steps = begun.steps + settings.search.length(int((batch.weights > 0).sum()), first=first)
    return q, found, steps


def a_point(mean: Array) -> MeanField:
    """Return the normal that stands for one z."""
    return MeanField(mean, jnp.full_like(mean, np.log(POINT)))


class Begun(NamedTuple):
    """Where a search begins.

    Attributes
    ----------
    q : MeanField
    narrow : Narrow or None
        The problem without what the batch says nothing of, where that is much.
    steps : int
        That this took.
    """

    q: MeanField
    narrow: Narrow | None
    steps: int


def begin(
    problem: Problem,
    rows: AnyRows,
    prior: MeanField,
    batch: Batch,
    settings: Settings,
    known: MeanField | None,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> Begun:
    """Return where a search begins.

    Entries of z of which nothing is known begin as `settings.start` says where the batch says
    anything of them, and so may the widths of others (`again`); where the batch says nothing they
    stay where they are.

    Parameters
    ----------
    problem : Problem
    rows : Rows or LatentRows
    prior : MeanField
        Of the search.
    batch : Batch
    settings : Settings
    known : MeanField or None
        Where entries begin of which something is known; None in the first search of all.
    key : Array
    """
    first = known is None
    known = prior if known is None else known
    new = np.asarray(is_prior(known, problem.prior))
    if not new.any() and not settings.start.narrows:
        return Begun(known, None, 0)
    start_key, key = jax.random.split(key)
    if not first:
        begun, steps = settings.start(prior, start_key), 0
    else:
        n = int((batch.weights > 0).sum())
        begun = settings.start.first(rows, prior, batch, settings.search, start_key, advance)
        steps = settings.start.length(n, settings.search)
    places = (begun, prior) if known is prior else (begun, prior, known)
    reached = projection.reached(rows, places, batch, settings.search, key)
    if first:  # of what is not normal the search finds the prior itself better than `prior` does
        reached = reached | ~problem.normal
    again = settings.start.again(known, problem.prior)
    each = zip(begun, again, prior, known, strict=True)
    start = (
        jnp.where(new, jnp.where(reached, b, p), jnp.where(reached, a, k)) for b, a, p, k in each
    )
    few = narrow(rows, begun, reached, batch, key) if problem.remainder is None else None
    return Begun(MeanField(*start), few, steps)


def is_prior(q: MeanField, prior: MeanField) -> Array:
    """Entries of which an approximation knows no more than the prior, but for rounding."""
    far = jnp.abs(q.mean - prior.mean) * jnp.exp(-prior.log_sd)
    return (far <= _ROUNDING) & (q.log_sd >= prior.log_sd - _ROUNDING)


def recalled(
    problem: Problem, state: State, settings: Settings, part: np.ndarray, key: Array
) -> MeanField:
    """Project the normal times the likelihood of some of the stored rows, to predict one task.

    Parameters
    ----------
    problem : Problem
    state : State
    settings : Settings
    part : ndarray of bool of shape (row,)
        Of the memory.
    key : Array
    """
    if settings.method is not None:
        return state.predictive
    if not part.any():
        return state.q
    chosen = state.memory.take(problem.rows, part)
    batch = as_batch(problem.rows, chosen, settings.weights(state.time - chosen.times))
    work = _Work(problem, settings, lambda n, note: None)
    return work.project(state.q, batch, key, state.predictive, state.seen == len(state.memory))


class _Work:
    """The projections of one update, and what is to be said of them."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        advance: Callable[[int, str], None],
        *,
        first: bool = False,
    ) -> None:
        self.problem, self.settings, self.advance = problem, settings, advance
        self.first = first
        self.steps = self.skipped = 0
        self.lower_bound = np.nan
        self.projected: list[tuple[MeanField, MeanField, Batch, projection.Remainder | None]] = []

    def project(
        self,
        prior: MeanField,
        batch: Batch,
        key: Array,
        start: MeanField | None,
        untouched: bool,
    ) -> MeanField:
        """Project a normal times the likelihood of a batch.

        `start` is where a search begins, if one is needed; `untouched` says that `prior` is still
        the model's prior, or the normal in its place.
        """
        p, settings = self.problem, self.settings
        remainder = p.remainder if untouched else None
        more = settings.more(prior, p.prior)
        if p.gaussian:
            q = projection.exact(p.rows, prior, batch, 0.0 if more is None else more)
        else:
            start_key, key = jax.random.split(key)
            begun = begin(p, p.rows, prior, batch, settings, start, start_key, self.advance)
            found = projection.climb(
                p.rows, begun.q, prior, batch, settings.search, key,
                remainder=remainder, more=more, narrow=begun.narrow, first=self.first,
                advance=self.advance,
            )  # fmt: skip
            q = found.q
            self.steps += begun.steps + len(found.lower_bound)
            self.skipped += found.skipped
            last = found.lower_bound[-max(len(found.lower_bound) // 10, 1) :]
            self.lower_bound = float(np.mean(last))
        self.projected.append((q, prior, batch, remainder))
        return q

    def residuals(
        self, q: MeanField, batch: Batch, rule: ResidualMemory, key: Array
    ) -> residual.Residuals:
        if self.problem.gaussian:
            return residual.exact_residuals(self.problem.rows, q, batch.data)
        return residual.residuals(self.problem.rows, q, batch.data, key, rule.draws)


def as_batch(rows: Rows, part: Stored, weights: np.ndarray) -> Batch:
    """Arrays of a length of which there are few: what was compiled for it serves again."""
    index = padding(len(part))
    filled = np.concatenate([weights, np.zeros(len(index) - len(part))])
    data = {k: jnp.asarray(v) for k, v in rows.take(part.data, index).items()}
    return Batch(data, jnp.asarray(filled, jnp.result_type(float)))


def _candidates(
    rows: Rows, everything: Stored, state: State, score: np.ndarray | None = None
) -> Candidates:
    c = rows.compiled
    named = [i.name for i in c.covariates if rows.axis(i.name) is not None]
    n = len(everything)
    points = [
        np.moveaxis(np.asarray(everything.data[k], float), rows.axis(k) or 0, 0).reshape(n, -1)
        for k in named or [i.name for i in c.observed]
    ]
    return Candidates(np.concatenate(points, axis=1), len(state.memory), state.seen, score)


def _divided(
    begun: Factor,
    everything: MeanField,
    factor: Factor,
    weights: np.ndarray,
    kept: np.ndarray,
    arrived: int,
    least: Array,
) -> tuple[MeanField, int]:
    """Return the normal of all rows but the kept ones, and the number of entries that were clamped.

    By eq. 9a or 9b of Kurle et al. (2020): of two sums of estimates, the one with fewer.
    """
    there = np.zeros(len(weights), bool)
    there[: len(kept)] = kept
    if arrived <= kept.sum():
        out = jnp.asarray(np.where(there, 0.0, weights), weights.dtype)
        whole = begun.times(residual.product(factor, out))
    else:
        inside = jnp.asarray(np.where(there, weights, 0.0), weights.dtype)
        whole = everything.factor.times(residual.product(factor, inside), -1.0)
    # Estimates of many factors may add up to more than there is: then nothing is known but a
    # little, around where it was.
    short = whole.precision < least
    precision = jnp.where(short, least, whole.precision)
    mean = jnp.where(short, everything.mean, whole.shift / precision)
    return MeanField(mean, -jnp.log(precision) / 2), int(short.sum())


@jit
def _log_ratios(
    rows: Rows,
    q: MeanField,
    prior: MeanField,
    batch: Batch,
    remainder: projection.Remainder | None,
    key: Array,
) -> Array:
    def one(key: Array) -> Array:
        z = q.at(jax.random.normal(key, q.mean.shape, q.mean.dtype))
        before = prior.log_density(z)
        if remainder is not None:
            before = before + remainder(rows, z)
        return before + projection.log_likelihood(rows, z, batch) - q.log_density(z)

    return jax.lax.map(one, jax.random.split(key, _DRAWS))


def _khat(
    problem: Problem,
    q: MeanField,
    prior: MeanField,
    batch: Batch,
    remainder: projection.Remainder | None,
    key: Array,
) -> float:
    if batch.weights.size * q.mean.size * _DRAWS > _DEAR:
        return np.nan
    ratio = _log_ratios(problem.rows, q, prior, batch, remainder, key)
    return float(importance_diagnostics(np.asarray(ratio)).khat)
