"""Adaptation: train the amortizer on unlabeled datasets and on what the strategies rehearse."""

import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np

from pmcl.compile import ahead
from pmcl.continual.judgement import Quality, quality
from pmcl.continual.objectives.objectives import AbstractObjective
from pmcl.continual.pool import Gathered, Pool, gather
from pmcl.continual.problem import SelfConsistency, mean_loss_and_efficiency
from pmcl.continual.strategies.strategy import AbstractStrategy, Occasion, Rehearsal
from pmcl.data.batching import taken
from pmcl.draws.drawn import judge
from pmcl.draws.network import look
from pmcl.networks import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.arguments import listed
from pmcl.runtime.progress import working
from pmcl.training import Optimiser, Simulated, combine
from pmcl.training.run import Callback, Course, Progress, run

STEPS = 25  # steps between two looks at the held-back draws
_HELD_BACK = 64  # draws of each dataset by which progress is judged
_REDUCTIONS = 2  # of the rate, before it stops
_TOGETHER = 16  # datasets whose gradients a device takes at once
_MOST = 2**27  # bytes of datasets that are given to one call
_SAVED = 4  # blocks between two checkpoints
_PROGRESS = 1e-3  # nats per dataset that count as progress
_RIGHT = 0.95  # mean efficiency with which a network is left as it is
_WORSE = 0.02  # by which the mean efficiency may fall before the weights are given back


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


type Stopped = Literal[
    "all steps taken", "no more progress", "nothing to gain", "given back", "by the callback"
]


class AdaptationRecord(NamedTuple):
    """What happened in one adaptation.

    Attributes
    ----------
    losses : array of shape (steps,)
        Of the objective, with the strategies' penalties; NaN where a step was skipped.
    held_back : array of shape (blocks,)
        The objective at draws that were never trained on, after every block of steps.
    efficiency : array of shape (blocks,)
        Effective sample size of these draws over their number, mean over datasets by their weight;
        NaN where the objective's draws are not the network's.
    steps : int
        Steps taken.
    stopped : str
        Why no more; "given back": the weights are those from before the task, since the network's
        own draws had become less efficient.
    skipped : int
        Steps that were not finite.
    datasets, rehearsed : int
        Of the task, and of the memory.
    excluded : tuple of str
        Datasets without a finite density.
    untrusted : tuple of str
        Datasets whose labels a teacher did not trust.
    seconds : float
    """

    losses: np.ndarray
    held_back: np.ndarray
    efficiency: np.ndarray
    steps: int
    stopped: Stopped
    skipped: int
    datasets: int
    rehearsed: int
    excluded: tuple[str, ...]
    untrusted: tuple[str, ...]
    seconds: float


class Adapted(NamedTuple):
    """The new weights, what happened, and the strategies' states after the task.

    `before` and `after`: how good the network was, and is, at the task's datasets. `worse`: those
    because of which the weights before it were given back.
    """

    amortizer: Amortizer
    record: AdaptationRecord
    states: tuple[Any, ...]
    before: Quality
    after: Quality
    worse: tuple[str, ...] = ()


