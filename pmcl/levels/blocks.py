"""Symmetric positive matrices of many groups at once: arrays of shape (d, d, group)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

_UNROLLED = 4  # rows up to which the loops are written out: small matrices are slow one by one


class Factor(NamedTuple):
    """Lower triangular L of each group, with L L' = H; not finite where H is not positive.

    Attributes
    ----------
    lower : Array of shape (d, d, group)
    """

    lower: Array

    @classmethod
    def of(cls, matrix: Array) -> "Factor":
        """Cholesky factors of H of shape (d, d, group)."""
        d = matrix.shape[0]
        if d > _UNROLLED:
            return cls(_last(jnp.linalg.cholesky(_first(matrix))))
        rows: list[list[Array]] = []
        for i in range(d):
            row: list[Array] = []
            for j in range(i + 1):
                left = rows[j] if j < i else row
                rest = matrix[i, j] - sum(row[k] * left[k] for k in range(j))
                row.append(jnp.sqrt(rest) if i == j else rest / rows[j][j])
            rows.append(row)
        zero = jnp.zeros_like(matrix[0, 0])
        filled = [jnp.stack([*row, *[zero] * (d - len(row))]) for row in rows]
        return cls(jnp.stack(filled))

    @property
    def usable(self) -> Array:
        """Whether each group's matrix is positive, of shape (group,)."""
        diagonal = jnp.diagonal(self.lower, axis1=0, axis2=1)
        return jnp.isfinite(self.lower).all(axis=(0, 1)) & (diagonal > 0).all(axis=1)

    def log_det(self) -> Array:
        """log |L|, of shape (group,)."""
        return jnp.sum(jnp.log(jnp.diagonal(self.lower, axis1=0, axis2=1)), axis=1)

    def solve(self, v: Array) -> Array:
        """L^-1 v, v of shape (d, group)."""
        d = v.shape[0]
        if d > _UNROLLED:
            found = solve_triangular(_first(self.lower), v.T[..., None], lower=True)
            return found[..., 0].T
        out: list[Array] = []
        for i in range(d):
            rest = v[i] - sum(self.lower[i, k] * out[k] for k in range(i))
            out.append(rest / self.lower[i, i])
        return jnp.stack(out)

    def solve_transposed(self, v: Array) -> Array:
        """L'^-1 v, v of shape (d, group): standard normal v becomes N(0, H^-1)."""
        d = v.shape[0]
        if d > _UNROLLED:
            found = solve_triangular(_first(self.lower), v.T[..., None], lower=True, trans=1)
            return found[..., 0].T
        out: dict[int, Array] = {}
        for i in reversed(range(d)):
            rest = v[i] - sum(self.lower[k, i] * out[k] for k in range(i + 1, d))
            out[i] = rest / self.lower[i, i]
        return jnp.stack([out[i] for i in range(d)])


def _first(x: Array) -> Array:
    return jnp.moveaxis(x, -1, 0)


def _last(x: Array) -> Array:
    return jnp.moveaxis(x, 0, -1)
