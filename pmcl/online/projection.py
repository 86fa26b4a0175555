"""The mean-field normal nearest to a prior times the likelihood of a batch."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pmcl.online.gaussian import MeanField, divergence
from pmcl.online.rows import Rows

SAME = 1e-6  # of the curvature: what counts as no change


class Batch(NamedTuple):
    """Rows that arrive together.

    Attributes
    ----------
    data : dict of arrays
        Observed variables and covariates.
    weights : Array of shape (row,)
        Of each row's log likelihood: 0 for padding, less than 1 for what is old.
    """

    data: Mapping[str, Array]
    weights: Array


class Search(NamedTuple):
    """How the evidence lower bound is climbed.

    Attributes
    ----------
    steps, draws : int
        Steps of Adam, and reparametrised draws of z in each.
    learning_rate : float
        At first; it falls to zero by a cosine.
    """

    steps: int = 1000
    draws: int = 10
    learning_rate: float = 1e-2


def log_likelihood(rows: Rows, z: Array, batch: Batch) -> Array:
    """Weighted log likelihood of a batch (nats)."""
    terms = rows(z, batch.data)
    return jnp.sum(jnp.where(batch.weights > 0, batch.weights * terms, 0.0))


def is_gaussian(rows: Rows, q: MeanField, batch: Batch, key: Array) -> Array:
    """Whether the likelihood is Gaussian in z: its curvature is the same everywhere.

    Compared along random directions, at the mean and at two draws of q that is three times as wide.
    """
    where, along = jax.random.normal(key, (2, 2, *q.mean.shape), q.mean.dtype)
    slope = jax.grad(lambda z: log_likelihood(rows, z, batch))

    def curved(z: Array, v: Array) -> Array:
        return jax.jvp(slope, (z,), (v,))[1]

    wide = q._replace(log_sd=q.log_sd + jnp.log(3.0))
    here = jax.vmap(lambda v: curved(q.mean, v))(along)
    there = jax.vmap(curved)(wide.at(where), along)
    return jnp.max(jnp.abs(here - there)) <= SAME * jnp.max(jnp.abs(here))


def exact(rows: Rows, prior: MeanField, batch: Batch) -> MeanField:
    """Project where the likelihood is Gaussian in z: the posterior's mean, and its precisions.

    References
    ----------
    Nguyen et al. (2018), appendix F, eqs. 6 and 7.
    """

    def total(z: Array) -> Array:
        return log_likelihood(rows, z, batch)

    slope, curvature = jax.grad(total)(prior.mean), -jax.hessian(total)(prior.mean)
    precision = prior.factor.precision
    mean = prior.mean + jnp.linalg.solve(jnp.diag(precision) + curvature, slope)
    return MeanField(mean, -jnp.log(precision + jnp.diag(curvature)) / 2)


def lower_bound(rows: Rows, q: MeanField, prior: MeanField, batch: Batch, noise: Array) -> Array:
    """Evidence lower bound of a batch, by draws from standard normal noise of shape (draw, dim).

    References
    ----------
    Nguyen et al. (2018), eq. 4; Kurle et al. (2020), eq. 2.
    """
    terms = jax.vmap(lambda z: log_likelihood(rows, z, batch))(q.at(noise))
    return jnp.mean(terms) - divergence(q, prior)


def climb(
    rows: Rows, start: MeanField, prior: MeanField, batch: Batch, search: Search, key: Array
) -> tuple[MeanField, Array]:
    """Project by stochastic gradients of the lower bound; also its value at every step.

    Noise comes in pairs of opposite sign, which leaves the gradient right and makes it less noisy.
    """
    schedule = optax.cosine_decay_schedule(search.learning_rate, search.steps)
    optimizer = optax.adam(schedule)
    pairs = (max(search.draws // 2, 1), *start.mean.shape)

    def step(state: tuple, key: Array) -> tuple[tuple, Array]:
        q, moments = state
        half = jax.random.normal(key, pairs, q.mean.dtype)
        noise = jnp.concatenate([half, -half])
        value, slope = jax.value_and_grad(lambda q: -lower_bound(rows, q, prior, batch, noise))(q)
        move, moments = optimizer.update(slope, moments, q)
        return (optax.apply_updates(q, move), moments), -value

    keys = jax.random.split(key, search.steps)
    (q, _), values = jax.lax.scan(step, (start, optimizer.init(start)), keys)
    return q, values
