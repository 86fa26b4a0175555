"""What a compiled model says of its variables: names, dims, shapes, and where they lie in z."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size
from pymc.initial_point import make_initial_point_expression
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort, walk
from pytensor.scalar import Cast
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i

from pmcl.compile.conversion import graphs


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


def value_slices(model: pm.Model) -> tuple[ValueSlice, ...]:
    """Lay the model's value variables one after another."""
    itself = {rv: rv for rv in model.free_RVs}
    shapes = [unconstrained(model, value, itself).shape for value in model.value_vars]
    # Not `model.initial_point`, which would compile C code to know them.
    lengths = pytensor.function([], shapes, mode=graphs.host_mode())()
    names = [model.values_to_rvs[value].name for value in model.value_vars]
    return one_after_another(
        ValueSlice(value.name, name, 0, tuple(map(int, length)))
        for value, name, length in zip(model.value_vars, names, lengths, strict=True)
    )


def initial_point(model: pm.Model) -> np.ndarray:
    """PyMC's initial point - `initval`, or the support point - as z of shape (dim,)."""
    points = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=model.rvs_to_initial_values,
        default_strategy="support_point",
        return_transformed=True,
    )
    found = pytensor.function([], points, mode=graphs.host_mode())()
    return np.concatenate([np.ravel(p) for p in found] or [np.zeros(0)]).astype(float)


def one_after_another(slices: Iterable[ValueSlice]) -> tuple[ValueSlice, ...]:
    """Let each slice start where the one before it ends."""
    given = list(slices)
    starts = accumulate((each.size for each in given[:-1]), initial=0)
    return tuple(each._replace(start=start) for each, start in zip(given, starts, strict=False))


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
    return describe(model, rv, np.shape(own_value(model, rv.name)))


def own_value(model: pm.Model, name: str) -> np.ndarray:
    """Value that the model itself has of an observed variable or of a `pm.Data`."""
    var = model[name]
    value = model.rvs_to_values.get(var, var)
    if isinstance(value, SharedVariable):
        return np.asarray(value.get_value(borrow=True))
    if isinstance(value, Constant):
        return np.asarray(value.data)
    return np.asarray(value.eval(mode=graphs.host_mode()))


def labels(values: Sequence) -> np.ndarray:
    """Labels of a dim as an array of one dim, tuples (of pandas' index of several levels) too."""
    if not any(isinstance(v, tuple) for v in values):
        return np.asarray(values)
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


def is_nameless(dim: str) -> bool:
    """Whether a dim has the name that ArviZ gives to those without one."""
    return re.fullmatch(r".*_dim_\d+", dim) is not None


def nameless(info: VariableInfo, axis: int) -> bool:
    """Whether the model has no name for the dim of an axis."""
    return info.dims[axis] == f"{info.name}_dim_{axis}"


def holder_of(model: pm.Model, name: str) -> str | None:
    """Name of the `pm.Data` that is, up to a cast, the value of an observed variable."""
    value = model.rvs_to_values[model[name]]
    while (
        value.owner is not None
        and isinstance(value.owner.op, Elemwise)
        and isinstance(value.owner.op.scalar_op, Cast)
    ):
        value = value.owner.inputs[0]
    return value.name if isinstance(value, SharedVariable) and value in model.data_vars else None


def holders(model: pm.Model) -> dict[str, str]:
    """Map the `pm.Data` that hold observations to the observed variables."""
    held = {rv.name: holder_of(model, rv.name) for rv in model.observed_RVs}
    return {holder: name for name, holder in held.items() if holder is not None}


def held_as(
    model: pm.Model, values: Mapping[str, Variable | np.ndarray]
) -> dict[Variable, Variable]:
    """Put other values of observed variables, by name, in the place of the `pm.Data` they are of.

    Only their shape enters the model's distributions, so what is missing of them does not matter.
    """
    return {
        model[holder]: pt.as_tensor_variable(values[name]).astype(model[holder].type.dtype)
        for holder, name in holders(model).items()
        if name in values
    }


def content(outputs: Sequence[Variable]) -> set[Variable]:
    """What values depend on by more than its shape."""
    return {*walk(list(outputs), _by_value)}


def _by_value(var: Variable) -> list[Variable]:
    shape = var.owner is None or isinstance(var.owner.op, Shape | Shape_i)
    return [] if shape else list(var.owner.inputs)


def core_ndim(rv: Variable) -> int:
    """Number of trailing axes that belong to one draw of a random variable's distribution."""
    op = rv.owner.op
    if hasattr(op, "ndim_supp"):
        return op.ndim_supp
    # What pymc-extras leaves where it summed a variable out: the axes that shared its value.
    axes = getattr(op, "support_axes", None)
    return rv.type.ndim if axes is None else len(axes[rv.owner.outputs.index(rv) - 1])


