"""Draws of the network alone, without any density: what its size and the machine allow."""

import jax
import numpy as np
from jax import Array

from pmcl.compile import Mask
from pmcl.data.batching import chunks, over_datasets, taken
from pmcl.data.task import Batch, Task
from pmcl.networks import Amortizer
from pmcl.runtime.jitting import jit
from pmcl.runtime.precision import NETWORK

DRAWS = 1000


@jit
def _draw(amortizer: Amortizer, batch: Batch, seed: Array) -> Array:
    def one(data: dict[str, Array], mask: Mask | None, key: Array) -> Array:
        context = amortizer.context(data, mask)
        eps = jax.random.normal(key, (DRAWS, amortizer.dim), NETWORK)
        return jax.vmap(amortizer.transform, in_axes=(0, None))(eps, context)[0]

    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(batch.values)[0]))
    return over_datasets(one, batch, keys)


def draw_only(amortizer: Amortizer, task: Task, seed: int, *, size: int = 128) -> None:
    """Draw z of shape (dataset, draw, dim), so many datasets at a time, and forget it."""
    for which, _ in chunks(len(task), size):
        part = taken(task.batch(), which)
        jax.block_until_ready(_draw(amortizer, part, np.asarray(seed)))
