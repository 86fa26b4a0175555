"""One rebuilt copy of a PyMC model whose data can be exchanged without compiling it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size
from pymc.logprob.basic import logp
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelObservedRV,
    ModelVar,
    fgraph_from_model,
    model_from_fgraph,
    model_observed_rv,
    model_potential,
)
from pytensor.compile import SharedVariable
from pytensor.graph import FunctionGraph, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type_other import NoneTypeT

from pmcl.compile.labelled import initial_values, set_initial_values, without_initial_values
from pmcl.compile.variables import holder_of

type Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class SharedModel:
    """A copy of a model in which observations, covariates and dim lengths are shared variables.

    Attributes
    ----------
    model
        The copy. It has no coords, dims and Deterministics, and shares no data with the original.
    observed
        Names of the observed variables.
    holders
        For an observed variable whose value was a ``pm.Data``: that data's name.
    gaps
        Shared variables of observed variables that lack values: the values and where they are
        there. In the copy such a variable is the sum of its terms that are there (a Potential).
    """

    model: pm.Model
    observed: tuple[str, ...]
    holders: Mapping[str, str]
    gaps: Mapping[str, SharedVariable] = field(default_factory=dict)

    def frozen(self) -> "SharedModel":
        """Return this model with PyMC's cache of compiled functions, data still exchangeable."""
        from pymc.model.transform.optimization import freeze_model

        return replace(self, model=freeze_model(self.model))

    def variables(self, name: str) -> list[SharedVariable]:
        """Shared variables that hold the data of one observed variable or covariate."""
        holder = self.holders.get(name)
        if name in self.gaps:
            held = [] if holder is None else [self.model[holder]]
            return [self.gaps[name], *held]
        variable = self.model[name]
        if name not in self.observed:
            return [variable]
        value = self.model.rvs_to_values[variable]
        return [value] if holder is None else [value, self.model[holder]]

    def updates(
        self, arrays: Arrays, lengths: Mapping[str, int]
    ) -> dict[SharedVariable, np.ndarray]:
        """Values that every shared variable takes for one dataset."""
        values: dict[SharedVariable, np.ndarray] = {}
        for name, array in arrays.items():
            for variable in self.variables(name):
                values[variable] = array.astype(variable.type.dtype)
        for dim, length in lengths.items():
            variable = self.model.dim_lengths.get(dim)
            if variable is not None:
                values[variable] = np.asarray(length, dtype=variable.type.dtype)
        return values

    def set(self, arrays: Arrays, lengths: Mapping[str, int]) -> None:
        """Put one dataset into the shared variables."""
        for variable, value in self.updates(arrays, lengths).items():
            variable.set_value(value)

    def free_depend_on_data(self, arrays: Arrays, lengths: Mapping[str, int]) -> bool:
        """Whether a free variable's prior reads something that a dataset sets."""
        changing = self.updates(arrays, lengths).keys()
        return not changing.isdisjoint(ancestors(self.model.free_RVs))


