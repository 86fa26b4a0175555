"""Reference posteriors as DataTrees: NUTS of the same PyMC model, in the layout of `sample`."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pmcl import sampling
from pmcl.batching import check_masked
from pmcl.cluster import Engine, Parts, Work, about_model, bytes_of, need_store, run
from pmcl.compile import CompiledModel, compile_model, precision
from pmcl.compile.refuse import model_or_context
from pmcl.data import DATASET, Layout, Task, TaskLike, as_task
from pmcl.prediction import Extra, extra_groups
from pmcl.reference.nuts import kept, nuts, seeds_of
from pmcl.results import Draws, posterior_tree

if TYPE_CHECKING:
    from distributed import Client


def sample_reference(
    model: pm.Model | None,
    data: TaskLike,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    target_accept: float = 0.8,
    sampler: Literal["nutpie", "pymc"] = "nutpie",
    var_names: list[str] | None = None,
    log_likelihood: bool = False,
    log_prior: bool = False,
    posterior_predictive: bool = False,
    store: str | os.PathLike | None = None,
    client: "Client | None" = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Sample the posterior of every dataset by NUTS, in the layout of `AmortizedPosterior.sample`.

    Parameters
    ----------
    model : pymc.Model, optional
        The same model that the amortized posterior was made of; None takes it from the context.
    data : xarray.Dataset, mapping or pandas.DataFrame
        See :func:`pmcl.as_task`. Every `pm.Data` that it holds is a covariate.
    draws, tune, chains, cores, target_accept
        As in :func:`pymc.sample`; per dataset.
    sampler : {"nutpie", "pymc"}
        One compilation serves all datasets with either.
    var_names : list of str, optional
        Variables of the group `posterior`; all free variables and deterministics by default.
    log_likelihood, log_prior, posterior_predictive : bool
        Add the group of that name, as `AmortizedPosterior.sample` does.
    store : path, optional
        A new folder, as in `AmortizedPosterior.sample`. An interrupted call is gone on with where
        `random_seed` is given.
    client : distributed.Client, optional
        The Dask cluster to work on, as in `AmortizedPosterior.sample`.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        `sample_stats` holds `diverging`, `n_steps` and others beside `log_prior` and
        `log_likelihood`; `dataset_stats` r-hat, effective sample size, divergences and seconds.

    Raises
    ------
    DataError
        Where the data do not fit the model, naming the variable and the dataset.
    """
    model = model_or_context(model)
    compiled = compile_model(model, covariates=covariates_among(model, data))
    asked = _Asked(
        draws,
        tune,
        chains,
        cores,
        target_accept,
        sampler,
        sampling.pick(compiled, var_names),
        Extra(log_likelihood, log_prior, posterior_predictive),
        seeds_of(random_seed, 1)[0],
    )
    if store is None:
        need_store(client)
        task = task_of(compiled, data)
        seeds = seeds_of(random_seed, len(task))
        return _sampled(model, compiled, asked, seeds, task, progressbar=progressbar)
    layout = layout_of(compiled)
    size = partial(bytes_of, compiled, draws * chains, asked.names, terms=asked.extra.terms)
    parts = Parts.of(data, layout, size)
    # by position in the whole that a task may be a part of
    begin = parts.source.first if isinstance(parts.source, Task) else 0
    seeds = [0] * begin + seeds_of(random_seed, len(parts))
    covariates = tuple(i.name for i in compiled.covariates)
    tree, _ = run(
        ReferenceWork(model, covariates, asked, seeds),
        layout,
        engine(model, compiled, asked, seeds),
        parts,
        store,
        client=client,
        about={
            "reference": repr(asked._replace(cores=None)),
            **about_model(compiled, parts.first(layout)),
        },
        whole=parts.whole(compiled),
        description="NUTS",
        progressbar=progressbar,
    )
    return tree


class _Asked(NamedTuple):
    """What a user asked `sample_reference` for; see there."""

    draws: int
    tune: int
    chains: int
    cores: int | None
    target_accept: float
    sampler: Literal["nutpie", "pymc"]
    names: tuple[str, ...]
    extra: Extra
    seed: int  # of the draws of the observed


@dataclass(frozen=True)
class ReferenceWork(Work):
    """NUTS, on the workers of a cluster.

    Attributes
    ----------
    model : pymc.Model
    covariates : tuple of str
    asked
    seeds : list of int
        Of each dataset.
    """

    model: pm.Model
    covariates: tuple[str, ...]
    asked: _Asked
    seeds: list[int]

    def prepare(self) -> tuple[Layout, Engine]:
        compiled = compile_model(self.model, covariates=self.covariates)
        return layout_of(compiled), engine(self.model, compiled, self.asked, self.seeds)


