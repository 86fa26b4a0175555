"""Users' data, in any of the forms that they have, as a task."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pmcl.compile import CompiledModel, VariableInfo
from pmcl.data.constants import as_in_model, with_labels_of_constants
from pmcl.data.forms import in_form, is_frame, several
from pmcl.data.label_text import name_of, numbers
from pmcl.data.labels import in_dims, together, with_labels
from pmcl.data.order import check_one_order, check_order
from pmcl.data.plain import alike, plain
from pmcl.data.stacking import stack
from pmcl.data.tables import from_frame, one_table
from pmcl.data.task import DATASET, DataError, Layout, Task, TaskLike
from pmcl.data.values import check_decoded, check_values
from pmcl.runtime.arguments import warn


def as_task(data: TaskLike, layout: Layout) -> Task:
    """Check data against the model and turn them into a :class:`Task`.

    Parameters
    ----------
    data : xarray.Dataset, mapping, sequence, table or Task
        A Dataset or a mapping of arrays with a leading `dataset` dim (a single dataset may leave it
        out); a table with one column a variable (``X[label]`` for a variable with a second dim),
        and a column `dataset` where it holds several; or a mapping from a dataset's name to one
        dataset in these forms, a sequence of them, or a table that is grouped. A table is a
        `pandas.DataFrame`, or one that narwhals reads (polars, PyArrow).
    layout : Layout

    Raises
    ------
    DataError
        Naming the variable and the dataset, what was expected and what came.
    """
    if isinstance(data, Task) and data.layout.variables == layout.variables:
        if data.layout.row == layout.row:
            return data
    task = check_values(_as_task(data, layout))
    n, own = len(task), layout.length
    unlike = task.width == 1 or n == own
    came: Any = data if isinstance(data, Mapping) else {}
    frames = [came[k] for k in layout.names if k in came and is_frame(came[k])]
    tables = any(DATASET not in (frame.index.name, frame.columns.name) for frame in frames)
    nameless = tables or [*task.names] == numbers(n)
    if n > 1 and own > 1 and unlike and task.width != own and nameless:
        rows = "one row" if task.width == 1 else f"{task.width} rows"
        warn(
            f"data: arrays are read as {n} datasets of {rows}, as the first dim is that of "
            f"datasets; the model's own has {own} rows. If rows come first, transpose them "
            "(`y.T`), or give the column of one dataset as `y.ravel()`."
        )
    return task


def _as_task(data: TaskLike, layout: Layout) -> Task:
    if isinstance(data, Task):
        names = [n for n in data.values if n not in layout.others]
        _check_names(names, layout, "")
        return stack([data.dataset(i) for i in range(len(data))], data.names, layout)
    data = in_form(data)
    if is_frame(data):
        return from_frame(data, layout)  # type: ignore[arg-type]
    if not isinstance(data, Mapping):  # an xarray.Dataset is one
        raise DataError(
            "data: expected an xarray.Dataset, a mapping of arrays, a mapping from dataset names "
            f"to Datasets or a pandas.DataFrame, got {type(data).__name__}; `list(...)` of what is "
            "iterated over, `dict(...)` of pairs of a name and a dataset."
        )
    if several(data, [*layout.names, *layout.holders]):
        parts = [(name_of(name), in_form(one)) for name, one in data.items()]
        datasets = [read_one(one, layout, name) for name, one in parts]
        check_one_order(dict(parts), layout)
        return stack(datasets, [name for name, _ in parts], layout)
    return stack(*read_arrays(data, layout, ""), layout)


def read_one(data: object, layout: Layout, name: str) -> dict[str, np.ndarray]:
    """Read what is one dataset, by its name.

    Raises
    ------
    DataError
        Naming the variable; where it has several.
    """
    data = in_form(data)
    if is_frame(data):
        return one_table(data, layout, name)  # type: ignore[arg-type]
    assert isinstance(data, Mapping)
    found, _ = read_arrays(data, layout, f" of dataset {name!r}")
    if len(found) != 1:
        raise DataError(f"Dataset {name!r}: expected one dataset under one name, got {len(found)}.")
    return found[0]


def read_arrays(
    data: Mapping, layout: Layout, where: str
) -> tuple[list[dict[str, np.ndarray]], list[str]]:
    """Read one dataset, or several along a dim `dataset`; return their arrays and names.

    Raises
    ------
    DataError
        Naming the variable.
    """
    came = _with_coordinates(data, layout)
    data = _by_variable(came, layout, where)
    _check_names(data, layout, where)
    infos = {i.name: i for i in layout.variables}
    each = in_lists(data, layout)
    if each:
        parts = [read_arrays(one, layout, f" of dataset {n!r}")[0][0] for n, one in each.items()]
        check_one_order(each, layout)
        return parts, [*each]
    for name, value in data.items():
        _check_long(value, infos[str(name)], where)
    values = {str(k): with_labels(v, infos[str(k)]) for k, v in data.items()}
    _check_one_name(values, where)
    values |= together({k: v for k, v in values.items() if isinstance(v, xr.DataArray)}, where)
    fixed = with_labels_of_constants({k: v for k, v in came.items() if k not in data}, layout)
    check_order(values | fixed, layout, where)
    found = {i.name: _variable(values[i.name], i, layout, where) for i in layout.variables}
    counts = {k: v.sizes[DATASET] for k, v in found.items() if DATASET in v.dims}
    if len({*counts.values()}) > 1:
        raise DataError(f"data{where}: variables have different numbers of datasets: {counts}.")
    n = next(iter(counts.values()), 1)
    names = [*map(str, range(n))]
    for value in values.values():
        if isinstance(value, xr.DataArray) and value.coords.get(DATASET, value).size == n:
            if DATASET in value.coords:
                names = [*map(name_of, np.atleast_1d(value.coords[DATASET].values))]
                break
    return [
        {k: plain((v[{DATASET: i}] if DATASET in v.dims else v).values) for k, v in found.items()}
        for i in range(n)
    ], names


def _check_one_name(values: Mapping[str, Any], where: str) -> None:
    """Refuse variables that were taken out of datasets of different names."""
    arrays = {k: v for k, v in values.items() if isinstance(v, xr.DataArray)}
    alone = {k: v.coords[DATASET] for k, v in arrays.items() if DATASET in v.coords}
    names = {k: name_of(v.values[()]) for k, v in alone.items() if v.ndim == 0}
    if len({*names.values()}) > 1:
        raise DataError(f"data{where}: expected variables of one dataset, got {names}.")


def _check_long(value: Any, info: VariableInfo, where: str) -> None:
    """Refuse values whose rows are of several datasets, by an index or a coordinate of theirs."""
    names: Any = ()
    if isinstance(value, xr.DataArray):
        if DATASET not in value.dims and DATASET in value.coords:
            names = value.coords[DATASET].values.ravel()
    elif DATASET in getattr(getattr(value, "index", None), "names", ()):
        column = len(info.dims) == 1 and value.shape[1:] == (1,)  # read as one dataset
        if info.dims and (value.ndim == len(info.dims) or column):
            names = value.index.get_level_values(DATASET)
    if len({*map(name_of, names)}) > 1:
        raise DataError(
            f"Variable {info.name!r}{where}: expected one dataset, or one for each element of a "
            f"leading dim {DATASET!r}; its rows have names of datasets. Pass a table with a row "
            f"for each of them, `pd.DataFrame({{{info.name!r}: ...}})`, whose index or column "
            f"{DATASET!r} has the names."
        )


def in_lists(data: Mapping, layout: Layout) -> dict[str, dict]:
    """Datasets where all came in lists, some of them of labelled arrays; else none."""
    lists = [v for v in data.values() if isinstance(v, list | tuple)]
    if not any(hasattr(one, "reindex") for v in lists for one in v):
        return {}
    dims = {i.name: len(i.dims) for i in layout.variables}
    dims |= {held: dims[name] for held, name in layout.holders.items()}
    every = all(
        (isinstance(v, list | tuple) or (isinstance(v, np.ndarray) and v.ndim))
        and all(np.ndim(one) == dims.get(str(k), -1) for one in v)
        for k, v in data.items()
    )
    if not every or len({*map(len, data.values())}) > 1:
        return {}
    return {str(i): {k: v[i] for k, v in data.items()} for i in range(len(lists[0]))}


def _by_variable(data: Mapping, layout: Layout, where: str) -> Mapping:
    """Give observations that came under the name of the `pm.Data` they replace the variable's.

    What says no more than the model does is left out: constants with the values that the model has,
    and a `pm.Data` beside its own observations, as results of PyMC have both.
    """
    twice = [k for k, v in layout.holders.items() if k in data and v in data]
    for held in twice:
        if not alike(data[held], data[layout.holders[held]]):
            raise DataError(
                f"data{where}: {held!r} holds the observations of {layout.holders[held]!r}, and "
                "both came, with different values: leave one of them out."
            )
    same = [k for k in layout.constants if k in data and as_in_model(data[k], k, layout, where)]
    same += [k for k in layout.others if k in data]
    new = {k: v for k, v in layout.holders.items() if k in data and v not in data}
    if isinstance(data, xr.Dataset):
        return data.drop_vars([*twice, *same]).rename(new)
    if not (twice or same or new):
        return data
    return {new.get(k, k): v for k, v in data.items() if k not in {*twice, *same}}


def _with_coordinates(data: Mapping, layout: Layout) -> Mapping:
    """Take covariates that came as coordinates of a Dataset, as they do from many files."""
    if not isinstance(data, xr.Dataset):
        return data
    dims = {d for info in layout.variables for d in info.dims}
    wanted = [n for n in layout.names if n in names_in(data, dims) and n in data.coords]
    data = data.reset_index([n for n in wanted if n in data.indexes])
    return data.reset_coords(wanted) if wanted else data


def names_in(data: xr.Dataset, dims: Collection[Hashable]) -> list[Hashable]:
    """Variables of a Dataset, and coordinates that are more than labels of one of these dims.

    An array over `x` has the values of `x` as labels.
    """
    return [*data.data_vars, *(n for n in data.coords if n not in data.dims or n not in dims)]


def _variable(value: object, info: VariableInfo, layout: Layout, where: str) -> xr.Variable:
    """Give a variable the model's dims, in its order, with a dim `dataset` in front if it came."""
    if isinstance(value, list | tuple):
        parts = [with_labels(v, info) for v in value]
        if any(isinstance(v, xr.DataArray) for v in parts):
            value = [_variable(v, info, layout, where).values for v in parts]
    where = f"Variable {info.name!r}{where}"
    if isinstance(value, xr.DataArray):
        check_decoded(value, where)
        return in_dims(value, info, layout, where).variable
    if isinstance(value, list | tuple):
        value = _stacked(value, info, where)
    array = plain(value)
    if array.dtype == object and not array.ndim:
        raise DataError(
            f"{where}: expected shape {layout.expected(info)}, got {type(value).__name__}, which "
            "NumPy does not read as an array: `list(...)` of what is iterated over, `.toarray()` "
            "of a sparse matrix."
        )
    if array.ndim not in (len(info.dims), len(info.dims) + 1):
        raise DataError(
            f"{where}: expected shape {layout.expected(info)}, with or without a leading dim "
            f"{DATASET!r}, got {array.shape}."
        )
    dims = info.dims if array.ndim == len(info.dims) else (DATASET, *info.dims)
    return xr.Variable(dims, array)


