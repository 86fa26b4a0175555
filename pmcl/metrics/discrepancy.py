"""How far posterior draws are from reference draws: biases, MMD and whether it is noise.

Everything happens on the unconstrained scale, standardised by the reference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist, pdist

FloatArray = NDArray[np.float64]


class PosteriorDiscrepancy(NamedTuple):
    """Draws of one dataset against its reference.

    Attributes
    ----------
    bias_mean : float
        Mean over dimensions of \\|mean - reference mean\\|, in reference sds.
    bias_sd : float
        Mean over dimensions of \\|sd / reference sd - 1\\|.
    mmd2 : float
        Unbiased squared maximum mean discrepancy; negative values are noise about 0.
    signed_bias_mean : ndarray, shape (D,)
        Mean minus reference mean, in reference sds; positive is too high.
    signed_bias_sd : ndarray, shape (D,)
        sd over reference sd, minus 1; positive is too wide.
    bandwidth : float
        The kernel's m: median squared distance between standardised reference draws.
    """

    bias_mean: float
    bias_sd: float
    mmd2: float
    signed_bias_mean: FloatArray
    signed_bias_sd: FloatArray
    bandwidth: float


class Agreement(NamedTuple):
    """Whether the MMDs of several datasets could be those of the reference itself.

    Attributes
    ----------
    threshold : float
        The quantile of the null.
    exceptions : int
        Datasets whose MMD is above the threshold.
    allowed : int
        Exceptions that chance allows.
    agrees : bool
        ``exceptions <= allowed``.
    """

    threshold: float
    exceptions: int
    allowed: int
    agrees: bool


def standardise(a: ArrayLike, reference: ArrayLike) -> FloatArray:
    """Subtract the reference's mean and divide by its sd, dimension by dimension.

    A dimension in which the reference is constant is only centred.

    Parameters
    ----------
    a : array_like, shape (S, D)
    reference : array_like, shape (R, D)
        At least two draws.

    Returns
    -------
    ndarray, shape (S, D)
    """
    draws, ref = pair(a, reference, "a", "reference")
    location, scale = moments(ref)
    return (draws - location) / scale


def median_squared_distance(x: ArrayLike) -> float:
    """Median over pairs of distinct draws of their squared Euclidean distance.

    Parameters
    ----------
    x : array_like, shape (S, D)
        At least two draws. Cost and memory grow with S^2: thin to about a thousand.

    Returns
    -------
    float
    """
    return float(np.median(pdist(_draws(x, "x"), "sqeuclidean")))


def mmd2_unbiased(a: ArrayLike, b: ArrayLike, *, bandwidth: float) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy between two samples.

    The kernel is k(a, b) = exp(-\\|a - b\\|^2 / m) with m the `bandwidth`. The estimate is
    negative about half the time when both samples come from one distribution.

    Parameters
    ----------
    a : array_like, shape (S, D)
        At least two draws. Cost and memory grow with S^2.
    b : array_like, shape (R, D)
        At least two draws.
    bandwidth : float
        m, a squared distance, positive.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For shapes that do not match, non-finite draws, or a bandwidth that is not positive.

    References
    ----------
    .. [1] Gretton, Borgwardt, Rasch, Schoelkopf, Smola (2012). A kernel two-sample test.
       Journal of Machine Learning Research 13, equation 3.
    """
    x, y = pair(a, b, "a", "b")
    if not (np.isfinite(bandwidth) and bandwidth > 0):
        raise ValueError(
            f"bandwidth: expected a positive squared distance, got {bandwidth}. Use "
            "median_squared_distance of the reference draws."
        )

    def mean_kernel(squared: FloatArray) -> float:
        squared /= -bandwidth
        return float(np.mean(np.exp(squared, out=squared)))

    within = mean_kernel(pdist(x, "sqeuclidean")) + mean_kernel(pdist(y, "sqeuclidean"))
    return within - 2.0 * mean_kernel(cdist(x, y, "sqeuclidean"))


def posterior_discrepancy(
    draws: ArrayLike,
    reference: ArrayLike,
    *,
    n: int = 1000,
    rng: np.random.Generator,
) -> PosteriorDiscrepancy:
    """Measure the draws of one dataset against its reference.

    Means, sds and the standardisation use all draws; the MMD and its bandwidth use `n` of each,
    evenly spaced from a random start (all of them where there are fewer).

    Parameters
    ----------
    draws : array_like, shape (S, D)
        Unconstrained draws of the posterior being judged, chain after chain.
    reference : array_like, shape (R, D)
        Unconstrained draws of the reference, chain after chain.
    n : int
        Draws on either side of the MMD, at least 2.
    rng : numpy.random.Generator

    Returns
    -------
    PosteriorDiscrepancy

    Raises
    ------
    ValueError
        For shapes that do not match, fewer than two draws, or non-finite draws.
    """
    a, ref = pair(draws, reference, "draws", "reference")
    if n < 2:
        raise ValueError(f"n: expected at least 2 draws on either side, got {n}.")
    location, scale = moments(ref)
    a, ref = (a - location) / scale, (ref - location) / scale
    signed_mean = a.mean(axis=0)
    signed_sd = a.std(axis=0, ddof=1) - 1.0
    a, ref = _thin(a, n, rng), _thin(ref, n, rng)
    # a reference stuck at one point has no distance of its own: one standard unit instead
    bandwidth = median_squared_distance(ref) or 1.0
    return PosteriorDiscrepancy(
        bias_mean=float(np.mean(np.abs(signed_mean))),
        bias_sd=float(np.mean(np.abs(signed_sd))),
        mmd2=mmd2_unbiased(a, ref, bandwidth=bandwidth),
        signed_bias_mean=signed_mean,
        signed_bias_sd=signed_sd,
        bandwidth=bandwidth,
    )


