"""Pytrees of arrays as labelled data, leaf by leaf, and back into a tree of the same structure."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from pmcl.archive.errors import StateError


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """Names and arrays of a pytree, in its order."""
    arrays = eqx.filter(tree, eqx.is_array)
    return [(_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)]


def to_dataset(tree: Any) -> xr.Dataset:
    """Return the arrays of a pytree as a Dataset; dims are named by their lengths."""
    found = {}
    for name, leaf in leaves(tree):
        value = np.asarray(leaf)
        dims: list[str] = []
        for n in value.shape:
            dim = f"n{n}"
            while dim in dims:  # a square matrix
                dim += "_"
            dims.append(dim)
        found[name] = (tuple(dims), value)
    return xr.Dataset(found)


def from_dataset(data: xr.Dataset, like: Any, *, where: str) -> Any:
    """Put stored arrays into the places of a pytree of the same structure.

    Raises
    ------
    StateError
        Naming the array that is missing, unknown, of another shape or type, or not finite.
    """
    expected = leaves(like)
    names = [n for n, _ in expected]
    missing = [n for n in names if n not in data]
    unknown = [str(n) for n in data.variables if n not in names]
    if missing or unknown:
        raise StateError(
            f"{where}: expected the arrays of this network; missing {missing[:5]}, unknown "
            f"{unknown[:5]}."
        )
    values = []
    for name, leaf in expected:
        value = data[name].values
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise StateError(
                f"{where}: {name}: expected {leaf.dtype} of shape {leaf.shape}, got {value.dtype} "
                f"of shape {value.shape}."
            )
        if not np.isfinite(value).all():
            raise StateError(f"{where}: {name}: expected finite numbers.")
        values.append(jnp.asarray(value))
    arrays, rest = eqx.partition(like, eqx.is_array)
    structure = jax.tree.structure(arrays)
    return eqx.combine(jax.tree.unflatten(structure, values), rest)


def _name(path: tuple) -> str:
    parts = []
    for key in path:
        for attribute in ("name", "idx", "key"):
            if hasattr(key, attribute):
                parts.append(str(getattr(key, attribute)))
                break
    return ".".join(parts) or "value"
