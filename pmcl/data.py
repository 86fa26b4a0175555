"""Tasks as labelled data: the one place where labels become padded arrays, lengths and masks."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel, Mask, VariableInfo

if TYPE_CHECKING:
    import pandas as pd

type TaskLike = (
    xr.Dataset
    | Mapping[str, np.ndarray]
    | Mapping[str, xr.Dataset]
    | Mapping[str, Mapping[str, np.ndarray]]
    | pd.DataFrame
    | Task
)

DATASET = "dataset"


class DataError(ValueError):
    """Data that do not fit the model; the message names the variable and the dataset."""


class Batch(NamedTuple):
    """A task's arrays as the compiled functions take them.

    Attributes
    ----------
    values : dict of arrays of shape (dataset, ...)
        Padded along the row dim with copies of a dataset's last row, and filled where values are
        missing: all are valid.
    mask : Mask or None
        What is no padding and not missing; None where every dataset has the same length and all
        its values.
    """

    values: dict[str, Array]
    mask: Mask | None


@dataclass(frozen=True)
class Layout:
    """What a dataset of the model looks like.

    Attributes
    ----------
    variables : tuple of VariableInfo
        The observed variables, then the covariates.
    n_observed : int
    row : str or None
        The dim along which datasets may have different lengths.
    data_dims : frozenset of str
        Dims whose length may differ from the model's.
    coords : dict of str to array
        The model's coordinates.
    """

    variables: tuple[VariableInfo, ...]
    n_observed: int
    row: str | None
    data_dims: frozenset[str]
    coords: dict[str, np.ndarray]

    @classmethod
    def of(cls, compiled: CompiledModel, row: str | None) -> "Layout":
        return cls(compiled.data, len(compiled.observed), row, compiled.data_dims, compiled.coords)

    @property
    def names(self) -> list[str]:
        return [v.name for v in self.variables]

    @property
    def length(self) -> int:
        """The model's own length along the row dim; 0 where it has none."""
        pairs = (pair for v in self.variables for pair in zip(v.dims, v.shape, strict=True))
        return next((n for dim, n in pairs if dim == self.row), 0)

    def expected(self, info: VariableInfo) -> str:
        """Describe the shape that a dataset's variable must have."""
        sizes = [
            f"{d}: any" if d in self.data_dims else f"{d}: {n}"
            for d, n in zip(info.dims, info.shape, strict=True)
        ]
        return f"({', '.join(sizes)})"


