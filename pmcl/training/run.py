"""A run of training: blocks of steps, the best weights, patience, checkpoints."""

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from pmcl.networks import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.progress import progress_bar
from pmcl.training.checkpoint import read_checkpoint, write_checkpoint
from pmcl.training.loop import LoopState, Optimiser, Problem, combine, run_block, start

_SLOWER = 0.3  # factor of the rate where there is no more progress
_LONG = 600.0  # seconds of training that are said before


class Moment(NamedTuple):
    """What a callback is told after a block of steps, beside the step and the held-back loss.

    Attributes
    ----------
    description : str
        What is being trained.
    losses : array of shape (step,)
        Of every step so far.
    held_back : array of shape (block,)
        Of what is held back, after every block so far.
    """

    description: str
    losses: np.ndarray
    held_back: np.ndarray


# called with the step, the held-back loss and a Moment; ends the training where it returns True
type Callback = Callable[[int, float, Moment], bool | None]


class Course(NamedTuple):
    """How a run goes.

    Attributes
    ----------
    description : str
        What the progress says.
    seed : int
    steps : int
        Most steps.
    block : int
        Steps between two judgements: always as many, of which the last may be idle, so that they
        are compiled once.
    patience : int, optional
        Judgements without progress after which the rate falls, or the run ends; None: it does not.
    least : float
        Fall of the judged loss that counts as progress.
    reductions : int
        How often the rate falls before the run ends.
    saved : int
        Blocks between two checkpoints.
    measures : int
        How many numbers a judgement has.
    checkpoint : Path, optional
        Written after every few blocks and at the end; training goes on from it where it exists.
    callback : callable, optional
        Told of every block; training ends where it returns True.
    label : dict
        What tells the run from others.
    """

    description: str
    seed: int
    steps: int
    block: int
    patience: int | None
    least: float = 0.0
    reductions: int = 0
    saved: int = 1
    measures: int = 1
    checkpoint: Path | None = None
    callback: Callback | None = None
    label: dict[str, Any] = {}  # noqa: RUF012 (never written to)


class Progress(NamedTuple):
    """Where a run stands: a pytree of arrays, all that a checkpoint holds.

    Attributes
    ----------
    state : LoopState
    best : Amortizer
        Weights of the lowest judged loss, `best_loss`, after the block `best_block` (-1: none).
    waited, reductions : Array of int
        Judgements without progress since the last, or since the rate fell; how often it fell.
    block : Array of int
        Blocks done.
    done : Array of bool
        Whether patience ended the run.
    losses : Array of shape (block, step)
    judged : Array of shape (block, measure)
        The judged loss, and what else is measured.
    """

    state: LoopState
    best: Amortizer
    best_loss: np.ndarray
    best_block: np.ndarray
    waited: np.ndarray
    reductions: np.ndarray
    block: np.ndarray
    done: np.ndarray
    losses: np.ndarray
    judged: np.ndarray


