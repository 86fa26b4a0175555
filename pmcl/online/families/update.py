"""An update of a normal with covariances, with what memories there are."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.predictors import Predictors, predictors
from pmcl.online.families.anchor import Anchored, Anchors, Told
from pmcl.online.families.climb import Found, Normal, climb, lacking, less, remaining
from pmcl.online.families.dense import Full
from pmcl.online.families.moments import DRAWS, consistent, matched
from pmcl.online.families.search import GaussNewton
from pmcl.online.families.sites import Looked, Said, columns, look, shifts
from pmcl.online.looking import DEAR, candidates, cost, foretold, highest, weigh
from pmcl.online.memory import ResidualMemory, Stored
from pmcl.online.rows import RowBatch, Rows
from pmcl.online.search.bound import Target
from pmcl.online.search.search import Way
from pmcl.online.state import Info, RowModel, Settings, State, as_batch, no_anchors
from pmcl.runtime.jitting import jit

_LOOKS = 7  # at starts beside the one that is taken: a unit may be dead at one
_ASIDE = 0.5  # of the way from a mode to a draw


def update_normal(
    problem: RowModel, state: State, arrived: Stored, settings: Settings, moved: Any, key: Array
) -> tuple[State, Info]:
    """Return what is known after a batch; `moved` is what was known before it, at its time."""
    rows, rule = problem.rows, settings.memory
    time = float(arrived.times[0])
    elapsed = time - state.time
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), dtype=np.uint32))
    keys = jax.random.split(key, 3)
    everything = state.memory.add(rows, arrived)
    untouched = state.whole
    # nothing is linearised for good while all rows are at hand
    anchors = no_anchors(problem, settings.family) if untouched else state.anchors
    for_good = not untouched or rule is None or len(everything) > rule.capacity
    work = _Work(problem, settings, anchors, first=not state.updates, for_good=for_good)

    def weighted(part: Stored) -> RowBatch:
        return as_batch(rows, part, settings.weights(time - part.times))

    kept = np.zeros(len(everything), bool)
    q, divergence = moved, np.nan
    if isinstance(rule, ResidualMemory):
        batch = weighted(everything)
        predictive = work.project(moved, batch, state.predictive, untouched, keys[0])
        found = work.found[-1]
        sites = (found.looked, found.said)
        score = np.asarray(_scores(rows, found.q, batch, sites, keys[1], (rule.draws, rule.score)))
        weights = np.asarray(batch.weights)[: len(everything)]
        score = score[: len(everything)] * weights ** (2 if rule.score == "misfit" else 1)
        kept = rule.keep(candidates(rows, everything, state, score), rng)
        if not kept.all():
            there = np.zeros(len(batch.weights), bool)
            there[: len(kept)] = kept
            out = jnp.asarray(np.where(there, 0.0, batch.weights))
            base = work.begun(moved, found, untouched)
            q = _without(base, found.q, found, out, batch.weights)
            looked_at = work.projected[0].log_ratios is not None
            if looked_at and isinstance(predictive, Full) and kept.any():
                stored = weighted(everything.take(rows, kept))
                q, divergence = consistent(rows, q, predictive, stored, keys[2])
    else:
        if rule is not None:
            kept = rule.keep(candidates(rows, everything, state), rng)
        if not kept.all():
            if kept.any():
                work.place(moved, weighted(everything), state.predictive, untouched, keys[0])
            gone = weighted(everything.take(rows, ~kept))
            q = work.project(moved, gone, state.predictive, untouched, keys[0])
            untouched = False
        predictive = q
        if kept.any():
            part = weighted(everything.take(rows, kept))
            predictive = work.project(q, part, state.predictive, untouched, keys[1])
    rank = work.search.rank
    linear = None if work.anchors is None else Anchored(work.told, work.anchors)
    weighed = [
        weigh(problem, one.q, one.target, keys[2], linear if rule is None else None, one.log_ratios)
        for one in work.projected
    ]
    if rule is not None:  # of projections only k-hat is asked for
        batch = weighted(arrived)
        weighed.append(
            foretold(problem, settings, state, predictive, batch, elapsed, keys[2], linear)
        )
    memory = everything.take(rows, kept)
    apart = not kept.all() and not isinstance(rule, ResidualMemory)  # of rows that are gone alone
    if apart and work.projected[0].log_ratios is not None:
        divergence = weighed[0].divergence
    info = Info(
        len(arrived), len(memory), problem.gaussian, work.steps, 0,
        work.found[-1].lower_bound, 0, highest([w.khat for w in weighed]),
        weighed[-1].log_evidence, left=max(f.left for f in work.found),
        divergence=divergence,
    )  # fmt: skip
    seen, updates = state.seen + len(arrived), state.updates + 1
    after = state._replace(
        q=q.short(rank), predictive=predictive.short(rank), memory=memory, time=time, seen=seen,
        updates=updates, anchors=work.anchors,
    )  # fmt: skip
    return after, info


def recall_normal(
    problem: RowModel, state: State, settings: Settings, batch: RowBatch, key: Array
) -> Any:
    """Return the normal times the likelihood of some of the stored rows."""
    anchors = None if state.anchors is None else state.anchors.settled
    work = _Work(problem, settings, anchors, first=False, for_good=False)
    return work.project(state.q, batch, state.predictive, state.whole, key).short(work.search.rank)


class _Projected(NamedTuple):
    q: Any
    target: Target
    log_ratios: Array | None = None


class _Work:
    """The projections of one update."""

    def __init__(
        self, problem: RowModel, settings: Settings, anchors: Anchors | None, *, first: bool,
        for_good: bool,
    ) -> None:  # fmt: skip
        self.problem, self.settings, self.first, self.for_good = problem, settings, first, for_good
        assert isinstance(settings.search, GaussNewton)
        self.search = settings.search
        told = predictors(problem.rows.compiled)
        assert isinstance(told, Predictors)
        self.told = told
        self.anchors = anchors
        self.found: list[Found] = []
        self.steps = 0
        self.projected: list[_Projected] = []

    def project(
        self, base: Any, batch: RowBatch, known: Any, untouched: bool, key: Array
    ) -> Normal:
        """Project what is known beside a batch times its likelihood; search from `known`."""
        p = self.problem
        remainder = p.remainder if untouched else None
        start, new = self._begin(batch, known, key)
        way = Way(self.search, self.first or bool(new.any()))  # what is new may be far

        def search(told: Told, start: Array = start) -> Found:
            found = climb(told, p.rows, base, batch, remainder, start, way)
            self.steps += found.steps
            return found

        if self.anchors is None:
            found = search(self.told)
        elif not bool(new.any()):
            found = search(Anchored(self.told, self.anchors))
        else:  # whatever explains the rows better
            tried = []
            for own in self.anchors.ways:
                mode = search(Anchored(self.told, self.anchors, new, own))
                place = mode.q.mean
                if self.for_good:  # but for what nothing is told of
                    there = new | ~self.anchors.waiting
                    place = _beside(mode.q, there, jax.random.fold_in(key, 2))
                anchors = self.anchors.joined(place, new, own=own)
                # on the slopes that these entries have from now on
                found = search(Anchored(self.told, anchors), mode.q.mean)
                found = found._replace(left=max(found.left, mode.left))
                tried.append((np.nan_to_num(found.lower_bound, nan=-np.inf), found, anchors))
            _, found, self.anchors = max(tried, key=lambda one: one[0])
        self.found.append(found)
        one = _Projected(found.q, Target(base, batch, remainder))
        q = found.q
        cheap = cost(q, batch, DRAWS) <= DEAR
        if self.anchors is None and isinstance(q, Full) and not p.gaussian and cheap:
            q, ratios = matched(p.rows, q, one.target, jax.random.fold_in(key, 3))
            one = one._replace(q=q, log_ratios=ratios)
        self.projected.append(one)
        return q

    def place(self, base: Any, batch: RowBatch, known: Any, untouched: bool, key: Array) -> None:
        """Find anchors by all rows at hand, where some of these are projected apart."""
        if bool(self._begin(batch, known, key)[1].any()):
            self.project(base, batch, known, untouched, key)
            self.projected.pop()

    def _begin(self, batch: RowBatch, known: Any, key: Array) -> tuple[Array, Array]:
        """Where a search begins, and which entries its rows are the first to depend on."""
        unknown = _unknown(known, self.problem.prior)
        waiting = jnp.zeros_like(unknown) if self.anchors is None else self.anchors.waiting
        start, new = known.mean, unknown | waiting
        if bool(new.any()):
            keys = [key]
            if self.anchors is not None:
                keys += list(jax.random.split(jax.random.fold_in(key, 1), _LOOKS))
            scattered = [self.settings.start(self.problem.prior, k).mean for k in keys]
            there = [jnp.where(unknown, z, start) for z in scattered]
            new = new & _reached(self.told, self.problem.rows, jnp.stack(there), batch)
            start = jnp.where(unknown & new, scattered[0], start)
        return start, new & waiting

    def begun(self, base: Any, found: Found, untouched: bool) -> Any:
        """What is known beside the rows, with what the normal in place of a prior lacks."""
        remainder = self.problem.remainder if untouched else None
        if remainder is None:
            return base
        missing, z = lacking(remainder), found.q.mean
        return base.plus(remaining(remainder, missing, self.problem.rows, z, found.around)[1])


@jit
def _beside(q: Normal, there: Array, key: Array) -> Array:
    """Where a network is linearised: from the mode half of the way to a draw.

    At a mode units that the rows do not tell apart are alike, and have one slope for all; later
    rows, which see the network by its slopes, could not tell them apart either.
    """
    aside = _ASIDE * (q.at(jax.random.normal(key, q.mean.shape, q.mean.dtype)) - q.mean)
    return q.mean + jnp.where(there & jnp.isfinite(aside), aside, 0.0)


@jit
def _unknown(q: Any, prior: Any) -> Array:
    """Entries of which no more is known than the prior."""
    far = jnp.abs(q.mean - prior.mean) * jnp.exp(-prior.log_sd)
    return (far <= 1e-5) & (q.log_sd >= prior.log_sd - 1e-5)


@jit
def _reached(told: Told, rows: Rows, many: Array, batch: RowBatch) -> Array:
    """Entries of z that a batch's predictors change with, at some of many z."""

    def one(z: Array) -> Array:
        found = [
            jnp.any((site.slope != 0) & (site.weights > 0)[:, None, None], axis=(0, 1))
            for site in look(told, rows, z, batch)
        ]
        return jnp.stack(found).any(axis=0)

    return jax.lax.map(one, many).any(axis=0)


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
