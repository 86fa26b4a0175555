"""One z in place of a distribution: maximum likelihood, with a quadratic penalty or without."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.compile import jit
from pmcl.online.gaussian import Factor
from pmcl.online.projection import Search, log_likelihood, steps_of
from pmcl.online.rows import Batch, Rows


class Found(NamedTuple):
    """Where a search for one z ended.

    Attributes
    ----------
    mean : Array of shape (dim,)
    share : Array of shape (dim,)
        Of each entry in the rise of the batch's log likelihood: -sum g dz along the way (nats).
    """

    mean: Array
    share: Array


def maximise(
    rows: Rows,
    start: Array,
    penalty: Factor | None,
    batch: Batch,
    search: Search,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> Found:
    """Climb a batch's log likelihood, plus the logarithm of a Gaussian factor, by Adam."""
    plan = steps_of(search, batch, key)
    moments = optax.scale_by_adam().init(start)
    now = (start, moments, jnp.zeros_like(start))
    for rates, order in plan.chunks():
        rate = jnp.asarray(rates, start.dtype)
        scale = jnp.asarray(plan.scale, start.dtype)
        now, values = _chunk(rows, now, penalty, batch, rate, order, scale)
        advance(len(rates), f"log likelihood {float(np.mean(values)):.6g}")
    return Found(now[0], now[2])


@jit
def _chunk(
    rows: Rows,
    now: tuple,
    penalty: Factor | None,
    batch: Batch,
    rates: Array,
    order: Array | None,
    scale: Array,
) -> tuple[tuple, Array]:
    optimizer = optax.scale_by_adam()

    def step(now: tuple, at: tuple) -> tuple[tuple, Array]:
        z, moments, share = now
        rate, index = at
        part = batch
        if index is not None:
            part = Batch(rows.take(batch.data, index), batch.weights[index])
        value, rise = jax.value_and_grad(lambda z: scale * log_likelihood(rows, z, part))(z)
        slope = rise if penalty is None else rise + jax.grad(penalty.log)(z)
        slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
        move, moments = optimizer.update(-slope, moments)
        change = -rate * move
        return (z + change, moments, share + rise * change), value

    return jax.lax.scan(step, now, (rates, order))
