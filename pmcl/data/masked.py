"""Whether padding and missing values can be left out of a likelihood, by evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytensor
from jax import Array
from pymc.distributions.custom import CustomDistRV

from pmcl.compile import CompiledModel, Density, Mask
from pmcl.compile.constants import beside_rows
from pmcl.compile.function import LENGTH_OF_ITS_OWN
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import VariableInfo
from pmcl.data.one_dataset import check_length
from pmcl.data.places import at_possible
from pmcl.data.task import DataError, Task
from pmcl.runtime import precision
from pmcl.runtime.jitting import jit

type _Dataset = tuple[Mapping, Mask | None]

_PADDING = (
    "Datasets have different lengths along {row!r}, but the likelihood of {names} cannot be cut by "
    "row (it is not elementwise, or rows depend on one another). Pass datasets of one length in "
    "each call."
)

_MISSING = (
    "Values of {names} are missing (NaN; dataset {name!r} lacks most), but the likelihood depends "
    "on them beyond a term of their own (it is not elementwise, or other variables depend on "
    "them). Make them parameters: `gaps = pm.Flat('gaps', shape=int((~there).sum()))`, "
    "`series = pt.set_subtensor(pt.as_tensor(values)[~there], gaps)` and "
    "`pm.Potential('series', pm.logp(pm.AR.dist(...), series))`, or what the distribution is; or "
    "sum them out, by a Kalman filter in a `pm.Potential` whose step skips what is not there; or "
    "make the series latent (`pm.AR`) and its values rows of their own (`pm.Normal`). Else drop "
    "the datasets, or cut a series before its first gap."
)


def check_masked(compiled: CompiledModel, task: Task) -> Task:
    """Refuse padding or missing values that the log density of a dataset depends on.

    They are masked out of likelihoods that have a term for each value. That is right unless a term
    uses other values (a mean over the rows, a step of a series), so a dataset's first rows are
    evaluated alone and with the others as padding, and the one that lacks most with two fillings.

    Returns
    -------
    Task
        The same, whose batches are padded to one of a few lengths where that may be.

    Raises
    ------
    DataError
    """
    check_lengths(compiled, task)
    names, row = task.layout.names[: task.layout.n_observed], task.layout.row
    if task.ragged and row is not None:
        check_length(row, task.layout.names)
    if task.lengths is not None:
        filled = replace(task, maskable=True)
        if filled.padded:
            good = filled.room < 2 or _padded_alike(compiled, filled)
            if task.ragged and not good:
                raise DataError(_PADDING.format(names=names, row=row))
            task = filled if good else task
    if task.there:
        gaps = np.sum([(~v).reshape(len(task), -1).sum(axis=1) for v in task.there.values()], 0)
        i = int(np.argmax(gaps))
        refusal = _MISSING.format(names=[n for n in names if n in task.there], name=task.names[i])
        values, mask = _one(task, i)
        assert mask is not None
        other = {
            k: np.where(mask.values[k], v, v + 1) if k in mask.values else v
            for k, v in values.items()
        }
        if not _same(compiled, task.select([i]), (values, mask), (other, mask)):
            raise DataError(refusal)
        check_vectors(compiled, task)
    return task


def check_lengths(compiled: CompiledModel, task: Task) -> None:
    """Refuse lengths at which the model has no term for each value: its own arrays have another.

    Raises
    ------
    DataError
    """
    infos = [i for i in task.layout.variables if i.name in task.values]
    _check_terms(compiled, infos)
    lengths = [task.width] if task.lengths is None else [*map(int, task.lengths)]
    for which in (np.argmin(lengths), np.argmax(lengths)):
        sizes = [
            tuple(
                lengths[which] if d == task.layout.row else n
                for d, n in zip(i.dims, task.values[i.name].shape[1:], strict=True)
            )
            for i in infos
        ]
        other = [(i, size) for i, size in zip(infos, sizes, strict=True) if size != i.shape]
        if not other or compiled.implicit:
            continue
        terms, own = (
            _terms(compiled, infos, sizes),
            _terms(compiled, infos, [i.shape for i in infos]),
        )
        by_name = {i.name: (i.shape, size) for i, size in zip(infos, sizes, strict=True)}
        if terms is not None and all(
            shape == by_name[k][1][: len(shape)]
            for k, shape in terms.items()
            if own is None or own[k] == by_name[k][0][: len(shape)]  # not of a density of its own
        ):
            continue
        (info, size), where = other[0], f"of dataset {task.names[which]!r}"
        differ = [(d, m, n) for d, m, n in zip(info.dims, info.shape, size, strict=True) if m != n]
        beside = beside_rows(compiled, {m for _, m, _ in differ})
        if not beside:
            dim, m, n = differ[0]
            raise DataError(
                f"Variable {info.name!r} {where}: expected length {m} along dim {dim!r}, got {n} "
                f"({LENGTH_OF_ITS_OWN})."
            )
        raise DataError(
            f"Variable {info.name!r} {where}: got shape {size}, which does not go with what the "
            f"model has beside it, which is for its own {info.shape}: {beside}."
        )


def check_batches(compiled: CompiledModel, row: str) -> None:
    """Refuse a model with arrays of its own beside its rows, where batches have any number.

    Raises
    ------
    UnsupportedModelError
        Naming these arrays.
    """
    first = compiled.observed[0]
    n = first.shape[first.dims.index(row)]
    beside = beside_rows(compiled, {n}) if n > 1 else ""
    if not beside:
        return
    sizes = {
        i.name: tuple(m + (d == row) for d, m in zip(i.dims, i.shape, strict=True))
        for i in compiled.data
    }
    terms = _terms(compiled, compiled.data, [*sizes.values()])
    if terms is None or any(shape != sizes[k][: len(shape)] for k, shape in terms.items()):
        raise UnsupportedModelError(
            f"Variable {first.name!r}: expected a likelihood with a term for each row of a batch, "
            f"however many these are, but of {n + 1} rows along {row!r} there is none "
            f"({beside.replace('every dataset', 'every batch')})."
        )


def _check_terms(compiled: CompiledModel, infos: Sequence[VariableInfo]) -> None:
    """Refuse densities of one's own that have fewer terms than there are rows, but not one."""
    model = compiled.model
    if compiled.implicit or not any(
        isinstance(rv.owner.op, CustomDistRV) for rv in getattr(model, "observed_RVs", ())
    ):
        return
    terms = _terms(compiled, infos, [i.shape for i in infos]) or {}
    for info in infos:
        shape = terms.get(info.name, ())
        if any(n < rows for n, rows in zip(shape, info.shape, strict=False)):
            raise DataError(
                f"Variable {info.name!r}: its `logp` returns terms of shape {shape} for values of "
                f"shape {info.shape}. Return one term a row (0 where there is none), or their sum."
            )