def adapt(
    now: Occasion,
    *,
    strategies: Sequence[AbstractStrategy],
    states: Sequence[Any],
    objective: AbstractObjective,
    settings: AdaptationSettings,
    checkpoint: Path | None = None,
    callback: Callback | None = None,
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
    checkpoint : Path, optional
        Written every few blocks of steps; training goes on from it where it exists.
    callback : callable, optional
        Told of every block.
    progressbar : bool
    """
    begin = time.perf_counter()
    with working(f"Looking at {now.name}", enabled=progressbar):
        drawn = look(now.amortizer, now.density, now.task.batch(), seed=now.seed)
    finite = np.isfinite(drawn.log_prior + drawn.log_likelihood).mean(axis=1)
    excluded = tuple(n for n, f in zip(now.task.names, finite, strict=True) if f == 0)
    _warn_of(excluded, len(now.task))
    kept = now.task.select(np.flatnonzero(finite > 0))
    before = Quality.of(now.task, drawn)
    efficiency = float(before.efficiency[finite > 0].mean())
    right = settings.patience is not None and efficiency >= _RIGHT
    if right:
        settings = replace(settings, steps=0)
        if progressbar:
            print(  # noqa: T201  (what was done is shown, as PyMC shows its samplers)
                f"{now.name}: no step is taken. The network's own draws have an efficiency of "
                f"{efficiency:.2f} there, which adaptation would hardly raise."
            )
    stored, states = states, [s.begin(t, now) for s, t in zip(strategies, states, strict=True)]
    plans = [s.rehearsal(t) for s, t in zip(strategies, states, strict=True)]
    plan = None if right else next((p for p in plans if p is not None), None)
    gathered = gather(now, finite > 0, plan, objective, progressbar=progressbar)
    problem = _problem(now, plan, strategies, states, objective, settings)
    amortizer, found = _train(
        now, problem, gathered, settings, stored, checkpoint, callback, progressbar=progressbar
    )
    trace, worse = found.state.trace, tuple[str, ...]()
    after = before if right else quality(amortizer, now.density, now.task, seed=now.seed)
    change = np.nan_to_num(after.efficiency) - np.nan_to_num(before.efficiency)
    judged = settings.patience is not None and not right
    back = judged and _fell(now, amortizer, gathered.pool, change)
    if back:
        amortizer, after, trace = now.amortizer, before, problem.trace(now.weights)
        worse = tuple(n for n, c in zip(now.task.names, change, strict=True) if c < -_WORSE)
    then = replace(now, task=kept, amortizer=amortizer)
    traces = {type(s): t for s, t in zip(problem.strategies, trace, strict=True)}
    blocks = int(found.block)
    losses = found.losses.ravel()[: min(blocks * STEPS, settings.steps)]
    record = AdaptationRecord(
        losses=losses,
        held_back=found.judged[:blocks, 0],
        efficiency=found.judged[:blocks, 1],
        steps=len(losses),
        stopped=_stopped(right, back, bool(found.done), len(losses) < settings.steps),
        skipped=int(found.state.skipped),
        datasets=len(kept),
        rehearsed=gathered.stored,
        excluded=excluded,
        untrusted=gathered.untrusted,
        seconds=time.perf_counter() - begin,
    )
    ended = [s.end(t, traces.get(type(s)), then) for s, t in zip(strategies, states, strict=True)]
    return Adapted(amortizer, record, tuple(ended), before, after, worse)


def _fell(now: Occasion, adapted: Amortizer, pool: Pool, change: np.ndarray) -> bool:
    """Whether the mean efficiency of own draws fell, of stored datasets and of the task's."""
    stored = np.arange(len(now.task), len(pool.weights))
    if len(stored):
        batch = taken(pool.batch, stored)
        before, after = (
            np.nan_to_num(judge(look(a, now.density, batch, seed=now.seed)).efficiency)
            for a in (now.amortizer, adapted)
        )
        change = np.concatenate([change, after - before])
    return float(np.average(change, weights=pool.weights)) < -_WORSE


def _stopped(right: bool, back: bool, done: bool, early: bool) -> Stopped:
    if right or back:
        return "nothing to gain" if right else "given back"
    if early and not done:
        return "by the callback"
    return "no more progress" if done else "all steps taken"


def _problem(
    now: Occasion,
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
        jax.tree.map(lambda x: np.asarray(x, np.float32) if isinstance(x, float) else x, s)
        for s, _ in active
    ]
    return SelfConsistency(
        objective,
        now.density,
        tuple(numbers),
        tuple(t for _, t in active),
        np.asarray(0.0 if plan is None else plan.simulation_weight, np.float32),  # type: ignore[arg-type]
        0 if plan is None else plan.simulations,
        min(devices.together(_TOGETHER) * devices.number(), settings.batch_size),
    )


def _train(
    now: Occasion,
    problem: SelfConsistency,
    gathered: Gathered,
    settings: AdaptationSettings,
    stored: Sequence[Any],
    checkpoint: Path | None,
    callback: Callback | None,
    *,
    progressbar: bool,
) -> tuple[Amortizer, Progress]:
    """Take the steps, judged by draws that are held back from training."""
    judged = replace(problem.objective, draws=max(problem.objective.draws, _HELD_BACK))
    pool, judged_on = gathered.pool.split()
    steps, warmup = settings.steps, min(settings.warmup, settings.steps // 2)
    optimiser = Optimiser.of(settings.learning_rate, steps, warmup=warmup, clip=settings.clip)
    course = Course(
        f"Adapting to {now.name}",
        now.seed,
        steps,
        STEPS,
        settings.patience,
        least=_PROGRESS,
        reductions=_REDUCTIONS,
        saved=_SAVED,
        measures=2,
        checkpoint=checkpoint,
        callback=callback,
        label={} if checkpoint is None else _label(now, problem, pool, settings, stored),
    )

    def judge(found: Amortizer) -> tuple[float, float]:
        density, seed = problem.density, now.seed
        return mean_loss_and_efficiency(judged, found, density, judged_on, seed=seed)

    hosts = partial(_hosts, now, problem, pool, settings.batch_size)
    found = run(problem, optimiser, now.amortizer, course, hosts, judge, progressbar=progressbar)
    keep_best = settings.restore_best or settings.patience is not None
    best = keep_best and np.isfinite(found.best_loss)
    return combine(found.best if best else found.state.params, now.amortizer), found


def _label(
    now: Occasion,
    problem: SelfConsistency,
    pool: Pool,
    settings: AdaptationSettings,
    stored: Sequence[Any],
) -> dict:
    """What tells this adaptation from others: options, data, weights, and what protects those."""

    def sum_of(tree: Any) -> int:
        found = 0
        for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)):
            found = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), found)
        return found

    return {
        **asdict(settings),
        "task": now.name,
        "seed": now.seed,
        "objective": repr(problem.objective),
        "strategies": [type(s).__name__ for s in problem.strategies],
        "protection": sum_of((problem.strategies, stored)),
        "simulations": [problem.simulations, float(problem.simulation_weight)],
        "data": sum_of(pool.batch),
        "weighting": sum_of(pool.weights),
        "weights": sum_of(now.weights),
    }


