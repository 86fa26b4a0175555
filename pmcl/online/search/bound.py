"""The lower bound that searches climb."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import MeanField, divergence
from pmcl.online.rows import AbstractRows, RowBatch, Rows


class Remainder(NamedTuple):
    """What a normal lacks of the model's prior.

    Attributes
    ----------
    prior : MeanField
    normal : Array of bool of shape (dim,)
        Entries of which it lacks nothing.
    """

    prior: MeanField
    normal: Array | np.ndarray

    def __call__(self, rows: AbstractRows, z: Array) -> Array:
        """Log density (nats), whose gradient is zero, exactly, where nothing lacks."""
        z = jnp.where(self.normal, jax.lax.stop_gradient(z), z)
        return rows.compiled.log_prior(z) - self.prior.log_density(z)


class Target(NamedTuple):
    """What a search looks for the normal of: a prior times the likelihood of a batch.

    Attributes
    ----------
    prior : MeanField
    batch : RowBatch
        Rows of weight 0 do not count.
    remainder : Remainder, optional
        Of the normal that stands for the model's prior in `prior`, while nothing is known but a
        prior that is not normal.
    more : Array of shape (dim,), optional
        Of :func:`pmcl.online.divergence`.
    """

    prior: MeanField
    batch: RowBatch
    remainder: Remainder | None = None
    more: Array | None = None


def log_likelihood(rows: Rows, z: Array, batch: RowBatch) -> Array:
    """Weighted log likelihood of a batch (nats)."""
    return weighted(rows(z, batch.data), batch.weights)


def log_factor(rows: Rows, z: Array, target: Target) -> Array:
    """What the normal of a target is multiplied by: its rows, and what that lacks (nats)."""
    found = log_likelihood(rows, z, target.batch)
    return found if target.remainder is None else found + target.remainder(rows, z)


def weighted(terms: Array, weights: Array) -> Array:
    """Sum rows' terms by their weights; what has none may be anything."""
    return jnp.sum(jnp.where(weights > 0, weights * terms, 0.0))


def lower_bound(
    rows: AbstractRows,
    q: MeanField,
    target: Target,
    key: Array,
    *,
    draws: int,
    scale: Array | float = 1.0,
) -> Array:
    """Evidence lower bound of a batch, estimated by draws (nats).

    Parameters
    ----------
    rows : Rows
    q : MeanField
    target : Target
    key : Array
    draws : int
    scale : float
        What the batch's likelihood counts: more than once where it stands for more rows.

    References
    ----------
    Nguyen et al. (2018), eq. 4; Kurle et al. (2020), eq. 2.
    """
    prior, batch, remainder, more = target
    signs = (1.0, -1.0) if draws > 1 else (1.0,)

    def one(key: Array) -> Array:
        likelihood_key, prior_key = jax.random.split(key)
        found = jnp.zeros(())
        for sign in signs:
            if batch.data:
                terms = rows.drawn(q, batch.data, likelihood_key, sign)
                found = found + scale * weighted(terms, batch.weights)
            if remainder is not None:
                z = q.at(sign * jax.random.normal(prior_key, q.mean.shape, q.mean.dtype))
                found = found + remainder(rows, z)
        return found / len(signs)

    keys = jax.random.split(key, max(draws // 2, 1))
    found = one(keys[0]) if len(keys) == 1 else jnp.mean(jax.vmap(one)(keys))
    return found - divergence(q, prior, 0.0 if more is None else more)
