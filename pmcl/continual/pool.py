"""The pool: all datasets that one adaptation trains on, their labels and their weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pmcl.continual.objectives.objectives import AbstractObjective, Labels, Teaching
from pmcl.continual.pseudo import pseudo_datasets
from pmcl.continual.strategies.memory import Memory
from pmcl.continual.strategies.strategy import Occasion, Rehearsal
from pmcl.data.batching import taken
from pmcl.data.masked import check_masked
from pmcl.data.stacking import concatenate
from pmcl.data.task import Batch, Task
from pmcl.draws.drawn import judge, resampled
from pmcl.draws.network import look
from pmcl.networks.contexts import placed
from pmcl.runtime.arguments import listed

_WORTH = 10  # all pseudo-datasets of a task count like so many real ones: one alone tells little
_JUDGED = 64  # pseudo-datasets among those by which progress is judged


class Pool(NamedTuple):
    """Arrays of the datasets, those of the task first, then the stored ones, then pseudo-datasets.

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
    task: int
    stored: int
    pseudo: int
    untrusted: tuple[str, ...]

    @property
    def judged(self) -> Pool:
        """All real datasets and some pseudo-datasets, by which progress is judged."""
        real = np.arange(self.task + self.stored)
        some = np.linspace(0, self.pseudo - 1, min(self.pseudo, _JUDGED)).astype(int)
        return self.pool.take(np.concatenate([real, len(real) + some]))


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
    """Put a task, what is rehearsed and pseudo-datasets of both into one pool.

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
    sources = check_masked(now.density.compiled, sources)
    # A task that comes again under its old name is protected as a task of its own.
    groups = np.array([-1] * len(now.task) + _numbered(memory.tasks))
    good = np.concatenate([keep, np.ones(len(memory), bool)])
    teaching = Teaching(now.amortizer, now.density, now.seed, progressbar)
    labels = objective.label(sources, teaching)
    trusted = np.ones(len(sources), bool) if labels is None else labels.trusted
    everything, groups_all, good_all = sources, groups, good & trusted
    if plan.pseudo:
        counts = _counts(groups, good & trusted, plan.pseudo)
        z = None
        if plan.predictive:
            z = labels.z if labels is not None else _posterior_draws(now, sources)
        pseudo, parent = pseudo_datasets(
            now.density.compiled,
            sources,
            z,
            counts,
            now.structure,
            np.random.default_rng([now.seed, 1]),
            bootstrap=plan.bootstrap,
            predictive=plan.predictive,
        )
        more = objective.label(pseudo, teaching._replace(seed=now.seed + 1))
        everything = concatenate([sources, pseudo])
        groups_all = np.concatenate([groups, groups[parent]])
        good_all = np.concatenate(
            [good & trusted, np.ones(len(pseudo), bool) if more is None else more.trusted]
        )
        if labels is not None and more is not None:
            labels = Labels(np.concatenate([labels.z, more.z]), good_all)
    if not good_all.any():
        raise NothingTrusted(
            f"adapt: the teacher trusts its draws for none of the {len(good_all)} datasets "
            f"({listed(sources.names)}); expected at least one with a k-hat "
            "below its limit. Use PathGradient(), or a teacher that refines more."
        )
    weights = _weights(groups_all, good_all, len(sources), by_task=plan.by_task)
    pool = Pool(
        placed(now.amortizer, everything.batch()),
        None if labels is None else labels.z,
        weights.astype(np.float32),
    )
    untrusted = tuple(n for n, t in zip(sources.names, trusted, strict=True) if not t)
    pseudo_made = len(everything) - len(sources)
    return Gathered(pool, len(now.task), len(memory), pseudo_made, untrusted)


def _numbered(tasks: Sequence[str]) -> list[int]:
    known = list(dict.fromkeys(tasks))
    return [known.index(t) for t in tasks]


def _counts(groups: np.ndarray, good: np.ndarray, total: int) -> np.ndarray:
    """Share `total` pseudo-datasets out: evenly over tasks, then over the datasets of each."""
    usable = good if good.any() else np.ones(len(groups), bool)
    tasks = np.unique(groups[usable])
    counts = np.zeros(len(groups), int)
    for i, task in enumerate(tasks):
        which = np.flatnonzero((groups == task) & usable)
        number = total // len(tasks) + (i < total % len(tasks))
        counts[which] = number // len(which)
        counts[which[: number % len(which)]] += 1
    return counts


def _weights(groups: np.ndarray, good: np.ndarray, real: int, *, by_task: bool) -> np.ndarray:
    """Weight of every dataset: tasks or real datasets count alike, pseudo-datasets for a share."""
    weights = np.zeros(len(groups))
    original = np.arange(len(groups)) < real
    for task in np.unique(groups[good]):
        here = (groups == task) & good
        own, made = here & original, here & ~original
        whole = 1.0 if by_task else max(int(own.sum()), 1)
        share = _WORTH / (int(own.sum()) + _WORTH) if made.any() else 0.0
        weights[own] = whole * (1 - share) / max(int(own.sum()), 1)
        weights[made] = whole * share / max(int(made.sum()), 1)
    return weights


def _posterior_draws(now: Occasion, datasets: Task) -> np.ndarray:
    """Amortized draws, resampled by importance weights: shape (dataset, draw, dim)."""
    drawn = look(now.amortizer, now.density, datasets.batch(), seed=now.seed)
    judged = judge(drawn)
    which = np.flatnonzero(judged.finite_fraction > 0)
    return np.asarray(resampled(drawn, judged.log_weights, which, seed=now.seed).z)


def _joined(task: Task, stored: Task) -> Task:
    """Join a task with stored datasets, whose names may be the same."""
    names = tuple(f"memory: {n}" for n in stored.names)
    return concatenate([task, replace(stored, names=names)])