def unconstrained(model: pm.Model, value: Variable, graph: Mapping[Variable, Variable]) -> Variable:
    """Express a value variable by the random variables of the model's graph, old to new."""
    rv = model.values_to_rvs[value]
    transform, new = model.rvs_to_transforms[rv], graph[rv]
    out = new if transform is None else transform.forward(new, *new.owner.inputs)
    return out.astype(value.type.dtype)


def used(model: pm.Model) -> set[Variable]:
    """What the model's variables depend on; lengths of dims are not those of data in this graph."""
    return {*ancestors([*model.basic_RVs, *model.deterministics, *model.potentials])}


def fixed_lengths(
    model: pm.Model, data: Sequence[SharedVariable], sized: Mapping[Variable, Variable]
) -> dict[str, int]:
    """Lengths of the dims that cannot differ from the model's.

    These are the dims of parameters, of any `pm.Data` that stays constant, and those along which
    one observation is one draw (the length of a series, say) where they have no name.

    Parameters
    ----------
    model : pymc.Model
    data : sequence of `pm.Data`
        The covariates.
    sized : mapping
        From :func:`resize_observed`.
    """
    reached, held = used(model), holders(model)
    constant = [v for v in model.data_vars if v in reached and v not in data and v.name not in held]
    lengths = {
        d: int(model.dim_lengths[d].eval(mode=graphs.host_mode()))
        for var in [*model.free_RVs, *constant]
        for d in dims_of(model, var)
        if d in model.dim_lengths
    }
    for rv in model.observed_RVs:
        batch = rv.type.ndim - core_ndim(rv)
        core = zip(dims_of(model, rv)[batch:], sized[rv].type.shape[batch:], strict=True)
        lengths |= {d: n for d, n in core if n is not None}
    return lengths


def fingerprint(model: pm.Model, covariates: Sequence[SharedVariable]) -> tuple:
    """What a compiled model depends on: variables, coordinates, constants, shapes of the data.

    Of covariates and observed data only the shape counts. It holds the variables, so that no other
    can take the place of one that is gone.
    """
    held = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    shaped = {*covariates, *(v for v in ancestors(held) if isinstance(v, SharedVariable))}
    data = []
    for var in model.data_vars:
        if not isinstance(var, SharedVariable):
            continue
        value = np.asarray(var.get_value(borrow=True))
        content = None if var in shaped else value.tobytes()
        data.append((var, value.shape, str(value.dtype), content))
    coords = [(k, None if v is None else tuple(v)) for k, v in model.coords.items()]
    lengths = [
        (k, int(v.get_value()) if isinstance(v, SharedVariable) else v)
        for k, v in model.dim_lengths.items()
    ]
    return (
        *(tuple(group) for group in (model.free_RVs, model.observed_RVs, model.deterministics)),
        *(tuple(group) for group in (model.potentials, model.value_vars, data, coords, lengths)),
        tuple(model.rvs_to_values.items()),
        tuple(model.rvs_to_transforms.items()),
        tuple((k, _initial(v)) for k, v in model.rvs_to_initial_values.items()),
        tuple(sorted((k, tuple(v or ())) for k, v in model.named_vars_to_dims.items())),
    )


def _initial(value: object) -> object:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def resize_observed(
    model: pm.Model, sizes: Mapping[Variable, Sequence[Variable | int]]
) -> dict[Variable, Variable]:
    """Rebuild the model's graph with observed variables of other sizes; return old to new.

    Without dims, PyMC takes a distribution's size from the observations, as a constant.

    Parameters
    ----------
    model : pymc.Model
    sizes : mapping of observed variables to the lengths of their axes
        Those with dims, whose lengths are shared variables already, stay as they are.
    """
    graph = [*model.basic_RVs, *model.deterministics, *model.potentials]
    new: dict[Variable, Variable] = {}
    for node in io_toposort([], graph):
        inputs = [new.get(v, v) for v in node.inputs]
        if inputs != node.inputs:
            clone = node.clone_with_new_inputs(inputs, strict=False)
            new.update(zip(node.outputs, clone.outputs, strict=True))
        for old in node.outputs:
            now = new.get(old, old)
            dims = model.named_vars_to_dims.get(old.name) or (None,)
            batch = len(sizes[old]) - core_ndim(old) if old in sizes else 0
            if None in dims and batch:
                new[old] = now = change_dist_size(now, list(sizes[old])[:batch])
            now.name = old.name
    return {var: new.get(var, var) for var in graph}


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


def counted(
    model: pm.Model,
    lengths: Mapping[Variable, Variable],
    covariates: Collection[Variable],
    priors: Mapping[str, Variable],
) -> dict[str, str]:
    """Dims of observations, and no covariate, whose length is in a prior; and whose prior."""
    held, found = holders(model), dict[str, str]()
    unknown = {k for k, v in lengths.items() if {*covariates}.isdisjoint(ancestors([v]))}
    for name, prior in priors.items():
        for length in unknown.intersection(ancestors([prior])):
            dims = [d for d, n in model.dim_lengths.items() if n is length]
            if length.name in held:
                dims = [*dims_of(model, model[held[length.name]])]
            found |= dict.fromkeys(dims, name)
    return found
