"""Parameters at which the terms of a density are looked at."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.task import Batch, Task
from pmcl.runtime.jitting import jit

_NUMBER = 3
_SCALE = 0.5  # about the initial point
_TRIED = 512
_SCALES = (0.01, 8.0)  # of each variable, where few parameters are possible
_LEVELS = 16  # of ever smaller moves
_TOGETHER = 4  # datasets that a device works on together


def near(initial: np.ndarray, n: int) -> np.ndarray:
    """Random places about a model's initial point, always the same: (dataset, place, dim)."""
    rng = np.random.default_rng(0)
    found = initial + _SCALE * rng.normal(size=(_NUMBER, len(initial)))
    return np.broadcast_to(found, (n, *found.shape))


def possible(density: Density, task: Task, initial: np.ndarray) -> np.ndarray:
    """Places at which all terms of each dataset are finite, as far as there are such.

    For models that most parameters are impossible in: a mean 1 / eta, of which eta is positive in
    every row. Where one variable outweighs the others is drawn at random.

    Returns
    -------
    array of shape (dataset, place, dim)
        All of them near the first.
    """
    rng, n, dim = np.random.default_rng(0), len(task), density.dim
    scale = np.empty((_TRIED, dim))
    for v in density.compiled.values:
        drawn = rng.uniform(*np.log(_SCALES), size=(_TRIED, 1))
        scale[:, v.start : v.start + v.size] = np.exp(drawn)
    wide = initial + scale * rng.normal(size=scale.shape)
    first = _best(density, task, np.broadcast_to(wide, (n, *wide.shape)), 1)
    level = np.repeat(0.5 ** np.arange(_LEVELS), _TRIED // _LEVELS)[:, None]
    moved = first + _SCALE * level * rng.normal(size=scale.shape)
    return np.concatenate([first, _best(density, task, moved, _NUMBER - 1)], axis=1)


def at_possible[T](
    f: Callable[[np.ndarray], T], density: Density, task: Task
) -> tuple[np.ndarray, T]:
    """Places of shape (place, dim), and f at these: of a density, to be compared with another.

    What is impossible by both says nothing of either. So where f is finite nowhere about zero, the
    places are such as :func:`possible` finds for the first dataset.
    """
    z = _SCALE * np.random.default_rng(0).normal(size=(_NUMBER, density.dim))
    found = f(z)
    if not np.isfinite(np.asarray(found)).any():
        (z,) = possible(density, task.select([0]), density.compiled.initial)
        found = f(z)
    return z, found


def _best(density: Density, task: Task, z: np.ndarray, number: int) -> np.ndarray:
    """Of places (dataset, place, dim) the first at which the most terms are finite."""
    finite = over_chunks(
        lambda batch, z: _finite(density, batch, z),
        task.batch(),
        np.arange(len(task)),
        z,
        size=_TOGETHER,
    )
    which = np.argsort(-finite, axis=1, kind="stable")[:, :number]
    return np.take_along_axis(z, which[..., None], axis=1)


@jit
def _finite(density: Density, batch: Batch, z: Array) -> Array:
    """How many terms are finite, (dataset, place)."""

    def one(data: dict[str, Array], mask: Mask | None, z: Array) -> Array:
        return jax.lax.map(lambda u: jnp.isfinite(density.elements(u, data, mask)).sum(), z)

    return over_datasets(one, batch, z)
