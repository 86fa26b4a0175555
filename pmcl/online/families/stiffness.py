"""What holds the mean of a network's weights where rows that are gone were fitted."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.compile.predictors import Predictors
from pmcl.online.families.dense import Full
from pmcl.online.families.low_rank import LowRank
from pmcl.online.families.sites import Said, etas, observed
from pmcl.online.rows import RowBatch, Rows
from pmcl.runtime.jitting import jit

_DRAWS = 100
_DRAWS_OF_ALL = 500  # where all covariances are kept
_NOTHING = 1e-8  # of the diagonal, where columns say all


@jit
def stiffness(
    found: Predictors, rows: Rows, q: Any, batch: RowBatch, said: list[Said], key: Array
) -> Any:
    """Sum the stiffness of the rows of a batch at the mean of a normal.

    Sites are right near where they were linearised. A mean that moves by d turns the slope of a row
    by H d, with H the second derivative of its predictor, and then the predictor's variance under
    the covariance C is larger by d H C H d: of that, times the sites' curvatures, this is the sum.
    It is a mean over draws: with signs e of the rows, and draws c of a normal with covariance C,
    (sum_i e_i H_i c) (sum_i e_i H_i c)' has that expectation.

    Returns
    -------
    Full or LowRank
        The mean, and the stiffness as a precision.
    """
    curved = [
        observed(part, rows, batch)[1][:, None] * jnp.einsum("nii->ni", one.curvature)
        for part, one in zip(found.parts, said, strict=True)
    ]

    def levels(z: Array, part: int) -> Array:
        return etas(found, rows, z, batch.data)[part][0].reshape(-1)

    normal_key, sign_key = jax.random.split(key)
    draws = _DRAWS if isinstance(q, LowRank) else _DRAWS_OF_ALL
    far = q.at(jax.random.normal(normal_key, (draws, len(q.mean)), q.mean.dtype)) - q.mean
    roots = [jnp.sqrt(one).reshape(-1) for one in curved]
    total = sum(len(one) for one in roots)
    signs = jax.random.rademacher(sign_key, (draws, total), q.mean.dtype)

    def bent(far: Array, signs: Array) -> Array:
        def level(z: Array) -> Array:
            all_of = [levels(z, part) for part in range(len(roots))]
            return signs @ (jnp.concatenate(roots) * jnp.concatenate(all_of))

        return jax.jvp(jax.grad(level), (q.mean,), (far,))[1]

    columns = jax.lax.map(lambda one: bent(*one), (far, signs)).T / jnp.sqrt(draws)
    if isinstance(q, LowRank):
        return LowRank(q.mean, _NOTHING * q.diagonal, columns)
    return Full(q.mean, columns @ columns.T)
