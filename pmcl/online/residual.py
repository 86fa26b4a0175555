"""Gaussian residual scoring: each datum's Gaussian factor, and how ill that one fits it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.online.gaussian import Factor, MeanField, expectation
from pmcl.online.rows import Data, Rows


class Residuals(NamedTuple):
    """What each row contributes to an approximation.

    Attributes
    ----------
    factor : Factor
        Natural parameters, of shape (row, dim).
    score : Array of shape (row,)
        Expected log likelihood less that of the factor: large where a Gaussian will not do.
    """

    factor: Factor
    score: Array


def residuals(rows: Rows, q: MeanField, data: Data, noise: Array) -> Residuals:
    """Estimate the factors of all rows at an approximation, and their scores.

    Parameters
    ----------
    rows : Rows
    q : MeanField
        A local optimum of the lower bound: elsewhere the factors do not multiply to it.
    data : mapping
    noise : Array of shape (draw, dim)
        Standard normal; each entry is used with both signs.

    References
    ----------
    Kurle et al. (2020), eqs. 5a, 5b and 8. The derivative by the variance is by reparametrisation:
    the mean of the gradient times the noise, over twice the standard deviation.
    """
    sd = jnp.exp(q.log_sd)

    def step(total: tuple, half: Array) -> tuple[tuple, None]:
        (up, slope_up), (down, slope_down) = (
            rows.slopes(q.at(sign * half), data) for sign in (1.0, -1.0)
        )
        parts = ((up + down) / 2, (slope_up + slope_down) / 2, (slope_up - slope_down) * half / 2)
        return jax.tree.map(jnp.add, total, parts), None

    like = jax.eval_shape(rows.slopes, q.mean, data)
    start = tuple(jnp.zeros(v.shape, v.dtype) for v in (like[0], like[1], like[1]))
    found, _ = jax.lax.scan(step, start, noise)
    value, slope, curved = jax.tree.map(lambda v: v / noise.shape[0], found)
    precision = -curved / sd
    factor = Factor(precision, slope + precision * q.mean)
    score = value - jax.vmap(expectation, in_axes=(0, None))(factor, q)
    return Residuals(factor, score)


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
