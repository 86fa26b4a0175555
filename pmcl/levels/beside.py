"""What batches of a multilevel model have beside their data: which group has what."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pmcl.compile import Density
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.data.batching import over_chunks
from pmcl.data.task import Task
from pmcl.levels.integrals import Marginal, anchored
from pmcl.levels.reading import Reading
from pmcl.levels.structure import KEY, Given, Levels, NoLevels
from pmcl.runtime import devices

_TOGETHER = 16  # datasets


@dataclass(frozen=True, eq=False)
class Beside:
    """Puts the groups of its datasets in a task's batches (`Task.beside`).

    Attributes
    ----------
    density : Density
        Of all parameters, at the size of the task.
    reading : Reading
    """

    density: Density
    reading: Reading

    @property
    def marginal(self) -> Marginal:
        """Density of the global parameters."""
        return Marginal.of(self.density, self.reading.like)

    def levels(self, task: Task, *, check: bool = False) -> Levels:
        """Levels of every dataset; groups that are padding belong to nothing.

        Raises
        ------
        UnsupportedModelError
            Where they are not those of the model.
        """
        found = self.reading.of(self.density, replace(task, beside=None), check=check)
        if isinstance(found, NoLevels):
            raise UnsupportedModelError(
                f"data: expected those with the levels of the model ({self.reading.like}); "
                f"{found}. `pmcl.refine` takes them as they are."
            )
        found = found if task.labels is None else found.named(task.labels)
        return found if task.known is None else found.knowing(task.known.of_z)

    def checked(self, task: Task) -> Task:
        """The task, once its levels are checked by evaluation."""
        self.levels(task, check=True)
        return task

    def __call__(self, task: Task) -> dict[str, Any]:
        """Groups of every dataset; near their modes, where the posterior was searched for."""
        given: Any = Given(self.levels(task).split)
        if task.place is not None and not self.reading.like.exact:
            batch = replace(task, beside=None).batch()
            found = over_chunks(
                lambda some, g: anchored(self.marginal, some, g),
                batch._replace(values={**batch.values, KEY: given}, place=None),
                np.arange(len(task)),
                np.asarray(task.place.loc)[:, 0],
                size=devices.together(_TOGETHER),
            )
            given = given._replace(anchor=found)
        return {KEY: given}
