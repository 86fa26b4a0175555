"""Typed reading of attributes."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from pmcl.archive.errors import StateError


def check_schema(attrs: Mapping[Any, Any], reads: int, where: str) -> None:
    """Refuse a state that another version wrote."""
    schema = attrs.get("schema")
    if schema != reads:
        raise StateError(
            f"{where}: written in schema {schema!r} by pmcl {attrs.get('pmcl_version')!r}; this is "
            f"pmcl {version('pmcl')}, which reads schema {reads}. Use the version that wrote it."
        )


def in_order(tree: xr.DataTree, name: str, where: str) -> list[xr.DataTree]:
    if name not in tree.children:
        return []
    nodes = tree[name].children
    if sorted(nodes) != sorted(map(str, range(len(nodes)))):
        raise StateError(f"{where}: expected numbered groups in {name!r}, got {sorted(nodes)[:5]}.")
    return [nodes[str(i)] for i in range(len(nodes))]


def whole_number(attrs: Mapping[Any, Any], name: str, where: str) -> int:
    value = attrs.get(name)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise StateError(f"{where}: expected a whole number {name!r}, got {value!r}.")
    return int(value)


def flag(attrs: Mapping[Any, Any], name: str, where: str) -> bool:
    value = attrs.get(name)
    if not isinstance(value, bool | np.bool_):
        raise StateError(f"{where}: expected true or false for {name!r}, got {value!r}.")
    return bool(value)


def number(attrs: Mapping[Any, Any], name: str, where: str) -> float:
    value = attrs.get(name)
    fits = isinstance(value, int | float | np.integer | np.floating)
    if not fits or isinstance(value, bool) or not np.isfinite(value):  # type: ignore[arg-type]
        raise StateError(f"{where}: expected a number {name!r}, got {value!r}.")
    return value  # type: ignore[return-value]
