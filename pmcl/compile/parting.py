"""A free variable of which some entries are known, as two: those, and the ones that are left."""

from collections.abc import Mapping

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.model.fgraph import (
    fgraph_from_model,
    model_deterministic,
    model_free_rv,
    model_from_fgraph,
)
from pymc.pytensorf import toposort_replace
from pymc.util import get_transformed_name
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

from pmcl.compile.labelled import initial_values, set_initial_values, without_initial_values

KNOWN, LEFT = "{}_observed", "{}_unobserved"  # as PyMC names the parts of what it imputes


def parted(model: pm.Model, known: Mapping[str, np.ndarray]) -> pm.Model:
    """Split free variables in two, of the same distribution; the whole is a deterministic.

    Parameters
    ----------
    model : pymc.Model
    known : mapping of str to array of bool
        By variable, which of its entries are known: some, and not all.

    Raises
    ------
    ValueError
        Naming a variable whose entries are not independent of each other given the others.
    """
    fgraph, memo = fgraph_from_model(without_initial_values(model))
    swap = []
    for name, which in known.items():
        rv, transform = model[name], model.rvs_to_transforms[model[name]]
        if (
            not isinstance(rv.owner.op, RandomVariable)
            or rv.owner.op.ndim_supp
            or getattr(transform, "ndim_supp", 0)
        ):
            raise ValueError(
                f"given[{name!r}]: expected all entries, some are NaN: those of "
                f"`{rv.owner.op}` are not independent. Give it as a whole, or write it as two "
                "variables."
            )
        old = memo[rv]
        inner = old.owner.inputs[0]
        parts = {}
        for label, places in ((KNOWN, which), (LEFT, ~which)):
            at = np.flatnonzero(places)
            part = _entries(inner, which.shape, at)
            value, own = part.type(), label.format(name)
            value.name = get_transformed_name(own, transform) if transform else own
            parts[label] = at, model_free_rv(part, value, transform, own)
        whole = pt.zeros(which.size, dtype=rv.type.dtype)
        for at, part in parts.values():
            whole = pt.set_subtensor(whole[at], part)
        dims = model.named_vars_to_dims.get(name) or ()
        swap.append((old, model_deterministic(whole.reshape(which.shape), name, *dims)))
    toposort_replace(fgraph, swap)
    new = model_from_fgraph(fgraph, mutate_fgraph=True)
    begin = initial_values(model)
    for name, which in known.items():
        if not isinstance(whole := begin.get(name, ""), str):
            whole = np.broadcast_to(whole, which.shape)
            begin |= {KNOWN.format(name): whole[which], LEFT.format(name): whole[~which]}
    set_initial_values(new, begin)
    return new


def _entries(rv: Variable, shape: tuple[int, ...], at: np.ndarray) -> Variable:
    """Some entries of a random variable, as one of their own."""
    op = rv.owner.op
    assert isinstance(op, RandomVariable)
    pairs = zip(op.dist_params(rv.owner), op.ndims_params, strict=True)
    parameters = [_of_entries(p, core, shape, at) for p, core in pairs]
    rng = pytensor.shared(np.random.default_rng())
    return op.make_node(rng, (len(at),), *parameters).outputs[1]


def _of_entries(parameter: Variable, core: int, shape: tuple[int, ...], at: np.ndarray) -> Variable:
    """A parameter, whose last `core` dims belong to each entry, of some entries."""
    batch = parameter.type.ndim - core
    if {*parameter.type.shape[:batch]} <= {1}:  # one for all; PyTensor may have given it dims
        # points of an interpolated prior have to stay a constant
        return parameter if core or not batch else parameter[(0,) * batch]
    own = [parameter.shape[batch + i] for i in range(core)]
    return pt.broadcast_to(parameter, (*shape, *own)).reshape((-1, *own))[at]
