"""Strategies that hold weights near where earlier tasks left them; no dataset is stored."""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from pmcl.continual.strategies.strategy import AbstractStrategy, Learned, Occasion
from pmcl.continual.strategies.weight_importance import Kind, importance, weighted_distance
from pmcl.networks import Amortizer


class Consolidated(NamedTuple):
    """What weight consolidation stores.

    Attributes
    ----------
    importance : Amortizer
        F at the places of the trainable weights.
    anchor : Amortizer
        The weights after the last task.
    kind : str
        Of the importance.
    """

    importance: Amortizer
    anchor: Amortizer
    kind: str


class ElasticWeightConsolidation(AbstractStrategy):
    """Elastic weight consolidation (SC-EWC): L + strength * sum_i F_i (w_i - w*_i)^2.

    w* are the weights after the last task, and F says how much each matters there. Before the first
    task F comes from simulated datasets, so that what pretraining learned is protected too.

    Attributes
    ----------
    strength : float
        For consolidation alone; beside `Replay`, which it holds back, rather a hundred or nothing.
    decay : float
        F <- decay F + F_new after every task: 0 the last task only (the paper's), 1 the sum.
    importance : {"fisher", "self_consistency"}
        E_{z~q}[(d log q(z | h(x)) / dw_i)^2], or the paper's (dL(x)/dw_i)^2 with the variance as
        L, which vanishes where the fit is good. Means over the datasets of the task.
    draws : int
        Draws for each dataset.
    simulations : int
        Simulated datasets before the first task; 0: no penalty there (the paper's).

    References
    ----------
    Continual amortized Bayesian inference, Algorithm 2, eqs. 7 and 8; Kirkpatrick et al. (2017).
    """

    strength: float = 1e4
    decay: float = 1.0
    importance: Kind = eqx.field(static=True, default="fisher")
    draws: int = eqx.field(static=True, default=16)
    simulations: int = eqx.field(static=True, default=256)

    def __check_init__(self) -> None:
        if self.importance not in ("fisher", "self_consistency"):
            raise ValueError(
                "ElasticWeightConsolidation: expected importance 'fisher' or 'self_consistency', "
                f"got {self.importance!r}."
            )
        if self.strength < 0 or not 0 <= self.decay <= 1 or self.draws < 2:
            raise ValueError(
                "ElasticWeightConsolidation: expected strength of at least 0, decay between 0 and "
                f"1 and draws of at least 2, got {self.strength}, {self.decay} and {self.draws}."
            )

    def begin(self, state: Consolidated | None, now: Occasion) -> Consolidated:
        if state is not None:
            return state
        if not self.simulations:
            nothing = jax.tree.map(jnp.zeros_like, now.weights)
            return Consolidated(nothing, now.weights, self.importance)
        return self._at(now, replace(now, task=now.simulate(self.simulations)))

    def penalty(self, state: Consolidated, weights: Amortizer) -> Array:
        return self.strength * weighted_distance(weights, state.anchor, state.importance)

    def end(self, state: Consolidated, trace: Any, now: Occasion) -> Consolidated:
        new = self._at(now, now)
        return new._replace(importance=self.accumulate(state.importance, new.importance))

    def accumulate[T](self, importance: T, new: T) -> T:
        """F <- decay F + F_new, at every place of a pytree."""
        return jax.tree.map(lambda f, g: self.decay * f + g, importance, new)

    def hold(self, precision: Array, anchor: Array, learned: Learned) -> tuple[Array, Array]:
        # Quadratics around each optimum of its own, whose sum is one: as published.
        new = self.strength * learned.information()
        total = self.accumulate(precision, new)
        middle = self.accumulate(precision * anchor, new * learned.z)
        return total, middle / jnp.where(total > 0, total, 1.0)

    def accepts(self, state: Consolidated) -> str:
        if state.kind == self.importance:
            return ""
        return f"the importance that is stored is {state.kind!r}, not {self.importance!r}"

    def _at(self, now: Occasion, where: Occasion) -> Consolidated:
        found = importance(
            now.amortizer,
            now.density,
            where.task,
            self.importance,
            draws=self.draws,
            seed=now.seed,
        )
        return Consolidated(found, now.weights, self.importance)


