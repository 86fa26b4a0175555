"""Specifications of networks, strategies and objectives as JSON, and back by known names."""

import dataclasses
import json
import math
from typing import Any

import equinox as eqx

from pmcl import continual, networks, online, refinement
from pmcl.archive.errors import StateError
from pmcl.runtime.files import from_json

_LARGEST_SIZE = 2**16  # of anything in a network
_DEEPEST = 256

KNOWN: dict[str, type[eqx.Module]] = {
    kind.__name__: kind
    for kind in (
        networks.Network,
        networks.DeepSet,
        networks.SetTransformer,
        networks.Recurrent,
        networks.Flatten,
        networks.CouplingFlow,
        networks.MaskedAutoregressiveFlow,
        continual.Naive,
        continual.Replay,
        continual.ElasticWeightConsolidation,
        continual.SynapticIntelligence,
        continual.OnlineLaplace,
        continual.PathGradient,
        continual.LogRatioVariance,
        continual.TeacherDistillation,
        refinement.Refine,
        online.Encoder,
        online.Search,
        online.GaussNewton,
        online.Start,
        online.ScatteredStart,
        online.MaximumLikelihoodStart,
        online.RandomCoreset,
        online.KCenterCoreset,
        online.ResidualMemory,
        online.Static,
        online.BayesianForgetting,
        online.OrnsteinUhlenbeck,
        online.Wiener,
        online.LearnedDrift,
        online.ChangePoint,
    )
}


def encode(value: Any, *, where: str) -> Any:
    """Turn a specification into what JSON holds.

    Raises
    ------
    StateError
        Naming what cannot be stored, and what can.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StateError(f"{where}: expected a finite number, got {value}.")
        return value
    if isinstance(value, tuple | list):
        return [encode(v, where=where) for v in value]
    kind = type(value).__name__
    if KNOWN.get(kind) is type(value):
        fields = {
            f.name: encode(getattr(value, f.name), where=f"{where}.{f.name}")
            for f in dataclasses.fields(value)
        }
        return {"kind": kind, "fields": fields}
    raise StateError(
        f"{where}: {value!r} cannot be stored, because a state holds data and no code; expected "
        f"numbers, text, or one of {sorted(KNOWN)}."
    )


def decode(value: Any, *, where: str, expected: type | tuple[type, ...] | None = None) -> Any:
    """Turn what JSON held into a specification; only known classes are ever made.

    Raises
    ------
    StateError
    """
    if isinstance(value, list):
        found: Any = tuple(decode(v, where=where) for v in value)
    elif isinstance(value, dict):
        kind = KNOWN.get(value.get("kind", ""))
        fields = value.get("fields")
        if kind is None or not isinstance(fields, dict) or set(value) != {"kind", "fields"}:
            raise StateError(f"{where}: expected one of {sorted(KNOWN)}, got {str(value)[:200]}.")
        names = {f.name for f in dataclasses.fields(kind)}
        if set(fields) - names:
            raise StateError(f"{where}: {kind.__name__} has no {sorted(set(fields) - names)}.")
        arguments = {k: decode(v, where=f"{where}.{k}") for k, v in fields.items()}
        try:
            found = kind(**arguments)
        except (TypeError, ValueError) as error:
            raise StateError(f"{where}: {error}") from error
    else:
        found = value
    if expected is not None and not isinstance(found, expected):
        raise StateError(f"{where}: expected {expected}, got {type(found).__name__}.")
    return found


def dumps(value: Any) -> str:
    """JSON text."""
    return json.dumps(value, allow_nan=False)


def loads(text: Any, *, where: str) -> Any:
    """Read JSON text.

    Raises
    ------
    StateError
    """
    if not isinstance(text, str):
        raise StateError(f"{where}: expected JSON text, got {type(text).__name__}.")
    try:
        return from_json(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{where}: not JSON ({error}).") from error


def check_sizes(value: Any, where: str) -> None:
    """Refuse a network that could not have been trained, before any of it is built."""
    for f in dataclasses.fields(value):
        found = getattr(value, f.name)
        if dataclasses.is_dataclass(found):
            check_sizes(found, f"{where}.{f.name}")
        elif isinstance(found, int) and not isinstance(found, bool):
            deep = f.name in ("depth", "head_depth", "layers", "blocks")
            most = _DEEPEST if deep else _LARGEST_SIZE
            if not 0 <= found <= most:
                raise StateError(f"{where}.{f.name}: expected 0 to {most}, got {found}.")
