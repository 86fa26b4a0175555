"""Calibration: where the truth lies among posterior draws, and how much data have taught."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pit(draws: ArrayLike, truth: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
    """Randomised probability integral transform of the truth among posterior draws.

    Uniform on (0, 1) if truth and draws have the same distribution, ties included.

    Parameters
    ----------
    draws : array_like, shape (n, S, ...)
        S posterior draws for each of n simulated datasets.
    truth : array_like, shape (n, ...)
        The parameters that made the datasets.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (n, ...)

    Raises
    ------
    ValueError
        If the shapes do not match.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari & Gelman (2018). Validating Bayesian inference algorithms
    with simulation-based calibration, theorem 1.
    """
    drawn, true = np.asarray(draws), np.asarray(truth)
    if drawn.ndim < 2 or drawn.shape[:1] + drawn.shape[2:] != true.shape:
        raise ValueError(
            f"draws: expected shape (n, S, ...) for a truth of shape (n, ...) = {true.shape}, "
            f"got {drawn.shape}."
        )
    below = np.sum(drawn < true[:, None], axis=1)
    equal = np.sum(drawn == true[:, None], axis=1)
    return (below + rng.random(true.shape) * (equal + 1)) / (drawn.shape[1] + 1)


class Coverage(NamedTuple):
    """How often central intervals hold the truth.

    Attributes
    ----------
    levels : ndarray, shape (levels,)
        Probability of each interval.
    observed : ndarray, shape (levels, ...)
        Fraction of datasets whose interval holds the truth.
    low, high : ndarray, shape (levels,)
        Between them the fraction lies in 99 of 100 runs where the posterior is calibrated.
    """

    levels: NDArray[np.float64]
    observed: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def coverage(values: ArrayLike, levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95)) -> Coverage:
    """Coverage of central posterior intervals.

    Parameters
    ----------
    values : array_like, shape (n, ...)
        Probability integral transforms of n datasets (:func:`pit`).
    levels : sequence of float
        In (0, 1).

    Returns
    -------
    Coverage

    Raises
    ------
    ValueError
        If a level is not between 0 and 1.
    """
    from scipy.stats import binom

    u, at = np.asarray(values, float), np.asarray(levels, float)
    if at.ndim != 1 or not np.all((at > 0) & (at < 1)):
        raise ValueError(f"levels: expected numbers between 0 and 1, got {levels}.")
    n = len(u)
    away = 2 * np.abs(u - 0.5)
    observed = np.stack([np.mean(away <= level, axis=0) for level in at])
    return Coverage(at, observed, binom.ppf(0.005, n, at) / n, binom.ppf(0.995, n, at) / n)


def tarp(draws: ArrayLike, truth: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
    """Tests of accuracy with random points: coverage of the whole joint posterior at once.

    For each dataset a point is drawn at random, from where the truths lie, and the value is the
    credibility of the ball about it whose surface goes through the truth. Uniform on (0, 1) for the
    exact posterior, and by theorem 3 of the source for no other, over all ways to draw the points.

    Parameters
    ----------
    draws : array_like, shape (n, S, dim)
    truth : array_like, shape (n, dim)
        On a scale on which the entries can be compared.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (n,)

    Raises
    ------
    ValueError
        If the shapes do not match.

    References
    ----------
    Lemos, Coogan, Hezaveh & Perreault-Levasseur (2023). Sampling-based accuracy testing of
    posterior estimators for general inference, algorithm 2.
    """
    drawn, true = np.asarray(draws, float), np.asarray(truth, float)
    if drawn.ndim != 3 or drawn.shape[::2] != true.shape:
        raise ValueError(
            f"draws: expected shape (n, S, dim) for a truth of shape (n, dim) = {true.shape}, "
            f"got {drawn.shape}."
        )
    low, high = true.min(axis=0), true.max(axis=0)
    point = rng.uniform(low, high, size=true.shape)
    radius = np.linalg.norm(true - point, axis=1)
    distance = np.linalg.norm(drawn - point[:, None], axis=2)
    return pit(distance, radius, rng)


class Learned(NamedTuple):
    """What a dataset's posterior says of the truth, and how much it has learned.

    Attributes
    ----------
    z_score : ndarray, shape (n, ...)
        (posterior mean - truth) / posterior sd.
    contraction : ndarray, shape (n, ...)
        1 - posterior variance / prior variance: 0 nothing learned, 1 everything.
    """

    z_score: NDArray[np.float64]
    contraction: NDArray[np.float64]


def learned(draws: ArrayLike, truth: ArrayLike) -> Learned:
    """Posterior z-scores and contraction of simulated datasets.

    Parameters
    ----------
    draws : array_like, shape (n, S, ...)
    truth : array_like, shape (n, ...)
        Draws of the prior: their variance is the prior's.

    Returns
    -------
    Learned

    References
    ----------
    Schad, Betancourt & Vasishth (2021). Toward a principled Bayesian workflow in cognitive science,
    section "Model sensitivity".
    """
    drawn, true = np.asarray(draws, float), np.asarray(truth, float)
    variance = drawn.var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Learned(
            (drawn.mean(axis=1) - true) / np.sqrt(variance),
            1 - variance / true.var(axis=0, ddof=1),
        )