def _stacked(values: Sequence, info: VariableInfo, where: str) -> object:
    """Stack a list of arrays; masks stay."""
    join = np.ma.stack if any(np.ma.isMaskedArray(v) for v in values) else np.asarray
    try:
        return join(values)
    except ValueError as error:
        lengths = sorted({len(v) for v in values if hasattr(v, "__len__")})
        raise DataError(
            f"{where}: expected arrays of one length, got lengths {lengths}; datasets of different "
            f"lengths are a mapping from each one's name to its values: "
            f'{{"name": {{{info.name!r}: ...}}, ...}}.'
        ) from error


def _check_names(data: Iterable, layout: Layout, where: str) -> None:
    came = list(data)
    missing = [n for n in layout.names if n not in came]
    if missing:
        raise DataError(
            f"data{where}: expected the variables {layout.names}, {missing} did not come (got "
            f"{came}). Every observed variable and every covariate is needed."
        )
    unknown = [n for n in came if n not in layout.names]
    constant = [n for n in unknown if n in layout.constants]
    if constant:
        raise DataError(
            f"data{where}: {constant} are `pm.Data` that were no covariates when the model was "
            "compiled: a constant, with other values in the model. Fit it again with "
            f"covariates={constant}, or leave them out."
        )
    if unknown:
        raise DataError(
            f"data{where}: {unknown} is neither an observed variable nor a covariate of the model; "
            f"expected {layout.names}."
        )


def task_of(compiled: CompiledModel, data: TaskLike) -> Task:
    """Read data where no network says which dim has the rows."""
    return as_task(data, layout_of(compiled))


def layout_of(compiled: CompiledModel) -> Layout:
    """Say what a dataset looks like; its rows are along the first dim that all observed have."""
    return Layout.of(compiled, next(iter(compiled.shared_dims), None))
