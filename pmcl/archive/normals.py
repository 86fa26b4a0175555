"""The normals that a stream is, read and checked."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from pmcl.archive.configuration import loads
from pmcl.archive.errors import StateError
from pmcl.online.families.anchor import Anchors
from pmcl.online.families.dense import Full
from pmcl.online.families.low_rank import LowRank
from pmcl.online.gaussian import MeanField
from pmcl.online.state import Settings

_DIMS = {"precision": ("z", "other z"), "columns": ("z", "rank")}
_FREE = ("rank", "anchor")  # dims of any length


def dims_of(name: str) -> tuple[str, ...]:
    """Dims of an array of a normal: by entry of z, but for matrices."""
    return _DIMS.get(name, ("z",))


def normal_of[Q: (MeanField, Full, LowRank)](
    data: xr.Dataset, family: type[Q], dim: int, where: str
) -> Q:
    """Read a normal."""
    values = (_numbers(data, name, dims_of(name), dim, where) for name in family._fields)
    q = family(*values)
    # of a precision that is none there is neither a density nor a draw
    lopsided = isinstance(q, Full) and not np.allclose(q.precision, q.precision.T, rtol=1e-6)
    singular = not isinstance(q, MeanField) and not np.isfinite(float(q.log_volume))
    if lopsided or singular:
        raise StateError(f"{where}: expected a precision that is positive definite.")
    return q


def anchors_of(data: xr.Dataset, dim: int, where: str) -> Anchors:
    """Read where a network's predictors are linearised."""
    at = _numbers(data, "at", ("anchor", "z"), dim, where)
    since = _numbers(data, "since", ("z",), dim, where, kind="i")
    if not ((since >= 0) & (since <= len(at))).all():
        raise StateError(f"{where}: since: expected numbers of anchors, of which are {len(at)}.")
    return Anchors(at, since)


def _numbers(
    data: xr.Dataset, name: str, dims: tuple[str, ...], dim: int, where: str, *, kind: str = "f"
) -> Array:
    """Read finite numbers by dims, of which those over z are of length `dim`."""
    found = data.get(name)
    if found is None or found.dims != dims or found.dtype.kind != kind:
        raise StateError(f"{where}: expected numbers {name!r} by {dims}.")
    wanted = tuple(n if d in _FREE else dim for d, n in zip(dims, found.shape, strict=True))
    if found.shape != wanted:
        raise StateError(f"{where}: {name}: expected shape {wanted}.")
    if not np.isfinite(found.values).all():
        raise StateError(f"{where}: {name}: expected finite numbers.")
    return jnp.asarray(found.values)


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
