"""Discrete variables that were summed out of a model, given back for every draw."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr

from pmcl.compile.discrete import DiscreteModel, discrete_model
from pmcl.compile.labelled import model_or_context
from pmcl.data.task import DATASET
from pmcl.draws.discrete import Recovered, recovered, weights_of
from pmcl.draws.handed import z_of
from pmcl.draws.results import one

_DATA = ("observed_data", "constant_data")


def recover_discrete(
    idata: xr.DataTree,
    model: pm.Model,
    *,
    var_names: Sequence[str] | None = None,
    random_seed: int = 0,
) -> xr.DataTree:
    """Draw discrete variables that were summed out, exactly, given each draw of all others.

    Which terms of the density depend on which of them is found by trying, so that any model will
    do whose discrete variables are independent of each other given the rest (a mixture), follow
    one another (a hidden Markov chain), or are few (a change point).

    Parameters
    ----------
    idata : xarray.DataTree
        Draws of the model without its discrete variables, of `sample`, `refine`,
        `sample_reference` or `pm.sample`: all its continuous variables under the same names. Data
        are read from there.
    model : pymc.Model
        The model *with* its discrete variables; or one out of which pymc-extras has summed them.
    var_names : sequence of str, optional
        Discrete variables to give back; all by default.
    random_seed : int

    Returns
    -------
    xarray.DataTree
        Group `posterior`: the variables, one exact draw for each draw of `idata` (same weights).
        Group `probability`: of each value (dim `<name>_value`), the average over draws of the exact
        conditional probabilities, which has less noise than counts of draws. Past the end of
        shorter datasets draws are -1 and probabilities NaN.

    Raises
    ------
    UnsupportedModelError
        Where the model has no discrete variable, one without a last value, or such as depend on
        each other in too large groups.
    ValueError
        Naming the continuous variables that `idata` lacks.

    References
    ----------
    Dawid (1992), Applications of a general propagation algorithm for probabilistic expert systems;
    for a chain it is forward filtering and backward sampling (Fruehwirth-Schnatter, 1994).
    """
    alone = DATASET not in idata["posterior"].dims
    tree = _with_dataset(idata) if alone else idata
    came: set[str] = set()
    for group in _DATA:
        if group in tree.children:
            came |= {str(n) for n in tree[group].data_vars}
    discrete = discrete_model(model_or_context(model), came)
    names = [*discrete.values] if var_names is None else list(var_names)
    unknown = [n for n in names if n not in discrete.values]
    if unknown:
        raise ValueError(f"var_names: expected some of {[*discrete.values]}, got {unknown}.")
    z = z_of(discrete.compiled, tree, "idata")
    chains, draws, number = z.shape[:3]
    log_weight = np.zeros((chains, draws, number))
    if "sample_stats" in tree.children and "log_weight" in tree["sample_stats"]:
        log_weight = tree["sample_stats"]["log_weight"].transpose("chain", "draw", DATASET).values
    labels = [str(n) for n in tree["posterior"].to_dataset()[DATASET].values]
    parts: list[Recovered] = []
    structure = None
    for i, label in enumerate(labels):
        data = _data_of(discrete, tree, label)
        rng = np.random.default_rng([random_seed, i])
        flat = z[:, :, i].reshape(chains * draws, -1)
        weight = weights_of(log_weight[:, :, i].ravel())
        part, structure = recovered(discrete, flat, data, weight, rng, like=structure)
        parts.append(part)
    found = _labelled(discrete, parts, names, labels, (chains, draws))
    if alone:
        found = {k: v.isel({DATASET: 0}, drop=True) for k, v in found.items()}
    return xr.DataTree.from_dict(found)


def _with_dataset(idata: xr.DataTree) -> xr.DataTree:
    """Give the results of one dataset a dim `dataset`."""
    groups = {}
    for name in ("posterior", *_DATA):
        if name in idata.children:
            axis = 2 if name == "posterior" else 0
            groups[name] = idata[name].to_dataset().expand_dims({DATASET: ["0"]}, axis=axis)
    return xr.DataTree.from_dict(groups)


def _data_of(discrete: DiscreteModel, tree: xr.DataTree, label: str) -> dict[str, np.ndarray]:
    some = {k: tree[k].to_dataset() for k in ("posterior", *_DATA) if k in tree.children}
    alone = one(xr.DataTree.from_dict(some), label)
    found: dict[str, np.ndarray] = {}
    for group in _DATA:
        if group in alone.children:
            found |= {str(k): v.values for k, v in alone[group].data_vars.items()}
    wanted = [i.name for i in discrete.compiled.data if i.name not in discrete.values]
    missing = [n for n in wanted if n not in found]
    if missing:
        raise ValueError(
            f"recover_discrete: expected the data {missing} in `observed_data` or `constant_data` "
            f"of the results, got {[*found]}."
        )
    return {n: found[n] for n in wanted}


def _labelled(
    discrete: DiscreteModel,
    parts: Sequence[Recovered],
    names: Sequence[str],
    labels: Sequence[str],
    sample: tuple[int, int],
) -> dict[str, xr.Dataset]:
    infos = {i.name: i for i in discrete.compiled.covariates}
    drawn, chance = {}, {}
    for name in names:
        dims = infos[name].dims
        values = _stacked([p.values[name] for p in parts], -1)
        values = np.moveaxis(values, 0, 1).reshape(*sample, len(labels), *values.shape[2:])
        drawn[name] = (("chain", "draw", DATASET, *dims), values)
        share = _stacked([p.probability[name] for p in parts], np.nan)
        chance[name] = ((DATASET, *dims, f"{name}_value"), share)
    known = discrete.compiled.coords

    def dataset(arrays: dict) -> xr.Dataset:
        found = xr.Dataset(arrays, coords={DATASET: list(labels)})
        sizes = {str(d): n for d, n in found.sizes.items()}
        fits = {d: known[d] for d, n in sizes.items() if d in known and len(known[d]) == n}
        return found.assign_coords(fits)

    posterior = dataset(drawn).assign_coords(chain=range(sample[0]), draw=range(sample[1]))
    options = {f"{n}_value": discrete.values[n] for n in names}
    return {"posterior": posterior, "probability": dataset(chance).assign_coords(options)}


def _stacked(arrays: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """Stack arrays of different lengths."""
    shape = tuple(np.max([a.shape for a in arrays], axis=0))
    found = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for i, a in enumerate(arrays):
        found[i][tuple(slice(n) for n in a.shape)] = a
    return found
