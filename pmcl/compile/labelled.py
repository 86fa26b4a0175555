"""Models of `pymc.dims` as ordinary PyMC models: the same variables, dims as axes in order."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.dims.distributions import transforms as dim_transforms
from pymc.distributions import transforms
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.logprob.transforms import Transform
from pymc.model.fgraph import (
    ModelFreeRV,
    ModelObservedRV,
    ModelVar,
    fgraph_from_model,
    model_from_fgraph,
)
from pytensor.compile import optdb
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import Clip
from pytensor.xtensor.basic import XOp, tensor_from_xtensor, xtensor_from_tensor
from pytensor.xtensor.rewriting.utils import lower_aligned
from pytensor.xtensor.shape import Transpose
from pytensor.xtensor.type import XTensorType
from pytensor.xtensor.vectorization import XRV, XElemwise

from pmcl.compile.refuse import UnsupportedModelError

_LOWERED = optdb.query("+lower_xtensor")

# By model: its variables when it was converted, and the ordinary model.
_ORDINARY: WeakKeyDictionary[pm.Model, tuple[list[Variable], pm.Model]] = WeakKeyDictionary()


def model_or_context(model: pm.Model | None) -> pm.Model:
    """Return the model, or that of the context where none is given; one of `pymc.dims` converted.

    Raises
    ------
    TypeError
        If it is something else, or there is none.
    UnsupportedModelError
        Naming the variable of `pymc.dims` that cannot be converted.
    """
    if model is not None and not isinstance(model, pm.Model):
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        way = " Pass `model.backend.model`, which `model.build()` makes."
        way = way if name.startswith("bambi.") else ""
        raise TypeError(f"model: expected a pymc.Model, got {name}.{way}")
    return ordinary(pm.modelcontext(model))


def ordinary(model: pm.Model) -> pm.Model:
    """Convert a model of `pymc.dims`, once; its data and coordinates follow those of the model.

    Raises
    ------
    UnsupportedModelError
        Naming the variable.
    """
    if not any(isinstance(v.type, XTensorType) for v in model.named_vars.values()):
        return model
    now = [*model.named_vars.values(), *model.rvs_to_values.values()]
    before = _ORDINARY.get(model)
    if before is None or [*map(id, before[0])] != [*map(id, now)]:
        _ORDINARY[model] = before = now, _converted(model)
    new = before[1]
    for name, length in model.dim_lengths.items():
        if isinstance(length, SharedVariable):
            new.dim_lengths[name].set_value(length.get_value())
    new._coords = dict(model.coords)
    for var in model.data_vars:
        if isinstance(var, SharedVariable):
            new[var.name].set_value(var.get_value(borrow=True))
    for rv, initial in model.rvs_to_initial_values.items():
        new.set_initval(new[rv.name], _initial(initial, rv, new))
    return new


def without_initial_values(model: pm.Model) -> pm.Model:
    """A view of a model that has no initial values: PyMC converts none that has."""
    shell = object.__new__(type(model))
    shell.__dict__.update(model.__dict__)
    shell.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
    return shell


def initial_values(model: pm.Model) -> dict[str, str | np.ndarray]:
    """Initial values by variable, of those that have one."""
    given = {str(rv.name): v for rv, v in model.rvs_to_initial_values.items()}
    return {name: _plain(v) for name, v in given.items() if v is not None}


def set_initial_values(model: pm.Model, values: Mapping[str, str | np.ndarray]) -> None:
    """Give initial values to the free variables of a copy that are among them."""
    for rv in model.free_RVs:
        if rv.name in values:
            model.set_initval(rv, values[rv.name])


def in_order_of(model: pm.Model, new: pm.Model) -> None:
    """Sort the variables of a copy, which has them in another order."""
    for kind in ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"):
        place = {v.name: i for i, v in enumerate(getattr(model, kind))}
        getattr(new, kind).sort(key=lambda v, place=place: place[v.name])


def _converted(model: pm.Model) -> pm.Model:
    graph, _ = fgraph_from_model(without_initial_values(model))
    lengths = graph._dim_lengths
    for data in [v for v in graph.inputs if isinstance(v.type, XTensorType)]:
        if isinstance(data, SharedVariable):
            array = pytensor.shared(data.get_value(), name=data.name, shape=data.type.shape)
            labelled = xtensor_from_tensor(array, dims=data.type.dims)
            graph.replace(data, labelled, import_missing=True)
    for node in graph.toposort():
        out = node.outputs[0]
        if isinstance(node.op, ModelVar) and isinstance(out.type, XTensorType):
            new = _ordinary_variable(node.op, node.inputs, lengths)
            labelled = xtensor_from_tensor(new, dims=new.owner.op.dims)
            graph.replace(out, labelled.transpose(*out.type.dims), import_missing=True)
    _LOWERED.rewrite(graph)
    _check(graph)
    new = model_from_fgraph(graph, mutate_fgraph=True)
    in_order_of(model, new)
    return new


def _ordinary_variable(
    op: ModelVar, inputs: Sequence[Variable], lengths: Mapping[str, Variable]
) -> Variable:
    """One variable of the model, its dims in the same order where its distribution lets them be."""
    labelled = inputs[0]
    dims = labelled.type.dims
    if not isinstance(op, ModelFreeRV | ModelObservedRV):
        return type(op)(op.name, dims)(_tensor(labelled))
    rv, order = _random_variable(op.name, labelled, lengths)
    if isinstance(op, ModelObservedRV):
        if order != dims:
            raise UnsupportedModelError(
                f"Variable {op.name!r}: expected the dims of one draw to be the last of its dims, "
                f"got {dims}. Write `dims={order}`, and its data in that order."
            )
        return ModelObservedRV(op.name, order)(rv, _tensor(inputs[1]))
    transform = _transform(op.name, op.transform, order)
    value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
    return ModelFreeRV(op.name, order, transform)(rv, value.type(name=inputs[1].name))


def _tensor(labelled: Variable) -> Variable:
    if isinstance(labelled, Constant):
        return pt.constant(labelled.data, name=labelled.name)
    return tensor_from_xtensor(labelled)


def _random_variable(
    name: str, labelled: Variable, lengths: Mapping[str, Variable]
) -> tuple[Variable, tuple[str, ...]]:
    """A variable with the same distribution, and its dims: those of one draw come last."""
    dims, inner = labelled.type.dims, labelled
    while inner.owner is not None and isinstance(inner.owner.op, Transpose):
        inner = inner.owner.inputs[0]
    node = inner.owner
    if node is not None and isinstance(node.op, XElemwise) and isinstance(node.op.scalar_op, Clip):
        inside, *bounds = node.inputs
        # an absent bound is the variable itself
        lower, upper = (
            None if bound is inside else lower_aligned(bound, _from_first(dims, bound))
            for bound in bounds
        )
        rv, order = _random_variable(name, inside.transpose(*dims), lengths)
        return pm.Censored.dist(rv, lower=lower, upper=upper), order
    if node is None or not isinstance(node.op, XRV):
        what = "nothing" if node is None else str(node.op).partition("{")[0]
        raise UnsupportedModelError(
            f"Variable {name!r} is of `pymc.dims`, and made by {what}: expected one of its "
            f"distributions. Write it with `pm` (`pm.Normal({name!r}, ..., dims={[*dims]!r})`); "
            "`.values` of a variable of `pymc.dims` is its array, and `pymc.dims.as_xtensor(..., "
            "dims=...)` the way back."
        )
    core_dims, own = node.op.core_dims
    batch = tuple(d for d in dims if d not in own)
    params = [
        lower_aligned(param, (*_from_first(batch, param), *core))
        for param, core in zip(node.op.dist_params(node), core_dims, strict=True)
    ]
    known = dict(zip(node.op.extra_dims, node.op.size_params(node), strict=True))
    for param in node.op.dist_params(node):
        known |= {d: n for d, n in param.sizes.items() if d not in known}
    size = [lengths.get(d, known[d]) for d in batch] or None
    rng = pt.random.shared_rng(seed=None)
    core = node.op.core_op
    if isinstance(core, SymbolicRandomVariable):
        rv = type(core).rv_op(*params, size=size, rng=rng)
    else:
        rv = core.make_node(rng, size, *params).outputs[1]
    return rv, (*batch, *own)


def _from_first(dims: tuple[str, ...], param: Variable) -> tuple[str, ...]:
    """The dims from the first one on that a parameter has: those before it are broadcast."""
    first = next((i for i, d in enumerate(dims) if d in param.type.dims), len(dims))
    return dims[first:]


def _transform(name: str, labelled: Transform | None, dims: tuple[str, ...]) -> Transform | None:
    # by name: not every PyMC that pmcl works with has all of them
    own = type(labelled).__module__ == dim_transforms.__name__
    match type(labelled).__name__ if own or labelled is None else "":
        case "NoneType":
            return None
        case "LogTransform" | "LogOddsTransform" | "CircularTransform" | "SimplexTransform" as kind:
            return getattr(transforms, kind.removesuffix("Transform").lower())
        case "ZeroSumTransform":
            axes = [dims.index(d) - len(dims) for d in labelled.dims]  # type: ignore[union-attr]
            return transforms.ZeroSumTransform(axes)
        case "IntervalTransform":
            lower, upper = labelled.lower, labelled.upper  # type: ignore[union-attr]
            bounds = _bound(lower, dims), _bound(upper, dims)
            return transforms.Interval(bounds_fn=lambda *_: bounds)
        case _:
            raise UnsupportedModelError(
                f"Variable {name!r} of `pymc.dims` has the transform {type(labelled).__name__}: "
                "expected one of `pymc.dims`' own. Leave `transform=` out, or write the variable "
                "with `pm`."
            )


def _bound(bound: Constant, dims: tuple[str, ...]) -> np.ndarray | None:
    if np.isinf(bound.data).all():
        return None
    return lower_aligned(bound, _from_first(dims, bound))


def _check(graph: FunctionGraph) -> None:
    for node in graph.toposort():
        if isinstance(node.op, XOp):
            raise UnsupportedModelError(
                f"An operation of `pymc.dims` has no form on arrays: {node.op}. Write it in "
                "another way, or on `.values`."
            )


def _plain(initial: object) -> str | np.ndarray:
    if isinstance(initial, Variable):
        initial = initial.data if isinstance(initial, Constant) else initial.eval()
    return initial if isinstance(initial, str) else np.asarray(initial)


def _initial(initial: object, rv: Variable, new: pm.Model) -> object:
    array, order = _plain(initial), new.named_vars_to_dims.get(rv.name) or ()
    if initial is None or isinstance(array, str):
        return initial
    if array.ndim != len(order):
        return array
    return array.transpose([rv.type.dims.index(d) for d in order])
