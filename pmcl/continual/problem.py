"""What adaptation minimises: an objective over a pool of datasets, and penalties of strategies."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density
from pmcl.continual.objectives.objectives import AbstractObjective, Example
from pmcl.continual.pool import Pool
from pmcl.continual.strategies.strategy import AbstractStrategy
from pmcl.data.batching import chunks, over_datasets, taken
from pmcl.networks import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.training import Problem, gradient_of, negative_log_likelihood, weights_of

_TOGETHER = 16  # datasets that a device judges together
_STEEP = 100.0  # gradient per draw, in standardised units, above which a dataset is held back


class SelfConsistency(Problem):
    """Weighted mean of an objective over the datasets of each step, and the strategies' penalties.

    Attributes
    ----------
    strategies, states : tuples
        Those that add a penalty or follow the steps.
    simulation_weight : Array
        Weight of the negative log likelihood of simulations.
    simulations : int
        Fresh simulations of each step.
    together : int
        Datasets whose gradients are taken at once; a step takes as many turns as it needs.
    """

    objective: AbstractObjective
    density: Density
    strategies: tuple[AbstractStrategy, ...]
    states: tuple[Any, ...]
    simulation_weight: Array
    simulations: int = eqx.field(static=True)
    together: int = eqx.field(static=True)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Any]) -> Array:
        return self.loss_and_gradient(amortizer, key, host)[0]

    def loss_and_gradient(
        self, amortizer: Amortizer, key: Array, host: dict[str, Any]
    ) -> tuple[Array, Amortizer]:
        """Loss of the step's `pool`, of which the first `number` datasets count, and its gradient.

        `simulated` are the step's simulations: z, the data and their mask.

        Datasets come in turns of `together`: any number of them is one compiled function.
        """
        pool, number = host["pool"], host["number"]

        def turn(i: Array, total: tuple) -> tuple:
            part = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, i * self.together, self.together), pool
            )
            keys = jax.random.split(jax.random.fold_in(key, i), self.together)

            def summed(a: Amortizer) -> tuple[Array, Array]:
                found = sums(self.objective, a, self.density, part, keys)
                return found.loss, found.weight

            new = gradient_of(summed, amortizer, aside=True)
            return jax.tree.map(jnp.add, total, new)

        weights = weights_of(amortizer)
        nothing = (jnp.zeros(()), jnp.zeros(())), jax.tree.map(jnp.zeros_like, weights)
        turns = -(-number // self.together)
        (total, weight), gradient = jax.lax.fori_loop(0, turns, turn, nothing)
        weight = jnp.maximum(weight, 1e-12)
        loss = total / weight
        gradient = jax.tree.map(lambda g: g / weight.astype(g.dtype), gradient)
        if self.simulations:
            more, pull = gradient_of(
                lambda a: negative_log_likelihood(a, *host["simulated"]), amortizer
            )
            by = self.simulation_weight
            loss = loss + by * more
            gradient = jax.tree.map(lambda g, p: g + by * p, gradient, pull)
        return loss, gradient

    def penalty(self, params: Amortizer) -> Array | None:
        terms = [
            s.penalty(state, params) for s, state in zip(self.strategies, self.states, strict=True)
        ]
        there = [t for t in terms if t is not None]
        return sum(there[1:], start=there[0]) if there else None

    def trace(self, params: Amortizer) -> tuple[Any, ...]:
        pairs = zip(self.strategies, self.states, strict=True)
        return tuple(s.trace(state, params) for s, state in pairs)

    def follow(
        self, trace: tuple[Any, ...], gradient: Amortizer, change: Amortizer
    ) -> tuple[Any, ...]:
        pairs = zip(self.strategies, trace, strict=True)
        return tuple(s.follow(t, gradient, change) for s, t in pairs)


class Sums(NamedTuple):
    """Sums over datasets, of shape (): of weight times loss, and what it is to be divided by.

    `efficiency` is that of the draws, by weight, and `share` the sum of all weights.
    """

    loss: Array
    weight: Array
    efficiency: Array
    share: Array


def sums(
    objective: AbstractObjective, amortizer: Amortizer, density: Density, pool: Pool, keys: Array
) -> Sums:
    """Evaluate an objective at some datasets, each with a key."""
    found = over_datasets(
        lambda *given: objective(amortizer, density, Example(*given[:4]), given[4]),
        pool.batch,
        pool.labels,
        pool.batch.place,
        keys,
    )
    weights = jnp.where(found.finite > 0, pool.weights, 0.0)
    loss = _shrink(jnp.where(weights > 0, found.loss, 0.0), jnp.asarray(found.scale))
    efficiency = jnp.where(pool.weights > 0, jnp.asarray(found.efficiency), 0.0)
    return Sums(
        *(jnp.sum(v).astype(jnp.float64) for v in (weights * loss, weights)),
        *(jnp.sum(v) for v in (pool.weights * efficiency, pool.weights)),
    )


@jit
def _judged(
    objective: AbstractObjective,
    amortizer: Amortizer,
    density: Density,
    pool: Pool,
    seed: Array,
    position: Array,
) -> Sums:
    key = jax.random.fold_in(jax.random.key(seed), 1)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(position)
    return sums(objective, amortizer, density, pool, keys)


def mean_loss_and_efficiency(
    objective: AbstractObjective, amortizer: Amortizer, density: Density, pool: Pool, *, seed: int
) -> tuple[float, float]:
    """Weighted means of an objective, and of the efficiency of its draws, over any number."""
    judged = objective.held_back(amortizer, density, pool.batch, pool.labels, seed=seed)
    if judged is not None:
        weights = np.where((judged.finite > 0) & np.isfinite(judged.loss), pool.weights, 0.0)
        loss = np.sum(np.where(weights > 0, weights * judged.loss, 0.0))
        efficiency = np.average(judged.efficiency, weights=pool.weights)
        return float(loss / max(weights.sum(), 1e-12)), float(efficiency)
    parts = []
    for which, n in chunks(len(pool.weights), devices.together(_TOGETHER)):
        part = taken(pool, which)
        part = part._replace(weights=np.where(np.arange(len(which)) < n, part.weights, 0.0))
        found = _judged(objective, amortizer, density, part, np.asarray(seed), which)
        parts.append([float(devices.gathered(v)) for v in found])
    loss, weight, efficiency, share = np.sum(parts, axis=0)
    return loss / max(weight, 1e-12), efficiency / max(share, 1e-12)


def _shrink(loss: Array, scale: Array) -> Array:
    """Keep the value of each dataset's loss; divide its gradient by its scale beyond a limit.

    Where the network extrapolates, log densities of -1e20 occur, and one dataset would own the
    gradient of all, or overflow it. A constant factor leaves each dataset's optimum where it is.
    """
    factor = jax.lax.stop_gradient(1.0 / jnp.maximum(1.0, scale / _STEEP))
    still = jax.lax.stop_gradient(loss)
    return still + factor * (loss - still)
