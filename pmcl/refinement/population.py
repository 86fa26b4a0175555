"""Population Monte Carlo: a mixture of t distributions fitted to weighted draws, round by round."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from pmcl.search.farthest import farthest_first
from pmcl.search.scales import Dense
from pmcl.search.student import (
    Student,
    log_density_at,
    mixture_draws,
    mixture_log_q,
    squares,
)

_EM = 10  # steps of expectation-maximisation
_GOES_ON = 3  # in a round that begins at a mixture of many components


def population(
    log_density: Callable[[Array], Array],
    z: Array,
    log_weight: Array,
    key: Array,
    *,
    components: int,
    rounds: int,
    draws: int,
) -> Student:
    """Fit a mixture of multivariate t distributions to a density of any shape.

    For what no bent normal follows: bananas, funnels, modes that no search found. Each round
    draws from the mixture, weights the draws by the density (the weights truncated), and fits the
    mixture to them.

    Parameters
    ----------
    log_density : callable
        Of one z.
    z : Array of shape (n, dim)
        Draws to begin with.
    log_weight : Array of shape (n,)
        Their log importance weights; -inf for those of no use.
    key : Array
    components, rounds, draws : int

    Returns
    -------
    Student
        Of fields (components, ...).

    References
    ----------
    Cappe, Douc, Guillin, Marin & Robert (2008), Adaptive importance sampling in general mixture
    classes, section 4.2; Ionides (2008), Truncated importance sampling, for the weights.
    """
    dim = z.shape[1]
    weight = _truncated(log_weight)
    mean = weight @ z
    spread = jnp.sqrt(jnp.maximum(weight @ (z - mean) ** 2, 1e-30))
    # Centres: the heaviest draw, then each time the draw of some weight that is farthest away.
    eligible = weight >= 0.5 / z.shape[0]
    first = jnp.argmax(weight)[None]
    centres = z[farthest_first(z, first, components - 1, scale=spread, eligible=eligible)]
    scale = jnp.broadcast_to(jnp.diag(spread), (components, dim, dim)) * components ** (-1.0 / dim)
    start = _students(centres, scale, Student.degrees)
    even = jnp.full(components, 1.0 / components)
    parts, share = _fit(start, even, z, weight)

    def round_(carry: tuple, key: Array) -> tuple[tuple, None]:
        parts, share = carry
        mixture, _ = population_round(
            jax.vmap(log_density), parts, share, key, draws=draws, steps=_GOES_ON
        )
        return mixture, None

    (parts, _), _ = jax.lax.scan(round_, (parts, share), jax.random.split(key, rounds))
    return parts


def population_round(
    log_density: Callable[[Array], Array],
    parts: Student,
    share: Array,
    key: Array,
    *,
    draws: int,
    steps: int = _EM,
) -> tuple[tuple[Student, Array], Array]:
    """Draw from a mixture, weight the draws, and fit the mixture to them.

    `log_density` takes draws of shape (n, dim); `steps` are of expectation-maximisation.

    Returns
    -------
    mixture : tuple of Student and Array
        The old one where no draw has a finite weight.
    log_weight : Array of shape (draws,)
        Of the draws; -inf for those of no use.
    """
    u = mixture_draws(parts, share, key, draws)
    log_q = mixture_log_q(parts, share, u)
    log_p = log_density(u)
    usable = jnp.isfinite(log_p) & jnp.isfinite(log_q)
    ratio = jnp.where(usable, log_p - log_q, -jnp.inf)
    new = _fit(parts, share, jnp.where(usable[:, None], u, 0.0), _truncated(ratio), steps)
    keep = usable.any()
    return jax.tree.map(lambda a, b: jnp.where(keep, a, b), new, (parts, share)), ratio


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
    parts: Student, share: Array, z: Array, weight: Array, steps: int = _EM
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

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        parts, share = carry
        far = squares(parts, z)
        log_q = (
            log_density_at(far, degrees, dim)
            - jax.vmap(lambda s: s.scale.log_det())(parts)[:, None]
        )
        log_q = log_q + jnp.log(share)[:, None]
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
        return (_students(centres, lower, degrees), share / jnp.sum(share)), None

    (parts, share), _ = jax.lax.scan(step, (parts, share), length=steps)
    return parts, share
