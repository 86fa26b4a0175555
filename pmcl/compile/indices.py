"""Data that say which element of something is meant, and how many elements there are."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, walk
from pytensor.scalar import Cast
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from pmcl.compile.conversion import graphs
from pmcl.compile.of_data import ByData, OfData

type Dims = Mapping[str, tuple[str | None, ...]]


class Index(NamedTuple):
    """One place of the model where data index something.

    Attributes
    ----------
    data : str
        Names of the data.
    plain : bool
        Whether they are the index as they stand; else it is computed from them.
    indexed : str
        Names of what is indexed.
    dim : str
        The dim that they count along; empty where it has no name.
    """

    data: str
    plain: bool
    indexed: str
    dim: str = ""


class Misplaced(NamedTuple):
    """An index that is out of range.

    Attributes
    ----------
    place : Index
    values : tuple of float
        What came, at its lowest and its highest; a fraction twice where one came.
    size : int
        How many elements there are.
    """

    place: Index
    values: tuple[float, float]
    size: int

    def of(self, dataset: str) -> str:
        """Say whose it is."""
        if not self.place.data:
            return f"The model, dataset {dataset!r}"
        return f"Variable {self.place.data!r} of dataset {dataset!r}"

    def __str__(self) -> str:
        low, high = self.values
        if not low.is_integer():
            return (
                f"it indexes {self.place.indexed}: expected whole numbers, got {low:g}, which the "
                "model would cut off. Round them, and make the `pm.Data` one of integers."
            )
        what, size = self.place.indexed, self.size
        if not self.place.data:
            low = low if low < -size else high
            return f"an array indexes {what}, which has {size} elements, by {low:g}."
        came = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        computed = "" if self.place.plain else f" (computed from {self.place.data})"
        cause = likely_cause(low, high, size)
        hint = cause or " Number the groups from 0 in the order of the model's."
        return (
            f"it indexes {what}, which has {size} elements: expected whole numbers from 0 to "
            f"{size - 1}, got {came}{computed}.{hint}"
        )


def likely_cause(low: float, high: float, size: int) -> str:
    """Why numbers from `low` to `high` are not places of `size` elements; empty where unknown."""
    if low == -1:
        return (
            " A code of -1 is what pandas gives to a missing category: drop those rows. Where "
            f"the last one is meant, write {size - 1}."
        )
    if low != low:
        return " Drop the rows that have no group (NaN)."
    if low == 1 and high == size:
        return " Numbers counted from 1 are the likely cause: subtract 1."
    return ""


class Indices:
    """All places of a model where data index something.

    Parameters
    ----------
    outputs : sequence of Variable
        The model's variables, whose graph is looked at; without values for them.
    by_data : ByData
    dims : mapping of str to tuple of str
        Those of the model's variables.
    """

    def __init__(self, outputs: Sequence[Variable], by_data: ByData, dims: Dims) -> None:
        data = by_data.data
        places = _places(outputs, data, dims)
        self.places = [index for index, _, _ in places]
        own = _own(outputs, {*data, *by_data.lengths})
        self._own = [(index, values) for index, values, _ in own]
        flat = [
            v
            for _, index, size in places
            for v in (index.min(), index.max(), size, _fraction(index, data))
        ]
        self._found = OfData([*flat, *(size for *_, size in own)], by_data)

    def __reduce__(self) -> tuple:
        return _nothing, ()  # data were checked before they were sent elsewhere

    def misplaced(self, dataset: Mapping[str, np.ndarray]) -> Misplaced | None:
        """Return the first index of a dataset that is out of range; gaps are none.

        Raises
        ------
        IndexError
            Where one is, and it cannot be told which.
        """
        if not self.places and not self._own:
            return None
        try:
            found = self._found(dataset)
        except IndexError:  # what one place indexes is the index of another
            told = self._inner(dataset)
            if told is None:
                raise
            return told
        n = 4 * len(self.places)
        for i, place in enumerate(self.places):
            told = _told(place, found[4 * i : 4 * i + 4])
            if told is not None:
                return told
        for (place, values), size in zip(self._own, found[n:], strict=True):
            told = _told_own(place, values, [size])
            if told is not None:
                return told
        return None

    def _inner(self, dataset: Mapping[str, np.ndarray]) -> Misplaced | None:
        """Look at each place alone, but for those that another one keeps from being evaluated."""
        n = 4 * len(self.places)
        asked = [
            *((partial(_told, p), slice(4 * i, 4 * i + 4)) for i, p in enumerate(self.places)),
            *(
                (partial(_told_own, *own), slice(n + i, n + i + 1))
                for i, own in enumerate(self._own)
            ),
        ]
        for say, which in asked:
            try:
                told = say(self._found.part(which)(dataset))
            except IndexError:
                continue
            if told is not None:
                return told
        return None

    @property
    def doubtful(self) -> list[str]:
        """What arrays of the model index by -1 among numbers that come more than once.

        Python counts it from the end, and so do PyMC and this; pandas gives it to a missing
        category.
        """
        found = {
            place.indexed
            for place, values in self._own
            if not place.data and values.min() == -1 and len(np.unique(values)) < values.size
        }
        return sorted(found)


def _told(place: Index, found: Sequence[np.ndarray]) -> Misplaced | None:
    """Say of one place what its lowest and highest index are, if they are out of range."""
    low, high, size, fraction = map(float, found)
    if fraction:
        return Misplaced(place, (fraction, fraction), int(size))
    return Misplaced(place, (low, high), int(size)) if low < 0 or high >= size else None


def _told_own(place: Index, values: np.ndarray, found: Sequence) -> Misplaced | None:
    """Say the same of an array of the model's own; it may count from the end."""
    size = int(found[0])
    low, high = float(values.min()), float(values.max())
    out = low < (0 if place.data else -size) or high >= size
    return Misplaced(place, (low, high), size) if out else None


