"""A block of parameters given few others: one group, where there are no several."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.compile.variables import ValueSlice
from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.task import Batch, Task
from pmcl.levels.partition import Partition, candidates
from pmcl.runtime.jitting import jit

_WIDTHS = (10, 200)  # parameters of a block
_LARGE = 30  # of one that is not normal, which without a block is refined as well up to there
_TRIED = 64  # sets of global variables
_TOGETHER = 4  # datasets that a device works on together
_ZERO = 1e-7  # of third derivatives, relative to the second
_SAME = 1e-9
_NODES = 12  # at which second derivatives are averaged
_JUMP = 1e-3  # of a slope, relative to what there is of it
_SINGULAR = 1e-6  # of a curvature, relative to its entries
_TINY = 1e-12


def one_block(density: Density, task: Task, places: np.ndarray, most: int) -> Partition | None:
    """Find the fewest global parameters given which all others are normal, or log-concave.

    Crossed effects, chains, Gaussian processes and the coefficients of a regression are normal
    where what is observed is, and log-concave where that is binary or counts.

    Parameters
    ----------
    density : Density
    task : Task
    places : array of shape (dataset, place, dim)
        Parameters at which the density is looked at.
    most : int
        Global parameters that are few.

    Returns
    -------
    Partition or None
        Of one group; None where no few parameters leave a block.
    """
    values, dim = density.compiled.values, density.dim
    sets = sorted(candidates(values), key=lambda names: _size(values, names))
    size = [_size(values, names) for names in sets]
    fits = [0 < n <= most and _WIDTHS[0] <= dim - n <= _WIDTHS[1] for n in size]
    sets = list(compress(sets, fits))[:_TRIED]
    if not sets:
        return None
    local = np.stack([_local(values, names, dim) for names in sets])
    found = over_chunks(
        lambda batch, places: _quadratic(density, batch, places, local),
        task.batch(),
        np.arange(len(task)),
        places,
        size=_TOGETHER,
    )
    normal, concave = (np.flatnonzero(v.all(axis=0)) for v in found)
    concave = concave[local[concave].sum(axis=1) >= _LARGE]
    if not len(normal) and len(concave):
        by_prior = over_chunks(
            lambda batch, places: _concave_priors(density, batch, places, local[concave]),
            task.batch(),
            np.arange(len(task)),
            places,
            size=_TOGETHER,
        )
        concave = concave[by_prior.all(axis=0)]
    usable = normal if len(normal) else concave
    if not len(usable):
        return None
    first = usable[0]
    return Partition(sets[first], np.where(local[first], 0, -1))


def _size(values: Sequence[ValueSlice], names: frozenset[str]) -> int:
    return sum(v.size for v in values if v.name in names)


def _local(values: Sequence[ValueSlice], shared: frozenset[str], dim: int) -> np.ndarray:
    """Which entries of z are not shared."""
    found = np.zeros(dim, bool)
    for v in values:
        found[v.start : v.start + v.size] = v.name not in shared
    return found


@jit
def _quadratic(density: Density, batch: Batch, places: Array, local: Array) -> tuple[Array, Array]:
    """Whether the density is quadratic, and smoothly concave, in entries (set, dim) of z.

    Both have the shape (dataset, set).
    """

    def one(data: dict[str, Array], mask: Mask | None, places: Array) -> tuple[Array, Array]:
        a, b = places[0], places[1]

        def in_set(mine: Array) -> tuple[Array, Array]:
            def along(move: Array) -> tuple[Array, Array]:
                f = lambda t: density(a + t * mine * move, data, mask)  # noqa: E731
                same, concave = quadratic(f)
                return same, concave & smooth(f)

            same, concave = jax.lax.map(along, jnp.stack([b - a, b + a, -b]))
            return same.all(), concave.all()

        return jax.lax.map(in_set, local)

    return over_datasets(one, batch, places)


@jit
def _concave_priors(density: Density, batch: Batch, places: Array, local: Array) -> Array:
    """Whether the prior is concave in entries (set, dim) of z: (dataset, set).

    A scale and what it is the scale of have no joint mode, which rows that say much hide until
    the scale is small.
    """

    def one(data: dict[str, Array], mask: Mask | None, places: Array) -> Array:
        def at(z: Array) -> Array:
            matrix = -jax.hessian(lambda u: density.compiled.log_prior(u, data))(z)
            size = jnp.abs(jnp.diagonal(matrix))
            size = jnp.sqrt(size + _TINY * (1.0 + jnp.max(size)))
            matrix = matrix / (size * size[:, None])

            def in_set(mine: Array) -> Array:
                here = jnp.where(mine & mine[:, None], matrix, 0.0)
                beside = jnp.where(mine, _SINGULAR, 1.0)  # a flat prior is concave, too
                return jnp.isfinite(jnp.linalg.cholesky(here + jnp.diag(beside))).all()

            return jax.lax.map(in_set, local)

        return jax.lax.map(at, places).all(axis=0)

    return over_datasets(one, batch, places)


def quadratic(f: Callable[[Any], Array]) -> tuple[Array, Array]:
    """Whether functions of a number t are quadratic, and whether they are concave."""
    d1 = lambda t: jax.jvp(f, (t,), (1.0,))[1]  # noqa: E731
    d2 = lambda t: jax.jvp(d1, (t,), (1.0,))[1]  # noqa: E731
    second, third = jax.jvp(d2, (0.0,), (1.0,))
    # and far away: a kink has no third derivative
    line = jax.vmap(f)(jnp.arange(-3.0, 4.0))
    f3, f1, f0, g1, g3 = (line[i] for i in (0, 2, 3, 4, 6))
    slope, bend = 1.5 * (g1 - f1), 4.5 * (g1 - 2 * f0 + f1)
    near = jnp.abs(third) <= _ZERO * (1.0 + jnp.abs(second))
    same = near & close(f0 + slope + bend, g3) & close(f0 - slope + bend, f3)
    bent = line[2:] - 2 * line[1:-1] + line[:-2]
    concave = bent <= _SAME * (1.0 + jnp.abs(line[1:-1]))
    return same, jnp.where(jnp.isfinite(bent), concave, True)


def smooth(f: Callable[[Any], Array]) -> Array:
    """Whether the slope of a function of a number changes by its second derivative alone.

    At a kink, as densities of Laplace distributions have, it jumps.
    """
    d1 = lambda t: jax.jvp(f, (t,), (1.0,))[1]  # noqa: E731
    d2 = lambda t: jax.jvp(d1, (t,), (1.0,))[1]  # noqa: E731
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    slope, bend = jax.vmap(d1)(jnp.array([-1.0, 1.0])), jax.vmap(d2)(jnp.asarray(nodes))
    size = jnp.sum(jnp.abs(slope)) + jnp.abs(bend) @ weights
    return jnp.abs(slope[1] - slope[0] - bend @ weights) <= _JUMP * (1.0 + size)


def close(a: Array, b: Array) -> Array:
    """Whether numbers are equal but for rounding."""
    return jnp.abs(a - b) <= _SAME * (1.0 + jnp.abs(a) + jnp.abs(b))
