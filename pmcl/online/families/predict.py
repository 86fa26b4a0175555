"""Predictions of a network that is linear in its weights."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel, localise
from pmcl.compile.predictors import Predictor
from pmcl.online.families.anchor import Told
from pmcl.online.families.sites import Looked, etas, look
from pmcl.online.rows import RowBatch, Rows
from pmcl.runtime.jitting import jit


def is_network(compiled: CompiledModel) -> bool:
    """Whether a layer of the likelihood follows another."""
    layers = localise(compiled)
    return layers is not None and layers.deep


@jit
def log_predictive(told: Told, rows: Rows, q: Any, batch: RowBatch, z: Array) -> Array:
    """Log of the mean density of every row, by draws z, with predictors linear in them.

    References
    ----------
    Immer, Korzepa & Bauer (2021), Improving predictions of Bayesian neural nets via local
    linearization.
    """
    looked = look(told, rows, q.mean, batch)
    if (
        len(looked) == 1
        and told.parts[0].kind == "normal"
        and looked[0].y.size == (batch.weights.size)
    ):
        return jnp.where(looked[0].weights > 0, _of_normal(told.parts[0], looked[0], q, z), 0.0)
    total = jnp.zeros(())
    for part, site in zip(told.parts, looked, strict=True):

        def one(z: Array, part: Any = part, site: Any = site) -> Array:
            eta = site.eta + site.slope @ (z - q.mean)
            found = part.log_density(eta, site.others, site.y)
            return jnp.where(site.weights > 0, found, 0.0)

        terms = jax.lax.map(one, z)
        total = total + terms.reshape(len(z), len(batch.weights), -1).sum(axis=2)
    return jax.nn.logsumexp(total, axis=0) - jnp.log(len(z))


def _of_normal(part: Predictor, at: Looked, q: Any, z: Array) -> Array:
    """The same with the means integrated out, given each draw's log sd.

    Where noise is far smaller than what the means may be, few draws come near any value.
    """
    spread = q.spread(at.slope)
    if part.told == (1,):  # means are known
        wide, mean = jnp.zeros_like(at.y), at.others[0]
    else:
        wide, mean = spread[:, 0, 0], at.eta[:, 0]
    along = jnp.zeros_like(at.y)
    if 1 not in part.told:
        log_sd = jnp.log(at.others[-1])[None]
        far = jnp.zeros(())
    else:
        far = (at.slope[:, -1] @ (z - q.mean).T).T
        log_sd = at.eta[:, -1] + far
        if part.told == (0, 1):
            along = spread[:, 0, 1] / jnp.maximum(spread[:, 1, 1], 1e-300)
            wide = jnp.maximum(wide - along * spread[:, 0, 1], 0.0)
    variance = wide + jnp.exp(2 * log_sd)
    square = (at.y - mean - along * far) ** 2 / variance
    found = -(jnp.log(2 * jnp.pi * variance) + square) / 2
    return jax.nn.logsumexp(found, axis=0) - jnp.log(len(found))


@jit
def _linearised(
    told: Told, rows: Rows, mean: Array, data: Mapping[str, Array], z: Array
) -> list[tuple[Array, tuple[Array, ...]]]:
    def one(z: Array) -> list[tuple[Array, tuple[Array, ...]]]:
        here = lambda v: etas(told, rows, v, data)  # noqa: E731
        at, change = jax.jvp(here, (mean,), (z - mean,))
        return [(e + d, others) for (e, others), (d, _) in zip(at, change, strict=True)]

    return jax.lax.map(one, z)


def drawn(
    told: Told,
    rows: Rows,
    mean: Array,
    data: Mapping[str, np.ndarray],
    z: Array,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Draw observations, shape (draw, *their own), at draws of z, with predictors linear in them.

    Parameters
    ----------
    told : Predictors or Anchored
    rows : Rows
    mean : Array of shape (dim,)
        Of z, about which predictors are told.
    data : mapping of arrays
        Covariates, and observed variables of the right shape with any values.
    z : Array of shape (draw, dim)
    rng : numpy.random.Generator
    """
    found = _linearised(told, rows, mean, {k: jnp.asarray(v) for k, v in data.items()}, z)
    results = {}
    for part, (eta, others) in zip(told.parts, found, strict=True):
        axis = rows.axis(part.name) or 0
        moved = np.moveaxis(np.empty(data[part.name].shape), axis, 0).shape
        values = part.draw(np.asarray(eta), tuple(np.asarray(v) for v in others), rng)
        values = values.reshape(len(z), *moved)
        results[part.name] = np.moveaxis(values, 1, axis + 1)
    return results