def _terms(
    compiled: CompiledModel, infos: Sequence[VariableInfo], sizes: Sequence[tuple[int, ...]]
) -> dict[str, tuple[int, ...]] | None:
    """Shapes of the terms of the likelihood of data of these shapes; None where it has none."""
    shapes = tuple((i.name, size, i.dtype) for i, size in zip(infos, sizes, strict=True))

    def found() -> dict[str, tuple[int, ...]] | None:
        like = {name: jax.ShapeDtypeStruct(size, kind) for name, size, kind in shapes}
        z = jax.ShapeDtypeStruct((compiled.dim,), float)
        try:
            with precision.scope(), pytensor.config.change_flags(on_opt_error="ignore"):
                terms = jax.eval_shape(compiled.log_likelihood_terms, z, like)
                jax.eval_shape(compiled.log_joint, z, like)
        except (ValueError, TypeError, IndexError):
            return None
        return {k: v.shape for k, v in terms.items() if k in like}

    return compiled.keep(("terms", shapes), found)


def _one(task: Task, i: int) -> _Dataset:
    batch = replace(task, beside=None).batch()
    return jax.tree.map(lambda x: np.asarray(x)[i], (batch.values, batch.mask))


def _padded_alike(compiled: CompiledModel, task: Task) -> bool:
    """Whether the first half of the longest dataset has one density, alone and padded."""
    assert task.lengths is not None
    row, half = task.layout.row, task.room // 2
    longest = int(np.argmax(task.lengths))
    values, mask = _one(task, longest)
    dims = {v.name: v.dims for v in task.layout.variables}
    index = np.arange(half)

    def cut(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            k: v.take(index, axis=dims[k].index(row)) if row in dims[k] else v
            for k, v in arrays.items()
        }

    there = {} if mask is None else mask.values
    padded = Mask(np.arange(task.room) < half, there)  # type: ignore[arg-type]
    alone = Mask(np.ones(half, bool), cut(there))  # type: ignore[arg-type,arg-type]
    if not there:
        alone = None  # type: ignore[assignment]
    return _same(compiled, task.select([longest]), (cut(values), alone), (values, padded))


def _same(compiled: CompiledModel, task: Task, one: _Dataset, other: _Dataset) -> bool:
    """Whether two forms of the one dataset of a task have the same density."""
    row = task.layout.row

    def at(z: np.ndarray, values: Mapping, mask: Mask | None) -> Array:
        return _log_joint(compiled, row, z, values, mask)

    with precision.scope():
        try:
            z, first = at_possible(lambda z: at(z, *one), Density(compiled, row), task)
            second = at(z, *other)
        except (ValueError, TypeError, IndexError):
            return False
    return np.allclose(first, second, rtol=1e-8, atol=1e-8, equal_nan=True)


@partial(jit, once=True)
def _log_joint(
    compiled: CompiledModel, row: str | None, z: Array, values: Mapping, mask: Mask | None
) -> Array:
    return jax.vmap(lambda u: compiled.log_joint(u, values, mask=mask, dim=row))(z)


def check_vectors(compiled: CompiledModel, task: Task) -> None:
    """Refuse values of which some are missing where the likelihood has one term for all of them.

    Raises
    ------
    DataError
    """
    for name, there in task.there.items():
        terms = compiled.term_dims(name)
        entries = there.reshape(*there.shape[: 1 + terms], -1)
        part = entries.any(axis=-1) & ~entries.all(axis=-1)
        if part.any():
            i = int(np.argmax(part.reshape(len(task), -1).any(axis=1)))
            where = f" of dataset {task.names[i]!r}" if len(task) > 1 else ""
            raise DataError(
                f"Variable {name!r}{where}: expected values that are all there or all missing "
                f"(NaN) where they have one likelihood together ({there.ndim - 1 - terms} last "
                "dims), got some of each. Leave all of them out, or write the likelihood by "
                "entry, as independent variables given local ones."
            )
