"""What protects the past while the network adapts to the newest task.

A strategy is an `eqx.Module` whose fields are its hyper-parameters; what it stores is a state of
its own, which the posterior carries from task to task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel, Density, Simulator
from pmcl.continual.strategies.memory import Memory
from pmcl.data.simulated import simulated_task
from pmcl.data.task import Batch, Task
from pmcl.draws import network
from pmcl.networks import Amortizer, Structure
from pmcl.networks.contexts import placed
from pmcl.training import Simulated, weights_of


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
        The compiled log density; of the global parameters alone, where there are groups.
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

    @property
    def compiled(self) -> CompiledModel:
        """The model, at the size of the task."""
        return self.density.compiled

    def embed(self, datasets: Task) -> np.ndarray:
        """Summaries h(x) of datasets, shape (dataset, summary)."""
        return network.embed(self.amortizer, datasets)

    def simulate(self, n: int) -> Task:
        """Datasets drawn from the model's joint; those with non-finite values are left out.

        They have the lengths and gaps of training.
        """
        return simulated_task(self.simulator, self.structure.row, n, random_seed=self.seed)[1]

    def rehearsed(self, n: int, seed: int) -> Simulated:
        """Fresh simulations, and where the posterior of each is."""
        made = Simulated.of(self.simulator, n, random_seed=seed)
        return made._replace(place=placed(self.amortizer, Batch(made.data, made.mask)).place)


class Rehearsal(NamedTuple):
    """What is trained on beside a task.

    Attributes
    ----------
    memory : Memory
        Stored datasets.
    by_task : bool
        Equal weight for every task; else for every dataset.
    simulations : int
        Fresh simulations at every step.
    simulation_weight : float
        Weight of their loss, beside the mean over datasets.
    """

    memory: Memory
    by_task: bool = False
    simulations: int = 0
    simulation_weight: float = 0.5


class Learned(NamedTuple):
    """What a batch has taught of one vector.

    Attributes
    ----------
    z, start : Array of shape (dim,)
        After the batch, and before it.
    share : Array of shape (dim,)
        Of each entry in the rise of the log likelihood along the way (nats).
    information : callable
        Gives the diagonal of the Fisher information at z, summed over rows.
    """

    z: Array
    start: Array
    share: Array
    information: Callable[[], Array]


class AbstractStrategy(eqx.Module):
    """What protects earlier tasks; all methods but `begin` and `end` may stay as they are.

    Attributes
    ----------
    protects : bool
        False where a strategy has no use for the past, and may follow any other.
    bayesian : bool
        Whether `hold` begins with the model's prior.
    """

    protects: ClassVar[bool] = True
    bayesian: ClassVar[bool] = False

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

    def follow(self, trace: Any, gradient: Amortizer, change: Amortizer) -> Any:
        """Follow one step: the gradient of the data's loss, and the change of the weights."""
        return trace

    def end(self, state: Any, trace: Any, now: Occasion) -> Any:
        """Return the state after a task, at the adapted weights."""
        return state

    def hold(self, precision: Array, anchor: Array, learned: Learned) -> tuple[Array, Array]:
        """Take a batch's part in what holds one vector near its earlier values.

        What `penalty`, `follow` and `end` do for the weights of a network, for
        :func:`pmcl.fit_online`, which follows a model's own parameters.

        Parameters
        ----------
        precision, anchor : Array of shape (dim,)
            Of the quadratic so far; its logarithm is -sum precision (z - anchor)^2 / 2.
        learned : Learned

        Returns
        -------
        precision, anchor : Array of shape (dim,)
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it holds one vector.")

    def accepts(self, state: Any) -> str:
        """Say why a stored state does not serve these hyper-parameters; "" where it does."""
        return ""


class Naive(AbstractStrategy):
    """Nothing is stored: the network follows the newest task and may forget the others."""

    protects: ClassVar[bool] = False

    def hold(self, precision: Array, anchor: Array, learned: Learned) -> tuple[Array, Array]:
        return jnp.zeros_like(precision), learned.start


type StrategyLike = AbstractStrategy | tuple[AbstractStrategy, ...]
type Distance = Literal["summary", "raw"] | Callable[[xr.Dataset], np.ndarray]


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
