"""Modes of many groups' densities at once, by damped Newton steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.levels.blocks import Factor

_STEPS = 40
TOL = 1e-8  # nats that a last step would still gain
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
    """`move` is what comes next, `gain` what it should bring in nats."""

    l: Array  # noqa: E741
    value: Array
    gradient: Array
    matrix: Array
    damping: Array
    move: Array
    gain: Array
    step: Array

    def ended(self, tol: float) -> Array:
        """Which groups' searches are at an end."""
        return (self.gain < tol) | (self.damping > _HOPELESS)


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

    `tol` is what the last step gains at most, in nats. That is taken without a look from there:
    the curvature is that of one step before.
    """

    def step(s: _Search) -> _Search:
        first, over = s.step < 0, s.ended(tol)
        value, gradient, matrix = curvature(s.l + s.move)
        value = jnp.where(first & ~jnp.isfinite(value), -jnp.inf, value)
        better = value >= s.value - 1e-12 * (1.0 + jnp.abs(s.value))
        better &= jnp.isfinite(gradient).all(axis=0) & jnp.isfinite(matrix).all(axis=(0, 1))
        better = (better & ~over) | first
        take = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        lowered = jnp.where(s.damping > 1e-3, s.damping / 10.0, 0.0)
        damping = take(lowered, jnp.maximum(10.0 * s.damping, 1.0))
        damping = jnp.where(over, s.damping, damping)
        gradient, matrix = take(gradient, s.gradient), take(matrix, s.matrix)
        move = newton_step(gradient, matrix, damping)
        gain = 0.5 * jnp.sum(move * gradient, axis=0)
        l, value = take(s.l + s.move, s.l), take(value, s.value)  # noqa: E741
        return _Search(l, value, gradient, matrix, damping, move, gain, s.step + 1)

    # The first step goes nowhere: the density is looked at in one place, and compiled once.
    nothing = jnp.zeros_like(start)
    flat = jnp.eye(len(start))[:, :, None] + nothing
    none, before = nothing[0], jnp.full((), -1, int)
    first = _Search(start, none - jnp.inf, nothing, flat, none, nothing, none + jnp.inf, before)
    end = jax.lax.while_loop(lambda s: ~s.ended(tol).all() & (s.step < _STEPS), step, first)
    last = end.gain < tol
    factor = Factor.of(end.matrix)
    # A proposal all the same: weights are right by whatever it is drawn from.
    size = jnp.sqrt(jnp.sum(jnp.abs(end.matrix), axis=1))
    spread = jnp.eye(len(size))[:, :, None] * size[:, None]
    return Peak(
        end.l + jnp.where(last, end.move, 0.0),
        end.value + jnp.where(last, end.gain, 0.0),
        Factor(jnp.where(factor.usable, factor.lower, spread)),
    )
