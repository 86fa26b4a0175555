"""What draws, wherever it runs: network, density, layout, what is familiar."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.amortized.other import compiled_other
from pmcl.compile import CompiledModel, Density, Masking
from pmcl.continual import Memory
from pmcl.data.masked import check_masked
from pmcl.data.possible import check_possible
from pmcl.data.reading import as_task
from pmcl.data.task import Layout, Task, TaskLike
from pmcl.draws.drawn import Drawn
from pmcl.draws.network import draw
from pmcl.draws.prior import prior_draws
from pmcl.networks import Amortizer, Network, Structure
from pmcl.networks.contexts import placed
from pmcl.networks.familiarity import Familiar, FarDataWarning, input_features
from pmcl.networks.structure import skeleton, with_arrays
from pmcl.parts.datasets import Parts
from pmcl.parts.job import packed, unpacked
from pmcl.refinement import FEWEST_STARTS, Asked, Beginning, Refine
from pmcl.refinement.correction import as_tree, correct
from pmcl.refinement.treatment import Engine
from pmcl.runtime import precision
from pmcl.runtime.arguments import listed
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.devices import scope as device_scope
from pmcl.search.search import POOL, Search


class Sampler(NamedTuple):
    """An amortized posterior without its past: enough to draw with it.

    It travels as five parts: the PyMC model, the specification of the network, its weights, the
    structure of the data, and what is familiar. Networks themselves cannot be pickled.

    Attributes
    ----------
    compiled : CompiledModel
    structure : Structure
    masking : Masking
        Lengths and missing values that the network was trained with.
    network : Network
    amortizer : Amortizer
    familiar : Familiar, optional
    stored : array of shape (dataset, feature), optional
        What the inputs of stored datasets are like.
    other : CompiledModel, optional
        A model of the same variables whose posterior is drawn; the network's own by default.
    """

    compiled: CompiledModel
    structure: Structure
    masking: Masking
    network: Network
    amortizer: Amortizer
    familiar: Familiar | None
    stored: np.ndarray | None = None
    other: CompiledModel | None = None

    @property
    def target(self) -> CompiledModel:
        """The model whose posterior is drawn."""
        return self.compiled if self.other is None else self.other

    @property
    def layout(self) -> Layout:
        """What a dataset of the model looks like."""
        return Layout.of(self.target, self.structure.row)

    @property
    def density(self) -> Density:
        """The compiled log density of z and a dataset."""
        return Density(self.target, self.structure.row)

    def under(self, model: pm.Model | CompiledModel, data: TaskLike) -> "Sampler":
        """Draw the posterior of another model of the same variables, with this network's flow.

        A whitened network searches that model's density, from its prior (at the covariates of the
        first dataset); the flow at each mode is the one that was trained.

        Raises
        ------
        ValueError
            Naming the variables that differ.
        """
        other = compiled_other(self.compiled, model, data)
        found, search = self._replace(other=other), self.amortizer.search
        if search is None:
            return found
        first = Parts.of(data, found.layout).first(found.layout)
        number = FEWEST_STARTS if search.searches is None else POOL
        prior = prior_draws(other, first, number, seed=0)
        with precision.scope():
            new = Search.of(found.density, other.initial, prior, starts=search.begun)
            if search.searches is not None:
                new = new.pooled(prior, searches=search.searches)
        search = replace(new, modes=search.modes)
        return found._replace(amortizer=replace(self.amortizer, search=search))

    def remembering(self, memory: Memory) -> "Sampler":
        """Know what stored datasets are like: such as they are not far."""
        if self.familiar is None or not len(memory):
            return self
        with precision.scope():
            features = input_features(self.amortizer, memory.stored().batch())
        return self._replace(stored=features)

    def checked(self, data: TaskLike) -> Task:
        """Read datasets, and refuse those that the model or the network cannot take.

        Raises
        ------
        DataError
            Naming the variable and the dataset.
        """
        return check_possible(self.target, check_masked(self.target, as_task(data, self.layout)))

    def far(self, task: Task) -> list[str]:
        """Names of datasets that are far from simulations, and like none that is stored."""
        if self.familiar is None:
            return []
        with precision.scope():
            found = input_features(self.amortizer, task.batch())
            far = self.familiar.far(self.familiar.distance(found))
            if far.any() and self.stored is not None:
                apart = self.familiar.distance(found[:, None] - self.stored + self.familiar.mean)
                far &= self.familiar.far(apart.min(axis=1))
        return [n for n, f in zip(task.names, far, strict=True) if f]

    def sample(
        self, task: Task, asked: Asked, *, devices: DevicesLike = None, progressbar: bool = False
    ) -> xr.DataTree:
        """Draw from the posterior of every dataset of a task, all in memory."""
        # Means and covariances of the network's posterior need a number of draws.
        n = max(asked.draws, FEWEST_STARTS if asked.refine else 1)
        begin = time.perf_counter()
        with device_scope(devices), precision.scope():
            task = replace(task, place=placed(self.amortizer, task.batch()).place)
            start = draw(
                self.amortizer,
                self.density,
                task,
                draws=n,
                seed=asked.seed,
                progressbar=progressbar,
            )
            corrected = correct(
                self.density,
                self.amortizer,
                task,
                Drawn(*(v[:, : asked.draws] for v in start)),
                self._beginning(start, asked.refine),
                asked,
                progressbar=progressbar,
            )
            return as_tree(self.target, task, corrected, asked, begin=begin)

    def _beginning(self, start: Drawn, settings: Refine | None) -> Beginning | None:
        if settings is not None:
            return Beginning.of_network(self.amortizer, self.density, start, settings.starts)
        return None if self.amortizer.search is None else Beginning(self.amortizer.search)

    def depending(self, far: Sequence[str], names: Sequence[str], tree: xr.DataTree) -> list[str]:
        """Those of the far datasets whose draws depend on it.

        Draws that are not the network's do not; nor do those around what a search found, as long
        as nothing speaks against them.
        """
        if not far:
            return []
        stats = tree["dataset_stats"].to_dataset()
        depends = stats["engine"].values == Engine.AMORTIZED
        if self.amortizer.search is not None:
            depends &= stats["warning"].values != ""
        return sorted(set(far) & {n for n, d in zip(names, depends, strict=True) if d})

    def __reduce__(self) -> tuple:
        weights = [*map(np.asarray, jax.tree.leaves(eqx.filter(self.amortizer, eqx.is_array)))]
        models = {k: packed(v) for k, v in (("compiled", self.compiled), ("other", self.other))}
        parts = self._asdict() | models | {"amortizer": None}
        search = self.amortizer.search
        sizes: dict[str, int | None] = {"starts": 1, "modes": 1}
        if search is not None:
            sizes = {"starts": len(search.starts), "modes": search.modes}
            sizes["searches"] = search.searches
        return _arrived, (parts, weights, sizes)


def _arrived(parts: dict[str, Any], weights: list[np.ndarray], sizes: dict[str, Any]) -> Sampler:
    """Build the network again, with the weights that it had."""
    found = Sampler(**parts)
    compiled = unpacked(found.compiled)
    with precision.scope():
        like = skeleton(found.network, compiled, found.structure, found.masking, **sizes)
        amortizer, other = with_arrays(like, weights), unpacked(found.other)
        if other is not None and amortizer.search is not None:
            density = Density(other, found.structure.row)
            amortizer = replace(amortizer, search=replace(amortizer.search, density=density))
        return found._replace(compiled=compiled, amortizer=amortizer, other=other)


def warn_of_far(names: Sequence[str], number: int, *, above: int = 3) -> None:
    """Warn of datasets, by name, that are far from what a network was trained on.

    `above`: levels to the user's call.
    """
    if names:
        warnings.warn(
            f"{len(names)} of {number} datasets ({listed(names)}) lie far outside what the "
            "network was trained on (`pmcl.check_data` says how far): look at their k-hat, "
            "adapt to data like these, or widen `covariates` and priors and fit again.",
            FarDataWarning,
            stacklevel=above,
        )