def run(
    problem: Problem,
    optimiser: Optimiser,
    amortizer: Amortizer,
    course: Course,
    hosts: Callable[[range], Iterator[tuple[int, list[dict[str, Any]]]]],
    judge: Callable[[Amortizer], tuple[float, ...]],
    *,
    progressbar: bool,
) -> Progress:
    """Train, block by block; slow down, then stop, where judgements show no more progress.

    Parameters
    ----------
    problem, optimiser, amortizer
    course : Course
    hosts : callable
        Gives for each of some blocks what its steps work on, in parts of so many steps.
    judge : callable
        Loss of an amortizer on what is held back from training, and whatever else is measured.
    progressbar : bool
    """
    size, path = course.block, course.checkpoint
    number = -(-course.steps // size)
    initial = start(amortizer, optimiser, course.seed, problem)
    now = Progress(
        state=initial,
        best=initial.params,
        best_loss=np.asarray(np.inf),
        best_block=np.asarray(-1),
        waited=np.asarray(0),
        reductions=np.asarray(0),
        block=np.asarray(0),
        done=np.asarray(False),
        losses=np.full((number, size), np.nan, np.float32),
        judged=np.full((number, course.measures), np.nan),
    )
    if path is not None and path.exists():
        now = read_checkpoint(path, course.label, now)
    devices.check_alike("the block of the checkpoint", int(now.block))
    first = int(now.block)
    left = range(first, first if now.done else number)
    with progress_bar(course.description, course.steps, enabled=progressbar) as bar:
        bar.advance(min(first * size, course.steps))
        for block, (steps, parts) in zip(left, hosts(left), strict=False):
            rate = np.asarray(optimiser.rate * _SLOWER ** int(now.reductions), np.float32)
            paced = eqx.tree_at(lambda o: o.rate, optimiser, rate)
            state, losses = now.state, []
            if block == 0:
                _foretell(problem, paced, amortizer, state, parts[0], steps, course)
            for part in parts:
                state, new = run_block(problem, paced, amortizer, state, part, steps)
                losses.append(np.asarray(new))
            judged = judge(combine(state.params, amortizer))
            now.losses[block], now.judged[block] = np.concatenate(losses), judged
            now = _looked(now, state, judged[0], course)
            bar.advance(min(size, course.steps - size * block), f"loss {judged[0]:.4g}")
            last = bool(now.done) or block == number - 1
            if path is not None and (last or block % course.saved == course.saved - 1):
                write_checkpoint(path, course.label, now)
            if now.done or _told(now, course):
                break
    return now


def _foretell(
    problem: Problem,
    optimiser: Optimiser,
    amortizer: Amortizer,
    state: LoopState,
    part: dict[str, Any],
    size: int,
    course: Course,
) -> None:
    """Measure one step, and say so before training where all of them will take long."""
    last = state._replace(step=optimiser.steps - 1)  # the steps after it rest
    for _ in range(2):  # the first one is compiled
        begin = time.perf_counter()
        jax.block_until_ready(run_block(problem, optimiser, amortizer, last, part, size))
    each = time.perf_counter() - begin
    if each * course.steps > _LONG:
        warnings.warn(
            f"{course.description}: a step takes {each:.2g} s, so that {course.steps} steps take "
            f"up to {each * course.steps / 60:.0f} minutes ({amortizer.dim} "
            "parameters). A smaller `batch_size`, fewer `steps` or shorter datasets take less; a "
            "`checkpoint` keeps what was done; `pmcl.refine` needs no training.",
            stacklevel=4,
        )


def _told(now: Progress, course: Course) -> bool:
    """Tell the callback where a run stands; return whether it wants an end."""
    if course.callback is None:
        return False
    blocks = int(now.block)
    steps = min(blocks * course.block, course.steps)
    held_back = now.judged[:blocks, 0].copy()
    moment = Moment(course.description, now.losses.ravel()[:steps].copy(), held_back)
    try:
        return course.callback(steps, float(held_back[-1]), moment) is True
    except StopIteration:
        return True


def _looked(now: Progress, state: LoopState, loss: float, course: Course) -> Progress:
    """Take a judgement in: what is best, how long ago that was, whether to slow down."""
    block, best_loss = int(now.block), float(now.best_loss)
    better = loss < best_loss
    waited = 0 if loss < best_loss - course.least else int(now.waited) + 1
    best = state.params if better else now.best
    reductions, done = int(now.reductions), False
    if course.patience is not None and waited >= course.patience:
        if reductions == course.reductions:
            done = True
        else:
            state, waited, reductions = state._replace(params=best), 0, reductions + 1
    return now._replace(
        state=state,
        best=best,
        best_loss=np.asarray(loss if better else best_loss),
        best_block=np.asarray(block if better else int(now.best_block)),
        waited=np.asarray(waited),
        reductions=np.asarray(reductions),
        block=np.asarray(block + 1),
        done=np.asarray(done),
    )
