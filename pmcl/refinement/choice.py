"""Choice of the proposal: mixture weights and efficiency from pilot draws of all components."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from pmcl.refinement.proposals import mixture_log_q

_EM = 30  # steps of expectation-maximisation
_SMALLEST = 0.02  # a component of less weight is left out


class Candidate(NamedTuple):
    """A mixture of some of the pool's components.

    Attributes
    ----------
    weights : Array of shape (components,)
    efficiency : Array of shape ()
        Estimated importance efficiency, 0 where it has no component.
    """

    weights: Array
    efficiency: Array


def candidate(log_p: Array, log_q: Array, member: Array) -> Candidate:
    """Fit the weights of a mixture of the members, and estimate its efficiency.

    Draws come in equal numbers from every component of the pool and are weighted by the equal
    mixture, so that what one component misses another shows.

    Parameters
    ----------
    log_p : Array of shape (draws,)
    log_q : Array of shape (components, draws)
    member : Array of bool of shape (components,)

    References
    ----------
    Cappe, Douc, Guillin, Marin & Robert (2008), Adaptive importance sampling in general mixture
    classes, section 4, for the weights; Owen & Zhou (2000) for the defensive mixture.
    """
    components = log_q.shape[0]
    pooled = mixture_log_q(log_q, jnp.full(components, 1.0 / components))
    usable = jnp.isfinite(log_p) & jnp.isfinite(pooled)
    ratio = jnp.where(usable, log_p - pooled, -jnp.inf)
    log_weight = ratio - logsumexp(ratio)
    safe = jnp.where(jnp.isfinite(log_q), log_q, -jnp.inf)

    def maximise(weights: Array, _: None) -> tuple[Array, None]:
        share = safe + jnp.log(weights)[:, None] - mixture_log_q(log_q, weights)
        new = jnp.sum(jnp.where(usable, jnp.exp(share + log_weight), 0.0), axis=1)
        new = jnp.where(jnp.isfinite(new), new, 0.0)
        total = jnp.sum(new)
        return jnp.where(total > 0, new / total, weights), None

    even = member / jnp.maximum(jnp.sum(member), 1)
    weights, _ = jax.lax.scan(maximise, even, length=_EM)
    weights = jnp.where(weights < _SMALLEST, 0.0, weights)
    weights = weights / jnp.maximum(jnp.sum(weights), 1e-300)
    # E_q[(p/q)^2] by the pooled draws: mean of p^2 / (q pooled).
    squared = jnp.where(usable, 2 * log_p - mixture_log_q(log_q, weights) - pooled, -jnp.inf)
    squared = jnp.where(jnp.isnan(squared), jnp.inf, squared)
    count = jnp.log(jnp.asarray(log_p.shape[0], log_p.dtype))
    log_efficiency = 2 * (logsumexp(ratio) - count) - (logsumexp(squared) - count)
    efficiency = jnp.where(member.any() & usable.any(), jnp.exp(log_efficiency), 0.0)
    return Candidate(weights, jnp.nan_to_num(jnp.minimum(efficiency, 1.0)))


class Choice(NamedTuple):
    """The proposal chosen: which candidate, and all candidates' weights and efficiencies."""

    which: Array
    weights: Array
    efficiency: Array


def choose(log_p: Array, log_q: Array, members: Array, prefer: Array) -> Choice:
    """Choose among candidates, given by their members of shape (candidates, components).

    A candidate wins where its efficiency times its preference is the largest.
    """
    found = jax.vmap(lambda m: candidate(log_p, log_q, m))(members)
    which = jnp.argmax(found.efficiency * prefer)
    return Choice(which, found.weights[which], found.efficiency)