def null_mmd2(
    reference_a: ArrayLike,
    reference_b: ArrayLike,
    *,
    n: int = 1000,
    rng: np.random.Generator,
) -> float:
    """MMD^2 that the reference has against itself: one value of the null.

    Exactly the `mmd2` of :func:`posterior_discrepancy`, with a second run in place of the draws.

    Parameters
    ----------
    reference_a : array_like, shape (R, D)
        The reference, or half of its chains.
    reference_b : array_like, shape (R', D)
        An independent run of it, or the other half of its chains.
    n : int
        Draws on either side; the same as for the values to be judged.
    rng : numpy.random.Generator

    Returns
    -------
    float
    """
    a, b = pair(reference_a, reference_b, "reference_a", "reference_b")
    return posterior_discrepancy(b, a, n=n, rng=rng).mmd2


def agreement(mmd2: ArrayLike, null: ArrayLike, *, level: float = 0.99) -> Agreement:
    """Ask whether the datasets' MMDs could be those of the reference against itself.

    A dataset is an exception when its MMD is above the `level` quantile of the null. The number
    of exceptions allowed is the 99 % quantile of a binomial with probability 1 - `level`.

    Parameters
    ----------
    mmd2 : array_like, shape (D,)
        One MMD^2 per dataset.
    null : array_like
        Values of the null, of any shape, pooled: one or several per dataset.
    level : float
        Quantile of the null, between 0 and 1.

    Returns
    -------
    Agreement

    Raises
    ------
    ValueError
        For empty or non-finite values, or a level outside (0, 1).

    Notes
    -----
    The quantile is the smallest null value with at least `level` of the null at or below it: with
    100 values or fewer that is their maximum or nearly so, and a perfect sampler fails more often
    than `level` says (10 datasets against 10 null values: about one time in four). Pool several
    hundred null values where the verdict matters.
    """
    from scipy.stats import binom

    values = np.asarray(mmd2, dtype=np.float64).ravel()
    nulls = np.asarray(null, dtype=np.float64).ravel()
    for name, array in (("mmd2", values), ("null", nulls)):
        if array.size == 0 or not np.isfinite(array).all():
            raise ValueError(
                f"{name}: expected at least one value, all finite, got {array.size} values, "
                f"{np.count_nonzero(~np.isfinite(array))} of them not finite."
            )
    if not 0.0 < level < 1.0:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}.")
    threshold = float(np.quantile(nulls, level, method="inverted_cdf"))
    exceptions = int(np.count_nonzero(values > threshold))
    allowed = int(binom.ppf(0.99, values.size, 1.0 - level))
    return Agreement(threshold, exceptions, allowed, exceptions <= allowed)


def _draws(x: ArrayLike, name: str) -> FloatArray:
    """Check draws (S, D): two or more, finite, of at least one dimension."""
    array = np.asarray(x, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 1:
        raise ValueError(
            f"{name}: expected shape (draws, dimensions) with at least 2 draws, got {array.shape}. "
            "Stack the chains and flatten the parameters first."
        )
    bad = np.count_nonzero(~np.isfinite(array).all(axis=1))
    if bad:
        raise ValueError(
            f"{name}: expected finite draws, got {bad} of {array.shape[0]} with NaN or infinity. "
            "Drop them knowingly, or find out why they are there."
        )
    return array


def pair(a: ArrayLike, b: ArrayLike, name_a: str, name_b: str) -> tuple[FloatArray, FloatArray]:
    """Check two sets of draws and that they have the same dimensions."""
    x, y = _draws(a, name_a), _draws(b, name_b)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"{name_a}: expected {y.shape[1]} dimensions as {name_b} has, got {x.shape[1]}. Both "
            "must hold the same unconstrained parameters in the same order."
        )
    return x, y


def moments(reference: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and sd of each dimension, sd 1 where it is constant."""
    # ptp, not sd: rounding gives a constant column an sd near 1e-17
    constant = np.ptp(reference, axis=0) == 0
    location = np.where(constant, reference[0], reference.mean(axis=0))
    return location, np.where(constant, 1.0, reference.std(axis=0, ddof=1))


def _thin(x: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
    """Thin to n evenly spaced draws from a random start: neighbours in a chain resemble."""
    if len(x) <= n:
        return x
    index = np.floor((np.arange(n) + rng.random()) * (len(x) / n)).astype(np.intp)
    return x[np.minimum(index, len(x) - 1)]
