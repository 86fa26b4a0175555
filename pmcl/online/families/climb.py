"""The normal with covariances nearest to a prior times the likelihood of a batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.stats import qmc

from pmcl.online.families.anchor import Told
from pmcl.online.families.dense import Full, divergence, symmetric_root
from pmcl.online.families.low_rank import LowRank
from pmcl.online.families.search import GaussNewton
from pmcl.online.families.sites import Looked, Said, columns, etas, look, observed, say
from pmcl.online.rows import RowBatch, Rows
from pmcl.online.search.bound import Remainder
from pmcl.online.search.search import Way
from pmcl.runtime.jitting import jit

type Normal = Full | LowRank

# of a step that would lead down
_LENGTHS = 0.5 ** np.array([0, 1, 2, 3, 4, 6, 8, 11, 15, 21, 29, 41])
_FARTHEST = 0.5  # that a log sd moves in a step
_NEW = 0.7  # share of new curvatures in a step, where they are not the same everywhere
# places at which a prior that is not normal is looked at, by how many entries have one at most
_AROUND = {16: 64, 64: 32, 200: 16}


class Found(NamedTuple):
    """Where a search ended.

    Attributes
    ----------
    q : Full or LowRank
        Before it is shortened to its family's rank.
    lower_bound : float
        Of the linearised model (nats).
    steps : int
    left : float
        That its last step was to gain at its whole length (nats), taken or not.
    looked, said : list
        The sites there, by observed variable.
    around : Array of shape (place, missing)
        See :func:`remaining`.
    """

    q: Any
    lower_bound: float
    steps: int
    left: float
    looked: list[Looked]
    said: list[Said]
    around: Array


class _Now(NamedTuple):
    mean: Array
    around: Array
    spread: list[Array]
    curvature: list[Array]
    step: Array
    far: Array
    wanted: Array


class _Here(NamedTuple):
    """What a step sees where it stands: the normal there, the pull of everything on its mean."""

    q: Any
    pull: Array
    spread: list[Array]
    looked: list[Looked]
    said: list[Said]
    alone: Array


def climb(
    found: Told,
    rows: Rows,
    base: Normal,
    batch: RowBatch,
    remainder: Remainder | None,
    start: Array,
    way: Way,
) -> Found:
    """Search from a mean; `base` is what is known beside the batch.

    Parameters
    ----------
    found : Predictors or Anchored
    rows : Rows
    base : Full or LowRank
    batch : RowBatch
    remainder : Remainder or None
        What `base` lacks of the model's prior.
    start : Array of shape (dim,)
    way : Way

    References
    ----------
    Khan & Lin (2017), Conjugate-computation variational inference; Khan & Rue (2023), The Bayesian
    learning rule; of the linearisation Immer, Korzepa & Bauer (2021), Improving predictions of
    Bayesian neural nets via local linearization.
    """
    search = way.search
    assert isinstance(search, GaussNewton)
    most = way.length(0)
    lack = None if remainder is None else (remainder, lacking(remainder))
    now, bound, q, looked, said = _climb(
        found, rows, base, batch, lack, start,
        (jnp.asarray(most), jnp.asarray(search.tolerance)),
    )  # fmt: skip
    return Found(
        q, float(bound), int(now.step), float(now.wanted) ** 2 / 2, looked, said, now.around
    )


@jit
def _climb(
    found: Told, rows: Rows, base: Normal, batch: RowBatch,
    lack: tuple[Remainder, tuple[int, ...]] | None, start: Array,
    ends: tuple[Array, Array],
) -> tuple[_Now, Array, Normal, list[Looked], list[Said]]:  # fmt: skip
    most, tolerance = ends

    def at(now: _Now) -> _Here:
        looked = look(found, rows, now.mean, batch)
        alone = _scales_alone(found, looked)
        each = list(zip(found.parts, looked, strict=True))
        q = base
        curvatures = []
        for (part, site), spread, before in zip(each, now.spread, now.curvature, strict=True):
            fresh = say(part, site, spread, alone.any()).curvature
            share = jnp.where((now.step == 0) | (part.kind == "normal"), 1.0, _NEW)
            curvatures.append(share * fresh + (1 - share) * before)
            nothing = jnp.zeros_like(site.weights)
            q = q.plus(columns(site, Said(nothing, site.eta, curvatures[-1])))
        pull = base.apply(base.mean - now.mean)
        if lack is not None:
            rise, root = remaining(*lack, rows, now.mean, now.around)
            q, pull = q.plus(root), pull + rise
        # The predictors' variances are those under the present scales: with the last step's a
        # standard deviation would be answered one step late, and swing.
        wides = [q.spread(site.slope) for site in looked]
        said = [
            say(part, site, wide, alone.any())._replace(curvature=curved)
            for (part, site), wide, curved in zip(each, wides, curvatures, strict=True)
        ]
        for site, one in zip(looked, said, strict=True):
            pull = pull + jnp.einsum("nid,ni,n->d", site.slope, one.slope, site.weights)
        return _Here(q, pull, wides, looked, said, alone)

    def height(mean: Array, spreads: list[Array], alone: Array, around: Array) -> Array:
        total = jnp.zeros(())
        parts = etas(found, rows, mean, batch.data)
        for part, (eta, others), spread in zip(found.parts, parts, spreads, strict=True):
            y, weights = observed(part, rows, batch)
            site = Looked(eta, jnp.zeros((*eta.shape, 0)), others, y, weights)
            value = say(part, site, spread, alone.any()).value
            total = total + jnp.sum(jnp.where(weights > 0, weights * value, 0.0))
        if lack is not None:
            there = jnp.asarray(lack[1])
            total = total + jnp.mean(
                jax.lax.map(lambda aside: lack[0](rows, mean.at[there].add(aside)), around)
            )
        far = mean - base.mean
        return total - far @ base.apply(far) / 2

    def step(now: _Now) -> _Now:
        q, pull, spread, _, said, alone = at(now)
        move = q.solve(pull)
        move = jnp.where(jnp.isfinite(move), move, 0.0)
        # Scales apart: their steps are longer than what the moment's curvature allows.
        scales = jnp.where(alone, move, 0.0)
        scales = scales * jnp.minimum(1.0, _FARTHEST / jnp.maximum(jnp.abs(scales).max(), 1e-300))
        rest = jnp.where(alone, 0.0, move)
        here = height(now.mean, spread, alone, now.around)
        lengths = jnp.asarray(_LENGTHS)
        heights = jax.lax.map(
            lambda t: height(now.mean + t * rest, spread, alone, now.around), lengths
        )
        heights = jnp.where(jnp.isfinite(heights), heights, -jnp.inf)
        slack = 1e-9 * (1 + jnp.abs(here))
        best = jnp.argmax(heights)
        length = jnp.where(heights[0] >= heights[best] - slack, 1.0, lengths[best])
        length = jnp.where(heights[best] >= here - slack, length, 0.0)
        change = scales + length * rest
        drift = jnp.stack(
            [
                jnp.max(jnp.abs(a - b) / (jnp.abs(a) + 1e-3 * jnp.max(jnp.abs(a)) + 1e-300))
                for a, b in zip(spread, now.spread, strict=True)
            ]
        ).max()
        far, wanted = (jnp.sqrt(jnp.maximum(v @ q.apply(v), 0.0)) for v in (change, scales + rest))
        # a step that cannot be taken is no end, unless nothing else changes
        drift = jnp.minimum(drift, 1.0)
        far, wanted = jnp.maximum(far, drift), jnp.maximum(wanted, drift)
        curvature = [one.curvature for one in said]
        around = now.around if lack is None else _around(q, lack[1])
        return _Now(now.mean + change, around, spread, curvature, now.step + 1, far, wanted)

    shapes = [eta.shape for eta, _ in etas(found, rows, start, batch.data)]
    nothing = [jnp.zeros((n, k, k), start.dtype) for n, k in shapes]
    endless = jnp.asarray(jnp.inf)
    around = jnp.zeros((1, 0)) if lack is None else 0 * _around(base, lack[1])
    begun = _Now(start, around, nothing, nothing, jnp.zeros((), int), endless, endless)
    now = jax.lax.while_loop(lambda w: (w.step < most) & (w.far > tolerance), step, begun)
    q, _, _, looked, said, alone = at(now)
    q = less(q._replace(mean=now.mean), looked, said)
    bound = -divergence(q, base)
    for part, site in zip(found.parts, looked, strict=True):
        value = say(part, site, q.spread(site.slope), alone.any()).value
        bound = bound + jnp.sum(site.weights * jnp.where(site.weights > 0, value, 0.0))
    return now, bound, q, looked, said


def less(q: Normal, looked: list[Looked], said: list[Said]) -> Normal:
    """Take away what sites that are not concave take from the precision.

    Steps leave it out, as they have to lead up: with it a scale, or a degree of freedom, would be
    said to be known better than it is.
    """
    for site, one in zip(looked, said, strict=True):
        turned = one._replace(curvature=-one.curvature)
        lost = jnp.linalg.eigvalsh(one.curvature)[:, 0] * jnp.sign(site.weights)
        q = jax.lax.cond(
            jnp.any(lost < 0),
            lambda q, site=site, turned=turned: q.minus(columns(site, turned)),
            lambda q: q,
            q,
        )
    return q


def _scales_alone(found: Told, looked: list[Looked]) -> Array:
    """Entries of z that tell the sd of normals, and nothing else; none if others do."""
    dim = looked[0].slope.shape[-1]
    scale, place = jnp.zeros(dim, bool), jnp.zeros(dim, bool)
    for part, site in zip(found.parts, looked, strict=True):
        used = jnp.any(site.slope != 0, axis=0)
        if part.kind == "normal" and 1 in part.told:
            scale = scale | used[-1]
            used = used[:-1]
        place = place | used.any(axis=0)
    return scale & ~(scale & place).any() & ~place


def lacking(remainder: Remainder) -> tuple[int, ...]:
    """Entries of z of which the normal in place of a prior lacks something."""
    return tuple(np.flatnonzero(~np.asarray(remainder.normal)).tolist())


def _around(q: Normal, missing: tuple[int, ...]) -> Array:
    """Moves of these entries, by a normal, at which expectations of a prior are taken."""
    there, m = np.asarray(missing), len(missing)
    places = next((n for most, n in _AROUND.items() if 0 < m <= most), 0)
    if not places:
        return jnp.zeros((1, m), q.mean.dtype)
    half = qmc.MultivariateNormalQMC(np.zeros(m), rng=np.random.default_rng(0)).random(places // 2)
    if len(half) > m:  # the second moments are exact
        half = np.linalg.qr(half)[0] * np.sqrt(len(half))
    eye = jnp.zeros((len(q.mean), m), q.mean.dtype).at[there, np.arange(m)].set(1.0)
    moves = jnp.asarray(half, q.mean.dtype) @ symmetric_root(q.solve(eye)[there][None])[0].T
    return jnp.concatenate([moves, -moves])


def remaining(
    remainder: Remainder, missing: tuple[int, ...], rows: Rows, z: Array, around: Array
) -> tuple[Array, Array]:
    """Gradient of what a normal lacks of the prior, and the root of its curvature.

    Both are means over moves `around` z, of shape (place, missing).
    """
    there = np.asarray(missing)

    def log(part: Array) -> Array:
        return remainder(rows, z.at[there].set(part))

    def look(move: Array) -> tuple[Array, Array]:
        part = z[there] + move
        return jax.grad(log)(part), jax.hessian(log)(part)

    slope, curvature = (v.mean(axis=0) for v in jax.lax.map(look, around))
    rise = jnp.zeros_like(z).at[there].set(slope)
    root = symmetric_root(-curvature[None])[0]
    return rise, jnp.zeros((len(z), len(there)), z.dtype).at[there].set(root)
