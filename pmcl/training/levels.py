"""Simulations of a multilevel model, as its global parameters are learned from them."""

from typing import Any, NamedTuple

import numpy as np

from pmcl.compile import Density
from pmcl.data.task import Layout, Task
from pmcl.levels.integrals import KEY, Marginal
from pmcl.levels.reading import Reading
from pmcl.levels.structure import Given, NoLevels
from pmcl.training.bank import Simulated


class Levelled(NamedTuple):
    """Keeps the global parameters of simulations, and says which groups their data have."""

    density: Density
    reading: Reading

    @property
    def marginal(self) -> Marginal:
        """Density of the global parameters."""
        return Marginal(self.density, len(self.reading.shared), self.reading.like.exact)

    def __call__(self, made: Simulated) -> tuple[Simulated, Marginal]:
        """The same simulations, and the density by which they are learned."""
        task = simulated(self.density, made)
        levels = self.reading.of(self.density, task, check=False)
        if isinstance(levels, NoLevels):
            raise ValueError(f"levels: expected those of one simulation in all; {levels}.")
        batch = task.batch()
        given: Any = Given(levels.split)
        data = {**batch.values, KEY: given}
        return Simulated(made.z[:, self.reading.shared], data, batch.mask), self.marginal


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
