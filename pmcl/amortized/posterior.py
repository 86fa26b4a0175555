"""The amortized posterior of a PyMC model: fit, adapt, sample."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.amortized.adapting import Adapting, Begun
from pmcl.amortized.given import sample_given
from pmcl.amortized.sample import SampleJob
from pmcl.amortized.sampler import Sampler, warn_of_far
from pmcl.compile import CompiledModel, Simulator
from pmcl.compile.simulable import need_density
from pmcl.continual import (
    Occasion,
    StrategyLike,
    StrategyState,
    TaskRecord,
)
from pmcl.data.own import own_data
from pmcl.data.task import Task, TaskLike
from pmcl.draws.network import log_q
from pmcl.draws.prediction import Extra, predictions_groups
from pmcl.draws.results import flat_z, log_q_at, warn_of_doubts
from pmcl.networks import Amortizer, Network, Structure
from pmcl.networks.familiarity import Familiar
from pmcl.parts.datasets import Parts
from pmcl.parts.job import bytes_of, check_devices, need_store
from pmcl.parts.run import run
from pmcl.reference.warm_start import MetricLike, WarmStart, warm_starts
from pmcl.refinement.settings import (
    CorrectLike,
    FallbackLike,
    RefineLike,
    Ways,
    asked_of,
)
from pmcl.runtime import precision
from pmcl.runtime.arguments import seed_of
from pmcl.runtime.devices import DevicesLike
from pmcl.training import Bank, PretrainingRecord, PretrainingSettings, bank_of

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class AmortizedPosterior(Adapting):
    """Posterior of any dataset of one PyMC model, by one pass through a network.

    Made by :func:`fit_amortized`. Immutable: `adapt` and `pretrain` return new posteriors.

    Attributes
    ----------
    compiled : CompiledModel
    simulator : Simulator
        Its `repr` says where simulations are made.
    structure : Structure
        How a dataset is read, and why.
    network : Network
        Specification of the network.
    amortizer : Amortizer
        The weights.
    settings : PretrainingSettings
        Of `fit_amortized`; :meth:`pretrain` goes on with them.
    seed : int
        What later calls without a `random_seed` follow from.
    strategy : AbstractStrategy, tuple or None
        What is in force; None before the first adaptation.
    states : tuple of StrategyState
        What strategies have stored.
    pretraining : tuple of PretrainingRecord
    pretrained : Amortizer or None
        The weights before the first adaptation.
    records : tuple of TaskRecord
        One entry an adaptation, oldest first; `history` shows them.
    familiar : Familiar or None
        What the inputs of simulations are like; `sample` and `adapt` warn of data far from them.
    """

    compiled: CompiledModel
    simulator: Simulator
    structure: Structure
    network: Network
    amortizer: Amortizer = field(repr=False)
    settings: PretrainingSettings = field(repr=False)
    seed: int
    strategy: StrategyLike | None = None
    states: tuple[StrategyState, ...] = field(default=(), repr=False)
    pretraining: tuple[PretrainingRecord, ...] = field(default=(), repr=False)
    pretrained: Amortizer | None = field(default=None, repr=False)
    records: tuple[TaskRecord, ...] = field(default=(), repr=False)
    familiar: Familiar | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        tasks = ", ".join(t.name for t in self.records) or "none"
        steps = sum(r.steps for r in self.pretraining)
        return (
            f"AmortizedPosterior of {[i.name for i in self.compiled.free]} "
            f"given {[i.name for i in self.compiled.data]}\n"
            f"  data: {self.structure}\n"
            f"  simulations: {self.simulator!r}\n"
            f"  network: {self.network.summary!r}, {self.network.flow!r}\n"
            f"  pretrained for {steps} steps; adapted to: {tasks}\n"
            f"  strategy: {self.strategy!r}; stored datasets: {len(self.memory)}"
        )

    @property
    def sampler(self) -> Sampler:
        """What draws: this posterior without its past."""
        return Sampler(
            self.compiled,
            self.structure,
            self.simulator.masking,
            self.network,
            self.amortizer,
            self.familiar,
        )

    def bank(
        self, checkpoint: str | os.PathLike | None = None, *, progressbar: bool
    ) -> Bank | None:
        """The simulations that pretraining sees again and again: the same ones every time.

        And how many were left out; None where every step has fresh ones. What searches found of
        them is kept beside the checkpoint of a training.
        """
        if self.settings.simulations is None:
            return None
        return bank_of(
            self.simulator,
            self.amortizer,
            self.density,
            self.settings.simulations,
            seed=self.seed,
            checkpoint=None if checkpoint is None else Path(f"{checkpoint}.searches"),
            progressbar=progressbar,
        )

    def _own(self, *, say: bool = True) -> dict[str, np.ndarray]:
        """The model's own data."""
        names = [i.name for i in self.compiled.covariates]
        return own_data(self.compiled.model, names, say=say)

    def _begun(
        self, name: str, task: TaskLike | None, pretrained: Amortizer, seed: int, *, say: bool
    ) -> Begun:
        sampler = self.sampler.remembering(self.memory)
        data = sampler.checked(self._own(say=say) if task is None else task)
        if self.amortizer.search is None:  # else the search tells where posteriors are
            warn_of_far(sampler.far(data), len(data), above=4)
        now = Occasion(
            name, data, self.amortizer, self.density, self.simulator, self.structure, seed
        )
        return Begun(now, pretrained, self.states, data)

    def _checked(self, task: TaskLike) -> Task:
        return self.sampler.checked(task)

    def sample(
        self,
        data: TaskLike | None = None,
        draws: int = 1000,
        *,
        model: pm.Model | CompiledModel | None = None,
        given: Mapping[str, ArrayLike] | None = None,
        refine: RefineLike = "auto",
        correct: CorrectLike = "auto",
        fallback: FallbackLike = "auto",
        var_names: Sequence[str] | None = None,
        random_seed: int | None = None,
        log_likelihood: bool = False,
        log_prior: bool = False,
        posterior_predictive: bool = False,
        store: str | os.PathLike | None = None,
        client: "Client | None" = None,
        devices: DevicesLike = None,
        progressbar: bool = False,
    ) -> xr.DataTree:
        """Draw from the posterior of every dataset.

        Parameters
        ----------
        data : xarray.Dataset, mapping or pandas.DataFrame, optional
            See :func:`pmcl.as_task`. The model's own by default, unless all its observed values are
            equal.
        draws : int
            Independent draws per dataset: one chain, for which r-hat is not defined.
        model : pymc.Model or CompiledModel, optional
            Another model of the same variables - another prior, another constant in the likelihood
            - whose posterior is drawn with no training: searches, weights and refinement go by its
            density, the network's flow is the one there is. A `pm.Data` of it that the network
            does not know may come with the data.
        given : mapping of str to array, optional
            Values of some parameters that are known, one for all datasets or one each (leading dim
            `dataset`): the posterior of the others is drawn, as by :func:`pmcl.refine`, from the
            network's draws. See there.
        refine : "auto", bool or Refine
            Correct the amortized posterior of each dataset with the compiled density, the network
            untouched: "auto" only where k-hat or efficiency is poor, True or a
            :class:`pmcl.Refine` everywhere, False nowhere (the network as it is).
        correct : "auto", "psis" or None
            How draws come to count alike: "psis" resamples them by their Pareto-smoothed weights
            (refined draws whose k-hat is above 1 keep theirs, and a note says so). "auto": with
            refinement. None keeps the proposal's draws, to be weighted by `log_weight`.
        fallback : "auto", "nuts" or None
            NUTS for the datasets whose posterior does not stand otherwise, and only for those, from
            the best draws at hand; compiled once. `dataset_stats` has the engine, r-hat, effective
            sample size and divergences. "auto": where these are twenty at most, draws are refined
            and no fewer than 25, and there is no `store`. None: they are warned of.
        var_names : sequence of str, optional
            Variables of the group `posterior`; all free variables and deterministics by default.
        random_seed : int, optional
        log_likelihood, log_prior, posterior_predictive : bool
            Add the group of that name: the likelihood by value, the prior by variable (on the
            scale of the model, without Jacobian), a draw of the data for each draw.
        store : path, optional
            A new folder: results are written to it as Zarr, some hundred datasets at a time, so
            that memory does not grow with their number. The draws are the same. A Dataset whose
            arrays are read when they are used (`xarray.open_zarr`) is read part by part. What an
            interrupted call has written, in a hidden folder beside this one, the same call does not
            do again.
        client : distributed.Client, optional
            The Dask cluster whose workers sample the parts; they write to `store` themselves where
            they can see it. Needs the extra "cluster".
        devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
            What datasets are spread over; JAX's default device by default.
        progressbar : bool

        Returns
        -------
        xarray.DataTree
            Groups `posterior`, `unconstrained_posterior`, `sample_stats` (log_prior,
            log_likelihood, log_q, log_weight per draw), `dataset_stats` (k-hat, efficiency,
            self-consistency variance, evidence and its error, all of the proposal's draws; engine,
            steps, note: what was done; warning), `observed_data` and `constant_data`. Weights are
            Pareto smoothed, in logs, and sum to one for each dataset.
            With `store`, values are read from there when they are used.

        Raises
        ------
        DataError
            Where the data do not fit the model, naming the variable and the dataset.
        FileExistsError
            Where there is something at `store` already.
        ValueError
            Naming the argument that has none of the values above; with a `client` and no `store`;
            with more devices than there are.
        TypeError
            Where `devices` is of another kind.
        MissingExtraError
            With a `client`, where the extra "cluster" is not installed.

        Warns
        -----
        UserWarning
            Naming the datasets whose k-hat says that the draws should not be trusted.
        FarDataWarning
            Naming the datasets that are far from what was simulated, and from any that is stored.
        """
        data = self._own() if data is None else data
        sampler = self.sampler.remembering(self.memory)
        if model is not None:
            sampler = sampler.under(model, data)
        compiled = sampler.target
        if compiled.implicit and refine == "auto" and correct == "auto":
            refine = False
        if refine is not False or fallback == "nuts" or correct == "psis":
            need_density(compiled, "sample: refinement, weights and NUTS")
        asked = asked_of(
            compiled,
            Ways(refine, correct, fallback),
            draws,
            seed=seed_of(random_seed, self.seed),
            var_names=var_names,
            extra=Extra(log_likelihood, log_prior, posterior_predictive),
            stored=store is not None,
        )
        if given is not None:
            return sample_given(
                sampler,
                data,
                given,
                asked,
                store=store,
                client=client,
                devices=devices,
                progressbar=progressbar,
            )
        if store is None:
            need_store(client)
            task = sampler.checked(data)
            names, far = task.names, sampler.far(task)
            tree = sampler.sample(task, asked, devices=devices, progressbar=progressbar)
        else:
            check_devices(client, devices)
            size = partial(bytes_of, compiled, draws, asked.names, terms=asked.extra.terms)
            parts = Parts.of(data, sampler.layout, size)
            job = SampleJob(sampler, asked, devices)
            tree, notes = run(job, parts, store, client=client, progressbar=progressbar)
            names, far = parts.names, [name for note in notes for name in note["far"]]
        warn_of_far(sampler.depending(far, names, tree), len(names))
        warn_of_doubts(names, tree)
        return tree

    def warm_start(
        self,
        data: TaskLike | None = None,
        *,
        chains: int = 4,
        metric: MetricLike = "auto",
        draws: int = 1000,
        refine: RefineLike = "auto",
        random_seed: int | None = None,
    ) -> dict[str, WarmStart]:
        """Give starting points and a metric to a sampler of one's own, for every dataset.

        Parameters
        ----------
        data : xarray.Dataset, mapping or pandas.DataFrame, optional
            As in `sample`.
        chains : int
            Starting points of each dataset: independent draws.
        metric : "auto", "dense", "low-rank" or "diagonal"
            Covariance of the draws; of it what draws can tell from none; or variances alone.
            "auto": dense up to 50 parameters, low-rank up to 500.
        draws : int
            That the metric is of.
        refine : "auto", bool or Refine
            As in `sample`.
        random_seed : int, optional

        Returns
        -------
        dict of str to WarmStart
            By the dataset's name: for nutpie, `pm.sample`, blackjax and CmdStan.

        See Also
        --------
        pmcl.warm_start : from draws at hand, in a `store` for one.
        """
        data = self._own() if data is None else data
        seed = seed_of(random_seed, self.seed)
        tree = self.sample(
            data, draws, refine=refine, correct="psis", fallback=None, random_seed=seed
        )
        task = self.sampler.checked(data)
        return warm_starts(self.compiled, task, tree, chains=chains, metric=metric, seed=seed)

    def log_prob(self, parameters: xr.DataTree | xr.Dataset, data: TaskLike) -> xr.DataArray:
        """Log density of the amortized posterior, log q(z | h(x)), on the unconstrained scale.

        Parameters
        ----------
        parameters : xarray.DataTree or xarray.Dataset
            Results of `sample` or `sample_reference`, or their group `unconstrained_posterior`.
        data : xarray.Dataset, mapping or pandas.DataFrame
            The datasets, in the same order.

        Returns
        -------
        xarray.DataArray of dims chain, draw, dataset
        """
        task = self.sampler.checked(data)
        with precision.scope():
            return log_q_at(
                self.compiled,
                parameters,
                task.names,
                lambda z: log_q(self.amortizer, z, task.batch()),
            )

    def predict(
        self,
        data: TaskLike,
        new_covariates: xr.Dataset | Mapping[str, np.ndarray] | None = None,
        *,
        draws: int = 1000,
        refine: RefineLike = "auto",
        random_seed: int | None = None,
    ) -> xr.DataTree:
        """Posterior predictive draws of the observed variables at new covariates.

        Parameters
        ----------
        data : xarray.Dataset, mapping or pandas.DataFrame
            The datasets that the posterior is conditioned on.
        new_covariates : xarray.Dataset, mapping of arrays or pandas.DataFrame, optional
            Covariates to predict at, of any length along the dims of the data: one set for all
            datasets, or one each by name or along a dim `dataset`. Those of `data` by default.
        draws : int
        refine : "auto", bool or Refine
            As in `sample`.
        random_seed : int, optional

        Returns
        -------
        xarray.DataTree
            Groups `predictions` and `predictions_constant_data`, beside `posterior`.
        """
        tree = self.sample(data, draws, refine=refine, random_seed=random_seed)
        task = self.sampler.checked(data)
        z = np.moveaxis(flat_z(self.compiled, tree)[0], 0, 1)
        with precision.scope():
            groups = predictions_groups(
                self.compiled,
                self.layout,
                task,
                z,
                new_covariates,
                seed=seed_of(random_seed, self.seed),
            )
        for name, data_of in groups.items():
            tree[name] = xr.DataTree(data_of)
        return tree
