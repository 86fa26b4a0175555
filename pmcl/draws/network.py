"""Draws of the amortized posterior with their densities, in chunks of one size."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_chunks, over_datasets, taken
from pmcl.data.task import Batch, Task
from pmcl.draws.densities import BLOCK, ITEMS, walk
from pmcl.draws.drawn import Drawn
from pmcl.networks import Amortizer
from pmcl.networks.amortizer import Context
from pmcl.networks.contexts import contexts
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.runtime.progress import Bar, progress_bar


@jit
def _draw(
    amortizer: Amortizer,
    density: Density,
    seed: Array,
    batch: Batch,
    context: Context,
    position: Array,
    block: Array,
) -> tuple[Array, ...]:
    """Draw z and evaluate log q, log prior and log likelihood: arrays of (item, draw, ...)."""

    def one(
        data: dict[str, Array], mask: Mask | None, context: Context, position: Array, block: Array
    ) -> tuple[Array, ...]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), position), block)
        z, log_q = amortizer.draw(key, BLOCK, context)
        z = z.astype(jnp.float64)
        return z, log_q, *density.parts(z, data, mask)

    return over_datasets(one, batch, context, position, block)


@jit
def _log_q(amortizer: Amortizer, context: Context, z: Array) -> Array:
    every = jax.vmap(jax.vmap(amortizer.log_prob, in_axes=(0, None)))
    return devices.spread(every(*devices.spread((z, context))))


def log_q(amortizer: Amortizer, z: np.ndarray, batch: Batch) -> np.ndarray:
    """log q(z | h(x)) for z of shape (dataset, draw, dim)."""
    context = contexts(amortizer, batch, np.arange(len(z)))
    return walk(lambda _, u, c: _log_q(amortizer, c, u), z, batch, context)


def embed(amortizer: Amortizer, task: Task) -> np.ndarray:
    """Context vectors of a task's datasets, at their first mode, shape (dataset, context)."""
    found = np.asarray(contexts(amortizer, task.batch(), np.arange(len(task))).vector)
    return found if amortizer.search is None else found[:, 0]


def draw(
    amortizer: Amortizer,
    density: Density,
    task: Task,
    *,
    draws: int,
    seed: int,
    progressbar: bool,
) -> Drawn:
    """Draw from the amortized posterior of every dataset and evaluate all densities.

    Parameters
    ----------
    amortizer, density, task
    draws : int
        Draws per dataset.
    seed : int
        Each draw depends on the seed, its dataset's position and its own alone.
    progressbar : bool
    """
    with progress_bar("Sampling", len(task), enabled=progressbar) as bar:
        found = _drawn(amortizer, density, task.batch(), task.position, draws, seed, bar)
    return Drawn(*(v[:, :draws] for v in found))


def look(amortizer: Amortizer, density: Density, batch: Batch, *, seed: int) -> Drawn:
    """Draws that datasets are judged by while the network learns."""
    position = np.arange(len(jax.tree.leaves(batch.values)[0]))
    return _drawn(amortizer, density, batch, position, BLOCK, seed)


def _drawn(
    amortizer: Amortizer,
    density: Density,
    batch: Batch,
    position: np.ndarray,
    draws: int,
    seed: int,
    bar: Bar | None = None,
) -> Drawn:
    """Make at least so many draws of every dataset; `position` is that in the whole."""
    n, blocks = len(position), -(-draws // BLOCK)
    context = contexts(amortizer, batch, np.arange(n))
    which, block = np.repeat(np.arange(n), blocks), np.tile(np.arange(blocks), n)
    found = over_chunks(
        lambda *given: _draw(amortizer, density, np.asarray(seed), *given),
        batch,
        which,
        taken(context, which),
        position[which],
        block,
        size=devices.together(ITEMS),
        advance=None if bar is None else lambda m: bar.advance(m / blocks),
    )
    return Drawn(*(v.reshape(n, -1, *v.shape[2:]) for v in found))
