"""Compiled graphs as functions of arrays, and the data that they read."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jax import Array
from pytensor.tensor.math import Sum

from pmcl.compile.conversion import graphs
from pmcl.compile.variables import VariableInfo

Dataset = Mapping[str, Array]

LENGTH_OF_ITS_OWN = (
    "parameters or constants of the model have it; data that vary with the dataset have to be "
    "covariates, and a series needs `dims=`"
)


class Function(NamedTuple):
    """A compiled graph, and the data it depends on beside its arguments."""

    call: graphs.ShapedFunction
    data: tuple[VariableInfo, ...]


def read(infos: Sequence[VariableInfo], data: Dataset, fixed: Mapping[str, int]) -> list[Array]:
    """Inputs of a graph from a dataset; `fixed` are lengths that dims of the model have.

    Raises
    ------
    ValueError
        Naming a variable that is missing or has the wrong shape.
    """
    missing = [info.name for info in infos if info.name not in data]
    if missing:
        raise ValueError(f"dataset: expected values for {missing}, none came.")
    found = [graphs.as_input(data[i.name], i.dtype) for i in infos]
    lengths = dict(fixed)
    for info, value in zip(infos, found, strict=True):
        # Left to broadcasting, a wrong shape would give a wrong density.
        if value.ndim != len(info.dims):
            raise ValueError(
                f"Variable {info.name!r}: expected dims {info.dims}, got shape {value.shape}."
            )
        for dim, n in zip(info.dims, value.shape, strict=True):
            if lengths.setdefault(dim, n) != n:
                why = (
                    LENGTH_OF_ITS_OWN
                    if dim in fixed
                    else "another variable of the dataset has it too"
                )
                raise ValueError(
                    f"Variable {info.name!r}: expected length {lengths[dim]} along dim "
                    f"{dim!r}, got {n} ({why})."
                )
    return found


def before_sums(function: Function) -> Function:
    """A function whose results are not summed yet."""
    call = function.call
    before = [
        v.owner.inputs[0] if v.owner is not None and isinstance(v.owner.op, Sum) else v
        for v in call.outputs
    ]
    return function._replace(call=graphs.ShapedFunction(call.inputs, before))
