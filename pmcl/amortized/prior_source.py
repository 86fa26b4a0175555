"""Draws from which a posterior that becomes a prior is learned."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.own_size import of_own_size
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.compile import CompiledModel, compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.data.label_text import text
from pmcl.data.task import DATASET, TaskLike
from pmcl.draws.densities import unconstrain
from pmcl.draws.results import ambiguous, flat_z, in_order
from pmcl.runtime import precision
from pmcl.runtime.arguments import listed

_DRAWS = 4000
_DATA = "as_prior: a posterior needs the data that it is conditioned on."


class Source(NamedTuple):
    """The posterior of one dataset.

    Attributes
    ----------
    model : pymc.Model
    compiled : CompiledModel
    z : array of shape (draw, dim)
    own : set of str
        Variables that are handed on where none are named: of a multilevel posterior those that its
        groups share.
    labels : dict of str to list of str
        Of the elements along dims: of groups those of the dataset.
    """

    model: pm.Model
    compiled: CompiledModel
    z: np.ndarray
    own: set[str]
    labels: dict[str, list[str]]


def source_of(
    source: AmortizedPosterior | MultilevelPosterior | xr.DataTree,
    data: TaskLike | None,
    dataset: str | int | None,
    model: pm.Model | None,
    seed: int,
) -> Source:
    """The old model, compiled, and draws from its posterior of one dataset.

    Raises
    ------
    TypeError, ValueError
        As :func:`pmcl.as_prior`.
    """
    if isinstance(source, MultilevelPosterior):
        return _of_levels(source, data, dataset, seed)
    old, compiled, tree = _draws(source, data, model, seed)
    everything = {i.name for i in compiled.free}
    z = _of_one(compiled, tree, dataset)
    return Source(old, compiled, z, everything, _labels(compiled))


def _labels(compiled: CompiledModel) -> dict[str, list[str]]:
    return {dim: text(labels) for dim, labels in compiled.coords.items()}


def _of_levels(
    source: MultilevelPosterior, data: TaskLike | None, dataset: str | int | None, seed: int
) -> Source:
    """Of a multilevel posterior, in a model of the dataset's own number of groups."""
    if data is None:
        raise ValueError(_DATA)
    tree = source.sample(data, _DRAWS, random_seed=seed, progressbar=False)
    read = source.sampler.checked(data)
    position = _position(tree["posterior"].to_dataset(), dataset)
    if source.groups is None:
        compiled, z = read.sized.compiled, flat_z(read.sized.compiled, tree)[:, :, position]
        labels = _labels(compiled)
    else:
        own = of_own_size(source.groups, read, [position])
        compiled = own.sized.compiled
        z = flat_z(compiled, own.cut(tree))[:, :, 0]
        labels = _labels(compiled) | {own.dim: [*(own.task.labels or [()])[0]]}
    shared = {*read.sized.reading.shared}
    of_groups = {v.variable for v in read.sized.compiled.values if v.start not in shared}
    common = {i.name for i in compiled.free} - of_groups
    return Source(compiled.model, compiled, z.reshape(-1, compiled.dim), common, labels)


def _draws(
    source: AmortizedPosterior | xr.DataTree,
    data: TaskLike | None,
    model: pm.Model | None,
    seed: int,
) -> tuple[pm.Model, CompiledModel, xr.DataTree]:
    """The old model, compiled, and draws from its posterior."""
    if isinstance(source, AmortizedPosterior):
        if data is None:
            raise ValueError(_DATA)
        tree = source.sample(data, _DRAWS, random_seed=seed, progressbar=False)
        return source.compiled.model, source.compiled, tree
    if not isinstance(source, xr.DataTree):
        raise TypeError(
            "as_prior: expected an AmortizedPosterior with data, or a DataTree of draws, got "
            f"{type(source).__name__}."
        )
    if model is None:
        raise ValueError(
            "as_prior: draws do not say how the variables are transformed; pass `model=`, the "
            "PyMC model that they are of."
        )
    model = model_or_context(model)
    constant = source["constant_data"].data_vars if "constant_data" in source.children else ()
    covariates = [v.name for v in model.data_vars if v.name in constant]
    return model, compile_model(model, covariates=covariates), source


def _of_one(compiled: CompiledModel, tree: xr.DataTree, dataset: str | int | None) -> np.ndarray:
    """Draws of z of shape (draw, dim)."""
    posterior = in_order(tree["posterior"].to_dataset(), compiled.coords)
    if DATASET in posterior.dims:
        position = _position(posterior, dataset)
        if "unconstrained_posterior" in tree.children:
            z = flat_z(compiled, tree)[:, :, position]
            return z.reshape(-1, compiled.dim)
        posterior = posterior.isel({DATASET: position})
    elif dataset not in (None, 0):
        raise ValueError(f"as_prior: the draws are of one dataset, got dataset={dataset!r}.")
    return _unconstrained(compiled, posterior, tree)


def _position(posterior: xr.Dataset, dataset: str | int | None) -> int:
    """Which of the datasets is meant."""
    names = [str(n) for n in posterior[DATASET].values]
    if dataset is None and len(names) > 1:
        raise ValueError(
            f"as_prior: expected `dataset=`, one of {listed(names, 10)}: there are {len(names)}."
        )
    if dataset is not None and (said := ambiguous(names, dataset)):
        raise ValueError(f"as_prior: {said}")
    if isinstance(dataset, str) and dataset not in names:
        raise ValueError(
            f"as_prior: expected the name of a dataset, {listed(names, 10)}, got {dataset!r}."
        )
    return names.index(dataset) if isinstance(dataset, str) else dataset or 0


def _unconstrained(compiled: CompiledModel, posterior: xr.Dataset, tree: xr.DataTree) -> np.ndarray:
    missing = [i.name for i in compiled.free if i.name not in posterior]
    if missing:
        raise ValueError(f"as_prior: expected draws of {missing}, got {list(posterior)}.")
    flat: dict[str, jax.Array] = {}
    for info in compiled.free:
        value = posterior[info.name].transpose("chain", "draw", ...).values
        flat[info.name] = value.reshape(-1, *value.shape[2:])  # type: ignore[assignment]
    fixed = {}
    if "constant_data" in tree.children:
        constant = in_order(tree["constant_data"].to_dataset(), compiled.coords)
        fixed = {i.name: jnp.asarray(constant[i.name].values) for i in compiled.covariates}
    with precision.scope():
        return np.asarray(unconstrain(compiled, flat, fixed))