@dataclass(frozen=True)
class Task:
    """Datasets that arrive together, checked against a model.

    Attributes
    ----------
    values : dict of array of shape (dataset, ...)
        Padded along the layout's row dim, and filled where values are missing.
    names : tuple of str
        One name a dataset.
    lengths : array of int of shape (dataset,) or None
        Length of each dataset along the row dim; None where the model has no row dim.
    first : int
        Position of the first dataset in the task that this one is a part of; random numbers follow
        from a dataset's position, so that parts give what the whole does.
    there : dict of array of bool of shape (dataset, ...)
        False where a value is missing; observed variables that lack some, and no others.
    maskable : bool
        Whether the likelihood is known to leave padding out, so that batches may have some.
    """

    layout: Layout
    values: dict[str, np.ndarray]
    names: tuple[str, ...]
    lengths: np.ndarray | None
    first: int = 0
    there: dict[str, np.ndarray] = field(default_factory=dict)
    maskable: bool = False

    def __len__(self) -> int:
        return len(self.names)

    @property
    def width(self) -> int:
        """Length along the row dim with padding; a part of a task keeps the whole's."""
        row = self.layout.row
        for info in self.layout.variables:
            if row in info.dims and info.name in self.values:
                return self.values[info.name].shape[1 + info.dims.index(row)]
        return 0 if self.lengths is None else int(self.lengths.max(initial=0))

    @property
    def ragged(self) -> bool:
        return self.lengths is not None and bool((self.lengths < self.width).any())

    @property
    def rows(self) -> np.ndarray | None:
        """False for padding, shape (dataset, row); None where there is none."""
        if not self.ragged:
            return None
        assert self.lengths is not None
        return np.arange(self.width) < self.lengths[:, None]

    @property
    def mask(self) -> Mask | None:
        rows = self.rows
        if rows is None and not self.there:
            return None
        return Mask(rows, dict(self.there))  # type: ignore[arg-type]

    @property
    def counts(self) -> np.ndarray:
        """Number of observed values of each dataset, without padding and what is missing."""
        total = np.zeros(len(self), int)
        rows = self.rows
        for info in self.layout.variables[: self.layout.n_observed]:
            value = self.values[info.name]
            there = self.there.get(info.name, np.ones(value.shape, bool))
            if rows is not None and self.layout.row in info.dims:
                axis = 1 + info.dims.index(self.layout.row)
                shape = [1] * value.ndim
                shape[0], shape[axis] = rows.shape
                there = there & rows.reshape(shape)
            total += there.reshape(len(self), -1).sum(axis=1)
        return total

    @property
    def padded(self) -> bool:
        """Whether batches have a mask of rows; those of the model's own length need none."""
        return self.ragged or (self.maskable and self.width != self.layout.length)

    @property
    def room(self) -> int:
        """Length along the row dim that batches have: one of a few, so that little is compiled.

        The model's own where that is near, else a power of two, or one and a half times one.
        """
        if not self.padded:
            return self.width
        own, found = self.layout.length, few_lengths(self.width)
        return own if self.width <= own <= found else found

    def batch(self) -> Batch:
        """Return the arrays as compiled functions take them, of the length `room`."""
        room, row = self.room, self.layout.row
        if not self.padded:
            return Batch(dict(self.values), self.mask)  # type: ignore[arg-type]
        assert self.lengths is not None
        dims = {v.name: v.dims for v in self.layout.variables}
        index = np.minimum(np.arange(room), self.width - 1)

        def filled(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {
                k: v.take(index, axis=1 + dims[k].index(row)) if row in dims[k] else v
                for k, v in arrays.items()
            }

        rows = np.arange(room) < self.lengths[:, None]
        return Batch(filled(self.values), Mask(rows, filled(self.there)))  # type: ignore[arg-type]

    def with_nan(self, name: str) -> np.ndarray:
        """Values of a variable, NaN where one is missing."""
        value = np.asarray(self.values[name])
        return np.where(self.there[name], value, np.nan) if name in self.there else value

    def dataset(self, i: int) -> dict[str, np.ndarray]:
        """Arrays of one dataset, without padding; NaN where a value is missing."""
        row = self.layout.row
        found = {}
        for info in self.layout.variables:
            value = np.asarray(self.values[info.name][i])
            if info.name in self.there and not self.there[info.name][i].all():
                value = np.where(self.there[info.name][i], value, np.nan)
            if row in info.dims and self.lengths is not None:
                value = value.take(np.arange(self.lengths[i]), axis=info.dims.index(row))
            found[info.name] = value
        return found

    def labelled(self) -> xr.Dataset:
        """Return the datasets as one `xarray.Dataset`.

        NaN where a value is missing, and past the end of the shorter ones.
        """
        found = {}
        for info in self.layout.variables:
            value = self.with_nan(info.name)
            rows, row = self.rows, self.layout.row
            if rows is not None and row in info.dims:
                shape = [1] * value.ndim
                shape[0], shape[1 + info.dims.index(row)] = rows.shape
                value = np.where(rows.reshape(shape), value, np.nan)
            found[info.name] = ((DATASET, *info.dims), value)
        return xr.Dataset(found, coords={DATASET: list(self.names)})

    def select(self, index: Sequence[int] | np.ndarray) -> "Task":
        """Return the task with only the datasets of `index`."""
        index = np.asarray(index, dtype=int)
        return Task(
            self.layout,
            {k: v[index] for k, v in self.values.items()},
            tuple(self.names[i] for i in index),
            None if self.lengths is None else self.lengths[index],
            # kept where nothing of it is missing: the shapes that functions are compiled for stay
            there={k: v[index] for k, v in self.there.items()},
            maskable=self.maskable,
        )

    def parts(self, size: int) -> Iterator["Task"]:
        """Cut the task in parts of at most `size` datasets, one after another."""
        for begin in range(0, len(self), size):
            part = self.select(np.arange(begin, min(begin + size, len(self))))
            yield replace(part, first=self.first + begin)


def listed(names: Sequence[object], most: int = 5) -> str:
    """Names for a message: the first few, and dots where there are more."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def concatenate(tasks: Sequence[Task]) -> Task:
    """Join the datasets of several tasks, padding all to the longest."""
    layout = tasks[0].layout
    joined = stack(
        [t.dataset(i) for t in tasks for i in range(len(t))],
        [n for t in tasks for n in t.names],
        layout,
    )
    return replace(joined, maskable=any(t.maskable for t in tasks))


def few_lengths(n: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is not below `n`."""
    power = 1 << max(n - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power


def as_task(data: TaskLike, layout: Layout) -> Task:
    """Check data against the model and turn them into a :class:`Task`.

    Parameters
    ----------
    data : xarray.Dataset, mapping of arrays, mapping of Datasets, pandas.DataFrame or Task
        A Dataset or a mapping of arrays with a leading `dataset` dim (a single dataset may leave it
        out); a mapping from a dataset's name to its Dataset; or a long table with a column
        `dataset` and one column a variable (``X[label]`` for a variable with a second dim).
    layout : Layout

    Raises
    ------
    DataError
        Naming the variable and the dataset, what was expected and what came.
    """
    if isinstance(data, Task):
        if data.layout.variables == layout.variables and data.layout.row == layout.row:
            return data
        _check_names(data.values, layout, "")
        return stack([data.dataset(i) for i in range(len(data))], data.names, layout)
    if hasattr(data, "columns") and hasattr(data, "groupby"):
        return _from_frame(data, layout)  # type: ignore[arg-type]
    if not isinstance(data, Mapping):  # an xarray.Dataset is one
        raise DataError(
            "data: expected an xarray.Dataset, a mapping of arrays, a mapping from dataset names "
            f"to Datasets or a pandas.DataFrame, got {type(data).__name__}."
        )
    if data and all(isinstance(v, Mapping) for v in data.values()):
        parts: Mapping = data
        datasets = [_read_one(one, layout, str(name)) for name, one in parts.items()]
        return stack(datasets, [str(name) for name in data], layout)
    return stack(*_read(data, layout, ""), layout)


def stack(
    datasets: Sequence[Mapping[str, np.ndarray]], names: Sequence[str], layout: Layout
) -> Task:
    """Check datasets one by one, pad them to the longest and stack them."""
    if not datasets:
        raise DataError("data: expected at least one dataset, none came.")
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if list(names).count(n) > 1})
        raise DataError(f"data: dataset names must differ; {twice} came more than once.")
    lengths = [_check(one, name, layout) for one, name in zip(datasets, names, strict=True)]
    longest = max(lengths) if lengths[0] is not None else None  # type: ignore[type-var]
    values = {}
    for info in layout.variables:
        padded = [_pad(np.asarray(d[info.name]), info, layout.row, longest) for d in datasets]
        for name, one in zip(names, padded, strict=True):
            if one.shape != padded[0].shape:
                raise DataError(
                    f"Variable {info.name!r} of dataset {name!r}: expected shape "
                    f"{padded[0].shape}, as dataset {names[0]!r} has, got {one.shape}; "
                    + (
                        f"only the dim {layout.row!r} may have a length of its own."
                        if layout.row
                        else "pass datasets of one length in each call."
                    )
                )
        values[info.name] = np.stack(padded)
    there = {}
    for info in layout.variables:
        value = values[info.name]
        if info.dtype.startswith(("float", "int")) and np.isnan(value.astype(float)).any():
            there[info.name] = ~np.isnan(value)
            value = filled(value, np.issubdtype(np.dtype(info.dtype), np.integer))
        values[info.name] = value.astype(info.dtype)
    _check_something(there, names, layout)
    lengths_of_all = None if longest is None else np.asarray(lengths, dtype=int)
    return Task(layout, values, tuple(names), lengths_of_all, there=there)


