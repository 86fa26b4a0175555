"""The pool: all datasets that one adaptation trains on, their labels and their weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pmcl.continual.objectives.objectives import AbstractObjective, Teaching
from pmcl.continual.strategies.memory import Memory
from pmcl.continual.strategies.strategy import Occasion, Rehearsal
from pmcl.data.batching import taken
from pmcl.data.masked import check_masked
from pmcl.data.stacking import concatenate
from pmcl.data.task import Batch, Task
from pmcl.networks.contexts import placed
from pmcl.runtime.arguments import listed


class Pool(NamedTuple):
    """Arrays of the datasets, those of the task first, then the stored ones.

    Attributes
    ----------
    batch : Batch
    labels : array of shape (dataset, draw, dim), optional
        A teacher's draws.
    weights : array of shape (dataset,)
        Zero for datasets that are left out.
    """

    batch: Batch
    labels: np.ndarray | None
    weights: np.ndarray

    def take(self, index: np.ndarray) -> "Pool":
        """Return some of the datasets."""
        return taken(self, index)

    def split(self) -> tuple["Pool", "Pool"]:
        """Hold a quarter of a teacher's labels back; other objectives make draws of their own."""
        if self.labels is None:
            return self, self
        cut = self.labels.shape[1] - self.labels.shape[1] // 4
        return self._replace(labels=self.labels[:, :cut]), self._replace(
            labels=self.labels[:, cut:]
        )

    def steps(self, size: int, batch: int, rng: np.random.Generator) -> tuple["Pool", np.ndarray]:
        """Datasets of `size` steps, and how many of each step's count: the first ones.

        All that have a weight where they are not more than `batch`, filled up to it, else a draw by
        weight. Leaves have shape (step, batch, ...): as many, whatever the number of datasets.
        """
        usable = np.flatnonzero(self.weights > 0)
        if len(usable) > batch:
            share = self.weights[usable].astype(float)
            index = rng.choice(usable, size=(size, batch), p=share / share.sum())
            found, number = self.take(index), batch
            found = found._replace(weights=np.ones((size, batch), np.float32))
        else:
            number = len(usable)
            index = np.broadcast_to(np.resize(usable, batch), (size, batch))
            found = self.take(index)
            counted = np.arange(batch) < number
            found = found._replace(weights=np.where(counted, found.weights, np.float32(0)))
        return found, np.full(size, number, np.int32)


class Gathered(NamedTuple):
    """A pool and what it was made of."""

    pool: Pool
    stored: int
    untrusted: tuple[str, ...]


class NothingTrusted(ValueError):
    """A teacher's draws can be trusted for no dataset."""


def gather(
    now: Occasion,
    keep: np.ndarray,
    rehearsal: Rehearsal | None,
    objective: AbstractObjective,
    *,
    progressbar: bool,
) -> Gathered:
    """Put a task and what is rehearsed into one pool.

    Parameters
    ----------
    now : Occasion
        At the beginning of the task.
    keep : array of bool
        False for datasets of the task that are left out.
    rehearsal : Rehearsal, optional
    objective : AbstractObjective
        It may want labels.
    progressbar : bool
    """
    plan = Rehearsal(Memory()) if rehearsal is None else rehearsal
    memory = plan.memory
    stored = memory.datasets
    sources = now.task if stored is None else _joined(now.task, stored)
    # lengths may differ between the two alone
    sources = check_masked(now.compiled, sources)
    # A task that comes again under its old name is protected as a task of its own.
    groups = np.array([-1] * len(now.task) + _numbered(memory.tasks))
    good = np.concatenate([keep, np.ones(len(memory), bool)])
    teaching = Teaching(now.amortizer, now.density, now.seed, progressbar)
    # searched for once, for a teacher's draws as well
    sources = replace(sources, place=placed(now.amortizer, sources.batch()).place)
    labels = objective.label(sources, teaching)
    trusted = np.ones(len(sources), bool) if labels is None else labels.trusted
    good &= trusted
    if not good.any():
        raise NothingTrusted(
            f"adapt: the teacher trusts its draws for none of the {len(good)} datasets "
            f"({listed(sources.names)}); expected at least one with a k-hat "
            "below its limit. Use PathGradient(), or a teacher that refines more."
        )
    pool = Pool(
        sources.batch(),
        None if labels is None else labels.z,
        _weights(groups, good, by_task=plan.by_task).astype(np.float32),
    )
    untrusted = tuple(n for n, t in zip(sources.names, trusted, strict=True) if not t)
    return Gathered(pool, len(memory), untrusted)


def _numbered(tasks: Sequence[str]) -> list[int]:
    known = list(dict.fromkeys(tasks))
    return [known.index(t) for t in tasks]


def _weights(groups: np.ndarray, good: np.ndarray, *, by_task: bool) -> np.ndarray:
    """Weight of every dataset: tasks count alike, or datasets do."""
    weights = good.astype(float)
    for task in np.unique(groups[good]) if by_task else ():
        here = (groups == task) & good
        weights[here] = 1.0 / here.sum()
    return weights


def _joined(task: Task, stored: Task) -> Task:
    """Join a task with stored datasets, whose names may be the same."""
    names = tuple(f"memory: {n}" for n in stored.names)
    return concatenate([task, replace(stored, names=names)])
