"""A PyMC model in which some free variables are data: known ones, or such as are summed out."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle

from pmcl.compile.causal import steps
from pmcl.compile.labelled import initial_values, set_initial_values, without_initial_values

_TERM = "given_{}"


def as_data(model: pm.Model, names: Sequence[str]) -> pm.Model:
    """Make free variables `pm.Data`: whatever depends on them sees their values.

    Their own density, which may depend on other variables, is a Potential; the joint density stays
    what it was, but for the Jacobian of the variables that are data now.
    """
    shapes = model.eval_rv_shapes()
    values = {n: np.zeros(shapes[n], model[n].type.dtype) for n in names}
    new = pm.do(without_initial_values(model), values)
    set_initial_values(new, initial_values(model))
    same = {old: new[name] for name, old in model.named_vars.items() if name in new.named_vars}
    same |= {
        length: new.dim_lengths[dim]
        for dim, length in model.dim_lengths.items()
        if dim in new.dim_lengths
    }
    with new:
        for name in names:
            rv = _folded(model[name])
            term = steps(rv.owner.op, rv.owner.inputs, new[name])
            term = pm.logp(rv, new[name]) if term is None else term
            here = {*ancestors([term])}
            swap = {k: v for k, v in same.items() if k in here and k is not v}
            dims = model.named_vars_to_dims.get(name) if term.ndim == rv.ndim else None
            moved = graph_replace([term], swap, strict=False)[0]
            pm.Potential(_TERM.format(name), moved, dims=dims)
    return new


def _folded(rv: Variable) -> Variable:
    """The same, whose constants are that although they were given more axes.

    The density of `pm.Interpolated` reads the values of its points.
    """
    node = rv.owner
    inputs = [pt.constant(v.eval()) if _has_axes_more(v) else v for v in node.inputs]
    return node.clone_with_new_inputs(inputs).outputs[node.outputs.index(rv)]


def _has_axes_more(var: Variable) -> bool:
    node = var.owner
    return (
        node is not None
        and isinstance(node.op, DimShuffle)
        and isinstance(node.inputs[0], Constant)
    )
