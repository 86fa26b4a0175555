"""The stages of refinement as compiled functions over a chunk of datasets, always as many."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_datasets
from pmcl.data.task import Batch
from pmcl.networks import Amortizer
from pmcl.refinement.path import local_path_gradient
from pmcl.refinement.population import population
from pmcl.refinement.proposals import Component, Proposals
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.search.student import Student

BLOCK = 256  # draws of one dataset that are made together


class Keys(NamedTuple):
    """What the random numbers of an item follow from.

    Attributes
    ----------
    seed, stage : Array of shape ()
    position, block : Array of int of shape (item,)
        Of the dataset, and among the items of one.
    """

    seed: Array
    stage: Array
    position: Array
    block: Array

    @classmethod
    def of_chunk(cls, given: tuple) -> "Keys":
        """Of the items of a chunk, whose seed and stage are those of all."""
        seed, stage, position, block = given
        return cls(seed[0], stage[0], position, block)

    def each(self) -> Array:
        """One key an item."""
        key = jax.random.fold_in(jax.random.key(self.seed), self.stage)
        one = lambda p, b: jax.random.fold_in(jax.random.fold_in(key, p), b)  # noqa: E731
        return jax.vmap(one)(self.position, self.block)


@jit
def propose(
    density: Density,
    base: Amortizer | None,
    batch: Batch,
    pool: Proposals,
    used: Array,
    which: Array,
    keys: Keys,
) -> tuple[Array, Array, Array, Array]:
    """Make draws of proposals and evaluate them: pilot draws as well as final ones.

    Parameters
    ----------
    density, base, batch
    pool : Proposals
    used : Array of bool of shape (item, place)
        Proposals whose density is asked for.
    which : Array of int of shape (item, BLOCK)
        Place of the proposal that each draw comes from.
    keys : Keys

    Returns
    -------
    z : Array of shape (item, BLOCK, dim)
    log_q : Array of shape (item, place, BLOCK)
    log_prior, log_likelihood : Array of shape (item, BLOCK)
    """
    pool, used, which, each = devices.spread((pool, used, which, keys.each()))
    dim = density.compiled.dim if base is None else base.noise
    eps = jax.vmap(lambda k: jax.random.normal(k, (BLOCK, dim), jnp.float64))(each)
    mixing = jax.vmap(lambda k: pool.student.mixing(jax.random.fold_in(k, 1), (BLOCK,)))(each)
    z = pool.draw(base, which, eps, mixing)

    def one(data: dict[str, Array], mask: Mask | None, z: Array) -> tuple[Array, Array]:
        return density.parts(z, data, mask)

    return (z, pool.log_q(base, z, used), *over_datasets(one, batch, z))


@jit
def local(
    density: Density,
    batch: Batch,
    component: Component,
    keys: Keys,
    steps: int,
    draws: int,
    rate: float,
) -> tuple[Component, Array]:
    """Local path gradient of one bent normal an item."""

    def one(
        data: dict[str, Array], mask: Mask | None, component: Component, key: Array
    ) -> tuple[Component, Array]:
        def log_density(u: Array) -> Array:
            return density(u, data, mask)

        return local_path_gradient(log_density, component, key, steps=steps, draws=draws, rate=rate)

    return over_datasets(one, batch, component, keys.each())


@jit
def populate(
    density: Density,
    batch: Batch,
    z: Array,
    log_weight: Array,
    keys: Keys,
    components: int,
    rounds: int,
    draws: int,
    enough: Array,
) -> Student:
    """Population Monte Carlo from weighted draws (dataset, draw, dim): fields (dataset, place)."""

    def one(
        data: dict[str, Array], mask: Mask | None, z: Array, log_weight: Array, key: Array
    ) -> Student:
        def log_density(u: Array) -> Array:
            return density(u, data, mask)

        return population(
            log_density,
            z,
            log_weight,
            key,
            components=components,
            rounds=rounds,
            draws=draws,
            enough=enough,
        )

    return over_datasets(one, batch, z, log_weight, keys.each())
