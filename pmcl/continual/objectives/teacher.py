"""Learning from refined draws: forward Kullback-Leibler divergence to a posterior that is right."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density
from pmcl.continual.objectives.objectives import (
    AbstractObjective,
    Example,
    HeldBack,
    Labels,
    ObjectiveValue,
    Teaching,
)
from pmcl.data.task import Batch, Task
from pmcl.draws import network
from pmcl.draws.drawn import Drawn
from pmcl.draws.network import draw
from pmcl.levels.beside import Beside
from pmcl.networks import Amortizer
from pmcl.refinement import FEWEST_STARTS, Asked, Beginning, Refine
from pmcl.refinement.correction import Corrected, correct


class TeacherDistillation(AbstractObjective):
    """Forward Kullback-Leibler divergence: L(x) = -mean_s log q(z_s | h(x)) over refined draws z_s.

    Before training, draws are made for every dataset - of the task and of the memory -, refined
    with the compiled density where the network is poor, and resampled by their importance weights.
    They are labels for unlabeled data: modes are covered, gradients bounded.

    Attributes
    ----------
    draws : int
        Labels per dataset and step.
    labels : int
        Draws kept of every dataset's refined posterior.
    refine : Refine
        How they are refined; only where the network is not good enough as it is.
    khat : float
        Datasets whose refined draws have a higher k-hat are not learned from.
    """

    draws: int = eqx.field(static=True, default=16)
    labels: int = eqx.field(static=True, default=256)
    refine: Refine = Refine(enough=0.3)
    khat: float = eqx.field(static=True, default=0.7)

    def label(self, datasets: Task, now: Teaching) -> Labels:
        """Refine datasets where the network needs it, and resample by importance weights."""
        asked = Asked(self.labels, (), now.seed, self.refine, everywhere=False, correct="psis")
        if isinstance(datasets.beside, Beside):
            return self._of_levels(datasets, datasets.beside, now, asked)
        n = max(self.labels, FEWEST_STARTS)
        start = draw(
            now.amortizer, now.density, datasets, draws=n, seed=now.seed, progressbar=False
        )
        found = correct(
            now.density,
            now.amortizer,
            datasets,
            Drawn(*(v[:, : self.labels] for v in start)),
            Beginning.of_network(now.amortizer, now.density, start, self.refine.starts),
            asked,
            progressbar=now.progressbar,
        )
        return self._labels(found, np.asarray(found.drawn.z))

    def _of_levels(self, datasets: Task, beside: Beside, now: Teaching, asked: Asked) -> Labels:
        """Draws of the global parameters, weighed with those of all groups."""
        levels, search = beside.levels(datasets), now.amortizer.search
        assert search is not None
        found = correct(
            beside.density,
            now.amortizer,
            replace(datasets, beside=None),
            None,
            Beginning(search),
            asked,
            levels=levels,
            progressbar=now.progressbar,
        )
        return self._labels(found, np.asarray(found.drawn.z)[:, :, levels.shared])

    def _labels(self, found: Corrected, z: np.ndarray) -> Labels:
        trusted = (found.diagnostics.khat <= self.khat) & np.isfinite(z).all(axis=(1, 2))
        return Labels(np.where(np.isfinite(z), z, 0.0), trusted)

    def held_back(
        self, amortizer: Amortizer, density: Density, batch: Batch, labels: Any, *, seed: int
    ) -> HeldBack:
        log_q = network.log_q(amortizer, labels, batch).astype(float)
        nothing = np.full(len(log_q), np.nan)
        return HeldBack(-log_q.mean(axis=1), np.isfinite(log_q).mean(axis=1), nothing)

    def __call__(
        self, amortizer: Amortizer, density: Density, example: Example, key: Array
    ) -> ObjectiveValue:
        labels = example.labels
        if labels is None:
            raise ValueError("TeacherDistillation: expected an example with labels, got none.")
        context = example.context(amortizer)
        z = labels[jax.random.randint(key, (self.draws,), 0, labels.shape[0])]
        log_q = jax.vmap(amortizer.log_prob, in_axes=(0, None))(z, context)
        return ObjectiveValue(-jnp.mean(log_q), jnp.mean(jnp.isfinite(log_q)))
