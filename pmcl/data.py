"""Tasks as labelled data: the one place where labels become padded arrays, lengths and masks."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel, VariableInfo, precision

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
        Padded along the row dim with copies of a dataset's last row, which are valid values.
    mask : array of bool of shape (dataset, row), or None
        False for padding; None where every dataset has the same length.
    """

    values: dict[str, Array]
    mask: Array | None


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
        Padded along the layout's row dim.
    names : tuple of str
        One name a dataset.
    lengths : array of int of shape (dataset,) or None
        Length of each dataset along the row dim; None where the model has no row dim.
    """

    layout: Layout
    values: dict[str, np.ndarray]
    names: tuple[str, ...]
    lengths: np.ndarray | None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def ragged(self) -> bool:
        return self.lengths is not None and len(set(self.lengths.tolist())) > 1

    @property
    def mask(self) -> np.ndarray | None:
        if not self.ragged:
            return None
        assert self.lengths is not None
        return np.arange(int(self.lengths.max())) < self.lengths[:, None]

    def batch(self) -> Batch:
        return Batch(dict(self.values), self.mask)  # type: ignore[arg-type]

    def dataset(self, i: int) -> dict[str, np.ndarray]:
        """Arrays of one dataset, without padding."""
        row = self.layout.row
        found = {}
        for info in self.layout.variables:
            value = self.values[info.name][i]
            if row in info.dims and self.lengths is not None:
                value = value.take(np.arange(self.lengths[i]), axis=info.dims.index(row))
            found[info.name] = value
        return found

    def select(self, index: Sequence[int] | np.ndarray) -> "Task":
        """Return the task with only the datasets of `index`."""
        index = np.asarray(index, dtype=int)
        return Task(
            self.layout,
            {k: v[index] for k, v in self.values.items()},
            tuple(self.names[i] for i in index),
            None if self.lengths is None else self.lengths[index],
        )


def concatenate(tasks: Sequence[Task]) -> Task:
    """Join the datasets of several tasks, padding all to the longest."""
    layout = tasks[0].layout
    return stack(
        [t.dataset(i) for t in tasks for i in range(len(t))],
        [n for t in tasks for n in t.names],
        layout,
    )


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
        return data
    if isinstance(data, xr.Dataset):
        single = _dataset_values(data, layout, names=None)
        return stack(single[0], single[1], layout)
    if hasattr(data, "columns") and hasattr(data, "groupby"):
        return _from_frame(data, layout)  # type: ignore[arg-type]
    if not isinstance(data, Mapping):
        raise DataError(
            "data: expected an xarray.Dataset, a mapping of arrays, a mapping from dataset names "
            f"to Datasets or a pandas.DataFrame, got {type(data).__name__}."
        )
    if data and all(isinstance(v, xr.Dataset | Mapping) for v in data.values()):
        datasets, names = [], []
        for name, one in data.items():
            ds = one if isinstance(one, xr.Dataset) else _from_mapping(one, layout)
            found, _ = _dataset_values(ds, layout, names=[str(name)])
            datasets += found
            names.append(str(name))
        return stack(datasets, names, layout)
    found, found_names = _dataset_values(_from_mapping(data, layout), layout, names=None)
    return stack(found, found_names, layout)


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
        shapes = {p.shape for p in padded}
        if len(shapes) > 1:
            raise DataError(
                f"Variable {info.name!r}: datasets have different shapes {sorted(shapes)}; only "
                f"the dim {layout.row!r} may have a length of its own in each dataset."
            )
        values[info.name] = np.stack(padded).astype(info.dtype)
    return Task(
        layout,
        values,
        tuple(names),
        None if longest is None else np.asarray(lengths, dtype=int),
    )


def _from_mapping(data: Mapping[str, object], layout: Layout) -> xr.Dataset:
    """Give unlabelled arrays the dims of the model's variables."""
    _check_names(data, layout, "")
    variables = {}
    for info in layout.variables:
        value = np.asarray(data[info.name])
        dims: tuple[str, ...] = info.dims
        if value.ndim == len(dims) + 1:
            dims = (DATASET, *dims)
        elif value.ndim != len(dims):
            raise DataError(
                f"Variable {info.name!r}: expected shape {layout.expected(info)}, with or without "
                f"a leading dim {DATASET!r}, got {value.shape}."
            )
        variables[info.name] = xr.Variable(dims, value)
    sizes = {v.sizes[DATASET] for v in variables.values() if DATASET in v.dims}
    if len(sizes) > 1:
        raise DataError(
            f"data: variables have different numbers of datasets: "
            f"{ {k: v.sizes.get(DATASET) for k, v in variables.items()} }."
        )
    found = xr.Dataset()
    for name, v in variables.items():
        wrong = {d: n for d, n in v.sizes.items() if found.sizes.get(d, n) != n}
        if wrong:
            raise DataError(
                f"Variable {name!r}: expected length { {d: found.sizes[d] for d in wrong} } along "
                f"the dims it shares with {list(found.data_vars)}, got {wrong}."
            )
        found[name] = v
    return found


