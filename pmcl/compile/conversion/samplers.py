"""JAX samplers of distributions for which PyTensor has none, or a wrong one.

Each takes a key, the batch shape and the distribution's parameters in the order of PyTensor's or
PyMC's own random variable, and gives draws of shape (*shape, *core).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtr, ndtri

type Shape = tuple[int, ...]
type Draw = Callable[..., Array]


def categorical(key: Array, shape: Shape, p: Array) -> Array:
    """By log odds: PyTensor 3.3 hands `logit(p)` to JAX where it wants `log(p)`."""
    return jax.random.categorical(key, jnp.log(p), shape=shape)


def bernoulli(key: Array, shape: Shape, p: Array) -> Array:
    """Zeros and ones; PyTensor 3.3's are true and false, which do not index what they should."""
    return jax.random.bernoulli(key, p, shape=shape)


def binomial(key: Array, shape: Shape, n: Array, p: Array) -> Array:
    """By JAX's own sampler; PyTensor 3.3 goes through NumPyro only."""
    return jax.random.binomial(key, n, p, shape=shape)


def multinomial(key: Array, shape: Shape, n: Array, p: Array) -> Array:
    """Binomials of what is left, one after another.

    PyTensor 3.3 subtracts probabilities from one: where the last are tiny, rounding makes a share
    of the rest greater than one, and a draw that is no number.
    """
    rest = jnp.cumsum(p[..., ::-1], axis=-1)[..., ::-1]
    share = jnp.where(rest > 0, jnp.minimum(p / jnp.where(rest > 0, rest, 1), 1), 0)
    share = jnp.moveaxis(jnp.broadcast_to(share, (*shape, p.shape[-1])), -1, 0)[:-1]

    def draw(left: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        x = jax.random.binomial(given[0], left, given[1], shape=shape)
        x = jnp.where(left > 0, x, 0).astype(left.dtype)
        return left - x, x

    left, first = jax.lax.scan(
        draw, jnp.broadcast_to(n, shape), (jax.random.split(key, len(share)), share)
    )
    return jnp.concatenate([jnp.moveaxis(first, 0, -1), left[..., None]], axis=-1)


def discrete_uniform(key: Array, shape: Shape, lower: Array, upper: Array) -> Array:
    """Integers from `lower` to `upper`, both included."""
    return jax.random.randint(key, shape, lower, upper + 1)


def hypergeometric(key: Array, shape: Shape, good: Array, bad: Array, n: Array) -> Array:
    """Draw one after another without replacement."""
    good, bad, n = (jnp.broadcast_to(v, shape) for v in (good, bad, n))

    def draw(i: Array, left: tuple[Array, Array]) -> tuple[Array, Array]:
        good, bad = left
        u = jax.random.uniform(jax.random.fold_in(key, i), shape)
        hit = u * (good + bad) < good
        active = i < n
        return good - (hit & active), bad - (~hit & active)

    return good - jax.lax.fori_loop(0, jnp.max(n, initial=0), draw, (good, bad))[0]


def weibull(key: Array, shape: Shape, alpha: Array) -> Array:
    """Weibull of unit scale."""
    return jax.random.exponential(key, shape) ** (1 / alpha)


def triangular(key: Array, shape: Shape, lower: Array, mode: Array, upper: Array) -> Array:
    """By JAX's own sampler."""
    return jax.random.triangular(key, lower, mode, upper, shape)


def moyal(key: Array, shape: Shape, mu: Array, sigma: Array) -> Array:
    """exp(-x) of the standard distribution is chi-squared with one degree of freedom."""
    return mu - sigma * jnp.log(jax.random.normal(key, shape) ** 2)


def skew_normal(key: Array, shape: Shape, mu: Array, sigma: Array, alpha: Array) -> Array:
    """Azzalini (1985): a half normal and a normal."""
    first, second = jax.random.normal(key, (2, *shape))
    delta = alpha / jnp.sqrt(1 + alpha**2)
    return mu + sigma * (delta * jnp.abs(first) + jnp.sqrt(1 - delta**2) * second)


def skew_student_t(
    key: Array, shape: Shape, a: Array, b: Array, mu: Array, sigma: Array
) -> Array:  # fmt: skip
    """Jones & Faddy (2003), eq. 3: a beta variable, transformed."""
    one, two = jax.random.split(key)
    # of two gamma variables: nothing is lost next to 0 and 1
    g, h = jax.random.gamma(one, a, shape), jax.random.gamma(two, b, shape)
    return mu + sigma * jnp.sqrt(a + b) * (g - h) / (2 * jnp.sqrt(g * h))


def truncated_normal(
    key: Array, shape: Shape, mu: Array, sigma: Array, lower: Array, upper: Array
) -> Array:
    """By the inverse distribution function, in the tail where it is accurate."""
    low, high = (lower - mu) / sigma, (upper - mu) / sigma
    right = low > 0
    low, high = jnp.where(right, -high, low), jnp.where(right, -low, high)
    u = jax.random.uniform(key, shape)
    x = jnp.clip(ndtri(ndtr(low) + u * (ndtr(high) - ndtr(low))), low, high)
    return mu + sigma * jnp.where(right, -x, x)


def wald(key: Array, shape: Shape, mu: Array, lam: Array, alpha: Array) -> Array:
    """Michael, Schucany & Haas (1976): one of two roots."""
    one, two = jax.random.split(key)
    y = mu * jax.random.normal(one, shape) ** 2
    # the smaller root, without the difference of two large numbers
    root = mu * 2 * lam / (2 * lam + y + jnp.sqrt(4 * lam * y + y**2))
    first = jax.random.uniform(two, shape) * (mu + root) <= mu
    return alpha + jnp.where(first, root, mu**2 / root)


def rice(key: Array, shape: Shape, b: Array, sigma: Array) -> Array:
    """Length of a normal vector with mean (b, 0)."""
    one, two = jax.random.normal(key, (2, *shape))
    return sigma * jnp.hypot(b + one, two)


def von_mises(key: Array, shape: Shape, mu: Array, kappa: Array) -> Array:
    """Best & Fisher (1979): rejection from a wrapped Cauchy."""
    mu, kappa = jnp.broadcast_to(mu, shape), jnp.broadcast_to(kappa, shape)
    tau = 1 + jnp.sqrt(1 + 4 * kappa**2)
    rho = (tau - jnp.sqrt(2 * tau)) / (2 * kappa)
    # next to kappa = 0 the difference above is lost; two terms of its series are not
    r = jnp.where(kappa < 1e-4, 1 / kappa + kappa, (1 + rho**2) / (2 * rho))

    def again(state: tuple[Array, Array, Array]) -> Array:
        return ~jnp.all(state[1])

    def redraw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, done, x = state
        u, v, side = jax.random.uniform(jax.random.fold_in(key, i), (3, *shape))
        z = jnp.cos(jnp.pi * u)
        f = (1 + r * z) / (r + z)
        c = kappa * (r - f)
        kept = (c * (2 - c) > v) | (jnp.log(c / v) + 1 - c >= 0)
        angle = jnp.sign(side - 0.5) * jnp.arccos(jnp.clip(f, -1, 1))
        return i + 1, done | kept, jnp.where(kept & ~done, angle, x)

    start = (jnp.zeros((), int), jnp.isnan(r), jnp.full(shape, jnp.nan))
    x = mu + jax.lax.while_loop(again, redraw, start)[2]
    return (x + jnp.pi) % (2 * jnp.pi) - jnp.pi


def interpolated(key: Array, shape: Shape, x: Array, pdf: Array, cdf: Array) -> Array:
    """Invert the integral of a density that is linear between points."""
    core = x.shape[-1]
    x, pdf, cdf = (v.reshape(-1, core)[0] for v in (x, pdf, cdf))  # PyMC has no batches of them
    p = jax.random.uniform(key, shape)
    i = jnp.clip(jnp.searchsorted(cdf, p) - 1, 0, core - 2)
    slope = (pdf[i + 1] - pdf[i]) / (x[i + 1] - x[i])
    above = p - cdf[i]
    # the root of slope/2 s^2 + pdf s = above, in the form that is good at slope = 0 too
    root = jnp.sqrt(jnp.maximum(pdf[i] ** 2 + 2 * slope * above, 0))
    return x[i] + jnp.where(above > 0, 2 * above / (pdf[i] + root), 0)


def stick_breaking_weights(key: Array, shape: Shape, alpha: Array, K: Array) -> Array:
    """Break K pieces off a stick; `K` is known when this is traced."""
    k = int(np.asarray(K).ravel()[0])
    pieces = jax.random.beta(key, 1.0, jnp.asarray(alpha)[..., None], (*shape, k))
    left = jnp.cumprod(1 - pieces, axis=-1)
    before = jnp.concatenate([jnp.ones((*shape, 1)), left[..., :-1]], axis=-1)
    return jnp.concatenate([before * pieces, left[..., -1:]], axis=-1)


def matrix_normal(key: Array, shape: Shape, mu: Array, row: Array, column: Array) -> Array:
    """`row` and `column` are Cholesky factors."""
    z = jax.random.normal(key, (*shape, row.shape[-1], column.shape[-1]))
    return mu + row @ z @ jnp.swapaxes(column, -1, -2)


def _by_precision(key: Array, shape: Shape, Q: Array) -> Array:
    L = jnp.linalg.cholesky(Q)
    z = jax.random.normal(key, (*shape, Q.shape[-1]))
    return solve_triangular(L.T, z[..., None], lower=False)[..., 0]


def car(
    key: Array, shape: Shape, mu: Array, W: Array, alpha: Array, tau: Array, _valid: Array
) -> Array:
    """Precision tau (D - alpha W). PyMC 6.4's own sampler draws with the square of its inverse."""
    W = W.reshape(W.shape[-2:])
    Q = jnp.ravel(tau)[0] * (jnp.diag(W.sum(axis=0)) - jnp.ravel(alpha)[0] * W)
    return mu + _by_precision(key, shape, Q)


def icar(key: Array, shape: Shape, W: Array, sigma: Array, zero_sum_stdev: Array) -> Array:
    """Precision (D - W) / sigma^2 and the density of the sum; PyMC has no sampler."""
    n = W.shape[-1]
    Q = (jnp.diag(W.sum(axis=0)) - W) / sigma**2 + 1 / (zero_sum_stdev * n) ** 2
    return _by_precision(key, shape, Q)


def lkj_cholesky(key: Array, shape: Shape, n: int, eta: Array) -> Array:
    """Cholesky factor of a correlation matrix, row by row (the onion).

    Lewandowski, Kurowicka & Joe (2009), section 3.2.
    """
    one, two = jax.random.split(key)
    row = jnp.arange(1, n)
    y = jax.random.beta(one, row / 2, eta - 1 + n / 2 - (row - 1) / 2, (*shape, n - 1))
    direction = jnp.tril(jax.random.normal(two, (*shape, n - 1, n - 1)))
    direction = direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)
    L = jnp.zeros((*shape, n, n)).at[..., 0, 0].set(1)
    L = L.at[..., 1:, :-1].set(jnp.sqrt(y)[..., None] * direction)
    return L.at[..., row, row].set(jnp.sqrt(1 - y))
