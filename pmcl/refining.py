"""Refinement without a network: approximate posteriors of many datasets of a PyMC model."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pmcl import sampling
from pmcl.batching import check_masked
from pmcl.cluster import (
    Engine,
    Parts,
    Work,
    about_model,
    bytes_of,
    check_devices,
    need_store,
    run,
)
from pmcl.compile import CompiledModel, Density, compile_model, precision
from pmcl.compile.graphs import to_host
from pmcl.compile.refuse import model_or_context
from pmcl.correction import CorrectLike, FallbackLike, engine_of, finished, way_of
from pmcl.correction import correct as corrected_task
from pmcl.data import Layout, Task, TaskLike
from pmcl.devices import DevicesLike
from pmcl.devices import scope as device_scope
from pmcl.posterior import positive, seed_of
from pmcl.prediction import Extra, extra_groups
from pmcl.reference.posterior import covariates_among, layout_of, task_of
from pmcl.refinement import FEWEST_STARTS, Refine
from pmcl.results import flat_z, posterior_tree, warn_of_doubts

if TYPE_CHECKING:
    from distributed import Client


def refine(
    model: pm.Model | CompiledModel | None,
    data: TaskLike,
    *,
    draws: int = 1000,
    start: xr.DataTree | None = None,
    refine: Refine | None = None,
    correct: CorrectLike = "psis",
    fallback: FallbackLike = None,
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
    data : xarray.Dataset, mapping or pandas.DataFrame
        See :func:`pmcl.as_task`. Every `pm.Data` that it holds is a covariate.
    draws : int
        Draws per dataset.
    start : xarray.DataTree, optional
        Draws to start from: a result of `sample`, `sample_reference` or `refine` for the same
        datasets, in the same order.
    refine : Refine, optional
        Hyper-parameters.
    correct : "psis", "imh" or None
        How draws come to count alike, as in `AmortizedPosterior.sample`. None keeps the proposal's
        draws, to be weighted by `log_weight`.
    fallback : "nuts" or None
        NUTS for the datasets whose k-hat is too high, from the best draws at hand.
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

    Warns
    -----
    UserWarning
        Naming the datasets whose k-hat says that the draws should not be trusted.
    """
    seed = seed_of(random_seed, None)
    if isinstance(model, CompiledModel):
        compiled = model
    else:
        model = model_or_context(model)
        compiled = compile_model(model, covariates=covariates_among(model, data))
    asked = _Asked(
        positive("draws", draws),
        Refine() if refine is None else refine,
        way_of(correct, fallback, draws, refined=True),
        fallback,
        sampling.pick(compiled, var_names),
        seed,
        devices,
        Extra(log_likelihood, log_prior, posterior_predictive),
    )
    if store is None:
        need_store(client)
        task = task_of(compiled, data)
        prior = _prior(compiled, task.dataset(0), seed)
        z = None if start is None else _given(compiled, start, len(task), seed)
        tree = _refined(compiled, prior, asked, task, z, progressbar=progressbar)
        names: tuple[str, ...] = task.names
    else:
        if start is not None:
            raise ValueError("start: expected none where results go to a `store`, part by part.")
        check_devices(client, devices)
        layout = layout_of(compiled)
        each = partial(bytes_of, compiled, asked.draws, asked.names, terms=asked.extra.terms)
        parts = Parts.of(data, layout, each)
        prior = _prior(compiled, parts.first(layout), seed)
        work = RefineWork(compiled.model, tuple(i.name for i in compiled.covariates), prior, asked)
        tree, _ = run(
            work,
            layout,
            engine(compiled, prior, asked),
            parts,
            store,
            client=client,
            about={
                "refine": repr(asked._replace(devices=None)),
                **about_model(compiled, parts.first(layout)),
            },
            whole=parts.whole(compiled),
            description="Refining",
            progressbar=progressbar,
        )
        names = parts.names
    warn_of_doubts(names, tree)
    return tree


class _Asked(NamedTuple):
    """What a user asked `refine` for; see there."""

    draws: int
    refine: Refine
    way: CorrectLike
    fallback: FallbackLike
    names: tuple[str, ...]
    seed: int
    devices: DevicesLike
    extra: Extra


@dataclass(frozen=True)
class RefineWork(Work):
    """Refinement without a network, on the workers of a cluster.

    Attributes
    ----------
    model : pymc.Model
    covariates : tuple of str
    prior : array of shape (draw, dim)
        What searches start from.
    asked
    """

    model: pm.Model
    covariates: tuple[str, ...]
    prior: np.ndarray
    asked: _Asked

    def prepare(self) -> tuple[Layout, Engine]:
        compiled = compile_model(self.model, covariates=self.covariates)
        return layout_of(compiled), engine(compiled, self.prior, self.asked)


def engine(compiled: CompiledModel, prior: np.ndarray, asked: _Asked) -> Engine:
    """Return what refines a part."""

    def work(task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        return _refined(compiled, prior, asked, task, None, progressbar=False), {}

    return work


def _refined(
    compiled: CompiledModel,
    prior: np.ndarray,
    asked: _Asked,
    task: Task,
    start: np.ndarray | None,
    *,
    progressbar: bool,
) -> xr.DataTree:
    task = check_masked(compiled, task)
    begin = time.perf_counter()
    with precision.scope(), device_scope(asked.devices):
        corrected = corrected_task(
            Density(compiled, task.layout.row),
            None,
            task,
            None,
            asked.refine,
            everywhere=True,
            start=np.broadcast_to(prior, (len(task), *prior.shape)) if start is None else start,
            centre=np.median(prior, axis=0),
            spread=np.maximum(np.std(prior, axis=0), 1e-6),
            draws=asked.draws,
            way=asked.way,
            fallback=asked.fallback,
            seed=asked.seed,
            progressbar=progressbar,
        )
        found = finished(compiled, task, corrected, asked.names, begin)
        z = np.asarray(corrected.drawn.z)
        extra = extra_groups(compiled, task, z, asked.extra, seed=asked.seed)
    return posterior_tree(compiled, task, found, engine=engine_of(found), extra=extra)


def _given(compiled: CompiledModel, start: xr.DataTree, number: int, seed: int) -> np.ndarray:
    """Return draws at hand, of shape (dataset, draw, dim)."""
    given = flat_z(compiled, start)
    if given.shape[2] != number:
        raise ValueError(f"start: expected draws of {number} datasets, got {given.shape[2]}.")
    z = np.moveaxis(given.reshape(-1, *given.shape[2:]), 0, 1)
    return z[:, np.random.default_rng(seed).integers(z.shape[1], size=FEWEST_STARTS)]


def _prior(compiled: CompiledModel, dataset: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Draws of z from the prior, of shape (draw, dim), non-finite ones left out."""
    names, model = [i.name for i in compiled.free], compiled.model
    seeded = compiled.keep("prior", lambda: to_host([], [model[n] for n in names]))
    draw = seeded(np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        drawn = [draw() for _ in range(FEWEST_STARTS)]
    values = {n: np.stack([d[i] for d in drawn]) for i, n in enumerate(names)}
    with precision.scope():
        needed = {n: dataset[n] for n in compiled.needed_to_unconstrain}
        z = np.asarray(sampling.unconstrain(compiled, values, needed))
    return z[np.isfinite(z).all(axis=1)]
