"""Adaptation: train the amortizer on unlabeled datasets and on what the strategies rehearse."""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.batching import chunks
from pmcl.compile import Density, Simulator, jit
from pmcl.continual.objectives import AbstractObjective, Example
from pmcl.continual.pool import Gathered, Pool, gather
from pmcl.continual.strategies import AbstractStrategy, Occasion, Rehearsal
from pmcl.data import Batch, Task
from pmcl.networks import Amortizer
from pmcl.progress import progress_bar
from pmcl.training import (
    Optimiser,
    Problem,
    blocks,
    combine,
    negative_log_likelihood,
    run_block,
    simulation_hosts,
    start,
)

_STEEP = 100.0  # gradient per draw, in standardised units, above which a dataset is held back
_SCREEN = 64  # datasets looked at together when non-finite densities are searched for
_BLOCK = 25  # steps between two looks at the held-back draws
_HELD_BACK = 64  # draws of each dataset by which progress is judged
_SLOWER = 0.3  # factor of the rate where there is no more progress
_REDUCTIONS = 2  # of the rate, before it stops
_PROGRESS = 1e-3  # nats per dataset that count as progress


@dataclass(frozen=True)
class AdaptationSettings:
    """Hyper-parameters of one adaptation; the arguments of `adapt` of the same names."""

    steps: int
    learning_rate: float
    batch_size: int
    clip: float
    warmup: int
    patience: int | None = None
    restore_best: bool = False


class AdaptationRecord(NamedTuple):
    """What happened in one adaptation.

    Attributes
    ----------
    losses : array of shape (steps,)
        Of the objective, with the strategies' penalties; NaN where a step was skipped.
    held_back : array of shape (blocks,)
        The objective at draws that were never trained on, after every block of steps.
    steps : int
        Steps taken.
    stopped : str
        Why no more.
    skipped : int
        Steps that were not finite.
    datasets, rehearsed, pseudo : int
        Of the task, of the memory, and made from both.
    excluded : tuple of str
        Datasets without a finite density.
    untrusted : tuple of str
        Datasets whose labels a teacher did not trust.
    seconds : float
    """

    losses: np.ndarray
    held_back: np.ndarray
    steps: int
    stopped: Literal["all steps taken", "no more progress"]
    skipped: int
    datasets: int
    rehearsed: int
    pseudo: int
    excluded: tuple[str, ...]
    untrusted: tuple[str, ...]
    seconds: float


class Adapted(NamedTuple):
    """The new weights, what happened, and the strategies' states after the task."""

    amortizer: Amortizer
    record: AdaptationRecord
    states: tuple[Any, ...]


class SelfConsistency(Problem):
    """Weighted mean of an objective over a pool of datasets, and the strategies' penalties.

    Attributes
    ----------
    strategies, states : tuples
        Those that add a penalty or follow the steps.
    batch_size : int
        Datasets a step: all of them where they are not more, else a draw by weight.
    simulations : int
        Fresh simulations of each step.
    simulation_weight : Array
        Weight of their negative log likelihood.
    """

    objective: AbstractObjective
    density: Density
    pool: Pool
    strategies: tuple[AbstractStrategy, ...]
    states: tuple[Any, ...]
    simulator: Simulator
    simulation_weight: Array
    batch_size: int = eqx.field(static=True)
    simulations: int = eqx.field(static=True)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Array]) -> Array:
        pool = self.pool
        key, simulation = jax.random.split(key)
        number = pool.weights.shape[0]
        if number > self.batch_size:
            key, choice = jax.random.split(key)
            share = pool.weights / jnp.sum(pool.weights)
            pool = pool.take(jax.random.choice(choice, number, (self.batch_size,), p=share))
            pool = pool._replace(weights=jnp.ones(self.batch_size, jnp.float32))
        loss = mean_loss(self.objective, amortizer, self.density, pool, key)
        if self.simulations:
            keys = jax.random.split(simulation, self.simulations)
            z, data = jax.vmap(self.simulator.draw)(keys, host)
            loss += self.simulation_weight * negative_log_likelihood(amortizer, z, data)
        return loss

    def penalty(self, params: Amortizer) -> Array | None:
        terms = [
            s.penalty(state, params) for s, state in zip(self.strategies, self.states, strict=True)
        ]
        there = [t for t in terms if t is not None]
        return sum(there[1:], start=there[0]) if there else None

    def trace(self, params: Amortizer) -> tuple[Any, ...]:
        pairs = zip(self.strategies, self.states, strict=True)
        return tuple(s.trace(state, params) for s, state in pairs)

    def follow(
        self, trace: tuple[Any, ...], gradient: Amortizer, change: Amortizer
    ) -> tuple[Any, ...]:
        pairs = zip(self.strategies, trace, strict=True)
        return tuple(s.follow(t, gradient, change) for s, t in pairs)


