"""The episodic memory: stored past datasets, and which to keep when there are too many."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from pmcl.data.stacking import concatenate
from pmcl.data.task import Task


@dataclass(frozen=True)
class Memory:
    """Stored datasets and the task each came from.

    Attributes
    ----------
    datasets : Task or None
        None while nothing is stored.
    tasks : tuple of str
        Name of the task of each stored dataset.
    times : tuple of str
        When each was stored: ISO 8601, UTC.
    """

    datasets: Task | None = None
    tasks: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tasks)

    def stored(self) -> Task:
        """Return the stored datasets.

        Raises
        ------
        ValueError
            Where there are none.
        """
        if self.datasets is None:
            raise ValueError("memory: expected stored datasets, it is empty.")
        return self.datasets

    def add(self, datasets: Task, task: str, time: str | None = None) -> "Memory":
        """Return the memory with more datasets: task/name, and a number where that is taken."""
        time = datetime.now(UTC).isoformat(timespec="seconds") if time is None else time
        names = [] if self.datasets is None else [*self.datasets.names]
        known = len(names)
        for n in datasets.names:
            name, again = f"{task}/{n}", 1
            while name in names:
                again += 1
                name = f"{task}/{n} ({again})"
            names.append(name)
        renamed = replace(datasets, names=tuple(names[known:]))
        joined = renamed if self.datasets is None else concatenate([self.datasets, renamed])
        new = len(datasets)
        return Memory(joined, (*self.tasks, *[task] * new), (*self.times, *[time] * new))

    def keep(self, index: np.ndarray) -> "Memory":
        """Return the memory with only the datasets of `index`, in their order of arrival."""
        index = np.sort(index)
        return Memory(
            self.stored().select(index),
            tuple(self.tasks[i] for i in index),
            tuple(self.times[i] for i in index),
        )
