"""One value of z in place of a normal: EWC, SI, Laplace and plain maximum."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.continual import (
    AbstractStrategy,
    ElasticWeightConsolidation,
    Learned,
    Naive,
    OnlineLaplace,
    SynapticIntelligence,
)
from pmcl.online.beginning import begin
from pmcl.online.gaussian import Factor, MeanField
from pmcl.online.memory import Stored
from pmcl.online.rows import AbstractRows, RowBatch
from pmcl.online.search.maximum import Found, fisher, maximise
from pmcl.online.search.narrow import Narrow
from pmcl.online.search.search import Way
from pmcl.online.state import Info, RowModel, Settings, State, as_batch

POINT = 1e-6  # standard deviation of what is one point
METHODS = (ElasticWeightConsolidation, OnlineLaplace, SynapticIntelligence, Naive)
_NOTHING = 1e-12  # precision of what is not known


def update_point(
    problem: RowModel,
    state: State,
    arrived: Stored,
    settings: Settings,
    moved: MeanField,
    key: Array,
    advance: Callable[[int, str], None],
) -> tuple[State, Info]:
    """Update one z; `q` is the penalty as a normal, `predictive` is all but a point."""
    rows = problem.rows
    start_key, key = jax.random.split(key)
    batch = as_batch(rows, arrived, np.ones(len(arrived)))
    q, found, steps = follow(
        problem, rows, state, moved, batch, settings, (start_key, key), advance
    )
    info = Info(
        len(arrived), 0, exact=False, steps=steps, skipped=found.skipped,
        lower_bound=np.nan, clamped=0, khat=np.nan, log_evidence=np.nan,
    )  # fmt: skip
    updates, seen = state.updates + 1, state.seen + len(arrived)
    time = float(arrived.times[0])
    return State(q, a_point(found.mean), state.memory, time, seen, updates), info


def follow(
    problem: RowModel,
    rows: AbstractRows,
    state: State,
    moved: MeanField,
    batch: RowBatch,
    settings: Settings,
    keys: tuple[Array, Array],
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> tuple[MeanField, Found, int]:
    """Return the penalty on one z after a batch, where the search for it ended, and its steps."""
    first, method = not state.updates, settings.method
    assert method is not None
    # a point is as narrow where nothing is known
    known = None if first else state.predictive._replace(log_sd=problem.prior.log_sd)
    begun = begin(problem, rows, problem.prior, batch, settings, known, keys[0], advance)
    before = moved if not first or method.bayesian else None
    way = Way(settings.search, first, advance)
    q, found = held(method, rows, begun.q.mean, before, batch, way, keys[1], begun.narrow)
    return q, found, begun.steps + way.length(int((batch.weights > 0).sum()))


def a_point(mean: Array) -> MeanField:
    """Return the normal that stands for one z."""
    return MeanField(mean, jnp.full_like(mean, np.log(POINT)))


def held(
    method: AbstractStrategy,
    rows: AbstractRows,
    start: Array,
    before: MeanField | None,
    batch: RowBatch,
    way: Way,
    key: Array,
    narrow: Narrow | None = None,
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
    batch : RowBatch
    way : Way
    key : Array
    narrow : Narrow, optional
        The problem without what the batch says nothing of.

    References
    ----------
    Nguyen et al. (2018), appendix A: elastic weight consolidation (Kirkpatrick et al., 2017),
    diagonal Laplace propagation (Smola et al., 2004), synaptic intelligence (Zenke et al., 2017).
    """
    search_key, fisher_key = jax.random.split(key)
    penalty = Factor(jnp.full_like(start, _NOTHING), _NOTHING * start)
    if before is not None:
        penalty = before.factor
    found = maximise(rows, start, penalty, batch, way, search_key, narrow=narrow)
    information = partial(fisher, rows, found.mean, batch, fisher_key, narrow=narrow)
    learned = Learned(found.mean, start, found.share, information)
    precision, anchor = method.hold(penalty.precision, MeanField.of(penalty).mean, learned)
    precision = jnp.maximum(precision, _NOTHING)
    return MeanField.of(Factor(precision, precision * anchor)), found
