"""Scales A of a posterior: dense triangular matrices and low-rank ones."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular


class AbstractScale(eqx.Module):
    """An invertible matrix A, and the ways a proposal uses it."""

    @abstractmethod
    def multiply(self, v: Array) -> Array:
        """A v for v of shape (dim,)."""

    @abstractmethod
    def solve(self, x: Array) -> Array:
        """A^-1 x for x of shape (dim,)."""

    @abstractmethod
    def log_det(self) -> Array:
        """log |det A|."""

    @abstractmethod
    def neutral(self) -> tuple[Array, ...]:
        """Parameters at which `adjust` changes nothing."""

    @abstractmethod
    def adjust(self, by: tuple[Array, ...]) -> "AbstractScale":
        """Return A changed by parameters that are of order one, whatever the size of A."""


class Dense(AbstractScale):
    """A lower triangular matrix, kept with its inverse."""

    lower: Array
    inverse: Array

    @classmethod
    def of(cls, lower: Array) -> "Dense":
        """Invert once: the matrix is used for many draws."""
        eye = jnp.eye(lower.shape[0], dtype=lower.dtype)
        return cls(lower, solve_triangular(lower, eye, lower=True))

    def multiply(self, v: Array) -> Array:
        """A v."""
        return self.lower @ v

    def solve(self, x: Array) -> Array:
        """A^-1 x."""
        return self.inverse @ x

    def log_det(self) -> Array:
        """log |det A|."""
        return jnp.sum(jnp.log(jnp.diagonal(self.lower)))

    def neutral(self) -> tuple[Array, ...]:
        """Return zeros."""
        return (jnp.zeros_like(self.lower),)

    def adjust(self, by: tuple[Array, ...]) -> "Dense":
        """A T with T lower triangular, its diagonal in logs."""
        return Dense.of(self.lower @ _triangular(by[0]))


class LowRank(AbstractScale):
    """diag(d) (I + Q (C - I) Q'): Q (dim, k) orthonormal, C (k, k) lower triangular."""

    diagonal: Array
    directions: Array
    core: Array

    def multiply(self, v: Array) -> Array:
        """A v."""
        along = self.directions.T @ v
        return self.diagonal * (v + self.directions @ (self.core @ along - along))

    def solve(self, x: Array) -> Array:
        """A^-1 x."""
        v = x / self.diagonal
        along = self.directions.T @ v
        inner = solve_triangular(self.core, along, lower=True) if along.size else along
        return v + self.directions @ (inner - along)

    def log_det(self) -> Array:
        """log |det A|."""
        return jnp.sum(jnp.log(self.diagonal)) + jnp.sum(jnp.log(jnp.diagonal(self.core)))

    def neutral(self) -> tuple[Array, ...]:
        """Return zeros."""
        return jnp.zeros_like(self.diagonal), jnp.zeros_like(self.core)

    def adjust(self, by: tuple[Array, ...]) -> "LowRank":
        """Scale the diagonal, and C as a dense matrix."""
        return LowRank(
            self.diagonal * jnp.exp(by[0]), self.directions, self.core @ _triangular(by[1])
        )


def _triangular(by: Array) -> Array:
    return jnp.tril(by, -1) + jnp.diag(jnp.exp(jnp.diagonal(by)))
