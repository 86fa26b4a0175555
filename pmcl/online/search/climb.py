"""The mean-field normal nearest to a prior times the likelihood of a batch."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.online.gaussian import MeanField
from pmcl.online.rows import AbstractRows, RowBatch, padded
from pmcl.online.search.arrival import Left, Slopes, left
from pmcl.online.search.ascent import Steps, ascend, begun, or_nothing, stepped
from pmcl.online.search.bound import Target, lower_bound, weighted
from pmcl.online.search.narrow import Narrow
from pmcl.online.search.search import Plan, Search, Way
from pmcl.runtime.jitting import jit

_LOOKS = 3  # at least, at what a batch says anything of
_TURNS = 5  # at most, of a search that does not arrive


class Climbed(NamedTuple):
    """What a search found.

    Attributes
    ----------
    q : MeanField
    rows : AbstractRows
        With the encoder that was trained beside q, if it has one.
    lower_bound : ndarray of shape (step,)
        Estimates of the evidence lower bound (nats), in the last turn.
    steps : int
        Of all turns.
    skipped : int
        Steps left out because a gradient was not finite.
    left : float
        What there was still to gain at the end (nats); NaN where it was not looked at.
    """

    q: MeanField
    rows: AbstractRows
    lower_bound: np.ndarray
    steps: int
    skipped: int
    left: float

    @property
    def height(self) -> float:
        """Mean of the lower bound over the last tenth of the steps (nats)."""
        return float(np.mean(self.lower_bound[-max(len(self.lower_bound) // 10, 1) :]))


class _Climb(eqx.Module):
    """Where a search stands: the mean in units of its own, and Adam's moments."""

    shift: Array
    log_sd: Array
    network: Any  # the arrays of an encoder
    moments: optax.OptState
    skipped: Array
    slopes: Slopes


def climb(
    rows: AbstractRows,
    start: MeanField,
    target: Target,
    way: Way,
    key: Array,
    *,
    narrow: Narrow | None = None,
) -> Climbed:
    """Project by stochastic gradients of the lower bound.

    Noise comes in pairs of opposite sign, which leaves the gradient right and makes it less noisy.

    Parameters
    ----------
    rows : Rows
    start : MeanField
    target : Target
    way : Way
    key : Array
    narrow : Narrow, optional
        The problem without the entries of z that the batch says nothing of: of them there is
        nothing to be found but the prior.
    """
    prior = target.prior
    if narrow is not None:
        part, known, more = narrow.ranges.take((start, prior, target.more))
        few = Target(known, narrow.batch(target.batch), more=more)
        found = climb(narrow.rows, part, few, way, key)
        q = narrow.ranges.put(prior, found.q)
        return found._replace(q=q, rows=rows.widened(found.rows))
    plan = way.plan(target.batch, key)
    network, rest = eqx.partition(rows, eqx.is_inexact_array)
    scale = jnp.asarray(plan.scale, start.mean.dtype)
    pace = rows.pace(way.search.learning_rate)
    skipped = jnp.zeros((), int)
    q, unit = start, jnp.exp(prior.log_sd)
    for turn in range(_TURNS):
        first = _Climb(
            (q.mean - prior.mean) / unit,
            q.log_sd,
            network,
            begun((q.mean, q.log_sd, network)),
            skipped,
            Slopes.none(q),
        )

        def chunk(now: _Climb, steps: Steps, unit: Array = unit) -> tuple[_Climb, Array]:
            return _chunk(rest, now, unit, target, steps, scale, way.search.draws, pace)

        turn_key = jax.random.fold_in(key, turn) if turn else key
        now, bounds = ascend(chunk, first, plan, way, turn_key, "lower bound")
        q = MeanField(prior.mean + unit * now.shift, now.log_sd)
        network, skipped = now.network, now.skipped
        still = _looked(plan, q, now.slopes)
        if turn == _TURNS - 1 or not still.nats > way.enough:
            break
        # Adam does not forget how steep it was where the search began: begun anew, it goes on.
        unit = still.unit(q, unit)
        q = q._replace(log_sd=q.log_sd - jnp.log(still.wide) / 2)
        way.advance(-len(plan.rates), "goes on")
    steps = (turn + 1) * len(plan.rates)
    return Climbed(q, eqx.combine(network, rest), bounds, steps, int(skipped), still.nats)


def _looked(plan: Plan, q: MeanField, slopes: Slopes) -> Left:
    """Tell what is left to gain; some rows alone tell too little of it."""
    found = left(q, slopes)
    return found if plan.order is None else found._replace(nats=np.nan)


def reached(
    rows: AbstractRows, places: tuple[MeanField, ...], batch: RowBatch, search: Search, key: Array
) -> np.ndarray:
    """Which entries of z a batch says anything of: those that its likelihood changes with.

    Looked at around several places, as units of a network may be silent around one.

    Returns
    -------
    ndarray of bool of shape (dim,)
    """
    n = int((batch.weights > 0).sum())
    steps = padded(max(-(-n // max(search.batch_size or n, 1)), _LOOKS))
    plan = Way(replace(search, steps=steps, first_steps=None, epochs=None)).plan(batch, key)
    order = None if plan.order is None else jnp.asarray(plan.order)
    keys = jax.random.split(key, steps)
    return np.asarray(_reached(rows, places, batch, order, keys))


@jit
def _reached(
    rows: AbstractRows,
    places: tuple[MeanField, ...],
    batch: RowBatch,
    order: Array | None,
    keys: Array,
) -> Array:
    def moves(q: MeanField, part: RowBatch, key: Array) -> Array:
        def total(mean: Array) -> Array:
            return weighted(rows.drawn(q._replace(mean=mean), part.data, key), part.weights)

        slope = jax.grad(total)(q.mean)
        return jnp.stack([jnp.isfinite(slope), jnp.isfinite(slope) & (slope != 0)])

    def step(so_far: Array, at: tuple[Array, Array | None]) -> tuple[Array, None]:
        key, index = at
        part = rows.part(batch, index)
        for q in places:
            so_far = so_far | moves(q, part, key)
        return so_far, None

    nothing = jnp.zeros((2, *places[0].mean.shape), bool)
    (finite, moved), _ = jax.lax.scan(step, nothing, (keys, order))
    # What was nowhere finite is not known to have no effect.
    return moved | ~finite


@jit
def _chunk(
    rest: Any,
    now: _Climb,
    unit: Array,
    target: Target,
    steps: Steps,
    scale: Array,
    draws: int,
    pace: float,
) -> tuple[_Climb, Array]:
    prior = target.prior

    def step(now: _Climb, at: Steps) -> tuple[_Climb, Array]:
        here = target._replace(batch=rest.part(target.batch, at.order))

        def loss(parameters: tuple[Array, Array, Any]) -> Array:
            shift, log_sd, network = parameters
            rows = eqx.combine(network, rest)
            q = MeanField(prior.mean + unit * shift, log_sd)
            return -lower_bound(rows, q, here, at.keys, draws=draws, scale=scale)

        place = (now.shift, now.log_sd, now.network)
        value, slope = jax.value_and_grad(loss)(place)
        slope, fine = or_nothing(slope)
        rate = jnp.where(fine, at.rates, 0.0)
        changes, moments = stepped(slope, now.moments, (rate, rate, rate * pace))
        shift, log_sd, network = jax.tree.map(jnp.add, place, changes)
        slopes = now.slopes.add(-slope[0] / unit, -slope[1], at.late & fine)
        return _Climb(shift, log_sd, network, moments, now.skipped + ~fine, slopes), -value

    return jax.lax.scan(step, now, steps)
