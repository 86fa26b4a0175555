"""Moments of what a normal stands for, by importance weights of its own draws."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from pmcl.online.families.dense import Full, divergence
from pmcl.online.looking import DEAR, cost
from pmcl.online.rows import RowBatch, Rows
from pmcl.online.search.bound import Target, log_factor
from pmcl.runtime.jitting import jit

DRAWS = 2048  # half of them, and their mirror images
_AT_ONCE = 64
_MANY = 32  # entries
_GOOD = 0.9  # efficiency
_FAIR = 0.2  # efficiency, from which on moments are told
_TURNS = 40
_MOST = 4  # turns at the cost at which nothing is looked at
_FEW = 6  # turns at such an efficiency
_FEWEST = 0.1  # of the draws, that tell of moments
_POWERS = 0.8 ** np.arange(30)  # of the weights
_DONE = 0.01  # nats between two normals that are as good as the same
_STRETCH = 10.0  # of a variance in a turn, at most
_STEPS = 10
_CLOSER = 0.95  # of what two normals were apart, that a step leaves at most
_CLOSEST = 0.1  # of a step
_LEFT = 0.5  # of a precision, along any direction, that a step leaves at least


class Matched(NamedTuple):
    """A normal, and what its draws say of the density that it stands for.

    Attributes
    ----------
    q : Full
    log_ratios : Array of shape (draw,)
        Of that density to the normal's.
    """

    q: Full
    log_ratios: Array


def matched(rows: Rows, q: Full, target: Target, key: Array) -> Matched:
    """The normal with the moments of a prior times the likelihood of a batch, where they are told.

    A search sees predictors by their slopes, and so one that is a product, or a tail, askew. What
    draws cannot tell from noise stays: in many dimensions all. Entries that the batch says nothing
    of have the distribution that they had given the others.

    Parameters
    ----------
    rows : Rows
    q : Full
        Where a search ended.
    target : Target
    key : Array

    References
    ----------
    Opper (1998), A Bayesian approach to on-line learning, of moments in place of a lower bound;
    Cappé, Guillin, Marin & Robert (2004), Population Monte Carlo, of draws that move; James & Stein
    (1961), Estimation with quadratic loss, of what is taken back; Ionides (2008), Truncated
    importance sampling, of how good draws are.
    """
    turns = int(np.clip(_MOST * DEAR / cost(q, target.batch, DRAWS), 1, _TURNS))
    base: Any = target.prior
    touched = jnp.any(q.precision != base.precision, axis=1)
    if target.remainder is not None:
        touched = touched | ~jnp.asarray(target.remainder.normal)
    if len(q.mean) > _MANY:  # small errors are lost in noise there, and large ones seen at once
        _, efficiency, _, found = _turn(rows, q, target, touched, _noise(key, q, DRAWS // 4))
        if float(efficiency) > _GOOD:
            return found
    first: tuple[float, Matched] | None = None
    fair, still = 0, 0
    for turn in range(turns):
        noise = _noise(jax.random.fold_in(key, turn), q, DRAWS)
        new, efficiency, far, found = _turn(rows, q, target, touched, noise)
        first = first or (float(efficiency), found)
        fair += float(efficiency) > _FAIR
        still = 0 if float(far) > _DONE else still + 1
        if fair == _FEW or still == (1 if fair else 2):
            break
        q = new
    assert first is not None
    # moments may cost a little efficiency, whose estimate is noise where it is low
    enough = first[0] / 2 if first[0] > _FAIR else min(2 * first[0], _FAIR)
    return found if float(efficiency) > enough else first[1]


class Consistent(NamedTuple):
    """A normal beside stored rows, and how far it is, with these, from what all rows give (nats).

    Attributes
    ----------
    q : Full
    apart : float
    """

    q: Full
    apart: float


def consistent(rows: Rows, q: Full, whole: Full, stored: RowBatch, key: Array) -> Consistent:
    """Move the normal beside stored rows until with these it gives what all rows give.

    Parameters
    ----------
    rows : Rows
    q : Full
        Beside the stored rows, from slopes where a search ended.
    whole : Full
        The moments' normal of all rows.
    stored : RowBatch
    key : Array

    References
    ----------
    Minka (2001), Expectation propagation for approximate Bayesian inference: the fixed point, for
    one site that stands for all rows that are gone.
    """
    best, step = Consistent(q, np.inf), 1.0
    found: Any = q
    given = whole
    for _ in range(_STEPS):
        with_stored = matched(rows, whole, Target(found, stored), key).q
        apart = float(divergence(whole, with_stored))
        if apart < _CLOSER * best.apart:
            best, given = Consistent(found, apart), with_stored
        else:
            step /= 2
        if best.apart < _DONE / 2 or step < _CLOSEST or best.apart == np.inf:
            break
        found = _nearer(best.q, whole, given, step)
    return best


@jit
def _nearer(q: Full, whole: Full, with_stored: Full, step: Array | float) -> Full:
    """Multiply by a power of one normal over another, while something is left of a precision."""
    more = whole.precision - with_stored.precision
    root = jnp.linalg.cholesky(q.precision)
    half = solve_triangular(root, more, lower=True)
    least = jnp.linalg.eigvalsh(solve_triangular(root, half.T, lower=True))[0]
    power = step * jnp.minimum(1.0, _LEFT / jnp.maximum(-least, _LEFT))
    shift = q.shift + power * (whole.shift - with_stored.shift)
    return Full(q.mean, q.precision + power * more).at_shift(shift)


def _noise(key: Array, q: Full, draws: int) -> Array:
    return jax.random.normal(key, (draws // 2, len(q.mean)), q.mean.dtype)


@jit
def _turn(
    rows: Rows, q: Full, target: Target, touched: Array, noise: Array
) -> tuple[Full, Array, Array, Matched]:
    """The moments' normal, the efficiency of `q`, and how far they are apart (nats)."""
    draws = 2 * len(noise)
    # With untouched entries first, noise of the others is theirs alone, and leaves the untouched
    # ones' distribution given these.
    order = jnp.argsort(touched)
    root = jnp.linalg.cholesky(q.precision[order][:, order])

    def moved(x: Array) -> Array:
        z = solve_triangular(root.T, x.reshape(-1, x.shape[-1]).T, lower=False).T
        return q.mean + z[:, jnp.argsort(order)].reshape(x.shape)

    z = moved(jnp.stack([noise, -noise]))
    flat = z.reshape(draws, -1)
    ratio = jax.lax.map(lambda one: log_factor(rows, one, target), flat, batch_size=_AT_ONCE)
    volume = jnp.sum(jnp.log(jnp.diag(root)))
    own = volume - jnp.sum(noise**2 + jnp.log(2 * jnp.pi), axis=1) / 2
    ratio = ratio.reshape(2, -1) + target.prior.log_density(z) - own
    found = Matched(q, ratio.reshape(-1))
    finite = jnp.isfinite(ratio)
    ratio = jnp.where(finite, ratio, -jnp.inf)
    log = ratio - logsumexp(ratio)
    # one far draw is not to decide
    cut = jnp.minimum(log, -jnp.log(draws) / 2)
    efficiency = jnp.exp(2 * logsumexp(cut) - logsumexp(2 * cut)) / draws
    # part of the way, where few draws would tell all
    powers = jnp.asarray(_POWERS) * log[..., None]
    powers = powers - logsumexp(powers, axis=(0, 1))
    enough = jnp.exp(-logsumexp(2 * powers, axis=(0, 1))) >= _FEWEST * finite.sum()
    log = powers[..., jnp.where(enough.any(), jnp.argmax(enough), len(_POWERS) - 1)]
    more = jnp.exp(log) - 1 / draws  # of nothing where q is right
    odd, even = more[0] - more[1], more[0] + more[1]
    noise = jnp.where(touched[order], noise, 0.0)
    squares = jnp.sum(noise**2, axis=1)
    shift = odd @ noise
    stretch = (noise * even[:, None]).T @ noise - jnp.outer(shift, shift)
    lost = jnp.sum(even**2 * (squares**2 - 2 * squares + touched.sum()))
    stretch = stretch * _told(stretch, lost)
    shift = shift * _told(shift, jnp.sum(odd**2 * squares))
    values, vectors = jnp.linalg.eigh(stretch)
    values = jnp.clip(1 + values, 1 / _STRETCH, _STRETCH)
    far = (shift @ shift + jnp.sum(values - 1 - jnp.log(values))) / 2
    half = (root @ vectors / jnp.sqrt(values))[jnp.argsort(order)]
    both = touched[:, None] & touched
    precision = jnp.where(both, half @ half.T, q.precision)
    return Full(moved(shift), precision), efficiency, far, found


def _told(found: Array, lost: Array) -> Array:
    """The share of an estimate that is not its own noise."""
    total = jnp.sum(found**2)
    return jnp.where(total > lost, 1 - lost / jnp.where(total > 0, total, 1.0), 0.0)
