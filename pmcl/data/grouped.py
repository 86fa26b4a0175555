"""Datasets with any number of groups, read before a model of their size is chosen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pmcl.compile import VariableInfo
from pmcl.compile.indices import likely_cause
from pmcl.data.constants import check_constants
from pmcl.data.forms import in_form, is_frame, several, with_index
from pmcl.data.label_text import are_places, numbers, text, warn_of_spelling
from pmcl.data.labels import along, check_places, in_order, own_labels, with_labels
from pmcl.data.plain import array_of, plain
from pmcl.data.reading import in_lists, read_arrays, read_one
from pmcl.data.tables import by_variable, from_columns
from pmcl.data.task import DATASET, DataError, Layout, Task
from pmcl.runtime.arguments import listed


class Grouped(NamedTuple):
    """Datasets of different numbers of groups.

    Attributes
    ----------
    datasets : dict of str to dict of arrays
        By name; the index counts groups from zero.
    labels : tuple of tuple of str
        Names of each dataset's groups.
    """

    datasets: dict[str, dict[str, np.ndarray]]
    labels: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, task: Task, dim: str) -> "Grouped":
        """The datasets of a task without groups that are padding."""
        size = {d: n for v in task.layout.variables for d, n in zip(v.dims, v.shape, strict=True)}
        labels = task.labels or (tuple(map(str, range(size[dim]))),) * len(task)
        axes = {i.name: i.dims.index(dim) for i in task.layout.variables if dim in i.dims}

        def cut(name: str, value: np.ndarray, number: int) -> np.ndarray:
            return value.take(np.arange(number), axis=axes[name]) if name in axes else value

        datasets = {
            n: {k: cut(k, v, len(labels[i])) for k, v in task.dataset(i).items()}
            for i, n in enumerate(task.names)
        }
        return cls(datasets, labels)

    @property
    def numbers(self) -> np.ndarray:
        """Groups of each dataset."""
        return np.array([len(names) for names in self.labels])

    def padded(self, layout: Layout, dim: str, size: int) -> dict[str, dict[str, np.ndarray]]:
        """The datasets, all of them with so many groups: the last again."""
        axes = {i.name: i.dims.index(dim) for i in layout.variables if dim in i.dims}

        def one(name: str, value: np.ndarray) -> np.ndarray:
            if name not in axes:
                return value
            index = np.minimum(np.arange(size), value.shape[axes[name]] - 1)
            return value.take(index, axis=axes[name])

        return {k: {n: one(n, v) for n, v in d.items()} for k, d in self.datasets.items()}


class GroupedReader(NamedTuple):
    """How data are read.

    Attributes
    ----------
    layout : Layout
        Of the model, at any size.
    dim : str
        That of the groups.
    by : str
        Name of the data that say to which group a row belongs; empty where there are none.
    """

    layout: Layout
    dim: str
    by: str

    def __call__(self, data: Any) -> Grouped:
        """Read datasets in any of the forms that :func:`pmcl.as_task` takes.

        Raises
        ------
        DataError
            Naming the variable and the dataset.
        """
        found: dict[str, tuple[dict[str, np.ndarray], list[str] | None]] = {}
        for name, one in self._datasets(in_form(data)):
            if name in found:
                raise DataError(f"data: dataset names must differ; {name!r} came more than once.")
            found[name] = self._table(one, name) if is_frame(one) else one
        if not found:
            raise DataError("data: expected at least one dataset, none came.")
        pairs = {name: self._one(*pair, name) for name, pair in found.items()}
        return Grouped(
            {name: values for name, (values, _) in pairs.items()},
            tuple(tuple(labels) for _, labels in pairs.values()),
        )

    def _layout(self, labels: list[str] | None) -> Layout:
        """A layout to which any number of groups and any names of theirs are right.

        Names 0, 1, 2 ... in any order are the places, as they are where the model has them.
        """
        coords = {k: v for k, v in self.layout.coords.items() if k != self.dim}
        if labels is not None and are_places(labels):
            coords[self.dim] = np.arange(len(labels))
        dims, row = self.layout.data_dims | {self.dim}, self.layout.row
        row = None if row == self.dim else row  # labels of groups are no rows'
        return replace(
            self.layout, row=row, data_dims=dims, coords=coords, indices=None, bases=None
        )

    def _datasets(self, data: Any) -> Iterable[tuple[str, Any]]:
        """Every dataset by its name: tables, or arrays with the groups' names where they came."""
        if isinstance(data, Task):
            data = {n: data.dataset(i) for i, n in enumerate(data.names)}
        if is_frame(data):
            data = with_index(data)
            if DATASET not in data.columns:
                return [("0", data)]
            return [(str(n), rows) for n, rows in data.groupby(DATASET, sort=False)]
        if not isinstance(data, Mapping):
            raise DataError(
                "data: expected an xarray.Dataset, a mapping of arrays, a mapping from dataset "
                f"names to Datasets or a pandas.DataFrame, got {type(data).__name__}."
            )
        if several(data, self.layout.names):
            return [(str(name), self._read_one(one, str(name))) for name, one in data.items()]
        each = in_lists(data, self.layout)
        if each:
            return [(name, self._read_one(one, name)) for name, one in each.items()]
        labels = self._labels(data)
        datasets, names = read_arrays(data, self._layout(labels), "")
        return [(n, (d, _in_order(labels))) for n, d in zip(names, datasets, strict=True)]

    def _read_one(self, data: Any, name: str) -> Any:
        data = in_form(data)
        if is_frame(data):
            return with_index(data)
        labels = self._labels(data)
        return read_one(data, self._layout(labels), name), _in_order(labels)

    def _labels(self, data: Mapping) -> list[str] | None:
        """Names of the groups, in the order in which values are read."""
        self._check_order(data)
        return along(data, self.dim, self._layout(None))

    def _check_order(self, data: Mapping) -> None:
        """Refuse 0, 1, 2 ... in another order, beside values that have no labels.

        By number and by position they would be paired differently.
        """
        infos = {i.name: i for i in self.layout.variables if self.dim in i.dims}
        infos |= {held: infos[n] for held, n in self.layout.holders.items() if n in infos}
        values = {str(n): with_labels(v, infos[n]) for n, v in data.items() if n in infos}
        own = {n: own_labels(v, self.dim) for n, v in values.items()}
        turned = [n for n, v in own.items() if v and are_places(v) and v != numbers(len(v))]
        bare = [n for n, v in own.items() if v is None]
        index = plain(getattr(data[self.by], "values", data[self.by])) if self.by in data else None
        if index is not None and index.dtype.kind in "biuf":
            bare.append(self.by)
        if turned and bare:
            raise DataError(
                f"Variable {turned[0]!r}: labels along {self.dim!r} are 0, 1, 2 ... in another "
                f"order, and {listed(bare)} has no labels of groups: by number and by position "
                "they are paired differently. Give all of them labels (names of groups as text), "
                f"or none (`{turned[0]}.to_numpy()`): then positions count."
            )

    def _table(self, rows: Any, name: str) -> tuple[dict[str, np.ndarray], list[str] | None]:
        """A long table of one dataset: a column names the group of each row."""
        rows = by_variable(rows, self.layout)
        rows = in_order(rows, self.layout.row, self.layout, f"Dataset {name!r}")
        check_constants(rows, self.layout, name)
        column = next((c for c in (self.dim, self.by) if c and c in rows.columns), None)
        if column is None:
            wanted = " or ".join(repr(c) for c in (self.dim, self.by) if c)
            raise DataError(
                f"Dataset {name!r}: expected a column {wanted} that names the group of each row, "
                f"got {list(rows.columns)}."
            )
        if rows[column].isna().any():
            raise DataError(
                f"Dataset {name!r}: expected a group in every row of column {column!r}, "
                f"{int(rows[column].isna().sum())} rows have none."
            )
        names = text(rows[column])
        if column == self.dim and self.by in rows.columns:
            pairs = {*zip(names, text(rows[self.by]), strict=True)}
            if not len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
                raise DataError(
                    f"Dataset {name!r}: columns {self.dim!r} and {self.by!r} both say of which "
                    "group a row is, and not the same: leave one of them out."
                )
        numbers = rows[column].dtype.kind in "iu"
        labels = text(sorted({*rows[column]})) if numbers else list(dict.fromkeys(names))
        where = {label: j for j, label in enumerate(labels)}
        group = np.array([where[label] for label in names])
        found = {}
        for info in self.layout.variables:
            if info.name == self.by:
                found[info.name] = group
                continue
            found[info.name] = self._column(rows, info, group, labels, name)
        return found, labels

    def _column(
        self, rows: Any, info: VariableInfo, group: np.ndarray, labels: Sequence[str], name: str
    ) -> np.ndarray:
        """Values of one variable: by row, by group, or one for all."""
        by_row = self.layout.row if self.by else self.dim
        if by_row in info.dims:
            value = from_columns(rows, info, self._layout(None), by_row, name)
            if by_row != self.dim:
                return value
            if len(group) != len(labels):
                raise DataError(
                    f"Dataset {name!r}: expected one row for each of {len(labels)} groups "
                    f"(column {self.dim!r}), got {len(group)}."
                )
            return value.take(np.argsort(group), axis=info.dims.index(by_row))
        if {*info.dims} - {self.dim}:
            raise DataError(
                f"Variable {info.name!r} has the dims {info.dims}: a table cannot hold it; pass an "
                "xarray.Dataset for each dataset."
            )
        if info.name not in rows.columns:
            raise DataError(
                f"Variable {info.name!r} of dataset {name!r}: expected a column of that name, got "
                f"{list(rows.columns)}."
            )
        value = array_of(rows[info.name])
        which = group if info.dims == (self.dim,) else np.zeros(len(value), int)
        first = np.array([np.flatnonzero(which == j)[0] for j in range(which.max() + 1)])
        missing = value[first] != value[first]  # in all rows of a group: told of later
        differs = (value != value[first][which]) & ~((value != value) & missing[which])
        if differs.any():
            whose = f"group {labels[group[np.argmax(differs)]]!r}" if info.dims else "the dataset"
            raise DataError(
                f"Variable {info.name!r} of dataset {name!r}: expected one value for {whose}, got "
                "different ones."
            )
        return value[first] if info.dims else value[0]

    def _one(
        self, values: dict[str, np.ndarray], labels: list[str] | None, name: str
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Count the groups of one dataset, and check the index against their number."""
        sizes = {
            i.name: np.shape(values[i.name])[i.dims.index(self.dim)]
            for i in self.layout.variables
            if self.dim in i.dims and np.ndim(values[i.name]) == len(i.dims)
        }
        if len({*sizes.values()}) > 1:
            raise DataError(
                f"Dataset {name!r}: expected one number of groups along {self.dim!r}, got {sizes}."
            )
        number = next(iter(sizes.values()), None if labels is None else len(labels))
        if self.by:
            index = np.asarray(values[self.by])
            if not index.size:
                raise DataError(
                    f"Variable {self.by!r} of dataset {name!r}: expected rows, got none."
                )
            if index.dtype.kind in "biuf":
                check_places(index, labels, f"Variable {self.by!r} of dataset {name!r}")
            else:
                index, labels = self._by_name(index, labels, number, name)
            if number is None:
                number = len(labels) if labels is not None else int(np.max(index, initial=0)) + 1
            low, high = np.min(index), np.max(index)
            if not (low >= 0 and high < number):
                raise DataError(
                    f"Variable {self.by!r} of dataset {name!r}: expected the places of its "
                    f"{number} groups along {self.dim!r}, from 0 to {number - 1}, got {low:g} to "
                    f"{high:g}.{likely_cause(low, high, number)}"
                )
            values = {**values, self.by: index}
        assert number is not None
        labels = list(map(str, range(number))) if labels is None else labels
        if len(labels) != number or len({*labels}) != number:
            raise DataError(
                f"Dataset {name!r}: expected {number} different names of groups along "
                f"{self.dim!r}, got {listed(labels)}."
            )
        warn_of_spelling(labels, f"groups of dataset {name!r}")
        return values, labels

    def _by_name(
        self, index: np.ndarray, labels: list[str] | None, number: int | None, name: str
    ) -> tuple[np.ndarray, list[str]]:
        """Places of groups that rows name."""
        names = text(index)
        if labels is None:
            if number is not None:
                raise DataError(
                    f"Variable {self.by!r} of dataset {name!r} has names of groups, and other "
                    f"variables none along {self.dim!r}: give them labels (an xarray.DataArray or "
                    "a pandas.Series), or places from 0 for names."
                )
            labels = list(dict.fromkeys(names))
        where = {label: j for j, label in enumerate(labels)}
        unknown = [n for n in dict.fromkeys(names) if n not in where]
        if unknown:
            raise DataError(
                f"Variable {self.by!r} of dataset {name!r}: expected groups of "
                f"{listed(labels)}, got {listed(unknown)}."
            )
        return np.array([where[n] for n in names]), labels


def _in_order(labels: list[str] | None) -> list[str] | None:
    """Names of the groups as values are read with them, where they are places put in order."""
    return numbers(len(labels)) if labels is not None and are_places(labels) else labels
