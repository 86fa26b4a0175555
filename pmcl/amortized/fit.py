"""Fit: from a PyMC model to a pretrained amortized posterior."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import jax
import numpy as np
import pymc as pm

from pmcl.amortized.groups import prepared
from pmcl.amortized.levels import Fit, reading_of, untrained
from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.amortized.simulating import all_sources, masking_of, simulator_of
from pmcl.compile import (
    CompiledModel,
    Density,
    make_simulator,
    read_covariates,
)
from pmcl.compile.covariates import SourcesLike
from pmcl.compile.labelled import model_or_context
from pmcl.compile.made import SimulatorFunction
from pmcl.compile.size import say_parameters
from pmcl.data.masked import check_masked
from pmcl.data.simulated import simulated_task
from pmcl.data.sources import aligned_sources
from pmcl.data.task import Batch, DataError
from pmcl.networks import (
    AbstractSummary,
    InputLayout,
    Network,
    build_amortizer,
    default_network,
    read_structure,
)
from pmcl.networks.familiarity import familiar_inputs
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive, positive_rate, seed_of
from pmcl.runtime.devices import DevicesLike, mesh_of, settled
from pmcl.runtime.devices import scope as device_scope
from pmcl.runtime.progress import working
from pmcl.search.many import narrowed
from pmcl.search.search import POOL, Search
from pmcl.training import PretrainingSettings, Simulated, pretrain
from pmcl.training.bank import FEWEST
from pmcl.training.pretraining import BLOCK
from pmcl.training.run import Callback

_LOOKED_AT = 100  # simulations whose indices are checked
_STEPS, _STEPS_ALONE = 1500, 6000  # with a search, and without
_STANDARD = 1000  # simulations by which inputs and parameters are standardised
_BANK = 4096  # simulations that are made once
_LABELS = 16
_STARTS = 16  # of searches, of which those that find something are kept
_BYTES = 2**30  # of all of them, at most


def fit_amortized(
    model: pm.Model | None = None,
    *,
    covariates: SourcesLike | None = None,
    exchangeable: str | None = None,
    sequence: str | None = None,
    network: Network | AbstractSummary | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    simulations: int | None = None,
    labels: int | None = None,
    learning_rate: float = 1e-3,
    warmup: int = 50,
    clip: float = 1.0,
    validation: int = 512,
    patience: int | None = 4,
    simulator: SimulatorFunction | None = None,
    backend: Literal["auto", "jax", "pytensor"] = "auto",
    levels: bool | None = None,
    groups: tuple[int, int] | None = None,
    lengths: tuple[int, int] | None = None,
    missing: float = 0.0,
    checkpoint: str | os.PathLike | None = None,
    callback: Callback | None = None,
    devices: DevicesLike = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> AmortizedPosterior | MultilevelPosterior:
    """Compile a PyMC model, derive its simulator and train an amortized posterior on simulations.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context when not given. Observed values are placeholders: only their shape
        and type matter.
    covariates : mapping, xarray.Dataset, pandas.DataFrame or sequence of str, optional
        For each `pm.Data` that changes from dataset to dataset, where simulated ones come from: a
        PyMC distribution of one entry or one row (``pm.Normal.dist(0, 1)``), an array to resample
        rows or whole datasets from, or a function of a `numpy.random.Generator` and a length. Of
        names alone, rows of the values that the model has are resampled. Any other `pm.Data` is a
        constant.
    exchangeable, sequence : str, optional
        The dim of the observed variables along which order does not matter, or does. Found by
        itself where the likelihood makes it certain.
    network : Network or AbstractSummary, optional
        The default follows from the data: `DeepSet`, `Recurrent` or `Flatten`, and `CouplingFlow`;
        whitened: a search of the density finds the mode and the scale of each dataset's posterior,
        and the network learns what is left. ``Network(whiten=False)`` learns all of it.
    steps : int, optional
        Most training steps: 1,500 by default, and 6,000 where nothing is searched
        (``whiten=False``, or no likelihood) and the network has all to learn.
    batch_size : int
        Simulations in each step.
    simulations : int, optional
        So many are made once, with their searches, a tenth of them at most held back for
        `validation`, and seen again and again: 4,096 by default, fewer where they are large. For a
        network that is not whitened every step has fresh ones by default.
    labels : int, optional
        Posterior draws that a simulation is learned by: its own parameters, and draws of the
        network, weighed by the density. 16 by default, 1 where nothing is whitened.
    learning_rate, warmup, clip
        Highest rate of Adam, steps of warm-up before cosine decay, largest gradient norm.
    validation : int
        Simulations held back, by whose loss the best weights are chosen.
    patience : int, optional
        Stop after this many blocks of 100 steps without a better validation loss; None: never.
    simulator : callable, optional
        Makes the data in place of the model's distributions, for a model whose density is known
        and that cannot be simulated (`pm.Potential`, a `pm.CustomDist` with only `logp`): a
        function of the free variables and covariates by name and a `numpy.random.Generator`, that
        returns the observed variables, and any `pm.Data` that hold data, by name. Simulations are
        weighed by the Potentials of parameters alone.
    backend : {"auto", "jax", "pytensor"}
        Where simulations are made; "auto" takes JAX where it can sample the model.
    levels : bool, optional
        Whether to look for the levels of a multilevel model, whose network is one for what its
        groups share; by default they are looked for. False: all parameters are learned alike.
        True: an error where there are none.
    groups : tuple of int, optional
        Smallest and largest number of groups that the network of a multilevel model is trained over
        (log-uniform between); by default all datasets have the model's own. Data that say to which
        group a row belongs then need no source.
    lengths : tuple of int, optional
        Shortest and longest dataset, along the exchangeable or sequence dim, that the network is
        trained over (log-uniform between); by default all have the model's own length. Tables of
        whole datasets, as a covariate's source, have to be of the longest.
    missing : float
        Mean fraction of observed values that are missing in training. Real data may have gaps
        (NaN) without it: the densities leave them out in any case, and the network takes a row
        without any observation for none.
    checkpoint : path, optional
        Written after every block; training goes on from it where it exists. What searches found
        lies beside it, in a file whose name ends with `.searches`.
    callback : callable, optional
        Called after every block with the step, the validation loss and a record of all losses so
        far; training ends where it returns True or raises StopIteration.
    devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
        What each step's simulations are spread over, the weights being on each; JAX's default
        device by default. Results are those of one device, to rounding.
    random_seed : int, optional
        Same seed, same weights.
    progressbar : bool

    Returns
    -------
    AmortizedPosterior or MultilevelPosterior
        The latter where the model has levels.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be compiled or simulated, naming the variable and the way out.
    ValueError
        If a covariate's source does not fit, naming it.
    DataError
        If the likelihood cannot leave out what `lengths` or `missing` would leave out.
    """
    if levels not in (None, True, False):
        raise ValueError(f"levels: expected None, True or False, got {levels!r}.")
    if groups is not None and (levels is False or simulator is not None):
        raise ValueError("groups: expected none with levels=False, or with a `simulator`.")
    model = model_or_context(model)
    seed = seed_of(random_seed, None)
    mesh_of(devices)  # a wrong one is refused before anything is compiled
    settings = PretrainingSettings(
        steps=_STEPS if steps is None else positive("steps", steps),
        batch_size=positive("batch_size", batch_size),
        learning_rate=positive_rate(learning_rate),
        warmup=warmup,
        clip=clip,
        validation=positive("validation", validation),
        patience=patience,
        block=BLOCK,
        simulations=None if simulations is None else _budget(simulations),
        labels=1 if labels is None else positive("labels", labels),
    )
    with precision.scope():
        with working("Compiling the model", enabled=progressbar):
            ready = None if groups is None else prepared(model, covariates, groups)
            if ready is not None:
                model, covariates = ready.model, ready.covariates
            source = simulator_of(model, covariates, backend=backend, function=simulator)
            compiled = source.compiled
            structure = read_structure(
                compiled, source, exchangeable=exchangeable, sequence=sequence
            )
            masking = masking_of(structure, lengths, missing)
            if masking:
                infos = masking.sized(compiled.covariates)
                sources = aligned_sources(compiled, all_sources(model, covariates, simulator))
                source = make_simulator(
                    compiled,
                    read_covariates(sources, infos),
                    backend=backend,
                    masking=masking,
                    function=simulator,
                )
                _, few = simulated_task(source, structure.row, 8, random_seed=seed)
                check_masked(compiled, few)
            chosen = default_network(structure, network, compiled)
            if steps is None:
                most = _STEPS if chosen.whiten else _STEPS_ALONE
                settings = replace(settings, steps=most)
            number = _STANDARD if simulations is None else min(simulations, _STANDARD)
            first = Simulated.of(source, number, random_seed=seed)
            first = jax.tree.map(np.asarray, first)
            _check_indices(compiled, first.data)
            fit = Fit(source, structure, chosen, settings, seed, ready)
            if chosen.whiten:
                settings = replace(
                    settings,
                    simulations=simulations or _bank_size(first),
                    labels=_LABELS if labels is None else labels,
                )
                fit = fit._replace(settings=settings)
            reading = reading_of(fit, first, network, levels)
            posterior: AmortizedPosterior | MultilevelPosterior
            posterior = _flat(fit, first) if reading is None else untrained(fit, reading, first)
        if progressbar:
            print(posterior)  # noqa: T201  (what was chosen is shown, as PyMC shows its samplers)
        with device_scope(devices):
            amortizer, record = pretrain(
                posterior.amortizer,
                source,
                settings,
                seed=seed,
                bank=posterior.bank(checkpoint, progressbar=progressbar),
                checkpoint=checkpoint,
                callback=callback,
                progressbar=progressbar,
            )
        amortizer = settled(amortizer)
    return replace(posterior, amortizer=amortizer, pretraining=(record,))


def _flat(fit: Fit, first: Simulated) -> AmortizedPosterior:
    """A posterior of all parameters alike, whose network is as it was made."""
    compiled, row, chosen = fit.source.compiled, fit.structure.row, fit.network
    search = None
    say_parameters(compiled, sum(math.prod(i.shape) for i in compiled.observed), "fit_amortized")
    if chosen.whiten:
        density = Density(compiled, row)
        prior = np.asarray(first.z)
        search = Search.of(density, compiled.initial, prior, starts=_STARTS)
        search = narrowed(search, Batch(first.data, first.mask), lambda: _pool(fit))
    inputs = InputLayout.of(
        compiled.data,
        row,
        masking=fit.source.masking,
        observed=len(compiled.observed),
        times=fit.structure.times,
    )
    z, data, gaps, _ = jax.tree.map(np.asarray, first)
    amortizer = build_amortizer(
        chosen, inputs, z, data, key=jax.random.key(fit.seed), search=search
    )
    familiar = familiar_inputs(amortizer, data, gaps)
    return AmortizedPosterior(
        compiled,
        fit.source,
        fit.structure,
        chosen,
        amortizer,
        fit.settings,
        fit.seed,
        familiar=familiar,
    )


def _pool(fit: Fit) -> np.ndarray:
    """Draws of the prior of which no simulation was made that is learned from.

    A search that begins at the truth would find what it never finds in use.
    """
    seed = np.random.SeedSequence([fit.seed, 2]).generate_state(1)[0] >> 1
    return np.asarray(Simulated.of(fit.source, POOL, random_seed=int(seed)).z)


def _bank_size(few: Simulated) -> int:
    """How many simulations of this size are made once."""
    each = sum(np.asarray(x).nbytes for x in jax.tree.leaves(few)) / len(few.z)
    return int(np.clip(_BYTES // max(each, 1), 256, _BANK))


def _check_indices(compiled: CompiledModel, data: Mapping[str, np.ndarray]) -> None:
    """Refuse sources of covariates that index what is not there."""
    for i in range(min(_LOOKED_AT, len(next(iter(data.values()))))):
        try:
            misplaced = compiled.indices.misplaced({k: v[i] for k, v in data.items()})
        except IndexError as error:
            raise DataError(
                f"covariates: simulated values index what is not there: {error}"
            ) from error
        if misplaced is not None:
            name = misplaced.place.data
            raise DataError(f"covariates: simulated values of {name!r} do not fit: {misplaced}")


def _budget(simulations: int) -> int:
    if simulations < FEWEST:
        raise ValueError(
            f"simulations: expected at least {FEWEST}, of which a tenth is held back, got "
            f"{simulations}."
        )
    return simulations
