"""One z in place of a distribution: maximum likelihood, and what holds it near earlier ones."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.compile import jit
from pmcl.continual import (
    AbstractStrategy,
    ElasticWeightConsolidation,
    Naive,
    OnlineLaplace,
    SynapticIntelligence,
)
from pmcl.online.gaussian import Factor, MeanField
from pmcl.online.narrow import Narrow
from pmcl.online.projection import AnyRows, Search, as_pace, steps_of, weighted
from pmcl.online.rows import Batch, Data

METHODS = (ElasticWeightConsolidation, OnlineLaplace, SynapticIntelligence, Naive)
_NOTHING = 1e-12  # precision of what is not known
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
    rows: AnyRows
    share: Array
    skipped: int


def maximise(
    rows: AnyRows,
    start: Array,
    penalty: Factor | None,
    batch: Batch,
    search: Search,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
    *,
    narrow: Narrow | None = None,
    first: bool = False,
) -> Found:
    """Climb a batch's log likelihood, plus the logarithm of a Gaussian factor, by Adam.

    With local variables, whose likelihood is an integral, it is the lower bound that is climbed.
    What the batch says nothing of stays where it is, where the problem can be narrowed to the rest.
    """
    if narrow is not None:
        ranges = narrow.ranges
        part, held = ranges.take((start, penalty))
        found = maximise(
            narrow.rows, part, held, narrow.batch(batch), search, key, advance, first=first
        )
        share = ranges.put(jnp.zeros_like(start), found.share)
        z = ranges.put(start, found.mean)
        return Found(z, narrow.widen(rows, found.rows), share, found.skipped)
    plan = steps_of(search, batch, key, first=first)
    network, rest = eqx.partition(rows, eqx.is_inexact_array)
    moments = optax.scale_by_adam().init((start, network))
    now = (start, network, moments, jnp.zeros_like(start), jnp.zeros((), int))
    pace = as_pace(rows, search)
    for i, (rates, order) in enumerate(plan.chunks()):
        rate = jnp.asarray(rates, start.dtype)
        scale = jnp.asarray(plan.scale, start.dtype)
        keys = jax.random.split(jax.random.fold_in(key, i), len(rates))
        now, values = _chunk(rest, now, penalty, batch, keys, rate, order, scale, pace)
        advance(len(rates), f"log likelihood {float(np.mean(values)):.6g}")
    return Found(now[0], eqx.combine(now[1], rest), now[3], int(now[4]))


@jit
def _chunk(
    rest: Any,
    now: tuple,
    penalty: Factor | None,
    batch: Batch,
    keys: Array,
    rates: Array,
    order: Array | None,
    scale: Array,
    pace: float,
) -> tuple[tuple, Array]:
    optimizer = optax.scale_by_adam()

    def step(now: tuple, at: tuple) -> tuple[tuple, Array]:
        z, network, moments, share, skipped = now
        key, rate, index = at
        part = rest.part(batch, index)

        def height(z: Array, network: Any) -> Array:
            terms = eqx.combine(network, rest).at(z, part.data, key)
            return scale * weighted(terms, part.weights)

        value, (rise, upward) = jax.value_and_grad(height, argnums=(0, 1))(z, network)
        fine = jnp.all(jnp.stack([jnp.isfinite(v).all() for v in jax.tree.leaves((rise, upward))]))
        rise, upward = jax.tree.map(lambda v: jnp.where(fine, v, 0.0), (rise, upward))
        slope = rise if penalty is None else rise + jax.grad(penalty.log)(z)
        down = jax.tree.map(jnp.negative, (slope, upward))
        (move, turn), moments = optimizer.update(down, moments)
        rate = jnp.where(fine, rate, 0.0)
        change = -rate * move
        network = jax.tree.map(lambda v, m: v - pace * rate * m, network, turn)
        return (z + change, network, moments, share + rise * change, skipped + ~fine), value

    return jax.lax.scan(step, now, (keys, rates, order))


def held(
    method: AbstractStrategy,
    rows: AnyRows,
    start: Array,
    before: MeanField | None,
    batch: Batch,
    search: Search,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
    *,
    narrow: Narrow | None = None,
    first: bool = False,
) -> tuple[MeanField, Found]:
    """Return the penalty after a batch, as the normal that it is the logarithm of, and the search.

    Parameters
    ----------
    method : ElasticWeightConsolidation, OnlineLaplace, SynapticIntelligence or Naive
        The last holds nothing. Importances are sums over rows, so that the penalty is one of the
        rows' log likelihood.
    rows : Rows or LatentRows
    start : Array of shape (dim,)
    before : MeanField or None
        The penalty so far; None: there is none.
    batch : Batch
    search : Search
    key : Array
    advance : callable
        Told of the steps, for a progress bar.
    narrow : Narrow, optional
        The problem without what the batch says nothing of.
    first : bool
        Whether nothing was known before.

    References
    ----------
    Nguyen et al. (2018), appendix A: elastic weight consolidation (Kirkpatrick et al., 2017),
    diagonal Laplace propagation (Smola et al., 2004), synaptic intelligence (Zenke et al., 2017).
    """
    search_key, fisher_key = jax.random.split(key)
    flat = Factor(jnp.full_like(start, _NOTHING), _NOTHING * start)
    penalty = flat if before is None else before.factor
    found = maximise(
        rows, start, penalty, batch, search, search_key, advance, narrow=narrow, first=first
    )
    z = found.mean
    if isinstance(method, Naive):
        return MeanField.of(flat), found
    if isinstance(method, SynapticIntelligence):
        far = (z - start) ** 2
        share = jnp.maximum(found.share, 0.0) / (far + method.damping)
        precision = penalty.precision + 2 * method.strength * share
        return MeanField.of(Factor(precision, precision * z)), found
    information = fisher(rows, z, batch, fisher_key, narrow=narrow)
    if isinstance(method, ElasticWeightConsolidation):
        # Quadratics around each optimum of its own: their sum is a Gaussian factor's logarithm.
        new = Factor(method.strength * information, method.strength * information * z)
        old = penalty.times(penalty, method.decay - 1.0)
        total = old.times(new)
        return MeanField.of(total._replace(precision=total.precision + _NOTHING)), found
    assert isinstance(method, OnlineLaplace)
    precision = penalty.precision + method.strength * information
    return MeanField.of(Factor(precision, precision * z)), found


def fisher(
    rows: AnyRows, z: Array, batch: Batch, key: Array, *, narrow: Narrow | None = None
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
def _squares(rows: AnyRows, z: Array, data: Data, key: Array) -> tuple[Array, Array]:
    """Sum the rows' squared gradients, where they are finite; and how many are."""

    def one(i: Array, datum: Data) -> tuple[Array, Array]:
        found = rows.squared_slope(z, datum, jax.random.fold_in(key, i))
        finite = jnp.isfinite(found).all()
        return jnp.where(finite, found, 0.0), finite.astype(int)

    return rows.total(one, data)
