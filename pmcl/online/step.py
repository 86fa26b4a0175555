"""Online variational inference: `init` and `update`, pure functions of a state."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online import residual
from pmcl.online.beginning import begin
from pmcl.online.families.update import recall_normal, update_normal
from pmcl.online.gaussian import Factor, MeanField
from pmcl.online.looking import candidates, foretold, highest, weigh
from pmcl.online.memory import ResidualMemory, Stored
from pmcl.online.one_point import update_point
from pmcl.online.rows import RowBatch
from pmcl.online.search import exact as exact_
from pmcl.online.search.bound import Target
from pmcl.online.search.climb import climb
from pmcl.online.search.search import Way
from pmcl.online.state import Info, RowModel, Settings, State, as_batch, drifted

_LEAST = 1e-3  # of the prior's precision: what is left where more than there is was divided out


def update(
    problem: RowModel,
    state: State,
    arrived: Stored,
    settings: Settings,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> tuple[State, Info]:
    """Return what is known after a batch, which came at one time.

    References
    ----------
    Nguyen et al. (2018), Algorithm 1; with a residual memory Kurle et al. (2020), Algorithm 1; with
    a power of the likelihood and a strength Loo et al. (2021), section 2, with beta = 1 / power and
    lambda = strength.
    """
    rows, rule = problem.rows, settings.memory
    time = float(arrived.times[0])
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), dtype=np.uint32))
    moved = state.q
    if state.updates:
        moved = drifted(problem, settings.drift, state.q, time - state.time)
    if settings.method is not None:
        return update_point(problem, state, arrived, settings, moved, key, advance)
    if settings.family != "mean_field":
        return update_normal(problem, state, arrived, settings, moved, key)
    keys = jax.random.split(key, 4)
    everything = state.memory.add(rows, arrived)
    untouched = state.whole
    known = state.predictive if state.seen else None
    work = _Work(problem, settings, advance, first=not state.updates)

    def weighted(part: Stored) -> RowBatch:
        return as_batch(rows, part, settings.weights(time - part.times))

    clamped = 0
    kept = np.zeros(len(everything), bool)
    if rule is None:
        q = predictive = work.project(
            moved, weighted(everything), keys[0], None if untouched else moved, untouched
        )
    elif not isinstance(rule, ResidualMemory):
        kept = rule.keep(candidates(rows, everything, state), rng)
        q = moved
        if not kept.all():
            out = weighted(everything.take(rows, ~kept))
            q = work.project(moved, out, keys[0], known if untouched else moved, untouched)
            untouched = False
        part = weighted(everything.take(rows, kept))
        predictive = work.project(q, part, keys[1], known if untouched else q, untouched)
    else:
        batch = weighted(everything)
        predictive = work.project(moved, batch, keys[0], known, untouched)
        found = work.residuals(predictive, batch, rule, keys[1])
        n = len(everything)
        weights = np.asarray(batch.weights)
        begun = moved.factor
        if untouched and problem.remainder is not None:
            begun = begun.times(
                residual.of_prior(rows, predictive, problem.prior, keys[3], rule.draws)
            )
        factor = residual.debiased(found.factor, predictive, begun, batch.weights)
        power = weights[:n] ** (2 if rule.score == "misfit" else 1)
        score = np.asarray(getattr(found, rule.score))[:n] * power
        kept = rule.keep(candidates(rows, everything, state, score), rng)
        q = moved
        if not kept.all():
            least = _LEAST * problem.prior.factor.precision
            q, clamped = _divided(begun, predictive, factor, weights, kept, len(arrived), least)
    memory = everything.take(rows, kept)
    weighed = [weigh(problem, *one, keys[2]) for one in work.projected]
    if rule is not None:
        elapsed = time - state.time
        weighed.append(
            foretold(problem, settings, state, predictive, weighted(arrived), elapsed, keys[2])
        )
    info = Info(
        len(arrived), len(memory), problem.gaussian, work.steps, work.skipped, work.lower_bound,
        clamped, highest([w.khat for w in weighed]), weighed[-1].log_evidence, left=work.left,
    )  # fmt: skip
    new = state._replace(
        q=q, predictive=predictive, memory=memory, time=time, seen=state.seen + len(arrived),
        updates=state.updates + 1,
    )  # fmt: skip
    return new, info


def recalled(
    problem: RowModel, state: State, settings: Settings, part: np.ndarray, key: Array
) -> MeanField:
    """Project the normal times the likelihood of some of the stored rows, to predict one task.

    Parameters
    ----------
    problem : RowModel
    state : State
    settings : Settings
    part : ndarray of bool of shape (row,)
        Of the memory.
    key : Array
    """
    if settings.method is not None:
        return state.predictive
    if not part.any():
        return state.q
    chosen = state.memory.take(problem.rows, part)
    batch = as_batch(problem.rows, chosen, settings.weights(state.time - chosen.times))
    if settings.family != "mean_field":
        return recall_normal(problem, state, settings, batch, key)
    work = _Work(problem, settings, lambda n, note: None)
    return work.project(state.q, batch, key, state.predictive, state.whole)


class _Work:
    """The projections of one update, and what is to be said of them."""

    def __init__(
        self,
        problem: RowModel,
        settings: Settings,
        advance: Callable[[int, str], None],
        *,
        first: bool = False,
    ) -> None:
        self.problem, self.settings, self.advance = problem, settings, advance
        self.first = first
        self.steps = self.skipped = 0
        self.lower_bound = self.left = np.nan
        self.projected: list[tuple[MeanField, Target]] = []

    def project(
        self,
        prior: MeanField,
        batch: RowBatch,
        key: Array,
        start: MeanField | None,
        untouched: bool,
    ) -> MeanField:
        """Project a normal times the likelihood of a batch.

        `start` is where a search begins, if one is needed; `untouched` says that `prior` is still
        the model's prior, or the normal in its place.
        """
        p, settings = self.problem, self.settings
        remainder = p.remainder if untouched else None
        target = Target(prior, batch, remainder, settings.more(prior, p.prior))
        if p.gaussian:
            q = exact_.exact(p.rows, target)
        else:
            start_key, key = jax.random.split(key)
            begun = begin(p, p.rows, prior, batch, settings, start, start_key, self.advance)
            way = Way(settings.search, self.first, self.advance, p.enough)
            found = climb(p.rows, begun.q, target, way, key, narrow=begun.narrow)
            q = found.q
            self.steps += begun.steps + found.steps
            self.skipped += found.skipped
            self.left = float(np.fmax(self.left, found.left))
            self.lower_bound = found.height
        self.projected.append((q, target))
        return q

    def residuals(
        self, q: MeanField, batch: RowBatch, rule: ResidualMemory, key: Array
    ) -> residual.Residuals:
        if self.problem.gaussian:
            return residual.exact_residuals(self.problem.rows, q, batch.data)
        return residual.residuals(self.problem.rows, q, batch.data, key, rule.draws)


def _divided(
    begun: Factor,
    everything: MeanField,
    factor: Factor,
    weights: np.ndarray,
    kept: np.ndarray,
    arrived: int,
    least: Array,
) -> tuple[MeanField, int]:
    """Return the normal of all rows but the kept ones, and the number of entries that were clamped.

    By eq. 9a or 9b of Kurle et al. (2020): of two sums of estimates, the one with fewer.
    """
    there = np.zeros(len(weights), bool)
    there[: len(kept)] = kept
    if arrived <= kept.sum():
        out = jnp.asarray(np.where(there, 0.0, weights), weights.dtype)
        whole = begun.times(residual.product(factor, out))
    else:
        inside = jnp.asarray(np.where(there, weights, 0.0), weights.dtype)
        whole = everything.factor.times(residual.product(factor, inside), -1.0)
    # Estimates of many factors may add up to more than there is: then nothing is known but a
    # little, around where it was.
    short = whole.precision < least
    precision = jnp.where(short, least, whole.precision)
    mean = jnp.where(short, everything.mean, whole.shift / precision)
    return MeanField(mean, -jnp.log(precision) / 2), int(short.sum())
