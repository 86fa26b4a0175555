"""Draws that somebody has, as z of a model: that of the draws, or another of the same variables."""

from collections.abc import Collection

import numpy as np
import xarray as xr

from pmcl.compile import CompiledModel
from pmcl.data.task import DATASET
from pmcl.draws.densities import unconstrain
from pmcl.draws.results import SAMPLE, flat_z, in_order, one
from pmcl.runtime import precision

UNCONSTRAINED = "unconstrained_posterior"
DATA = ("observed_data", "constant_data")
GROUPS = ("posterior", UNCONSTRAINED, "sample_stats", *DATA)


def by_dataset(tree: xr.DataTree) -> xr.DataTree:
    """Give the results of one dataset, such as PyMC's own, a dim `dataset`."""
    if any(DATASET in node.dims for node in tree.children.values()):
        return tree
    groups = {}
    for name, node in tree.children.items():
        group = node.to_dataset()
        axis = 2 if {"chain", "draw"} <= {*group.dims} else 0
        groups[name] = group.expand_dims({DATASET: ["0"]}, axis=axis)
    return xr.DataTree.from_dict(groups)


def some_of(
    tree: xr.DataTree, which: slice | np.ndarray, groups: Collection[str] = GROUPS
) -> xr.DataTree:
    """Return some groups of some datasets; of a store, what is read when it is used."""
    return xr.DataTree.from_dict(
        {
            name: node.to_dataset().isel({DATASET: which})
            for name, node in tree.children.items()
            if name in groups
        }
    )


def names_of(tree: xr.DataTree) -> list[str]:
    """Names of the datasets of results."""
    return [str(n) for n in tree["posterior"].to_dataset()[DATASET].values]


def data_of(tree: xr.DataTree, wanted: Collection[str], what: str) -> dict[str, dict]:
    """Observed values and covariates that stand in results, by dataset and name, padding dropped.

    Raises
    ------
    ValueError
        Naming those that are not there.
    """
    some = {k: tree[k].to_dataset() for k in ("posterior", *DATA) if k in tree.children}
    bare = xr.DataTree.from_dict({**some, "posterior": some["posterior"][[DATASET]]})
    here = {str(n) for k in DATA if k in some for n in some[k].data_vars}
    missing = [n for n in wanted if n not in here]
    if missing:
        raise ValueError(
            f"{what}: expected the data {missing} in `observed_data` or `constant_data` of the "
            f"results, got {sorted(here)}."
        )
    found = {}
    for label in names_of(tree):
        alone = one(bare, label)
        values = {n: v for k in DATA if k in some for n, v in alone[k].data_vars.items()}
        found[label] = {n: values[n].values for n in wanted}
    return found


def log_weights_of(tree: xr.DataTree) -> np.ndarray | None:
    """Log weights of draws, (chain, draw, dataset); None where there are none."""
    if "sample_stats" not in tree.children or "log_weight" not in tree["sample_stats"]:
        return None
    return tree["sample_stats"]["log_weight"].transpose(*SAMPLE).values


def z_of(compiled: CompiledModel, tree: xr.DataTree, what: str) -> np.ndarray:
    """Return z of shape (chain, draw, dataset, dim); NaN where values are outside a support.

    Unconstrained draws are taken as they are where their variables are the model's; else z is made
    of the group `posterior`, which may come from a model with other transforms.

    Parameters
    ----------
    compiled : CompiledModel
    tree : xarray.DataTree
        Without a dim `dataset`, it is of one.
    what : str
        Name of the argument, for messages.

    Raises
    ------
    ValueError
        Naming the variables that are missing or have another shape.
    """
    if UNCONSTRAINED in tree.children:
        found = tree[UNCONSTRAINED].to_dataset()
        shapes = {v.name: v.shape for v in compiled.values}
        if DATASET in found.dims and all(
            n in found and _shape(found[n]) == shape for n, shape in shapes.items()
        ):
            return flat_z(compiled, tree)
    posterior = tree["posterior"].to_dataset() if "posterior" in tree.children else xr.Dataset()
    posterior = in_order(posterior, compiled.coords)
    if DATASET not in posterior.dims:
        posterior = posterior.expand_dims({DATASET: 1}, axis=2)
    wrong = [
        f"{i.name!r} of shape {i.shape}"
        for i in compiled.free
        if i.name not in posterior or _shape(posterior[i.name]) != tuple(i.shape)
    ]
    if wrong:
        had = [f"{n} {_shape(v)}" for n, v in posterior.data_vars.items()]
        raise ValueError(f"{what}: expected draws of {', '.join(wrong)}, got {', '.join(had)}.")
    constant = xr.Dataset()
    if "constant_data" in tree.children:
        constant = in_order(tree["constant_data"].to_dataset(), compiled.coords)
    parts = []
    for i in range(posterior.sizes[DATASET]):
        one = posterior.isel({DATASET: i})
        values = {j.name: one[j.name].transpose("chain", "draw", ...).values for j in compiled.free}
        chains, draws = next(iter(values.values())).shape[:2] if values else (1, 1)
        fixed = {}
        for name in compiled.needed_to_unconstrain:
            data = constant[name]
            fixed[name] = data.isel({DATASET: i}).values if DATASET in data.dims else data.values
        flat = {k: v.reshape(-1, *v.shape[2:]) for k, v in values.items()}
        with precision.scope():
            z = np.asarray(unconstrain(compiled, flat, fixed))
        parts.append(z.reshape(chains, draws, -1))
    return np.stack(parts, axis=2)


def _shape(value: xr.DataArray) -> tuple[int, ...]:
    return tuple(n for d, n in value.sizes.items() if d not in SAMPLE)
