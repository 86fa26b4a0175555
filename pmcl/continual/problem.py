"""What adaptation minimises: an objective over a pool of datasets, and penalties of strategies."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from pmcl import devices
from pmcl.batching import over_datasets
from pmcl.compile import Density, Simulator
from pmcl.continual.objectives import AbstractObjective, Example
from pmcl.continual.pool import Pool
from pmcl.continual.strategies import AbstractStrategy
from pmcl.networks import Amortizer
from pmcl.training import Problem, simulation_loss

_STEEP = 100.0  # gradient per draw, in standardised units, above which a dataset is held back


class SelfConsistency(Problem):
    """Weighted mean of an objective over a pool of datasets, and the strategies' penalties.

    Attributes
    ----------
    strategies, states : tuples
        Those that add a penalty or follow the steps.
    batch_size : int
        Datasets a step: all of them where they are not more, else a draw by weight.
    simulations : int
        Fresh simulations of each step.
    simulation_weight : Array
        Weight of their negative log likelihood.
    """

    objective: AbstractObjective
    density: Density
    pool: Pool
    strategies: tuple[AbstractStrategy, ...]
    states: tuple[Any, ...]
    simulator: Simulator
    simulation_weight: Array
    batch_size: int = eqx.field(static=True)
    simulations: int = eqx.field(static=True)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Array]) -> Array:
        pool = self.pool
        key, simulation = jax.random.split(key)
        number = pool.weights.shape[0]
        if number > self.batch_size:
            key, choice = jax.random.split(key)
            share = pool.weights / jnp.sum(pool.weights)
            pool = pool.take(jax.random.choice(choice, number, (self.batch_size,), p=share))
            pool = pool._replace(weights=jnp.ones(self.batch_size, jnp.float32))
        loss = mean_loss(self.objective, amortizer, self.density, pool, key)
        if self.simulations:
            keys = jax.random.split(simulation, self.simulations)
            loss += self.simulation_weight * simulation_loss(amortizer, self.simulator, keys, host)
        return loss

    def penalty(self, params: Amortizer) -> Array | None:
        terms = [
            s.penalty(state, params) for s, state in zip(self.strategies, self.states, strict=True)
        ]
        there = [t for t in terms if t is not None]
        return sum(there[1:], start=there[0]) if there else None

    def trace(self, params: Amortizer) -> tuple[Any, ...]:
        pairs = zip(self.strategies, self.states, strict=True)
        return tuple(s.trace(state, params) for s, state in pairs)

    def perturb(
        self, trace: tuple[Any, ...], params: Amortizer, key: Array
    ) -> tuple[tuple[Any, ...], Amortizer]:
        found = []
        for i, (s, t) in enumerate(zip(self.strategies, trace, strict=True)):
            t, params = s.perturb(t, params, jax.random.fold_in(key, i))
            found.append(t)
        return tuple(found), params

    def follow(
        self, trace: tuple[Any, ...], gradient: Amortizer, change: Amortizer
    ) -> tuple[Any, ...]:
        pairs = zip(self.strategies, trace, strict=True)
        return tuple(s.follow(t, gradient, change) for s, t in pairs)


def mean_loss(
    objective: AbstractObjective, amortizer: Amortizer, density: Density, pool: Pool, key: Array
) -> Array:
    """Weighted mean of an objective over the datasets of a pool (shape ())."""
    return mean_loss_and_efficiency(objective, amortizer, density, pool, key)[0]


def mean_loss_and_efficiency(
    objective: AbstractObjective, amortizer: Amortizer, density: Density, pool: Pool, key: Array
) -> tuple[Array, Array]:
    """Weighted means of an objective, and of the efficiency of its draws (shapes ())."""
    n = pool.weights.shape[0]
    (pool, keys), counted = devices.filled((pool, jax.random.split(key, n)), n)
    if counted is not None:
        pool = pool._replace(weights=jnp.where(counted, pool.weights, 0.0))
    found = over_datasets(
        lambda data, mask, labels, k: objective(amortizer, density, Example(data, mask, labels), k),
        pool.batch,
        pool.labels,
        keys,
    )
    weights = jnp.where(found.finite > 0, pool.weights, 0.0)
    loss = _shrink(jnp.where(weights > 0, found.loss, 0.0), jnp.asarray(found.scale))
    share = pool.weights / jnp.sum(pool.weights)
    return (
        jnp.sum(weights * loss) / jnp.maximum(jnp.sum(weights), 1e-12),
        jnp.sum(share * jnp.asarray(found.efficiency)),
    )


def _shrink(loss: Array, scale: Array) -> Array:
    """Keep the value of each dataset's loss; divide its gradient by its scale beyond a limit.

    Where the network extrapolates, log densities of -1e20 occur, and one dataset would own the
    gradient of all, or overflow it. A constant factor leaves each dataset's optimum where it is.
    """
    factor = jax.lax.stop_gradient(1.0 / jnp.maximum(1.0, scale / _STEEP))
    still = jax.lax.stop_gradient(loss)
    return still + factor * (loss - still)
