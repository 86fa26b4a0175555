"""Importance weights of posterior draws: Pareto k-hat, efficiency and evidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
# ArviZ fits the tail to the largest fifth (fewer above 225 draws) and needs five draws there.
FEWEST_DRAWS = 25
# Weights none of which is this many times the mean have no tail that could be fitted: where q's own
# tails are too light the largest of even a few dozen are far above it.
_ALIKE = 1.5
_EQUAL = 1.01  # of a few draws


class ImportanceDiagnostics(NamedTuple):
    """What the log ratios of a proposal's draws say about the proposal.

    Attributes
    ----------
    log_weights : ndarray, shape (..., S)
        Pareto-smoothed, normalised log weights: their logsumexp over draws is 0.
        A draw of weight zero has -inf.
    khat : ndarray, shape (...)
        Pareto shape of the weights' upper tail; never NaN. ``-inf``: there is no tail, since
        no weight is above 1.5 times their mean (a posterior that is nearly exact has such
        weights, and a shape fitted to their rounding would mean nothing), or all of the fitted
        tail is one value. ``inf``: the weights cannot be
        trusted, or there are too few usable draws (below 25) to tell.
    efficiency : ndarray, shape (...)
        1 / (S sum w^2) of the self-normalised raw weights, in (0, 1]; 0 without a usable draw.
    log_evidence : ndarray, shape (...)
        log mean exp(log_ratio); -inf without a usable draw.
    log_evidence_error : ndarray, shape (...)
        Monte Carlo standard error of `log_evidence` by the delta method, from the raw weights;
        inf without a usable draw, and for a single draw. It is itself unreliable where `khat`
        exceeds its threshold.
    finite_fraction : ndarray, shape (...)
        Fraction of the draws whose log ratio is finite.
    sc_variance : ndarray, shape (...)
        Self-consistency variance: of the finite log ratios, in nats squared; 0 for an exact
        posterior, inf with fewer than two.
    """

    log_weights: FloatArray
    khat: FloatArray
    efficiency: FloatArray
    log_evidence: FloatArray
    log_evidence_error: FloatArray
    finite_fraction: FloatArray
    sc_variance: FloatArray


def importance_diagnostics(log_ratio: ArrayLike) -> ImportanceDiagnostics:
    """Weigh draws of a proposal q against the model.

    Parameters
    ----------
    log_ratio : array_like, shape (..., S)
        log p(z, x) - log q(z | x) at S draws z of q, for any number of datasets.

    Returns
    -------
    ImportanceDiagnostics
        Smoothed weights of shape (..., S), everything else of shape (...).

    Raises
    ------
    ValueError
        Without a draw dimension, or with no draws.

    Notes
    -----
    Draws with a NaN or infinite log ratio have weight zero; they stay in every average over draws
    and are counted in `finite_fraction`. The tail is fitted to the other draws. One ratio of +inf
    sets `khat` to inf, because it means that the weights have no bound. With no finite ratio at
    all: `khat` inf, `efficiency` 0, uniform weights, `log_evidence` -inf.

    References
    ----------
    .. [1] Vehtari, Simpson, Gelman, Yao, Gabry (2024). Pareto smoothed importance sampling.
       Journal of Machine Learning Research 25(72).
    """
    ratio = np.asarray(log_ratio, dtype=np.float64)
    if ratio.ndim == 0 or ratio.shape[-1] == 0:
        raise ValueError(
            "log_ratio: expected shape (..., draws) with at least one draw, got shape "
            f"{ratio.shape}. Pass log p(z, x) - log q(z | x) with draws as the last axis."
        )
    batch, n_draws = ratio.shape[:-1], ratio.shape[-1]
    rows = ratio.reshape(-1, n_draws)
    finite = np.isfinite(rows)
    usable = finite.any(axis=1)

    raw = np.where(finite, rows, -np.inf)
    peak = np.where(usable, raw.max(axis=1, initial=-np.inf), 0.0)
    shifted = raw - peak[:, None]
    weights = np.exp(shifted)
    total = weights.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        efficiency = np.minimum(total**2 / (n_draws * np.sum(weights**2, axis=1)), 1.0)
        log_evidence = peak + np.log(total / n_draws)
        # sd(w) / (mean(w) sqrt(S)), with ddof 1, written in the efficiency
        error = np.sqrt((1.0 / efficiency - 1.0) / (n_draws - 1))
    efficiency = np.where(usable, efficiency, 0.0)
    error = np.where(usable & (n_draws > 1), error, np.inf)

    count = finite.sum(axis=1)
    mean = np.sum(np.where(finite, rows, 0.0), axis=1) / np.maximum(count, 1)
    centred = np.where(finite, rows - mean[:, None], 0.0)
    with np.errstate(over="ignore"):
        variance = np.sum(centred**2, axis=1) / np.maximum(count - 1, 1)

    log_weights = np.full(rows.shape, -np.inf)
    khat = np.full(len(rows), np.inf)
    alike = np.where(count < FEWEST_DRAWS, _EQUAL, _ALIKE)
    flat = usable & (n_draws < alike * total)
    for i in np.flatnonzero(flat):
        log_weights[i], khat[i] = _normalised(shifted[i]), -np.inf
    for i in np.flatnonzero(usable & ~flat):
        log_weights[i, finite[i]], khat[i] = _smooth(shifted[i, finite[i]])
    log_weights[~usable] = -np.log(n_draws)
    khat[np.isposinf(rows).any(axis=1)] = np.inf

    return ImportanceDiagnostics(
        log_weights=log_weights.reshape(ratio.shape),
        khat=khat.reshape(batch),
        efficiency=efficiency.reshape(batch),
        log_evidence=log_evidence.reshape(batch),
        log_evidence_error=error.reshape(batch),
        finite_fraction=finite.mean(axis=1).reshape(batch),
        sc_variance=np.where(count > 1, variance, np.inf).reshape(batch),
    )


def resample(log_weights: ArrayLike, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw indices with the given weights by systematic resampling.

    A draw of normalised weight w comes floor(size w) or ceil(size w) times, w size times on
    average; a draw of weight zero never comes. The indices come in random order.

    Parameters
    ----------
    log_weights : array_like, shape (S,)
        Log weights, normalised or not; -inf is weight zero.
    size : int
        How many indices to draw.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of int, shape (size,)

    Raises
    ------
    ValueError
        If a weight is NaN or +inf, all are zero, the shape is not (S,), or `size` is negative.

    References
    ----------
    .. [1] Douc, Cappe, Moulines (2005). Comparison of resampling schemes for particle filtering.
       Image and Signal Processing and Analysis, 64-69.
    """
    log_w = np.asarray(log_weights, dtype=np.float64)
    if log_w.ndim != 1 or log_w.size == 0:
        raise ValueError(
            f"log_weights: expected shape (draws,), got {log_w.shape}. Resample one dataset a call."
        )
    if np.isnan(log_w).any() or not np.isfinite(log_w.max()):
        raise ValueError(
            "log_weights: expected numbers or -inf with at least one finite, got "
            f"{np.isnan(log_w).sum()} NaN and a largest value of {log_w.max()}. Use the "
            "log_weights that importance_diagnostics returns."
        )
    if size < 0:
        raise ValueError(f"size: expected 0 or more indices, got {size}.")
    cumulative = np.cumsum(np.exp(log_w - log_w.max()))
    cumulative /= cumulative[-1]
    # rounding may lift the last point to 1, where there is no draw
    points = np.minimum((np.arange(size) + rng.random()) / max(size, 1), np.nextafter(1.0, 0.0))
    return rng.permutation(np.searchsorted(cumulative, points, side="right"))


