"""What both kinds of amortized posterior have that learn from data, task by task."""

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, Unpack

import numpy as np
import xarray as xr

from pmcl.amortized.pretrained import Pretrained
from pmcl.compile.simulable import need_density
from pmcl.continual import (
    AbstractObjective,
    AdaptationSettings,
    Memory,
    Naive,
    Occasion,
    Replay,
    StrategyLike,
    StrategyState,
    forgotten,
    history_tree,
    losses_frame,
    memory_of,
    strategies_of,
)
from pmcl.continual.learning import AdaptationOptions, Past, learn
from pmcl.continual.objectives.objectives import check_objective
from pmcl.data.task import DataError, Task, TaskLike
from pmcl.networks import Amortizer
from pmcl.parts.datasets import content_of
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive, positive_rate, seed_of
from pmcl.runtime.devices import DevicesLike, settled
from pmcl.runtime.devices import scope as device_scope
from pmcl.training.run import Callback

if TYPE_CHECKING:
    import pandas as pd


class Begun(NamedTuple):
    """An adaptation as it begins, all of it at the size of the task.

    Attributes
    ----------
    now : Occasion
    pretrained : Amortizer
        The weights before the first adaptation.
    states : tuple of StrategyState
        What strategies have stored.
    read : Task
        The datasets as they came.
    """

    now: Occasion
    pretrained: Amortizer
    states: tuple[StrategyState, ...]
    read: Task


