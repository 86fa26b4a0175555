"""Alarms over a series: which values no longer look like the first ones."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
# An exact p-value's -log is exponential with mean 1: what exceeds the allowance is evidence.
_ALLOWANCE = 2.5
# No single dataset raises an alarm: of an outlier no more is believed than this.
_MOST = 10.0
_SERIES, _LENGTH = 20_000, 400  # simulated, for the threshold
LEAST_RATE = 5 / (_SERIES * _LENGTH)


class Alarm(NamedTuple):
    """Cumulated evidence that a series has changed.

    Attributes
    ----------
    p_value : ndarray, shape (n,)
        Of each value against the first ones; NaN for those.
    evidence : ndarray, shape (n,)
        Sum of what -log p exceeds its allowance by, never below 0 (a one-sided CUSUM).
    raised : ndarray of bool, shape (n,)
    """

    p_value: FloatArray
    evidence: FloatArray
    raised: NDArray[np.bool_]


def alarm(
    values: ArrayLike,
    baseline: int,
    *,
    rate: float,
    two_sided: bool = False,
    least: float = 0.0,
) -> Alarm:
    """Watch a series for a change: upwards, or to either side.

    Values are compared with the first ones by Student's t for one more value of a normal sample,
    and evidence is cumulated over the series.

    Parameters
    ----------
    values : array_like, shape (n,)
        On a scale on which values without a change are about normal.
    baseline : int
        How many of them are known to be without a change; at least 10, of which those that are not
        finite do not count.
    rate : float
        False alarms a value, on average.
    two_sided : bool
    least : float
        Standard deviation that the first values are taken to have, at least.

    Returns
    -------
    Alarm

    Raises
    ------
    ValueError
        With fewer than 10 finite values to compare with, or a rate that is too high or too low.

    References
    ----------
    Page (1954), Continuous inspection schemes; Hawkins (1987), Self-starting CUSUM charts for
    location and scale. The threshold is found by simulation of both, baseline included.
    """
    x = np.asarray(values, float)
    if baseline < 10 or x.ndim != 1 or len(x) < baseline:
        raise ValueError(
            f"baseline: expected at least 10 values and no more than there are ({x.size}), "
            f"got {baseline}."
        )
    if not LEAST_RATE <= rate < 0.1:
        raise ValueError(
            f"rate: expected a number of at least {LEAST_RATE:g}, which is what simulations tell, "
            f"and below 0.1, got {rate}."
        )
    first = x[None, :baseline][:, np.isfinite(x[:baseline])]
    if first.size < 10:
        raise ValueError(
            f"baseline: expected at least 10 finite values among the first {baseline}, got "
            f"{first.size}."
        )
    p = np.full(len(x), np.nan)
    p[baseline:] = _p_values(first, x[None, baseline:], two_sided, least)[0]
    evidence = np.zeros(len(x))
    evidence[baseline:] = _cumulated(p[None, baseline:])[0]
    return Alarm(p, evidence, evidence > threshold(first.size, rate))


def threshold(baseline: int, rate: float) -> float:
    """Evidence at which an alarm is raised, from simulated series without a change.

    Parameters
    ----------
    baseline : int
    rate : float
        Alarms a value: how often evidence comes above the threshold from below.
    """
    # 1 - exp(-rate n) of the series have an alarm among n values.
    return float(np.quantile(_peaks(baseline), np.exp(-rate * _LENGTH)))


@lru_cache(maxsize=8)
def _peaks(baseline: int) -> FloatArray:
    """Return the largest evidence of each simulated series."""
    rng = np.random.default_rng(0)
    peaks = []
    for _ in range(10):
        first = rng.normal(size=(_SERIES // 10, baseline))
        rest = rng.normal(size=(_SERIES // 10, _LENGTH))
        peaks.append(_cumulated(_p_values(first, rest, two_sided=False)).max(axis=1))
    return np.concatenate(peaks)


def _p_values(
    first: FloatArray, rest: FloatArray, two_sided: bool, least: float = 0.0
) -> FloatArray:
    """Student's t for new values (series, n), given a sample (series, baseline)."""
    from scipy.special import stdtr

    m = first.shape[1]
    centre, sd = first.mean(axis=1, keepdims=True), first.std(axis=1, ddof=1, keepdims=True)
    t = (rest - centre) / np.maximum(sd, max(least, 1e-12)) / np.sqrt(1 + 1 / m)
    upper = stdtr(m - 1, -np.abs(t) if two_sided else -t)
    found = 2 * upper if two_sided else upper
    return np.where(np.isfinite(rest), np.clip(found, 1e-300, 1.0), np.exp(-_MOST))


