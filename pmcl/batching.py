"""Datasets in batches of few sizes, and the check that padding can be masked."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from pmcl.compile import CompiledModel, precision
from pmcl.data import Batch, DataError, Task


def chunks(task: Task, size: int) -> list[tuple[Batch, int]]:
    """Split a task into batches of at most `size` datasets, and of few different sizes.

    The last batch is filled up with copies of its first dataset; the number that counts is beside
    it. Sizes are powers of two, so that a handful of compilations serves any number of datasets.
    """
    whole = task.batch()
    parts = []
    for begin in range(0, len(task), size):
        n = min(size, len(task) - begin)
        filled = min(size, 1 << (n - 1).bit_length())
        index = np.concatenate([np.arange(n), np.zeros(filled - n, int)]) + begin
        parts.append((jax.tree.map(lambda x, i=index: np.asarray(x)[i], whole), n))
    return parts


def over_datasets(function: Callable[..., Any], batch: Batch, *rest: Any) -> Any:
    """Call function(values, mask, *rest) of one dataset on all of a batch.

    Leaves of `rest` have a leading dataset; the mask, and what is None in `rest`, is None for all.
    """
    axes = [None if x is None else 0 for x in (batch.values, batch.mask, *rest)]
    return jax.vmap(function, in_axes=tuple(axes))(batch.values, batch.mask, *rest)


def check_padding(compiled: CompiledModel, task: Task) -> None:
    """Refuse padding that changes the log density of a dataset.

    Padding is masked out of elementwise likelihoods. That is right unless a term uses other rows
    (a mean over the rows, say), so the shortest dataset is evaluated both ways.

    Raises
    ------
    DataError
    """
    assert task.lengths is not None and task.mask is not None
    names = task.layout.names[: task.layout.n_observed]
    refusal = _PADDING.format(names=names, row=task.layout.row)
    i = int(np.argmin(task.lengths))
    z = np.random.default_rng(0).normal(size=(3, compiled.dim)) * 0.5
    padded: Mapping = {k: v[i] for k, v in task.values.items()}
    unpadded: Mapping = task.dataset(i)
    with precision.scope():
        try:
            masked = [
                float(compiled.log_joint(u, padded, mask=task.mask[i], dim=task.layout.row))
                for u in z
            ]
            alone = [float(compiled.log_joint(u, unpadded)) for u in z]
        except (ValueError, TypeError, IndexError) as error:
            raise DataError(refusal) from error
    if not np.allclose(masked, alone, rtol=1e-8, atol=1e-8, equal_nan=True):
        raise DataError(refusal)


_PADDING = (
    "Datasets have different lengths along {row!r}, but the likelihood of {names} cannot be cut by "
    "row (it is not elementwise, or rows depend on one another). Pass datasets of one length in "
    "each call."
)
