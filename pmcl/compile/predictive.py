"""Draws of the observed variables given z: posterior predictive, at any covariates and lengths."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
import pytensor.tensor as pt
from jax import Array
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pmcl.compile.conversion import graphs
from pmcl.compile.model import CompiledModel
from pmcl.compile.refuse import check_host
from pmcl.compile.simulable import check_simulable
from pmcl.compile.variables import held_as, resize_observed
from pmcl.runtime import precision
from pmcl.runtime.jitting import jit


def predict(
    compiled: CompiledModel,
    z: np.ndarray,
    covariates: Mapping[str, np.ndarray],
    lengths: Mapping[str, int],
    *,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Draw the observed variables once for each z.

    Parameters
    ----------
    compiled : CompiledModel
    z : array of shape (draw, dim)
    covariates : mapping of arrays
        Those of one dataset.
    lengths : mapping of str to int
        Lengths of dims of the data.
    rng : numpy.random.Generator

    Returns
    -------
    dict of arrays of shape (draw, ...)
    """
    shapes = tuple((i.name, np.shape(covariates[i.name])) for i in compiled.covariates)
    sizes = tuple(sorted(lengths.items()))
    make = lambda: _drawer(compiled, shapes, sizes)  # noqa: E731
    return compiled.keep(("predict", shapes, sizes), make)(z, covariates, rng)


def lengths_of(compiled: CompiledModel, data: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Lengths of the dims of the data: of the covariates, else of the observations given."""
    found = {d: n for i in compiled.observed for d, n in zip(i.dims, i.shape, strict=True)}
    for info in (*compiled.observed, *compiled.covariates):
        if info.name in data:
            found |= dict(zip(info.dims, np.shape(data[info.name]), strict=True))
    return {d: n for d, n in found.items() if d in compiled.data_dims}


def _drawer(
    compiled: CompiledModel,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    lengths: tuple[tuple[str, int], ...],
) -> Callable:
    model = compiled.model
    check_simulable(model, model.observed_RVs)
    explicit: dict[str, Variable] = {}
    shared: dict[Variable, Variable] = {}
    dtypes = {i.name: i.dtype for i in compiled.covariates}
    for name, shape in shapes:
        explicit[name] = pt.TensorType(dtypes[name], shape)(name)
        shared[model[name]] = explicit[name]
    for dim, n in lengths:
        length = model.dim_lengths.get(dim)
        if isinstance(length, SharedVariable):
            shared[length] = pt.constant(n, dtype=length.type.dtype)
    # Dims that have a name got their length above, those of variables without dims here.
    known = dict(lengths)
    sizes = {
        i.name: [known.get(d, n) for d, n in zip(i.dims, i.shape, strict=True)]
        for i in compiled.observed
    }
    shared |= held_as(model, {name: np.zeros(size) for name, size in sizes.items()})
    sized = resize_observed(model, {model[name]: size for name, size in sizes.items()})
    values, free = list(model.value_vars), list(model.free_RVs)
    given_z = model.replace_rvs_by_values(free)
    outputs = graph_replace(
        [sized[rv] for rv in model.observed_RVs],
        {sized[rv]: value for rv, value in zip(free, given_z, strict=True)},
        strict=False,
    )
    bound, generators = graphs.bind(list(outputs), shared)
    names = [i.name for i in compiled.observed]
    compiled = compiled.without_model()

    def on_jax() -> Callable:
        function = graphs.to_jax([*values, *generators, *explicit.values()], bound)

        def single(z: Array, key: Array, given: Mapping[str, Array]) -> tuple:
            states = graphs.random_states(key, len(generators))
            data = [graphs.as_input(given[n], v.type.dtype) for n, v in explicit.items()]
            return function(*compiled.split(z), *states, *data)

        @jit
        def predicted(z: Array, seed: Array, given: Mapping[str, Array]) -> tuple:
            keys = jax.random.split(jax.random.key(seed), z.shape[0])
            return jax.vmap(single, in_axes=(0, 0, None))(z, keys, given)

        def draw(z: np.ndarray, covariates: Mapping[str, np.ndarray], rng: np.random.Generator):
            given = {n: np.asarray(covariates[n]) for n in explicit}
            with precision.scope():
                found = predicted(z, np.asarray(rng.integers(2**31)), given)
            return {n: np.asarray(v) for n, v in zip(names, found, strict=True)}

        with precision.scope():
            jax.eval_shape(
                single,
                jax.ShapeDtypeStruct((compiled.dim,), np.dtype("float64")),
                jax.random.key(0),
                {n: jax.ShapeDtypeStruct(v.type.shape, v.type.dtype) for n, v in explicit.items()},
            )
        return draw

    def on_host(reason: str) -> Callable:
        check_host(bound, reason)
        seeded = graphs.to_host([*values, *explicit.values()], bound, generators)

        def draw(z: np.ndarray, covariates: Mapping[str, np.ndarray], rng: np.random.Generator):
            function = seeded(rng)
            data = [np.asarray(covariates[n], v.type.dtype) for n, v in explicit.items()]
            rows = [
                function(
                    *[row[v.start : v.start + v.size].reshape(v.shape) for v in compiled.values],
                    *data,
                )
                for row in np.asarray(z, float)
            ]
            return {n: np.stack([r[j] for r in rows]) for j, n in enumerate(names)}

        return draw

    try:
        return on_jax()
    except (NotImplementedError, TypeError, jax.errors.JAXTypeError) as error:
        return on_host(str(error))
