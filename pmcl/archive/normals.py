"""The normals that a stream is, read and checked."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from pmcl.archive.configuration import loads
from pmcl.archive.errors import StateError
from pmcl.online.families.anchor import Anchors
from pmcl.online.families.dense import Full
from pmcl.online.families.low_rank import LowRank
from pmcl.online.gaussian import MeanField
from pmcl.online.state import Settings

_DIMS = {"precision": ("z", "other z"), "columns": ("z", "rank")}


def dims_of(name: str) -> tuple[str, ...]:
    """Dims of an array of a normal: by entry of z, but for matrices."""
    return _DIMS.get(name, ("z",))


def normal_of[Q: (MeanField, Full, LowRank)](
    data: xr.Dataset, family: type[Q], dim: int, where: str
) -> Q:
    """Read a normal."""
    values = []
    for name in family._fields:
        dims = dims_of(name)
        if name not in data or data[name].dims != dims or data[name].dtype.kind != "f":
            raise StateError(f"{where}: expected numbers {name!r} by {dims}.")
        wanted = [data[name].shape[i] if d == "rank" else dim for i, d in enumerate(dims)]
        if list(data[name].shape) != wanted:
            raise StateError(f"{where}: {name}: expected shape {tuple(wanted)}.")
        if not np.isfinite(data[name].values).all():
            raise StateError(f"{where}: {name}: expected finite numbers.")
        values.append(jnp.asarray(data[name].values))
    q = family(*values)
    # of a precision that is none there is neither a density nor a draw
    lopsided = isinstance(q, Full) and not np.allclose(q.precision, q.precision.T, rtol=1e-6)
    singular = not isinstance(q, MeanField) and not np.isfinite(float(q.log_volume))
    if lopsided or singular:
        raise StateError(f"{where}: expected a precision that is positive definite.")
    return q


def anchors_of(data: xr.Dataset, dim: int, where: str) -> Anchors:
    """Read where a network's predictors are linearised."""
    wanted = {"at": (("anchor", "z"), "f"), "since": (("z",), "i")}
    for name, (dims, kind) in wanted.items():
        found = data.get(name)
        if found is None or found.dims != dims or found.dtype.kind != kind:
            raise StateError(f"{where}: expected numbers {name!r} by {dims}.")
        if found.sizes["z"] != dim or not np.isfinite(found.values).all():
            raise StateError(f"{where}: {name}: expected {dim} finite numbers.")
    at, since = data["at"].values, data["since"].values
    if not ((since >= 0) & (since <= len(at))).all():
        raise StateError(f"{where}: since: expected numbers of anchors, of which are {len(at)}.")
    return Anchors(jnp.asarray(at), jnp.asarray(since))


def scores_of(attrs: Mapping[Any, Any], settings: Settings, where: str) -> tuple[float, ...]:
    found = loads(attrs.get("scores"), where=where)
    if not isinstance(found, list) or not all(isinstance(v, float) for v in found):
        raise StateError(f"{where}: expected numbers as scores, got {found!r}.")
    if found and len(found) != len(settings.drift.ways(1.0)):
        raise StateError(f"{where}: expected a score for each drift, got {len(found)}.")
    return tuple(found)


def entries_of(data: xr.Dataset, dim: int, where: str) -> np.ndarray:
    if "normal" not in data or data["normal"].shape != (dim,) or data["normal"].dtype.kind != "b":
        raise StateError(f"{where}: expected {dim} truth values 'normal'.")
    return data["normal"].values
