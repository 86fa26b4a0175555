"""Population Monte Carlo: a mixture of t distributions fitted to weighted draws, round by round."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from pmcl.draws.path import efficiency
from pmcl.search.farthest import farthest_first
from pmcl.search.scales import Dense
from pmcl.search.student import Student, mixture_draws, mixture_log_q

_EM = 10  # steps of expectation-maximisation
_GOES_ON = 3  # in rounds after the first
_WIDE = 0.1  # of the draws of a round are as wide as all that it began with: what fits lost is seen


def population(
    log_density: Callable[[Array], Array],
    z: Array,
    log_weight: Array,
    key: Array,
    *,
    components: int,
    rounds: int,
    draws: int,
    enough: Array | float,
) -> Student:
    """Fit a mixture of multivariate t distributions to a density of any shape.

    For what no bent normal follows: bananas, funnels, modes that no search found. Each round fits
    the mixture to weighted draws (their weights truncated), draws from it, and weights these draws
    by the density. The last round is that whose draws are efficient.

    Parameters
    ----------
    log_density : callable
        Of one z.
    z : Array of shape (n, dim)
        Draws to begin with.
    log_weight : Array of shape (n,)
        Their log importance weights; -inf for those of no use.
    key : Array
    components, rounds : int
        Rounds at most; one at least.
    draws : int
        Of a round; as many as it begins with, at least.
    enough : Array or float
        Efficiency of a round's draws with which it is the last.

    Returns
    -------
    Student
        Of fields (components, ...).

    References
    ----------
    Cappe, Douc, Guillin, Marin & Robert (2008), Adaptive importance sampling in general mixture
    classes, section 4.2; Ionides (2008), Truncated importance sampling, for the weights.
    """
    dim, number = z.shape[1], max(draws, z.shape[0])
    weight = _truncated(log_weight)
    mean = weight @ z
    spread = jnp.sqrt(jnp.maximum(weight @ (z - mean) ** 2, 1e-30))
    # Centres: the heaviest draw, then each time the draw of some weight that is farthest away.
    eligible = weight >= 0.5 / z.shape[0]
    first = jnp.argmax(weight)[None]
    centres = z[farthest_first(z, first, components - 1, scale=spread, eligible=eligible)]
    scale = jnp.broadcast_to(jnp.diag(spread), (components, dim, dim)) * components ** (-1.0 / dim)
    start = _students(centres, scale, Student.degrees), jnp.full(components, 1.0 / components)
    wide = _students(mean[None], 2 * jnp.diag(spread)[None], Student.degrees)
    begun = jnp.resize(z, (number, dim))
    begun_weight = jnp.full(number, -jnp.inf).at[: z.shape[0]].set(log_weight)

    keys = jax.random.split(key, rounds)

    def round_(carry: tuple) -> tuple:
        at, _, (parts, share), u, ratio = carry
        parts, share = _fitted(parts, share, u, ratio, jnp.where(at == 0, _EM, _GOES_ON))
        both = jax.tree.map(lambda *x: jnp.concatenate(x), parts, wide)
        shares = jnp.append((1 - _WIDE) * share, _WIDE)
        u = mixture_draws(both, shares, keys[at], number, shuffled=False)
        ratio = _ratio(jax.vmap(log_density), both, shares, u)
        return at + 1, efficiency(ratio, jnp.isfinite(ratio)), (parts, share), u, ratio

    def goes_on(carry: tuple) -> Array:
        at, reached, *_ = carry
        return (at < rounds) & (reached < enough)

    begin = jnp.asarray(0), jnp.asarray(0.0, z.dtype), start, begun, begun_weight
    _, _, (parts, _), *_ = jax.lax.while_loop(goes_on, round_, begin)
    return parts


def population_round(
    log_density: Callable[[Array], Array], parts: Student, share: Array, key: Array, *, draws: int
) -> tuple[tuple[Student, Array], Array]:
    """Draw from a mixture, weight the draws, and fit the mixture to them.

    `log_density` takes draws of shape (n, dim).

    Returns
    -------
    mixture : tuple of Student and Array
        The old one where no draw has a finite weight.
    log_weight : Array of shape (draws,)
        Of the draws; -inf for those of no use.
    """
    u = mixture_draws(parts, share, key, draws, shuffled=False)
    ratio = _ratio(log_density, parts, share, u)
    return _fitted(parts, share, u, ratio, _EM), ratio


def _ratio(log_density: Callable[[Array], Array], parts: Student, share: Array, u: Array) -> Array:
    """Log weights of a mixture's draws; -inf for those of no use."""
    ratio = log_density(u) - mixture_log_q(parts, share, u)
    return jnp.where(jnp.isfinite(ratio), ratio, -jnp.inf)


