"""Refinement without a network: approximate posteriors of many datasets of a PyMC model."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.compile import CompiledModel, Density, compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.simulable import need_density
from pmcl.data.covariates import covariates_among
from pmcl.data.masked import check_masked
from pmcl.data.own import own_data
from pmcl.data.possible import check_possible
from pmcl.data.reading import as_task, task_of
from pmcl.data.task import DATASET, Layout, Task, TaskLike
from pmcl.draws.handed import UNCONSTRAINED, by_dataset, some_of, z_of
from pmcl.draws.prediction import Extra
from pmcl.draws.prior import prior_draws
from pmcl.draws.results import warn_of_doubts
from pmcl.levels.find import find
from pmcl.levels.structure import Levels, NoLevels
from pmcl.parts.datasets import TOGETHER, Parts
from pmcl.parts.job import Job, bytes_of, check_devices, need_store
from pmcl.parts.run import run
from pmcl.refinement.correction import as_tree
from pmcl.refinement.correction import correct as corrected_task
from pmcl.refinement.known import Conditioned, conditioned
from pmcl.refinement.multilevel import levels_told
from pmcl.refinement.settings import (
    FEWEST_STARTS,
    Asked,
    Beginning,
    CorrectLike,
    FallbackLike,
    Refine,
    Ways,
    asked_of,
)
from pmcl.runtime import precision
from pmcl.runtime.arguments import seed_of
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.devices import scope as device_scope
from pmcl.runtime.files import check_sum
from pmcl.search.search import Search
from pmcl.search.starts import from_draws

if TYPE_CHECKING:
    from distributed import Client


def refine(
    model: pm.Model | CompiledModel | None = None,
    data: TaskLike | None = None,
    *,
    draws: int = 1000,
    start: xr.DataTree | None = None,
    given: Mapping[str, ArrayLike] | None = None,
    refine: Refine | None = None,
    levels: bool | None = None,
    correct: CorrectLike = "psis",
    fallback: FallbackLike = "auto",
    var_names: list[str] | None = None,
    log_likelihood: bool = False,
    log_prior: bool = False,
    posterior_predictive: bool = False,
    store: str | os.PathLike | None = None,
    client: "Client | None" = None,
    devices: DevicesLike = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Approximate the posterior of every dataset without a network.

    Searches start from the prior, or from draws at hand; the modes they find, a local path
    gradient and importance weights do the rest, for all datasets in one compiled function.

    Parameters
    ----------
    model : pymc.Model or CompiledModel, optional
        None takes it from the context. With what :func:`compile_model` gives, later calls compile
        nothing: data that keep arriving are refined in milliseconds.
    data : xarray.Dataset, mapping or pandas.DataFrame, optional
        See :func:`pmcl.as_task`. Every `pm.Data` that it holds is a covariate. The model's own by
        default, unless all its observed values are equal.
    draws : int
        Draws per dataset.
    start : xarray.DataTree, optional
        Draws to start from: a result of `sample`, `sample_reference` or `refine` for the same
        datasets, in the same order; of this model, or of another one with the same variables (one
        with another prior, say). From a `store` some draws of each are read.
    given : mapping of str to array, optional
        Values of some free variables that are known, by name: one value for all datasets, or one
        each (leading dim `dataset`). Of a variable with independent entries some may be known, NaN
        leaves the others open: they are drawn as `<name>_unobserved`, and the variable is there as
        a whole, too. The posterior of the others is drawn, given data and these:
        conditioning, no intervention, so that what is known of one level of a model tells of the
        levels above. What is known stands in `constant_data`; the evidence is that of data and
        known values together.
    refine : Refine, optional
        Hyper-parameters.
    levels : bool, optional
        Whether to look for the levels of a multilevel model, and to integrate its groups out; by
        default they are looked for. False: all parameters are refined alike. True: an error where
        there are none. The results' attribute `levels` says what was found.
    correct : "psis" or None
        How draws come to count alike, as in `AmortizedPosterior.sample`. None keeps the proposal's
        draws, to be weighted by `log_weight`.
    fallback : "auto", "nuts" or None
        NUTS for the datasets whose posterior does not stand, as in `AmortizedPosterior.sample`.
    var_names : list of str, optional
        Variables of the group `posterior`; all free variables and deterministics by default.
    log_likelihood, log_prior, posterior_predictive : bool
        Add the group of that name, as `AmortizedPosterior.sample` does.
    store : path, optional
        A new folder, as in `AmortizedPosterior.sample`. An interrupted call is gone on with where
        `random_seed` is given.
    client : distributed.Client, optional
        The Dask cluster to work on, as in `AmortizedPosterior.sample`.
    devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
        What datasets are spread over; JAX's default device by default.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        In the layout of `AmortizedPosterior.sample`.

    Raises
    ------
    UnsupportedModelError, DataError
        As `fit_amortized` and `sample` do.
    ValueError
        Naming the argument that has none of the values above; where `start` has draws of another
        number of datasets.

    Warns
    -----
    UserWarning
        Naming the datasets whose k-hat says that the draws should not be trusted.
    """
    if levels not in (None, True, False):
        raise ValueError(f"levels: expected None, True or False, got {levels!r}.")
    seed = seed_of(random_seed, None)
    if isinstance(model, CompiledModel):
        compiled = model
        if data is None:
            own = [i.name for i in compiled.covariates]
            data = own_data(compiled.model, own, say=progressbar)
    else:
        model = model_or_context(model)
        covariates = () if data is None else covariates_among(model, data)
        data = own_data(model, say=progressbar) if data is None else data
        compiled = compile_model(model, covariates=covariates)
    need_density(compiled, "refine")
    whole, known, row = compiled, None, next(iter(compiled.shared_dims), None)
    if given is not None:
        known = conditioned(compiled, task_of(compiled, data), given)
        compiled, data = known.compiled, known.task
    asked = asked_of(
        compiled,
        Ways(True if refine is None else refine, correct, fallback),
        draws,
        seed=seed,
        var_names=var_names,
        extra=Extra(log_likelihood, log_prior, posterior_predictive),
        stored=store is not None,
    )
    if store is None:
        need_store(client)
        task = as_task(data, Layout.of(compiled, row))
        z, names = _given(whole, start, len(task), known, seed), task.names
        prior = prior_draws(compiled, task.dataset(0), FEWEST_STARTS, seed=seed)
        job = RefineJob(compiled, prior, asked, devices, levels, task.layout.row)
        tree = job.refined(task, z, progressbar=progressbar)
    else:
        check_devices(client, devices)
        each = partial(bytes_of, compiled, asked.draws, asked.names, terms=asked.extra.terms)
        layout = Layout.of(compiled, row)
        parts = Parts.of(data, layout, each)
        prior = prior_draws(compiled, parts.first(layout), FEWEST_STARTS, seed=seed)
        z = _given(whole, start, len(parts), known, seed)
        job = RefineJob(compiled, prior, asked, devices, levels, row, z)
        tree, _ = run(job, parts, store, client=client, progressbar=progressbar)
        names = parts.names
    warn_of_doubts(names, tree)
    return tree


