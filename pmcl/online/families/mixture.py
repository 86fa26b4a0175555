"""A mixture of normals of z."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import softmax

from pmcl.online.gaussian import MeanField
from pmcl.runtime.jitting import jit

_DRAWS = 200


class Mixture(NamedTuple):
    """A mixture of normals of one family.

    Attributes
    ----------
    log_weights : Array of shape (component,)
        Their exponentials add up to one.
    parts : tuple of MeanField, Full or LowRank
    """

    log_weights: Array
    parts: tuple[Any, ...]

    @property
    def mean(self) -> Array:
        """Mean of every entry."""
        return self._weights @ jnp.stack([q.mean for q in self.parts])

    @property
    def variance(self) -> Array:
        """Variance of every entry."""
        second = [q.variance + (q.mean - self.mean) ** 2 for q in self.parts]
        return self._weights @ jnp.stack(second)

    @property
    def log_sd(self) -> Array:
        """Logarithm of the standard deviation of every entry."""
        return jnp.log(self.variance) / 2

    def log_density(self, z: Array) -> Array:
        """Log density at z of shape (..., dim)."""
        terms = jnp.stack([q.log_density(z) for q in self.parts], axis=-1)
        return jax.nn.logsumexp(terms + self.log_weights, axis=-1)

    @property
    def _weights(self) -> Array:
        return jnp.exp(self.log_weights)


def counts_of(weights: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How many of some draws come from each component: as many as is expected, but for rounding."""
    edges = np.concatenate([[0.0], np.cumsum(weights)])
    edges *= draws / edges[-1]
    return np.diff(np.floor(edges + rng.uniform())).astype(int)


def alike(parts: tuple[Any, ...], key: Array) -> np.ndarray:
    """How many of some normals each is the same as, itself among them; shape (component,).

    The sum over all q of the mean of 2 q / (q + p) under p: one for each that is p, none for each
    that is elsewhere.
    """
    keys = jax.random.split(key, len(parts))
    return np.array([_alike(p, parts, k) for p, k in zip(parts, keys, strict=True)])


@jit
def _alike(p: Any, parts: tuple[Any, ...], key: Array) -> Array:
    z = p.at(jax.random.normal(key, (_DRAWS, len(p.mean)), p.mean.dtype))
    here = p.log_density(z)
    return jnp.stack([2 * jax.nn.sigmoid(q.log_density(z) - here) for q in parts]).mean(1).sum()


@jit
def faded(q: Any, prior: MeanField, kept: Array) -> Array:
    """Log integral of q^kept times prior^(1 - kept), of which forgetting keeps the shape (nats)."""
    both = kept * q.log_density(q.mean) + (1 - kept) * prior.log_density(q.mean)
    return both - q.forgotten(prior, kept).log_density(q.mean)


def stacked(log_weights: np.ndarray, log_p: np.ndarray, before: float) -> np.ndarray:
    """Log weights after rows of which each component foretold a density, by recursive stacking.

    One step of expectation maximisation for the weights of the mixture that foretells rows best:
    the mean of the components' shares in them, over these rows and those before.

    Parameters
    ----------
    log_weights : ndarray of shape (component,)
    log_p : ndarray of shape (component, row)
        Log densities of rows that none has learned from.
    before : float
        How many rows the present weights stand for.
    """
    log_p = np.where(np.isnan(log_p), -np.inf, log_p)
    log_p = log_p[:, np.isfinite(log_p.max(axis=0))]  # a row that none allows tells nothing
    shares = softmax(log_weights[:, None] + log_p, axis=0).sum(axis=1)
    number = before + log_p.shape[1]
    if not number:
        return log_weights
    weights = (before * np.exp(log_weights) + shares) / number
    return np.log(np.maximum(weights, np.finfo(float).tiny))
