"""Models weighed by their evidence: one dataset, and the frequencies of models in a population."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, softmax

FloatArray = NDArray[np.float64]

_CHAINS = 20  # of which each has evidences of its own, drawn from their Monte Carlo errors
_STEPS = 1000  # of the variational update, at most
_TOL = 1e-6  # datasets


class ModelProbabilities(NamedTuple):
    """Posterior probabilities of models, and their Monte Carlo standard errors.

    Attributes
    ----------
    value, error : ndarray, shape (..., model)
    """

    value: FloatArray
    error: FloatArray


def model_probabilities(
    log_evidence: ArrayLike, error: ArrayLike, prior: ArrayLike
) -> ModelProbabilities:
    """Weigh models by prior probability and evidence; errors by the delta method.

    Parameters
    ----------
    log_evidence, error : array_like, shape (..., model)
        Estimates of the log evidences, and their standard errors, taken as independent.
    prior : array_like, shape (model,)
        Prior probabilities.
    """
    with np.errstate(divide="ignore"):  # a model may be ruled out
        value = softmax(np.asarray(log_evidence, float) + np.log(prior), axis=-1)
    # dp_i / dlogZ_j = p_i (delta_ij - p_j)
    slope = value[..., :, None] * (np.eye(value.shape[-1]) - value[..., None, :])
    variance = (slope**2 * np.asarray(error, float)[..., None, :] ** 2).sum(axis=-1)
    return ModelProbabilities(value, np.sqrt(variance))


def model_frequencies(
    log_evidence: ArrayLike,
    error: ArrayLike,
    concentration: ArrayLike,
    rng: np.random.Generator,
    *,
    draws: int = 4000,
    tune: int = 100,
) -> FloatArray:
    """Draw the frequencies of models in the population that datasets come from.

    Each dataset has a model of its own, drawn with frequencies r ~ Dirichlet(concentration). Gibbs
    sampling from the variational solution of the reference, which by itself says too little of the
    uncertainty; each chain has evidences that are drawn from their Monte Carlo errors.

    Parameters
    ----------
    log_evidence, error : array_like, shape (dataset, model)
    concentration : array_like, shape (model,)
    rng : numpy.random.Generator
    draws : int
        In all.
    tune : int
        Draws of each chain that are left out.

    Returns
    -------
    ndarray, shape (draws, model)

    References
    ----------
    .. [1] Stephan, Penny, Daunizeau, Moran, Friston (2009). Bayesian model selection for group
       studies. NeuroImage 46, 1004-1017.
    """
    evidence, spread = np.asarray(log_evidence, float), np.asarray(error, float)
    before = np.asarray(concentration, float)
    noise = rng.normal(size=(_CHAINS, *evidence.shape))
    given = evidence + spread * noise
    start = variational_counts(evidence, before)
    r = rng.dirichlet(start, size=_CHAINS)
    each, found = -(-draws // _CHAINS), []
    for step in range(tune + each):
        with np.errstate(divide="ignore"):
            chance = np.cumsum(softmax(given + np.log(r)[:, None], axis=-1), axis=-1)
        points = rng.random(chance.shape[:-1])[..., None] * chance[..., -1:]
        which = (points > chance).sum(axis=-1)
        counts = (which[..., None] == np.arange(len(before))).sum(axis=1)
        gamma = rng.standard_gamma(before + counts)
        r = gamma / gamma.sum(axis=-1, keepdims=True)
        if step >= tune:
            found.append(r)
    return np.concatenate(found)[:draws]


def variational_counts(log_evidence: FloatArray, concentration: FloatArray) -> FloatArray:
    """Parameters of the Dirichlet of models' frequencies, Stephan et al. (2009), equation 14."""
    alpha = concentration + len(log_evidence) / len(concentration)
    for _ in range(_STEPS):
        before, alpha = (
            alpha,
            concentration
            + softmax(log_evidence + digamma(alpha) - digamma(alpha.sum()), axis=1).sum(axis=0),
        )
        if np.abs(alpha - before).max() < _TOL:
            break
    return alpha


class Trust(NamedTuple):
    """Whether stated probabilities of models are the frequencies with which they are right.

    Attributes
    ----------
    stated, found : ndarray, shape (bin,)
        Mean probability in each bin, and how often the model that it was stated of made the data.
    low, high : ndarray, shape (bin,)
        Between which `found` lies in 99 of 100 runs where the probabilities are right.
    number : ndarray of int, shape (bin,)
    p_value : float
        Of Spiegelhalter's test that they are.
    log_score : float
        Mean log probability of the model that made the data.
    """

    stated: FloatArray
    found: FloatArray
    low: FloatArray
    high: FloatArray
    number: NDArray[np.intp]
    p_value: float
    log_score: float


def trust_of(probability: FloatArray, truth: NDArray[np.intp], edges: FloatArray) -> Trust:
    """Compare probabilities (dataset, model) with the models that made the data, (dataset,).

    References
    ----------
    .. [1] Spiegelhalter (1986). Probabilistic prediction in patient management and clinical trials.
       Statistics in Medicine 5, 421-433.
    """
    from scipy.stats import binom, norm

    right = np.eye(probability.shape[1])[truth]
    which = np.clip(np.digitize(probability, edges) - 1, 0, len(edges) - 2)
    bins = [which == b for b in range(len(edges) - 1)]
    count = np.array([b.sum() for b in bins])
    with np.errstate(invalid="ignore", divide="ignore"):
        stated = np.array([np.where(b, probability, 0).sum() for b in bins]) / count
        found = np.array([np.where(b, right, 0).sum() for b in bins]) / count
        low, high = (binom.ppf(q, count, np.nan_to_num(stated)) / count for q in (0.005, 0.995))
    slope = 1 - 2 * probability
    mean = (slope * probability).sum(axis=1)
    variance = (slope**2 * probability).sum(axis=1) - mean**2
    z = ((slope * right).sum(axis=1) - mean).sum() / np.sqrt(max(variance.sum(), 1e-300))
    own = np.log(np.maximum(probability[np.arange(len(truth)), truth], 1e-300))
    return Trust(stated, found, low, high, count, float(2 * norm.sf(abs(z))), float(own.mean()))


def log_bayes_factors(log_evidence: FloatArray, error: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log evidence of each model less that of each other, (..., model, against), with errors."""
    value = log_evidence[..., :, None] - log_evidence[..., None, :]
    spread = np.hypot(error[..., :, None], error[..., None, :])
    spread = np.where(np.eye(log_evidence.shape[-1], dtype=bool), 0.0, spread)
    return value, spread
