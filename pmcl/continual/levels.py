"""Adaptation of a network of global parameters: what an occasion is where there are groups."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.continual.strategies.memory import Memory
from pmcl.continual.strategies.states import StrategyState
from pmcl.continual.strategies.strategy import Occasion
from pmcl.data.grouped import Grouped
from pmcl.data.masked import check_masked
from pmcl.data.stacking import stack
from pmcl.data.task import Batch, Layout, Task
from pmcl.levels.beside import Beside
from pmcl.networks import Amortizer
from pmcl.networks.contexts import contexts, placed
from pmcl.training import Simulated
from pmcl.training.levels import Levelled


@dataclass(frozen=True)
class LevelledOccasion(Occasion):
    """An occasion whose density is that of the global parameters, groups integrated out.

    Attributes
    ----------
    trained : Amortizer
        The network at the size at which the simulator makes datasets.
    levelled : Levelled
        Their levels.
    beside : Beside
        Levels at the size of the task.
    """

    trained: Amortizer
    levelled: Levelled
    beside: Beside

    @property
    def compiled(self) -> CompiledModel:
        """The model, at the size of the task."""
        return self.beside.density.compiled

    def embed(self, datasets: Task) -> np.ndarray:
        """Where the posterior of each dataset is, and how wide: (dataset, 2 * global)."""
        place = contexts(self.amortizer, datasets.batch(), np.arange(len(datasets))).place
        assert place is not None
        scale: Any = place.scale
        spread = np.log(np.sqrt(np.sum(np.asarray(scale.lower)[:, 0] ** 2, axis=2)))
        return np.concatenate([np.asarray(place.loc)[:, 0], spread], axis=1)

    def simulate(self, n: int) -> Task:
        """Datasets drawn from the model's joint, of as many groups as in training."""
        made = super().simulate(n)
        if self.levelled.groups is not None:
            made = replace(made, labels=self.levelled.labels(made))
        return at_size(made, self.beside, self.levelled)

    def rehearsed(self, n: int, seed: int) -> Simulated:
        """Fresh simulations of the global parameters, and where the posterior of each is."""
        made, _ = self.levelled.of(Simulated.of(self.simulator, n, random_seed=seed))
        made = made._replace(place=placed(self.trained, Batch(made.data, made.mask)).place)
        return self.levelled.anchored(made)


def at_size(task: Task, beside: Beside, like: Levelled) -> Task:
    """A task with as many groups as the model of `beside` has, what is not there being padding."""
    compiled, groups = beside.density.compiled, like.groups
    layout = Layout.of(compiled, task.layout.row)
    if groups is None:
        return replace(task, beside=beside)
    if task.layout.variables == layout.variables:  # an index alone: its range is the model's
        return replace(task, layout=layout, beside=beside)
    dim = groups.grouping.dim
    cut = Grouped.of(task, dim)
    whole = cut.padded(layout, dim, len(compiled.coords[dim]))
    found = stack([*whole.values()], task.names, layout)
    return replace(check_masked(compiled, found), labels=cut.labels, beside=beside)


def states_at_size(
    states: tuple[StrategyState, ...], beside: Beside, like: Levelled
) -> tuple[StrategyState, ...]:
    """What is stored, with datasets of one size with those of a task."""

    def one(state: Any) -> Any:
        if not isinstance(state, Memory) or state.datasets is None:
            return state
        return replace(state, datasets=at_size(state.datasets, beside, like))

    return tuple(replace(s, state=one(s.state)) for s in states)
