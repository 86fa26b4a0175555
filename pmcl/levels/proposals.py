"""Proposals for the parameters of many groups: t distributions at modes."""

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.levels.climb import Peak
from pmcl.levels.points import lattice, student_log_density, student_quantile
from pmcl.search.student import log_density_at

_EACH = 4  # parameters of a group up to which each has a t distribution of its own, on shifted nets


def spread(peak: Peak, key: Array, number: int) -> tuple[Array, Array]:
    """Draws (point, width, group) of t distributions at the modes; also in units of their scale.

    Wide groups have multivariate ones, whose tails do not add up, and draws in opposite pairs,
    whose skewness is none.
    """
    width, groups = peak.l.shape
    if width <= _EACH:
        shift = jax.random.uniform(key, (width, groups), peak.l.dtype)
        e = student_quantile((lattice(number, width)[:, :, None] + shift) % 1.0)
    else:
        half, degrees = -(-number // 2), _degrees(width)
        shape = (half, width + degrees, groups)
        eps = jax.random.normal(key, shape, peak.l.dtype)
        chi2 = jnp.sum(eps[:, width:] ** 2, axis=1, keepdims=True)
        e = eps[:, :width] * jnp.sqrt(degrees / chi2)
        e = jnp.concatenate([e, -e])[:number]
    return jax.vmap(lambda v: peak.l + peak.factor.solve_transposed(v))(e), e


def standardised(peak: Peak, l: Array) -> Array:  # noqa: E741
    """Places (point, width, group) in units of the scale at the modes."""
    return jnp.einsum("jig,pjg->pig", peak.factor.lower, l - peak.l)


def log_density(peak: Peak, e: Array) -> Array:
    """Log density of t distributions at the modes, of shape (point, group)."""
    width = e.shape[1]
    if width <= _EACH:
        return jnp.sum(student_log_density(e), axis=1) + peak.factor.log_det()
    return log_density_at(jnp.sum(e**2, axis=1), _degrees(width), width) + peak.factor.log_det()


def _degrees(width: int) -> int:
    return max(4, width)
