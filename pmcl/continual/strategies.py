"""What protects the past while the network adapts to the newest task.

A strategy is an `eqx.Module` whose fields are its hyper-parameters; what it stores is a state of
its own, which the posterior carries from task to task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import numpy as np
import xarray as xr
from jax import Array

from pmcl import sampling
from pmcl.compile import Density, Simulator
from pmcl.continual.memory import Memory, k_centers, k_medoids
from pmcl.data import Task
from pmcl.networks import Amortizer, Structure
from pmcl.simulation import simulated_task
from pmcl.training import weights_of


@dataclass(frozen=True)
class Occasion:
    """What a strategy may look at, before a task and after it.

    Attributes
    ----------
    name : str
        Of the task.
    task : Task
        Its datasets; after the task without those that were left out.
    amortizer : Amortizer
        The network at this moment.
    density : Density
        The compiled log density.
    simulator : Simulator
    structure : Structure
        How a dataset is read.
    seed : int
    """

    name: str
    task: Task
    amortizer: Amortizer
    density: Density
    simulator: Simulator
    structure: Structure
    seed: int

    @property
    def weights(self) -> Amortizer:
        """The network's trainable weights: a pytree of arrays."""
        return weights_of(self.amortizer)

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def embed(self, datasets: Task) -> np.ndarray:
        """Summaries h(x) of datasets, shape (dataset, summary)."""
        return sampling.embed(self.amortizer, datasets)

    def simulate(self, n: int) -> Task:
        """Datasets drawn from the model's joint; those with non-finite values are left out.

        They have the lengths and gaps of training.
        """
        return simulated_task(self.simulator, self.structure.row, n, random_seed=self.seed)[1]


class Rehearsal(NamedTuple):
    """What is trained on beside a task.

    Attributes
    ----------
    memory : Memory
        Stored datasets.
    pseudo : int
        Pseudo-datasets in all, made of the task's datasets and the stored ones, balanced over
        tasks.
    bootstrap : bool
    predictive : float
        How pseudo-datasets are made.
    by_task : bool
        Equal weight for every task; else for every dataset.
    simulations : int
        Fresh simulations at every step.
    simulation_weight : float
        Weight of their loss, beside the mean over datasets.
    """

    memory: Memory
    pseudo: int = 0
    bootstrap: bool = True
    predictive: float = 0.0
    by_task: bool = False
    simulations: int = 0
    simulation_weight: float = 0.5


class AbstractStrategy(eqx.Module):
    """What protects earlier tasks; all methods but `begin` and `end` may stay as they are.

    Attributes
    ----------
    protects : bool
        False where a strategy has no use for the past, and may follow any other.
    """

    protects: ClassVar[bool] = True

    def begin(self, state: Any, now: Occasion) -> Any:
        """Return the state in which a task is begun; `state` is None before the first one."""
        return state

    def rehearsal(self, state: Any) -> Rehearsal | None:
        """Say which stored datasets are trained on beside the task."""
        return None

    def penalty(self, state: Any, weights: Amortizer) -> Array | None:
        """What is added to the loss for the weights (shape ()); differentiable, inside jit."""
        return None

    def trace(self, state: Any, weights: Amortizer) -> Any:
        """Begin what is followed over the steps of a task: a pytree of arrays, or None."""
        return None

    def perturb(self, trace: Any, weights: Amortizer, key: Array) -> tuple[Any, Amortizer]:
        """Return the weights at which a step's loss and gradient are taken, and the trace."""
        return trace, weights

    def follow(self, trace: Any, gradient: Amortizer, change: Amortizer) -> Any:
        """Follow one step: the gradient of the data's loss, and the change of the weights."""
        return trace

    def end(self, state: Any, trace: Any, now: Occasion) -> Any:
        """Return the state after a task, at the adapted weights."""
        return state

    def accepts(self, state: Any) -> str:
        """Say why a stored state does not serve these hyper-parameters; "" where it does."""
        return ""


class Naive(AbstractStrategy):
    """Nothing is stored: the network follows the newest task and may forget the others."""

    protects: ClassVar[bool] = False


type StrategyLike = AbstractStrategy | tuple[AbstractStrategy, ...]

type Distance = Literal["summary", "raw"] | Callable[[xr.Dataset], np.ndarray]


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
    pseudo : int
        Pseudo-datasets in all, balanced over tasks, made again at every task; 0: none.
    bootstrap : bool
        Draw the rows of a pseudo-dataset again, where they are exchangeable.
    predictive : float
        Fraction of pseudo-datasets whose observations are simulated from the posterior.
    simulations : int
        Fresh simulations rehearsed at every step, which protects what pretraining learned.
    simulation_weight : float
        Weight of their negative log likelihood, beside the mean over datasets.

    References
    ----------
    Continual amortized Bayesian inference, Algorithm 1; the last five fields are ours, and
    ``Replay(weighting="dataset", pseudo=0, simulations=0)`` is the paper's.
    """

    capacity: int = 20
    per_task: int = 1
    keep: Literal["medoids", "centers", "random"] = eqx.field(static=True, default="medoids")
    distance: Distance = eqx.field(static=True, default="summary")
    weighting: Literal["task", "dataset"] = eqx.field(static=True, default="task")
    pseudo: int = 400
    bootstrap: bool = True
    predictive: float = 0.5
    simulations: int = 16
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
        if self.pseudo < 0 or self.simulations < 0 or not 0 <= self.predictive <= 1:
            raise ValueError(
                "Replay: expected pseudo and simulations of at least 0 and predictive between 0 "
                f"and 1, got {self.pseudo}, {self.simulations} and {self.predictive}."
            )

    def begin(self, state: Memory | None, now: Occasion) -> Memory:
        return Memory() if state is None else state

    def rehearsal(self, state: Memory) -> Rehearsal:
        return Rehearsal(
            state,
            pseudo=self.pseudo,
            bootstrap=self.bootstrap,
            predictive=self.predictive,
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


def strategies_of(strategy: StrategyLike) -> tuple[AbstractStrategy, ...]:
    """Read the argument `strategy` of `adapt`: one, or several at once.

    Raises
    ------
    TypeError
        Where something in it is not a strategy.
    ValueError
        Where one kind comes twice, or none.
    """
    several = strategy if isinstance(strategy, tuple | list) else (strategy,)
    for s in several:
        if not isinstance(s, AbstractStrategy):
            raise TypeError(
                f"strategy: expected pmcl strategies such as pmcl.Replay(), got {s!r}; use "
                "pmcl.Naive() for none."
            )
    kinds = [type(s).__name__ for s in several]
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"strategy: expected one or more of different kinds, got {kinds}.")
    return tuple(several)
