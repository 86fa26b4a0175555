"""The same model with another number of elements along one of its dims."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import clone_model
from pytensor.compile.sharedvalue import SharedVariable

from pmcl.compile.labelled import (
    in_order_of,
    initial_values,
    set_initial_values,
    without_initial_values,
)
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import dims_of, own_value


def resized(model: pm.Model, dim: str, number: int) -> pm.Model:
    """A copy of a model, of which one dim has another length.

    Its data along the dim are cut, or repeat the last; they stand for others of that shape.

    Parameters
    ----------
    model : pymc.Model
    dim : str
    number : int

    Raises
    ------
    UnsupportedModelError
        Where something of the model keeps its length, naming it.
    """
    new = clone_model(without_initial_values(model))
    in_order_of(model, new)

    def filled(name: str, value: np.ndarray) -> np.ndarray:
        dims = dims_of(new, new[name])
        for axis, d in enumerate(dims[len(dims) - value.ndim :]):
            if d == dim:
                index = np.minimum(np.arange(number), value.shape[axis] - 1)
                value = value.take(index, axis=axis)
        return value

    values = {
        str(v.name): filled(str(v.name), own_value(new, str(v.name)))
        for v in (*new.data_vars, *new.observed_RVs)
        if dim in dims_of(new, v)
    }
    new.set_dim(dim, number, coord_values=tuple(map(str, range(number))))
    for name, value in values.items():
        var = new[name]
        if isinstance(var, SharedVariable):
            var.set_value(value)
            continue
        held = new.rvs_to_values[var]
        if not isinstance(held, SharedVariable):
            del new.values_to_rvs[held]
            held = pt.constant(value, name=held.name)
            new.rvs_to_values[var], new.values_to_rvs[held] = held, var
    begin = initial_values(model)
    begin = {n: v if isinstance(v, str) else filled(n, v) for n, v in begin.items()}
    set_initial_values(new, begin)
    _check(new, dim, number)
    return new


def _check(model: pm.Model, dim: str, number: int) -> None:
    """Refuse a model of which not all has taken the new length."""
    try:
        shapes = {str(rv.name): tuple(rv.shape.eval()) for rv in model.basic_RVs}
    except (ValueError, TypeError, AssertionError, IndexError) as error:
        text = str(error).strip().splitlines()[0]
        raise UnsupportedModelError(
            f"groups: expected a model that can have any number of {dim!r}; with {number} it has "
            f"parts that do not fit ({text}). Make arrays with an element a group `pm.Data` with "
            f"the dim {dim!r}, and covariates."
        ) from error
    for name, shape in shapes.items():
        for d, n in zip(dims_of(model, model[name]), shape, strict=True):
            if d == dim and n != number:
                raise UnsupportedModelError(
                    f"groups: expected {name!r} to have {number} elements along {dim!r}, got {n}: "
                    "its shape is not that of the dim. Give it `dims=` alone."
                )
