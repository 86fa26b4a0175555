"""Draws from the joint of a compiled model: in JAX, or by PyTensor on the host."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jax import Array
from pymc.distributions.transforms import _default_transform
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pmcl.compile.conversion import graphs
from pmcl.compile.covariates import Covariates
from pmcl.compile.mask import Masking
from pmcl.compile.model import CompiledModel
from pmcl.compile.refuse import check_host, invalid_parameters
from pmcl.compile.variables import held_as, resize_observed, unconstrained

Draws = dict[str, Array]


Z = "__z__"  # the key of z among a simulation's arrays; no PyMC variable may start with "__"


TRIES = 1000  # draws of a prior that a transform truncates, before it is given up


def joint(
    compiled: CompiledModel, covariates: Covariates, masking: Masking
) -> tuple[list[Variable], list[SharedVariable], dict[str, Variable]]:
    """The simulation's graph: outputs z, observed, covariates; its generators; its inputs."""
    model = compiled.model
    shared: dict[SharedVariable, Variable] = {}
    explicit: dict[str, Variable] = {}
    for info in masking.sized(compiled.covariates):
        var = model[info.name]
        if info.name in covariates.distributions:
            shared[var] = covariates.distributions[info.name].astype(info.dtype)
        else:
            explicit[info.name] = pt.TensorType(info.dtype, info.shape)(info.name)
            shared[var] = explicit[info.name]
    # Lengths of dims become constants: JAX samples only at sizes it knows.
    graph = {rv: rv for rv in model.basic_RVs}
    given = list(shared.values())
    if masking.lengths is not None:
        length = model.dim_lengths.get(masking.row)
        if isinstance(length, SharedVariable):
            shared[length] = pt.constant(masking.lengths[1], dtype=length.type.dtype)
        sizes = {v.name: v.shape for v in masking.sized(compiled.observed)}
        shared |= held_as(model, {name: np.zeros(shape) for name, shape in sizes.items()})
        graph = resize_observed(model, {model[name]: shape for name, shape in sizes.items()})
    parts = [unconstrained(model, value, graph).astype("float64") for value in model.value_vars]
    z = pt.concatenate([part.ravel() for part in parts])
    outputs = [z, *(graph[rv] for rv in model.observed_RVs), *given]
    bound, generators = graphs.bind(outputs, shared)
    return bound, generators, explicit


def truncated(compiled: CompiledModel) -> np.ndarray:
    """Elements of z whose transform is not the distribution's own, so may not cover its support."""
    model = compiled.model
    found = np.zeros(compiled.dim, dtype=bool)
    for value, where in zip(model.value_vars, compiled.values, strict=True):
        rv = model.values_to_rvs[value]
        transform = model.rvs_to_transforms[rv]
        if type(transform) is not type(_default_transform(rv.owner.op, rv)):
            found[where.start : where.start + where.size] = transform is not None
    return found


def jax_draw(compiled: CompiledModel, covariates: Covariates, masking: Masking) -> Callable:
    outputs, generators, explicit = joint(compiled, covariates, masking)
    function = graphs.to_jax([*generators, *explicit.values()], outputs)
    names = [info.name for info in compiled.data]
    cut = truncated(compiled)

    def once(key: Array, given: Mapping[str, Array]) -> tuple[Array, Draws]:
        values = [graphs.as_input(given[n], v.type.dtype) for n, v in explicit.items()]
        z, *data = function(*graphs.random_states(key, len(generators)), *values)
        return z, dict(zip(names, data, strict=True))

    def draw(key: Array, given: Mapping[str, Array]) -> tuple[Array, Draws]:
        if not cut.any():
            return once(key, given)

        def again(state: tuple) -> Array:
            tries, (z, _) = state
            return ~jnp.all(jnp.isfinite(z[cut])) & (tries < TRIES)

        def redraw(state: tuple) -> tuple:
            tries, _ = state
            return tries + 1, once(jax.random.fold_in(key, tries), given)

        return jax.lax.while_loop(again, redraw, redraw((jnp.zeros((), int), None)))[1]

    return draw


def host_draw(
    compiled: CompiledModel, covariates: Covariates, masking: Masking, reason: str
) -> Callable:
    outputs, generators, explicit = joint(compiled, covariates, masking)
    check_host(outputs, reason)
    seeded = graphs.to_host(list(explicit.values()), outputs, generators)
    names = [Z, *(info.name for info in compiled.data)]
    cut = truncated(compiled)

    def once(function: Callable, arguments: list[np.ndarray]) -> list[np.ndarray]:
        try:
            return function(*arguments)
        except (ValueError, ZeroDivisionError) as error:  # of a parameter outside its range
            raise invalid_parameters(compiled.model, error) from error

    def draw(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        function, rows = seeded(rng), []
        with np.errstate(all="ignore"):  # values that are not finite are counted, not announced
            for _ in range(n):
                given = {**covariates.host(rng), **covariates.host_tables(rng)}
                arguments = [np.asarray(given[name], v.type.dtype) for name, v in explicit.items()]
                for _ in range(TRIES):
                    row = once(function, arguments)
                    if np.isfinite(row[0][cut]).all():
                        break
                rows.append(row)
        return {name: np.stack([r[j] for r in rows]) for j, name in enumerate(names)}

    return draw
