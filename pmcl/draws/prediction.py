"""What is asked for beside draws: log density terms, and predictions at the same or new data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmcl.compile import CompiledModel, VariableInfo
from pmcl.compile.predictive import lengths_of, predict
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.simulable import check_simulable
from pmcl.data.forms import in_form, is_frame, several, with_index
from pmcl.data.label_text import numbers
from pmcl.data.one_dataset import LENGTH, check_length
from pmcl.data.reading import as_task
from pmcl.data.task import DATASET, DataError, Layout, Task
from pmcl.draws.densities import pointwise, prior_terms
from pmcl.draws.results import SAMPLE, labelled
from pmcl.runtime.arguments import listed


class Extra(NamedTuple):
    """Groups that a user asked for beside the draws."""

    log_likelihood: bool = False
    log_prior: bool = False
    posterior_predictive: bool = False

    @property
    def terms(self) -> int:
        """How many of them hold a value for every observed one."""
        return int(self.log_likelihood) + int(self.posterior_predictive)

    def check(self, compiled: CompiledModel) -> "Extra":
        """Return what was asked for, before anything is drawn of a model that does not give it.

        Raises
        ------
        UnsupportedModelError
            Naming an observed variable that cannot be simulated.
        """
        if self.posterior_predictive:
            try:
                check_simulable(compiled.model, compiled.model.observed_RVs)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(
                    f"posterior_predictive: expected a model that can be simulated. {error}"
                ) from None
        return self


def extra_groups(
    compiled: CompiledModel, task: Task, z: np.ndarray, asked: Extra, *, seed: int, chains: int = 1
) -> dict[str, xr.Dataset]:
    """Build the groups asked for, of draws z of shape (dataset, chain * draw, dim)."""
    found = {}
    if asked.log_likelihood:
        terms = pointwise(compiled, z, task)
        found["log_likelihood"] = observed_group(compiled, task, terms)
    if asked.log_prior:
        terms = prior_terms(compiled, z, task)
        found["log_prior"] = scalars_group(compiled, task, terms)
    if asked.posterior_predictive:
        at = [task.dataset(i) for i in range(len(task))]
        drawn = predictions(compiled, z, at, seed=seed, position=task.position)
        found["posterior_predictive"] = observed_group(compiled, task, drawn)
    if chains > 1:
        found = {k: group.map(lambda v: _by_chain(v, chains)) for k, group in found.items()}
    return found


def _by_chain(value: xr.DataArray, chains: int) -> xr.DataArray:
    shape = (chains, -1, *value.shape[2:])
    return xr.DataArray(value.values.reshape(shape), dims=value.dims, coords=value.coords)


def observed_group(
    compiled: CompiledModel, task: Task, arrays: Mapping[str, np.ndarray]
) -> xr.Dataset:
    """Label arrays of (dataset, draw, ...), or of (chain, draw, dataset, ...), by variable."""
    infos = {i.name: i for i in compiled.observed}
    ordered = {}
    for name, value in arrays.items():
        dims = infos[name].dims
        if value.ndim != len(dims) + 3:
            value = np.moveaxis(value, 0, 1)[None]
        row = task.layout.row
        if task.ragged and row in dims and value.ndim == len(dims) + 3:
            # A part of a task may have no dataset as long as the whole's longest.
            shape = list(value.shape[1:])
            shape[2 + dims.index(row)] = task.width
            value = _fill(value, tuple(shape))
        # A likelihood of whole vectors has one term for them: fewer dims than the variable.
        infos[name] = infos[name]._replace(dims=dims[: value.ndim - 3])
        ordered[name] = value
    return labelled(compiled, task, infos, ordered, SAMPLE)


def scalars_group(
    compiled: CompiledModel, task: Task, arrays: Mapping[str, np.ndarray]
) -> xr.Dataset:
    """Label arrays of shape (dataset, draw), one number a draw and dataset, by variable."""
    infos = {name: VariableInfo(name, (), (), "float64") for name in arrays}
    ordered = {name: np.moveaxis(value, 0, 1)[None] for name, value in arrays.items()}
    return labelled(compiled, task, infos, ordered, SAMPLE)


def predictions(
    compiled: CompiledModel,
    z: np.ndarray,
    at: Sequence[Mapping[str, np.ndarray]],
    *,
    seed: int,
    position: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Draw the observed variables for z of shape (dataset, draw, dim).

    Parameters
    ----------
    compiled : CompiledModel
    z : array
    at : sequence of mappings
        For each dataset its covariates, and its observations where their length matters.
    seed : int
        Each dataset's draws depend on the seed and its position alone.
    position : array of int, optional
        Of each dataset; those of `at` by default.

    Returns
    -------
    dict of arrays of shape (chain, draw, dataset, ...)
        Filled up with NaN where datasets have different lengths.
    """
    position = np.arange(len(z)) if position is None else position
    parts = [
        predict(compiled, u, data, lengths_of(compiled, data), rng=np.random.default_rng([seed, i]))
        for i, u, data in zip(position, z, at, strict=True)
    ]
    longest = {k: tuple(np.max([p[k].shape[1:] for p in parts], axis=0)) for k in parts[0]}
    return {k: np.stack([_fill(p[k], longest[k]) for p in parts], axis=1)[None] for k in parts[0]}


