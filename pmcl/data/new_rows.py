"""New covariates for datasets that have groups of their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pmcl.data.forms import in_form, is_frame, several, with_index
from pmcl.data.labels import text
from pmcl.data.plain import array_of
from pmcl.data.task import DATASET, DataError, Task
from pmcl.runtime.arguments import listed


def new_rows(new: Any, task: Task, dim: str, by: str) -> dict[str, dict[str, np.ndarray]]:
    """New covariates of each dataset of a task: places for groups' names, and groups' own data.

    Parameters
    ----------
    new : xarray.Dataset, mapping or table
        One set for all datasets, or one each: by their names, in a column `dataset`, or along a dim
        of that name.
    task : Task
    dim : str
        That of the groups.
    by : str
        Name of the data that say to which group a row belongs; empty where there are none.

    Raises
    ------
    DataError
        Naming what was expected and what came.
    """
    if hasattr(new, "columns") or isinstance(new, Mapping | list | tuple):
        new = in_form(new)
    if not isinstance(new, Mapping) and not is_frame(new):
        raise DataError(
            "new_covariates: expected a mapping of arrays, a Dataset or a DataFrame, got "
            f"{type(new).__name__}."
        )
    each = _by_dataset(new, task)
    return {name: _of_one(each[i], task, i, dim, by) for i, name in enumerate(task.names)}


def _by_dataset(new: Any, task: Task) -> list[Any]:
    """A set for each dataset of a task."""
    number = len(task)
    if is_frame(new):
        new = with_index(new)
        if DATASET not in new.columns:
            return [new] * number
        found = {str(n): rows for n, rows in new.groupby(DATASET, sort=False)}
    elif several(new, task.layout.names):
        found = {str(n): in_form(one) for n, one in new.items()}
    elif isinstance(new, xr.Dataset) and DATASET in new.coords:
        found = {str(n): new.sel({DATASET: n}) for n in new[DATASET].values}
    else:
        ndim = {i.name: len(i.dims) for i in task.layout.variables}
        arrays = {str(n): np.asarray(v) for n, v in new.items()}
        own = [n for n, v in arrays.items() if v.ndim > ndim.get(n, v.ndim)]
        wrong = {n: len(arrays[n]) for n in own if len(arrays[n]) not in (1, number)}
        if wrong:
            raise DataError(f"new_covariates: expected {number} datasets, got {wrong}.")
        whole = {n: np.broadcast_to(arrays[n], (number, *arrays[n].shape[1:])) for n in own}
        return [{**arrays, **{n: v[i] for n, v in whole.items()}} for i in range(number)]
    if {*found} != {*task.names}:
        raise DataError(
            f"new_covariates: expected the datasets {listed(task.names)}, got {listed([*found])}."
        )
    return [found[name] for name in task.names]


def _of_one(new: Any, task: Task, i: int, dim: str, by: str) -> dict[str, np.ndarray]:
    """New covariates of one dataset, of which groups have those of the data where none came."""
    assert task.labels is not None
    labels, frame = task.labels[i], is_frame(new)
    where = "new_covariates" if len(task) == 1 else f"new_covariates of dataset {task.names[i]!r}"
    found = {str(n): array_of(new[n]) if frame else np.asarray(new[n]) for n in new}
    if by and by not in found and dim in found:
        found[by] = found.pop(dim)
    if by in found:
        places, old = {label: j for j, label in enumerate(labels)}, found[by]
        unknown = [n for n in dict.fromkeys(text(old.ravel())) if n not in places]
        if unknown:
            raise DataError(
                f"{where}: expected groups of {listed([*places])} in {by!r}, got "
                f"{listed(unknown)}. A new group is one without rows in the data; datasets with "
                "different groups have rows of their own, by a column 'dataset' or a mapping."
            )
        found[by] = np.array([places[n] for n in text(old.ravel())]).reshape(old.shape)
    infos, own = task.layout.variables[task.layout.n_observed :], task.dataset(i)
    for info in infos:
        if dim not in info.dims or (info.name not in found and info.dims != (dim,)):
            continue
        axis = info.dims.index(dim)
        if info.name not in found or (frame and info.dims == (dim,)):
            found[info.name] = own[info.name]
        size, came = info.shape[axis], found[info.name].shape[axis]
        if came < len(labels):
            raise DataError(
                f"{where}: expected {info.name!r} of {len(labels)} groups along {dim!r}, got "
                f"{came}."
            )
        found[info.name] = found[info.name].take(np.minimum(np.arange(size), came - 1), axis=axis)
    return {i.name: found[i.name] for i in infos if i.name in found}