def mean_loss(
    objective: AbstractObjective, amortizer: Amortizer, density: Density, pool: Pool, key: Array
) -> Array:
    """Weighted mean of an objective over the datasets of a pool (shape ())."""
    keys = jax.random.split(key, pool.weights.shape[0])
    mask_axis = None if pool.batch.mask is None else 0
    labels_axis = None if pool.labels is None else 0
    found = jax.vmap(
        lambda data, mask, labels, k: objective(amortizer, density, Example(data, mask, labels), k),
        in_axes=(0, mask_axis, labels_axis, 0),
    )(pool.batch.values, pool.batch.mask, pool.labels, keys)
    weights = jnp.where(found.finite > 0, pool.weights, 0.0)
    loss = _shrink(jnp.where(weights > 0, found.loss, 0.0), jnp.asarray(found.scale))
    return jnp.sum(weights * loss) / jnp.maximum(jnp.sum(weights), 1e-12)


_held_back = jit(mean_loss)


def _shrink(loss: Array, scale: Array) -> Array:
    """Keep the value of each dataset's loss; divide its gradient by its scale beyond a limit.

    Where the network extrapolates, log densities of -1e20 occur, and one dataset would own the
    gradient of all, or overflow it. A constant factor leaves each dataset's optimum where it is.
    """
    factor = jax.lax.stop_gradient(1.0 / jnp.maximum(1.0, scale / _STEEP))
    still = jax.lax.stop_gradient(loss)
    return still + factor * (loss - still)


def adapt(
    now: Occasion,
    *,
    strategies: Sequence[AbstractStrategy],
    states: Sequence[Any],
    objective: AbstractObjective,
    settings: AdaptationSettings,
    progressbar: bool,
) -> Adapted:
    """Adapt a network to a task; datasets whose density is nowhere finite are left out.

    Parameters
    ----------
    now : Occasion
        The task, and the network before it.
    strategies : sequence of AbstractStrategy
    states : sequence
        Of each strategy, as after the task before; None at first.
    objective : AbstractObjective
    settings : AdaptationSettings
    progressbar : bool
    """
    begin = time.perf_counter()
    finite = finite_fractions(now.amortizer, now.density, now.task, seed=now.seed)
    excluded = tuple(n for n, f in zip(now.task.names, finite, strict=True) if f == 0)
    _warn_of(excluded, len(now.task))
    kept = now.task.select(np.flatnonzero(finite > 0))
    states = [s.begin(t, now) for s, t in zip(strategies, states, strict=True)]
    plans = [s.rehearsal(t) for s, t in zip(strategies, states, strict=True)]
    plan = next((p for p in plans if p is not None), None)
    gathered = gather(now, finite > 0, plan, objective, progressbar=progressbar)
    problem = _problem(now, gathered, plan, strategies, states, objective, settings)
    amortizer, trace, found = _train(now, problem, gathered, settings, progressbar)
    after = replace(now, task=kept, amortizer=amortizer)
    traces = {type(s): t for s, t in zip(problem.strategies, trace, strict=True)}
    record = AdaptationRecord(
        losses=found.losses,
        held_back=found.held_back,
        steps=len(found.losses),
        stopped=found.stopped,
        skipped=found.skipped,
        datasets=len(kept),
        rehearsed=gathered.stored,
        pseudo=gathered.pseudo,
        excluded=excluded,
        untrusted=gathered.untrusted,
        seconds=time.perf_counter() - begin,
    )
    ended = [s.end(t, traces.get(type(s)), after) for s, t in zip(strategies, states, strict=True)]
    return Adapted(amortizer, record, tuple(ended))


def _problem(
    now: Occasion,
    gathered: Gathered,
    plan: Rehearsal | None,
    strategies: Sequence[AbstractStrategy],
    states: Sequence[Any],
    objective: AbstractObjective,
    settings: AdaptationSettings,
) -> SelfConsistency:
    # Only what is computed with goes into the compiled step; a float there is an argument, so that
    # another strength compiles nothing.
    active = [
        (s, t)
        for s, t in zip(strategies, states, strict=True)
        if type(s).penalty is not AbstractStrategy.penalty
        or type(s).trace is not AbstractStrategy.trace
    ]
    numbers = [
        jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) if isinstance(x, float) else x, s)
        for s, _ in active
    ]
    return SelfConsistency(
        objective,
        now.density,
        gathered.pool,
        tuple(numbers),
        tuple(t for _, t in active),
        now.simulator,
        jnp.asarray(0.0 if plan is None else plan.simulation_weight, jnp.float32),
        settings.batch_size,
        0 if plan is None else plan.simulations,
    )


class _Trained(NamedTuple):
    losses: np.ndarray
    held_back: np.ndarray
    stopped: Literal["all steps taken", "no more progress"]
    skipped: int


