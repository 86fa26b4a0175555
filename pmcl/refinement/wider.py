"""Draws of a wider proposal beside those that were made: do they move the posterior's moments?

Weights see only where there are draws, and k-hat is of the weights: tails that the proposal hardly
reaches are told by neither.
"""

import jax
import numpy as np
from jax import Array

from pmcl.data.batching import over_items
from pmcl.draws.drawn import Drawn
from pmcl.refinement.proposals import Student
from pmcl.runtime.jitting import jit
from pmcl.search.scales import Dense

_TIMES = 2.0  # scales of one parameter by which it is wider; less where they are many
_TOGETHER = 16  # datasets


def around(z: np.ndarray, log_weights: np.ndarray) -> Student:
    """A t distribution about weighted draws (dataset, draw, dim), wider than they are."""
    weights = np.exp(log_weights)[..., None]
    dim = z.shape[-1]
    z = np.where(weights > 0, z, 0.0)
    mean = (weights * z).sum(axis=1)
    apart = z - mean[:, None]
    covariance = np.einsum("dn,dni,dnj->dij", weights[..., 0], apart, apart)
    own = np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 1e-30)
    sd = np.sqrt(own)
    # units of each parameter's sd, and a ridge: draws may lie on a line
    unit = covariance / (sd[:, :, None] * sd[:, None])
    unit = np.where(np.isfinite(unit), unit, np.eye(dim))
    unit = (1 - 1e-6) * unit + 1e-6 * np.eye(dim)
    lower = (1 + _TIMES / np.sqrt(dim)) * sd[:, :, None] * np.linalg.cholesky(unit)
    return Student(mean[:, None], Dense(lower[:, None], np.linalg.inv(lower)[:, None]))


def log_q(wide: Student, z: np.ndarray) -> np.ndarray:
    """Log density (dataset, draw) of one proposal each."""
    return over_items(_log_q, jax.tree.map(lambda x: x[:, 0], wide), z, size=_TOGETHER)


@jit
def _log_q(wide: Student, z: Array) -> Array:
    return jax.vmap(lambda s, z: jax.vmap(s.log_prob)(z))(wide, z)


def moved(
    drawn: Drawn, log_weights: np.ndarray, log_r: np.ndarray, beside: Drawn, beside_r: np.ndarray
) -> np.ndarray:
    """By how many sd draws of a wider proposal move a mean or a sd, at most: shape (dataset,).

    All draws are weighted by the mixture of both proposals, in the shares of their numbers.

    Parameters
    ----------
    drawn : Drawn
    log_weights : array of shape (dataset, draw)
        What the draws count by themselves.
    log_r : array of shape (dataset, draw)
        Log density of the wider proposal at them.
    beside : Drawn
        Of the wider proposal; `log_q` under the old one.
    beside_r : array of shape (dataset, draw)

    References
    ----------
    Owen & Zhou (2000), Safe and effective importance sampling; Veach & Guibas (1995) for the
    balance heuristic.
    """
    n, m = drawn.z.shape[1], beside.z.shape[1]
    q = np.concatenate([drawn.log_q, beside.log_q], axis=1)
    r = np.concatenate([log_r, beside_r], axis=1)
    p = [d.log_prior + d.log_likelihood for d in (drawn, beside)]
    mixture = np.logaddexp(np.log(n / (n + m)) + q, np.log(m / (n + m)) + r)
    with np.errstate(invalid="ignore"):
        ratio = np.concatenate(p, axis=1) - mixture
    ratio = np.where(np.isfinite(ratio), ratio, -np.inf)
    top = ratio.max(axis=1, keepdims=True)
    weights = np.exp(ratio - np.where(np.isfinite(top), top, 0.0))
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    mean, sd = _moments(np.concatenate([drawn.z, beside.z], axis=1), weights)
    old_mean, old_sd = _moments(drawn.z, np.exp(log_weights))
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.maximum(np.abs(old_mean - mean), np.abs(old_sd - sd)) / sd
    return np.where(np.isfinite(apart), apart, 0.0).max(axis=1)


def _moments(z: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = np.where(weights[..., None] > 0, z, 0.0)
    mean = np.einsum("dn,dni->di", weights, z)
    return mean, np.sqrt(np.einsum("dn,dni->di", weights, (z - mean[:, None]) ** 2))