class SynapticIntelligence(AbstractStrategy):
    """Synaptic intelligence: importance from each weight's share in the fall of the loss.

    Along the steps of a task omega_i = -sum g_i dw_i, g the gradient of the data's loss; after it
    Omega_i <- Omega_i + max(omega_i, 0) / ((w_i - w*_i)^2 + damping), and the next task's penalty
    is strength * sum_i Omega_i (w_i - w*_i)^2. The first task is free.

    Attributes
    ----------
    strength : float
    damping : float

    References
    ----------
    Zenke, Poole & Ganguli (2017), Continual Learning Through Synaptic Intelligence, eqs. 3 to 5.
    """

    strength: float = 1.0
    damping: float = 1e-3

    def begin(self, state: Consolidated | None, now: Occasion) -> Consolidated:
        if state is not None:
            return state
        nothing = jax.tree.map(jnp.zeros_like, now.weights)
        return Consolidated(nothing, now.weights, "synaptic")

    def penalty(self, state: Consolidated, weights: Amortizer) -> Array:
        return self.strength * weighted_distance(weights, state.anchor, state.importance)

    def trace(self, state: Consolidated, weights: Amortizer) -> Amortizer:
        return jax.tree.map(jnp.zeros_like, weights)

    def follow(self, trace: Amortizer, gradient: Amortizer, change: Amortizer) -> Amortizer:
        return jax.tree.map(lambda t, g, d: t - g * d, trace, gradient, change)

    def end(self, state: Consolidated, trace: Amortizer, now: Occasion) -> Consolidated:
        weights = now.weights
        total = self.accumulate(state.importance, trace, weights, state.anchor)
        return Consolidated(total, weights, "synaptic")

    def accumulate[T](self, importance: T, share: T, new: T, old: T) -> T:
        """Omega <- Omega + max(omega, 0) / ((w - w*)^2 + damping), at every place of a pytree."""

        def add(total: Array, share: Array, new: Array, old: Array) -> Array:
            return total + jnp.maximum(share, 0.0) / ((new - old) ** 2 + self.damping)

        return jax.tree.map(add, importance, share, new, old)

    def hold(self, precision: Array, anchor: Array, learned: Learned) -> tuple[Array, Array]:
        z, twice = learned.z, 2 * self.strength
        nothing = jnp.zeros_like(precision)
        return precision + twice * self.accumulate(nothing, learned.share, z, learned.start), z


class Gaussian(NamedTuple):
    """A normal approximation over the weights, and the datasets of the task at hand."""

    mean: Amortizer
    precision: Amortizer
    datasets: Array


class OnlineLaplace(AbstractStrategy):
    """Online diagonal Laplace: a normal over the weights, updated by every task.

    With the mean w* and the precision P after the last task, the next one minimises
    L + sum_i P_i (w_i - w*_i)^2 / (2 n), n its number of datasets; then P <- P + n F, F the Fisher
    information of q at the new weights.

    Attributes
    ----------
    prior_precision : float
        Of every weight about its pretrained value.
    strength : float
        Factor of the penalty; 1 is Laplace's.
    draws : int
        Draws for each dataset.
    simulations : int
        Simulated datasets that the pretrained weights have learned from, as far as P goes.

    References
    ----------
    Ritter, Botev & Barber (2018), Online Structured Laplace Approximations, eq. 8, diagonal.
    """

    bayesian: ClassVar[bool] = True
    prior_precision: float = 1e-3
    strength: float = 1.0
    draws: int = eqx.field(static=True, default=16)
    simulations: int = eqx.field(static=True, default=256)

    def begin(self, state: Gaussian | None, now: Occasion) -> Gaussian:
        n = jnp.asarray(len(now.task), jnp.float32)
        if state is not None:
            return state._replace(datasets=n)
        first = now.simulate(self.simulations) if self.simulations else None
        prior = jax.tree.map(lambda w: jnp.full_like(w, self.prior_precision), now.weights)
        found = Gaussian(now.weights, prior, n)
        return found if first is None else self._add(found, first, now)

    def penalty(self, state: Gaussian, weights: Amortizer) -> Array:
        distance = weighted_distance(weights, state.mean, state.precision)
        return self.strength * distance / (2 * state.datasets)

    def end(self, state: Gaussian, trace: Any, now: Occasion) -> Gaussian:
        return self._add(state, now.task, now)

    def _add(self, state: Gaussian, datasets: Any, now: Occasion) -> Gaussian:
        new = importance(
            now.amortizer, now.density, datasets, "fisher", draws=self.draws, seed=now.seed
        )
        total = self.accumulate(state.precision, new, len(datasets))
        return state._replace(mean=now.weights, precision=total)

    def accumulate[T](self, precision: T, information: T, n: float) -> T:
        """P <- P + n F, at every place of a pytree."""
        return jax.tree.map(lambda p, f: p + n * f, precision, information)

    def hold(self, precision: Array, anchor: Array, learned: Learned) -> tuple[Array, Array]:
        return self.accumulate(precision, learned.information(), self.strength), learned.z
