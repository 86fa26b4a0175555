"""Fit: from a PyMC model to a pretrained amortized posterior."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import jax
import pymc as pm
import xarray as xr

from pmcl.compile import Simulator, compile_model, make_simulator, precision, read_covariates
from pmcl.compile.covariates import Source
from pmcl.compile.refuse import check_finite
from pmcl.networks import (
    AbstractSummary,
    InputLayout,
    Network,
    build_amortizer,
    default_network,
    read_structure,
)
from pmcl.posterior import AmortizedPosterior, positive, seed_of
from pmcl.training import PretrainingSettings, pretrain


def fit_amortized(
    model: pm.Model | None = None,
    *,
    covariates: Mapping[str, Source] | xr.Dataset | None = None,
    exchangeable: str | None = None,
    sequence: str | None = None,
    network: Network | AbstractSummary | None = None,
    steps: int = 4000,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    warmup: int = 200,
    clip: float = 1.0,
    validation: int = 512,
    patience: int | None = None,
    simulator: Literal["auto", "jax", "pytensor"] = "auto",
    checkpoint: str | os.PathLike | None = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> AmortizedPosterior:
    """Compile a PyMC model, derive its simulator and train an amortized posterior on simulations.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context when not given. Observed values are placeholders: only their shape
        and type matter.
    covariates : mapping or xarray.Dataset, optional
        For each `pm.Data` that changes from dataset to dataset, where simulated ones come from: a
        PyMC distribution of one entry or one row (``pm.Normal.dist(0, 1)``), an array to resample
        rows or whole datasets from, or a function of a `numpy.random.Generator` and a length. Any
        other `pm.Data` is a constant.
    exchangeable, sequence : str, optional
        The dim of the observed variables along which order does not matter, or does. Found by
        itself where the likelihood makes it certain.
    network : Network or AbstractSummary, optional
        The default follows from the data: `DeepSet`, `Recurrent` or `Flatten`, and `CouplingFlow`.
    steps, batch_size : int
        Training steps, and fresh simulations in each.
    learning_rate, warmup, clip
        Highest rate of Adam, steps of warm-up before cosine decay, largest gradient norm.
    validation : int
        Fresh simulations by whose loss the best weights are chosen.
    patience : int, optional
        Stop after this many blocks of 100 steps without a better validation loss.
    simulator : {"auto", "jax", "pytensor"}
        Where simulations are made; "auto" takes JAX where it can sample the model.
    checkpoint : path, optional
        Written after every block; training goes on from it where it exists.
    random_seed : int, optional
        Same seed, same weights.
    progressbar : bool

    Returns
    -------
    AmortizedPosterior

    Raises
    ------
    UnsupportedModelError
        If the model cannot be compiled or simulated, naming the variable and the way out.
    ValueError
        If a covariate's source does not fit, naming it.
    """
    model = pm.modelcontext(model)
    seed = seed_of(random_seed, None)
    settings = PretrainingSettings(
        steps=positive("steps", steps),
        batch_size=positive("batch_size", batch_size),
        learning_rate=learning_rate,
        warmup=warmup,
        clip=clip,
        validation=positive("validation", validation),
        patience=patience,
        block=100,
    )
    with precision.scope():
        source = simulator_of(model, covariates, backend=simulator)
        compiled = source.compiled
        structure = read_structure(compiled, source, exchangeable=exchangeable, sequence=sequence)
        chosen = default_network(structure, network)
        z, data = source.simulate(1000, random_seed=seed)
        amortizer = build_amortizer(
            chosen,
            InputLayout.of(compiled.data, structure.row),
            z,
            data,
            key=jax.random.key(seed),
        )
        posterior = AmortizedPosterior(
            compiled, source, structure, chosen, amortizer, settings, seed
        )
        if progressbar:
            print(posterior)  # noqa: T201  (what was chosen is shown, as PyMC shows its samplers)
        amortizer, record = pretrain(
            amortizer, source, settings, seed=seed, checkpoint=checkpoint, progressbar=progressbar
        )
    return replace(posterior, amortizer=amortizer, pretraining=(record,))


def simulator_of(
    model: pm.Model,
    covariates: Mapping[str, Source] | xr.Dataset | None,
    *,
    backend: Literal["auto", "jax", "pytensor"] = "auto",
) -> Simulator:
    """Compile a model and derive its simulator, with all that is refused refused.

    Raises
    ------
    UnsupportedModelError, ValueError
        As :func:`fit_amortized` does.
    """
    compiled = compile_model(model, covariates=tuple(map(str, covariates or ())))
    read = read_covariates(covariates, compiled.covariates)
    simulator = make_simulator(compiled, read, backend=backend)
    check_finite(simulator)
    return simulator
