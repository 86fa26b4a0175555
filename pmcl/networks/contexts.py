"""Places and contexts of many datasets."""

from collections.abc import Callable

import numpy as np

from pmcl.data.batching import over_chunks, over_datasets, taken
from pmcl.data.task import Batch
from pmcl.networks.amortizer import Amortizer, Context
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.search.many import places

_TOGETHER = 8  # datasets that a device works on together


@jit
def _contexts(amortizer: Amortizer, batch: Batch) -> Context:
    return over_datasets(amortizer.context, batch, batch.place)


def placed(
    amortizer: Amortizer, batch: Batch, *, advance: Callable[[int], None] | None = None
) -> Batch:
    """Search for the posterior of every dataset, where the network needs it and nobody has.

    Parameters
    ----------
    amortizer : Amortizer
    batch : Batch
    advance : callable, optional
        Told how many datasets are done.
    """
    if amortizer.search is None or batch.place is not None:
        return batch
    return batch._replace(place=places(amortizer.search, batch, advance=advance))


def contexts(amortizer: Amortizer, batch: Batch, index: np.ndarray) -> Context:
    """Contexts of the datasets `index` of a batch: NumPy arrays with a leading dataset."""
    some = placed(amortizer, taken(batch, index))
    size = devices.together(_TOGETHER)
    return over_chunks(
        lambda part: _contexts(amortizer, part), some, np.arange(len(index)), size=size
    )
