"""Proposals for the parameters of many groups: t distributions at modes, on shifted nets."""

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.levels.climb import Peak
from pmcl.levels.points import lattice, student_log_density, student_quantile


def spread(peak: Peak, key: Array, number: int) -> tuple[Array, Array]:
    """Draws (point, width, group) of t distributions at the modes; also in units of their scale."""
    width, groups = peak.l.shape
    shift = jax.random.uniform(key, (width, groups), peak.l.dtype)
    e = student_quantile((lattice(number, width)[:, :, None] + shift) % 1.0)
    return jax.vmap(lambda v: peak.l + peak.factor.solve_transposed(v))(e), e


def standardised(peak: Peak, l: Array) -> Array:  # noqa: E741
    """Places (point, width, group) in units of the scale at the modes."""
    return jnp.einsum("jig,pjg->pig", peak.factor.lower, l - peak.l)


def log_density(peak: Peak, e: Array) -> Array:
    """Log density of t distributions at the modes, of shape (point, group)."""
    return jnp.sum(student_log_density(e), axis=1) + peak.factor.log_det()