def covariates_of(
    layout: Layout, new: xr.Dataset | Mapping[str, np.ndarray], task: Task
) -> list[dict[str, np.ndarray]]:
    """Read new covariates: one set for all datasets of a task, or one each, perhaps by name.

    Raises
    ------
    ValueError
        Naming the covariate, what was expected and what came.
    """
    infos = layout.variables[layout.n_observed :]
    if not infos:
        raise ValueError("new_covariates: the posterior has no covariates; leave the argument out.")
    alone = replace(layout, variables=infos, n_observed=0, support=None, copies=())
    try:
        new = in_form(new)
    except DataError as error:
        raise DataError(f"new_covariates: {error}") from None
    by_name = isinstance(new, Mapping) and several(new, alone.names)
    each = new.values() if by_name else [new]
    missing = [i.name for i in infos if any(not _has(one, i.name) for one in each)]
    if missing:
        how = " Those of several datasets come as a Dataset or a table with a `dataset`."
        raise ValueError(
            f"new_covariates: expected {[i.name for i in infos]}, {missing} did not come."
            f"{how if {*map(str, new)} & {*task.names} else ''}"
        )
    given: Any = new
    if isinstance(new, Mapping):  # which may have the observations, too
        only = lambda one: {i.name: one[i.name] for i in infos}  # noqa: E731
        taken = lambda one: only(one) if isinstance(one, Mapping) else one  # noqa: E731
        given = {name: taken(one) for name, one in new.items()} if by_name else only(new)
    try:
        read = as_task(given, alone)
    except DataError as error:
        raise DataError(f"new_covariates: {error}") from None
    if len(read) not in (1, len(task)):
        raise DataError(f"new_covariates: expected {len(task)} datasets, got {len(read)}.")
    nameless = numbers(1) in ([*read.names], [*task.names])
    if len(read) == 1 and (nameless or read.names == task.names):
        return [read.dataset(0) for _ in task.names]
    if {*read.names} == {*task.names}:
        return [read.dataset(read.names.index(name)) for name in task.names]
    if [*read.names] == numbers(len(read)):
        return [read.dataset(i) for i in range(len(task))]
    raise DataError(
        f"new_covariates: expected the datasets {listed(task.names)}, got {listed(read.names)}."
    )


def _has(one: Any, name: str) -> bool:
    """Whether a dataset has a variable; of a matrix a table has a column for each label."""
    if not is_frame(one):
        return name in one
    columns = [*map(str, with_index(one))]
    return name in columns or any(c.startswith(f"{name}[") for c in columns)


def _fill(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape[1:] == shape:
        return value
    pad = [(0, 0), *((0, n - m) for n, m in zip(shape, value.shape[1:], strict=True))]
    return np.pad(value.astype(float), pad, constant_values=np.nan)


def predictions_groups(
    compiled: CompiledModel,
    layout: Layout,
    task: Task,
    z: np.ndarray,
    new: xr.Dataset | Mapping[str, np.ndarray] | None,
    *,
    seed: int,
) -> dict[str, xr.Dataset]:
    """Build the groups predictions and predictions_constant_data.

    Parameters
    ----------
    compiled, layout, task
    z : array of shape (dataset, draw, dim)
    new : xarray.Dataset or mapping, optional
        Covariates to predict at; those of the task by default.
    seed : int
    """
    if new is None:
        at = [task.dataset(i) for i in range(len(task))]
    else:
        at = covariates_of(layout, new, task)
    values = predictions(compiled, z, at, seed=seed)
    like = Task(layout, {}, task.names, None)
    observed = {i.name: i for i in compiled.observed}
    found = labelled(compiled, like, observed, values, SAMPLE)
    numbers = {d: np.arange(found.sizes[d]) for d in ("chain", "draw")}
    groups = {"predictions": found.assign_coords(numbers)}
    infos = {i.name: i for i in compiled.covariates}
    if infos:
        parts = {n: [np.asarray(a[n])[None] for a in at] for n in infos}
        longest = {n: tuple(np.max([p.shape[1:] for p in v], axis=0)) for n, v in parts.items()}
        constant = {n: np.concatenate([_fill(p, longest[n]) for p in v]) for n, v in parts.items()}
        groups["predictions_constant_data"] = labelled(compiled, like, infos, constant, (DATASET,))
    lengths = [lengths_of(compiled, a).get(layout.row or "", 0) for a in at]
    if task.ragged or len({*lengths}) > 1:  # rows of the data have lengths of their own
        last = [*groups][-1]
        check_length(layout.row or "", [str(n) for n in groups[last].data_vars])
        groups[last] = groups[last].assign({f"{layout.row}{LENGTH}": (DATASET, lengths)})
    return groups
