"""Where the update is known in closed form: entries that enter linearly, with normal noise."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.online.gaussian import Factor, MeanField
from pmcl.online.rows import Data, Rows
from pmcl.online.search.bound import Target, log_likelihood
from pmcl.runtime.jitting import jit

SAME = 1e-6  # of the curvature: what counts as no change
_FAR = (-100.0, -30.0, -10.0, 10.0, 30.0, 100.0)  # in standard deviations
LARGEST = 2000  # entries of z whose covariances are solved for


@jit
def is_gaussian(rows: Rows, q: MeanField, data: Data, key: Array) -> Array:
    """Whether a batch's likelihood is quadratic in z: its curvature is the same everywhere.

    Compared along random directions, at the mean and at two draws of q that is three times as wide,
    for every observed variable by itself.
    """
    where, along = jax.random.normal(key, (2, 2, *q.mean.shape), q.mean.dtype)
    wide = q._replace(log_sd=q.log_sd + jnp.log(3.0))

    def one(name: str) -> Array:
        def total(z: Array) -> Array:
            return jnp.sum(rows.compiled.log_likelihood_terms(z, data)[name])

        def curved(z: Array, v: Array) -> Array:
            return jax.jvp(jax.grad(total), (z,), (v,))[1]

        here = jax.vmap(lambda v: curved(q.mean, v))(along)
        there = jax.vmap(curved)(wide.at(where), along)
        # Where a batch says nothing, it does not say this either.
        return _same(here, there).all() & (jnp.max(jnp.abs(here)) > 0)

    return jnp.stack([one(info.name) for info in rows.compiled.observed]).all()


def _same(a: Array, b: Array) -> Array:
    """Entries that agree; those that are zero but for rounding count as zero."""
    return jnp.abs(a - b) <= SAME * jnp.abs(a) + 1e-12 * jnp.max(jnp.abs(a))


@jit
def normal_entries(
    log_density: Callable[[Array], Array], standard: MeanField, key: Array
) -> tuple[Array, Factor]:
    """Find the entries of z that are normal and independent of all others, and their factors.

    Signs at random: where a row of the Hessian has nothing but its diagonal, v * (H v) is that for
    all of them; and for a normal it is so everywhere.
    """
    slope = jax.grad(log_density)
    sign_key, key = jax.random.split(key)
    signs = jax.random.rademacher(sign_key, (3, *standard.mean.shape), standard.mean.dtype)
    noise = jax.random.normal(key, signs.shape, signs.dtype)
    at = standard.at(noise.at[0].set(0.0))
    found = jax.vmap(lambda z, v: -v * jax.jvp(slope, (z,), (v,))[1])(at, signs)
    precision = found[0]
    near = jnp.abs(found - precision) <= SAME * jnp.abs(precision)
    factor = Factor(precision, slope(at[0]) + precision * at[0])
    normal = near.all(axis=0) & (precision > 0)
    # Far out as well: a mixture has another camp there, which no slope near zero tells of.
    precision = jnp.where(normal, precision, 1.0)
    away = jnp.asarray(_FAR, precision.dtype)[:, None] / jnp.sqrt(precision)
    rise = jax.vmap(slope)(jnp.where(normal, factor.shift / precision + away, 0.0))
    alike = jnp.abs(rise + precision * away) <= 1e-3 * jnp.abs(precision * away)
    return normal & alike.all(axis=0), factor


@jit
def exact(rows: Rows, target: Target) -> MeanField:
    """Project where the likelihood is Gaussian in z: the posterior's mean, and its precisions.

    Parameters
    ----------
    rows : Rows
    target : Target

    References
    ----------
    Nguyen et al. (2018), appendix F, eqs. 6 and 7.
    """
    prior, more = target.prior, 0.0 if target.more is None else target.more
    total = partial(log_likelihood, rows, batch=target.batch)
    slope, curvature = jax.grad(total)(prior.mean), -jax.hessian(total)(prior.mean)
    precision = prior.factor.precision
    mean = prior.mean + jnp.linalg.solve(jnp.diag(precision + more) + curvature, slope)
    return MeanField(mean, -jnp.log(precision + jnp.diag(curvature)) / 2)
