"""The episodic memory: stored past datasets, and which to keep when there are too many."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from pmcl.data import Task, concatenate


@dataclass(frozen=True)
class Memory:
    """Stored datasets and the task each came from.

    Attributes
    ----------
    datasets : Task or None
        None while nothing is stored.
    tasks : tuple of str
        Name of the task of each stored dataset.
    """

    datasets: Task | None = None
    tasks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tasks)

    def stored(self) -> Task:
        """Return the stored datasets; an error where there are none."""
        if self.datasets is None:
            raise ValueError("memory: expected stored datasets, it is empty.")
        return self.datasets

    def add(self, datasets: Task, task: str) -> "Memory":
        """Return the memory with more datasets: task/name, and a number where that is taken."""
        names = [] if self.datasets is None else [*self.datasets.names]
        known = len(names)
        for n in datasets.names:
            name, again = f"{task}/{n}", 1
            while name in names:
                again += 1
                name = f"{task}/{n} ({again})"
            names.append(name)
        renamed = Task(datasets.layout, datasets.values, tuple(names[known:]), datasets.lengths)
        joined = renamed if self.datasets is None else concatenate([self.datasets, renamed])
        return Memory(joined, (*self.tasks, *[task] * len(datasets)))

    def keep(self, index: np.ndarray) -> "Memory":
        """Return the memory with only the datasets of `index`, in their order of arrival."""
        index = np.sort(index)
        return Memory(self.stored().select(index), tuple(self.tasks[i] for i in index))


def k_medoids(points: np.ndarray, k: int) -> np.ndarray:
    """Partitioning around medoids (PAM): `k` points with the least summed distance to the rest.

    Parameters
    ----------
    points : array of shape (n, d)
        Standardised per column here, so that no column outweighs the others.
    k : int

    Returns
    -------
    array of int of shape (k,)
        Indices of the medoids, sorted.

    References
    ----------
    Kaufman & Rousseeuw (1990), Finding Groups in Data, chapter 2 (BUILD and SWAP).
    """
    n = len(points)
    if k >= n:
        return np.arange(n)
    spread = points.std(axis=0)
    distance = cdist(*[points / np.where(spread > 0, spread, 1.0)] * 2)
    medoids: list[int] = []
    nearest = np.full(n, np.inf)
    for _ in range(k):  # BUILD: the point that helps most
        gain = np.minimum(nearest, distance).sum(axis=1)
        gain[medoids] = np.inf
        medoids.append(int(np.argmin(gain)))
        nearest = np.minimum(nearest, distance[medoids[-1]])
    cost = nearest.sum()
    while True:  # SWAP: the best exchange of a medoid for another point, while one helps
        best = (cost, -1, -1)
        for i in range(k):
            rest = [m for j, m in enumerate(medoids) if j != i]
            without = distance[rest].min(axis=0) if rest else np.full(n, np.inf)
            costs = np.minimum(without, distance).sum(axis=1)
            costs[medoids] = np.inf
            other = int(np.argmin(costs))
            if costs[other] < best[0] - 1e-12:
                best = (costs[other], i, other)
        if best[1] < 0:
            return np.sort(np.asarray(medoids))
        cost, i, other = best
        medoids[i] = other
