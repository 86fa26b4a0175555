"""The stages of refinement as compiled functions over a chunk of datasets."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl import devices
from pmcl.batching import over_datasets
from pmcl.compile import Density, Mask, jit
from pmcl.data import Batch
from pmcl.networks import Amortizer
from pmcl.refinement.alignment import Mode, lbfgs, newton, starts
from pmcl.refinement.choice import Choice, choose
from pmcl.refinement.local import local_path_gradient
from pmcl.refinement.population import population
from pmcl.refinement.proposals import (
    AbstractScale,
    Component,
    Dense,
    LowRank,
    Pool,
    ShapedNormal,
    Student,
    identity,
    mixture_log_q,
)


class Search(NamedTuple):
    """How modes are searched for: all static."""

    starts: int
    steps: int
    tol: float
    exact: bool


class Drawn(NamedTuple):
    """Draws with their densities: z (dataset, draw, dim), the others (dataset, draw)."""

    z: np.ndarray
    log_q: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray


Evaluated = tuple[Array, Array, Array, Array]  # what becomes of a Drawn on the device


@jit
def align(
    density: Density, batch: Batch, z: Array, centre: Array, spread: Array, search: Search
) -> Mode:
    """Search for modes from draws z of shape (dataset, draw, dim): fields (dataset, start, ...).

    `centre` and `spread` are the prior's mean and sd.
    """

    def one(data: dict[str, Array], mask: Mask | None, z: Array) -> Mode:
        def log_density(u: Array) -> Array:
            return density(u, data, mask)

        z = jnp.concatenate([z, centre[None]])
        begin = starts(z, jax.vmap(log_density)(z), search.starts, z.shape[0] - 1)
        method = newton if search.exact else lbfgs
        return jax.vmap(
            lambda u: method(log_density, u, spread, steps=search.steps, tol=search.tol)
        )(begin)

    return over_datasets(one, batch, z)


@jit
def contexts(amortizer: Amortizer, batch: Batch) -> Array:
    """Context vectors h(x)."""
    return over_datasets(amortizer.context, batch)


@jit
def whiten(amortizer: Amortizer, context: Array, z: Array, modes: Mode) -> Component:
    """Return the network's posterior and its alignment with the first mode.

    Parameters
    ----------
    amortizer : Amortizer
    context : Array of shape (dataset, context)
    z : Array of shape (dataset, draw, dim)
        Draws of the network, whose mean and covariance are brought to the mode's.
    modes : Mode
        Of fields (dataset, mode, ...).

    Returns
    -------
    Component
        Of fields (dataset, 2, ...): the amortized posterior, the aligned one.
    """
    dim = z.shape[2]

    def one(context: Array, z: Array, mode: Mode) -> Component:
        dense = isinstance(mode.scale, Dense)
        loc, sd = jnp.mean(z, axis=0), jnp.maximum(jnp.std(z, axis=0), 1e-12)
        if dense:
            v = (z - loc) / sd
            lower = jnp.linalg.cholesky(v.T @ v / z.shape[0] + 1e-6 * jnp.eye(dim))
            lower = jnp.where(jnp.isfinite(lower).all(), lower, jnp.eye(dim))
            white: Dense | LowRank = Dense.of(sd[:, None] * lower)
        else:
            white = LowRank.diag(sd)
        whole = identity(context, dim, dense=dense)
        aligned = Component(context, loc, white, mode.z[0], _first(mode.scale))
        if isinstance(aligned.scale, LowRank):
            # Both have to be of one shape to be stacked.
            directions, core = aligned.scale.directions, aligned.scale.core
            empty = LowRank(jnp.ones(dim), directions, jnp.eye(core.shape[0]))
            whole = eqx.tree_at(lambda c: c.scale, whole, empty)
        return jax.tree.map(lambda *x: jnp.stack(x), whole, aligned)

    return devices.spread(jax.vmap(one)(*devices.spread((context, z, modes))))


def laplace(modes: Mode) -> Component:
    """Return the normal at every mode: fields (dataset, mode, ...)."""
    dim = modes.z.shape[-1]

    def one(z: Array, scale: AbstractScale) -> Component:
        whole = identity(jnp.zeros(2 * dim), dim, dense=isinstance(scale, Dense))
        return eqx.tree_at(lambda c: (c.shift, c.scale), whole, (z, scale))

    return jax.vmap(jax.vmap(one))(modes.z, modes.scale)


@jit
def pilot(
    density: Density,
    base: Amortizer | None,
    batch: Batch,
    pool: Pool,
    keys: Array,
    members: Array,
    prefer: Array,
    draws: int,
) -> Choice:
    """Choose the proposal of every dataset from `draws` pilot draws of every component."""

    def one(data: dict[str, Array], mask: Mask | None, pool: Pool, key: Array) -> Choice:
        dim = density.compiled.dim
        z = pool.draw(base, key, draws, dim).reshape(-1, dim)
        log_p = jax.vmap(lambda u: density(u, data, mask))(z)
        return choose(log_p, pool.log_q(base, z), members, prefer)

    return over_datasets(one, batch, pool, keys)


@jit
def local(
    density: Density,
    base: Amortizer | None,
    batch: Batch,
    component: Component,
    keys: Array,
    steps: int,
    draws: int,
    rate: float,
) -> tuple[Component, Array]:
    """Local path gradient of components of fields (dataset, mode, ...)."""
    by = ShapedNormal(density.compiled.dim) if base is None else base

    def one(
        data: dict[str, Array], mask: Mask | None, component: Component, key: Array
    ) -> tuple[Component, Array]:
        def log_density(u: Array) -> Array:
            return density(u, data, mask)

        def refined(component: Component, key: Array) -> tuple[Component, Array]:
            return local_path_gradient(
                log_density, by, component, key, steps=steps, draws=draws, rate=rate
            )

        n = component.shift.shape[0]
        return jax.vmap(refined)(component, jax.random.split(key, n))

    return over_datasets(one, batch, component, keys)


@jit
def populate(
    density: Density,
    base: Amortizer | None,
    batch: Batch,
    pool: Pool,
    keys: Array,
    components: int,
    rounds: int,
    draws: int,
) -> Student:
    """Population Monte Carlo from a pool's draws: fields (dataset, component, ...)."""

    def one(data: dict[str, Array], mask: Mask | None, pool: Pool, key: Array) -> Student:
        dim = density.compiled.dim

        def log_density(u: Array) -> Array:
            return density(u, data, mask)

        z = pool.draw(base, key, draws, dim).reshape(-1, dim)
        log_q = pool.log_q(base, z)
        pooled = mixture_log_q(log_q, jnp.full(log_q.shape[0], 1.0 / log_q.shape[0]))
        ratio = jax.vmap(log_density)(z) - pooled
        ratio = jnp.where(jnp.isfinite(ratio), ratio, -jnp.inf)
        return population(
            log_density,
            jnp.where(jnp.isfinite(z), z, 0.0),
            ratio,
            jax.random.fold_in(key, 1),
            components=components,
            rounds=rounds,
            draws=draws * components,
        )

    return over_datasets(one, batch, pool, keys)


