"""Hyper-parameters of refinement, and what users may give in their place."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np

from pmcl.compile import CompiledModel, Density
from pmcl.draws.densities import pick
from pmcl.draws.drawn import Drawn
from pmcl.draws.prediction import Extra
from pmcl.metrics import FEWEST_DRAWS
from pmcl.networks import Amortizer
from pmcl.runtime.arguments import positive
from pmcl.search.search import Search
from pmcl.search.starts import from_draws

type RefineLike = Refine | bool | Literal["auto"]
type CorrectLike = Literal["auto", "psis"] | None
type FallbackLike = Literal["auto", "nuts"] | None
FEWEST_STARTS = 200  # draws that searches and covariances are made from


class Refine(eqx.Module):
    """Hyper-parameters of refinement.

    Attributes
    ----------
    steps : int
        Local path-gradient steps; 0: alignment alone.
    draws : int
        Draws of each step.
    rate : float
        Highest learning rate of the steps (Adam, cosine decay), relative to the posterior's scale.
    starts : int
        Points that searches for modes start from.
    pilot : int
        Draws of every proposal by which they are judged.
    enough : float
        Estimated efficiency with which no further stage is tried, nor a first mixture's next round;
        above 1: all always are.
    rounds : int
        Rounds of population Monte Carlo where local steps leave a poor efficiency, or wider draws
        move moments, after searches from many more places; 0: none of this, and no wider draws
        among the others.
    components : int
        Components of its mixture; up to twice as many where that is poor, too.
    khat, efficiency : float
        With ``refine="auto"``: what an amortized posterior may have and be left alone. Population
        Monte Carlo is for draws below this efficiency, too.
    """

    steps: int = 100
    draws: int = 16
    rate: float = 0.03
    starts: int = 5
    pilot: int = 100
    enough: float = 0.7
    rounds: int = 8
    components: int = 24
    khat: float = 0.5
    efficiency: float = 0.3


def settings_of(refine: RefineLike) -> Refine | None:
    """Read the argument `refine` of `sample`; None: no refinement.

    Raises
    ------
    ValueError
    """
    if isinstance(refine, Refine):
        return refine
    if refine is False:
        return None
    if refine is True or refine == "auto":
        return Refine()
    raise ValueError(f"refine: expected True, False, 'auto' or a pmcl.Refine, got {refine!r}.")


def _ways_of(
    correct: CorrectLike, fallback: FallbackLike, draws: int, *, refined: bool, stored: bool
) -> tuple[CorrectLike, FallbackLike]:
    """Read the arguments `correct` and `fallback` of `sample`.

    Raises
    ------
    ValueError
    """
    if correct not in ("auto", "psis", None):
        raise ValueError(f"correct: expected 'auto', 'psis' or None, got {correct!r}.")
    if fallback not in ("auto", "nuts", None):
        raise ValueError(f"fallback: expected 'auto', 'nuts' or None, got {fallback!r}.")
    few = positive("draws", draws) < FEWEST_DRAWS
    if fallback == "nuts" and few:
        raise ValueError(
            f"draws: with a fallback expected at least {FEWEST_DRAWS}, as of fewer k-hat cannot be "
            f"told, got {draws}."
        )
    if correct == "auto":
        correct = "psis" if refined else None
    off = fallback == "auto" and (few or stored or not refined)
    return correct, None if off else fallback


class Asked(NamedTuple):
    """What a user asked of draws, read; see `AmortizedPosterior.sample` and :func:`pmcl.refine`.

    Attributes
    ----------
    draws : int
    names : tuple of str
        Variables of the group `posterior`.
    seed : int
    refine : Refine, optional
        None: nothing is refined.
    everywhere : bool
        Refine every dataset, not only those whose amortized posterior is poor.
    correct : {"psis", None}
        How draws come to count alike: resampled by smoothed weights. None: they do not.
    fallback : {"auto", "nuts", None}
        What samples the datasets whose posterior does not stand; "auto": where they are few.
    extra : Extra
    """

    draws: int
    names: tuple[str, ...]
    seed: int
    refine: Refine | None
    everywhere: bool
    correct: CorrectLike
    fallback: FallbackLike = None
    extra: Extra = Extra()


class Ways(NamedTuple):
    """The arguments of `sample` of these names."""

    refine: RefineLike
    correct: CorrectLike = "auto"
    fallback: FallbackLike = "auto"


def asked_of(
    compiled: CompiledModel,
    ways: Ways,
    draws: int,
    *,
    seed: int,
    var_names: Sequence[str] | None = None,
    extra: Extra | None = None,
    stored: bool = False,
) -> Asked:
    """Read what a user asks of draws.

    Raises
    ------
    ValueError
        Naming the argument that has none of its values.
    UnsupportedModelError
        Where predictions are asked of a model that cannot be simulated.
    """
    refine = settings_of(ways.refine)
    correct, fallback = _ways_of(
        ways.correct, ways.fallback, draws, refined=refine is not None, stored=stored
    )
    return Asked(
        positive("draws", draws),
        pick(compiled, None if var_names is None else list(var_names)),
        seed,
        refine,
        everywhere=not isinstance(ways.refine, str),
        correct=correct,
        fallback=fallback,
        extra=(extra or Extra()).check(compiled),
    )


class Beginning(NamedTuple):
    """Where refinement begins.

    Attributes
    ----------
    search : Search
    start : array of shape (dataset, start, dim), optional
        Each dataset's own starts; those of the search by default.
    """

    search: Search
    start: np.ndarray | None = None

    def beside(self, z: np.ndarray) -> "Beginning":
        """The same with more starts, of shape (dataset, start, dim); NaN where there are fewer."""
        first = self.search.starts[: self.search.begun]
        own = np.asarray(first) if self.start is None else self.start
        own = np.broadcast_to(own, (len(z), *own.shape[-2:]))
        more = np.where(np.isfinite(z).all(axis=2, keepdims=True), z, own[:, :1])
        return self._replace(start=np.concatenate([own, more], axis=1))

    def along(self, which: np.ndarray) -> "Beginning":
        """The same of some of the parameters."""
        starts, spread = (
            np.asarray(v)[..., which] for v in (self.search.starts, self.search.spread)
        )
        search = eqx.tree_at(lambda s: (s.starts, s.spread), self.search, (starts, spread))
        return Beginning(search, None if self.start is None else self.start[..., which])

    @classmethod
    def of_network(
        cls, amortizer: Amortizer, density: Density, drawn: Drawn, number: int
    ) -> "Beginning":
        """At a network's draws."""
        search, scaling = amortizer.search, amortizer.z_scaling
        if search is None:
            search = Search.at(density, np.asarray(scaling.loc)[None], np.asarray(scaling.scale))
        z, log_p = drawn.z[:, :FEWEST_STARTS], drawn.log_prior + drawn.log_likelihood
        centre = np.asarray(search.starts)[0]
        return cls(search, from_draws(z, log_p[:, :FEWEST_STARTS], centre, number))