def share_data(model: pm.Model, datasets: Sequence[Arrays]) -> SharedModel:
    """Rebuild a model with its data as shared variables.

    Parameters
    ----------
    model
        The user's model; it is read, never written.
    datasets
        Checked arrays of every dataset (see `pmcl.reference.data`); the first one is put in.

    Returns
    -------
    SharedModel

    Raises
    ------
    ValueError
        If the length of an observed variable is fixed in the model's graph and cannot follow.
    """
    fgraph, _ = fgraph_from_model(without_initial_values(model))
    # Rebuilt node by node: what is downstream of a resized variable carries its old static shape
    new: dict[Variable, Variable] = {}
    gaps: dict[str, SharedVariable] = {}
    for node in fgraph.toposort():
        inputs = [new.get(variable, variable) for variable in node.inputs]
        if isinstance(node.op, ModelObservedRV):
            name = node.op.name
            values = [arrays[name] for arrays in datasets]
            rv, value = _observe(node.op, inputs[0], inputs[1], values)
            if there_of(name) in datasets[0]:
                there = pytensor.shared(
                    datasets[0][there_of(name)], name=there_of(name), shape=value.type.shape
                )
                gaps |= {name: value, there_of(name): there}
                new[node.outputs[0]] = model_potential(_part(rv, value, there), name)
            else:
                new[node.outputs[0]] = model_observed_rv(rv, value, name, *node.op.dims)
        elif inputs != node.inputs:
            outputs = node.clone_with_new_inputs(inputs, strict=False).outputs
            new.update(zip(node.outputs, outputs, strict=True))
    # Deterministics are no part of the density, and their fixed sizes would outlive a resize
    outputs = [
        new.get(v, v) for v in fgraph.outputs if not isinstance(v.owner.op, ModelDeterministic)
    ]

    rebuilt = FunctionGraph(outputs=outputs, clone=False)
    rebuilt._coords = dict(model.coords)
    rebuilt._dim_lengths = fgraph._dim_lengths
    shared = model_from_fgraph(rebuilt, mutate_fgraph=True)
    shared.deterministics.clear()
    # labels do not matter to a sampler, and those of another length would be in the way
    shared.named_vars_to_dims.clear()
    shared.coords.clear()
    for dim, length in list(shared.dim_lengths.items()):
        if not isinstance(length, SharedVariable):
            del shared.dim_lengths[dim]
    set_initial_values(shared, initial_values(model))

    names = tuple(rv.name for rv in model.observed_RVs)
    holders = {name: holder for name in names if (holder := holder_of(model, name))}
    return SharedModel(shared, names, holders, gaps)


def there_of(name: str) -> str:
    """Name of the array that says which values of an observed variable are there."""
    return f"{name}__there"


def _part(rv: Variable, value: Variable, there: Variable) -> Variable:
    """Log likelihood of what is there of an observed variable."""
    # PyMC derives some densities on a copy, in which the model's own variables would come twice
    own = [v for v in ancestors([rv]) if v.owner is not None and isinstance(v.owner.op, ModelVar)]
    stand_in = {v: v.type(name=v.name) for v in own}
    alone = graph_replace([rv], stand_in, strict=False)[0]
    terms = graph_replace(
        [logp(alone, value)], {new: old for old, new in stand_in.items()}, strict=False
    )[0]
    kept = pt.all(there, axis=tuple(range(terms.type.ndim, there.type.ndim)))
    return pt.where(kept, terms, 0.0).sum()


def _observe(
    op: ModelObservedRV, rv: Variable, old_value: Variable, values: Sequence[np.ndarray]
) -> tuple[Variable, SharedVariable]:
    """Give an observed variable a shared value, of free length wherever lengths vary."""
    static = tuple(
        length if all(value.shape[axis] == length for value in values) else None
        for axis, length in enumerate(old_value.type.shape)
    )
    value = pytensor.shared(
        values[0].astype(old_value.type.dtype), name=f"{op.name}__observed", shape=static
    )
    if None in static:
        rv = _resize(rv, value)
    for axis, length in enumerate(rv.type.shape):
        wrong = next((v.shape for v in values if length not in (None, v.shape[axis])), None)
        if wrong is not None:
            raise ValueError(
                f"The observed variable {op.name!r} has length {length} along axis {axis} whatever "
                f"the data, because the model's code fixes it, and a dataset has shape {wrong}. "
                f"Give {op.name!r} named dims, and make what it depends on follow them or a "
                "pm.Data."
            )
    return rv, value


def _resize(rv: Variable, value: Variable) -> Variable:
    """Let the size of a random variable follow its value."""
    node = rv.owner
    ndim_supp = getattr(node.op, "ndim_supp", None)
    if ndim_supp is None or ndim_supp == rv.type.ndim:
        return rv
    shape = [value.shape[axis] for axis in range(rv.type.ndim - ndim_supp)]
    # a Truncated variable has the inputs of the variable it truncates, its size among them
    size = getattr(node.op, "base_rv_op", node.op).size_param(node)
    if size is None:  # made of other variables, a mixture say, each with a size of its own
        return change_dist_size(rv, shape)
    if isinstance(size.type, NoneTypeT):
        return rv
    # change_dist_size would leave the old size within a Truncated variable (PyMC 6.4)
    inputs = [pt.stack(shape) if variable is size else variable for variable in node.inputs]
    return node.clone_with_new_inputs(inputs, strict=False).outputs[node.outputs.index(rv)]
