"""One task after another: what is stored is carried over, the network adapted, judged, recorded."""

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from pmcl.continual.adaptation import AdaptationSettings
from pmcl.continual.coverage import adapt_covering
from pmcl.continual.history import TaskRecord
from pmcl.continual.judgement import quality, quality_of_memory
from pmcl.continual.objectives.objectives import AbstractObjective
from pmcl.continual.objectives.teacher import TeacherDistillation
from pmcl.continual.strategies.states import StrategyState, carried, memory_of, stored
from pmcl.continual.strategies.strategy import AbstractStrategy, Occasion
from pmcl.networks import Amortizer
from pmcl.runtime.arguments import listed
from pmcl.runtime.devices import DevicesLike
from pmcl.training.run import Callback


class AdaptationOptions(TypedDict, total=False):
    """Options of an adaptation to one task: see :meth:`pmcl.AmortizedPosterior.adapt`."""

    objective: AbstractObjective | None
    steps: int
    learning_rate: float | Callable[[int], float]
    batch_size: int
    clip: float
    warmup: int
    patience: int | None
    restore_best: bool
    checkpoint: str | os.PathLike | None
    callback: Callback | None
    devices: DevicesLike
    random_seed: int | None
    progressbar: bool


class Past(NamedTuple):
    """What a network has been through.

    Attributes
    ----------
    pretrained : Amortizer
        The weights before the first task.
    states : tuple of StrategyState
        What strategies have stored.
    records : tuple of TaskRecord
        One a task.
    """

    pretrained: Amortizer
    states: tuple[StrategyState, ...]
    records: tuple[TaskRecord, ...]


def learn(
    now: Occasion,
    past: Past,
    *,
    strategies: Sequence[AbstractStrategy],
    objective: AbstractObjective | None,
    settings: AdaptationSettings,
    checkpoint: Path | None,
    callback: Callback | None = None,
    progressbar: bool,
) -> tuple[Amortizer, Past]:
    """Adapt a network to a task; return it, and the past with this task in it.

    Parameters
    ----------
    now : Occasion
        The task, and the network before it.
    past : Past
    strategies : sequence of AbstractStrategy
    objective : AbstractObjective, optional
        None: the one that loses nothing (:func:`pmcl.continual.adapt_covering`).
    settings : AdaptationSettings
    checkpoint : Path, optional
    callback : callable, optional
    progressbar : bool
    """
    done = [r.name for r in past.records]
    if objective is None and any(r.taught for r in past.records):
        objective = TeacherDistillation()
    found, chosen, lost = adapt_covering(
        now,
        objective=objective,
        checkpoint=checkpoint,
        callback=callback,
        strategies=strategies,
        states=carried(strategies, past.states, done, now),
        settings=settings,
        progressbar=progressbar,
    )
    states = stored(past.states, strategies, found.states, [*done, now.name])
    first = found.before
    if past.pretrained is not now.amortizer:
        first = quality(past.pretrained, now.density, now.task, seed=now.seed)
    earlier = quality_of_memory(found.amortizer, now.density, memory_of(states), seed=now.seed)
    if found.record.stopped == "given back":
        warnings.warn(
            f"adapt: the network is as it was before {now.name!r}: {found.record.steps} steps of "
            f"{type(chosen).__name__} made its own draws of these and of stored datasets less "
            f"efficient (of {listed(found.worse)}). Draws are refined where they need it all the "
            "same; a network that saw more simulations may need no adapting. patience=None takes "
            "the steps in any case.",
            stacklevel=3,
        )
    record = TaskRecord(
        now.name,
        tuple(strategies),
        chosen,
        found.record,
        first,
        found.before,
        found.after,
        earlier,
        lost,
    )
    return found.amortizer, Past(past.pretrained, states, (*past.records, record))
