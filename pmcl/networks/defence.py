"""Draws of a network over groups, a tenth of them from t distributions: a defensive mixture.

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

from pmcl.networks.amortizer import Amortizer, Context
from pmcl.search.scales import Dense
from pmcl.search.student import Student, mixture_draws, mixture_log_q

_SHARE = 6 / 64
_DEGREES = 4


class Defence(NamedTuple):
    """What a part of the draws is from: t distributions, their shares, and how large a part."""

    parts: Student
    share: Array
    fraction: float


def draw(amortizer: Amortizer, key: Array, number: int, context: Context) -> tuple[Array, Array]:
    """Draws z of shape (number, dim) and the log density of what they are from."""
    z, log_own = amortizer.draw(key, number, context)
    wide = _defence(amortizer, context)
    if wide is None:
        return z, log_own
    few = round(wide.fraction * number)
    some, order = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
    others = mixture_draws(wide.parts, wide.share, some, few)
    log_others = jax.vmap(amortizer.log_prob, in_axes=(0, None))(others, context)
    at = jax.random.permutation(order, number)[:few]
    z, log_own = z.at[at].set(others), log_own.at[at].set(log_others)
    return z, _mixed(wide, z, log_own)


def log_prob(amortizer: Amortizer, z: Array, context: Context) -> Array:
    """Log density of what draws are from, at z of shape (n, dim)."""
    own = jax.vmap(amortizer.log_prob, in_axes=(0, None))(z, context)
    wide = _defence(amortizer, context)
    if wide is None:
        return own
    return _mixed(wide, z.astype(jnp.float64), own)


def _mixed(wide: Defence, z: Array, log_own: Array) -> Array:
    both = jnp.stack([log_own, mixture_log_q(wide.parts, wide.share, z)])
    fraction = jnp.asarray([1 - wide.fraction, wide.fraction])
    return logsumexp(jnp.where(jnp.isnan(both), -jnp.inf, both), axis=0, b=fraction[:, None])


def _defence(amortizer: Amortizer, context: Context) -> Defence | None:
    """Half of them at the modes; half at the first and as wide as the prior along one axis.

    A scale that may be zero has a long tail, or a shoulder, that nothing beside the mode tells of.
    None without a search.
    """
    if amortizer.search is None or context.place is None:
        return None
    place: Any = context.place
    lower, dim = place.scale.lower * wider(place.loc.shape[-1]), place.loc.shape[-1]
    axes = jnp.eye(dim) * amortizer.search.spread
    long = jnp.linalg.cholesky(lower[0] @ lower[0].T + axes[:, :, None] * axes[:, None, :])
    loc = jnp.concatenate([place.loc, jnp.broadcast_to(place.loc[0], (dim, dim))])
    share = jnp.concatenate([jnp.exp(place.log_weight), jnp.full(dim, 1.0 / dim)]) / 2
    parts = Student(loc, jax.vmap(Dense.of)(jnp.concatenate([lower, long])), _DEGREES)
    return Defence(parts, share, _SHARE)


def wider(dim: int) -> float:
    """Factor of scales that are to be on the safe side; less where there are many parameters."""
    return float(1.5 ** min(1.0, 3.0 / dim))