def engine(model: pm.Model, compiled: CompiledModel, asked: _Asked, seeds: Sequence[int]) -> Engine:
    """Return what samples a part; it compiles for the first one."""

    def work(task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        own = seeds[task.first : task.first + len(task)]
        return _sampled(model, compiled, asked, own, task, progressbar=False), {}

    return work


def _sampled(
    model: pm.Model,
    compiled: CompiledModel,
    asked: _Asked,
    seeds: Sequence[int],
    task: Task,
    *,
    progressbar: bool,
) -> xr.DataTree:
    if task.there or not task.ragged:
        task = check_masked(compiled, task)
    draws, chains = asked.draws, asked.chains
    found = nuts(
        model,
        [task.dataset(i) for i in range(len(task))],
        names=task.names,
        draws=draws,
        tune=asked.tune,
        chains=chains,
        cores=asked.cores,
        target_accept=asked.target_accept,
        sampler=asked.sampler,
        cache=kept(compiled),
        random_seed=seeds,
        progressbar=progressbar,
    )
    z = found.unconstrained  # (dataset, chain, draw, dim)
    flat = z.reshape(len(task), chains * draws, compiled.dim)
    with precision.scope():
        constrained = sampling.constrain(compiled, flat, task, asked.names)
        log_prior, log_likelihood = sampling.densities(compiled, flat, task)
        extra = extra_groups(compiled, task, flat, asked.extra, seed=asked.seed, chains=chains)

    def ordered(value: np.ndarray) -> np.ndarray:
        shaped = value.reshape(len(task), chains, draws, *value.shape[2:])
        return np.moveaxis(shaped, 0, 2)

    stats = {
        "log_prior": ordered(log_prior),
        "log_likelihood": ordered(log_likelihood),
        **{k: np.moveaxis(v, 0, 2) for k, v in found.stats.items()},
    }
    result = Draws(
        z=np.moveaxis(z, 0, 2),
        constrained={k: ordered(v) for k, v in constrained.items()},
        sample_stats=stats,
        dataset_stats=convergence(z, stats, found.seconds),
        seconds=float(found.seconds.sum()),
    )
    return posterior_tree(compiled, task, result, engine=f"nuts ({asked.sampler})", extra=extra)


def task_of(compiled: CompiledModel, data: TaskLike) -> Task:
    """Read data where no network says which dim has the rows."""
    return as_task(data, layout_of(compiled))


def layout_of(compiled: CompiledModel) -> Layout:
    """Say what a dataset looks like; its rows are along the first dim that all observed have."""
    rows = sorted(set.intersection(*({*i.dims} for i in compiled.observed)) & compiled.data_dims)
    return Layout.of(compiled, rows[0] if rows else None)


def covariates_among(model: pm.Model, data: TaskLike) -> tuple[str, ...]:
    """Names of the model's `pm.Data` that come with the data, in the model's order."""
    if isinstance(data, Task):
        came: Iterable = data.values
    elif isinstance(data, xr.Dataset):
        came = data.data_vars
    elif hasattr(data, "columns"):
        came = {str(c).split("[")[0] for c in data.columns} - {DATASET}  # type: ignore[union-attr]
    else:
        came = data
        for value in data.values():  # type: ignore[union-attr]
            if isinstance(value, xr.Dataset | dict):
                came = value.data_vars if isinstance(value, xr.Dataset) else value
            break
    names = {str(n) for n in came}
    return tuple(v.name for v in model.data_vars if v.name in names)


def convergence(
    z: np.ndarray, stats: dict[str, np.ndarray], seconds: np.ndarray
) -> dict[str, np.ndarray]:
    """Worst r-hat and effective sample size over the unconstrained parameters of each dataset."""
    from arviz_stats.base import array_stats

    rhat = np.asarray(array_stats.rhat(z, chain_axis=1, draw_axis=2))
    ess = np.asarray(array_stats.ess(z, chain_axis=1, draw_axis=2))
    found = {
        "rhat": rhat.reshape(len(z), -1).max(axis=1),
        "ess": ess.reshape(len(z), -1).min(axis=1),
        "seconds": np.asarray(seconds),
        "engine": np.full(len(z), "nuts"),
    }
    if "diverging" in stats:
        found["divergences"] = stats["diverging"].sum(axis=(0, 1))
    return found
