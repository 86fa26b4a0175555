"""What arrives with a batch, read and checked: its rows and its time."""

import numpy as np

from pmcl.data.reading import as_task
from pmcl.data.task import DataError, Layout, Task, TaskLike


def time_after(time: float | None, last: float, updates: int) -> float:
    """Return the time of a batch after the last one's; one more by default."""
    if time is None:
        return last + 1.0 if updates else 0.0
    if np.ndim(time) or not np.issubdtype(np.asarray(time).dtype, np.number):
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
    task = as_task(data, layout)
    if len(task) != 1:
        raise DataError(
            f"data: expected rows along dim {row!r}, got {len(task)} datasets; a stream "
            "has one posterior. Put the datasets' rows one after another, or use "
            "`fit_amortized` for a posterior of each."
        )
    return task
