"""What happened - pretraining, tasks - as data, and back."""

from typing import Any

import numpy as np
import xarray as xr

from pmcl.archive.configuration import decode, dumps, encode, loads
from pmcl.archive.errors import StateError
from pmcl.continual import (
    AbstractObjective,
    AbstractStrategy,
    AdaptationRecord,
    Quality,
    TaskRecord,
)
from pmcl.training import PretrainingRecord

# of an adaptation: name and dim as they are stored
_SERIES = {
    "losses": ("loss", "step"),
    "held_back": ("held_back", "block"),
    "efficiency": ("efficiency", "block"),
}

_MEASURES = ("sc_variance", "khat", "efficiency")


def pretraining_to_dataset(record: PretrainingRecord) -> xr.Dataset:
    """One training on simulations."""
    rest = {k: v for k, v in record._asdict().items() if k not in ("losses", "validation")}
    return xr.Dataset(
        {"loss": ("step", record.losses), "validation": ("block", record.validation)},
        attrs={"record": dumps({k: _plain(v) for k, v in rest.items()})},
    )


def pretraining_from_dataset(data: xr.Dataset, *, where: str) -> PretrainingRecord:
    """Read it back."""
    rest = _fields(data, PretrainingRecord._fields[2:], where)
    return PretrainingRecord(
        losses=_values(data, "loss", where), validation=_values(data, "validation", where), **rest
    )


def task_to_tree(record: TaskRecord) -> dict[str, xr.Dataset]:
    """One adaptation: groups by name."""
    happened: dict[str, Any] = record.record._asdict()
    series = {name: (dim, happened.pop(field)) for field, (name, dim) in _SERIES.items()}
    attrs = {
        "name": record.name,
        "strategies": dumps([encode(s, where="strategy") for s in record.strategies]),
        "objective": dumps(encode(record.objective, where="objective")),
        "record": dumps({k: _plain(v) for k, v in happened.items()}),
        "lost": dumps(list(record.lost)),
        "content": dumps(record.content),
    }
    found = {
        "": xr.Dataset(series, attrs=attrs),
        "pretrained": _quality(record.pretrained),
        "before": _quality(record.before),
        "after": _quality(record.after),
    }
    for i, (task, quality) in enumerate(record.stored.items()):
        found[f"stored {i}"] = _quality(quality).assign_attrs(task=task)
    return found


def task_from_tree(tree: xr.DataTree, *, where: str) -> TaskRecord:
    """Read it back."""
    data = tree.to_dataset()
    strategies = decode(loads(data.attrs.get("strategies"), where=where), where=where)
    objective = decode(loads(data.attrs.get("objective"), where=where), where=where)
    if not isinstance(strategies, tuple) or not all(
        isinstance(s, AbstractStrategy) for s in strategies
    ):
        raise StateError(f"{where}: expected strategies.")
    if not isinstance(objective, AbstractObjective):
        raise StateError(f"{where}: expected an objective.")
    rest = _fields(
        data,
        tuple(f for f in AdaptationRecord._fields if f not in _SERIES),
        where,
    )
    for name in ("excluded", "untrusted"):
        rest[name] = tuple(rest[name])
    # States of before it was recorded do not have it.
    if "efficiency" not in data:
        data = data.assign(efficiency=xr.full_like(data["held_back"], np.nan))
    happened: dict[str, Any] = {
        field: _values(data, name, where) for field, (name, _) in _SERIES.items()
    }
    record = AdaptationRecord(**happened, **rest)
    parts = {}
    for name in ("pretrained", "before", "after"):
        if name not in tree.children:
            raise StateError(f"{where}: expected a group {name!r}.")
        parts[name] = _read_quality(tree[name].to_dataset(), where)
    number = len([n for n in tree.children if n.startswith("stored ")])
    stored = {}
    for i in range(number):
        if f"stored {i}" not in tree.children:
            raise StateError(f"{where}: expected a group 'stored {i}'.")
        node = tree[f"stored {i}"].to_dataset()
        stored[str(node.attrs.get("task"))] = _read_quality(node, where)
    label = data.attrs.get("name")
    if not isinstance(label, str):
        raise StateError(f"{where}: expected the name of a task.")
    # States of before it was recorded do not have it.
    lost = loads(data.attrs.get("lost", "[]"), where=where)
    if not isinstance(lost, list) or not all(isinstance(n, str) for n in lost):
        raise StateError(f"{where}: expected names of datasets in 'lost'.")
    content = loads(data.attrs.get("content", "null"), where=where)
    if content is not None and type(content) is not int:
        raise StateError(f"{where}: expected a check sum of a task's datasets.")
    return TaskRecord(
        label, strategies, objective, record, parts["pretrained"], parts["before"], parts["after"],
        stored, tuple(lost), content,
    )  # fmt: skip


def _quality(found: Quality) -> xr.Dataset:
    values = {m: ("dataset", np.asarray(getattr(found, m), float)) for m in _MEASURES}
    return xr.Dataset(values, coords={"dataset": _names(found.names)})


def _read_quality(data: xr.Dataset, where: str) -> Quality:
    if "dataset" not in data.coords:
        raise StateError(f"{where}: expected names of datasets.")
    names = tuple(str(n) for n in data["dataset"].values)
    return Quality(names, *(_values(data, m, where) for m in _MEASURES))


def _names(names: tuple[str, ...]) -> np.ndarray:
    return np.asarray(names, dtype=str) if names else np.zeros(0, "U1")


def _values(data: xr.Dataset, name: str, where: str) -> np.ndarray:
    if name not in data or data[name].ndim != 1 or data[name].dtype.kind != "f":
        raise StateError(f"{where}: expected a series of numbers {name!r}.")
    return data[name].values


def _fields(data: xr.Dataset, names: tuple[str, ...], where: str) -> dict[str, Any]:
    found = loads(data.attrs.get("record"), where=where)
    if not isinstance(found, dict) or set(found) != set(names):
        raise StateError(f"{where}: expected a record of {list(names)}.")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
