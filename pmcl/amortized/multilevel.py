"""The amortized posterior of a multilevel model: a network for what its groups share."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.amortized.adapting import Adapting, Begun
from pmcl.amortized.groups import Checked, Sized
from pmcl.amortized.level_density import log_density
from pmcl.amortized.level_other import Elsewhere, only_in
from pmcl.amortized.level_sample import sample_stored
from pmcl.amortized.level_sampler import LevelSampler
from pmcl.amortized.own_size import of_own_size
from pmcl.compile import CompiledModel, Density, Simulator
from pmcl.continual import StrategyLike, StrategyState, TaskRecord
from pmcl.continual.levels import LevelledOccasion, at_size, states_at_size
from pmcl.data.own import own_data
from pmcl.data.task import Task, TaskLike
from pmcl.draws.prediction import Extra
from pmcl.draws.results import warn_of_doubts
from pmcl.levels.beside import Beside
from pmcl.levels.reading import Reading
from pmcl.levels.sizes import Groups
from pmcl.networks import Amortizer, Network, Structure
from pmcl.parts.job import need_store
from pmcl.reference.warm_start import MetricLike, WarmStart, warm_starts
from pmcl.refinement.settings import (
    CorrectLike,
    FallbackLike,
    RefineLike,
    Ways,
    asked_of,
)
from pmcl.runtime.arguments import seed_of
from pmcl.runtime.devices import DevicesLike
from pmcl.training import Bank, PretrainingRecord, PretrainingSettings, bank_of
from pmcl.training.levels import Levelled

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class MultilevelPosterior(Adapting):
    """Posterior of any dataset of one multilevel PyMC model.

    Made by :func:`fit_amortized` where the model has levels. The network proposes the global
    parameters, groups integrated out; each group's parameters are drawn given them.

    Attributes
    ----------
    compiled : CompiledModel
    simulator : Simulator
    structure : Structure
        How a dataset is read, and why.
    network : Network
        Specification of the network, of which the flow counts: it sees what the search found.
    amortizer : Amortizer
        The weights, of the posterior of the global parameters.
    settings : PretrainingSettings
    seed : int
    reading : Reading
        The levels, and how those of a dataset follow from its data.
    groups : Groups, optional
        Numbers of groups of training; None: all datasets have the model's own. `compiled` is the
        model of the largest.
    pretraining : tuple of PretrainingRecord
    strategy, states, pretrained, records
        As of `AmortizedPosterior`; stored datasets have their groups.
    """

    compiled: CompiledModel
    simulator: Simulator
    structure: Structure
    network: Network
    amortizer: Amortizer = field(repr=False)
    settings: PretrainingSettings = field(repr=False)
    seed: int
    reading: Reading = field(repr=False)
    groups: Groups | None = None
    pretraining: tuple[PretrainingRecord, ...] = field(default=(), repr=False)
    strategy: StrategyLike | None = None
    states: tuple[StrategyState, ...] = field(default=(), repr=False)
    pretrained: Amortizer | None = field(default=None, repr=False)
    records: tuple[TaskRecord, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        tasks = ", ".join(t.name for t in self.records) or "none"
        steps = sum(r.steps for r in self.pretraining)
        return (
            f"MultilevelPosterior of {[i.name for i in self.compiled.free]} "
            f"given {[i.name for i in self.compiled.data]}\n"
            f"  {self.reading.like}\n"
            + (f"  trained over {self.groups}\n" if self.groups else "")
            + f"  data: {self.structure}\n"
            f"  simulations: {self.simulator!r}\n"
            f"  network: {self.network.flow!r}\n"
            f"  pretrained for {steps} steps; adapted to: {tasks}\n"
            f"  strategy: {self.strategy!r}; stored datasets: {len(self.memory)}"
        )

    def bank(self, checkpoint: str | os.PathLike | None = None, *, progressbar: bool) -> Bank:
        """The simulations that pretraining sees again and again: the same ones every time."""
        assert self.settings.simulations is not None
        levelled = Levelled(self.density, self.reading, self.groups)
        bank = bank_of(
            self.simulator,
            self.amortizer,
            self.density,
            self.settings.simulations,
            seed=self.seed,
            levelled=levelled.of,
            checkpoint=None if checkpoint is None else Path(f"{checkpoint}.searches"),
            progressbar=progressbar,
        )
        return bank._replace(simulated=levelled.anchored(bank.simulated))

    @property
    def sampler(self) -> LevelSampler:
        """What draws: this posterior without its past."""
        sized = Sized(self.compiled, self.reading)
        row = self.structure.row
        return LevelSampler(sized, row, self.amortizer, self.groups, self.network)

    def _begun(
        self, name: str, task: TaskLike | None, pretrained: Amortizer, seed: int, *, say: bool
    ) -> Begun:
        read = self._read(task)
        now = self.occasion(read, seed, name)
        first = now.amortizer
        if pretrained is not self.amortizer:
            first = replace(pretrained, search=first.search)
        states = states_at_size(self.states, now.beside, now.levelled)
        return Begun(now, first, states, read.task)

    def _checked(self, task: TaskLike) -> Task:
        return self._read(task).task

    def occasion(
        self, data: TaskLike | Checked | None, seed: int, name: str = "data"
    ) -> LevelledOccasion:
        """Datasets, and all that learns from them or looks at them, of one size."""
        row, read = self.structure.row, data if isinstance(data, Checked) else self._read(data)
        sized = self.sampler.sized
        if self.groups is not None:
            stored = self.memory.datasets
            labels = (*(read.labels or ()), *((stored and stored.labels) or ()))
            sized = sized.at(self.groups, max([self.reading.like.groups, *map(len, labels)]))
        levelled = Levelled(self.density, self.reading, self.groups)
        beside = Beside(Density(sized.compiled, row), sized.reading)
        return LevelledOccasion(
            name,
            beside.checked(at_size(read.task, beside, levelled)),
            sized.amortizer(self.amortizer, row),
            beside.marginal,  # type: ignore[arg-type]
            self.simulator,
            self.structure,
            seed,
            self.amortizer,
            levelled,
            beside,
        )

    def _read(self, data: TaskLike | None, others: Collection[str] = ()) -> Checked:
        """Read the user's data, or the model's own."""
        if data is None:
            if self.groups is not None:
                raise ValueError(
                    "data: expected datasets; of a posterior for any number of groups the model's "
                    "own are not kept."
                )
            data = own_data(self.compiled.model, [i.name for i in self.compiled.covariates])
        return self.sampler.checked(data, others)

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
        """Draw from the posterior of every dataset: global parameters, and each group's.

        Parameters are those of `AmortizedPosterior.sample`. Refinement, where it is needed, fits
        proposals for the global parameters, as :func:`pmcl.refine` does; everywhere, and from the
        prior, where the levels of another `model` are others. With `groups` the other model may
        have any number of them, and known values of a group's parameters are in the order of the
        data's groups; each dataset may have other entries known.

        Returns
        -------
        xarray.DataTree
            As of `AmortizedPosterior.sample`; the attribute `levels` of its group `posterior` says
            what they are, `dataset_stats` has also `group_noise` and `group_points`.

        Raises
        ------
        DataError
            Where the data do not fit the model, naming the variable and the dataset.
        ValueError
            Naming the argument that has none of the values above, or the variables in which the
            other model differs; where it has other levels, without refinement; without `data`
            where there are `groups`; with a `client` and no `store`; with more devices than there
            are.
        FileExistsError
            Where there is something at `store` already.
        TypeError
            Where `random_seed` or `devices` is of another kind.
        MissingExtraError
            With a `client`, where the extra "cluster" is not installed.

        Warns
        -----
        UserWarning
            Naming the datasets whose k-hat says that the draws should not be trusted.
        """
        asked = asked_of(
            self.compiled,
            Ways(refine, correct, fallback),
            draws,
            seed=seed_of(random_seed, self.seed),
            var_names=var_names if model is None else None,  # another model may have others
            extra=Extra(log_likelihood, log_prior, posterior_predictive),
            stored=store is not None,
        )
        read = self._read(data, set() if model is None else only_in(model, self.compiled))
        other = Elsewhere(data, model, given, var_names)
        sampler, read, asked = other.of(self.sampler, read, asked)
        shown: Any = {"devices": devices, "progressbar": progressbar}
        if store is not None:
            tree = sample_stored(sampler, read, asked, store=store, client=client, **shown)
        else:
            need_store(client)
            tree = sampler.named(sampler.sample(read, asked, **shown), read)
        warn_of_doubts(read.task.names, tree)
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
        """Give starting points and a metric to a sampler of one's own, as `AmortizedPosterior`.

        Each dataset's is of a model of its own number of groups.
        """
        seed = seed_of(random_seed, self.seed)
        asked = asked_of(self.compiled, Ways(refine, "psis", None), draws, seed=seed)
        read = self._read(data)
        tree = self.sampler.sample(read, asked)
        given: Any = {"chains": chains, "metric": metric, "seed": seed}
        if self.groups is None or not read.padded:
            return warm_starts(read.sized.compiled, read.task, tree, **given)
        found: dict[str, WarmStart] = {}
        for i in range(len(read.task)):
            own = of_own_size(self.groups, read, [i])
            found |= warm_starts(own.sized.compiled, own.task, own.cut(tree), **given)
        return found

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

        Of the groups that the data have. A new group, of the population, is one that the data have
        no rows of: a name among the groups' that no row has, or all of whose values are missing.

        Parameters
        ----------
        data : xarray.Dataset, mapping or pandas.DataFrame
            The datasets that the posterior is conditioned on.
        new_covariates : xarray.Dataset, mapping of arrays or pandas.DataFrame, optional
            Covariates to predict at, one set for all datasets or one each: by a column `dataset`, a
            mapping by name, or a dim. Those of `data` by default. Rows name their group; what
            belongs to groups is that of `data` where it does not come.
        draws, refine, random_seed
            As in :meth:`sample`.

        Returns
        -------
        xarray.DataTree
            Groups `predictions` and `predictions_constant_data`, beside `posterior`.
        """
        seed = seed_of(random_seed, self.seed)
        asked = asked_of(self.compiled, Ways(refine), draws, seed=seed)
        given, sampler = self._read(data), self.sampler
        tree = sampler.sample(given, asked)
        warn_of_doubts(given.task.names, tree)
        for name, found in sampler.predicted(tree, given, new_covariates, seed=seed).items():
            tree[name] = xr.DataTree(found)
        return sampler.named(tree, given)

    def log_prob(
        self, parameters: xr.DataTree | xr.Dataset, data: TaskLike, *, joint: bool = False
    ) -> xr.DataArray:
        """Log density of the network's posterior, on the unconstrained scale.

        Parameters
        ----------
        parameters : xarray.DataTree or xarray.Dataset
            Results of `sample` with these data, or their group `unconstrained_posterior`.
        data : xarray.Dataset, mapping or pandas.DataFrame
            The datasets, in the same order.
        joint : bool
            Of all parameters, log q(g | x) + sum_j log p(l_j | g, x_j), the last terms being exact
            where groups are integrated out exactly, and else as good as their integrals. By default
            of the global parameters alone, log q(g | x).

        Returns
        -------
        xarray.DataArray of dims chain, draw, dataset
        """
        return log_density(self.sampler, parameters, self._read(data), joint=joint)
