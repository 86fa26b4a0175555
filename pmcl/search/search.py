"""The search for one dataset's posterior: its modes, and what the density is like beside them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.runtime.jitting import jit
from pmcl.search.farthest import farthest_first
from pmcl.search.newton import MEMORY, Mode, Status, lbfgs, newton
from pmcl.search.scales import AbstractScale, Dense, LowRank

_LONGEST_DENSE = 50  # parameters up to which steps use the exact Hessian
_BEYOND = 1e100  # no draw to begin at
_SPIKE = 10.0  # scales of its middle, beyond which a prior is a spike beside a slab
_NEAR = 0.8  # of the prior's draws, the nearest, among which starts are chosen
_SAME_MODE = 1.0  # squared distance, in scales of the mode, below which two searches met
_NEGLIGIBLE = 10.0  # nats of evidence by which a mode may lie behind
_AS_HIGH = 2.0  # nats of density by which a flat end may lie behind the best
POOL = 512  # points, the initial one and draws of the prior, at the best of which searches begin
_AT_ONCE = 32  # densities of a dataset, a divisor of POOL: a remainder would compile anew
_ELSEWHERE = (0.01, 3.0)  # scales of such points, in units of the prior's
_COMPETE = 6  # such draws for each that a search begins at
_SIDES = (-2.5, -1.0, 1.0, 2.5)  # scales from the mode at which the density is looked at
_EDGE = 2.0  # scales of the prior
_WORST = 1e3  # nats by which it may differ there from a normal


_farthest = jit(farthest_first, once=True)


class Place(NamedTuple):
    """Where the posterior of a dataset is, as far as its search could tell.

    Attributes
    ----------
    loc : Array of shape (mode, dim)
        The modes, the one of most evidence first; the first start where no search converged.
    scale : AbstractScale
        Of each mode, A with A A' = |Hessian|^-1 there; the prior's scale where none converged.
        Ends where the density is flat are among them where :func:`promise` says so; along flat
        directions their scale is the prior's.
    log_weight : Array of shape (mode,)
        Share of the evidence, of the normal at each mode; -inf where there are fewer modes.
    status : Array of int of shape ()
        A `Status`: CONVERGED where there is any end that counts, a flat one of a pooled search too.
    sides : Array of shape (mode, dim, side)
        Log density at loc + t A e_i, less that at loc and that of a normal, for a few t: zero for a
        normal posterior. Of shape (mode, 0, side) where z is long.
    """

    loc: Array
    scale: AbstractScale
    log_weight: Array
    status: Array
    sides: Array


class Search(eqx.Module):
    """How the posterior of any dataset of a model is searched for; deterministic.

    Searches from several starts end at modes, of which those that differ are kept, by log density
    and scale together: the evidence of the normal there. What is found is a function of the dataset
    alone.

    Attributes
    ----------
    density : Density
    starts : Array of shape (start, dim)
        The model's initial point, then points that are spread over the prior.
    spread : Array of shape (dim,)
        The prior's scale.
    modes : int
        Most modes that are kept of a dataset.
    searches : int, optional
        So many are begun, at those `starts` of each dataset where its density is high; by default
        one at each.
    exact : bool
        Whether steps use the exact Hessian; L-BFGS where z is long.
    steps : int
        Most steps of one search.
    tol : float
        Nats that a last step would still gain.
    """

    density: Density
    starts: Array
    spread: Array
    modes: int = eqx.field(static=True, default=1)
    searches: int | None = eqx.field(static=True, default=None)
    exact: bool = eqx.field(static=True, default=True)
    steps: int = eqx.field(static=True, default=100)
    tol: float = eqx.field(static=True, default=1e-4)

    @classmethod
    def of(
        cls, density: Density, initial: np.ndarray, prior: np.ndarray, *, starts: int = 5
    ) -> "Search":
        """Choose starts and scale.

        Parameters
        ----------
        density : Density
        initial : array of shape (dim,)
            The model's initial point.
        prior : array of shape (draw, dim)
            Draws of the prior, of which those that are not finite are left out; there may be none.
        starts : int
        """
        prior = prior[(np.abs(prior) < _BEYOND).all(axis=1)]  # NaN is not
        if not len(prior):
            prior = initial[None]  # all starts there, and a scale of one
        centre = np.median(prior, axis=0)
        spread = 1.4826 * np.median(np.abs(prior - centre), axis=0)
        low, high = np.quantile(prior, [0.05, 0.95], axis=0)
        wide = (high - low) / (2 * 1.6449)
        spread = np.where(wide > _SPIKE * spread, wide, spread)
        spread = np.where(spread > 1e-12, spread, 1.0)
        far = np.sum(((prior - centre) / spread) ** 2, axis=1)
        points = np.concatenate([initial[None], prior])
        eligible = np.concatenate([[False], far <= np.quantile(far, _NEAR)])
        which = _farthest(points, np.zeros(1, int), starts - 1, scale=spread, eligible=eligible)
        return cls.at(density, points[np.asarray(which)], spread)

    @classmethod
    def at(cls, density: Density, starts: np.ndarray, spread: np.ndarray) -> "Search":
        """Search from these starts (start, dim)."""
        given = jax.device_put((np.asarray(starts, float), np.asarray(spread, float)))
        return cls(density, given[0], given[1], exact=len(spread) <= _LONGEST_DENSE)

    def pooled(self, prior: np.ndarray, *, searches: int) -> "Search":
        """The same, but searches begin at draws of the prior (draw, dim) that fit each dataset.

        For densities that are zero at most points: a search cannot leave those.
        """
        prior = prior[(np.abs(prior) < _BEYOND).all(axis=1)][: POOL - 1]
        starts = jax.device_put(np.concatenate([np.asarray(self.starts)[:1], prior]))
        return eqx.tree_at(lambda s: s.starts, replace(self, searches=searches), starts)

    def elsewhere(self) -> "Search":
        """The same number of searches, at the best of points about the initial one.

        Where one parameter outweighs the others is drawn at random: for data whose density is zero
        at all `starts` (a mean 1 / eta, of which eta has to be positive in every row).
        """
        rng, shape = np.random.default_rng(0), (POOL, self.spread.shape[0])
        scale = np.exp(rng.uniform(*np.log(_ELSEWHERE), size=shape)) * np.asarray(self.spread)
        points = np.asarray(self.starts)[0] + scale * rng.normal(size=shape)
        return self.pooled(points, searches=self.begun)

    def scattered(self, number: int, seeds: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Points over the prior to its edges, other ones for each seed: (seed, number, dim)."""
        centre, spread = np.asarray(self.starts)[0], np.asarray(self.spread)
        shape = (number, len(spread))
        each = [np.random.default_rng(seed).normal(size=shape) for seed in seeds]
        return centre + _EDGE * spread * np.stack(each)

    @property
    def begun(self) -> int:
        """Searches of a dataset."""
        return len(self.starts) if self.searches is None else self.searches

    def begin(self, data: dict[str, Array], mask: Mask | None) -> Array:
        """Where the searches of one dataset begin, of shape (search, dim)."""
        if self.searches is None:
            return self.starts
        log_p = jax.lax.map(lambda z: self.density(z, data, mask), self.starts, batch_size=_AT_ONCE)
        log_p = jnp.where(jnp.isfinite(log_p), log_p, -jnp.inf)
        least = jnp.sort(log_p)[-min(_COMPETE * self.searches, len(log_p))]
        which = farthest_first(
            self.starts,
            jnp.argmax(log_p)[None],
            self.searches - 1,
            scale=self.spread,
            eligible=jnp.isfinite(log_p) & (log_p >= least),
        )
        return self.starts[which]

    def from_start(self, data: dict[str, Array], mask: Mask | None, start: Array) -> Mode:
        """Search for a mode of one dataset's posterior."""
        inside = lambda z: self.density(z, data, mask)  # noqa: E731
        if not self.exact:
            return lbfgs(inside, start, self.spread, steps=self.steps, tol=self.tol)
        compiled = getattr(self.density, "compiled", None)
        proper = compiled is None or not compiled.improper  # else the spread stands in for one
        return newton(inside, start, self.spread, steps=self.steps, tol=self.tol, proper=proper)

    def place(self, data: dict[str, Array], mask: Mask | None, found: Mode) -> Place:
        """What the searches of one dataset, fields (start, ...), say of its posterior."""
        promised = promise(found, alone=self.searches is not None)
        which, evidence, _ = distinct(found, promised, self.modes)
        there = jnp.isfinite(evidence)
        loc, scale = jax.tree.map(
            lambda new, old: jnp.where(there[0], new[which], old),
            (found.z, found.scale),
            (self.starts[0], self._prior_scale()),
        )
        weight = jnp.where(there[0], evidence, jnp.where(jnp.arange(self.modes), -jnp.inf, 0.0))
        sides = jnp.zeros((self.modes, 0, len(_SIDES)))
        if self.exact:
            look = lambda z, a: self._sides(data, mask, z, a)  # noqa: E731
            sides = jax.vmap(look)(loc, scale)
        # a mode whose scale is not finite is none
        failed = jnp.where(found.converged[0], Status.FLAT, found.status[0])
        status = jnp.where(there[0], Status.CONVERGED, failed)
        return Place(loc, scale, jax.nn.log_softmax(weight), status, sides)

    def __call__(self, data: dict[str, Array], mask: Mask | None) -> Place:
        """Search for the posterior of one dataset."""
        starts = self.begin(data, mask)
        found = jax.vmap(lambda start: self.from_start(data, mask, start))(starts)
        return self.place(data, mask, found)

    @property
    def features(self) -> int:
        """Length of what :meth:`seen` gives of each mode."""
        return 1 + self.spread.shape[0] * len(_SIDES) * self.exact

    def seen(self, place: Place) -> Array:
        """What a network sees of a place: not where it is, but how far from normal all is there.

        These numbers are about the same whatever the size of the data and of the parameters, so
        that what was learned of them holds for data far from the simulations.

        Returns
        -------
        Array of shape (mode, features)
        """
        flag = jnp.where(place.status == Status.CONVERGED, -1.0, 1.0)
        sides = jnp.arcsinh(place.sides).reshape(self.modes, -1)
        return jnp.concatenate([jnp.full((self.modes, 1), flag), sides], axis=1)

    def _prior_scale(self) -> AbstractScale:
        if self.exact:
            return Dense.of(jnp.diag(self.spread))
        dim = self.spread.shape[0]
        rank = min(dim, 2 * MEMORY)
        return LowRank(self.spread, jnp.eye(dim, rank), jnp.eye(rank))

    def _sides(
        self, data: dict[str, Array], mask: Mask | None, loc: Array, scale: AbstractScale
    ) -> Array:
        sides = jnp.asarray(_SIDES)

        def along(axis: Array) -> Array:
            step = scale.multiply(axis)
            return jax.vmap(lambda t: self.density(loc + t * step, data, mask))(sides)

        # the top is the place without an axis: the density is compiled once
        all_of_it = jax.lax.map(along, jnp.eye(1 + loc.shape[0], loc.shape[0], -1))
        excess = all_of_it[1:] - all_of_it[0, 0] + 0.5 * sides**2
        return jnp.clip(jnp.nan_to_num(excess, nan=-_WORST), -_WORST, _WORST)


