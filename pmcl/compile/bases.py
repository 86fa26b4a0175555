"""Data that functions of the model take as if they were others: outside of a basis, of no group."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar import EQ, Add, Cos, Mul, Sin, Sqrt
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.inverse import MatrixInverse

from pmcl.compile.conversion.parameters import operands
from pmcl.compile.indices import before_casts, data_of
from pmcl.compile.of_data import ByData, OfData

_ROUNDED = 1e-5  # of its largest entry, by which halves of a matrix may differ


class _Basis(NamedTuple):
    """Data from the lower boundary of a basis, and how far away the upper one is."""

    data: str
    value: Variable
    width: Variable


class _Match(NamedTuple):
    """Data that are compared with each of some whole numbers from 0."""

    data: str
    value: Variable
    number: int


class Bases:
    """Functions of data alone that are of use for some values only.

    Parameters
    ----------
    outputs : sequence of Variable
    by_data : ByData
    """

    def __init__(self, outputs: Sequence[Variable], by_data: ByData) -> None:
        data = by_data.data
        self._bases = [*_bases(outputs, data)]
        self._matches = [*_matches(outputs, data)]
        flat = [v for b in self._bases for v in (b.value.min(), b.value.max(), b.width)]
        self._sums = [*_sums(outputs, data), *_symmetric(outputs, data)]
        flat += [v for _, _, v in self._sums]
        self._refused = OfData(flat, by_data)
        compared = [v for m in self._matches for v in (m.value.min(), m.value.max())]
        self._compared = OfData(compared, by_data)

    def __reduce__(self) -> tuple:
        return _nothing, ()  # data were checked before they were sent elsewhere

    def outside(self, dataset: Mapping[str, np.ndarray]) -> str:
        """Say which data are outside of a basis, or do not sum to 1; "" for none."""
        found, n = self._refused(dataset), 3 * len(self._bases)
        for (name, expected, _), good in zip(self._sums, found[n:], strict=True):
            if not np.all(good):
                return f"values of {name!r}: expected {expected}, as their distribution does."
        for basis, low, high, width in zip(
            self._bases, found[:n:3], found[1:n:3], found[2:n:3], strict=True
        ):
            away = float(max(-low, high - width))
            if away > 1e-9 * width:
                return (
                    f"values of {basis.data!r} are up to {away:g} outside of the boundary of the "
                    f"basis of a `pm.gp.HSGP`, which is {width:g} wide: there its functions repeat "
                    "themselves. Its middle, and with `c` its width, follow from the model's own "
                    "values: give these the range of all data, or write a larger `L=`."
                )
        return ""

    def unmatched(self, dataset: Mapping[str, np.ndarray]) -> str:
        """Say which data equal none of the numbers that they are compared with; "" for none."""
        found = self._compared(dataset)
        for match, low, high in zip(self._matches, found[::2], found[1::2], strict=True):
            if low < 0 or high >= match.number:
                return (
                    f"the model compares {match.data!r} with 0 to {match.number - 1}, and got "
                    f"{low:g} to {high:g}: others than those are taken as of no group."
                )
        return ""


def _nothing() -> Bases:
    return Bases([], ByData())


def _is(var: Variable, *operations: type) -> bool:
    """Whether a variable is the result of an elementwise operation."""
    op = None if var.owner is None else var.owner.op
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, operations)


def _is_own(var: Variable) -> bool:
    """Whether a variable follows from constants."""
    return all(v.owner is not None or isinstance(v, Constant) for v in ancestors([var]))


def _bases(outputs: Sequence[Variable], data: Mapping[Variable, Variable]) -> Iterator[_Basis]:
    """Find sines and cosines of frequencies * (data + boundary), as PyMC writes them."""
    for var in ancestors(list(outputs)):
        if not _is(var, Sin, Cos) or not _is(var.owner.inputs[0], Mul):
            continue
        factors = [before_casts(v) for v in var.owner.inputs[0].owner.inputs]
        if len(factors) != 2 or not any(
            _is(v, Sqrt) and _is_own(v) and not all(v.type.broadcastable) for v in factors
        ):
            continue
        for total in (v for v in factors if _is(v, Add)):
            own = [v for v in total.owner.inputs if _is_own(v)]
            names = data_of(total, data)
            if len(own) == 1 and names is not None:
                yield _Basis(", ".join(names), total, 2 * own[0].max())


def _sums(
    outputs: Sequence[Variable], data: Mapping[Variable, Variable]
) -> Iterator[tuple[str, str, Variable]]:
    """Find checks of probabilities that are data: JAX passes over what PyMC would refuse."""
    for var in ancestors(list(outputs)):
        op = None if var.owner is None else var.owner.op
        if not isinstance(op, CheckParameterValue) or "sum(" not in op.msg:
            continue
        for condition in var.owner.inputs[1:]:
            names = data_of(condition, data)
            if names is not None:
                yield ", ".join(names), op.msg, condition


def _symmetric(
    outputs: Sequence[Variable], data: Mapping[Variable, Variable]
) -> Iterator[tuple[str, str, Variable]]:
    """Find covariances and precisions that are data, or a sum with these: one half is passed over.

    A Cholesky factor is that of the lower half, whatever stands in the upper one.
    """
    for var in ancestors(list(outputs)):
        if not _runs(var, Cholesky):
            continue
        (matrix,) = var.owner.inputs
        if _runs(matrix, MatrixInverse):
            (matrix,) = matrix.owner.inputs
        found = operands(matrix)
        for own in (v for v in found if v in data and v.type.ndim >= 2):
            if own in ancestors(found - {own}):  # with its transpose, perhaps
                continue
            real = own.astype("float64")
            apart = abs(real - real.swapaxes(-1, -2)).max()
            square = pt.eq(own.shape[-1], own.shape[-2])
            good = ~square | (apart <= _ROUNDED * abs(real).max())
            yield str(own.name), "a symmetric matrix", good


def _runs(var: Variable, operation: type) -> bool:
    """Whether a variable is the result of an operation on matrices."""
    op = None if var.owner is None else var.owner.op
    return isinstance(getattr(op, "core_op", op), operation)


def _matches(outputs: Sequence[Variable], data: Collection[Variable]) -> Iterator[_Match]:
    """Find data that are compared with 0, 1, 2 ..., an axis of their own."""
    for var in ancestors(list(outputs)):
        if not _is(var, EQ):
            continue
        for given, other in (var.owner.inputs, var.owner.inputs[::-1]):
            source, with_ = before_casts(given), before_casts(other)
            if source not in data or not isinstance(with_, Constant):
                continue
            numbers = np.asarray(with_.data)
            alone = all(
                theirs
                for theirs, ours in zip(
                    given.type.broadcastable, other.type.broadcastable, strict=True
                )
                if not ours
            )
            if (
                alone
                and numbers.size > 1
                and np.array_equal(numbers.ravel(), np.arange(numbers.size))
            ):
                yield _Match(str(source.name), source, numbers.size)