class Adapting(Pretrained):
    """Learning from data: `AmortizedPosterior` and `MultilevelPosterior` have it.

    Subclasses are frozen dataclasses with the fields below.
    """

    strategy: StrategyLike | None
    states: tuple[StrategyState, ...]

    @abstractmethod
    def _begun(
        self, name: str, task: TaskLike | None, pretrained: Amortizer, seed: int, *, say: bool
    ) -> Begun:
        """Read the data of a task, and say what it meets."""

    @abstractmethod
    def _checked(self, task: TaskLike) -> Task:
        """Read the data of a task."""

    def embedded(self, datasets: Task) -> np.ndarray:
        """Where datasets are among others, as `Replay` tells them apart: (dataset, feature)."""
        now = self._begun("", datasets, self.amortizer, 0, say=False).now
        return now.embed(now.task)

    @property
    def memory(self) -> Memory:
        """Stored past datasets, with the task and the time of each."""
        return memory_of(self.states)

    @property
    def history(self) -> xr.DataTree:
        """What happened to the network, task by task.

        Groups: `adaptation` (by task: strategy, steps, what was skipped and left out, seconds),
        `losses` (task x step), `datasets` (right after each task), `retention` (rows: after
        pretraining and after each task; columns: tasks; the self-consistency variance, k-hat and
        efficiency of amortized draws, which need no reference) and `transfer` (backward and
        forward, of each measure).
        """
        return history_tree(self.records)

    @property
    def losses(self) -> "pd.DataFrame":
        """Every training loss, in nats: a row a step.

        Columns `training` ("pretraining", or the name of a task), `step`, `loss` and `held_back`,
        the loss of what is held back, where it was taken after that step.
        """
        return losses_frame(self.pretraining, self.records)

    def adapt(
        self,
        task: TaskLike | None = None,
        *,
        name: str,
        strategy: StrategyLike | None = None,
        objective: AbstractObjective | None = None,
        steps: int = 2000,
        learning_rate: float | Callable[[int], float] = 1e-3,
        batch_size: int = 64,
        clip: float = 1.0,
        warmup: int = 20,
        patience: int | None = 10,
        restore_best: bool = False,
        checkpoint: str | os.PathLike | None = None,
        callback: Callback | None = None,
        devices: DevicesLike = None,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> Self:
        """Adapt to the unlabeled datasets of a task and return the new posterior.

        Parameters
        ----------
        task : xarray.Dataset, mapping or pandas.DataFrame, optional
            See :func:`pmcl.as_task`. The model's own data by default, unless all its observed
            values are equal.
        name : str
            Name of the task, shown in the history and in the memory.
        strategy : AbstractStrategy or tuple of them, optional
            What protects earlier tasks. None goes on with what is in force (`Replay` at first).
        objective : AbstractObjective, optional
            `PathGradient` by default, and where that loses part of the posterior - one of several
            modes, or what lies at the end of a support - of more than a tenth of the task's
            datasets, `TeacherDistillation` for this task and those to come.
        steps : int
            Most steps; `patience` may end training before.
        learning_rate : float or callable
            Highest rate of Adam, after warm-up and before cosine decay; or a function of the number
            of tasks before this one, for rates that fall from task to task.
        batch_size : int
            Datasets a step; all that there are where they are not more.
        clip : float
            Largest global gradient norm.
        warmup : int
            Steps of linear warm-up.
        patience : int, optional
            No step is taken where the network's own draws of the task's datasets have a mean
            efficiency of 0.95. Every 25 steps the objective is evaluated at draws held back from
            training. Where it has not improved for so many times the rate falls to a third; the
            third time training stops. It ends with the weights that were best; with those from
            before, and a warning, where the network's own draws of the task's and of stored
            datasets became less efficient. None: all steps are taken.
        restore_best : bool
            End with the weights that were best on held-back draws without `patience`, too.
        checkpoint : path, optional
            Written every hundred steps; where it exists, the adaptation goes on from it and ends as
            it would have without the interruption. Another task needs another path.
        callback : callable, optional
            Called every 25 steps with the step, the held-back loss and a record of all losses so
            far; training ends where it returns True or raises StopIteration.
        devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
            What each step's datasets are spread over; JAX's default device by default.
        random_seed : int, optional
            Derived from the posterior's own seed and the number of tasks where not given.
        progressbar : bool

        Returns
        -------
        AmortizedPosterior or MultilevelPosterior

        Raises
        ------
        DataError
            Where the data do not fit the model, naming the variable and the dataset.
        ValueError
            Where a strategy cannot start from what earlier ones stored, saying what is missing.
        """
        need_density(self.compiled, "adapt")
        if strategy is None:
            strategy = self.strategy if self.strategy is not None else Replay()
        strategies = strategies_of(strategy)
        index = len(self.records)
        rate = learning_rate(index) if callable(learning_rate) else learning_rate
        settings = AdaptationSettings(
            positive("steps", steps),
            positive_rate(rate),
            positive("batch_size", batch_size),
            clip,
            warmup,
            None if patience is None else positive("patience", patience),
            restore_best,
        )
        check_objective(objective)
        seed = seed_of(random_seed, self.seed + 1000 * (index + 1))
        pretrained = self.amortizer if self.pretrained is None else self.pretrained
        with precision.scope(), device_scope(devices):
            begun = self._begun(name, task, pretrained, seed, say=progressbar)
            amortizer, past = learn(
                begun.now,
                Past(begun.pretrained, begun.states, self.records),
                strategies=strategies,
                objective=objective,
                settings=settings,
                checkpoint=None if checkpoint is None else Path(checkpoint),
                callback=callback,
                progressbar=progressbar,
            )
        amortizer = replace(amortizer, search=self.amortizer.search)
        latest = past.records[-1]._replace(content=content_of(begun.read))
        return replace(  # type: ignore[type-var]
            self,
            amortizer=settled(amortizer),
            pretrained=pretrained,
            strategy=strategies if len(strategies) > 1 else strategies[0],
            states=settled(past.states),
            records=(*past.records[:-1], latest),
        )

    def learned(self, task: TaskLike, name: str) -> bool:
        """Whether it was adapted to a task of this name before, with the same data.

        Parameters
        ----------
        task : xarray.Dataset, mapping or pandas.DataFrame
        name : str

        Raises
        ------
        DataError
            Where a task of that name had other data.
        """
        before = [r.content for r in self.records if r.name == name]
        if not before or None in before:  # states of before it was recorded tell the name alone
            return bool(before)
        if content_of(self._checked(task)) in before:
            return True
        raise DataError(
            f"adapt: task {name!r} was adapted to before, with other data. Expected the same data, "
            "or another name for these."
        )

    def at_test_time(self, task: TaskLike, **options: Unpack[AdaptationOptions]) -> Self:
        """Adapt a copy of the pretrained network to one task, and carry nothing on.

        Parameters
        ----------
        task : xarray.Dataset, mapping or pandas.DataFrame
        **options
            Those of :meth:`adapt` but `name` and `strategy`; `steps` is 400 by default.

        Returns
        -------
        AmortizedPosterior or MultilevelPosterior
            For this task alone: it knows of no other task, and stores no dataset.
        """
        fresh = replace(  # type: ignore[type-var]
            self,
            amortizer=self.amortizer if self.pretrained is None else self.pretrained,
            strategy=None,
            states=(),
            records=(),
        )
        chosen: AdaptationOptions = {"steps": 400, **options}
        return fresh.adapt(task, name="test time", strategy=Naive(), **chosen)

    def forget(self, task: str) -> Self:
        """Return the posterior without what is stored of a task: datasets, importance, name.

        What the network's weights have learned from it stays. Importance of several tasks cannot be
        taken apart, so that a strategy which has that of this task among others loses all of it.

        Parameters
        ----------
        task : str
            Name under which it was adapted to.

        Raises
        ------
        ValueError
            Where there is no such task, naming those that there are.
        """
        known = [r.name for r in self.records]
        if task not in known:
            raise ValueError(f"forget: expected the name of a task, one of {known}, got {task!r}.")
        return replace(  # type: ignore[type-var]
            self,
            states=forgotten(self.states, task),
            records=tuple(r.without(task) for r in self.records if r.name != task),
        )