def _fitted(
    parts: Student, share: Array, u: Array, ratio: Array, steps: Array | int
) -> tuple[Student, Array]:
    """Fit a mixture to draws with these log weights; the old one where none is of use."""
    usable = jnp.isfinite(ratio)
    new = _fit(parts, share, jnp.where(usable[:, None], u, 0.0), _truncated(ratio), steps)
    return jax.tree.map(lambda a, b: jnp.where(usable.any(), a, b), new, (parts, share))


def _truncated(log_weight: Array) -> Array:
    """Normalise weights, none above the square root of their number times their mean."""
    n = log_weight.shape[0]
    top = jnp.max(log_weight)
    usable = jnp.isfinite(top)
    weight = jnp.where(usable, jnp.exp(log_weight - jnp.where(usable, top, 0.0)), 1.0)
    weight = jnp.minimum(weight, jnp.mean(weight) * n**0.5)
    return weight / jnp.sum(weight)


def _students(centres: Array, lower: Array, degrees: int) -> Student:
    return jax.vmap(lambda m, a: Student(m, Dense.of(a), degrees))(centres, lower)


def _fit(
    parts: Student, share: Array, z: Array, weight: Array, steps: Array | int
) -> tuple[Student, Array]:
    """Expectation-maximisation on weighted draws; components of few draws lean on all of them.

    References
    ----------
    Fraley & Raftery (2007), Bayesian regularization for normal mixture estimation, section 3, for
    the covariance that they lean on: that of all, over the number of components.
    """
    dim, n = z.shape[1], 1.0 / jnp.sum(weight**2)
    mean = weight @ z
    whole = jnp.einsum("n,ni,nj->ij", weight, z - mean, z - mean)
    whole = whole * len(share) ** (-2.0 / dim)
    whole = whole + 1e-9 * jnp.diag(jnp.diagonal(whole)) + 1e-30 * jnp.eye(dim)
    degrees = parts.degrees

    def step(_: Array, carry: tuple[Student, Array]) -> tuple[Student, Array]:
        parts, share = carry
        far = jax.vmap(lambda s: jax.vmap(s.far)(z))(parts)
        log_q = jax.vmap(lambda s, u: s.log_prob_at(u))(parts, far) + jnp.log(share)[:, None]
        owned = jnp.exp(log_q - logsumexp(log_q, axis=0)) * weight
        owned = jnp.where(jnp.isfinite(owned), owned, 0.0)
        total = jnp.sum(owned, axis=1)

        def update(part: Student, owned: Array, total: Array, far: Array) -> tuple[Array, Array]:
            pull = owned * (degrees + dim) / (degrees + far)
            centre = (pull @ z) / jnp.maximum(jnp.sum(pull), 1e-300)
            apart = z - centre
            covariance = jnp.einsum("n,ni,nj->ij", pull, apart, apart) / jnp.maximum(total, 1e-300)
            # `dim` draws' worth of the whole, so that none collapses
            lean = dim / (dim + n * total)
            covariance = (1 - lean) * covariance + lean * whole
            lower = jnp.linalg.cholesky(covariance)
            usable = jnp.isfinite(lower).all() & (total > 1e-6) & (jnp.diagonal(lower) > 0).all()
            assert isinstance(part.scale, Dense)
            old = part.scale.lower
            return jnp.where(usable, centre, part.shift), jnp.where(usable, lower, old)

        centres, lower = jax.vmap(update)(parts, owned, total, far)
        share = jnp.maximum(total, 1e-3)
        return _students(centres, lower, degrees), share / jnp.sum(share)

    return jax.lax.fori_loop(0, steps, step, (parts, share))
