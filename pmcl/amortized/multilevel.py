"""The amortized posterior of a multilevel model: a network for what its groups share."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import xarray as xr

from pmcl.amortized.groups import Sized
from pmcl.compile import CompiledModel, Density, Simulator
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.data.grouped import GroupedReader
from pmcl.data.masked import check_masked
from pmcl.data.own import own_data
from pmcl.data.possible import check_possible
from pmcl.data.reading import as_task
from pmcl.data.task import Layout, Task, TaskLike
from pmcl.draws.densities import pick
from pmcl.draws.groups import of_groups
from pmcl.draws.prediction import Extra
from pmcl.draws.results import warn_of_doubts
from pmcl.levels.reading import Reading
from pmcl.levels.sizes import Groups
from pmcl.levels.structure import NoLevels
from pmcl.networks import Amortizer, Network, Structure
from pmcl.refinement.correction import as_tree, correct
from pmcl.refinement.settings import (
    Asked,
    Beginning,
    CorrectLike,
    FallbackLike,
    RefineLike,
    settings_of,
    ways_of,
)
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive, seed_of
from pmcl.runtime.devices import DevicesLike, settled
from pmcl.runtime.devices import scope as device_scope
from pmcl.training import Bank, PretrainingRecord, PretrainingSettings, bank_of, pretrain
from pmcl.training.levels import Levelled


@dataclass(frozen=True, eq=False)
class MultilevelPosterior:
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

    def __repr__(self) -> str:
        steps = sum(r.steps for r in self.pretraining)
        return (
            f"MultilevelPosterior of {[i.name for i in self.compiled.free]} "
            f"given {[i.name for i in self.compiled.data]}\n"
            f"  {self.reading.like}\n"
            + (f"  trained over {self.groups}\n" if self.groups else "")
            + f"  data: {self.structure}\n"
            f"  simulations: {self.simulator!r}\n"
            f"  network: {self.network.flow!r}\n"
            f"  pretrained for {steps} steps"
        )

    @property
    def layout(self) -> Layout:
        """What a dataset of the model looks like."""
        return Layout.of(self.compiled, self.structure.row)

    @property
    def density(self) -> Density:
        """The compiled log density of z and a dataset."""
        return Density(self.compiled, self.structure.row)

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
            levelled=levelled,
            checkpoint=None if checkpoint is None else Path(f"{checkpoint}.searches"),
            progressbar=progressbar,
        )
        return bank._replace(simulated=levelled.anchored(bank.simulated))

    def pretrain(
        self,
        more_steps: int,
        *,
        learning_rate: float | None = None,
        checkpoint: str | os.PathLike | None = None,
        devices: DevicesLike = None,
        progressbar: bool = True,
    ) -> "MultilevelPosterior":
        """Go on with pretraining, and return the new posterior; as `AmortizedPosterior` does."""
        rate = learning_rate if learning_rate is not None else self.settings.learning_rate / 3
        settings = replace(
            self.settings, steps=positive("more_steps", more_steps), learning_rate=rate
        )
        with precision.scope(), device_scope(devices):
            amortizer, record = pretrain(
                self.amortizer,
                self.simulator,
                settings,
                seed=self.seed + 1 + len(self.pretraining),
                bank=self.bank(checkpoint, progressbar=progressbar),
                checkpoint=checkpoint,
                progressbar=progressbar,
            )
        return replace(self, amortizer=settled(amortizer), pretraining=(*self.pretraining, record))

    def checked(self, data: TaskLike) -> "Checked":
        """Read datasets, and refuse those that the model cannot have made.

        Raises
        ------
        DataError
            Naming the variable and the dataset.
        """
        groups, row = self.groups, self.structure.row
        if groups is None:
            task, sized, labels = as_task(data, self.layout), self._own_size, None
        else:
            grouping = groups.grouping
            found = GroupedReader(self.layout, grouping.dim, grouping.index)(data)
            sized, labels = self._own_size.at(groups, int(found.numbers.max())), found.labels
            size = len(sized.compiled.coords[grouping.dim])
            layout = Layout.of(sized.compiled, row)
            task = as_task(found.padded(layout, grouping.dim, size), layout)
        compiled = sized.compiled
        return Checked(check_possible(compiled, check_masked(compiled, task)), sized, labels)

    @property
    def _own_size(self) -> Sized:
        return Sized(self.compiled, self.reading)

    def sample(
        self,
        data: TaskLike | None = None,
        draws: int = 1000,
        *,
        refine: RefineLike = "auto",
        correct: CorrectLike = "auto",
        fallback: FallbackLike = "auto",
        var_names: Sequence[str] | None = None,
        random_seed: int | None = None,
        log_likelihood: bool = False,
        log_prior: bool = False,
        posterior_predictive: bool = False,
        store: None = None,
        client: None = None,
        devices: DevicesLike = None,
        progressbar: bool = False,
    ) -> xr.DataTree:
        """Draw from the posterior of every dataset: global parameters, and each group's.

        Parameters are those of `AmortizedPosterior.sample`. Refinement, where it is needed, fits
        proposals for the global parameters, as :func:`pmcl.refine` does.

        Returns
        -------
        xarray.DataTree
            As of `AmortizedPosterior.sample`; the attribute `levels` of its group `posterior` says
            what they are, `dataset_stats` has also `group_noise` and `group_points`.

        Raises
        ------
        NotImplementedError
            With `store` or `client`: sample some hundred datasets in each call.
        """
        if store is not None or client is not None:
            _refuse("sample(store=..., client=...)", "sample some hundred datasets in each call")
        settings = settings_of(refine)
        correct_by, fall = ways_of(
            correct, fallback, draws, refined=settings is not None, stored=False
        )
        asked = Asked(
            positive("draws", draws),
            pick(self.compiled, None if var_names is None else list(var_names)),
            seed_of(random_seed, self.seed),
            settings,
            everywhere=not isinstance(refine, str),
            correct=correct_by,
            fallback=fall,
            extra=Extra(log_likelihood, log_prior, posterior_predictive),
        )
        tree, names = self._sampled(data, asked, devices=devices, progressbar=progressbar)
        warn_of_doubts(names, tree)
        return tree

    def _sampled(
        self, data: TaskLike | None, asked: Asked, *, devices: DevicesLike, progressbar: bool
    ) -> tuple[xr.DataTree, tuple[str, ...]]:
        if data is None:
            covariates = [i.name for i in self.compiled.covariates]
            data = own_data(self.compiled.model, covariates)
        task, sized, labels = self.checked(data)
        begin, row = time.perf_counter(), self.structure.row
        density = Density(sized.compiled, row)
        numbers = None if labels is None else np.array([len(names) for names in labels])
        if numbers is not None and (numbers < sized.reading.like.groups).any():
            asked = _of_padded(asked)
        with device_scope(devices), precision.scope():
            levels = sized.reading.of(density, task)
            if isinstance(levels, NoLevels):
                raise UnsupportedModelError(
                    f"sample: expected data with the levels of the model ({self.reading.like}); "
                    f"{levels}. `pmcl.refine` takes them as they are."
                )
            amortizer = sized.amortizer(self.amortizer, row)
            assert amortizer.search is not None
            corrected = correct(
                density,
                amortizer,
                task,
                None,
                Beginning(amortizer.search),
                asked,
                levels=levels if numbers is None else levels.cut(numbers),
                progressbar=progressbar,
            )
            tree = as_tree(sized.compiled, task, corrected, asked, begin=begin)
        tree["posterior"].attrs["levels"] = str(levels)
        if self.groups is not None and labels is not None:
            tree = of_groups(tree, self.groups.grouping.dim, labels)
        return tree, task.names

    def adapt(self, *args: object, **options: object) -> NoReturn:
        """Refuse: a multilevel posterior does not learn from data yet.

        Raises
        ------
        NotImplementedError
        """
        _refuse(
            "adapt",
            "`sample` refines each dataset that needs it, or fit with levels=False and adapt that",
        )

    def log_prob(self, *args: object, **options: object) -> NoReturn:
        """Refuse: groups are drawn given the global parameters, not by a density of all.

        Raises
        ------
        NotImplementedError
        """
        _refuse("log_prob", "`sample_stats` has the log_q of draws, by which weights are right")


class Checked(NamedTuple):
    """Datasets as a task, the model of their size, and the names of each one's groups."""

    task: Task
    sized: Sized
    labels: tuple[tuple[str, ...], ...] | None


def _of_padded(asked: Asked) -> Asked:
    """What can be done where some datasets have fewer groups than the model they are put in."""
    if asked.fallback == "nuts":
        _refuse("fallback='nuts' with `groups`", "`pmcl.sample_reference` with a model of the size")
    if asked.extra.log_prior:
        _refuse("log_prior=True with `groups`", "`sample_stats` has the log_prior of draws")
    return asked._replace(fallback=None)


def _refuse(what: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"{what} is not there for a posterior with levels yet: {instead}.")
