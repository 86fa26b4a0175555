"""How good the network is at datasets, without any reference: forgetting seen while it happens."""

from typing import NamedTuple

import numpy as np

from pmcl.compile import Density
from pmcl.continual.strategies.memory import Memory
from pmcl.data.task import Task
from pmcl.draws.drawn import Drawn, judge
from pmcl.draws.network import look
from pmcl.networks import Amortizer


class Quality(NamedTuple):
    """Of each dataset: what amortized draws say of themselves.

    Attributes
    ----------
    names : tuple of str
    sc_variance : array of shape (dataset,)
        Var_s[r(z_s; x)] in nats squared: zero for the exact posterior.
    khat : array of shape (dataset,)
        Pareto k-hat of the importance weights.
    efficiency : array of shape (dataset,)
        Effective sample size over the number of draws.
    """

    names: tuple[str, ...]
    sc_variance: np.ndarray
    khat: np.ndarray
    efficiency: np.ndarray

    @classmethod
    def of(cls, task: Task, drawn: Drawn) -> "Quality":
        """What draws of each dataset of a task say of themselves."""
        judged = judge(drawn)
        return cls(task.names, judged.sc_variance, judged.khat, judged.efficiency)

    def means(self) -> tuple[float, float, float]:
        """Means over the datasets, in the order of the fields."""
        return tuple(float(np.mean(v)) for v in self[1:])  # type: ignore[return-value]


def quality(amortizer: Amortizer, density: Density, task: Task, *, seed: int) -> Quality:
    """Judge the network at each dataset of a task, by fresh amortized draws."""
    return Quality.of(task, look(amortizer, density, task.batch(), seed=seed))


def quality_of_memory(
    amortizer: Amortizer, density: Density, memory: Memory, *, seed: int
) -> dict[str, Quality]:
    """Judge the network at the stored datasets of each earlier task."""
    if not len(memory):
        return {}
    found = quality(amortizer, density, memory.stored(), seed=seed)
    by_task = {}
    for task in dict.fromkeys(memory.tasks):
        which = np.flatnonzero([t == task for t in memory.tasks])
        names = tuple(found.names[i] for i in which)
        by_task[task] = Quality(names, *(v[which] for v in found[1:]))
    return by_task
