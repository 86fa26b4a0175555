"""Modes of many groups' densities at once, by damped Newton steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.levels.blocks import Factor

_STEPS = 40
TOL = 1e-5  # nats that a last step would still gain
_HOPELESS = 1e10  # damping that ends a search


class Peak(NamedTuple):
    """Where every group's density has its mode, given the global parameters.

    Attributes
    ----------
    l : Array of shape (width, group)
    value : Array of shape (group,)
        f_j there.
    factor : Factor
        Of -d2 f_j / dl2 there.
    """

    l: Array  # noqa: E741
    value: Array
    factor: Factor


class _Search(NamedTuple):
    l: Array  # noqa: E741
    value: Array
    gradient: Array
    matrix: Array
    damping: Array
    done: Array
    step: Array


def newton_step(gradient: Array, matrix: Array, damping: Array) -> Array:
    """(H + damping) ^-1 gradient; by dominant diagonals where H is not positive."""
    size = jnp.sum(jnp.abs(matrix), axis=1)
    eye = jnp.eye(len(gradient))[:, :, None]
    factor = Factor.of(matrix + eye * (damping * size)[:, None])
    safe = gradient / jnp.maximum(size * (1.0 + damping), 1e-300)
    usable = factor.usable
    return jnp.where(usable, factor.solve_transposed(factor.solve(gradient)), safe)


def climb(
    curvature: Callable[[Array], tuple[Array, Array, Array]], start: Array, tol: float = TOL
) -> Peak:
    """Damped Newton steps of all groups at once, each with its own damping.

    `tol` is what the last step gains at most, in nats.
    """

    def step(s: _Search) -> _Search:
        move = newton_step(s.gradient, s.matrix, s.damping)
        gain = 0.5 * jnp.sum(move * s.gradient, axis=0)
        value, gradient, matrix = curvature(s.l + move)
        value = jnp.where((s.step < 0) & ~jnp.isfinite(value), -jnp.inf, value)
        better = value >= s.value - 1e-12 * (1.0 + jnp.abs(s.value))
        better &= jnp.isfinite(gradient).all(axis=0) & jnp.isfinite(matrix).all(axis=(0, 1))
        better = (better & ~s.done) | (s.step < 0)
        take = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        damping = jnp.where(s.damping > 1e-3, s.damping / 10.0, 0.0)
        raised = jnp.maximum(10.0 * s.damping, 1.0)
        return _Search(
            take(s.l + move, s.l),
            take(value, s.value),
            take(gradient, s.gradient),
            take(matrix, s.matrix),
            take(damping, raised),
            s.done | ((gain < tol) & (s.step >= 0)) | (raised > _HOPELESS),
            s.step + 1,
        )

    # The first step goes nowhere: the density is looked at in one place, and compiled once.
    damping = jnp.zeros(start.shape[1])
    flat = jnp.eye(len(start))[:, :, None] + jnp.zeros_like(start)
    before = jnp.full((), -1, int)
    first = _Search(
        start, damping - jnp.inf, jnp.zeros_like(start), flat, damping, damping > 0, before
    )
    end = jax.lax.while_loop(lambda s: ~s.done.all() & (s.step < _STEPS), step, first)
    factor = Factor.of(end.matrix)
    # A proposal all the same: weights are right by whatever it is drawn from.
    size = jnp.sqrt(jnp.sum(jnp.abs(end.matrix), axis=1))
    spread = jnp.eye(len(size))[:, :, None] * size[:, None]
    return Peak(end.l, end.value, Factor(jnp.where(factor.usable, factor.lower, spread)))
