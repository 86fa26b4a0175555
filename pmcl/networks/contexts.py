"""Context vectors of many datasets."""

import numpy as np
from jax import Array

from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.task import Batch
from pmcl.networks.amortizer import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit

_TOGETHER = 8  # datasets that a device works on together


@jit
def _contexts(amortizer: Amortizer, batch: Batch) -> Array:
    return over_datasets(amortizer.context, batch)


def contexts(amortizer: Amortizer, batch: Batch, index: np.ndarray) -> np.ndarray:
    """h(x) of the datasets `index` of a batch: array of shape (index, context)."""
    size = devices.together(_TOGETHER)
    return over_chunks(lambda part: _contexts(amortizer, part), batch, index, size=size)
