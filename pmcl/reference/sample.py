"""Reference posteriors as DataTrees: NUTS of the same PyMC model, in the layout of `sample`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pmcl.compile import CompiledModel, Density, compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.compile.simulable import need_density
from pmcl.data.covariates import covariates_among
from pmcl.data.masked import check_masked
from pmcl.data.own import own_data
from pmcl.data.possible import check_possible
from pmcl.data.reading import layout_of, task_of
from pmcl.data.task import Task, TaskLike
from pmcl.draws.densities import constrain, densities, pick
from pmcl.draws.prediction import Extra, extra_groups
from pmcl.draws.results import Draws, posterior_tree
from pmcl.parts.datasets import Parts
from pmcl.parts.job import Job, bytes_of, need_store
from pmcl.parts.run import run
from pmcl.reference.nuts import (
    NutsDraws,
    NutsSettings,
    check_settings,
    kept,
    nuts,
    seeds_of,
)
from pmcl.reference.vectorised import begins, vectorised
from pmcl.runtime import precision

if TYPE_CHECKING:
    from distributed import Client


def sample_reference(
    model: pm.Model | None = None,
    data: TaskLike | None = None,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    target_accept: float = 0.8,
    sampler: Literal["nutpie", "pymc", "blackjax"] = "nutpie",
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
    data : xarray.Dataset, mapping or pandas.DataFrame, optional
        See :func:`pmcl.as_task`. Every `pm.Data` that it holds is a covariate. The model's own by
        default, unless all its observed values are equal.
    draws, tune, chains, cores, target_accept
        As in :func:`pymc.sample`; per dataset.
    sampler : {"nutpie", "pymc", "blackjax"}
        One compilation serves all datasets with each. With "blackjax" the chains of eight datasets
        (on an accelerator of 256) walk in one program, in the coordinates of the mode that a search
        finds: for many datasets. `cores` means nothing then.
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
    covariates = () if data is None else covariates_among(model, data)
    data = own_data(model, say=progressbar) if data is None else data
    compiled = compile_model(model, covariates=covariates)
    need_density(compiled, "sample_reference")
    asked = _Asked(
        NutsSettings(draws, tune, chains, cores, target_accept, sampler),
        pick(compiled, var_names),
        Extra(log_likelihood, log_prior, posterior_predictive).check(compiled),
        seeds_of(random_seed, 1)[0],
    )
    if store is None:
        need_store(client)
        task = task_of(compiled, data)
        job = ReferenceJob(compiled, asked, seeds_of(random_seed, len(task)))
        return job.sampled(task, job.seeds, progressbar=progressbar)
    size = partial(bytes_of, compiled, draws * chains, asked.names, terms=asked.extra.terms)
    parts = Parts.of(data, layout_of(compiled), size)
    # by position in the whole that a task may be a part of
    begin = parts.source.first if isinstance(parts.source, Task) else 0
    job = ReferenceJob(compiled, asked, [0] * begin + seeds_of(random_seed, len(parts)))
    return run(job, parts, store, client=client, progressbar=progressbar)[0]


class _Asked(NamedTuple):
    """What a user asked `sample_reference` for; see there."""

    settings: NutsSettings
    names: tuple[str, ...]
    extra: Extra
    seed: int  # of the draws of the observed


@dataclass(frozen=True, eq=False)
class ReferenceJob(Job):
    """NUTS, part by part.

    Attributes
    ----------
    compiled : CompiledModel
    asked
    seeds : list of int
        Of each dataset.
    """

    description: ClassVar[str] = "NUTS"

    compiled: CompiledModel
    asked: _Asked
    seeds: list[int]

    def label(self) -> dict[str, Any]:
        """Tell this job by what was asked for."""
        asked = self.asked._replace(settings=self.asked.settings._replace(cores=None))
        return {"reference": repr(asked)}

    def work(self, task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        """Sample, silently; it compiles for the first part."""
        own = self.seeds[task.first : task.first + len(task)]
        return self.sampled(task, own, progressbar=False), {}

    def sampled(self, task: Task, seeds: Sequence[int], *, progressbar: bool) -> xr.DataTree:
        """Sample the datasets of a task, each with its seed."""
        if task.there or not task.ragged:
            task = check_masked(self.compiled, task)
        check_possible(self.compiled, task)
        draws, chains = self.asked.settings.draws, self.asked.settings.chains
        found = self._walked(task, seeds, progressbar=progressbar)
        z = found.unconstrained  # (dataset, chain, draw, dim)
        flat = z.reshape(len(task), chains * draws, self.compiled.dim)
        with precision.scope():
            constrained = constrain(self.compiled, flat, task, self.asked.names)
            log_prior, log_likelihood = densities(self.compiled, flat, task)
            extra = extra_groups(
                self.compiled, task, flat, self.asked.extra, seed=self.asked.seed, chains=chains
            )

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
        return posterior_tree(
            self.compiled, task, result, engine=f"nuts ({self.asked.settings.sampler})", extra=extra
        )

    def _walked(self, task: Task, seeds: Sequence[int], *, progressbar: bool) -> NutsDraws:
        """Draws and statistics of all chains."""
        settings = self.asked.settings
        check_settings(settings)
        if settings.sampler == "blackjax":
            density = Density(self.compiled, task.layout.row)
            begin = perf_counter()
            starts, which = begins(density, task), np.arange(len(task))
            searching = (perf_counter() - begin) / len(task)
            chains, seconds = vectorised(
                density, task, which, starts, settings, seeds, progressbar=progressbar
            )
            return NutsDraws(chains.z, chains.stats, seconds + searching, 0.0, {})
        return nuts(
            self.compiled.model,
            [task.dataset(i) for i in range(len(task))],
            names=task.names,
            settings=settings,
            cache=kept(self.compiled),
            random_seed=seeds,
            progressbar=progressbar,
        )


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
