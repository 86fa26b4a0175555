"""Deterministics that use all rows of a dataset, such as a mean: of those that there are."""

from collections.abc import Mapping

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.compile.on_host import on_host, told_by_data
from pmcl.data.task import Task

_FEW, _DATASETS = 4, 16  # draws, and datasets of different lengths, by which it is told


def of_real_rows(
    compiled: CompiledModel, z: np.ndarray, task: Task, found: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Put right what padding has a part in.

    Values of a few draws are computed without padding; of variables that differ those of all are.

    Parameters
    ----------
    compiled : CompiledModel
    z : array of shape (dataset, draw, dim)
    task : Task
    found : mapping of arrays of shape (dataset, draw, ...)
        Values by name, of batches with padding.
    """
    row, whole = task.layout.row, dict(found)
    if row is None or task.lengths is None or not task.padded:
        return whole
    padded = [int(i) for i in np.flatnonzero(task.lengths < task.room)]
    names = tuple(n for n in told_by_data(compiled, lambda i: row in i.dims) if n in found)
    if not names or not padded:
        return whole
    # of few: each is evaluated one by one, and most models have no such variable
    _, looked = np.unique(task.lengths[padded], return_index=True)
    wrong = set()
    for i in np.asarray(padded)[looked[:_DATASETS]]:
        own = on_host(compiled, names)(z[i, :_FEW], _dataset(task, i))
        wrong |= {n for n, v in own.items() if not same(found[n][i, :_FEW][_part(v)], v)}
    if wrong:
        names = tuple(n for n in names if n in wrong)
        whole |= {n: np.array(found[n]) for n in names}
        for i in padded:
            for n, v in on_host(compiled, names)(z[i], _dataset(task, i)).items():
                if whole[n].dtype.kind == "f":
                    whole[n][i] = np.nan  # entries that there are none of
                whole[n][i][_part(v)] = v
    return whole


def _dataset(task: Task, i: int) -> dict[str, np.ndarray]:
    """Arrays of one dataset without padding; what is missing is filled."""
    row, lengths, found = task.layout.row, task.lengths, {}
    assert lengths is not None
    for info in task.layout.variables:
        value = np.asarray(task.values[info.name][i])
        if row in info.dims:
            value = value.take(np.arange(lengths[i]), axis=info.dims.index(row))
        found[info.name] = value
    return found


def _part(value: np.ndarray) -> tuple[slice, ...]:
    """Where values without padding are among those with it."""
    return tuple(slice(n) for n in value.shape)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether values with and without padding are the same, whatever order they were summed in."""
    return np.allclose(one, other, rtol=1e-6, atol=1e-12, equal_nan=True)
