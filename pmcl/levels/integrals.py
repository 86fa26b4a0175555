"""Groups integrated out: the log density of global parameters alone, and draws of local ones."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_datasets
from pmcl.data.task import Batch
from pmcl.levels.one_dataset import OneDataset, log_sum
from pmcl.levels.structure import KEY, Anchor, Levels
from pmcl.runtime.jitting import jit

_ENTRIES = 2**19  # terms that are evaluated together, about
_MOST = 256  # places at most
_TOGETHER = 8  # on cores, in whose caches more do not stay; one for a block


class Marginal(eqx.Module):
    """log p(g, x_0) + sum_j log Z_j(g): the density of the global parameters.

    Takes the place of a `Density` wherever one of z is refined; a dataset has what is `Given`
    under `KEY`.

    Attributes
    ----------
    density : Density
    shared : int
        Number of global parameters.
    exact : bool
        Whether groups are normal given the global parameters.
    concave : bool
        Whether groups have one mode given the global parameters; else a part of their proposals is
        about the prior's.
    places : tuple of int
        Where each of the model's value variables begins in g; -1 for those of groups.
    """

    density: Density
    shared: int = eqx.field(static=True)
    exact: bool = eqx.field(static=True)
    concave: bool = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, density: Density, levels: Levels) -> "Marginal":
        """That of a model whose levels are known."""
        where = {int(entry): i for i, entry in enumerate(levels.shared)}
        places = tuple(where.get(v.start, -1) for v in density.compiled.values)
        return cls(density, len(levels.shared), levels.exact, levels.concave, places)

    @property
    def inexact(self) -> "Marginal":
        """The same for datasets whose groups are not normal, whatever the model said at first."""
        return Marginal(self.density, self.shared, False, False, self.places)

    @property
    def dim(self) -> int:
        """Length of g."""
        return self.shared

    def __call__(self, g: Array, data: dict[str, Any], mask: Mask | None) -> Array:
        """log density of g, up to what nodes leave of the integrals."""
        return OneDataset(self, data, mask).log_density(g)

    def parts(self, g: Array, data: dict[str, Any], mask: Mask | None) -> tuple[Array, Array]:
        """log p(g, x_0) and sum_j log Z_j(g) at draws g of shape (draw, shared)."""
        given = OneDataset(self, data, mask)
        return jax.lax.map(given.integrated, g, batch_size=self.together(data, 1))

    def draw(
        self, g: Array, key: Array, data: dict[str, Any], mask: Mask | None, points: int
    ) -> tuple[Array, Array, Array]:
        """Draw local parameters given g, by `points` proposals a group.

        Parameters
        ----------
        g : Array of shape (draw, shared)
        key : Array
        data, mask
        points : int
            1 where groups are exact, else a power of two.

        Returns
        -------
        z : Array of shape (draw, dim)
        log_weight : Array of shape (draw,)
            log p(g, x_0) + sum_j log of an unbiased estimate of Z_j(g).
        apart : Array of bool of shape (draw,)
            Where groups that count as exact are not normal after all.

        References
        ----------
        Andrieu, Doucet & Holenstein (2010), Particle Markov chain Monte Carlo methods, section 4;
        Tran, Scharth, Pitt & Kohn (2013), Importance sampling squared, for the weights.
        """
        given = OneDataset(self, data, mask)
        keys = jax.random.split(key, g.shape[0])
        one = lambda item: given.draw(item[0], item[1], points)  # noqa: E731
        return jax.lax.map(one, (g, keys), batch_size=self.together(data, points))

    def weights(
        self, z: Array, key: Array, data: dict[str, Any], mask: Mask | None, points: int
    ) -> Array:
        """Log weights of each group's proposals at draws z (draw, dim): (draw, point, group).

        Relative to their sum in each draw.
        """
        given = OneDataset(self, data, mask)

        def one(item: tuple[Array, Array]) -> Array:
            g, _ = given.separated(item[0])
            _, _, log_w = given.proposed(g, given.peak(g, given.near), item[1], points)
            return log_w - log_sum(log_w)

        keys = jax.random.split(key, z.shape[0])
        return jax.lax.map(one, (z, keys), batch_size=self.together(data, points))

    def apart(self, z: Array, data: dict[str, Any], mask: Mask | None) -> Array:
        """Whether groups that count as exact are not normal at draws z (draw, dim): (draw,)."""
        given = OneDataset(self, data, mask)
        return jax.lax.map(given.apart, z, batch_size=self.together(data, 1))

    def anchor(self, g: Array, data: dict[str, Any], mask: Mask | None) -> Anchor:
        """Find where groups have their modes about global parameters g."""
        return OneDataset(self, data, mask).anchor(g)

    def together(self, data: dict[str, Any], points: int) -> int:
        """Evaluations at `points` places that are made at once, for bounded memory."""
        split = data[KEY].split
        terms = len(split.owner) * points * OneDataset(self, data, None).nodes
        most = 1 if split.block else _TOGETHER
        most = most if jax.default_backend() == "cpu" else _MOST
        return int(np.clip(_ENTRIES // terms, 1, most))


@jit
def anchored(marginal: Marginal, batch: Batch, g: Array) -> Anchor:
    """Where each dataset's groups have their modes about g of shape (dataset, shared)."""
    return over_datasets(lambda data, mask, u: marginal.anchor(u, data, mask), batch, g)
