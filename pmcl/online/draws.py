"""Draws of z as users see them: labelled, with the variables that no data are needed for."""

import time as clock
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel
from pmcl.compile.variables import VariableInfo
from pmcl.draws.results import attributes, value_infos
from pmcl.runtime.jitting import jit


def labelled(
    compiled: CompiledModel, values: Mapping[str, tuple[Sequence[str], np.ndarray]]
) -> xr.Dataset:
    """Label arrays of shape (chain, draw, ...), given with their other dims."""
    found = {n: (("chain", "draw", *dims), v) for n, (dims, v) in values.items()}
    used = {d: n for dims, v in found.values() for d, n in zip(dims, v.shape, strict=True)}
    coords = {
        d: compiled.coords[d]
        for d, n in used.items()
        if d in compiled.coords and len(compiled.coords[d]) == n
    }
    coords |= {d: np.arange(used[d]) for d in ("chain", "draw")}
    return xr.Dataset(found, coords=coords)


def tree_of(compiled: CompiledModel, z: Array, log_q: Array, begin: float) -> xr.DataTree:
    """Make the groups of draws of z, shape (draw, dim), that took since `begin`."""
    names, values = _constrained(compiled, z)
    infos = {i.name: i for i in (*compiled.free, *compiled.deterministics)}
    found = {n: np.asarray(v, np.float64)[None] for n, v in zip(names, values, strict=True)}
    attrs = attributes("online", clock.perf_counter() - begin)
    dims = value_infos(compiled)
    flat = np.asarray(z, np.float64)[None]
    unconstrained = {
        v.name: (
            dims[v.name].dims,
            flat[..., v.start : v.start + v.size].reshape(1, len(z), *v.shape),
        )
        for v in compiled.values
    }
    posterior = labelled(compiled, {n: (infos[n].dims, v) for n, v in found.items()})
    return xr.DataTree.from_dict(
        {
            "posterior": posterior.assign_attrs(attrs),
            "unconstrained_posterior": labelled(compiled, unconstrained),
            "sample_stats": labelled(
                compiled, {"log_q": ((), np.asarray(log_q)[None].astype(float))}
            ),
        }
    )


def _constrained(compiled: CompiledModel, z: Array) -> tuple[list[str], list[Array]]:
    """Free variables and deterministics that no data are needed for."""
    infos: tuple[VariableInfo, ...] = (*compiled.free, *compiled.deterministics)
    call, positions = compiled.constrain_alone
    names = [infos[i].name for i in positions]
    return names, list(_map_z(compiled, call, z))


@jit
def _map_z(compiled: CompiledModel, call: object, z: Array) -> tuple[Array, ...]:
    return jax.vmap(lambda one: call(*compiled.split(one)))(z)  # type: ignore[operator]
