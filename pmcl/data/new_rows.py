"""New covariates for datasets that have groups of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pmcl.compile import VariableInfo
from pmcl.data.forms import in_form, is_frame, several, with_index
from pmcl.data.label_text import labels_of, name_of, numbers, text
from pmcl.data.labels import check_places, with_labels
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
    if is_frame(new):
        new = with_index(new)
        if DATASET not in new.columns:
            return [new] * len(task)
        return _in_order({str(n): rows for n, rows in new.groupby(DATASET, sort=False)}, task)
    if several(new, task.layout.names):
        return _in_order({str(n): in_form(one) for n, one in new.items()}, task)
    infos = {i.name: i for i in task.layout.variables}
    each = {str(n): _of_each(str(n), v, infos.get(str(n)), task) for n, v in new.items()}
    return [{n: values[i] for n, values in each.items()} for i in range(len(task))]


def _in_order(found: dict[str, Any], task: Task) -> list[Any]:
    """By datasets' names, or by position where these are numbers; one without a name is for all."""
    number = len(task)
    if {*found} == {*task.names}:
        return [found[name] for name in task.names]
    if len(found) == 1 and numbers(1) in ([*found], [*task.names]):
        return [*found.values()] * number
    if {*found} == {*numbers(number)}:
        return [found[n] for n in numbers(number)]
    raise DataError(
        f"new_covariates: expected the datasets {listed(task.names)}, got {listed([*found])}."
    )


def _of_each(name: str, value: Any, info: VariableInfo | None, task: Task) -> list[Any]:
    """The value of one variable for each dataset: one for all, or one each."""
    value = value if info is None else with_labels(value, info)
    if isinstance(value, xr.DataArray) and DATASET in value.dims:
        names = [name_of(n) for n in value[DATASET].values]
        return _in_order({n: value.isel({DATASET: i}) for i, n in enumerate(names)}, task)
    if info is None or np.ndim(value) <= len(info.dims):
        return [value] * len(task)
    value = np.asarray(value)
    if len(value) not in (1, len(task)):
        raise DataError(
            f"new_covariates: expected {len(task)} datasets, got {len(value)} of {name!r}."
        )
    return [value[i % len(value)] for i in range(len(task))]


def _by_label(value: Any, info: VariableInfo | None, dim: str, names: Sequence[str]) -> np.ndarray:
    """Values whose groups are in the order of the data's, by their labels where both have some."""
    value = value if info is None else with_labels(value, info)
    if info is None or not isinstance(value, xr.DataArray):
        return np.asarray(value)
    if {*value.dims} == {*info.dims}:
        value = value.transpose(*info.dims)
    if dim in value.dims and dim in value.coords:
        theirs = labels_of(value, dim)
        if {*theirs} >= {*names}:
            value = value.isel({dim: [theirs.index(n) for n in names]})
        elif numbers(len(theirs)) != theirs and numbers(len(names)) != [*names]:
            raise DataError(
                f"expected {info.name!r} of the groups {listed(names)} along {dim!r}, got "
                f"{listed(theirs)}."
            )
    return np.asarray(value)


def _of_one(new: Any, task: Task, i: int, dim: str, by: str) -> dict[str, np.ndarray]:
    """New covariates of one dataset, of which groups have those of the data where none came."""
    assert task.labels is not None
    labels, frame = task.labels[i], is_frame(new)
    where = "new_covariates" if len(task) == 1 else f"new_covariates of dataset {task.names[i]!r}"
    new = with_index(new) if frame else new
    infos = {v.name: v for v in task.layout.variables}
    try:
        found = {
            str(n): array_of(new[n]) if frame else _by_label(new[n], infos.get(n), dim, labels)
            for n in new
        }
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if by and by not in found and dim in found:
        found[by] = found.pop(dim)
    named = by if by in found else dim if frame and dim in found else ""
    if named:
        places, old = {label: j for j, label in enumerate(labels)}, found[named]
        if not frame:
            check_places(old, labels, f"{where}: {named!r}")
        unknown = [n for n in dict.fromkeys(text(old.ravel())) if n not in places]
        if unknown:
            raise DataError(
                f"{where}: expected groups of {listed([*places])} in {named!r}, got "
                f"{listed(unknown)}. A new group is one without rows in the data; datasets with "
                "different groups have rows of their own, by a column 'dataset' or a mapping."
            )
        found[named] = np.array([places[n] for n in text(old.ravel())]).reshape(old.shape)
    covariates, own = task.layout.variables[task.layout.n_observed :], task.dataset(i)
    most = max(map(len, task.labels))
    for info in covariates:
        if dim not in info.dims or (info.name not in found and info.dims != (dim,)):
            continue
        axis = info.dims.index(dim)
        if info.name not in found:
            found[info.name] = own[info.name]
            continue
        if frame and named and info.dims == (dim,):
            column, rows = found[info.name], found[named]
            values = own[info.name].astype(np.result_type(own[info.name], column))
            values[rows] = column
            if (values[rows] != column).any():
                raise DataError(f"{where}: expected one value of {info.name!r} for each group.")
            found[info.name] = values.take(np.arange(len(labels)), axis=axis)
        size, shape = info.shape[axis], found[info.name].shape
        came = shape[axis] if len(shape) == len(info.dims) else f"shape {shape}"
        if came not in (len(labels), most):
            raise DataError(
                f"{where}: expected {info.name!r} of {len(labels)} groups along {dim!r}, got "
                f"{came}."
            )
        last = len(labels) - 1
        found[info.name] = found[info.name].take(np.minimum(np.arange(size), last), axis=axis)
    return {i.name: found[i.name] for i in covariates if i.name in found}