def _dataset_values(
    data: xr.Dataset, layout: Layout, names: Sequence[str] | None
) -> tuple[list[dict[str, np.ndarray]], list[str]]:
    _check_names(data, layout, f" of dataset {names[0]!r}" if names else "")
    ordered: dict[str, xr.DataArray] = {}
    for info in layout.variables:
        value = data[info.name]
        wanted = [d for d in (DATASET, *info.dims) if d in value.dims]
        if set(value.dims) - {DATASET} != set(info.dims):
            raise DataError(
                f"Variable {info.name!r}: expected dims {info.dims}, with or without {DATASET!r}, "
                f"got {value.dims}."
            )
        ordered[info.name] = _align(value.transpose(*wanted), info, layout)
    many = any(DATASET in v.dims for v in ordered.values())
    n = data.sizes[DATASET] if many else 1
    if many and names is not None and n > 1:
        raise DataError(f"Dataset {names[0]!r}: expected one dataset under one name, got {n}.")
    if names is None:
        label = data.coords.get(DATASET)
        names = (
            ["0"]
            if not many and label is None
            else [str(v) for v in (np.arange(n) if label is None else np.atleast_1d(label.values))]
        )
    return [
        {k: (v.isel({DATASET: i}) if DATASET in v.dims else v).values for k, v in ordered.items()}
        for i in range(n)
    ], list(names)


def _align(value: xr.DataArray, info: VariableInfo, layout: Layout) -> xr.DataArray:
    """Put a dim's labels in the model's order where both sides have the same labels."""
    for dim in info.dims:
        ours = layout.coords.get(dim)
        if dim in layout.data_dims or ours is None or dim not in value.coords:
            continue
        theirs = value.coords[dim].values
        if set(map(str, ours)) == set(map(str, theirs)) and len(ours) == len(theirs):
            position = {str(label): i for i, label in enumerate(theirs)}
            value = value.isel({dim: [position[str(label)] for label in ours]})
        elif set(map(str, ours)) & set(map(str, theirs)) and len(ours) == len(theirs):
            raise DataError(
                f"Variable {info.name!r}: labels of dim {dim!r} are {list(theirs)}, the model's "
                f"are {list(ours)}; rename them, or give the model the same labels."
            )
    return value


def _from_frame(data: "pd.DataFrame", layout: Layout) -> Task:
    if DATASET not in data.columns:
        raise DataError(
            f"data: expected a column {DATASET!r} that names the dataset of each row, got columns "
            f"{list(data.columns)}."
        )
    datasets, names = [], []
    for name, rows in data.groupby(DATASET, sort=False):
        one = {}
        for info in layout.variables:
            one[info.name] = _from_columns(rows, info, layout, str(name))
        datasets.append(one)
        names.append(str(name))
    return stack(datasets, names, layout)


def _from_columns(
    rows: "pd.DataFrame", info: VariableInfo, layout: Layout, name: str
) -> np.ndarray:
    if len(info.dims) == 0:
        wanted: list[Hashable] = [info.name]
    elif len(info.dims) == 1:
        wanted = [info.name]
    elif len(info.dims) == 2:
        labels = layout.coords.get(info.dims[1], np.arange(info.shape[1]))
        wanted = [f"{info.name}[{label}]" for label in labels]
    else:
        raise DataError(
            f"Variable {info.name!r} has {len(info.dims)} dims: a table cannot hold it; pass an "
            "xarray.Dataset for each dataset."
        )
    missing = [c for c in wanted if c not in rows.columns]
    if missing:
        raise DataError(
            f"Variable {info.name!r}: expected column(s) {missing}, got {list(rows.columns)}."
        )
    value = rows[wanted].to_numpy()
    if not info.dims:
        if len(set(value[:, 0].tolist())) > 1:
            raise DataError(
                f"Variable {info.name!r} of dataset {name!r}: expected one value for the whole "
                f"dataset, got {len(set(value[:, 0].tolist()))} different ones."
            )
        return value[0, 0]
    return value[:, 0] if len(info.dims) == 1 else value


def _check_names(data: Mapping | xr.Dataset, layout: Layout, where: str) -> None:
    came = list(data.data_vars) if isinstance(data, xr.Dataset) else list(data)
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
        if not np.issubdtype(value.dtype, np.number) and value.dtype != bool:
            raise DataError(f"{where}: expected numbers ({info.dtype}), got {value.dtype}.")
        real = value.astype(float)
        bad = int(np.isnan(real).sum())
        if bad:
            raise DataError(
                f"{where}: expected complete data, got {bad} missing values (NaN); drop those rows."
            )
        if not np.isfinite(real).all():
            raise DataError(f"{where}: expected finite values, got infinite ones.")
        if np.issubdtype(np.dtype(info.dtype), np.integer) and not np.array_equal(
            real, np.round(real)
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


def check_padding(compiled: CompiledModel, task: Task) -> None:
    """Refuse padding that changes the likelihood of a dataset.

    Padding is masked out of elementwise likelihoods. That is right unless a term uses other rows
    (a mean over the rows, say), so the shortest dataset is evaluated both ways.

    Raises
    ------
    DataError
    """
    assert task.lengths is not None and task.mask is not None
    i = int(np.argmin(task.lengths))
    z = np.random.default_rng(0).normal(size=(3, compiled.dim)) * 0.5
    padded = {k: v[i] for k, v in task.values.items()}
    with precision.scope():
        try:
            masked = [
                float(compiled.log_likelihood(u, padded, mask=task.mask[i], dim=task.layout.row))
                for u in z
            ]
            alone = [float(compiled.log_likelihood(u, task.dataset(i))) for u in z]
        except (ValueError, TypeError, IndexError) as error:
            raise DataError(
                _PADDING.format(names=_observed_names(task), row=task.layout.row)
            ) from error
    if not np.allclose(masked, alone, rtol=1e-8, atol=1e-8, equal_nan=True):
        raise DataError(_PADDING.format(names=_observed_names(task), row=task.layout.row))


_PADDING = (
    "Datasets have different lengths along {row!r}, but the likelihood of {names} cannot be cut by "
    "row (it is not elementwise, or rows depend on one another). Pass datasets of one length in "
    "each call."
)


def _observed_names(task: Task) -> list[str]:
    return task.layout.names[: task.layout.n_observed]
