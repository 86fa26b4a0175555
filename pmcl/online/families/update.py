"""An update of a normal with covariances, with what memories there are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.predictors import Predictors, predictors
from pmcl.online.families.climb import Found, Normal, climb, lacking, less, remaining
from pmcl.online.families.predict import is_network
from pmcl.online.families.search import GaussNewton
from pmcl.online.families.sites import Looked, Said, columns, look, say, shifts
from pmcl.online.families.stiffness import stiffness
from pmcl.online.looking import candidates, foretold, highest, weigh
from pmcl.online.memory import ResidualMemory, Stored
from pmcl.online.rows import RowBatch, Rows
from pmcl.online.search.bound import Target
from pmcl.online.search.search import Way
from pmcl.online.state import Info, RowModel, Settings, State, as_batch
from pmcl.runtime.jitting import jit


def update_normal(
    problem: RowModel, state: State, arrived: Stored, settings: Settings, moved: Any, key: Array
) -> tuple[State, Info]:
    """Return what is known after a batch; `moved` is what was known before it, at its time."""
    rows, rule = problem.rows, settings.memory
    time = float(arrived.times[0])
    elapsed = time - state.time
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), dtype=np.uint32))
    keys = jax.random.split(key, 4)
    everything = state.memory.add(rows, arrived)
    untouched = state.seen == len(state.memory)  # q is the prior as yet
    work = _Work(problem, settings, state, first=not state.updates)
    if work.stiffness is not None:  # what is forgotten holds nothing
        work.stiffness = work.stiffness.scaled(settings.drift.weight(jnp.asarray(elapsed)))

    def weighted(part: Stored) -> RowBatch:
        return as_batch(rows, part, settings.weights(time - part.times))

    kept = np.zeros(len(everything), bool)
    q = moved
    if isinstance(rule, ResidualMemory):
        batch = weighted(everything)
        predictive = work.project(moved, batch, state.predictive, untouched, keys[0])
        found = work.found[-1]
        sites = (found.looked, found.said)
        score = np.asarray(
            _scores(rows, predictive, batch, sites, keys[1], (rule.draws, rule.score))
        )
        weights = np.asarray(batch.weights)[: len(everything)]
        score = score[: len(everything)] * weights ** (2 if rule.score == "misfit" else 1)
        kept = rule.keep(candidates(rows, everything, state, score), rng)
        if not kept.all():
            there = np.zeros(len(batch.weights), bool)
            there[: len(kept)] = kept
            out = jnp.asarray(np.where(there, 0.0, batch.weights))
            base = work.begun(moved, predictive.mean, untouched)
            q = _without(base, predictive, found, out, batch.weights)
    else:
        if rule is not None:
            kept = rule.keep(candidates(rows, everything, state), rng)
        if not kept.all():
            gone = weighted(everything.take(rows, ~kept))
            q = work.project(moved, gone, state.predictive, untouched, keys[0])
            untouched = False
        predictive = q
        if kept.any():
            part = weighted(everything.take(rows, kept))
            predictive = work.project(q, part, state.predictive, untouched, keys[1])
    stiff = work.stiffer(predictive, weighted(everything.take(rows, ~kept)), keys[3])
    rank = work.search.rank
    weighed = [weigh(problem, *one, keys[2]) for one in work.projected]
    if rule is not None:
        weighed.append(
            foretold(problem, settings, state, predictive, weighted(arrived), elapsed, keys[2])
        )
    memory = everything.take(rows, kept)
    info = Info(
        len(arrived), len(memory), problem.gaussian, sum(f.steps for f in work.found), 0,
        work.found[-1].lower_bound, 0, highest([k for k, _ in weighed]), weighed[-1][1],
        left=max(f.left for f in work.found),
    )  # fmt: skip
    seen, updates = state.seen + len(arrived), state.updates + 1
    after = state._replace(
        q=q.short(rank), predictive=predictive.short(rank), memory=memory, time=time, seen=seen,
        updates=updates, stiffness=stiff,
    )  # fmt: skip
    return after, info


def recall_normal(
    problem: RowModel, state: State, settings: Settings, batch: RowBatch, key: Array
) -> Any:
    """Return the normal times the likelihood of some of the stored rows."""
    work = _Work(problem, settings, state, first=False)
    untouched = state.seen == len(state.memory)
    return work.project(state.q, batch, state.predictive, untouched, key).short(work.search.rank)


class _Work:
    """The projections of one update."""

    def __init__(self, problem: RowModel, settings: Settings, state: State, *, first: bool) -> None:
        self.problem, self.settings, self.first = problem, settings, first
        assert isinstance(settings.search, GaussNewton)
        self.search = settings.search
        told = predictors(problem.rows.compiled)
        assert isinstance(told, Predictors)
        self.told = told
        self.stiffness, self.at = state.stiffness, state.predictive.mean
        self.found: list[Found] = []
        self.projected: list[tuple[Any, Target]] = []

    def project(
        self, base: Any, batch: RowBatch, known: Any, untouched: bool, key: Array
    ) -> Normal:
        """Project what is known beside a batch times its likelihood; search from `known`."""
        p = self.problem
        remainder = p.remainder if untouched else None
        begin = known
        new = _unknown(known, p.prior)
        start = begin.mean
        if bool(new.any()):
            scattered = self.settings.start(p.prior, key).mean
            reached = _reached(self.told, p.rows, jnp.where(new, scattered, start), batch)
            start = jnp.where(new & reached, scattered, start)
        hold = None
        if self.stiffness is not None and self.search.stiffness:
            hold = self.stiffness._replace(mean=self.at).scaled(self.search.stiffness)
        way = Way(self.search, self.first)
        found = climb(self.told, p.rows, base, batch, remainder, start, way, hold)
        self.found.append(found)
        self.projected.append((found.q, Target(base, batch, remainder)))
        return found.q

    def stiffer(self, q: Any, gone: RowBatch, key: Array) -> Any:
        """Add the stiffness of rows that are gone; None where there is nothing to be held."""
        p = self.problem
        before = self.stiffness
        if not (self.search.stiffness and is_network(p.rows.compiled) and len(gone.weights)):
            return before
        said = _said(self.told, p.rows, q, gone)
        more = stiffness(self.told, p.rows, q, gone, said, key)
        return (more if before is None else before.joined(more)).short(self.search.rank)

    def begun(self, base: Any, z: Array, untouched: bool) -> Any:
        """What is known beside the rows, with what the normal in place of a prior lacks at z."""
        remainder = self.problem.remainder if untouched else None
        if remainder is None:
            return base
        return base.plus(remaining(remainder, lacking(remainder), self.problem.rows, z)[1])


@jit
def _unknown(q: Any, prior: Any) -> Array:
    """Entries of which no more is known than the prior."""
    far = jnp.abs(q.mean - prior.mean) * jnp.exp(-prior.log_sd)
    return (far <= 1e-5) & (q.log_sd >= prior.log_sd - 1e-5)


@jit
def _reached(told: Predictors, rows: Rows, z: Array, batch: RowBatch) -> Array:
    """Entries of z that a batch's predictors change with."""
    found = [
        jnp.any((site.slope != 0) & (site.weights > 0)[:, None, None], axis=(0, 1))
        for site in look(told, rows, z, batch)
    ]
    return jnp.stack(found).any(axis=0)


