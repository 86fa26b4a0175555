"""A normal of z with all covariances."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve, solve_triangular

from pmcl.online.gaussian import MeanField

MOST_TAKEN = 0.9  # of a precision, along any direction, that is taken away


class Full(NamedTuple):
    """A normal distribution of z by its mean and its precision matrix.

    Attributes
    ----------
    mean : Array of shape (dim,)
    precision : Array of shape (dim, dim)
    """

    mean: Array
    precision: Array

    @classmethod
    def independent(cls, q: MeanField, rank: int = 0) -> "Full":
        """A normal with independent entries as one of this family."""
        return cls(q.mean, jnp.diag(q.factor.precision))

    @property
    def covariance(self) -> Array:
        """Covariance matrix."""
        return self.solve(jnp.eye(len(self.mean), dtype=self.mean.dtype))

    @property
    def variance(self) -> Array:
        """Variance of every entry."""
        return jnp.diag(self.covariance)

    @property
    def log_sd(self) -> Array:
        """Logarithm of the standard deviation of every entry."""
        return jnp.log(self.variance) / 2

    @property
    def shift(self) -> Array:
        """Second natural parameter: precision times mean."""
        return self.precision @ self.mean

    def apply(self, v: Array) -> Array:
        """Precision times a vector, or every column of a matrix."""
        return self.precision @ v

    def solve(self, v: Array) -> Array:
        """Covariance times a vector, or every column of a matrix."""
        return cho_solve((self._root, True), v)

    def spread(self, J: Array) -> Array:
        """Covariances J C J' for J of shape (site, predictor, dim)."""
        half = solve_triangular(self._root, J.reshape(-1, J.shape[-1]).T, lower=True)
        half = half.reshape(len(self.mean), *J.shape[:2])
        return jnp.einsum("dni,dnj->nij", half, half)

    def plus(self, columns: Array) -> "Full":
        """The same mean, and a precision with the square of columns (dim, column) added."""
        return self._replace(precision=self.precision + columns @ columns.T)

    def minus(self, columns: Array) -> "Full":
        """The same mean, and the square of columns taken from the precision, but for a little."""
        scaled = solve_triangular(self._root, columns, lower=True)
        values, vectors = jnp.linalg.eigh(scaled @ scaled.T)
        lost = self._root @ (vectors * jnp.sqrt(jnp.clip(values, 0.0, MOST_TAKEN)))
        return self._replace(precision=self.precision - lost @ lost.T)

    def at_shift(self, shift: Array) -> "Full":
        """The same precision, and the mean of another second natural parameter."""
        return self._replace(mean=self.solve(shift))

    def short(self, rank: int) -> "Full":
        """What is kept after an update: all."""
        return self

    def at(self, noise: Array) -> Array:
        """Reparametrised draws from standard normal noise of shape (..., dim)."""
        flat = noise.reshape(-1, noise.shape[-1]).T
        drawn = solve_triangular(self._root.T, flat, lower=False).T
        return self.mean + drawn.reshape(noise.shape)

    def log_density(self, z: Array) -> Array:
        """Log density at z of shape (..., dim)."""
        scaled = (z - self.mean) @ self._root
        normal = jnp.sum(scaled**2 + jnp.log(2 * jnp.pi), axis=-1)
        return self.log_volume - normal / 2

    @property
    def log_volume(self) -> Array:
        """Half of the log determinant of the precision."""
        return jnp.sum(jnp.log(jnp.diag(self._root)))

    @property
    def _root(self) -> Array:
        return jnp.linalg.cholesky(self.precision)

    def trace(self, other: "Full") -> Array:
        """Trace of this covariance times the precision of another."""
        return jnp.trace(self.solve(other.precision))

    def forgotten(self, prior: MeanField, kept: Array) -> "Full":
        """Everything but the prior to a power: the natural parameters return to the prior's."""
        first = prior.factor
        precision = kept * self.precision + (1 - kept) * jnp.diag(first.precision)
        shift = kept * self.shift + (1 - kept) * first.shift
        return Full(self.mean, precision).at_shift(shift)

    def diffused(self, prior: MeanField, kept: Array, added: Array) -> "Full":
        """What an Ornstein-Uhlenbeck process (added = 1 - kept^2) or a Wiener process leaves."""
        mean = (1 - kept) * prior.mean + kept * self.mean
        covariance = kept**2 * self.covariance + jnp.diag(added * prior.variance)
        eye = jnp.eye(len(mean), dtype=mean.dtype)
        precision = cho_solve((jnp.linalg.cholesky(covariance), True), eye)
        return Full(mean, (precision + precision.T) / 2)

    def grown(self, prior: MeanField, index: Array) -> "Full":
        """A longer z, of which these are the entries `index`; others are as in the prior."""
        mean = prior.mean.at[index].set(self.mean)
        precision = jnp.diag(prior.factor.precision)
        return Full(mean, precision.at[jnp.ix_(index, index)].set(self.precision))


def divergence(q: Any, p: Any) -> Array:
    """Kullback-Leibler divergence KL(q || p) of two normals of one family."""
    far = q.mean - p.mean
    return (q.trace(p) - len(far) + far @ p.apply(far)) / 2 + q.log_volume - p.log_volume


def symmetric_root(matrices: Array) -> Array:
    """R with R R' the matrices (..., k, k), without what of them is negative."""
    if matrices.shape[-1] == 1:
        return jnp.sqrt(jnp.maximum(matrices, 0.0))
    values, vectors = jnp.linalg.eigh((matrices + jnp.swapaxes(matrices, -1, -2)) / 2)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
