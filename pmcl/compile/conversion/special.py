"""Special functions that JAX lacks, or whose derivative it lacks, or has one that fails."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import betainc as _betainc
from jax.scipy.special import digamma, gammaln
from jax.scipy.special import erfcx as _erfcx

# Tanh-sinh nodes on (0, 1), which singularities at either end do not disturb.
_STEP = np.arange(-96, 97) / 16
_SINH = np.pi * np.sinh(_STEP)
_LOG_T, _LOG_REST = -np.logaddexp(0, -_SINH), -np.logaddexp(0, _SINH)  # log t and log(1 - t)
_LOG_WEIGHT = np.log(np.pi * np.cosh(_STEP) / 16) + _LOG_T + _LOG_REST
_TERMS = np.arange(-160, 161)  # of a power series, about the greatest
_OVERFLOWS = -26.5  # where erfcx does


def erfcx(x: Array) -> Array:
    """Scaled complementary error function, whose derivative is 0 where it overflows."""
    end = x < _OVERFLOWS
    # one value at a time: the second derivative of JAX's own (0.12) fails for arrays
    return jnp.where(end, jnp.inf, _each_erfcx(jnp.where(end, 0.0, x)))


_each_erfcx = jnp.vectorize(_erfcx)


def ive(v: Array, x: Array) -> Array:
    """Modified Bessel function of the first kind times exp(-x), of orders v >= 0 and x >= 0.

    The power series about its greatest term, whose terms are all positive; beyond x = 1600, where
    160 terms on either side are not enough, Hankel's expansion.

    References
    ----------
    NIST Digital Library of Mathematical Functions, 10.25.2 and 10.40.1.
    """
    v, x = jnp.broadcast_arrays(v + jnp.zeros_like(x), x)
    inside, far = x > 0, x > 1600
    near, away = jnp.where(inside & ~far, x, 1.0), jnp.where(far, x, 1e4)
    middle = jax.lax.stop_gradient(jnp.floor((jnp.hypot(v, near) - v) / 2))
    k = jnp.maximum(middle, -_TERMS[0])[..., None] + _TERMS
    power = (2 * k + v[..., None]) * jnp.log(near / 2)[..., None]
    terms = power - gammaln(k + 1) - gammaln(k + v[..., None] + 1) - near[..., None]
    series, hankel = jnp.exp(terms).sum(axis=-1), jnp.ones_like(away)
    for j in range(30, 0, -1):
        hankel = 1 - (4 * v**2 - (2 * j - 1) ** 2) / (8 * j * away) * hankel
    value = jnp.where(far, hankel / jnp.sqrt(2 * np.pi * away), series)
    return jnp.where(inside, value, jnp.where(x == 0, jnp.where(v == 0, 1.0, 0.0), jnp.nan))


@jax.custom_jvp
def betainc(a: Array, b: Array, x: Array) -> Array:
    """Regularised incomplete beta function, with derivatives with respect to a and b too.

    Those are integrals of the density times the derivative of its logarithm, taken over the side of
    x that has less of it.

    References
    ----------
    Takahasi & Mori (1974), Double exponential formulas for numerical integration.
    """
    return _betainc(a, b, x)


@betainc.defjvp
def _derivative(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    a, b, x = primals
    da, db, dx = tangents
    value = betainc(a, b, x)
    inside = (x > 0) & (x < 1)
    x = jnp.where(inside, x, 0.5)
    density = jnp.exp((a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x) - _log_beta(a, b))
    by_a, by_b = _by_shapes(a, b, x)
    by_x = jnp.where(inside, density * dx, 0.0)
    return value, by_x + jnp.where(inside, by_a * da + by_b * db, 0.0)


def _log_beta(a: Array, b: Array) -> Array:
    # JAX's own betaln (0.12) is right to seven digits only
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def _by_shapes(a: Array, b: Array, x: Array) -> tuple[Array, Array]:
    upper = x > a / (a + b)  # integrate from x to 1, as the other function from 0 to 1 - x
    p, q = jnp.where(upper, b, a)[..., None], jnp.where(upper, a, b)[..., None]
    end = jnp.where(upper, 1 - x, x)[..., None]
    log_t = jnp.log(end) + _LOG_T
    log_rest = jnp.log((1 - end) + end * jnp.exp(_LOG_REST))
    weight = jnp.exp(
        p * jnp.log(end) + (p - 1) * _LOG_T + (q - 1) * log_rest - _log_beta(p, q) + _LOG_WEIGHT
    )
    mean = digamma(p + q)
    by_p = jnp.sum(weight * (log_t - digamma(p) + mean), axis=-1)
    by_q = jnp.sum(weight * (log_rest - digamma(q) + mean), axis=-1)
    return jnp.where(upper, -by_q, by_p), jnp.where(upper, -by_p, by_q)


# A logarithm of 0 has no slope that counts: what is impossible is so, or was not chosen. By the
# rule it is infinite, and no number times the 0 of a branch that was not taken.


def log(x: Array) -> Array:
    """Logarithm, whose derivative at 0 is 0."""
    end = x == 0
    return jnp.where(end, -jnp.inf, jnp.log(jnp.where(end, 1.0, x)))


def log1p(x: Array) -> Array:
    """Logarithm of 1 + x, whose derivative at -1 is 0."""
    end = x == -1
    return jnp.where(end, -jnp.inf, jnp.log1p(jnp.where(end, 0.0, x)))


def log1mexp(x: Array) -> Array:
    """Logarithm of 1 - exp(x), whose derivative at 0 is 0."""
    near = x > -np.log(2)
    return jnp.where(
        near,
        log(-jnp.expm1(jnp.where(near, x, -1.0))),
        jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))),
    )