@jit
def _said(told: Predictors, rows: Rows, q: Any, batch: RowBatch) -> list[Said]:
    """What rows say at a normal."""
    looked = look(told, rows, q.mean, batch)
    return [
        say(part, site, q.spread(site.slope), jnp.asarray(False))
        for part, site in zip(told.parts, looked, strict=True)
    ]


@jit
def _without(base: Any, whole: Any, found: Found, out: Array, weights: Array) -> Any:
    """Divide the sites of stored rows out of the normal of all: those whose weights are not `out`.

    Precisions are the sum of the others', which is never negative.
    """
    q = base
    shift = whole.shift
    gone = []
    for site, said in zip(found.looked, found.said, strict=True):
        leaves = jnp.repeat(out == weights, len(site.weights) // len(out))
        gone.append(site._replace(weights=jnp.where(leaves, site.weights, 0.0)))
        q = q.plus(columns(gone[-1], said))
        shift = shift - jnp.where(leaves, 0.0, site.weights) @ shifts(site, said, whole.mean)
    return less(q, gone, found.said).at_shift(shift)


@jit
def _scores(
    rows: Rows, q: Any, batch: RowBatch, sites: tuple[list[Looked], list[Said]], key: Array,
    rule: tuple[int, str],
) -> Array:  # fmt: skip
    """How ill its site fits each row, by draws; see :class:`pmcl.ResidualMemory`."""
    draws, score = rule
    noise = jax.random.normal(key, (draws, len(q.mean)), q.mean.dtype)
    z = q.at(jnp.concatenate([noise, -noise]))
    value = jax.lax.map(lambda one: rows(one, batch.data), z)
    fitted = jnp.zeros_like(value)
    for site, one in zip(*sites, strict=True):
        if score == "misfit":
            along = jnp.einsum("nid,sd->sni", site.slope, z - q.mean)
            pull = one.slope
        else:  # as a function of z, and so about the origin
            along = jnp.einsum("nid,sd->sni", site.slope, z)
            middle = jnp.einsum("nid,d->ni", site.slope, q.mean)
            pull = one.slope + jnp.einsum("nij,nj->ni", one.curvature, middle)
        part = jnp.einsum("sni,ni->sn", along, pull)
        part = part - jnp.einsum("sni,nij,snj->sn", along, one.curvature, along) / 2
        part = jnp.where(site.weights > 0, part, 0.0)  # padding, and what is missing
        fitted = fitted + part.reshape(len(z), value.shape[1], -1).sum(axis=2)
    rest = value - fitted
    return jnp.var(rest, axis=0) if score == "misfit" else jnp.mean(rest, axis=0)
