"""Gaussians on z without covariances, and the algebra of their natural parameters."""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array


class Factor(NamedTuple):
    """A Gaussian function exp(shift z - precision z^2 / 2), of which products are sums.

    What one datum contributes to an approximation is one; it need not have a finite integral.

    Attributes
    ----------
    precision, shift : Array of shape (dim,)
        Natural parameters: 1 / variance, and mean / variance.

    References
    ----------
    Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data,
    eqs. 5a and 5b.
    """

    precision: Array
    shift: Array

    def times(self, other: "Factor", power: Array | float = 1.0) -> "Factor":
        """Multiply by another factor to a power; -1 divides."""
        return Factor(self.precision + power * other.precision, self.shift + power * other.shift)

    def log(self, z: Array) -> Array:
        """Logarithm at z, up to the constant that makes it a density; all factors at all z."""
        return jnp.inner(self.shift, z) - jnp.inner(self.precision, z**2) / 2


class MeanField(NamedTuple):
    """A normal distribution of z with independent entries.

    Attributes
    ----------
    mean, log_sd : Array of shape (dim,)
    """

    mean: Array
    log_sd: Array

    @classmethod
    def of(cls, factor: Factor) -> Self:
        """Normalise a factor; where its precision is not positive there is no normal."""
        return cls(factor.shift / factor.precision, -jnp.log(factor.precision) / 2)

    @property
    def log_volume(self) -> Array:
        """Half of the log determinant of the precision."""
        return -jnp.sum(self.log_sd)

    @property
    def variance(self) -> Array:
        """Variance of every entry."""
        return jnp.exp(2 * self.log_sd)

    @property
    def factor(self) -> Factor:
        """Natural parameters."""
        precision = jnp.exp(-2 * self.log_sd)
        return Factor(precision, precision * self.mean)

    def forgotten(self, prior: "MeanField", kept: Array) -> "MeanField":
        """Everything but the prior to a power: the natural parameters return to the prior's."""
        return MeanField.of(self.factor.times(self.factor, kept - 1).times(prior.factor, 1 - kept))

    def diffused(self, prior: "MeanField", kept: Array, added: Array) -> "MeanField":
        """What an Ornstein-Uhlenbeck process (added = 1 - kept^2) or a Wiener process leaves."""
        mean = (1 - kept) * prior.mean + kept * self.mean
        variance = added * prior.variance + kept**2 * self.variance
        return MeanField(mean, jnp.log(variance) / 2)

    def grown(self, prior: "MeanField", index: Array) -> "MeanField":
        """A longer z, of which these are the entries `index`; others are as in the prior."""
        return MeanField(*(p.at[index].set(v) for p, v in zip(prior, self, strict=True)))

    def at(self, noise: Array) -> Array:
        """Reparametrised draws from standard normal noise of shape (..., dim)."""
        return self.mean + jnp.exp(self.log_sd) * noise

    def log_density(self, z: Array) -> Array:
        """Log density at z of shape (..., dim)."""
        scaled = (z - self.mean) * jnp.exp(-self.log_sd)
        return -jnp.sum(scaled**2 / 2 + self.log_sd + jnp.log(2 * jnp.pi) / 2, axis=-1)


def divergence(q: MeanField, p: MeanField, more: Array | float = 0.0) -> Array:
    """Kullback-Leibler divergence KL(q || p) of two mean-field normals.

    Parameters
    ----------
    q, p : MeanField
    more : Array of shape (dim,)
        Precision beyond that of p with which the distance of the means counts.

    References
    ----------
    Nguyen et al. (2018), Variational continual learning, the second term of eq. 4; with `more`
    Loo et al. (2021), Generalized variational continual learning, section 2.
    """
    ratio = jnp.exp(2 * (q.log_sd - p.log_sd))
    far = (q.mean - p.mean) ** 2 * (jnp.exp(-2 * p.log_sd) + more)
    return jnp.sum(ratio + far - 1.0 - jnp.log(ratio)) / 2


def expectation(factor: Factor, q: MeanField) -> Array:
    """Expectation of a factor's logarithm under q."""
    return jnp.sum(factor.shift * q.mean - factor.precision * (q.mean**2 + q.variance) / 2)
