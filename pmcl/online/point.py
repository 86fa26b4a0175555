"""One z in place of a distribution: maximum likelihood, and what holds it near earlier ones."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.compile import jit
from pmcl.compile.predictive import lengths_of, predict
from pmcl.continual import (
    AbstractStrategy,
    ElasticWeightConsolidation,
    OnlineLaplace,
    SynapticIntelligence,
)
from pmcl.online.gaussian import Factor, MeanField
from pmcl.online.projection import Search, log_likelihood, steps_of
from pmcl.online.rows import Batch, Data, Rows

METHODS = (ElasticWeightConsolidation, OnlineLaplace, SynapticIntelligence)
_NOTHING = 1e-12  # precision of what is not known
_ROWS = 600  # of a batch, from which Fisher information is estimated


class Found(NamedTuple):
    """Where a search for one z ended.

    Attributes
    ----------
    mean : Array of shape (dim,)
    share : Array of shape (dim,)
        Of each entry in the rise of the batch's log likelihood: the sum of g dz along the way,
        g its gradient (nats).
    skipped : int
        Steps left out because a gradient was not finite.
    """

    mean: Array
    share: Array
    skipped: int


def maximise(
    rows: Rows,
    start: Array,
    penalty: Factor | None,
    batch: Batch,
    search: Search,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
    *,
    first: bool = False,
) -> Found:
    """Climb a batch's log likelihood, plus the logarithm of a Gaussian factor, by Adam."""
    plan = steps_of(search, batch, key, first=first)
    moments = optax.scale_by_adam().init(start)
    now = (start, moments, jnp.zeros_like(start), jnp.zeros((), int))
    for rates, order in plan.chunks():
        rate = jnp.asarray(rates, start.dtype)
        scale = jnp.asarray(plan.scale, start.dtype)
        now, values = _chunk(rows, now, penalty, batch, rate, order, scale)
        advance(len(rates), f"log likelihood {float(np.mean(values)):.6g}")
    return Found(now[0], now[2], int(now[3]))


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
        z, moments, share, skipped = now
        rate, index = at
        part = rows.part(batch, index)
        value, rise = jax.value_and_grad(lambda z: scale * log_likelihood(rows, z, part))(z)
        fine = jnp.isfinite(rise).all()
        rise = jnp.where(fine, rise, 0.0)
        slope = rise if penalty is None else rise + jax.grad(penalty.log)(z)
        move, moments = optimizer.update(-slope, moments)
        change = jnp.where(fine, -rate * move, 0.0)
        return (z + change, moments, share + rise * change, skipped + ~fine), value

    return jax.lax.scan(step, now, (rates, order))


def held(
    method: AbstractStrategy,
    rows: Rows,
    start: Array,
    before: MeanField | None,
    batch: Batch,
    search: Search,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
    *,
    first: bool = False,
) -> tuple[MeanField, Found]:
    """Return the penalty after a batch, as the normal that it is the logarithm of, and the search.

    Parameters
    ----------
    method : ElasticWeightConsolidation, OnlineLaplace or SynapticIntelligence
        Importances are sums over rows, so that the penalty is one of the rows' log likelihood.
    rows : Rows
    start : Array of shape (dim,)
    before : MeanField or None
        The penalty so far; None: there is none.
    batch : Batch
    search : Search
    key : Array

    References
    ----------
    Nguyen et al. (2018), appendix A: elastic weight consolidation (Kirkpatrick et al., 2017),
    diagonal Laplace propagation (Smola et al., 2004), synaptic intelligence (Zenke et al., 2017).
    """
    search_key, fisher_key = jax.random.split(key)
    flat = Factor(jnp.full_like(start, _NOTHING), _NOTHING * start)
    penalty = flat if before is None else before.factor
    found = maximise(rows, start, penalty, batch, search, search_key, advance, first=first)
    z = found.mean
    if isinstance(method, SynapticIntelligence):
        far = (z - start) ** 2
        share = jnp.maximum(found.share, 0.0) / (far + method.damping)
        precision = penalty.precision + 2 * method.strength * share
        return MeanField.of(Factor(precision, precision * z)), found
    information = fisher(rows, z, batch, fisher_key)
    if isinstance(method, ElasticWeightConsolidation):
        # Quadratics around each optimum of its own: their sum is a Gaussian factor's logarithm.
        new = Factor(method.strength * information, method.strength * information * z)
        old = penalty.times(penalty, method.decay - 1.0)
        total = old.times(new)
        return MeanField.of(total._replace(precision=total.precision + _NOTHING)), found
    assert isinstance(method, OnlineLaplace)
    precision = penalty.precision + method.strength * information
    return MeanField.of(Factor(precision, precision * z)), found


def fisher(rows: Rows, z: Array, batch: Batch, key: Array) -> Array:
    """Diagonal of the Fisher information at z, summed over a batch's rows.

    Observations are drawn from the model at the covariates of some rows.
    """
    n = int(np.count_nonzero(np.asarray(batch.weights)))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    some = rng.choice(n, min(n, _ROWS), replace=False)
    c = rows.compiled
    data = {k: np.asarray(v) for k, v in rows.take(batch.data, jnp.asarray(some)).items()}
    covariates = {i.name: data[i.name].astype(i.dtype) for i in c.covariates}
    at = np.asarray(z, np.float64)[None]
    drawn = predict(c, at, covariates, lengths_of(c, data), rng=rng)
    known = {**covariates, **{k: v[0] for k, v in drawn.items()}}
    return n / len(some) * _squares(rows, z, jax.tree.map(jnp.asarray, known))


@jit
def _squares(rows: Rows, z: Array, data: Data) -> Array:
    """Sum the rows' squared gradients."""

    def one(i: Array, datum: Data) -> Array:
        return jax.grad(lambda z: rows(z, datum)[0])(z) ** 2

    return rows.map(one, data).sum(axis=0)
