"""The mean-field normal nearest to a prior times the likelihood of a batch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.compile.jitting import jit
from pmcl.online.gaussian import Factor, MeanField, divergence
from pmcl.online.narrow import Narrow
from pmcl.online.rows import Batch, Data, Rows, padded

if TYPE_CHECKING:
    from pmcl.online.latent import LatentRows

type AnyRows = Rows | LatentRows

SAME = 1e-6  # of the curvature: what counts as no change
LARGEST = 2000  # entries of z whose covariances are solved for
_CHUNK = 100  # steps that run without a word
_LOOKS = 3  # at least, at what a batch says anything of


class Search(eqx.Module):
    """How the evidence lower bound is climbed, where there is no closed form.

    Attributes
    ----------
    steps : int
        Steps of Adam.
    first_steps : int, optional
        Of the first search of all, which has farthest to go; `steps` by default.
    epochs : int, optional
        How often every row of a batch is seen, where that takes more steps.
    draws : int
        Draws of z at every step: one, or pairs with noise of opposite signs.
    batch_size : int, optional
        Rows at every step; all by default.
    learning_rate : float
        At first; it falls to zero by a cosine. In standard deviations of what was known before;
        for one point in place of a distribution, in units of z.
    """

    steps: int = 1000
    first_steps: int | None = None
    epochs: int | None = None
    draws: int = 10
    batch_size: int | None = None
    learning_rate: float = 2e-2

    def __check_init__(self) -> None:
        for name in ("steps", "first_steps", "epochs", "draws", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Search: expected {name} of at least 1, got {value}.")
        if not self.learning_rate > 0:
            raise ValueError(f"Search: expected a learning_rate above 0, got {self.learning_rate}.")

    def length(self, n: int, *, first: bool = False) -> int:
        """Number of steps for n rows."""
        least = self.first_steps if first and self.first_steps is not None else self.steps
        if self.epochs is None:
            return least
        return max(least, -(-self.epochs * n // min(self.batch_size or n, n)))


class Climbed(NamedTuple):
    """What a search found.

    Attributes
    ----------
    q : MeanField
    rows : Rows or LatentRows
        With the encoder that was trained beside q, if it has one.
    lower_bound : ndarray of shape (step,)
        Estimates of the evidence lower bound (nats).
    skipped : int
        Steps left out because a gradient was not finite.
    """

    q: MeanField
    rows: AnyRows
    lower_bound: np.ndarray
    skipped: int


class Remainder(NamedTuple):
    """What a normal lacks of the model's prior.

    Attributes
    ----------
    prior : MeanField
    normal : Array of bool of shape (dim,)
        Entries of which it lacks nothing.
    """

    prior: MeanField
    normal: Array | np.ndarray

    def __call__(self, rows: AnyRows, z: Array) -> Array:
        """Log density (nats), whose gradient is zero, exactly, where nothing lacks."""
        z = jnp.where(self.normal, jax.lax.stop_gradient(z), z)
        return rows.compiled.log_prior(z) - self.prior.log_density(z)


def log_likelihood(rows: Rows, z: Array, batch: Batch) -> Array:
    """Weighted log likelihood of a batch (nats)."""
    return weighted(rows(z, batch.data), batch.weights)


def weighted(terms: Array, weights: Array) -> Array:
    """Sum rows' terms by their weights; what has none may be anything."""
    return jnp.sum(jnp.where(weights > 0, weights * terms, 0.0))


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
    return near.all(axis=0) & (precision > 0), factor


@jit
def exact(rows: Rows, prior: MeanField, batch: Batch, more: Array | float = 0.0) -> MeanField:
    """Project where the likelihood is Gaussian in z: the posterior's mean, and its precisions.

    Parameters
    ----------
    rows : Rows
    prior : MeanField
    batch : Batch
    more : Array of shape (dim,)
        Precision beyond the prior's that holds the mean (of :func:`pmcl.online.divergence`).

    References
    ----------
    Nguyen et al. (2018), appendix F, eqs. 6 and 7.
    """
    total = partial(log_likelihood, rows, batch=batch)
    slope, curvature = jax.grad(total)(prior.mean), -jax.hessian(total)(prior.mean)
    precision = prior.factor.precision
    mean = prior.mean + jnp.linalg.solve(jnp.diag(precision + more) + curvature, slope)
    return MeanField(mean, -jnp.log(precision + jnp.diag(curvature)) / 2)