def filled(value: np.ndarray, whole: bool) -> np.ndarray:
    """Put a value that is valid, as others of the dataset are, where one is missing (NaN).

    `value` has a leading dim of datasets. It is the smallest of counts, which no upper bound of a
    row's own excludes, and else the median; where there is none at all, one that most supports
    have.
    """
    middle: Any = np.nanmin if whole else np.nanmedian
    nothing = 0.0 if whole else 0.5
    everywhere = np.nan_to_num(middle(value)) if not np.isnan(value).all() else nothing
    filled = value.copy()
    for one in filled:
        gap = np.isnan(one)
        if gap.any():
            one[gap] = everywhere if gap.all() else middle(one)
    return filled


def _check_something(there: Mapping[str, np.ndarray], names: Sequence[str], layout: Layout) -> None:
    """Refuse datasets of which no value is there."""
    observed = layout.names[: layout.n_observed]
    if not all(n in there for n in observed):
        return
    nothing = np.all([~there[n].reshape(len(names), -1).any(axis=1) for n in observed], axis=0)
    if nothing.any():
        name = names[int(np.argmax(nothing))]
        raise DataError(
            f"Dataset {name!r}: expected at least one observed value, all of {observed} are "
            "missing (NaN); leave the dataset out."
        )


def _read_one(data: Mapping, layout: Layout, name: str) -> dict[str, np.ndarray]:
    found, _ = _read(data, layout, f" of dataset {name!r}")
    if len(found) != 1:
        raise DataError(f"Dataset {name!r}: expected one dataset under one name, got {len(found)}.")
    return found[0]


