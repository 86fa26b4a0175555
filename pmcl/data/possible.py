"""Whether a dataset's rows have a finite likelihood for any parameters, by evaluation."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel
from pmcl.compile.support import in_row
from pmcl.data.batching import over_chunks
from pmcl.data.task import Batch, DataError, Task
from pmcl.runtime import precision
from pmcl.runtime.arguments import warn
from pmcl.runtime.jitting import jit

_NEAR = np.array([0, 0.1, 0.1, 0.3, 0.3, 1, 1, 1])  # spread of points about the initial one
_WIDE = np.repeat([1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0, 8.0], len(_NEAR))
_ROWS = 128  # of a stream, that are looked at together
_TOGETHER = 2**15  # values that are evaluated together


class _Terms(NamedTuple):
    """Of each term of a variable's likelihood, by dataset: is it finite at some points, at all."""

    some: np.ndarray
    always: np.ndarray


def check_possible(compiled: CompiledModel, task: Task) -> Task:
    """Refuse rows whose likelihood is zero, or not a number, whatever the parameters.

    Models are left out where that cannot be: those without covariates whose distributions take
    known values.

    Returns
    -------
    Task
        The same.

    Raises
    ------
    DataError
        Naming the variable, the dataset, the row and the value.

    Warns
    -----
    UserWarning
        Where other rows are impossible at some of the parameters that were tried, so that these
        may be possible at others.
    """
    _check(compiled, task, {})
    return task


def check_rows(compiled: CompiledModel, task: Task) -> Task:
    """As :func:`check_possible`, of one dataset of independent rows, some of them at a time.

    Any number of rows is one compiled function.
    """
    row, n = task.layout.row, task.width
    index = np.minimum(np.arange(-(-n // _ROWS) * _ROWS), n - 1).reshape(-1, _ROWS)
    values = {}
    for info in task.layout.variables:
        value = task.values[info.name][0]
        if row in info.dims:
            axis = info.dims.index(row)
            values[info.name] = np.moveaxis(value.take(index, axis=axis), axis, 0)
        else:
            values[info.name] = np.broadcast_to(value, (len(index), *value.shape))
    blocks = Task(task.layout, values, task.names * len(index), None)
    _check(compiled, blocks, {row: _ROWS})
    return task


def _check(compiled: CompiledModel, task: Task, step: Mapping[str | None, int]) -> None:
    """Look at every dataset; the i-th begins at i times a step along a dim."""
    known = all(compiled.support.knows(v.name) for v in compiled.observed)
    if compiled.implicit or (not compiled.covariates and known):
        return
    at = compiled.keep("points", lambda: _points(compiled))
    first, *wider = np.split(at, len(at) // len(_NEAR))
    with precision.scope():
        found = _finite(compiled, task, first)
        for z in wider:
            left = np.flatnonzero(_impossible(task, found))
            if not len(left):
                return
            more = _finite(compiled, task.select(left), z)
            for name, terms in more.items():
                found[name].some[left] |= terms.some
    for i in map(int, np.flatnonzero(_impossible(task, found))):
        _tell(compiled, task, i, found, {d: i * n for d, n in step.items()})


def _points(compiled: CompiledModel) -> np.ndarray:
    """Points z about the model's initial one, near ones first."""
    spread = np.append(_NEAR, _WIDE)[:, None]
    normal = np.random.default_rng(0).normal(size=(len(spread), compiled.dim))
    return compiled.initial + spread * normal


def _finite(compiled: CompiledModel, task: Task, z: np.ndarray) -> dict[str, _Terms]:
    batch = task.batch()
    each = max(np.asarray(v)[0].size for v in batch.values.values())
    found = over_chunks(
        partial(_evaluate, compiled, z),
        batch,
        np.arange(len(task)),
        size=1 << int(np.log2(np.clip(_TOGETHER // each, 1, 4))),
    )
    row, width = task.layout.row, np.arange(task.width)
    for info in compiled.observed:  # without the room that batches have
        axis = 1 + info.dims.index(row) if row in info.dims else 0
        if 0 < axis < found[info.name].some.ndim:
            terms = _Terms(*(v.take(width, axis=axis) for v in found[info.name]))
            found[info.name] = terms
    return found


@jit
def _evaluate(compiled: CompiledModel, z: Array, batch: Batch) -> dict[str, _Terms]:
    def one(values: dict[str, Array]) -> dict[str, _Terms]:
        def finite(u: Array) -> dict[str, Array]:
            terms = compiled.log_likelihood_terms(u, values)
            return {name: jnp.isfinite(term) for name, term in terms.items()}

        found = jax.lax.map(finite, z)  # one by one: networks' rows are large
        return {name: _Terms(v.any(axis=0), v.all(axis=0)) for name, v in found.items()}

    return jax.vmap(one)(batch.values)


def _counted(task: Task, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Which terms count: those of no padding, and of nothing that is missing."""
    dims = next(v.dims for v in task.layout.variables if v.name == name)
    counted = np.ones(shape, bool)
    if name in task.there:
        there = task.there[name]
        counted &= there.all(axis=tuple(range(len(shape), there.ndim)))
    rows, row = task.rows, task.layout.row
    if rows is not None and row in dims[: len(shape) - 1]:
        axis = 1 + dims.index(row)
        counted &= np.expand_dims(rows, tuple(i for i in range(1, len(shape)) if i != axis))
    return counted


def _impossible(task: Task, found: dict[str, _Terms]) -> np.ndarray:
    """Datasets in which a row is possible nowhere."""
    none = [
        (~v.some & _counted(task, k, v.some.shape)).reshape(len(task), -1).any(axis=1)
        for k, v in found.items()
    ]
    return np.any(none, axis=0)


def _tell(
    compiled: CompiledModel,
    task: Task,
    i: int,
    found: dict[str, _Terms],
    begin: Mapping[str | None, int],
) -> None:
    """Raise an error, or warn, of the first impossible row of a dataset."""
    dims, points = {v.name: v.dims for v in task.layout.variables}, len(_NEAR) + len(_WIDE)
    for name, terms in found.items():
        counted = _counted(task, name, terms.some.shape)[i]
        none = counted & ~terms.some[i]
        if not none.any():
            continue
        position = tuple(map(int, np.argwhere(none)[0])) if none.ndim else ()
        value = np.asarray(task.dataset(i)[name])[position]
        where = tuple(p + begin.get(d, 0) for p, d in zip(position, dims[name], strict=False))
        shown = f"{value:g}" if value.ndim == 0 else "its values"
        others = counted & terms.some[i]
        sure = bool(others.any() and terms.always[i][others].all())
        beside = f", or the values of {[v.name for v in compiled.covariates]} beside it"
        text = (
            f"Variable {name!r} of dataset {task.names[i]!r}: got {shown}{in_row(where)}"
            f"{f' and in {none.sum() - 1} more' if none.sum() > 1 else ''}, of which the "
            f"likelihood is zero or not a number at all {points} parameters that were tried: the "
            f"model does not take {'it' if value.ndim == 0 else 'them'}"
            f"{beside if compiled.covariates else ''}. Correct or leave out what is wrong."
        )
        if sure:
            raise DataError(text)
        warn(text)
        return
