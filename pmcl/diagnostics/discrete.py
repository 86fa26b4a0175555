"""Discrete variables that were summed out of a model, given back for every draw."""

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pymc as pm
import xarray as xr

from pmcl.compile import CompiledModel
from pmcl.compile.discrete import DiscreteModel, discrete_model
from pmcl.compile.labelled import model_or_context
from pmcl.data.reading import as_task, layout_of
from pmcl.data.task import DATASET, Task
from pmcl.draws.discrete import Recovered, recovered, shapes_of, weights_of
from pmcl.draws.handed import DATA, by_dataset, data_of, log_weights_of, names_of, some_of, z_of
from pmcl.draws.results import attributes
from pmcl.parts.datasets import Parts
from pmcl.parts.job import Job, need_store
from pmcl.parts.run import run

if TYPE_CHECKING:
    from distributed import Client


def recover_discrete(
    idata: xr.DataTree,
    model: pm.Model,
    *,
    var_names: Sequence[str] | None = None,
    store: str | os.PathLike | None = None,
    client: "Client | None" = None,
    random_seed: int = 0,
    progressbar: bool = False,
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
    store : path, optional
        A new folder, to which results are written as Zarr, part by part, as `sample` does; with
        `idata` from a store no more than a part is in memory. The draws are the same.
    client : distributed.Client, optional
        The Dask cluster to work on, as in `AmortizedPosterior.sample`.
    random_seed : int
    progressbar : bool
        With a `store`.

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
    tree = by_dataset(idata)
    tree = some_of(tree, slice(None))
    came: set[str] = set()
    for group in DATA:
        if group in tree.children:
            came |= {str(n) for n in tree[group].data_vars}
    discrete = discrete_model(model_or_context(model), came)
    names = [*discrete.values] if var_names is None else list(var_names)
    unknown = [n for n in names if n not in discrete.values]
    if unknown:
        raise ValueError(f"var_names: expected some of {[*discrete.values]}, got {unknown}.")
    job = DiscreteJob(discrete.compiled, discrete.values, tree, tuple(names), random_seed)
    if store is None:
        need_store(client)
        found = job.recovered(slice(None), None)
        if alone:
            groups = {k: v.to_dataset() for k, v in found.children.items()}
            found = xr.DataTree.from_dict(
                {k: v.isel({DATASET: 0}, drop=True) for k, v in groups.items()}
            )
        return found
    parts = _Results.of(job.task(), job.layout, job.bytes_of)
    return run(job, parts, store, client=client, progressbar=progressbar)[0]


class _Results(Parts):
    """Datasets cut in parts, of which nothing is written but what is found."""

    def whole(self, compiled: CompiledModel) -> dict[str, xr.Dataset]:
        return {}


@dataclass(frozen=True, eq=False)
class DiscreteJob(Job):
    """Discrete variables of results, part by part.

    Attributes
    ----------
    compiled : CompiledModel
        Whose discrete variables are data.
    values : dict of str to array of int
        What each of them can be.
    idata : xarray.DataTree
        With a dim `dataset`.
    names : tuple of str
        Discrete variables to give back.
    seed : int
    """

    description: ClassVar[str] = "Discrete variables"

    compiled: CompiledModel
    values: dict[str, np.ndarray]
    idata: xr.DataTree
    names: tuple[str, ...]
    seed: int

    @property
    def discrete(self) -> DiscreteModel:
        """The model."""
        return DiscreteModel(self.compiled, self.values)

    @property
    def wanted(self) -> list[str]:
        """Names of the data that have to come with the draws."""
        return [i.name for i in self.compiled.data if i.name not in self.values]

    def task(self) -> Task:
        """The data of the draws; discrete variables have some value."""
        found = data_of(self.idata, self.wanted, "recover_discrete")
        for data in found.values():
            for name, shape in shapes_of(self.discrete, data).items():
                data[name] = np.full(shape, self.values[name][0])
        return as_task(found, layout_of(self.compiled))

    def bytes_of(self, first: Mapping[str, np.ndarray]) -> int:
        """Size of what is found of a dataset, and of its draws, about."""
        chains, draws = (self.idata["posterior"].sizes[d] for d in ("chain", "draw"))
        elements = sum(first[name].size for name in self.values)
        return 8 * chains * draws * (self.compiled.dim + elements)

    def label(self) -> dict[str, Any]:
        """Tell this job by its draws (those of the first dataset) and by what was asked for."""
        z = z_of(self.compiled, some_of(self.idata, slice(1)), "idata")
        return {"discrete": [*self.names, self.seed], "draws": zlib.crc32(np.ascontiguousarray(z))}

    def work(self, task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        """Recover, of the datasets of a task."""
        shapes = {name: task.values[name].shape[1:] for name in self.names}
        return self.recovered(slice(task.first, task.first + len(task)), shapes), {}

    def recovered(self, which: slice, shapes: Mapping[str, tuple] | None) -> xr.DataTree:
        """Recover, of some datasets; `shapes` are those of the variables in the longest dataset."""
        begin, tree = time.perf_counter(), some_of(self.idata, which)
        z, log_weight = z_of(self.compiled, tree, "idata"), log_weights_of(tree)
        if log_weight is None:
            log_weight = np.zeros(z.shape[:3])
        first = which.start or 0
        parts: list[Recovered] = []
        structure = None
        datasets = data_of(tree, self.wanted, "recover_discrete")
        for i, data in enumerate(datasets.values()):
            rng = np.random.default_rng([self.seed, first + i])
            flat = z[:, :, i].reshape(-1, z.shape[-1])
            weight = weights_of(log_weight[:, :, i].ravel())
            part, structure = recovered(self.discrete, flat, data, weight, rng, like=structure)
            parts.append(part)
        if shapes is None:
            each = {n: [p.probability[n].shape[:-1] for p in parts] for n in self.names}
            shapes = {n: tuple(np.max(s, axis=0)) for n, s in each.items()}
        found = _labelled(self.discrete, parts, shapes, names_of(tree), z.shape[:2])
        seconds = time.perf_counter() - begin
        found["posterior"] = found["posterior"].assign_attrs(attributes("exact", seconds))
        return xr.DataTree.from_dict(found)


def _labelled(
    discrete: DiscreteModel,
    parts: Sequence[Recovered],
    shapes: Mapping[str, tuple[int, ...]],
    labels: Sequence[str],
    sample: tuple[int, int],
) -> dict[str, xr.Dataset]:
    infos = {i.name: i for i in discrete.compiled.covariates}
    drawn, chance = {}, {}
    for name, shape in shapes.items():
        dims = infos[name].dims
        drawn_of = [p.values[name] for p in parts]
        values = _stacked(drawn_of, (drawn_of[0].shape[0], *shape), -1)
        values = np.moveaxis(values, 0, 1).reshape(*sample, len(labels), *values.shape[2:])
        drawn[name] = (("chain", "draw", DATASET, *dims), values)
        whole = (*shape, len(discrete.values[name]))
        share = _stacked([p.probability[name] for p in parts], whole, np.nan)
        chance[name] = ((DATASET, *dims, f"{name}_value"), share)
    known = discrete.compiled.coords

    def dataset(arrays: dict) -> xr.Dataset:
        found = xr.Dataset(arrays, coords={DATASET: list(labels)})
        sizes = {str(d): n for d, n in found.sizes.items()}
        fits = {d: known[d] for d, n in sizes.items() if d in known and len(known[d]) == n}
        return found.assign_coords(fits)

    posterior = dataset(drawn).assign_coords(chain=range(sample[0]), draw=range(sample[1]))
    options = {f"{n}_value": discrete.values[n] for n in shapes}
    return {"posterior": posterior, "probability": dataset(chance).assign_coords(options)}


def _stacked(arrays: Sequence[np.ndarray], shape: tuple[int, ...], fill: float) -> np.ndarray:
    """Stack arrays of different lengths in arrays of one shape."""
    found = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for i, a in enumerate(arrays):
        found[i][tuple(slice(n) for n in a.shape)] = a
    return found
