"""Choice of the proposal: mixture weights and efficiency from pilot draws of all components."""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

_EM = 30  # steps of expectation-maximisation
_SMALLEST = 0.002  # a component of less weight is left out


class Pilot(NamedTuple):
    """Draws in equal numbers from every component that there is, of each dataset.

    Attributes
    ----------
    log_p : array of shape (dataset, draw)
        Log density of the target.
    log_q : array of shape (dataset, component, draw)
    there : array of bool of shape (dataset, component)
        Components that are no empty places.
    """

    log_p: np.ndarray
    log_q: np.ndarray
    there: np.ndarray


class Candidate(NamedTuple):
    """A mixture of some of the components, for each dataset.

    Attributes
    ----------
    weights : array of shape (dataset, component)
    efficiency : array of shape (dataset,)
        Estimated importance efficiency, 0 where it has no component.
    """

    weights: np.ndarray
    efficiency: np.ndarray


def mixture_log_q(log_q: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log sum_k weights_k q_k of shape (dataset, draw), of log q (dataset, component, draw)."""
    safe = np.where(np.isfinite(log_q), log_q, -np.inf)
    with np.errstate(divide="ignore"):
        return logsumexp(safe, axis=1, b=weights[..., None])


def candidates(pilot: Pilot, members: np.ndarray) -> list[Candidate]:
    """Fit the weights of mixtures of the members, and estimate their efficiency.

    Draws are weighted by the equal mixture of all components, so that what one component misses
    another shows.

    Parameters
    ----------
    pilot : Pilot
    members : array of bool of shape (candidate, dataset, component)

    References
    ----------
    Cappe, Douc, Guillin, Marin & Robert (2008), Adaptive importance sampling in general mixture
    classes, section 4, for the weights; Owen & Zhou (2000) for the defensive mixture.
    """
    number = pilot.there.sum(axis=1, keepdims=True)
    pooled = mixture_log_q(pilot.log_q, pilot.there / np.maximum(number, 1))
    usable = np.isfinite(pilot.log_p) & np.isfinite(pooled)
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.where(usable, pilot.log_p - pooled, -np.inf)
        # densities in units of the pool's, of which each is a part: bounded by their number
        part = np.where(usable[:, None], np.exp(pilot.log_q - pooled[:, None]), 0.0)
    part = np.where(np.isfinite(part), part, 0.0)
    top = np.where(usable.any(axis=1), ratio.max(axis=1), 0.0)[:, None]
    weight = np.exp(ratio - top)
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    return [_candidate(part, weight, member) for member in members]


def _candidate(part: np.ndarray, weight: np.ndarray, member: np.ndarray) -> Candidate:
    """Fit one mixture; `part` is q / pool, `weight` that of the draws."""
    weights = member / np.maximum(member.sum(axis=1, keepdims=True), 1)
    several = np.flatnonzero(member.sum(axis=1) > 1)
    if len(several):
        w, q, by = weights[several], part[several], weight[several]
        for _ in range(_EM):
            mixture = np.einsum("dc,dcn->dn", w, q)
            share = np.divide(by, mixture, out=np.zeros_like(by), where=mixture > 1e-300)
            new = w * np.einsum("dcn,dn->dc", q, share)
            total = new.sum(axis=1, keepdims=True)
            w = np.where(total > 0, new / np.maximum(total, 1e-300), w)
        w = np.where(w < _SMALLEST, 0.0, w)
        weights[several] = w / np.maximum(w.sum(axis=1, keepdims=True), 1e-300)
    # (mean of p / pool)^2 over E_q[(p/q)^2], the mean of p^2 / (q pool)
    mixture = np.einsum("dc,dcn->dn", weights, part)
    with np.errstate(divide="ignore", over="ignore"):
        squared = np.divide(
            weight**2, mixture, out=np.where(weight > 0, np.inf, 0.0), where=mixture > 0
        )
    second = squared.sum(axis=1) * part.shape[2]
    efficiency = np.divide(1.0, second, out=np.zeros(len(second)), where=second > 0)
    return Candidate(weights, np.minimum(np.where(member.any(axis=1), efficiency, 0.0), 1.0))


class Choice(NamedTuple):
    """The proposal chosen for each dataset: which candidate, its weights, all efficiencies."""

    which: np.ndarray
    weights: np.ndarray
    efficiency: np.ndarray


class Verdict(NamedTuple):
    """The choice for each dataset: engine, weights of the places, efficiency of each candidate."""

    engine: np.ndarray
    weights: np.ndarray
    efficiency: np.ndarray


def choose(pilot: Pilot, members: np.ndarray, prefer: np.ndarray) -> Choice:
    """Choose among candidates, by their members of shape (candidate, dataset, component).

    A candidate wins where its efficiency times its preference is the largest.
    """
    found = candidates(pilot, members)
    efficiency = np.stack([c.efficiency for c in found], axis=1)
    which = np.argmax(efficiency * prefer, axis=1)
    weights = np.stack([c.weights for c in found], axis=1)
    return Choice(which, weights[np.arange(len(which)), which], efficiency)
