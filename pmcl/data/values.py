"""Values that a model cannot have made, or that are no data but marks of what is missing."""

import numpy as np
import xarray as xr

from pmcl.compile.support import SENTINELS, in_row
from pmcl.data.task import DataError, Task
from pmcl.runtime.arguments import warn

_HUGE = 1e15  # of values this far from others, in units of their range, nothing is left of these


def check_values(task: Task) -> Task:
    """Refuse values that cannot be, and warn of those that look like no data.

    Returns
    -------
    Task
        The same.

    Raises
    ------
    DataError
        Where the distribution of an observed variable does not take a value, or one is so large
        that nothing is left of the others beside it: naming variable, dataset, row and value.

    Warns
    -----
    UserWarning
        Where values look like marks of what is missing, and where the model has observed values of
        its own as a constant, which these data are not.
    """
    support, bases = task.layout.support, task.layout.bases
    datasets = [task.dataset(i) for i in range(len(task))]
    by_name = [*zip(task.names, datasets, strict=True)]
    for name, one in by_name:
        outside = None if support is None else support.outside(one)
        if outside is not None:
            raise DataError(f"Variable {outside.variable!r} of dataset {name!r}: {outside}")
        if bases is not None and (said := bases.outside(one)):
            raise DataError(f"Dataset {name!r}: {said}")
    for name, one in by_name:
        if bases is not None and (said := bases.unmatched(one)):
            warn(f"Dataset {name!r}: {said}")
            break
    for info in task.layout.variables:
        values = np.asarray(task.values[info.name])
        suspect = (np.abs(values) >= _HUGE) | np.isin(values, _MARKS)
        for i in np.flatnonzero(suspect.reshape(len(task), -1).any(axis=1)):
            where = f"Variable {info.name!r} of dataset {task.names[i]!r}"
            _check_marks(np.asarray(datasets[i][info.name], float), where)
    for copy in task.layout.copies:
        if any(not np.array_equal(one[copy.variable], copy.values) for one in datasets):
            warn(str(copy))
    return task


_MARKS = sorted(SENTINELS - {-9.0, 99.0, 999.0})


def _check_marks(value: np.ndarray, where: str) -> None:
    """Look at values that stand far from the others of their dataset."""
    there = value[np.isfinite(value)]
    for mark in np.unique(there[(np.abs(there) >= _HUGE) | np.isin(there, _MARKS)]):
        huge = abs(mark) >= _HUGE
        rest = there[np.abs(there) < abs(mark)] if huge else there[there != mark]
        if not len(rest):
            continue
        low, high = float(rest.min()), float(rest.max())
        away = max(low - mark, mark - high)
        position = tuple(map(int, np.argwhere(value == mark)[0]))
        text = (
            f"{where}: got {mark:g}{in_row(position)} ({(value == mark).sum()} in all), where the "
            f"others are from {low:g} to {high:g}"
        )
        if huge and away > _HUGE * (high - low) > 0:
            raise DataError(
                f"{text}: beside it double precision has no digits left for them. Fill values of "
                "files look like this: write NaN, or leave those rows out."
            )
        if not huge and away > high - low:
            warn(
                f"{text}. It is taken as data; numbers like it often stand for a missing value: "
                "write NaN then."
            )


def check_decoded(value: xr.DataArray, where: str) -> None:
    """Refuse values that are still as a file codes them.

    Raises
    ------
    DataError
    """
    packed = [name for name in ("scale_factor", "add_offset") if name in value.attrs]
    marks = [value.attrs[name] for name in ("_FillValue", "missing_value") if name in value.attrs]
    marked = int(np.isin(value.values, np.ravel(marks)).sum()) if marks else 0
    if packed or marked:
        what = f"the attributes {packed}" if packed else f"{marked} values that mean missing"
        raise DataError(
            f"{where}: got {what}, as in a file that was opened without decoding. Open it with "
            "`xarray.open_dataset(path)`, or call `xarray.decode_cf`."
        )
