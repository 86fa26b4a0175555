"""Simulations of a multilevel model, as its global parameters are learned from them."""

from typing import Any, NamedTuple

import numpy as np

from pmcl.compile import Density
from pmcl.data.batching import over_chunks
from pmcl.data.task import Batch, Layout, Task
from pmcl.levels.integrals import Marginal, anchored
from pmcl.levels.reading import Reading
from pmcl.levels.sizes import Groups, group_numbers
from pmcl.levels.structure import KEY, Given, NoLevels
from pmcl.runtime import devices
from pmcl.training.bank import Simulated

_TOGETHER = 16  # simulations


class Levelled(NamedTuple):
    """Keeps the global parameters of simulations, and says which groups their data have."""

    density: Density
    reading: Reading
    groups: Groups | None = None

    @property
    def marginal(self) -> Marginal:
        """Density of the global parameters."""
        return Marginal.of(self.density, self.reading.like)

    def of(self, made: Simulated) -> tuple[Simulated, Marginal]:
        """The same simulations, and the density by which they are learned."""
        task = simulated(self.density, made)
        levels = self.reading.of(self.density, task, check=False)
        if isinstance(levels, NoLevels):
            raise ValueError(f"levels: expected those of one simulation in all; {levels}.")
        if self.groups is not None:
            levels = levels.cut(self._numbers(self.groups, task))
        batch = task.batch()
        given: Any = Given(levels.split)
        data = {**batch.values, KEY: given}
        return Simulated(made.z[:, self.reading.shared], data, batch.mask), self.marginal

    def labels(self, task: Task) -> tuple[tuple[str, ...], ...]:
        """Names of the groups that each simulation has: their places."""
        assert self.groups is not None
        numbers = self._numbers(self.groups, task)
        return tuple(tuple(map(str, range(n))) for n in numbers)

    def _numbers(self, groups: Groups, task: Task) -> np.ndarray:
        """How many groups each simulation has: those that its rows are of, or any number."""
        index = groups.grouping.by
        if not index:
            return group_numbers(np.random.default_rng(0), groups.low, groups.high, len(task))
        rows = task.rows
        found = task.values[index] if rows is None else np.where(rows, task.values[index], 0)
        return found.max(axis=1) + 1

    def anchored(self, made: Simulated) -> Simulated:
        """The same; searches for groups' modes begin near those at the mode of what is shared."""
        if self.reading.like.exact or made.place is None:
            return made
        found = over_chunks(
            lambda batch, g: anchored(self.marginal, batch, g),
            Batch(made.data, made.mask),
            np.arange(len(made.z)),
            np.asarray(made.place.loc)[:, 0],
            size=devices.together(_TOGETHER),
        )
        given: Any = made.data[KEY]
        return made._replace(data={**made.data, KEY: given._replace(anchor=found)})


def simulated(density: Density, made: Simulated) -> Task:
    """Simulations as a task."""
    layout = Layout.of(density.compiled, density.row)
    values = {i.name: np.asarray(made.data[i.name]) for i in layout.variables}
    names = tuple(map(str, range(len(made.z))))
    lengths, there = None, {}
    if density.row is not None:
        lengths = np.full(len(names), Task(layout, values, names, None).width)
    if made.mask is not None:
        lengths = lengths if made.mask.rows is None else np.asarray(made.mask.rows).sum(axis=1)
        there = {k: np.asarray(v) for k, v in made.mask.values.items()}
    return Task(layout, values, names, lengths, there=there)
