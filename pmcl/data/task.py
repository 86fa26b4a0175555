"""Tasks as labelled data: the one place where labels become padded arrays, lengths and masks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel, Mask, VariableInfo
from pmcl.compile.bases import Bases
from pmcl.compile.causal import dims_of_time
from pmcl.compile.constants import lengths_of_constants, values_of_constants
from pmcl.compile.copies import Copy
from pmcl.compile.indices import Indices
from pmcl.compile.support import Support
from pmcl.runtime.jitting import few_lengths

if TYPE_CHECKING:
    import pandas as pd

type TaskLike = (
    xr.Dataset
    | Mapping[str, np.ndarray]
    | Mapping[str, xr.Dataset]
    | Mapping[str, Mapping[str, np.ndarray]]
    | Mapping[str, pd.DataFrame]
    | Sequence[Mapping[str, np.ndarray] | xr.Dataset | pd.DataFrame]
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
    place : pmcl.search.search.Place, optional
        Where the posterior of each dataset is, once that was searched for.
    """

    values: dict[str, Array]
    mask: Mask | None
    place: Any = None


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
    indices : Indices, optional
        Where data index something, which is checked.
    support : Support, optional
        Which values the observed variables can have, which is checked.
    bases : Bases, optional
        Functions of data that are of use for some values only, which is checked.
    copies : tuple of Copy
        Observed values that are constants of the model, of which other data are warned.
    holders : dict of str to str
        The `pm.Data` that hold observations, by whose names these may come, too.
    constants : dict of str to array
        Other `pm.Data` of the model, with the values that count: others cannot be given.
    dims_of_constants : dict of str to tuple of str
        Of those whose dims have names.
    tied : frozenset of str
        Dims of the data as long as a constant of the model: what lies along them is in its order.
    counted : dict of str to str
        Dims whose length is in the prior of a variable, which cannot follow observations.
    times : frozenset of str
        Dims along which an observed variable is a series.
    others, parameters : frozenset of str
        Data of another model, which are passed over; the names of free variables.
    """

    variables: tuple[VariableInfo, ...]
    n_observed: int
    row: str | None
    data_dims: frozenset[str]
    coords: dict[str, np.ndarray]
    indices: Indices | None = field(default=None, compare=False, repr=False)
    support: Support | None = field(default=None, compare=False, repr=False)
    bases: Bases | None = field(default=None, compare=False, repr=False)
    copies: tuple[Copy, ...] = field(default=(), compare=False, repr=False)
    holders: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    dims_of_constants: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    tied: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    counted: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    times: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    others: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    parameters: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @classmethod
    def of(cls, compiled: CompiledModel, row: str | None) -> "Layout":
        named: Any = compiled.model.named_vars_to_dims
        fixed = lengths_of_constants(compiled)
        pairs = {pair for i in compiled.data for pair in zip(i.dims, i.shape, strict=True)}
        return cls(
            compiled.data,
            len(compiled.observed),
            row,
            compiled.data_dims,
            compiled.coords,
            compiled.indices,
            support=compiled.support,
            bases=compiled.bases,
            copies=compiled.copies,
            holders=compiled.holders,
            constants=values_of_constants(compiled),
            dims_of_constants={n: named[n] for n in compiled.constants if named.get(n)},
            tied=frozenset(d for d, n in pairs if d in compiled.data_dims and n in fixed),
            counted=compiled.counted,
            times=dims_of_time(compiled.model, compiled.observed) & compiled.data_dims,
            parameters=frozenset(i.name for i in compiled.free),
        )

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
        Position of the first dataset in the whole, as random numbers follow from positions.
    scattered : array of int of shape (dataset,), optional
        Positions of datasets that do not adjoin.
    there : dict of array of bool of shape (dataset, ...)
        False where a value is missing; observed variables that lack some, and no others.
    maskable : bool
        Whether the likelihood is known to leave padding out, so that batches may have some.
    place : pmcl.search.search.Place, optional
        Where the posterior of each dataset is, once that was searched for.
    labels : tuple of tuple of str, optional
        Names of each dataset's groups, where models have any number; what is more is padding.
    known : pmcl.refinement.known.KnownValues, optional
        What is known of each dataset's parameters.
    beside : callable, optional
        Of the task, to what batches have beside its arrays, by name.
    """

    layout: Layout
    values: dict[str, np.ndarray]
    names: tuple[str, ...]
    lengths: np.ndarray | None
    first: int = 0
    scattered: np.ndarray | None = field(default=None, compare=False)
    there: dict[str, np.ndarray] = field(default_factory=dict)
    maskable: bool = False
    place: Any = field(default=None, compare=False, repr=False)
    labels: tuple[tuple[str, ...], ...] | None = None
    known: Any = field(default=None, compare=False, repr=False)
    beside: Callable[["Task"], dict[str, Any]] | None = field(
        default=None, compare=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def position(self) -> np.ndarray:
        """That of every dataset in the whole, which its random numbers follow from."""
        return self.first + np.arange(len(self)) if self.scattered is None else self.scattered

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
        total, rows = np.zeros(len(self), int), self.rows
        for info in self.layout.variables[: self.layout.n_observed]:
            value = self.values[info.name]
            there = self.there.get(info.name, np.ones(value.shape, bool))
            if rows is not None and self.layout.row in info.dims:
                others = {*range(1, value.ndim)} - {1 + info.dims.index(self.layout.row)}
                there = there & np.expand_dims(rows, tuple(others))
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
        found = self._batch()
        if self.beside is None:
            return found
        return found._replace(values={**found.values, **self.beside(self)})

    def _batch(self) -> Batch:
        room, row = self.room, self.layout.row
        if not self.values:  # a model whose likelihood is a constant's: how many still counts
            return Batch({"": np.zeros(len(self))}, None)  # type: ignore[dict-item]
        if not self.padded:
            return Batch(dict(self.values), self.mask, self.place)  # type: ignore[arg-type]
        assert self.lengths is not None
        dims = {v.name: v.dims for v in self.layout.variables}
        index = np.minimum(np.arange(room), self.width - 1)

        def filled(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {
                k: v.take(index, axis=1 + dims[k].index(row)) if row in dims[k] else v
                for k, v in arrays.items()
            }

        rows = np.arange(room) < self.lengths[:, None]
        mask = Mask(rows, filled(self.there))  # type: ignore[arg-type]
        return Batch(filled(self.values), mask, self.place)  # type: ignore[arg-type]

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
                others = {*range(1, value.ndim)} - {1 + info.dims.index(row)}
                value = np.where(np.expand_dims(rows, tuple(others)), value, np.nan)
            found[info.name] = ((DATASET, *info.dims), value)
        return xr.Dataset(found, coords={DATASET: list(self.names)})

    def select(self, index: Sequence[int] | np.ndarray) -> "Task":
        """Return the task with only the datasets of `index`."""
        index = np.asarray(index, dtype=int)
        return replace(
            self,
            values={k: v[index] for k, v in self.values.items()},
            names=tuple(self.names[i] for i in index),
            lengths=None if self.lengths is None else self.lengths[index],
            first=0,
            scattered=None if self.scattered is None else self.scattered[index],
            # kept where nothing of it is missing: the shapes that functions are compiled for stay
            there={k: v[index] for k, v in self.there.items()},
            place=jax.tree.map(lambda x: x[index], self.place),
            labels=None if self.labels is None else tuple(self.labels[i] for i in index),
            known=jax.tree.map(lambda x: x[index], self.known),
        )

    def parts(self, size: int) -> Iterator["Task"]:
        """Cut the task in parts of at most `size` datasets, one after another."""
        for begin in range(0, len(self), size):
            part = self.select(np.arange(begin, min(begin + size, len(self))))
            yield replace(part, first=self.first + begin)
