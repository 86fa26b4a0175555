"""Datasets in batches of few sizes, and the check that what they lack can be masked."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from pmcl.data.task import Batch
from pmcl.runtime import devices


def over_chunks(
    function: Callable[..., Any],
    batch: Batch,
    index: np.ndarray,
    *rows: Any,
    size: int,
    advance: Callable[[int], None] | None = None,
) -> Any:
    """Call function(batch, *rows) on chunks that are always of one size, compiled once.

    Parameters
    ----------
    function : callable
        Of a batch and of trees with as many leading items, to a tree of such arrays.
    batch : Batch
        All datasets.
    index : array of int of shape (item,)
        Position of each item's dataset.
    *rows : pytrees of arrays
        With a leading item.
    size : int
        Items that a device works on together. The last chunk is filled up with its first item.
    advance : callable, optional
        Told how many items are done.

    Returns
    -------
    pytree of NumPy arrays
        With a leading item.
    """
    parts = []
    for which, n in chunks(len(index), size):
        given = taken(rows, which)
        found = function(taken(batch, index[which]), *given)
        parts.append(jax.tree.map(lambda x, n=n: devices.gathered(x)[:n], found))
        if advance is not None:
            advance(n)
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def over_items(function: Callable[..., Any], *rows: Any, size: int) -> Any:
    """As :func:`over_chunks`, of items that need no dataset: function(*rows)."""
    number = len(jax.tree.leaves(rows)[0])
    return over_chunks(
        lambda _, *given: function(*given), Batch({}, None), np.arange(number), *rows, size=size
    )


def chunks(n: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Positions of `n` items, `size` for each device at a time, and how many of them count.

    The last ones are filled up with the first of them: all are of one size.
    """
    size *= devices.number()
    for begin in range(0, n, size):
        index = np.arange(begin, begin + size)
        yield np.where(index < n, index, begin), min(size, n - begin)


def taken[T](tree: T, index: np.ndarray) -> T:
    """Some of the leading items of a tree of arrays, as NumPy's."""
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


def over_datasets(function: Callable[..., Any], batch: Batch, *rest: Any) -> Any:
    """Call function(values, mask, *rest) of one dataset on all of a batch.

    Leaves of `rest` have a leading dataset; the mask, and what is None in `rest`, is None for all.
    Inside a scope of :mod:`pmcl.devices` each device has its part of the datasets.
    """
    given = devices.spread((batch.values, batch.mask, *rest))
    axes = [None if x is None else 0 for x in given]
    return devices.spread(jax.vmap(function, in_axes=tuple(axes))(*given))
