"""Multivariate t distributions at modes, and mixtures of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import gammaln, logsumexp

from pmcl.search.scales import AbstractScale


class Student(eqx.Module):
    """A multivariate t at a mode: the defensive component, with tails wider than the target's."""

    shift: Array
    scale: AbstractScale
    degrees: int = eqx.field(static=True, default=5)

    def mixing(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Draw chi squared, by which normal draws are divided."""
        # squared normals: a sampler of gamma variables takes long to compile
        squares = jax.random.normal(key, (*shape, self.degrees), self.shift.dtype) ** 2
        return jnp.sum(squares, axis=-1)

    def draw(self, eps: Array, chi2: Array) -> Array:
        """Make z of standard normal `eps` and :meth:`mixing`."""
        return self.shift + self.scale.multiply(eps * jnp.sqrt(self.degrees / chi2))

    def log_prob(self, z: Array) -> Array:
        """log density."""
        return self.log_prob_at(self.far(z))

    def far(self, z: Array) -> Array:
        """Squared distance of z from the mode, in its scale."""
        return jnp.sum(self.scale.solve(z - self.shift) ** 2)

    def log_prob_at(self, far: Array) -> Array:
        """log density at such a distance."""
        return log_density_at(far, self.degrees, len(self.shift)) - self.scale.log_det()


def log_density_at(far: Array, degrees: int, dim: int) -> Array:
    """Log density of a multivariate t of unit scale at a squared distance from its mode."""
    n, d = degrees, dim
    constant = gammaln((n + d) / 2) - gammaln(n / 2) - 0.5 * d * jnp.log(n * jnp.pi)
    return constant - 0.5 * (n + d) * jnp.log1p(far / n)


def mixture_draws(
    parts: Student, share: Array, key: Array, draws: int, *, shuffled: bool = True
) -> Array:
    """Draws of a mixture, of shape (draws, dim), in numbers as equal to the shares as can be.

    In random order, or `shuffled` not (a sort takes long to compile): part after part.
    """
    first, second, third = jax.random.split(key, 3)
    points = (jnp.arange(draws) + jax.random.uniform(first)) / draws
    total = jnp.cumsum(share) / jnp.sum(share)
    which = jnp.sum(points[:, None] > total[:-1], axis=1)
    if shuffled:
        which = jax.random.permutation(third, which)
    dim, degrees = parts.shift.shape[1], parts.degrees
    eps = jax.random.normal(second, (draws, dim + degrees), jnp.float64)
    chosen = jax.tree.map(lambda x: x[which], parts)
    chi2 = jnp.sum(eps[:, dim:] ** 2, axis=1)
    return jax.vmap(lambda s, e, c: s.draw(e, c))(chosen, eps[:, :dim], chi2)


def mixture_log_q(parts: Student, share: Array, z: Array) -> Array:
    """Log density of a mixture at z of shape (n, dim)."""
    each = jax.vmap(lambda s: jax.vmap(s.log_prob)(z))(parts)
    return _mixture_log_q(each, share / jnp.sum(share))


def _mixture_log_q(log_q: Array, weights: Array) -> Array:
    """log sum_k weights_k q_k(z) for `log_q` of shape (components, n)."""
    safe = jnp.where(jnp.isfinite(log_q), log_q, -jnp.inf)
    return logsumexp(safe, axis=0, b=weights[:, None])
