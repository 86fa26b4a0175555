"""What both kinds of amortized posterior have that learn from simulations."""

import os
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Self

from pmcl.compile import CompiledModel, Density, Simulator
from pmcl.continual import TaskRecord
from pmcl.data.task import Layout
from pmcl.networks import Amortizer, Structure
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive
from pmcl.runtime.devices import DevicesLike, settled
from pmcl.runtime.devices import scope as device_scope
from pmcl.training import Bank, PretrainingRecord, PretrainingSettings, pretrain


class Pretrained(ABC):
    """Learning from simulations: subclasses are frozen dataclasses with the fields below."""

    compiled: CompiledModel
    simulator: Simulator
    structure: Structure
    amortizer: Amortizer
    settings: PretrainingSettings
    seed: int
    pretraining: tuple[PretrainingRecord, ...]
    pretrained: Amortizer | None
    records: tuple[TaskRecord, ...]

    @property
    def layout(self) -> Layout:
        """What a dataset of the model looks like."""
        return Layout.of(self.compiled, self.structure.row)

    @property
    def density(self) -> Density:
        """The compiled log density of z and a dataset."""
        return Density(self.compiled, self.structure.row)

    @abstractmethod
    def bank(
        self, checkpoint: str | os.PathLike | None = None, *, progressbar: bool
    ) -> Bank | None:
        """The simulations that pretraining sees again and again: the same ones every time."""

    def pretrain(
        self,
        more_steps: int,
        *,
        learning_rate: float | None = None,
        checkpoint: str | os.PathLike | None = None,
        devices: DevicesLike = None,
        progressbar: bool = True,
    ) -> Self:
        """Go on with simulation-based pretraining and return the new posterior.

        Parameters
        ----------
        more_steps : int
        learning_rate : float, optional
            Highest rate; a third of the first training's where not given.
        checkpoint : path, optional
            Written after every block of steps; training goes on from it where it exists. What
            searches found lies beside it, in a file whose name ends with `.searches`.
        devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
            What each step's simulations are spread over; JAX's default device by default.
        progressbar : bool

        Raises
        ------
        ValueError
            After the first adaptation, forgotten or not: simulations would overwrite what was
            learned from data, and weights of before it are no longer those that pretraining ended
            with.
        """
        if self.pretrained is not None:
            names = [t.name for t in self.records] or "tasks that it was made to forget"
            raise ValueError(
                f"pretrain: the posterior has been adapted to {names}; expected one that was not. "
                "Pretrain first, then adapt."
            )
        rate = learning_rate if learning_rate is not None else self.settings.learning_rate / 3
        settings = replace(
            self.settings, steps=positive("more_steps", more_steps), learning_rate=rate
        )
        with precision.scope(), device_scope(devices):
            amortizer, record = pretrain(
                self.amortizer,
                self.simulator,
                settings,
                seed=self.seed + 1 + len(self.pretraining),
                bank=self.bank(checkpoint, progressbar=progressbar),
                checkpoint=checkpoint,
                progressbar=progressbar,
            )
        records = (*self.pretraining, record)
        return replace(self, amortizer=settled(amortizer), pretraining=records)  # type: ignore[type-var]