def evidence_of(found: Mode) -> Array:
    """Log evidence of the normal at each mode, less a constant; -inf for what is no mode."""
    evidence = _as_normal(found)
    return jnp.where(found.converged & jnp.isfinite(evidence), evidence, -jnp.inf)


def _as_normal(found: Mode) -> Array:
    return found.log_p + jax.vmap(lambda s: s.log_det())(found.scale)


def promise(found: Mode, *, alone: bool = False) -> Array:
    """Log evidence at the ends of one dataset's searches, less a constant; -inf for what is none.

    Where there is a mode, or `alone`, an end where the density is flat counts, too, if it is as
    high there: a ridge that a support cuts off has no top. Where z is long it does not: there the
    scale is not held to that of the prior.
    """
    evidence, as_normal = evidence_of(found), _as_normal(found)
    there = jnp.isfinite(evidence)
    exact = isinstance(found.scale, Dense)
    flat = exact & (found.status == Status.FLAT) & jnp.isfinite(found.log_p)
    best = jnp.max(jnp.where(there | flat, found.log_p, -jnp.inf))
    beside = flat & (alone | there.any()) & (found.log_p > best - _AS_HIGH)
    return jnp.where(beside & jnp.isfinite(as_normal), as_normal, evidence)


class Distinct(NamedTuple):
    """The modes of one dataset that differ and count, in the order of their evidence.

    Attributes
    ----------
    which : Array of int of shape (number,)
        Of the searches; the first again where there are fewer.
    evidence : Array of shape (number,)
        -inf there.
    met : Array of bool of shape (start, start)
        Searches that ended at the same mode.
    """

    which: Array
    evidence: Array
    met: Array


def distinct(found: Mode, evidence: Array, number: int) -> Distinct:
    """Choose modes among searches, fields (start, ...), that have this `evidence`."""
    apart = jax.vmap(
        lambda s, u: jax.vmap(lambda other: jnp.sum(s.solve(u - other) ** 2))(found.z)
    )(found.scale, found.z)
    met = jnp.minimum(apart, apart.T) <= _SAME_MODE
    least = jnp.max(evidence) - _NEGLIGIBLE

    def choose(left: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        best = jnp.argmax(left)
        value = jnp.where(left[best] > least, left[best], -jnp.inf)
        return jnp.where(met[best], -jnp.inf, left).at[best].set(-jnp.inf), (best, value)

    _, (which, value) = jax.lax.scan(choose, evidence, length=number)
    return Distinct(jnp.where(jnp.isfinite(value), which, which[0]), value, met)
