"""Draws of a network, a few of them from t distributions at the modes: a defensive mixture.

Where a posterior's tail is heavier than the flow's, few draws have most of the weight. With a part
of the draws from wider distributions no weight is beyond what these allow, whatever the flow is.

References
----------
Hesterberg (1995), Weighted average importance sampling and defensive mixture distributions; Owen &
Zhou (2000), Safe and effective importance sampling, section 2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from pmcl.compile import Density
from pmcl.networks.amortizer import Amortizer, Context
from pmcl.search.scales import Dense
from pmcl.search.student import Student, mixture_draws, mixture_log_q

_SHARE_OF_LEVELS = 6 / 64
_DEGREES = 4  # where groups are integrated out


class Defence(NamedTuple):
    """What a part of the draws is from: t distributions, their shares, and how large a part."""

    parts: Student
    share: Array
    fraction: float


def draw(
    amortizer: Amortizer, key: Array, number: int, context: Context, *, alone: Array | bool = False
) -> tuple[Array, Array]:
    """Draws z of shape (number, dim) and the log density of what they are from.

    `alone`: of the network alone, as a network that learns is judged.
    """
    z, log_own = amortizer.draw(key, number, context)
    wide = _defence(amortizer, context)
    if wide is None:
        return z, log_own
    few = round(wide.fraction * number)
    some, order = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
    others = mixture_draws(wide.parts, wide.share, some, few)
    log_others = jax.vmap(amortizer.log_prob, in_axes=(0, None))(others, context)
    at = jax.random.permutation(order, number)[:few]
    z = z.at[at].set(jnp.where(alone, z[at], others))
    log_own = log_own.at[at].set(jnp.where(alone, log_own[at], log_others))
    return z, jnp.where(alone, log_own, _mixed(wide, z, log_own))


def log_prob(
    amortizer: Amortizer, z: Array, context: Context, *, alone: Array | bool = False
) -> Array:
    """Log density of what draws are from, at z of shape (n, dim)."""
    own = jax.vmap(amortizer.log_prob, in_axes=(0, None))(z, context)
    wide = _defence(amortizer, context)
    if wide is None:
        return own
    return jnp.where(alone, own, _mixed(wide, z.astype(jnp.float64), own))


def _mixed(wide: Defence, z: Array, log_own: Array) -> Array:
    both = jnp.stack([log_own, mixture_log_q(wide.parts, wide.share, z)])
    fraction = jnp.asarray([1 - wide.fraction, wide.fraction])
    return logsumexp(jnp.where(jnp.isnan(both), -jnp.inf, both), axis=0, b=fraction[:, None])


def _defence(amortizer: Amortizer, context: Context) -> Defence | None:
    """What the search of one dataset says; None without one."""
    if amortizer.search is None or context.place is None:
        return None
    if isinstance(amortizer.search.density, Density):
        return None  # six of 256 draws, tried: where the flow is right they are told from NUTS
    return _of_levels(context.place, amortizer.search.spread)


def _of_levels(place: Any, spread: Array) -> Defence:
    """Half of them at the modes; half at the first and as wide as the prior along one axis.

    A scale that may be zero has a long tail, or a shoulder, that nothing beside the mode tells of.
    """
    lower, dim = place.scale.lower * wider(place.loc.shape[-1]), place.loc.shape[-1]
    axes = jnp.eye(dim) * spread
    long = jnp.linalg.cholesky(lower[0] @ lower[0].T + axes[:, :, None] * axes[:, None, :])
    loc = jnp.concatenate([place.loc, jnp.broadcast_to(place.loc[0], (dim, dim))])
    share = jnp.concatenate([jnp.exp(place.log_weight), jnp.full(dim, 1.0 / dim)]) / 2
    parts = Student(loc, jax.vmap(Dense.of)(jnp.concatenate([lower, long])), _DEGREES)
    return Defence(parts, share, _SHARE_OF_LEVELS)


def wider(dim: int) -> float:
    """Factor of scales that are to be on the safe side; less where there are many parameters."""
    return float(1.5 ** min(1.0, 3.0 / dim))