@jit
def draw_one(
    density: Density,
    base: Amortizer | None,
    batch: Batch,
    component: Component,
    keys: Array,
    draws: int,
) -> Evaluated:
    """Draw from one component a dataset (fields (dataset, ...)): its density comes with it."""
    dim = density.compiled.dim
    by = ShapedNormal(dim) if base is None else base

    def one(
        data: dict[str, Array], mask: Mask | None, component: Component, key: Array
    ) -> Evaluated:
        eps = jax.random.normal(key, (draws, dim), jnp.float64)
        z, log_q = jax.vmap(lambda e: component.transform(by, e))(eps)
        return _evaluate(density, z.astype(jnp.float64), log_q.astype(jnp.float64), data, mask)

    return over_datasets(one, batch, component, keys)


@jit
def draw_mixture(
    density: Density,
    base: Amortizer | None,
    batch: Batch,
    pool: Pool,
    weights: Array,
    keys: Array,
    draws: int,
) -> Evaluated:
    """Draw from mixtures of a pool's components, in numbers as equal to the weights as can be."""

    def one(
        data: dict[str, Array], mask: Mask | None, pool: Pool, weights: Array, key: Array
    ) -> Evaluated:
        first, second, third = jax.random.split(key, 3)
        points = (jnp.arange(draws) + jax.random.uniform(first)) / draws
        which = jnp.searchsorted(jnp.cumsum(weights), points * jnp.sum(weights) * (1 - 1e-12))
        which = jax.random.permutation(second, jnp.minimum(which, weights.shape[0] - 1))
        everyone = pool.draw(base, third, draws, density.compiled.dim)
        z = everyone[which, jnp.arange(draws)]
        return _evaluate(density, z, mixture_log_q(pool.log_q(base, z), weights), data, mask)

    return over_datasets(one, batch, pool, weights, keys)


def _evaluate(
    density: Density, z: Array, log_q: Array, data: dict[str, Array], mask: Mask | None
) -> Evaluated:
    compiled, row = density.compiled, density.row
    log_prior = jax.vmap(lambda u: compiled.log_prior(u, data))(z)
    log_likelihood = jax.vmap(lambda u: compiled.log_likelihood(u, data, mask=mask, dim=row))(z)
    return (z, log_q, log_prior, log_likelihood)


def _first[T](tree: T) -> T:
    return jax.tree.map(lambda x: x[0], tree)
