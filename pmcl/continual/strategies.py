"""What protects the past while the network adapts to the newest task."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import numpy as np

from pmcl.continual.memory import Memory, k_medoids
from pmcl.data import Task

type Embed = Callable[[Task], np.ndarray]
"""Summaries of a task's datasets, shape (dataset, summary)."""


class AbstractStrategy(eqx.Module):
    """A strategy's fields are its hyper-parameters; what it stores lies in the posterior."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Most datasets that the strategy rehearses beside a task."""

    @abstractmethod
    def remember(
        self, memory: Memory, task: Task, name: str, embed: Embed, rng: np.random.Generator
    ) -> Memory:
        """Return the memory after a task."""


class Naive(AbstractStrategy):
    """Nothing is stored: the network follows the newest task and may forget the others."""

    @property
    def capacity(self) -> int:
        return 0

    def remember(
        self, memory: Memory, task: Task, name: str, embed: Embed, rng: np.random.Generator
    ) -> Memory:
        return memory


class Replay(AbstractStrategy):
    """Episodic replay (SC-ER): past datasets are trained on beside the newest task's.

    After a task `per_task` of its datasets, drawn at random, enter the memory; when it holds more
    than `capacity`, the K-medoids of all stored datasets' summaries stay.

    Attributes
    ----------
    capacity : int
    per_task : int

    References
    ----------
    Continual amortized Bayesian inference, Algorithm 1.
    """

    capacity: int = 20
    per_task: int = 1

    def __check_init__(self) -> None:
        if self.capacity < 1 or self.per_task < 1:
            raise ValueError(
                f"Replay: expected capacity and per_task of at least 1, got {self.capacity} and "
                f"{self.per_task}; use Naive() to store nothing."
            )

    def remember(
        self, memory: Memory, task: Task, name: str, embed: Embed, rng: np.random.Generator
    ) -> Memory:
        chosen = rng.choice(len(task), size=min(self.per_task, len(task)), replace=False)
        memory = memory.add(task.select(np.sort(chosen)), name)
        if len(memory) > self.capacity:
            memory = memory.keep(k_medoids(embed(memory.stored()), self.capacity))
        return memory
