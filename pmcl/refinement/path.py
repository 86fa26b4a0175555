"""Local path gradient: a few dozen steps on (b, A, c) of one bent normal."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from pmcl.draws.path import path_derivative
from pmcl.refinement.proposals import Component


class _Local(NamedTuple):
    shift: Array
    scale: tuple[Array, ...]
    context: Array


def _adjusted(component: Component, by: _Local) -> Component:
    """Move by parameters of order one: relative to the scale, whatever the posterior's size."""
    shift = component.shift + component.scale.multiply(by.shift)
    return eqx.tree_at(
        lambda c: (c.shift, c.scale, c.context),
        component,
        (shift, component.scale.adjust(by.scale), component.context + by.context),
    )


def local_path_gradient(
    log_density: Callable[[Array], Array],
    component: Component,
    key: Array,
    *,
    steps: int,
    draws: int,
    rate: float,
) -> tuple[Component, Array]:
    """Take steps of `PathGradient` on the shift b, the scale A and the shape c of a bent normal.

    Draws come in pairs eps, -eps; a step whose gradient is not finite changes nothing.

    Returns
    -------
    component : Component
    taken : Array of int
        Steps that were finite.

    References
    ----------
    Roeder, Wu & Duvenaud (2017), Sticking the Landing, eq. 8.
    """
    dim = component.shift.shape[0]
    optimiser = optax.chain(
        optax.clip_by_global_norm(10.0 * float(dim) ** 0.5),
        optax.adam(optax.cosine_decay_schedule(rate, steps)),
    )

    def loss(by: _Local, eps: Array) -> Array:
        moved = _adjusted(component, by)
        still = jax.lax.stop_gradient(moved)
        z = jax.vmap(lambda e: moved.transform(e)[0])(eps)
        log_q = jax.vmap(lambda u: still.log_prob(u))(z)
        return path_derivative(log_density, z, log_q).loss

    def step(carry: tuple, key: Array) -> tuple[tuple, None]:
        by, state, taken = carry
        half = jax.random.normal(key, ((draws + 1) // 2, dim), component.shift.dtype)
        gradient = jax.grad(loss)(by, jnp.concatenate([half, -half]))
        finite = jnp.isfinite(optax.tree.norm(gradient))
        updates, new = optimiser.update(gradient, state)
        moved = optax.apply_updates(by, updates)
        by, state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), (moved, new), (by, state))
        return (by, state, taken + finite), None

    by = _Local(
        jnp.zeros_like(component.shift),
        component.scale.neutral(),
        jnp.zeros_like(component.context),
    )
    start = (by, optimiser.init(by), jnp.zeros((), jnp.int32))
    (by, _, taken), _ = jax.lax.scan(step, start, jax.random.split(key, steps))
    return _adjusted(component, by), taken
