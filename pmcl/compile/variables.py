"""What a compiled model says of its variables: names, dims, shapes, and where they lie in z."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pmcl.compile import graphs


class VariableInfo(NamedTuple):
    """What a labelled array needs to know of one variable of the model."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str


class ValueSlice(NamedTuple):
    """Where one value variable of the model lies in the flat vector z."""

    name: str
    variable: str
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))


def value_slices(
    model: pm.Model, point: Mapping[str, np.ndarray]
) -> tuple[tuple[ValueSlice, ...], int]:
    """Lay the model's value variables one after another; return them and the length of z."""
    slices: list[ValueSlice] = []
    start = 0
    for value in model.value_vars:
        shape = np.shape(point[value.name])
        slices.append(ValueSlice(value.name, model.values_to_rvs[value].name, start, shape))
        start += slices[-1].size
    return tuple(slices), start


def dims_of(model: pm.Model, var: Variable) -> tuple[str, ...]:
    """Dims of a variable, with ArviZ's names (`y_dim_0`) where the model has none."""
    named = model.named_vars_to_dims.get(var.name) or (None,) * var.type.ndim
    return tuple(d if d is not None else f"{var.name}_dim_{i}" for i, d in enumerate(named))


def describe(model: pm.Model, var: Variable, shape: Sequence[int]) -> VariableInfo:
    """Name, dims, shape and dtype of one variable."""
    return VariableInfo(var.name, dims_of(model, var), tuple(map(int, shape)), var.type.dtype)


def describe_data(model: pm.Model, var: SharedVariable) -> VariableInfo:
    """Describe a `pm.Data`."""
    return describe(model, var, var.get_value(borrow=True).shape)


def describe_observed(model: pm.Model, rv: Variable) -> VariableInfo:
    """Describe an observed variable, at the size of the model's own observations."""
    value = model.rvs_to_values[rv]
    if isinstance(value, SharedVariable):
        data = value.get_value(borrow=True)
    elif isinstance(value, Constant):
        data = value.data
    else:
        data = value.eval(mode=graphs.host_mode())
    return describe(model, rv, np.shape(data))


def output_shapes(
    call: Callable[..., tuple],
    data: Sequence[VariableInfo],
    model: pm.Model,
    point: Mapping[str, np.ndarray],
) -> list[tuple[int, ...]]:
    """Shapes of the results of a function of the value variables, at the model's own data."""
    values = [jax.ShapeDtypeStruct(np.shape(point[v.name]), v.type.dtype) for v in model.value_vars]
    given = [jax.ShapeDtypeStruct(info.shape, info.dtype) for info in data]
    return [tuple(r.shape) for r in jax.eval_shape(call, *values, *given)]


def fixed_lengths(model: pm.Model, data: Sequence[SharedVariable]) -> dict[str, int]:
    """Lengths of the dims that cannot differ from the model's.

    These are the dims of parameters, and of any `pm.Data` that stays constant.
    """
    used = {*ancestors([*model.basic_RVs, *model.deterministics])}
    constant = [v for v in model.data_vars if v in used and v not in data]
    return {
        d: int(model.dim_lengths[d].eval(mode=graphs.host_mode()))
        for var in [*model.free_RVs, *constant]
        for d in dims_of(model, var)
        if d in model.dim_lengths
    }


def varying_lengths(
    model: pm.Model, inputs: Mapping[Variable, Variable], fixed: Mapping[str, int]
) -> dict[Variable, Variable]:
    """Express the length of every other dim by the shape of the first input that has it."""
    lengths: dict[Variable, Variable] = {}
    for var, symbol in inputs.items():
        for axis, name in enumerate(dims_of(model, var)):
            length = model.dim_lengths.get(name)
            if isinstance(length, SharedVariable) and length not in lengths and name not in fixed:
                lengths[length] = symbol.shape[axis].astype(length.type.dtype)
    return lengths