def _cumulated(p: FloatArray) -> FloatArray:
    """CUSUM of -log p along the last axis."""
    gain = np.minimum(-np.log(p), _MOST) - _ALLOWANCE
    found = np.empty_like(gain)
    now = np.zeros(gain.shape[0])
    for i in range(gain.shape[1]):
        now = np.maximum(now + gain[:, i], 0.0)
        found[:, i] = now
    return found


def apart(mean: ArrayLike, variance: ArrayLike, baseline: int) -> FloatArray:
    """Distance of each dataset's posterior mean from those of the first ones.

    Of each parameter the squared difference over the variance that it should have: the posterior's
    own, the variance between datasets, and that of the first ones' mean. Returned is log(0.3 + d),
    d their mean. The third root would be nearer to normal for exact posteriors (Wilson & Hilferty
    1931), but draws of a network have heavier tails; this has a lighter one than normal for d from
    normals and about a normal one for d from Student's t (measured, from 1 to 30 parameters).

    Parameters
    ----------
    mean, variance : array_like, shape (n, dim)
        Posterior moments.
    baseline : int
        First datasets; each is compared with the others of them.

    Returns
    -------
    ndarray, shape (n,)
    """
    m, v = np.asarray(mean, float), np.asarray(variance, float)
    first, within = m[:baseline], v[:baseline].mean(axis=0)
    between = np.maximum(first.var(axis=0, ddof=1) - within, 0.0)
    centre, count = _left_out(first, len(m))
    spread = v + between + (within + between) / count[:, None]
    return _log(np.mean((m - centre) ** 2 / np.maximum(spread, 1e-24), axis=1))


def unlike(features: ArrayLike, baseline: int, counts: ArrayLike | None = None) -> FloatArray:
    """Distance of each dataset's features from those of the first ones, as log(0.3 + d).

    Parameters
    ----------
    features : array_like, shape (n, feature)
    baseline : int
        First datasets; each is compared with the others of them.
    counts : array_like, shape (n,), optional
        Of how many values each row of features tells. Those of fewer than the first ones' vary
        more; all of their variance is taken to go with one over the number.

    Returns
    -------
    ndarray, shape (n,)
    """
    f = np.asarray(features, float)
    first = f[:baseline]
    centre, count = _left_out(first, len(f))
    total = np.sum((first - first.mean(axis=0)) ** 2, axis=0)
    # What is left of the sum of squares without one: Youngs & Cramer (1971).
    less = (first - first.mean(axis=0)) ** 2 * baseline / (baseline - 1)
    variance = np.repeat(total[None] / (baseline - 1), len(f), axis=0)
    variance[:baseline] = np.maximum(total - less, 0.0) / (baseline - 2)
    if counts is not None:
        n = np.maximum(np.asarray(counts, float), 1.0)
        variance = variance * np.maximum(n[:baseline].mean() / n, 1.0)[:, None]
    moving = variance.mean(axis=0) > 1e-18
    if not moving.any():
        return _log(np.zeros(len(f)))
    z2 = (f - centre)[:, moving] ** 2 / np.maximum(variance[:, moving], 1e-18)
    return _log(np.mean(z2 / (1 + 1 / count[:, None]), axis=1))


def _log(distance: FloatArray) -> FloatArray:
    return np.log(0.3 + distance)


def _left_out(first: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Mean of the first rows, without the row itself where it is one of them; how many it is of."""
    m = len(first)
    centre = np.repeat(first.mean(axis=0)[None], n, axis=0)
    centre[:m] = (m * first.mean(axis=0) - first) / (m - 1)
    count = np.full(n, float(m))
    count[:m] = m - 1
    return centre, count