def _nothing() -> Indices:
    return Indices([], ByData(), {})


def _indexed(outputs: Sequence[Variable]) -> Iterator[tuple[Variable, int, Variable]]:
    """Each array that is indexed, the axis and the index."""
    for var in ancestors(list(outputs)):
        op = None if var.owner is None else var.owner.op
        if isinstance(op, AdvancedSubtensor | Subtensor):
            array, *given = var.owner.inputs
        elif isinstance(op, AdvancedIncSubtensor | IncSubtensor):
            array, _, *given = var.owner.inputs  # what is put there comes second
        else:
            continue
        for axis, entry in enumerate(op.idx_list):
            if isinstance(entry, int):
                yield array, axis, given[entry]


def _places(
    outputs: Sequence[Variable], data: Mapping[Variable, Variable], dims: Dims
) -> list[tuple[Index, Variable, Variable]]:
    """Find indices that follow from data alone; each with the index and the size as graphs."""
    found: dict[tuple[Variable, Variable, int], tuple[Index, Variable, Variable]] = {}
    for array, axis, index in _indexed(outputs):
        names = data_of(index, data)
        if names is None:
            continue
        of = pt.as_tensor_variable(index)
        plain, along = before_casts(index) in data, _dim(array, axis, dims)
        about = Index(", ".join(names), plain, _named(array), along)
        found.setdefault((array, index, axis), (about, of, array.shape[axis]))
    return list(found.values())


def _own(
    outputs: Sequence[Variable], data: Collection[Variable]
) -> list[tuple[Index, np.ndarray, Variable]]:
    """Find arrays of the model's own that index, as they stand or computed from.

    Each with their values and the size as a graph.
    """
    found: dict[tuple[Variable, int, Variable], tuple[Index, np.ndarray, Variable]] = {}
    values: dict[Variable, np.ndarray | None] = {}
    for array, axis, index in _indexed(outputs):
        source = before_casts(index)
        index = source if source.owner is None else index
        if index not in values:
            values[index] = _own_values(index, data)
        of = values[index]
        if of is None or not of.size or of.dtype.kind not in "iu":
            continue
        if not of.ndim and before_casts(array) not in data:  # parameters have their shape
            continue
        if of.min() < 0 or of.max() >= (array.type.shape[axis] or 0):
            names = [str(v.name) for v in ancestors([index]) if isinstance(v, SharedVariable)]
            about = Index(", ".join(names), index.owner is None, _named(array))
            found[array, axis, index] = (about, of, array.shape[axis])
    return list(found.values())


def _own_values(index: Variable, data: Collection[Variable]) -> np.ndarray | None:
    """Values of an index that only follows from what the model has; None of any other."""
    if index in data or is_random(index):
        return None
    if isinstance(index, Constant):
        return np.asarray(index.data) if hasattr(index.type, "ndim") else None
    if isinstance(index, SharedVariable):
        return np.asarray(index.get_value(borrow=True))
    if not getattr(index.type, "ndim", 0):
        return None
    for var in ancestors([index]):
        own = isinstance(var, Constant | SharedVariable)
        if var in data or is_random(var) or (var.owner is None and not own):
            return None
    return np.asarray(index.eval(mode=graphs.host_mode()))


def before_casts(index: Variable) -> Variable:
    """What an index was before it was cast or given more axes."""
    while index.owner is not None and (
        isinstance(index.owner.op, DimShuffle)
        or (isinstance(index.owner.op, Elemwise) and isinstance(index.owner.op.scalar_op, Cast))
    ):
        index = index.owner.inputs[0]
    return index


def data_of(index: Variable, data: Mapping[Variable, Variable]) -> list[str] | None:
    """Names of the data that an index is computed from; None where there is anything else."""
    names = []
    for var in ancestors([index]):
        if var in data:
            names.append(str(var.name))
        elif var.owner is None and not isinstance(var, Constant) and not hasattr(var, "get_value"):
            return None
        elif is_random(var):
            return None
    return names or None


def _fraction(index: Variable, data: Mapping[Variable, Variable]) -> Variable:
    """Data of the largest fraction, where they are cast to integers as they stand; else 0."""
    index = before_casts(index)
    if index not in data or not index.type.dtype.startswith("float"):
        return pt.constant(0.0)
    flat = index.ravel()
    part = pt.abs(flat - pt.round(flat))
    return pt.switch(part.max() > 0, flat[part.argmax()], 0.0)


def _named(array: Variable) -> str:
    """Name of what is indexed, or of what it is computed from."""
    if array.name:
        return repr(array.name)
    above = {v.name for v in ancestors([array]) if is_random(v) and v.name}
    return f"what is computed from {sorted(above)}" if above else "a constant"


def _dim(array: Variable, axis: int, dims: Dims) -> str:
    """Name of an axis of what is indexed, or of what it is computed from, element by element."""

    def above(v: Variable) -> list[Variable]:
        alike = v.owner is not None and isinstance(v.owner.op, Elemwise | ViewOp)
        return list(v.owner.inputs) if alike and v.name not in dims else []

    found = {
        dims[v.name][axis] or ""
        for v in walk([array], above)
        if v.name in dims and axis < len(dims[v.name]) == array.type.ndim
    }
    return found.pop() if len(found) == 1 else ""


def is_random(var: Variable) -> bool:
    """Whether a variable of a graph is a draw."""
    return var.owner is not None and isinstance(
        var.owner.op, RandomVariable | SymbolicRandomVariable
    )
