"""Hyper-parameters of refinement, and what users may give in their place."""

from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np

from pmcl.draws.prediction import Extra
from pmcl.metrics import FEWEST_DRAWS
from pmcl.networks import Amortizer

type RefineLike = Refine | bool | Literal["auto"]
type CorrectLike = Literal["auto", "psis"] | None
type FallbackLike = Literal["nuts"] | None
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
        Draws that a search for modes starts from.
    search : int
        Most steps of a search.
    exact : int
        Largest number of parameters for which Newton steps use the exact Hessian; L-BFGS beyond.
    pilot : int
        Draws of every proposal by which they are judged.
    enough : float
        Estimated efficiency with which no further stage is tried; above 1: all always are.
    rounds : int
        Rounds of population Monte Carlo where local steps leave a poor efficiency; 0: none.
    components : int
        Components of its mixture.
    khat, efficiency : float
        With ``refine="auto"``: what an amortized posterior may have and be left alone. Population
        Monte Carlo is for draws below this efficiency, too.
    """

    steps: int = 100
    draws: int = 16
    rate: float = 0.03
    starts: int = 4
    search: int = 50
    exact: int = 100
    pilot: int = 100
    enough: float = 0.7
    rounds: int = 8
    components: int = 6
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


def way_of(
    correct: CorrectLike, fallback: FallbackLike, draws: int, *, refined: bool
) -> CorrectLike:
    """Read the arguments `correct` and `fallback` of `sample`.

    Raises
    ------
    ValueError
    """
    if correct not in ("auto", "psis", None):
        raise ValueError(f"correct: expected 'auto', 'psis' or None, got {correct!r}.")
    if fallback not in ("nuts", None):
        raise ValueError(f"fallback: expected 'nuts' or None, got {fallback!r}.")
    if fallback is not None and draws < FEWEST_DRAWS:
        raise ValueError(
            f"draws: with a fallback expected at least {FEWEST_DRAWS}, as of fewer k-hat cannot be "
            f"told, got {draws}."
        )
    if correct == "auto":
        return "psis" if refined else None
    return correct


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
    fallback : {"nuts", None}
        What samples the datasets whose k-hat is too high.
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


class Beginning(NamedTuple):
    """Where refinement begins.

    Attributes
    ----------
    z : array of shape (dataset, draw, dim)
        Draws that searches start from; the network's own where there is one.
    centre, spread : arrays of shape (dim,)
        Mean and sd of the parameters under the prior, on the unconstrained scale.
    """

    z: np.ndarray
    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of_network(cls, amortizer: Amortizer, z: np.ndarray) -> "Beginning":
        """At draws of a network."""
        scaling = amortizer.z_scaling
        return cls(z, np.asarray(scaling.loc, float), np.asarray(scaling.scale, float))

    @classmethod
    def of_prior(cls, prior: np.ndarray, z: np.ndarray) -> "Beginning":
        """At z, or draws (draw, dim) of the prior, whose median and sd are centre and spread."""
        spread = np.maximum(np.std(prior, axis=0), 1e-6)
        return cls(z, np.median(prior, axis=0), spread)
