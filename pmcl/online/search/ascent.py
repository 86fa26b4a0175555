"""Steps of Adam, as searches for a normal and for one z take them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.online.search.arrival import late
from pmcl.online.search.search import Plan, Way


class Steps(NamedTuple):
    """Some steps of a search: a key, a rate and the rows of each (None: all).

    `late` are those that tell where it ended.
    """

    keys: Array
    rates: Array
    order: Array | None
    late: Array


def ascend[T](
    chunk: Callable[[T, Steps], tuple[T, Array]],
    now: T,
    plan: Plan,
    way: Way,
    key: Array,
    what: str,
) -> tuple[T, np.ndarray]:
    """Take the steps of a plan, some at a time; return where they led, and the heights on the way.

    Parameters
    ----------
    chunk : callable
        Takes some steps.
    now : pytree
        Where the search stands.
    plan : Plan
    way : Way
        Told of the steps.
    key : Array
    what : str
        Is climbed.
    """
    heights = []
    told = late(len(plan.rates))
    for i, (rates, order) in enumerate(plan.chunks()):
        keys = jax.random.split(jax.random.fold_in(key, i), len(rates))
        here, told = told[: len(rates)], told[len(rates) :]
        now, values = chunk(now, Steps(keys, jnp.asarray(rates, float), order, jnp.asarray(here)))
        heights.append(np.asarray(values))
        way.advance(len(rates), f"{what} {np.nanmean(heights[-1]):.6g}")
    return now, np.concatenate(heights)


def or_nothing(slope: Any) -> tuple[Any, Array]:
    """Return a slope, zero where not all of it is finite, and whether it is."""
    fine = jnp.all(jnp.stack([jnp.isfinite(v).all() for v in jax.tree.leaves(slope)]))
    return jax.tree.map(lambda v: jnp.where(fine, v, 0.0), slope), fine


def begun(here: Any) -> optax.OptState:
    """Moments of Adam before any step."""
    return optax.scale_by_adam().init(here)


def stepped(
    slope: tuple, moments: optax.OptState, rates: tuple[Array, ...]
) -> tuple[tuple, optax.OptState]:
    """Return how a step down a slope changes each of some trees, and the moments after it."""
    move, moments = optax.scale_by_adam().update(slope, moments)
    changes = (jax.tree.map(lambda m, r=r: -r * m, m) for m, r in zip(move, rates, strict=True))
    return tuple(changes), moments
