"""Variational continual learning of the amortizer's own weights."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from pmcl.continual.strategies.consolidation import Gaussian, OnlineLaplace
from pmcl.continual.strategies.strategy import AbstractStrategy, Occasion
from pmcl.continual.strategies.weight_importance import weighted_distance
from pmcl.networks import Amortizer


class Spread(NamedTuple):
    """What is followed over the steps of a task: the log sd of every weight.

    Attributes
    ----------
    log_sd : Amortizer
    moments : optax.OptState
        Adam's.
    before : Amortizer
        Precision after the last task.
    datasets : Array
    key : Array
        Of the noise of the step at hand (raw data).
    """

    log_sd: Amortizer
    moments: optax.OptState
    before: Amortizer
    datasets: Array
    key: Array


class VariationalWeights(AbstractStrategy):
    """Variational continual learning (VCL): a normal over the network's weights for all tasks.

    With q = N(w*, T / P) after the last task, the next one minimises E_{w ~ q'}[n L(w)] + T
    KL(q' || q) over means and standard deviations of q', n the number of its datasets and T the
    temperature, with the part of the divergence that is of the means multiplied by `strength`. L is
    taken at weights with reparametrised noise, anew at every step; the means are the network that
    is used. Nothing is stored but w* and P.

    Attributes
    ----------
    strength : float
        Factor of sum_i P_i (w_i - w*_i)^2 / 2. With strength and temperature 1 it is Bayes' rule
        with exp(-n L) as the likelihood; the defaults are what did best on ten regression tasks.
    temperature : float
        T: below 1 there is less noise, and P grows by the curvature nearer to w*. Towards 0 it is
        an online Laplace approximation.
    prior_precision : float
        Of every weight about its pretrained value.
    learning_rate : float
        Of the logarithms of the standard deviations.
    draws : int
        Draws for each simulated dataset.
    simulations : int
        Simulated datasets that the pretrained weights have learned from, as far as q goes.

    References
    ----------
    Nguyen et al. (2018), Variational continual learning, eqs. 1 and 4, with a self-consistency
    objective for the negative log likelihood; Loo, Swaroop & Turner (2021), Generalized variational
    continual learning, for strength and temperature (lambda and beta there).
    """

    strength: float = 100.0
    temperature: float = 0.01
    prior_precision: float = 1e2
    learning_rate: float = 1e-2
    draws: int = eqx.field(static=True, default=16)
    simulations: int = eqx.field(static=True, default=256)

    def __check_init__(self) -> None:
        above = (self.temperature, self.prior_precision, self.learning_rate)
        if self.strength < 0 or not all(v > 0 for v in above):
            raise ValueError(
                "VariationalWeights: expected strength of at least 0, temperature, prior_precision "
                f"and learning_rate above 0, got {self.strength} and {above}."
            )

    def begin(self, state: Gaussian | None, now: Occasion) -> Gaussian:
        return self._laplace.begin(state, now)

    def penalty(self, state: Gaussian, weights: Amortizer) -> Array:
        """Return the means' part of the divergence; that of the sds is in `follow`."""
        distance = weighted_distance(weights, state.mean, state.precision)
        return self.strength * distance / (2 * state.datasets)

    def trace(self, state: Gaussian, weights: Amortizer) -> Spread:
        log_sd = jax.tree.map(lambda p: jnp.log(self.temperature / p) / 2, state.precision)
        moments = optax.scale_by_adam().init(log_sd)
        key = jax.random.key_data(jax.random.key(0))
        return Spread(log_sd, moments, state.precision, state.datasets, key)

    def perturb(self, trace: Spread, weights: Amortizer, key: Array) -> tuple[Spread, Amortizer]:
        trace = trace._replace(key=jax.random.key_data(key))
        return trace, jax.tree.map(jnp.add, weights, _noise(trace))

    def follow(self, trace: Spread, gradient: Amortizer, change: Amortizer) -> Spread:
        def slope(g: Array, noise: Array, log_sd: Array, precision: Array) -> Array:
            divergence = jnp.exp(2 * log_sd) * precision - self.temperature
            return g * noise + divergence / trace.datasets

        rise = jax.tree.map(slope, gradient, _noise(trace), trace.log_sd, trace.before)
        move, moments = optax.scale_by_adam().update(rise, trace.moments)
        log_sd = jax.tree.map(lambda s, m: s - self.learning_rate * m, trace.log_sd, move)
        return trace._replace(log_sd=log_sd, moments=moments)

    def end(self, state: Gaussian, trace: Spread | None, now: Occasion) -> Gaussian:
        if trace is None:  # datasets of earlier tasks, which no search has gone over
            return self._laplace.end(state, None, now)
        precision = jax.tree.map(lambda s: self.temperature * jnp.exp(-2 * s), trace.log_sd)
        return state._replace(mean=now.weights, precision=precision)

    @property
    def _laplace(self) -> OnlineLaplace:
        return OnlineLaplace(self.prior_precision, 1.0, self.draws, self.simulations)


def _noise(trace: Spread) -> Any:
    """Noise of every weight at the step at hand, with its standard deviation."""
    leaves, structure = jax.tree.flatten(trace.log_sd)
    keys = jax.random.split(jax.random.wrap_key_data(trace.key), len(leaves))
    drawn = [
        jnp.exp(s) * jax.random.normal(k, s.shape, s.dtype)
        for k, s in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)
