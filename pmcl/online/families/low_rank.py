"""A normal of z whose precision is a diagonal and a low-rank matrix."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve, solve_triangular

from pmcl.online.families.dense import MOST_TAKEN
from pmcl.online.gaussian import MeanField


class LowRank(NamedTuple):
    """A normal distribution of z with precision diag(diagonal) + columns columns'.

    Attributes
    ----------
    mean, diagonal : Array of shape (dim,)
    columns : Array of shape (dim, rank)

    References
    ----------
    Chang, Duran-Martin, Shestopaloff, Jones & Murphy (2023), Low-rank extended Kalman filtering for
    online learning of neural networks from streaming data.
    """

    mean: Array
    diagonal: Array
    columns: Array

    @classmethod
    def independent(cls, q: MeanField, rank: int = 0) -> "LowRank":
        """A normal with independent entries as one of this family."""
        return cls(q.mean, q.factor.precision, jnp.zeros((len(q.mean), rank), q.mean.dtype))

    @property
    def variance(self) -> Array:
        """Variance of every entry."""
        return 1 / self.diagonal - jnp.sum(self._lost**2, axis=0)

    @property
    def log_sd(self) -> Array:
        """Logarithm of the standard deviation of every entry."""
        return jnp.log(self.variance) / 2

    @property
    def shift(self) -> Array:
        """Second natural parameter: precision times mean."""
        return self.apply(self.mean)

    def apply(self, v: Array) -> Array:
        """Precision times a vector, or every column of a matrix."""
        return (self.diagonal * v.T).T + self.columns @ (self.columns.T @ v)

    def solve(self, v: Array) -> Array:
        """Covariance times a vector, or every column of a matrix."""
        scaled = (v.T / self.diagonal).T
        inner = cho_solve((self._inner, True), self.columns.T @ scaled)
        return scaled - ((self.columns @ inner).T / self.diagonal).T

    def spread(self, J: Array) -> Array:
        """Covariances J C J' for J of shape (site, predictor, dim)."""
        half = (self._lost @ J.reshape(-1, J.shape[-1]).T).reshape(-1, *J.shape[:2])
        whole = jnp.einsum("nid,njd->nij", J / self.diagonal, J)
        return whole - jnp.einsum("dni,dnj->nij", half, half)

    def plus(self, columns: Array) -> "LowRank":
        """The same mean, and a precision with the square of columns (dim, column) added."""
        return self._replace(columns=jnp.concatenate([self.columns, columns], axis=1))

    def minus(self, columns: Array) -> "LowRank":
        """The same mean, and the square of columns taken from the precision, but for a little.

        That of the part of them within its own columns, up to nine tenths of what these say.
        """
        scaled = self.columns.T / self.diagonal
        share = jnp.linalg.pinv(scaled @ self.columns, hermitian=True) @ (scaled @ columns)
        values, vectors = jnp.linalg.eigh(jnp.eye(len(share)) - share @ share.T)
        turned = self.columns @ (vectors * jnp.sqrt(jnp.maximum(values, 1 - MOST_TAKEN)))
        return self._replace(columns=turned)

    def at_shift(self, shift: Array) -> "LowRank":
        """The same precision, and the mean of another second natural parameter."""
        return self._replace(mean=self.solve(shift))

    def short(self, rank: int) -> "LowRank":
        """What is kept after an update: the directions that say most, beside the diagonal.

        Of what is left out the diagonal is kept, as in eq. 7 of Chang et al. (2023).
        """
        if self.columns.shape[1] <= rank:
            more = rank - self.columns.shape[1]
            return self._replace(columns=jnp.pad(self.columns, ((0, 0), (0, more))))
        scaled = self.columns / jnp.sqrt(self.diagonal)[:, None]
        values, vectors = jnp.linalg.eigh(scaled.T @ scaled)
        turned = self.columns @ vectors[:, jnp.argsort(-values)]
        left = jnp.sum(turned[:, rank:] ** 2, axis=1)
        return self._replace(diagonal=self.diagonal + left, columns=turned[:, :rank])

    def at(self, noise: Array) -> Array:
        """Reparametrised draws from standard normal noise of shape (..., dim)."""
        root = jnp.sqrt(self.diagonal)
        scaled = self.columns / root[:, None]
        values, vectors = jnp.linalg.eigh(scaled.T @ scaled)
        values = jnp.maximum(values, 0.0)
        # (I + S S')^(-1/2) = I + S V ((1 + s)^(-1/2) - 1) / s V' S', with S'S = V s V'
        factor = jnp.where(values > 1e-12, (1 / jnp.sqrt(1 + values) - 1), 0.0)
        factor = factor / jnp.where(values > 1e-12, values, 1.0)
        turned = scaled @ vectors
        return self.mean + (noise + ((noise @ turned) * factor) @ turned.T) / root

    def log_density(self, z: Array) -> Array:
        """Log density at z of shape (..., dim)."""
        far = z - self.mean
        along = far @ self.columns
        square = jnp.sum(far**2 * self.diagonal, axis=-1) + jnp.sum(along**2, axis=-1)
        return self.log_volume - (square + len(self.mean) * jnp.log(2 * jnp.pi)) / 2

    @property
    def log_volume(self) -> Array:
        """Half of the log determinant of the precision."""
        return jnp.sum(jnp.log(self.diagonal)) / 2 + jnp.sum(jnp.log(jnp.diag(self._inner)))

    def trace(self, other: "LowRank") -> Array:
        """Trace of this covariance times the precision of another."""
        along = jnp.sum(other.columns * self.solve(other.columns))
        return jnp.sum(self.variance * other.diagonal) + along

    def forgotten(self, prior: MeanField, kept: Array) -> "LowRank":
        """Everything but the prior to a power: the natural parameters return to the prior's."""
        first = prior.factor
        moved = LowRank(
            self.mean,
            kept * self.diagonal + (1 - kept) * first.precision,
            jnp.sqrt(kept) * self.columns,
        )
        return moved.at_shift(kept * self.shift + (1 - kept) * first.shift)

    def diffused(self, prior: MeanField, kept: Array, added: Array) -> "LowRank":
        """What an Ornstein-Uhlenbeck process (added = 1 - kept^2) or a Wiener process leaves."""
        mean = (1 - kept) * prior.mean + kept * self.mean
        whole = kept**2 / self.diagonal + added * prior.variance
        lost = kept * self._lost.T  # the covariance is diag(whole) - lost lost'
        scaled = lost / whole[:, None]
        eye = jnp.eye(lost.shape[1], dtype=lost.dtype)
        root = jnp.linalg.cholesky(eye - lost.T @ scaled)
        return LowRank(mean, 1 / whole, solve_triangular(root, scaled.T, lower=True).T)

    def grown(self, prior: MeanField, index: Array) -> "LowRank":
        """A longer z, of which these are the entries `index`; others are as in the prior."""
        columns = jnp.zeros((len(prior.mean), self.columns.shape[1]), self.columns.dtype)
        return LowRank(
            prior.mean.at[index].set(self.mean),
            prior.factor.precision.at[index].set(self.diagonal),
            columns.at[index].set(self.columns),
        )

    @property
    def _inner(self) -> Array:
        eye = jnp.eye(self.columns.shape[1], dtype=self.columns.dtype)
        return jnp.linalg.cholesky(eye + self.columns.T @ (self.columns / self.diagonal[:, None]))

    @property
    def _lost(self) -> Array:
        """What columns take from the covariance 1 / diagonal, shape (rank, dim): L' L."""
        return solve_triangular(self._inner, self.columns.T / self.diagonal, lower=True)
