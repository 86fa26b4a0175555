"""The path derivative: how draws of an approximation would move towards a density."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Path(NamedTuple):
    """Log ratios at reparametrised draws.

    Attributes
    ----------
    ratio : Array of shape (draw,)
        log p(z_s) - log q(z_s); zero where one is not finite. Its gradient is that of the path.
    finite : Array of bool of shape (draw,)
    score : Array of shape (draw, dim)
        d log p / dz; zero where something is not finite.
    """

    ratio: Array
    finite: Array
    score: Array

    @property
    def loss(self) -> Array:
        """Reverse Kullback-Leibler divergence up to log p(x), by the draws that count."""
        return -jnp.sum(self.ratio) / jnp.maximum(jnp.sum(self.finite), 1)


def path_derivative(log_density: Callable[[Array], Array], z: Array, log_q: Array) -> Path:
    """Log ratios whose gradient goes through the draws alone.

    Parameters
    ----------
    log_density : callable
        Of one z, in double precision.
    z : Array of shape (draw, dim)
        Draws z_s = T(eps_s), through which gradients go.
    log_q : Array of shape (draw,)
        Their log density under q, whose own parameters are detached.

    References
    ----------
    Roeder, Wu & Duvenaud (2017), Sticking the Landing, eq. 8.
    """
    # The density's gradient is taken at fixed draws, so that one bad draw can be left out before
    # its NaN reaches what is trained.
    at = jax.lax.stop_gradient(z)
    log_p, score = jax.vmap(jax.value_and_grad(log_density))(at.astype(jnp.float64))
    finite = jnp.isfinite(log_p) & jnp.isfinite(score).all(axis=1) & jnp.isfinite(log_q)
    score = jax.lax.stop_gradient(jnp.where(finite[:, None], score, 0.0))
    path = jnp.sum(score * (z - at), axis=1)  # zero, with p's gradient
    ratio = jnp.where(finite, jax.lax.stop_gradient(log_p) + path - log_q, 0.0)
    return Path(ratio, finite, score)


def efficiency(ratio: Array, finite: Array) -> Array:
    """Effective sample size of draws from q by their log ratios r, over their number.

    Parameters
    ----------
    ratio : Array of shape (draw,)
    finite : Array of bool of shape (draw,)

    Returns
    -------
    Array of shape ()
        (sum_s w_s)^2 / (S sum_s w_s^2), w = exp(r); no gradient goes through it.
    """
    ratio = jax.lax.stop_gradient(jnp.where(finite, ratio, -jnp.inf))
    weight = jnp.where(finite, jnp.exp(ratio - jnp.max(ratio)), 0.0)
    return jnp.sum(weight) ** 2 / jnp.maximum(ratio.size * jnp.sum(weight**2), 1e-12)