def khat_threshold(n_draws: int) -> float:
    """Pareto k-hat above which this many draws do not make reliable estimates.

    min(1 - 1 / log10(S), 0.7): from about 2,200 draws on it is 0.7.

    Parameters
    ----------
    n_draws : int
        Number of draws S that the weights belong to, at least 2.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For fewer than two draws.

    References
    ----------
    .. [1] Vehtari, Simpson, Gelman, Yao, Gabry (2024). Pareto smoothed importance sampling.
       Journal of Machine Learning Research 25(72).
    """
    if n_draws < 2:
        raise ValueError(f"n_draws: expected at least 2 draws, got {n_draws}.")
    return min(1.0 - 1.0 / float(np.log10(n_draws)), 0.7)


def _normalised(log_ratio: FloatArray) -> FloatArray:
    """Normalise log weights whose maximum is 0."""
    return log_ratio - np.log(np.sum(np.exp(log_ratio)))


def _smooth(log_ratio: FloatArray) -> tuple[FloatArray, float]:
    """Smoothed normalised log weights and k-hat of finite log ratios (n,) whose maximum is 0."""
    raw = _normalised(log_ratio)
    if log_ratio.size < FEWEST_DRAWS:
        return raw, np.inf

    from arviz_stats.base import array_stats

    try:
        # ArviZ takes the log of the proposal over the target: the minus is ours to give. Its fit
        # overflows in a tail that is far from a Pareto, and gives NaN, which is read below.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            smoothed, khat = array_stats.psislw(-log_ratio)
    except ValueError:
        # the whole tail is one value: the weights are bounded and there is nothing to fit
        if np.count_nonzero(log_ratio == 0.0) >= 5:
            return raw, -np.inf
        raise
    khat = float(khat)
    # NaN from ArviZ: a tail too far from a Pareto to be fitted (ties, or weights that underflow)
    if np.isnan(khat) or np.isnan(smoothed).any():
        return raw, np.inf
    return smoothed, khat