def _read(
    data: Mapping, layout: Layout, where: str
) -> tuple[list[dict[str, np.ndarray]], list[str]]:
    """Read one dataset, or several along a dim `dataset`; return their arrays and names."""
    _check_names(data, layout, where)
    # Labelled arrays are brought in one order of labels, whatever they came in.
    labelled = xr.Dataset({k: v for k, v in data.items() if isinstance(v, xr.DataArray)})
    values = {**data, **labelled}
    found = {i.name: _variable(values[i.name], i, layout, where) for i in layout.variables}
    counts = {k: v.sizes[DATASET] for k, v in found.items() if DATASET in v.dims}
    if len({*counts.values()}) > 1:
        raise DataError(f"data{where}: variables have different numbers of datasets: {counts}.")
    n = next(iter(counts.values()), 1)
    names = [*map(str, range(n))]
    if DATASET in labelled.coords and labelled.coords[DATASET].size == n:
        names = [*map(str, np.atleast_1d(labelled.coords[DATASET].values))]
    return [
        {k: (v[{DATASET: i}] if DATASET in v.dims else v).values for k, v in found.items()}
        for i in range(n)
    ], names


def _variable(value: object, info: VariableInfo, layout: Layout, where: str) -> xr.Variable:
    """Give a variable the model's dims, in its order, with a dim `dataset` in front if it came."""
    where = f"Variable {info.name!r}{where}"
    if isinstance(value, xr.DataArray):
        if {*value.dims} - {DATASET} != {*info.dims}:
            raise DataError(
                f"{where}: expected dims {info.dims}, with or without {DATASET!r}, got "
                f"{value.dims}."
            )
        value = value.transpose(*(d for d in (DATASET, *info.dims) if d in value.dims))
        return _align(value, info, layout, where).variable
    if np.ma.isMaskedArray(value):
        value = value.astype(float).filled(np.nan)  # type: ignore[attr-defined]
    array = np.asarray(value)
    if array.ndim not in (len(info.dims), len(info.dims) + 1):
        raise DataError(
            f"{where}: expected shape {layout.expected(info)}, with or without a leading dim "
            f"{DATASET!r}, got {array.shape}."
        )
    dims = info.dims if array.ndim == len(info.dims) else (DATASET, *info.dims)
    return xr.Variable(dims, array)


def _align(value: xr.DataArray, info: VariableInfo, layout: Layout, where: str) -> xr.DataArray:
    """Put a dim's labels in the model's order where both sides have the same labels."""
    for dim in info.dims:
        if dim in layout.data_dims or dim not in layout.coords or dim not in value.coords:
            continue
        ours = [*map(_label, layout.coords[dim])]
        theirs = [*map(_label, value.coords[dim].values)]
        if len(ours) != len(theirs):
            continue  # the wrong shape, which is said later
        if {*ours} == {*theirs}:
            value = value.isel({dim: [theirs.index(label) for label in ours]})
        elif {*ours} & {*theirs}:
            raise DataError(
                f"{where}: labels of dim {dim!r} are {theirs}, the model's are {ours}; rename "
                "them, or give the model the same labels."
            )
    return value


def _label(label: object) -> str:
    """Text of a label, by which labels are compared; 1.0 is 1."""
    whole = isinstance(label, float | np.floating) and label.is_integer()
    return str(int(label)) if whole else str(label)  # type: ignore[call-overload]


def _from_frame(data: "pd.DataFrame", layout: Layout) -> Task:
    if DATASET not in data.columns:
        raise DataError(
            f"data: expected a column {DATASET!r} that names the dataset of each row, got columns "
            f"{list(data.columns)}."
        )
    nameless = int(data[DATASET].isna().sum())
    if nameless:
        raise DataError(
            f"data: expected a name in every row of column {DATASET!r}, {nameless} rows have none."
        )
    groups = [(str(n), rows) for n, rows in data.groupby(DATASET, sort=False, observed=True)]
    along = layout.row if layout.row else next(iter(layout.variables[0].dims), None)
    return stack(
        [
            {i.name: _from_columns(rows, i, layout, along, name) for i in layout.variables}
            for name, rows in groups
        ],
        [name for name, _ in groups],
        layout,
    )


