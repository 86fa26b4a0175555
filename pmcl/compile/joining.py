"""Axes without names that are one dim, the rows of a dataset: found by evaluation."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
import pytensor
from jax import Array

from pmcl.compile.function import Function
from pmcl.compile.model import CompiledModel
from pmcl.compile.variables import VariableInfo, nameless, own_value
from pmcl.runtime.jitting import jit

_MOST = 32  # ways to join axes that are tried
_POINTS = 3
_ORDERS = 5  # a permutation of few different values may be none
_CANNOT = (ValueError, TypeError, IndexError, AssertionError, NotImplementedError)

type _Axes = Mapping[str, int]
type _Dataset = Mapping[str, np.ndarray]


def joined(compiled: CompiledModel) -> CompiledModel:
    """Give one name to the axes of data without dims that are the rows of a dataset.

    Axes of one length are so where the likelihood takes one row more with the same z, permuting all
    of them together leaves it as it is, permuting those of one variable alone does not, and there
    is one such way to join them. What is computed row by row has the dim, too.
    """
    own = None
    for name, length in _rows(compiled):
        # A variable that names the dim has it at one place.
        named = {v.name: v.dims.index(name) for v in compiled.data if name in v.dims}
        others = {
            v.name: [i for i, n in enumerate(v.shape) if n == length and _free(compiled, v, i)]
            for v in compiled.data
            if v.name not in named
        }
        others = {k: axes for k, axes in others.items() if axes}
        if not others or np.prod([len(axes) for axes in others.values()]) > _MOST:
            continue
        own = _own(compiled) if own is None else own
        ways = [
            {**named, **dict(zip(others, way, strict=True))} for way in product(*others.values())
        ]
        found = [way for way in ways if _is_dim(compiled, own, way)]
        if len(found) == 1:
            return _renamed(compiled, _with_computed(compiled, own, found[0]), name)
    return compiled


def _rows(compiled: CompiledModel) -> Iterator[tuple[str, int]]:
    """Dims of observed variables that may be that of the rows, and their lengths; named first."""
    dims = {
        (d, n): nameless(v, axis)
        for v in compiled.observed
        for axis, (d, n) in enumerate(zip(v.dims, v.shape, strict=True))
        if d in compiled.data_dims and n > 1
    }
    yield from sorted(dims, key=lambda dim: dims[dim])


def _free(compiled: CompiledModel, info: VariableInfo, axis: int) -> bool:
    return nameless(info, axis) and info.dims[axis] in compiled.data_dims


def _own(compiled: CompiledModel) -> _Dataset:
    """The model's own data; where they are all equal, with some noise of their kind."""
    rng, found = np.random.default_rng(0), {}
    for info in compiled.data:
        own = np.broadcast_to(own_value(compiled.model, info.name), info.shape)
        if own.size > 1 and np.all(own == own.flat[0]):
            real = np.issubdtype(info.dtype, np.floating)
            noise = rng.uniform(0.1, 0.9, own.shape) if real else rng.integers(0, 2, own.shape)
            own = own + noise
        found[info.name] = np.asarray(own, info.dtype)
    return found


def _taken(data: _Dataset, axes: _Axes, rows: np.ndarray) -> _Dataset:
    return {k: np.take(v, rows, axis=axes[k]) if k in axes else v for k, v in data.items()}


def _length(data: _Dataset, axes: _Axes) -> int:
    name, axis = next(iter(axes.items()))
    return data[name].shape[axis]


def _one_more(data: _Dataset, axes: _Axes) -> _Dataset:
    n = _length(data, axes)
    return _taken(data, axes, np.minimum(np.arange(n + 1), n - 1))


def _is_dim(compiled: CompiledModel, own: _Dataset, axes: _Axes) -> bool:
    """Whether axes are those of rows in any order."""
    z = np.random.default_rng(1).normal(size=(_POINTS, compiled.dim)) * 0.5
    try:
        with pytensor.config.change_flags(on_opt_error="ignore"):  # shapes that do not fit
            jax.eval_shape(compiled.log_joint, z[0], _one_more(own, axes))
        before = np.asarray(_log_likelihood(compiled, z, own))
        n = _length(own, axes)
        orders = [np.random.default_rng(i).permutation(n) for i in range(_ORDERS)]

        def same(which: _Axes) -> bool:
            after = [
                np.asarray(_log_likelihood(compiled, z, _taken(own, which, rows)))
                for rows in orders
            ]
            return np.allclose(before, after, rtol=1e-9, atol=1e-9, equal_nan=True)

        return bool(
            np.isfinite(before).any()
            and same(axes)
            and not any(same({name: axis}) for name, axis in axes.items())
        )
    except _CANNOT:
        return False


@partial(jit, once=True)
def _log_likelihood(compiled: CompiledModel, z: Array, data: Mapping[str, Array]) -> Array:
    return jax.vmap(lambda u: compiled.log_likelihood(u, data))(z)


def _with_computed(compiled: CompiledModel, own: _Dataset, axes: _Axes) -> _Axes:
    """Add the axes of deterministics and potentials that get longer with the rows."""
    z = np.zeros(compiled.dim)
    infos = (*compiled.deterministics, *compiled.potentials)

    def shapes(data: _Dataset) -> dict[str, tuple[int, ...]]:
        values = jax.eval_shape(lambda u, d: compiled.constrain(u, d), z, data)
        terms = jax.eval_shape(lambda u, d: compiled.log_potential_terms(u, d), z, data)
        return {k: v.shape for k, v in {**values, **terms}.items()}

    few, more = shapes(own), shapes(_one_more(own, axes))
    longer = {
        i.name: axis
        for i in infos
        for axis in range(len(i.dims))
        if nameless(i, axis) and few[i.name][axis] != more[i.name][axis]
    }
    return {**axes, **longer}


def _renamed(compiled: CompiledModel, axes: _Axes, name: str) -> CompiledModel:
    old = {i.dims[axes[i.name]] for i in compiled.data if i.name in axes} - {name}

    def renamed(info: VariableInfo) -> VariableInfo:
        if info.name not in axes:
            return info
        dims = [name if axis == axes[info.name] else d for axis, d in enumerate(info.dims)]
        return info._replace(dims=tuple(dims))

    def change(value: object) -> object:
        if isinstance(value, Function):
            return value._replace(data=tuple(map(renamed, value.data)))
        if isinstance(value, tuple) and value and isinstance(value[0], VariableInfo):
            return tuple(map(renamed, value))
        return value

    changed: dict[str, Any] = {f.name: change(getattr(compiled, f.name)) for f in fields(compiled)}
    data = [i.name for i in compiled.data if i.name in axes]
    changed |= {
        "data_dims": compiled.data_dims - old,
        "joined": f"rows of {', '.join(map(repr, data))} are read as one dim, {name!r}",
        "kept": {},
    }
    return replace(compiled, **changed)
