"""Nodes of quadrature, and points that proposals are made of."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.stats import qmc


def grid(number: int, dim: int) -> tuple[Array, Array]:
    """Nodes of Gauss-Hermite quadrature (node, dim), and log weights of a standard normal's mean.

    Times sqrt(2 pi) a dim, for integrals by the density itself.
    """
    x, w = np.polynomial.hermite_e.hermegauss(number)
    index = np.indices((number,) * dim).reshape(dim, -1).T
    return jnp.asarray(x[index]), jnp.asarray(np.log(w)[index].sum(axis=1))


def lattice(points: int, dim: int) -> Array:
    """A net of low discrepancy of shape (point, dim): equidistant where there is one dim."""
    if dim == 1:
        return jnp.arange(points)[:, None] / points
    power = (points - 1).bit_length()
    return jnp.asarray(qmc.Sobol(dim, scramble=False).random_base2(power)[:points])


def student_quantile(u: Array) -> Array:
    """Quantile of a t distribution with four degrees of freedom (Shaw 2006, eq. 36)."""
    u = jnp.clip(u, 1e-12, 1.0 - 1e-12)
    root = jnp.sqrt(4.0 * u * (1.0 - u))
    size = 2.0 * jnp.sqrt(jnp.maximum(jnp.cos(jnp.arccos(root) / 3.0) / root - 1.0, 0.0))
    return jnp.sign(u - 0.5) * size


def student_log_density(x: Array) -> Array:
    """log of 3/8 (1 + x^2 / 4)^(-5/2)."""
    return jnp.log(0.375) - 2.5 * jnp.log1p(0.25 * x**2)