def _from_columns(
    rows: "pd.DataFrame", info: VariableInfo, layout: Layout, along: str | None, name: str
) -> np.ndarray:
    """One variable of one dataset; rows of the table are the dim `along`, columns another."""
    across = [d for d in info.dims if d != along]
    if len(across) > 1:
        raise DataError(
            f"Variable {info.name!r} has {len(info.dims)} dims: a table cannot hold it; pass an "
            "xarray.Dataset for each dataset."
        )
    wanted: list[Hashable] = [info.name]
    if across:
        size = info.shape[info.dims.index(across[0])]
        wanted = [f"{info.name}[{v}]" for v in layout.coords.get(across[0], np.arange(size))]
    missing = [c for c in wanted if c not in rows.columns]
    if missing:
        raise DataError(
            f"Variable {info.name!r}: expected column(s) {missing}, got {list(rows.columns)}."
        )
    # Column by column: together, flags beside numbers would become objects.
    value = np.stack([rows[c].to_numpy() for c in wanted], axis=1)
    if along not in info.dims:
        different = max(len({*column.tolist()}) for column in value.T)
        if different > 1:
            raise DataError(
                f"Variable {info.name!r} of dataset {name!r}: expected one value for the whole "
                f"dataset, got {different} different ones."
            )
        value = value[0]
    elif across and info.dims.index(along) == 1:
        value = value.T
    return value if across else value[..., 0]


def _check_names(data: Mapping, layout: Layout, where: str) -> None:
    came = list(data)
    missing = [n for n in layout.names if n not in came]
    if missing:
        raise DataError(
            f"data{where}: expected the variables {layout.names}, {missing} did not come (got "
            f"{came}). Every observed variable and every covariate is needed."
        )
    unknown = [n for n in came if n not in layout.names]
    if unknown:
        raise DataError(
            f"data{where}: {unknown} is neither an observed variable nor a covariate of the model; "
            f"expected {layout.names}."
        )


def _check(one: Mapping[str, np.ndarray], name: str, layout: Layout) -> int | None:
    """Check one dataset; return its length along the row dim."""
    sizes: dict[str, tuple[str, int]] = {}
    for info in layout.variables:
        value = np.asarray(one[info.name])
        where = f"Variable {info.name!r} of dataset {name!r}"
        fixed = all(
            d in layout.data_dims or n == m
            for d, n, m in zip(info.dims, value.shape, info.shape, strict=False)
        )
        if value.ndim != len(info.shape) or not fixed:
            raise DataError(f"{where}: expected shape {layout.expected(info)}, got {value.shape}.")
        if value.dtype.kind not in "biuf":
            raise DataError(f"{where}: expected numbers ({info.dtype}), got {value.dtype}.")
        real = value.astype(float)
        bad = int(np.isnan(real).sum())
        if bad and info.name not in layout.names[: layout.n_observed]:
            raise DataError(
                f"{where}: expected a covariate without gaps, got {bad} missing values (NaN); drop "
                "those rows, or model the covariate."
            )
        if np.isinf(real).any():
            raise DataError(f"{where}: expected finite values, got infinite ones.")
        if np.issubdtype(np.dtype(info.dtype), np.integer) and not np.array_equal(
            real, np.round(real), equal_nan=True
        ):
            raise DataError(f"{where}: expected integers ({info.dtype}), got fractions.")
        for dim, n in zip(info.dims, value.shape, strict=True):
            if sizes.setdefault(dim, (info.name, n))[1] != n:
                other, m = sizes[dim]
                raise DataError(
                    f"{where}: expected length {m} along {dim!r}, as {other!r} has, got {n}."
                )
        if 0 in value.shape:
            raise DataError(f"{where}: expected at least one value, got shape {value.shape}.")
    return sizes[layout.row][1] if layout.row in sizes else None


def _pad(value: np.ndarray, info: VariableInfo, row: str | None, longest: int | None) -> np.ndarray:
    if longest is None or row not in info.dims:
        return value
    axis = info.dims.index(row)
    index = np.minimum(np.arange(longest), value.shape[axis] - 1)
    return value.take(index, axis=axis)