@dataclass(frozen=True, eq=False)
class RefineJob(Job):
    """Refinement without a network, part by part.

    Attributes
    ----------
    compiled : CompiledModel
    prior : array of shape (draw, dim)
        What searches start from.
    asked : Asked
    devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
    levels : bool, optional
        Whether levels are looked for; True: there have to be some.
    row : str, optional
        The dim along which datasets may have different lengths.
    starts : array of shape (dataset, draw, dim), optional
        Draws at hand of all datasets; searches start there.
    """

    description: ClassVar[str] = "Refining"

    compiled: CompiledModel
    prior: np.ndarray
    asked: Asked
    devices: DevicesLike
    levels: bool | None = None
    row: str | None = None
    starts: np.ndarray | None = None

    @property
    def layout(self) -> Layout:
        """What a dataset looks like."""
        return Layout.of(self.compiled, self.row)

    def label(self) -> dict[str, Any]:
        """Tell this job by what was asked for."""
        known = None if self.starts is None else check_sum(self.starts)
        return {"refine": repr(self.asked), "levels": self.levels, "start": known}

    def work(self, task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        """Refine, silently."""
        some = slice(task.first, task.first + len(task))
        start = None if self.starts is None else self.starts[some]
        return self.refined(task, start, progressbar=False), {}

    def refined(self, task: Task, start: np.ndarray | None, *, progressbar: bool) -> xr.DataTree:
        """Refine the datasets of a task, from draws (dataset, draw, dim) or from the prior."""
        task = check_possible(self.compiled, check_masked(self.compiled, task))
        begin = time.perf_counter()
        with precision.scope(), device_scope(self.devices):
            density = Density(self.compiled, task.layout.row)
            settings = self.asked.refine
            assert settings is not None
            search = Search.of(density, self.compiled.initial, self.prior, starts=settings.starts)
            if start is not None:
                known = np.zeros(start.shape[:2])
                centre = np.asarray(search.starts)[0]
                start = from_draws(start, known, centre, settings.starts)
            levels = self._levels(density, task)
            beginning = Beginning(search, start)
            if isinstance(levels, Levels):
                beginning = beginning.along(levels.shared)
            corrected = corrected_task(
                density,
                None,
                task,
                None,
                beginning,
                self.asked,
                levels=levels if isinstance(levels, Levels) else None,
                progressbar=progressbar,
            )
            tree = as_tree(self.compiled, task, corrected, self.asked, begin=begin)
        tree["posterior"].attrs["levels"] = levels_told(levels, tree)
        return tree

    def _levels(self, density: Density, task: Task) -> Levels | NoLevels:
        """Find the levels of the model for these datasets, about the model's initial point."""
        if self.levels is False:
            return NoLevels("no levels: switched off")
        found = find(density, task, self.compiled.initial, block=True)
        if self.levels and isinstance(found, NoLevels):
            raise UnsupportedModelError(f"levels=True: expected a multilevel model; {found}.")
        return found


def _given(
    compiled: CompiledModel,
    start: xr.DataTree | None,
    number: int,
    known: Conditioned | None,
    seed: int,
) -> np.ndarray | None:
    """Return some draws at hand of all datasets, (dataset, draw, dim), read part by part."""
    if start is None:
        return None
    tree = by_dataset(start)
    sizes = tree["posterior" if "posterior" in tree.children else UNCONSTRAINED].sizes
    if sizes[DATASET] != number:
        raise ValueError(f"start: expected draws of {number} datasets, got {sizes[DATASET]}.")
    which = np.random.default_rng(seed).integers(sizes["chain"] * sizes["draw"], size=FEWEST_STARTS)
    parts = []
    for begin in range(0, number, TOGETHER):
        some = some_of(tree, slice(begin, begin + TOGETHER))
        z = z_of(compiled, some, "start")
        parts.append(np.moveaxis(z.reshape(-1, *z.shape[2:]), 0, 1)[:, which])
    z = np.concatenate(parts)
    # what another support does not have starts at the model's initial point
    z = np.where(np.isfinite(z).all(axis=-1, keepdims=True), z, compiled.initial)
    return z if known is None else known.starts(z)
