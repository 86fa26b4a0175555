"""One z in place of a distribution: maximum likelihood, and what holds it near earlier ones."""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import Factor
from pmcl.online.rows import AbstractRows, Data, RowBatch
from pmcl.online.search.ascent import Steps, ascend, begun, or_nothing, stepped
from pmcl.online.search.bound import weighted
from pmcl.online.search.narrow import Narrow
from pmcl.online.search.search import Way
from pmcl.runtime.jitting import jit

_ROWS = 600  # of a batch, from which Fisher information is estimated


class Found(NamedTuple):
    """Where a search for one z ended.

    Attributes
    ----------
    mean : Array of shape (dim,)
    rows : Rows or LatentRows
        With the encoder that was trained beside the mean, if it has one.
    share : Array of shape (dim,)
        Of each entry in the rise of the batch's log likelihood: the sum of g dz along the way,
        g its gradient (nats).
    skipped : int
        Steps left out because a gradient was not finite.
    """

    mean: Array
    rows: AbstractRows
    share: Array
    skipped: int


def maximise(
    rows: AbstractRows,
    start: Array,
    penalty: Factor | None,
    batch: RowBatch,
    way: Way,
    key: Array,
    *,
    narrow: Narrow | None = None,
) -> Found:
    """Climb a batch's log likelihood, plus the logarithm of a Gaussian factor, by Adam.

    With local variables, whose likelihood is an integral, it is the lower bound that is climbed.
    What the batch says nothing of stays where it is, where the problem can be narrowed to the rest.
    """
    if narrow is not None:
        ranges = narrow.ranges
        part, held = ranges.take((start, penalty))
        found = maximise(narrow.rows, part, held, narrow.batch(batch), way, key)
        share = ranges.put(jnp.zeros_like(start), found.share)
        z = ranges.put(start, found.mean)
        return Found(z, rows.widened(found.rows), share, found.skipped)
    plan = way.plan(batch, key)
    network, rest = eqx.partition(rows, eqx.is_inexact_array)
    first = (start, network, begun((start, network)), jnp.zeros_like(start), jnp.zeros((), int))
    scale = jnp.asarray(plan.scale, start.dtype)
    pace = rows.pace(way.search.learning_rate)

    def chunk(now: tuple, steps: Steps) -> tuple[tuple, Array]:
        return _chunk(rest, now, penalty, batch, steps, scale, pace)

    (mean, network, _, share, skipped), _ = ascend(chunk, first, plan, way, key, "log likelihood")
    return Found(mean, eqx.combine(network, rest), share, int(skipped))


@jit
def _chunk(
    rest: Any,
    now: tuple,
    penalty: Factor | None,
    batch: RowBatch,
    steps: Steps,
    scale: Array,
    pace: float,
) -> tuple[tuple, Array]:
    def step(now: tuple, at: Steps) -> tuple[tuple, Array]:
        z, network, moments, share, skipped = now
        part = rest.part(batch, at.order)

        def height(z: Array, network: Any) -> Array:
            terms = eqx.combine(network, rest).at(z, part.data, at.keys)
            return scale * weighted(terms, part.weights)

        value, rises = jax.value_and_grad(height, argnums=(0, 1))(z, network)
        (rise, upward), fine = or_nothing(rises)
        slope = rise if penalty is None else rise + jax.grad(penalty.log)(z)
        down = jax.tree.map(jnp.negative, (slope, upward))
        rate = jnp.where(fine, at.rates, 0.0)
        (change, turn), moments = stepped(down, moments, (rate, pace * rate))
        network = jax.tree.map(jnp.add, network, turn)
        return (z + change, network, moments, share + rise * change, skipped + ~fine), value

    return jax.lax.scan(step, now, steps)


def fisher(
    rows: AbstractRows, z: Array, batch: RowBatch, key: Array, *, narrow: Narrow | None = None
) -> Array:
    """Diagonal of the Fisher information at z, summed over a batch's rows.

    Observations are drawn from the model at the covariates of some rows; with local variables, in
    place of the likelihood there is its lower bound at the rows themselves (Nguyen et al. (2018),
    section 5).
    """
    n = int(np.count_nonzero(np.asarray(batch.weights)))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    some = rng.choice(n, min(n, _ROWS), replace=False)
    data = {k: np.asarray(v) for k, v in rows.take(batch.data, jnp.asarray(some)).items()}
    known = jax.tree.map(jnp.asarray, rows.fisher_data(z, data, rng))
    if narrow is None:
        total, finite = _squares(rows, z, known, key)
    else:
        ranges = narrow.ranges
        part, finite = _squares(narrow.rows, ranges.take(z), narrow.data(known), key)
        total = ranges.put(jnp.zeros_like(z), part)
    if finite < len(some):
        warnings.warn(
            f"{len(some) - int(finite)} of {len(some)} rows have a gradient that is not finite: "
            "they have no part in how important parameters are taken to be.",
            stacklevel=2,
        )
    # Estimates of squares that are right in the mean may be below zero.
    return n / max(int(finite), 1) * jnp.maximum(total, 0.0)


@jit
def _squares(rows: AbstractRows, z: Array, data: Data, key: Array) -> tuple[Array, Array]:
    """Sum the rows' squared gradients, where they are finite; and how many are."""

    def one(i: Array, datum: Data) -> tuple[Array, Array]:
        found = rows.squared_slope(z, datum, jax.random.fold_in(key, i))
        finite = jnp.isfinite(found).all()
        return jnp.where(finite, found, 0.0), finite.astype(int)

    return rows.total(one, data)
