"""The search for one dataset's posterior: mode, scale, and what the density is like beside them."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.search.farthest import farthest_first
from pmcl.search.newton import MEMORY, LogDensity, Mode, Status, lbfgs, newton
from pmcl.search.scales import AbstractScale, Dense, LowRank

_LONGEST_DENSE = 50  # parameters up to which steps use the exact Hessian
_STARTS = 5
_BEYOND = 1e100  # no draw to begin at
_NEAR = 0.8  # of the prior's draws, the nearest, among which starts are chosen
_SIDES = (-2.5, -1.0, 1.0, 2.5)  # scales from the mode at which the density is looked at
_WORST = 1e3  # nats by which it may differ there from a normal


class Place(NamedTuple):
    """Where the posterior of a dataset is, as far as its search could tell.

    Attributes
    ----------
    loc : Array of shape (dim,)
        The mode; the first start where no search converged.
    scale : AbstractScale
        A with A A' = |Hessian|^-1 there; the prior's scale where no search converged.
    status : Array of int
        A `Status`.
    sides : Array of shape (dim, side)
        Log density at loc + t A e_i, less that at loc and that of a normal, for a few t: zero for a
        normal posterior. Of shape (0, side) where z is long.
    """

    loc: Array
    scale: AbstractScale
    status: Array
    sides: Array


class Search(eqx.Module):
    """How the posterior of any dataset of a model is searched for; deterministic.

    The best of several starts is taken, by log density and scale together: the evidence of the
    normal there. What is found is a function of the dataset alone.

    Attributes
    ----------
    density : Density
    starts : Array of shape (start, dim)
        The model's initial point, then points that are spread over the prior.
    spread : Array of shape (dim,)
        The prior's scale.
    steps : int
        Most steps of one search.
    tol : float
        Nats that a last step would still gain.
    """

    density: Density
    starts: Array
    spread: Array
    steps: int = eqx.field(static=True, default=100)
    tol: float = eqx.field(static=True, default=1e-4)

    @classmethod
    def of(cls, density: Density, initial: np.ndarray, prior: np.ndarray) -> "Search":
        """Choose starts and scale.

        Parameters
        ----------
        density : Density
        initial : array of shape (dim,)
            The model's initial point.
        prior : array of shape (draw, dim)
            Draws of the prior, of which those that are not finite are left out; there may be none.
        """
        prior = prior[(np.abs(prior) < _BEYOND).all(axis=1)]  # NaN is not
        if not len(prior):
            prior = initial[None]  # all starts there, and a scale of one
        centre = np.median(prior, axis=0)
        spread = 1.4826 * np.median(np.abs(prior - centre), axis=0)
        spread = np.where(spread > 1e-12, spread, 1.0)
        far = np.sum(((prior - centre) / spread) ** 2, axis=1)
        points = np.concatenate([initial[None], prior])
        eligible = np.concatenate([[False], far <= np.quantile(far, _NEAR)])
        which = farthest_first(
            jnp.asarray(points),
            jnp.zeros(1, int),
            _STARTS - 1,
            scale=jnp.asarray(spread),
            eligible=jnp.asarray(eligible),
        )
        return cls(density, jnp.asarray(points[np.asarray(which)]), jnp.asarray(spread))

    @property
    def exact(self) -> bool:
        """Whether steps use the exact Hessian."""
        return self.spread.shape[0] <= _LONGEST_DENSE

    def __call__(self, data: dict[str, Array], mask: Mask | None) -> Place:
        """Search for the posterior of one dataset."""

        def log_density(z: Array) -> Array:
            return self.density(z, data, mask)

        method = newton if self.exact else lbfgs

        def one(start: Array) -> Mode:
            return method(log_density, start, self.spread, steps=self.steps, tol=self.tol)

        found = jax.vmap(one)(self.starts)
        evidence = found.log_p + jax.vmap(lambda s: s.log_det())(found.scale)
        evidence = jnp.where(found.converged & jnp.isfinite(evidence), evidence, -jnp.inf)
        best = jax.tree.map(lambda x: x[jnp.argmax(evidence)], found)
        loc, scale = jax.tree.map(
            lambda new, old: jnp.where(best.converged, new, old),
            (best.z, best.scale),
            (self.starts[0], self._prior_scale()),
        )
        sides = jnp.zeros((0, len(_SIDES)))
        if self.exact:
            sides = self._sides(log_density, loc, scale)
        return Place(loc, scale, best.status, sides)

    @property
    def features(self) -> int:
        """Length of what :meth:`seen` gives."""
        return 1 + self.spread.shape[0] * len(_SIDES) * self.exact

    def seen(self, place: Place) -> Array:
        """What a network sees of a place: not where it is, but how far from normal all is there.

        These numbers are about the same whatever the size of the data and of the parameters, so
        that what was learned of them holds for data far from the simulations.
        """
        flag = jnp.where(place.status == Status.CONVERGED, -1.0, 1.0)
        return jnp.concatenate([flag[None], jnp.arcsinh(place.sides).ravel()])

    def _prior_scale(self) -> AbstractScale:
        if self.exact:
            return Dense.of(jnp.diag(self.spread))
        dim = self.spread.shape[0]
        rank = min(dim, 2 * MEMORY)
        return LowRank(self.spread, jnp.eye(dim, rank), jnp.eye(rank))

    def _sides(self, log_density: LogDensity, loc: Array, scale: AbstractScale) -> Array:
        sides = jnp.asarray(_SIDES)

        def along(axis: Array) -> Array:
            step = scale.multiply(axis)
            return jax.vmap(lambda t: log_density(loc + t * step))(sides)

        excess = jax.lax.map(along, jnp.eye(loc.shape[0])) - log_density(loc) + 0.5 * sides**2
        return jnp.clip(jnp.nan_to_num(excess, nan=-_WORST), -_WORST, _WORST)
