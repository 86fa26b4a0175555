"""Datasets in batches of few sizes, and the check that what they lack can be masked."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import chain
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

    Cores work on a chunk each: most of what runs is too small to be shared by several.

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

    def one(which: np.ndarray, n: int) -> Any:
        found = function(taken(batch, index[which]), *taken(rows, which))
        return jax.tree.map(lambda x: devices.gathered(x)[:n], found)

    first, *others = chunks(len(index), size)
    parts = []
    # the first one alone: the others find what it compiles
    for part in chain([one(*first)], _beside(one, others)):
        parts.append(part)
        if advance is not None:
            advance(len(jax.tree.leaves(part)[0]))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _beside(one: Callable[..., Any], jobs: list[tuple]) -> Iterator[Any]:
    """Yield one(*job) of each job, in order; as many run at a time as there are cores."""
    number = min(devices.cores(), len(jobs))
    if number < 2:
        yield from (one(*job) for job in jobs)
        return
    scope = devices.scope_of_threads()

    def alone(job: tuple) -> Any:
        with scope():
            return one(*job)

    pool = ThreadPoolExecutor(number)
    try:
        futures = [pool.submit(copy_context().run, alone, job) for job in jobs]
        yield from (future.result() for future in futures)
    finally:
        pool.shutdown(cancel_futures=True)


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
