"""Save and load a mixture of streams: one DataTree, and back."""

from importlib.metadata import version

import numpy as np
import pymc as pm
import xarray as xr

from pmcl.archive import online
from pmcl.archive.attributes import check_schema, number
from pmcl.archive.errors import StateError
from pmcl.archive.zipped import group
from pmcl.online.mixture import OnlineMixture
from pmcl.online.posterior import OnlinePosterior

SCHEMA = 1
KIND = "online mixture"
# by all components
_SHARED = ("row", "covariates", "precision", "local", "settings", "updates", "time")


def to_datatree(posterior: OnlineMixture, *, include_memory: bool = True) -> xr.DataTree:
    """Return everything needed to go on on another machine: a group for each component."""
    trees = {
        f"component {i}": online.to_datatree(c, include_memory=include_memory)
        for i, c in enumerate(posterior.components)
    }
    n = len(posterior.components)
    weights = np.asarray(posterior.log_weights, float).reshape(-1, n)
    about = {
        "kind": KIND, "schema": SCHEMA, "pmcl_version": version("pmcl"), "components": n,
        "seed": posterior.seed, "foretold": float(posterior.foretold),
    }  # fmt: skip
    tree = xr.DataTree(xr.Dataset(attrs=about), children=trees)
    if len(weights):
        found = xr.Dataset({"log_weight": (("update", "component"), weights)})
        if posterior.shared:  # weights by evidence
            found["shared"] = ("component", np.asarray(posterior.shared, float))
        tree["weights"] = xr.DataTree(found)
    return tree


def from_datatree(tree: xr.DataTree, model: pm.Model, *, where: str) -> OnlineMixture:
    """Make the mixture again of which :func:`to_datatree` gave the state."""
    check_schema(tree.attrs, SCHEMA, where)
    n = int(number(tree.attrs, "components", where))
    parts: list[OnlinePosterior] = []
    for i in range(n):
        name, at = f"component {i}", f"{where}: component {i}"
        group(tree, name, where)
        child = tree.children[name]
        if parts:
            first = tree.children["component 0"].attrs
            for key in _SHARED:
                if child.attrs.get(key) != first.get(key):
                    raise StateError(f"{at}: expected the {key} of component 0.")
        part = online.from_datatree(child, model, where=at, like=parts[0] if parts else None)
        if not isinstance(part, OnlinePosterior):
            raise StateError(f"{at}: expected no local variables.")
        parts.append(part)
    if n < 2:
        raise StateError(f"{where}: expected at least two components, got {n}.")
    updates = parts[0].state.updates
    weights, shared = np.zeros((0, n)), np.zeros(0)
    if updates:
        data = group(tree, "weights", where)
        shapes = {"log_weight": (updates, n)} | ({"shared": (n,)} if "shared" in data else {})
        for name, shape in shapes.items():
            if name not in data or data[name].shape != shape or data[name].dtype.kind != "f":
                raise StateError(f"{where}: weights: expected numbers {name!r} of shape {shape}.")
        weights = data["log_weight"].values
        shared = data["shared"].values if "shared" in data else shared
        if not np.isfinite(shared).all() or not np.allclose(np.exp(weights).sum(axis=1), 1):
            raise StateError(f"{where}: weights: expected each update's to add up to one.")
    seed = int(number(tree.attrs, "seed", where))
    log_weights = tuple(map(tuple, weights.tolist()))
    foretold = number(tree.attrs, "foretold", where)
    return OnlineMixture(tuple(parts), seed, log_weights, tuple(shared.tolist()), foretold)
