"""Constants of a model that look like data: as long as the observations."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i

from pmcl.compile.conversion import graphs
from pmcl.compile.model import CompiledModel
from pmcl.compile.variables import holders, own_value
from pmcl.runtime.arguments import warn

_SHOWN = 3  # numbers by which a nameless constant is told


def values_of_constants(compiled: CompiledModel) -> dict[str, np.ndarray]:
    """Values of the `pm.Data` that are no covariates, as they were compiled.

    Warns
    -----
    UserWarning
        Where the model has others by now.
    """
    for name, value in compiled.constants.items():
        now = own_value(compiled.model, name)
        if not np.array_equal(now, value, equal_nan=value.dtype.kind == "f"):
            warn(
                f"{name!r} has been set to other values since the model was compiled, and those of "
                f"that time are taken. Compile or fit it again; or, if it differs between "
                f"datasets, with covariates=[{name!r}]."
            )
    return dict(compiled.constants)


def lengths_of_constants(compiled: CompiledModel) -> frozenset[int]:
    """Lengths of the constant arrays that observations depend on: what they say goes by position.

    Equal values say the same of every row.
    """

    def found() -> frozenset[int]:
        outputs = [*compiled.model.observed_RVs, *compiled.model.potentials]
        return frozenset(
            n
            for value in _arrays(compiled, outputs).values()
            for axis, n in enumerate(value.shape)
            if n > 1 and (value != value.take([0], axis=axis)).any()
        )

    return compiled.keep("lengths of constants", found)


def _arrays(compiled: CompiledModel, outputs: Sequence[Variable]) -> dict[Variable, np.ndarray]:
    """Arrays of the model's own that outputs depend on, then those that it makes of these alone."""
    known = {i.name for i in compiled.covariates}
    varying = {*compiled.model.dim_lengths.values()}
    found: dict[Variable, np.ndarray] = {}
    for var in ancestors(list(outputs)):
        if isinstance(var, SharedVariable) and var.name not in known and var not in varying:
            found[var] = np.asarray(var.get_value(borrow=True))
        elif isinstance(var, Constant) and isinstance(var.data, np.ndarray):
            found[var] = var.data
    own: set[Variable] = {*found, *(v for v in ancestors(list(outputs)) if isinstance(v, Constant))}
    made: list[Variable] = []
    for node in io_toposort([], list(outputs)):
        random = isinstance(node.op, RandomVariable | SymbolicRandomVariable)
        if not random and not isinstance(node.op, Shape | Shape_i) and own.issuperset(node.inputs):
            own.update(node.outputs)
        else:
            made += [v for v in _by_value(node) if v in own and v.owner and v not in made]
    made = [v for v in made if getattr(v.type, "ndim", 0)]
    if made:
        function = graphs.to_host([], made)(np.random.default_rng(0))
        found |= dict(zip(made, function(), strict=True))
    return found


def _by_value(node: Apply) -> list[Variable]:
    """Inputs of an operation but for the size of a draw."""
    size = node.op.size_param(node) if isinstance(node.op, RandomVariable) else None
    return [v for v in node.inputs if v is not size]


def beside_rows(compiled: CompiledModel, only: Collection[int] | None = None) -> str:
    """Say which constants have the observations' length, and the lines to write; "" for none.

    `only`: of these lengths.
    """
    model = compiled.model
    lengths = {
        n: i.name
        for i in reversed(compiled.observed)
        for d, n in zip(i.dims, i.shape, strict=True)
        if n > 1 and d not in {d for v in compiled.free for d in v.dims}
        if only is None or n in only
    }
    held, found = {*holders(model)}, []
    arrays = _arrays(compiled, model.observed_RVs)
    for var, value in arrays.items():
        if var in model.data_vars and var.name not in held:
            name = repr(var.name)
            line = f"covariates=[{name}]"
        elif isinstance(var, SharedVariable) or _is_said(var, arrays):
            continue  # observations, generators, and what is named already
        else:
            start = ", ".join(f"{v:.3g}" for v in value.ravel()[:_SHOWN])
            name = f"the array [{start}, ...]"
            line = 'x = pm.Data("x", ...), and covariates=["x"]'
        if not value.ndim or not value.size or len(value) not in lengths:
            continue
        if (value != value.flat[0]).any():
            text = f"{name} beside {len(value)} values of {lengths[len(value)]!r} ({line})"
            found += [text] if text not in found else []
    if not found:
        return ""
    return f"constants of every dataset, unless you make them covariates: {'; '.join(found)}"


def _is_said(var: Variable, arrays: Mapping[Variable, np.ndarray]) -> bool:
    """Whether an array is made of another as long, which is said."""
    n = len(arrays[var]) if arrays[var].ndim else 0
    above = (arrays[v] for v in ancestors([var]) if v is not var and v in arrays)
    return any(value.ndim and len(value) == n for value in above)
