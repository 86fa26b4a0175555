"""What arrives with a batch, read and checked: its rows and its time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pmcl.data.forms import in_form, is_frame
from pmcl.data.reading import as_task
from pmcl.data.task import DATASET, DataError, Layout, Task, TaskLike


def time_after(time: float | None, last: float, updates: int) -> float:
    """Return the time of a batch after the last one's; one more by default."""
    if time is None:
        return last + 1.0 if updates else 0.0
    if np.ndim(time) or np.asarray(time).dtype.kind not in "iuf":
        raise TypeError(
            "time: expected a number in the drift's units, such as days since the first batch, "
            f"got {time!r}."
        )
    if not np.isfinite(time) or (updates and time < last):
        least = f" of at least {last} (the last batch's time)" if updates else ""
        raise ValueError(f"time: expected a finite number{least}, got {time}.")
    return float(time)


def one_dataset(data: TaskLike, layout: Layout, row: str) -> Task:
    """Read rows of the one dataset that a stream is."""
    task = as_task(alone(data, layout), layout)
    if len(task) != 1:
        raise DataError(
            f"data: expected rows along dim {row!r}, got {len(task)} datasets; a stream "
            "has one posterior. Put the datasets' rows one after another, or use "
            "`fit_amortized` for a posterior of each."
        )
    return task


def _without_columns(data: Any, layout: Layout) -> Any:
    """Flatten columns of a number a row, such as `frame[["y"]].values`; not several datasets."""
    if not isinstance(data, Mapping) or isinstance(data, xr.Dataset):
        return data
    rank = {info.name: len(info.dims) for info in layout.variables}
    rank |= {held: rank[name] for held, name in layout.holders.items()}
    more = {k: np.asarray(v) for k, v in data.items() if np.ndim(v) > rank.get(k, np.ndim(v))}
    column = all(v.ndim == 2 and v.shape[1] == 1 < len(v) for v in more.values())
    return {**data, **{k: v[:, 0] for k, v in more.items()}} if column else data


def alone(data: Any, layout: Layout) -> Any:
    """Read data as of one dataset: no column of text, and no dim, tells them apart in a stream."""
    table = in_form(data) if hasattr(data, "columns") else data
    if not is_frame(table):
        return _without_columns(table, layout)
    named = DATASET in {*table.columns, *table.index.names}
    return table if named or not len(table) else table.assign(**{DATASET: "0"})
