"""Gaussian residual scoring: each datum's Gaussian factor, and how ill that one fits it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import Factor, MeanField, expectation
from pmcl.online.rows import Data, Rows
from pmcl.runtime.jitting import jit

_DRAWS = 64  # at most, at a time
_NUMBERS = 2**18  # rows times draws at a time


class Residuals(NamedTuple):
    """What each row contributes to an approximation.

    Attributes
    ----------
    factor : Factor
        Natural parameters, of shape (row, dim).
    gain : Array of shape (row,)
        Expected log likelihood less that of the factor (nats).
    misfit : Array of shape (row,)
        Variance of the difference of the log likelihood and the factor's logarithm: half of it
        is, nearly, the divergence that a Gaussian in place of the likelihood makes.
    """

    factor: Factor
    gain: Array
    misfit: Array


@jit
def residuals(rows: Rows, q: MeanField, data: Data, key: Array, draws: int) -> Residuals:
    """Estimate the factors of all rows at an approximation, and their scores.

    Parameters
    ----------
    rows : Rows
    q : MeanField
        A local optimum of the lower bound: elsewhere the factors do not multiply to it.
    data : mapping
    key : Array
    draws : int
        Each is used with both signs of its noise.

    References
    ----------
    Kurle et al. (2020), eqs. 5a, 5b and 8 (`gain`).
    """

    # Where weights have no noise of their own, the gradients of many draws are summed before they
    # are made: of x @ W they are products of x with what is few numbers a draw.
    most = 1 if rows.local is None else _DRAWS
    together = max(d for d in range(1, most + 1) if draws % d == 0)

    def expected(q: MeanField, datum: Data, keys: Array) -> Array:
        def pair(key: Array) -> Array:
            up, down = (rows.drawn(q, datum, key, sign)[0] for sign in (1.0, -1.0))
            return (up + down) / 2

        return jnp.sum(jax.vmap(pair)(keys))

    def row(i: Array, datum: Data) -> tuple[Array, MeanField]:
        def add(total: tuple, keys: Array) -> tuple[tuple, None]:
            found = jax.value_and_grad(expected)(q, datum, keys)
            return jax.tree.map(jnp.add, total, found), None

        start = (jnp.zeros((), q.mean.dtype), jax.tree.map(jnp.zeros_like, q))
        keys = jax.random.split(jax.random.fold_in(key, i), draws)
        total, _ = jax.lax.scan(add, start, keys.reshape(-1, together))
        return jax.tree.map(lambda v: v / draws, total)

    value, slope = rows.map(row, data)
    factor = _factor(slope, q)

    around = factor._replace(shift=slope.mean)  # the same by the distance from the mean

    def remainder(key: Array) -> Array:
        change = jnp.exp(q.log_sd) * jax.random.normal(key, q.mean.shape, q.mean.dtype)
        # Less the factor's logarithm at the mean, which has no share in the variance.
        return rows(q.mean + change, data) - around.log(change)

    n = rows.length(data)
    keys = jax.random.split(jax.random.fold_in(key, n), 2 * draws)
    some = int(np.clip(_NUMBERS // n, 1, _DRAWS))
    misfit = jnp.var(jax.lax.map(remainder, keys, batch_size=some), axis=0, ddof=1)
    return Residuals(factor, _gain(value, factor, q), misfit)


@jit
def exact_residuals(rows: Rows, q: MeanField, data: Data) -> Residuals:
    """Factors where the likelihood is Gaussian in z: no draws are needed."""

    def row(i: Array) -> tuple[Array, Factor, Array]:
        def value(z: Array) -> Array:
            return rows(z, rows.take(data, i[None]))[0]

        hessian = jax.hessian(value)(q.mean)
        curvature = jnp.diag(hessian)
        expected = value(q.mean) + jnp.sum(curvature * q.variance) / 2
        factor = Factor(-curvature, jax.grad(value)(q.mean) - curvature * q.mean)
        # Products of entries of z are all that no factor has.
        products = hessian - jnp.diag(curvature)
        return expected, factor, q.variance @ products**2 @ q.variance / 2

    value, factor, misfit = jax.lax.map(row, jnp.arange(rows.length(data)))
    return Residuals(factor, _gain(value, factor, q), misfit)


def _gain(value: Array, factor: Factor, q: MeanField) -> Array:
    return value - jax.vmap(expectation, in_axes=(0, None))(factor, q)


@jit
def of_prior(rows: Rows, q: MeanField, normal: MeanField, key: Array, draws: int) -> Factor:
    """Estimate the factor of what a model's prior has and the normal in its place has not.

    By eqs. 5a and 5b, as if it were a datum; it is none, and no row may have a share of it.
    """

    def expected(q: MeanField, key: Array) -> Array:
        noise = jax.random.normal(key, q.mean.shape, q.mean.dtype)
        both = [q.at(sign * noise) for sign in (1.0, -1.0)]
        parts = [rows.compiled.log_prior(z) - normal.log_density(z) for z in both]
        return (parts[0] + parts[1]) / 2

    def add(total: MeanField, key: Array) -> tuple[MeanField, None]:
        return jax.tree.map(jnp.add, total, jax.grad(expected)(q, key)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, q), jax.random.split(key, draws))
    return _factor(jax.tree.map(lambda v: v / draws, total), q)


def _factor(slope: MeanField, q: MeanField) -> Factor:
    """Make the factor of which an expectation under q has these derivatives (eqs. 5a and 5b).

    Twice the derivative by the variance is that by the logarithm of the sd, over the variance.
    """
    precision = -slope.log_sd / q.variance
    return Factor(precision, slope.mean + precision * q.mean)


def debiased(factor: Factor, q: MeanField, prior: Factor, weights: Array) -> Factor:
    """Share out what the rows' factors lack, or have too much, to multiply with the prior to q.

    Parameters
    ----------
    factor : Factor of shape (row, dim)
    q : MeanField
    prior : Factor
    weights : Array of shape (row,)
        Of each row's likelihood; rows of weight 0 take no share.

    References
    ----------
    Kurle et al. (2020), appendix C. (Its last line has the sign of the bias the other way round.)
    """
    lacking = q.factor.times(prior, -1.0).times(product(factor, weights), -1.0)
    return factor.times(lacking, 1 / jnp.sum(weights))


def product(factor: Factor, weights: Array) -> Factor:
    """Multiply rows' factors, each to the power of its weight."""
    return Factor(*((weights[:, None] * v).sum(axis=0) for v in factor))