def _hosts(
    now: Occasion, problem: SelfConsistency, pool: Pool, batch: int, which: range
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """What the steps of each block work on, in parts whose size bounds the memory."""
    batch = -(-batch // problem.together) * problem.together
    each = sum(x.nbytes for x in jax.tree.leaves(pool)) // len(pool.weights)
    size = next((s for s in (STEPS, 5) if s * batch * each <= _MOST), 1)

    def simulated(block: int, begin: int) -> Simulated | None:
        if not problem.simulations:
            return None
        seed = np.random.SeedSequence([now.seed, block, begin]).generate_state(1)[0]
        made = now.rehearsed(size * problem.simulations, int(seed))
        return jax.tree.map(lambda x: x.reshape(size, problem.simulations, *x.shape[1:]), made)

    def parts(block: int) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng([now.seed, block, 2])
        for begin in range(0, STEPS, size):
            some, number = pool.steps(size, batch, rng)
            yield {"pool": some, "number": number, "simulated": simulated(block, begin)}

    return ahead((size, list(parts(block))) for block in which)


def _warn_of(excluded: Sequence[str], number: int) -> None:
    if excluded:
        warnings.warn(
            f"{len(excluded)} of {number} datasets are left out of the adaptation: their log "
            f"density is not finite at any draw of the posterior: {listed(excluded, 10)}. Look at "
            "their values, and at the likelihood's support.",
            stacklevel=6,
        )
    if len(excluded) == number:
        raise ValueError(
            f"adapt: the log density is not finite for any of the {number} datasets; expected "
            "at least one with a finite density."
        )
