"""Refinement without a network: approximate posteriors of many datasets of a PyMC model."""

import time

import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr

from pmcl import sampling
from pmcl.batching import check_masked
from pmcl.compile import CompiledModel, Density, compile_model, precision
from pmcl.compile.graphs import host_mode
from pmcl.compile.refuse import model_or_context
from pmcl.correction import CorrectLike, FallbackLike, engine_of, finished, way_of
from pmcl.correction import correct as corrected_task
from pmcl.data import Task, TaskLike
from pmcl.posterior import positive, seed_of
from pmcl.reference.posterior import covariates_among, task_of
from pmcl.refinement import FEWEST_STARTS, Refine
from pmcl.results import flat_z, posterior_tree, warn_of_khat


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
    positive("draws", draws)
    way = way_of(correct, fallback, refined=True)
    seed = seed_of(random_seed, None)
    if isinstance(model, CompiledModel):
        compiled = model
    else:
        model = model_or_context(model)
        compiled = compile_model(model, covariates=covariates_among(model, data))
    task = task_of(compiled, data)
    check_masked(compiled, task)
    names = sampling.pick(compiled, var_names)
    begin = time.perf_counter()
    with precision.scope():
        prior = _prior(compiled, task, seed)
        z = np.broadcast_to(prior, (len(task), *prior.shape))
        if start is not None:
            given = flat_z(compiled, start)
            if given.shape[2] != len(task):
                raise ValueError(
                    f"start: expected draws of {len(task)} datasets, got {given.shape[2]}."
                )
            z = np.moveaxis(given.reshape(-1, *given.shape[2:]), 0, 1)
            z = z[:, np.random.default_rng(seed).integers(z.shape[1], size=FEWEST_STARTS)]
        corrected = corrected_task(
            Density(compiled, task.layout.row),
            None,
            task,
            None,
            Refine() if refine is None else refine,
            everywhere=True,
            start=z,
            centre=np.median(prior, axis=0),
            spread=np.maximum(np.std(prior, axis=0), 1e-6),
            draws=draws,
            way=way,
            fallback=fallback,
            seed=seed,
            progressbar=progressbar,
        )
        found = finished(compiled, task, corrected, names, begin)
    warn_of_khat(task.names, found.dataset_stats)
    return posterior_tree(compiled, task, found, engine=engine_of(found))


def _prior(compiled: CompiledModel, task: Task, seed: int) -> np.ndarray:
    """Draws of z from the prior, of shape (draw, dim), non-finite ones left out."""
    names = [i.name for i in compiled.free]
    drawn = pm.draw(
        [compiled.model[n] for n in names], FEWEST_STARTS, mode=host_mode(), random_seed=seed
    )
    covariates = {k: jnp.asarray(v) for k, v in task.dataset(0).items()}
    values = {n: jnp.asarray(v) for n, v in zip(names, drawn, strict=True)}
    z = np.asarray(sampling.unconstrain(compiled, values, covariates))
    return z[np.isfinite(z).all(axis=1)]