def lower_bound(
    rows: AnyRows,
    q: MeanField,
    prior: MeanField,
    batch: Batch,
    key: Array,
    *,
    draws: int,
    scale: Array | float = 1.0,
    remainder: Remainder | None = None,
    more: Array | float = 0.0,
) -> Array:
    """Evidence lower bound of a batch, estimated by draws (nats).

    Parameters
    ----------
    rows : Rows
    q, prior : MeanField
    batch : Batch
    key : Array
    draws : int
    scale : float
        What the batch's likelihood counts: more than once where it stands for more rows.
    remainder : Remainder, optional
        Of the normal that stands for the model's prior in `prior`, while nothing is known but a
        prior that is not normal.
    more : Array of shape (dim,)
        Of :func:`pmcl.online.divergence`.

    References
    ----------
    Nguyen et al. (2018), eq. 4; Kurle et al. (2020), eq. 2.
    """
    signs = (1.0, -1.0) if draws > 1 else (1.0,)

    def one(key: Array) -> Array:
        likelihood_key, prior_key = jax.random.split(key)
        found = jnp.zeros(())
        for sign in signs:
            if batch.data:
                terms = rows.drawn(q, batch.data, likelihood_key, sign)
                found = found + scale * weighted(terms, batch.weights)
            if remainder is not None:
                z = q.at(sign * jax.random.normal(prior_key, q.mean.shape, q.mean.dtype))
                found = found + remainder(rows, z)
        return found / len(signs)

    keys = jax.random.split(key, max(draws // 2, 1))
    found = one(keys[0]) if len(keys) == 1 else jnp.mean(jax.vmap(one)(keys))
    return found - divergence(q, prior, more)


class _Climb(eqx.Module):
    """Where a search stands: the mean in standard deviations of the prior, and Adam's moments."""

    shift: Array
    log_sd: Array
    network: Any  # the arrays of an encoder
    moments: optax.OptState
    skipped: Array


def climb(
    rows: AnyRows,
    start: MeanField,
    prior: MeanField,
    batch: Batch,
    search: Search,
    key: Array,
    *,
    remainder: Remainder | None = None,
    more: Array | None = None,
    narrow: Narrow | None = None,
    first: bool = False,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> Climbed:
    """Project by stochastic gradients of the lower bound.

    Noise comes in pairs of opposite sign, which leaves the gradient right and makes it less noisy.

    Parameters
    ----------
    rows : Rows
    start, prior : MeanField
    batch : Batch
        Rows of weight 0 do not count.
    search : Search
    key : Array
    remainder, more
        Of :func:`lower_bound`.
    narrow : Narrow, optional
        The problem without the entries of z that the batch says nothing of: of them there is
        nothing to be found but the prior.
    first : bool
        Whether it is the first search of all.
    advance : callable
        Told the number of steps done, and a note.
    """
    if narrow is not None:
        part, known, more = narrow.ranges.take((start, prior, more))
        found = climb(
            narrow.rows, part, known, narrow.batch(batch), search, key,
            more=more, first=first, advance=advance,
        )  # fmt: skip
        q = narrow.ranges.put(prior, found.q)
        return found._replace(q=q, rows=narrow.widen(rows, found.rows))
    plan = steps_of(search, batch, key, first=first)
    network, rest = eqx.partition(rows, eqx.is_inexact_array)
    now = _Climb(
        (start.mean - prior.mean) * jnp.exp(-prior.log_sd),
        start.log_sd,
        network,
        optax.scale_by_adam().init((start.mean, start.log_sd, network)),
        jnp.zeros((), int),
    )
    pace = as_pace(rows, search)
    bounds = []
    as_float = partial(jnp.asarray, dtype=start.mean.dtype)
    for i, (rates, order) in enumerate(plan.chunks()):
        keys = jax.random.split(jax.random.fold_in(key, i), len(rates))
        now, values = _chunk(
            rest, now, prior, batch, keys, as_float(rates), order, as_float(plan.scale),
            remainder, 0.0 if more is None else more, search.draws, pace,
        )  # fmt: skip
        bounds.append(np.asarray(values))
        advance(len(keys), f"lower bound {np.nanmean(bounds[-1]):.6g}")
    q = MeanField(prior.mean + jnp.exp(prior.log_sd) * now.shift, now.log_sd)
    found_rows = eqx.combine(now.network, rest)
    return Climbed(q, found_rows, np.concatenate(bounds), int(now.skipped))


def as_pace(rows: AnyRows, search: Search) -> float:
    """Learning rate of an encoder, in the search's."""
    return 1.0 if isinstance(rows, Rows) else rows.learning_rate / search.learning_rate


class Plan(NamedTuple):
    """The steps of a search.

    Attributes
    ----------
    rates : ndarray of shape (step,)
        Learning rates.
    order : ndarray of int of shape (step, row), optional
        Rows of every step; None: all.
    scale : float
        How many times a step's rows stand for all.
    """

    rates: np.ndarray
    order: np.ndarray | None
    scale: float

    def chunks(self) -> Iterator[tuple[np.ndarray, Array | None]]:
        """Some steps after the others."""
        for first in range(0, len(self.rates), _CHUNK):
            here = slice(first, first + _CHUNK)
            yield self.rates[here], None if self.order is None else jnp.asarray(self.order[here])


def steps_of(search: Search, batch: Batch, key: Array, *, first: bool = False) -> Plan:
    """Plan a search: each row comes once before any comes again."""
    there = np.flatnonzero(np.asarray(batch.weights))
    n = max(len(there), 1)
    steps = search.length(n, first=first)
    rates = optax.cosine_decay_schedule(search.learning_rate, steps)(np.arange(steps))
    size = search.batch_size
    if size is None or size >= n:
        return Plan(np.asarray(rates), None, 1.0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rounds = -(-steps * size // n)
    order = np.concatenate([rng.permutation(there) for _ in range(rounds)])
    return Plan(np.asarray(rates), order[: steps * size].reshape(steps, size), n / size)


def reached(
    rows: AnyRows, places: tuple[MeanField, ...], batch: Batch, search: Search, key: Array
) -> np.ndarray:
    """Which entries of z a batch says anything of: those that its likelihood changes with.

    Looked at around several places, as units of a network may be silent around one.

    Returns
    -------
    ndarray of bool of shape (dim,)
    """
    n = int((batch.weights > 0).sum())
    steps = padded(max(-(-n // max(search.batch_size or n, 1)), _LOOKS))
    plan = steps_of(replace(search, steps=steps, first_steps=None, epochs=None), batch, key)
    order = None if plan.order is None else jnp.asarray(plan.order)
    keys = jax.random.split(key, steps)
    return np.asarray(_reached(rows, places, batch, order, keys))


@jit
def _reached(
    rows: AnyRows,
    places: tuple[MeanField, ...],
    batch: Batch,
    order: Array | None,
    keys: Array,
) -> Array:
    def moves(q: MeanField, part: Batch, key: Array) -> Array:
        def total(mean: Array) -> Array:
            return weighted(rows.drawn(q._replace(mean=mean), part.data, key), part.weights)

        slope = jax.grad(total)(q.mean)
        return jnp.stack([jnp.isfinite(slope), jnp.isfinite(slope) & (slope != 0)])

    def step(so_far: Array, at: tuple[Array, Array | None]) -> tuple[Array, None]:
        key, index = at
        part = rows.part(batch, index)
        for q in places:
            so_far = so_far | moves(q, part, key)
        return so_far, None

    nothing = jnp.zeros((2, *places[0].mean.shape), bool)
    (finite, moved), _ = jax.lax.scan(step, nothing, (keys, order))
    # What was nowhere finite is not known to have no effect.
    return moved | ~finite


@jit
def _chunk(
    rest: Any,
    now: _Climb,
    prior: MeanField,
    batch: Batch,
    keys: Array,
    rates: Array,
    taken: Array | None,
    scale: Array,
    remainder: Remainder | None,
    more: Array | float,
    draws: int,
    pace: float,
) -> tuple[_Climb, Array]:
    optimizer = optax.scale_by_adam()
    unit = jnp.exp(prior.log_sd)

    def step(now: _Climb, at: tuple) -> tuple[_Climb, Array]:
        key, rate, index = at
        part = rest.part(batch, index)

        def loss(parameters: tuple[Array, Array, Any]) -> Array:
            shift, log_sd, network = parameters
            rows = eqx.combine(network, rest)
            q = MeanField(prior.mean + unit * shift, log_sd)
            return -lower_bound(
                rows, q, prior, part, key, draws=draws, scale=scale, remainder=remainder, more=more
            )

        here = (now.shift, now.log_sd, now.network)
        value, slope = jax.value_and_grad(loss)(here)
        fine = jnp.all(jnp.stack([jnp.isfinite(v).all() for v in jax.tree.leaves(slope)]))
        slope = jax.tree.map(lambda v: jnp.where(fine, v, 0.0), slope)
        move, moments = optimizer.update(slope, now.moments)
        rate = jnp.where(fine, rate, 0.0)
        rates = (rate, rate, rate * pace)
        shift, log_sd, network = (
            jax.tree.map(lambda v, m, r=r: v - r * m, v, m)
            for v, m, r in zip(here, move, rates, strict=True)
        )
        return _Climb(shift, log_sd, network, moments, now.skipped + ~fine), -value

    return jax.lax.scan(step, now, (keys, rates, taken))
