"""What a posterior has been through, as labelled data: losses, retention, transfer."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from pmcl.continual.adaptation import STEPS, AdaptationRecord
from pmcl.continual.judgement import Quality
from pmcl.continual.objectives.objectives import AbstractObjective
from pmcl.continual.objectives.teacher import TeacherDistillation
from pmcl.continual.strategies.strategy import AbstractStrategy
from pmcl.metrics import transfer
from pmcl.training import PretrainingRecord
from pmcl.training.pretraining import BLOCK

if TYPE_CHECKING:
    import pandas as pd

_PRETRAINING = "pretraining"
_MEASURES = ("sc_variance", "khat", "efficiency")


class TaskRecord(NamedTuple):
    """One adaptation.

    Attributes
    ----------
    name : str
    strategies : tuple of AbstractStrategy
    objective : AbstractObjective
    record : AdaptationRecord
    pretrained, before, after : Quality
        Of the task's datasets, at the pretrained weights, before the task and after it.
    stored : dict of str to Quality
        Of the earlier tasks' stored datasets, after the task.
    lost : tuple of str
        Datasets of whose posterior `PathGradient` lost a part, or on which it made the network
        worse, where the objective was left open.
    content : int, optional
        Check sum of the task's datasets; None in states of before it was recorded.
    """

    name: str
    strategies: tuple[AbstractStrategy, ...]
    objective: AbstractObjective
    record: AdaptationRecord
    pretrained: Quality
    before: Quality
    after: Quality
    stored: dict[str, Quality]
    lost: tuple[str, ...] = ()
    content: int | None = None

    @property
    def taught(self) -> bool:
        """Whether the objective was left open, and refined draws had to be learned from."""
        return bool(self.lost) and isinstance(self.objective, TeacherDistillation)

    def without(self, task: str) -> "TaskRecord":
        """Return the record without what it says of another task."""
        return self._replace(stored={k: v for k, v in self.stored.items() if k != task})


def history_tree(records: Sequence[TaskRecord]) -> xr.DataTree:
    """Build the history: groups adaptation, losses, datasets, retention and transfer.

    In `retention` rows are moments (`pretraining`, then after each task), columns tasks: means over
    the datasets of the task when it arrives, over those still stored later, NaN where none is.
    """
    tasks = _distinct([r.name for r in records])
    groups = {
        "adaptation": _adaptation(records, tasks),
        "losses": _losses(records, tasks),
        "datasets": _datasets(records, tasks),
        "retention": _retention(records, tasks),
    }
    if records:
        by_measure = {
            name: xr.Dataset(transfer(groups["retention"][name].values)._asdict())
            for name in _MEASURES
        }
        groups["transfer"] = xr.concat(
            list(by_measure.values()), dim=xr.IndexVariable("measure", list(_MEASURES))
        )
    return xr.DataTree.from_dict(groups)


def losses_frame(
    pretraining: Sequence[PretrainingRecord], records: Sequence[TaskRecord]
) -> "pd.DataFrame":
    """Every training loss, a row a step; that of what is held back where it was taken."""
    import pandas as pd

    runs = [(_PRETRAINING, r.losses, r.validation, BLOCK) for r in pretraining]
    tasks = zip(_distinct([r.name for r in records]), records, strict=True)
    runs += [(name, r.record.losses, r.record.held_back, STEPS) for name, r in tasks]
    columns = ("training", "step", "loss", "held_back")
    parts = [pd.DataFrame([], columns=columns)]
    for name, losses, held_back, block in runs:
        n = len(losses)
        ends = np.minimum((np.arange(len(held_back)) + 1) * block, n) - 1
        found = np.full(n, np.nan)
        found[ends] = held_back
        one = {"training": name, "step": np.arange(1, n + 1), "loss": losses, "held_back": found}
        parts.append(pd.DataFrame(one, columns=columns))
    return pd.concat([p for p in parts if len(p)] or parts, ignore_index=True)


def _distinct(names: Sequence[str]) -> list[str]:
    """Names with a number where one came before."""
    found: list[str] = []
    for name in names:
        label, again = name, 1
        while label in found:
            again += 1
            label = f"{name} ({again})"
        found.append(label)
    return found


def _adaptation(records: Sequence[TaskRecord], tasks: list[str]) -> xr.Dataset:
    columns = {
        "strategy": [" + ".join(map(_described, r.strategies)) for r in records],
        "objective": [_described(r.objective) for r in records],
        "steps": [r.record.steps for r in records],
        "stopped": [r.record.stopped for r in records],
        "skipped": [r.record.skipped for r in records],
        "n_datasets": [r.record.datasets for r in records],
        "rehearsed": [r.record.rehearsed for r in records],
        "excluded": [", ".join(r.record.excluded) for r in records],
        "untrusted": [", ".join(r.record.untrusted) for r in records],
        "lost": [", ".join(r.lost) for r in records],
        "objective_at_end": [_last(r.record.held_back) for r in records],
    }
    found = xr.Dataset({k: ("task", v) for k, v in columns.items()}, coords={"task": tasks})
    found["seconds"] = ("task", [r.record.seconds for r in records], {"units": "s"})
    found["objective_at_end"].attrs["units"] = "nats per dataset"
    return found


def _last(values: np.ndarray) -> float:
    return float(values[-1]) if len(values) else np.nan


def _described(options: AbstractStrategy | AbstractObjective) -> str:
    """Name of a strategy or an objective, with what is not as by default."""
    fields = dataclasses.fields(options)
    changed = [f for f in fields if getattr(options, f.name) != f.default]
    values = ", ".join(f"{f.name}={getattr(options, f.name)!r}" for f in changed)
    return f"{type(options).__name__}({values})"


def _losses(records: Sequence[TaskRecord], tasks: list[str]) -> xr.Dataset:
    def padded(rows: list[np.ndarray]) -> np.ndarray:
        table = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        return table

    loss = padded([r.record.losses for r in records])
    held_back = padded([r.record.held_back for r in records])
    efficiency = padded([r.record.efficiency for r in records])
    return xr.Dataset(
        {
            "loss": (("task", "step"), loss, {"units": "nats per dataset"}),
            "held_back": (("task", "block"), held_back, {"units": "nats per dataset"}),
            "efficiency": (("task", "block"), efficiency),
        },
        coords={
            "task": tasks,
            "step": np.arange(loss.shape[1]),
            "block": np.arange(held_back.shape[1]),
        },
    )


def _datasets(records: Sequence[TaskRecord], tasks: list[str]) -> xr.Dataset:
    """One entry for every dataset of every task, right after the task."""
    after = [r.after for r in records]
    labels = {
        "task": [t for t, q in zip(tasks, after, strict=True) for _ in q.names],
        "dataset": [n for q in after for n in q.names],
    }
    values = {
        m: ("entry", np.concatenate([getattr(q, m) for q in after]) if after else np.zeros(0))
        for m in _MEASURES
    }
    return xr.Dataset(values, coords={k: ("entry", v) for k, v in labels.items()})


def _retention(records: Sequence[TaskRecord], tasks: list[str]) -> xr.Dataset:
    n = len(records)
    tables = {m: np.full((n + 1, n), np.nan) for m in _MEASURES}
    number = np.zeros((n + 1, n), int)

    def put(row: int, column: int, found: Quality) -> None:
        for name, value in zip(_MEASURES, found.means(), strict=True):
            tables[name][row, column] = value
        number[row, column] = len(found.names)

    for t, record in enumerate(records):
        put(0, t, record.pretrained)
        put(t, t, record.before)
        put(t + 1, t, record.after)
        for name, found in record.stored.items():
            # A task that came twice under one name is stored under that name: the latest counts.
            earlier = [j for j in range(t) if records[j].name == name]
            if earlier:
                put(t + 1, earlier[-1], found)
    dims = ("after", "task")
    matrix = xr.Dataset(
        {**{k: (dims, v) for k, v in tables.items()}, "n_datasets": (dims, number)},
        coords={"after": [_PRETRAINING, *tasks], "task": tasks},
    )
    matrix["sc_variance"].attrs["units"] = "nats^2"
    return matrix
