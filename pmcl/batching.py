"""Datasets in batches of few sizes, and the check that what they lack can be masked."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from pmcl import devices
from pmcl.compile import CompiledModel, Mask, precision
from pmcl.data import Batch, DataError, Task


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


def check_masked(compiled: CompiledModel, task: Task) -> None:
    """Refuse padding or missing values that the log density of a dataset depends on.

    They are masked out of likelihoods that have a term for each value. That is right unless a term
    uses other values (a mean over the rows, a step of a series), so the shortest dataset is
    evaluated with its padding and without, and the one that lacks most with two fillings.

    Raises
    ------
    DataError
    """
    names = task.layout.names[: task.layout.n_observed]
    z = np.random.default_rng(0).normal(size=(3, compiled.dim)) * 0.5
    if task.ragged:
        i = int(np.argmin(task.lengths))  # type: ignore[arg-type]
        alone = task.select([i])
        refusal = _PADDING.format(names=names, row=task.layout.row)
        _same(compiled, z, _one(task, i), _one(_cut(alone), 0), task.layout.row, refusal)
    if task.there:
        gaps = np.sum([(~v).reshape(len(task), -1).sum(axis=1) for v in task.there.values()], 0)
        i = int(np.argmax(gaps))
        refusal = _MISSING.format(names=[n for n in names if n in task.there])
        values, mask = _one(task, i)
        other = {
            k: np.where(task.there[k][i], v, v + 1) if k in task.there else v
            for k, v in values.items()
        }
        _same(compiled, z, (values, mask), (other, mask), task.layout.row, refusal)
        _check_vectors(compiled, task)


type _Dataset = tuple[Mapping, Mask | None]


def _one(task: Task, i: int) -> _Dataset:
    batch = task.batch()
    return jax.tree.map(lambda x: np.asarray(x)[i], (batch.values, batch.mask))


def _cut(task: Task) -> Task:
    """Cut the padding off a task of one dataset."""
    assert task.lengths is not None
    n, row = int(task.lengths[0]), task.layout.row

    def cut(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        dims = {v.name: v.dims for v in task.layout.variables}
        return {
            k: v.take(np.arange(n), axis=1 + dims[k].index(row)) if row in dims[k] else v
            for k, v in arrays.items()
        }

    return replace(task, values=cut(task.values), there=cut(task.there))


def _same(
    compiled: CompiledModel,
    z: np.ndarray,
    one: _Dataset,
    other: _Dataset,
    row: str | None,
    refusal: str,
) -> None:
    with precision.scope():
        try:
            first, second = (
                [float(compiled.log_joint(u, values, mask=mask, dim=row)) for u in z]
                for values, mask in (one, other)
            )
        except (ValueError, TypeError, IndexError) as error:
            raise DataError(refusal) from error
    if not np.allclose(first, second, rtol=1e-8, atol=1e-8, equal_nan=True):
        raise DataError(refusal)


def _check_vectors(compiled: CompiledModel, task: Task) -> None:
    """Refuse a vector that lacks some entries where the likelihood has one term for all."""
    for name, there in task.there.items():
        entries = there.reshape(*there.shape[: 1 + compiled.term_dims(name)], -1)
        part = entries.any(axis=-1) & ~entries.all(axis=-1)
        if part.any():
            i = int(np.argmax(part.reshape(len(task), -1).any(axis=1)))
            raise DataError(
                f"Variable {name!r} of dataset {task.names[i]!r}: some entries of a vector are "
                "missing (NaN), and its likelihood has one term for the whole vector; expected "
                "all of them or none. Drop the vector (all NaN), or write the likelihood by entry."
            )


_PADDING = (
    "Datasets have different lengths along {row!r}, but the likelihood of {names} cannot be cut by "
    "row (it is not elementwise, or rows depend on one another). Pass datasets of one length in "
    "each call."
)
_MISSING = (
    "Values of {names} are missing (NaN), but the likelihood depends on them beyond a term of "
    "their own (it is not elementwise, or other variables depend on them). Drop the datasets, or "
    "cut a series before its first gap."
)
