"""Replay: stored datasets of the past beside those of the task."""

from typing import Any, Literal

import equinox as eqx
import numpy as np

from pmcl.continual.strategies.memory import Memory
from pmcl.continual.strategies.strategy import AbstractStrategy, Distance, Occasion, Rehearsal
from pmcl.data.task import Task
from pmcl.metrics.clusters import k_centers, k_medoids


class Replay(AbstractStrategy):
    """Episodic replay (SC-ER): past datasets are trained on beside the newest task's.

    After a task `per_task` of its datasets, drawn at random, enter the memory; when it holds more
    than `capacity`, some of all stored datasets stay.

    Attributes
    ----------
    capacity : int
    per_task : int
    keep : {"medoids", "centers", "random"}
        Which datasets stay when the memory is full: K-medoids, greedy k-center, or any.
    distance : "summary", "raw" or callable
        Between what: the network's summaries, the values themselves (datasets of one length), or
        a function of an `xarray.Dataset` with dim `dataset` that gives an array (dataset, feature).
        Columns are standardised.
    weighting : {"task", "dataset"}
        Whether tasks count alike in the loss, or datasets (the paper's).
    simulations : int
        Fresh simulations rehearsed at every step, which protects what pretraining learned.
    simulation_weight : float
        Weight of their negative log likelihood, beside the mean over datasets.

    References
    ----------
    Continual amortized Bayesian inference, Algorithm 1; the last three fields are ours, and
    ``Replay(weighting="dataset")`` is the paper's.
    """

    capacity: int = 20
    per_task: int = 1
    keep: Literal["medoids", "centers", "random"] = eqx.field(static=True, default="medoids")
    distance: Distance = eqx.field(static=True, default="summary")
    weighting: Literal["task", "dataset"] = eqx.field(static=True, default="task")
    simulations: int = 0
    simulation_weight: float = 0.5

    def __check_init__(self) -> None:
        if self.capacity < 1 or self.per_task < 1:
            raise ValueError(
                f"Replay: expected capacity and per_task of at least 1, got {self.capacity} and "
                f"{self.per_task}; use Naive() to store nothing."
            )
        for name, value, known in (
            ("keep", self.keep, ("medoids", "centers", "random")),
            ("weighting", self.weighting, ("task", "dataset")),
        ):
            if value not in known:
                raise ValueError(f"Replay: expected {name} of {known}, got {value!r}.")
        if not callable(self.distance) and self.distance not in ("summary", "raw"):
            raise ValueError(
                "Replay: expected distance 'summary', 'raw' or a function of an xarray.Dataset, "
                f"got {self.distance!r}."
            )
        if self.simulations < 0:
            raise ValueError(f"Replay: expected simulations of at least 0, got {self.simulations}.")

    def begin(self, state: Memory | None, now: Occasion) -> Memory:
        return Memory() if state is None else state

    def rehearsal(self, state: Memory) -> Rehearsal:
        return Rehearsal(
            state,
            by_task=self.weighting == "task",
            simulations=self.simulations,
            simulation_weight=self.simulation_weight,
        )

    def end(self, state: Memory, trace: Any, now: Occasion) -> Memory:
        task, rng = now.task, now.rng
        chosen = rng.choice(len(task), size=min(self.per_task, len(task)), replace=False)
        memory = state.add(task.select(np.sort(chosen)), now.name)
        full = len(memory) > self.capacity
        # summaries are compiled with the first task, and not when at last there is no more room
        if not full and (self.keep == "random" or self.distance != "summary"):
            return memory
        if self.keep == "random":
            return memory.keep(rng.choice(len(memory), size=self.capacity, replace=False))
        points = self._points(memory.stored(), now)
        pick = k_medoids if self.keep == "medoids" else k_centers
        return memory.keep(pick(points, self.capacity))

    def _points(self, stored: Task, now: Occasion) -> np.ndarray:
        """One point for each stored dataset, between which distances are taken."""
        if self.distance == "summary":
            return now.embed(stored)
        if self.distance == "raw":
            if stored.ragged:  # values that are missing take part as they are filled
                raise ValueError(
                    "Replay(distance='raw'): expected stored datasets of one length, got "
                    f"{sorted(set(np.asarray(stored.lengths).tolist()))}; use distance='summary'."
                )
            return np.concatenate(
                [np.asarray(v, float).reshape(len(stored), -1) for v in stored.values.values()],
                axis=1,
            )
        assert callable(self.distance)
        points = np.asarray(self.distance(stored.labelled()), float)
        if points.ndim != 2 or len(points) != len(stored):
            raise ValueError(
                f"Replay: expected the function `distance` to give an array of shape "
                f"({len(stored)}, features), got {points.shape}."
            )
        return points