def _train(
    now: Occasion,
    problem: SelfConsistency,
    gathered: Gathered,
    settings: AdaptationSettings,
    progressbar: bool,
) -> tuple[Amortizer, Any, _Trained]:
    """Take the steps; slow down, then stop, where held-back draws show no more progress."""
    optimiser = Optimiser(
        jnp.asarray(settings.learning_rate, jnp.float32),
        steps=settings.steps,
        warmup=min(settings.warmup, settings.steps // 2),
        clip=settings.clip,
    )
    number, size = blocks(settings.steps, longest=_BLOCK)
    key = jax.random.key(now.seed)
    judge_key = jax.random.fold_in(key, 1)
    judged = replace(problem.objective, draws=max(problem.objective.draws, _HELD_BACK))
    training, judged_on = _split(problem, gathered.judged)
    state = start(now.amortizer, optimiser, key, training)
    losses, held_back = [], [np.inf]
    best, best_loss, waited, reductions = state.params, np.inf, 0, 0
    stopped: Literal["all steps taken", "no more progress"] = "all steps taken"
    hosts = _hosts(now, training, size, number)
    description = f"Adapting to {now.name}"
    with progress_bar(description, settings.steps, unit="steps", enabled=progressbar) as bar:
        for block, host in zip(range(number), hosts, strict=False):
            state, block_losses = run_block(training, optimiser, now.amortizer, state, host, size)
            taken = min(size, settings.steps - size * block)
            losses.append(np.asarray(block_losses)[:taken])
            current = combine(state.params, now.amortizer)
            loss = float(_held_back(judged, current, problem.density, judged_on, judge_key))
            held_back.append(loss)
            bar.advance(taken, f"loss {loss:.4g} on held-back draws")
            better = loss < best_loss - _PROGRESS
            waited = 0 if better or not np.isfinite(best_loss) else waited + 1
            if loss < best_loss:
                best, best_loss = state.params, loss
            if settings.patience is not None and waited >= settings.patience:
                if reductions == _REDUCTIONS:
                    stopped = "no more progress"
                    break
                optimiser = eqx.tree_at(lambda o: o.rate, optimiser, optimiser.rate * _SLOWER)
                state, waited, reductions = state._replace(params=best), 0, reductions + 1
    keep_best = settings.restore_best or settings.patience is not None
    weights = best if keep_best and np.isfinite(best_loss) else state.params
    found = _Trained(np.concatenate(losses), np.asarray(held_back[1:]), stopped, int(state.skipped))
    return combine(weights, now.amortizer), state.trace, found


def _split(problem: SelfConsistency, judged: Pool) -> tuple[SelfConsistency, Pool]:
    """Hold a quarter of a teacher's labels back; the other objectives make draws of their own."""
    labels = problem.pool.labels
    if labels is None or judged.labels is None:
        return problem, judged
    cut = labels.shape[1] - labels.shape[1] // 4
    pool = problem.pool._replace(labels=labels[:, :cut])
    held = judged._replace(labels=judged.labels[:, cut:])
    return eqx.tree_at(lambda p: p.pool, problem, pool, is_leaf=lambda x: x is None), held


def _hosts(
    now: Occasion, problem: SelfConsistency, size: int, number: int
) -> Iterator[dict[str, Array]]:
    if not problem.simulations:
        return iter([{}] * number)
    return simulation_hosts(now.simulator, problem.simulations, size, range(number), now.seed)


def _warn_of(excluded: Sequence[str], number: int) -> None:
    if excluded:
        shown = ", ".join(map(repr, excluded[:10])) + (", ..." if len(excluded) > 10 else "")
        warnings.warn(
            f"{len(excluded)} of {number} datasets are left out of the adaptation: their log "
            f"density is not finite at any draw of the posterior: {shown}. Look at their values, "
            "and at the likelihood's support.",
            stacklevel=4,
        )
    if len(excluded) == number:
        raise ValueError(
            f"adapt: the log density is not finite for any of the {number} datasets; expected "
            "at least one with a finite density."
        )


@jit
def _finite(amortizer: Amortizer, density: Density, batch: Batch, key: Array, draws: int) -> Array:
    def one(data: dict[str, Array], mask: Array | None, key: Array) -> Array:
        context = amortizer.context(data, mask)
        eps = jax.random.normal(key, (draws, amortizer.dim), jnp.float32)
        z, _ = jax.vmap(amortizer.transform, in_axes=(0, None))(eps, context)
        log_p = jax.vmap(lambda u: density(u, data, mask))(z.astype(jnp.float64))
        return jnp.mean(jnp.isfinite(log_p))

    keys = jax.random.split(key, len(jax.tree.leaves(batch.values)[0]))
    return jax.vmap(one, in_axes=(0, None if batch.mask is None else 0, 0))(
        batch.values, batch.mask, keys
    )


def finite_fractions(
    amortizer: Amortizer, density: Density, task: Task, *, seed: int, draws: int = 64
) -> np.ndarray:
    """Fraction of amortized draws with a finite log density, for each dataset."""
    key = jax.random.key(seed)
    return np.concatenate(
        [
            np.asarray(_finite(amortizer, density, chunk, jax.random.fold_in(key, i), draws))[:n]
            for i, (chunk, n) in enumerate(chunks(task, _SCREEN))
        ]
    )
