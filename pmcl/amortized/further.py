"""Pretraining that goes on where it ended, of either kind of posterior."""

import os
from dataclasses import replace
from typing import Protocol

from pmcl.compile import Simulator
from pmcl.continual import TaskRecord
from pmcl.networks import Amortizer
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive
from pmcl.runtime.devices import DevicesLike, settled
from pmcl.runtime.devices import scope as device_scope
from pmcl.training import Bank, PretrainingRecord, PretrainingSettings, pretrain


class Pretrained(Protocol):
    """What of a posterior pretraining goes on with."""

    @property
    def simulator(self) -> Simulator: ...
    @property
    def amortizer(self) -> Amortizer: ...
    @property
    def settings(self) -> PretrainingSettings: ...
    @property
    def seed(self) -> int: ...
    @property
    def pretraining(self) -> tuple[PretrainingRecord, ...]: ...
    @property
    def pretrained(self) -> Amortizer | None: ...
    @property
    def records(self) -> tuple[TaskRecord, ...]: ...

    def bank(
        self, checkpoint: str | os.PathLike | None = None, *, progressbar: bool
    ) -> Bank | None:
        """The simulations that pretraining sees again and again."""


def pretrained_further(
    posterior: Pretrained,
    more_steps: int,
    *,
    learning_rate: float | None,
    checkpoint: str | os.PathLike | None,
    devices: DevicesLike,
    progressbar: bool,
) -> tuple[Amortizer, tuple[PretrainingRecord, ...]]:
    """Take more steps, at a third of the first rate where none is given; weights, and records.

    Raises
    ------
    ValueError
        After the first adaptation, forgotten or not: simulations would overwrite what was learned
        from data, and weights of before it are no longer those that pretraining ended with.
    """
    if posterior.pretrained is not None:
        names = [t.name for t in posterior.records] or "tasks that it was made to forget"
        raise ValueError(
            f"pretrain: the posterior has been adapted to {names}; expected one that was not. "
            "Pretrain first, then adapt."
        )
    rate = learning_rate if learning_rate is not None else posterior.settings.learning_rate / 3
    settings = replace(
        posterior.settings, steps=positive("more_steps", more_steps), learning_rate=rate
    )
    with precision.scope(), device_scope(devices):
        amortizer, record = pretrain(
            posterior.amortizer,
            posterior.simulator,
            settings,
            seed=posterior.seed + 1 + len(posterior.pretraining),
            bank=posterior.bank(checkpoint, progressbar=progressbar),
            checkpoint=checkpoint,
            progressbar=progressbar,
        )
    return settled(amortizer), (*posterior.pretraining, record)
