"""Densities and constrained values of draws, dataset by dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel, Mask, VariableInfo
from pmcl.compile.on_host import told_by_data
from pmcl.data.batching import over_chunks, over_datasets, taken
from pmcl.data.task import Batch, Task
from pmcl.draws.real_rows import of_real_rows
from pmcl.levels.structure import KEY
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit

# One size for any number of draws and of datasets, so that nothing is compiled for another number.
BLOCK = 256  # draws of one dataset that are made together
_FEW = 16  # the size where there are no more
ITEMS = 8  # such blocks, of any datasets, that a device works on together


def _by_dataset(function: Callable[..., Any], z: Array, values: dict[str, Array]) -> Any:
    """Call function(u, data) on every draw of every dataset."""
    every = jax.vmap(jax.vmap(function, in_axes=(0, None)))
    return devices.spread(every(*devices.spread((z, values))))


@jit
def _constrain(
    compiled: CompiledModel, z: Array, values: dict[str, Array], names: tuple[str, ...]
) -> dict[str, Array]:
    def one(u: Array, data: dict[str, Array]) -> dict[str, Array]:
        found = compiled.constrain(u, data)
        return {n: found[n] for n in names}

    return _by_dataset(one, z, values)


@jit
def unconstrain(
    compiled: CompiledModel, values: Mapping[str, Array], covariates: Mapping[str, Array]
) -> Array:
    """Return z of shape (draw, dim) of the free variables' values, (draw, ...) by name."""
    return jax.vmap(lambda p: compiled.unconstrain(p, covariates))(values)


@jit
def _pointwise(
    compiled: CompiledModel, row: str | None, z: Array, batch: Batch
) -> dict[str, Array]:
    def all_draws(data: dict[str, Array], mask: Mask | None, u: Array) -> dict[str, Array]:
        terms = partial(compiled.log_likelihood_terms, mask=mask, dim=row)
        return jax.vmap(terms, in_axes=(0, None))(u, data)

    return over_datasets(all_draws, batch, z)


@jit
def _prior_terms(compiled: CompiledModel, z: Array, values: dict[str, Any]) -> dict[str, Array]:
    if KEY not in values:
        return _by_dataset(compiled.log_constrained_prior_terms, z, values)

    def without_padding(u: Array, data: dict[str, Any]) -> dict[str, Array]:
        split, begin, found = data[KEY].split, 0, {}
        for name, term in compiled.log_prior_elements(u, data, constrained=True).items():
            owner = split.owner[begin : begin + term.size]
            there = owner <= split.groups
            found[name] = jnp.sum(jnp.where(there, jnp.ravel(term), 0.0))
            begin += term.size
        return found

    return _by_dataset(without_padding, z, values)


@jit
def _densities(
    compiled: CompiledModel, row: str | None, z: Array, batch: Batch
) -> tuple[Array, Array]:
    def one(u: Array, data: dict[str, Array], mask: Mask | None) -> tuple[Array, Array]:
        return (
            compiled.log_prior(u, data),
            compiled.log_likelihood(u, data, mask=mask, dim=row),
        )

    def all_draws(data: dict[str, Array], mask: Mask | None, u: Array) -> tuple[Array, Array]:
        return jax.vmap(one, in_axes=(0, None, None))(u, data, mask)

    return over_datasets(all_draws, batch, z)


def pick(compiled: CompiledModel, var_names: list[str] | None) -> tuple[str, ...]:
    """Names of the variables to return: all of them, or those asked for.

    Raises
    ------
    ValueError
        Naming those that are no variables.
    """
    known = [i.name for i in (*compiled.free, *compiled.deterministics)]
    if var_names is None:
        return tuple(known)
    unknown = [n for n in var_names if n not in known]
    if unknown:
        raise ValueError(f"var_names: expected some of {known}, got {unknown}.")
    return tuple(var_names)


def walk(evaluate: Callable[..., Any], z: np.ndarray, batch: Batch, context: Any = None) -> Any:
    """Evaluate draws z of shape (dataset, draw, dim), some of them together, whatever their number.

    `evaluate` takes a batch, draws of shape (item, draw, dim) and perhaps contexts of each item.
    """
    n, draws = z.shape[:2]
    size = BLOCK if draws > _FEW else _FEW
    blocks = -(-draws // size)
    index = np.minimum(np.arange(blocks * size), draws - 1)
    items = z[:, index].reshape(n * blocks, size, *z.shape[2:])
    which = np.repeat(np.arange(n), blocks)
    rows = (items,) if context is None else (items, taken(context, which))
    found = over_chunks(evaluate, batch, which, *rows, size=devices.together(ITEMS))
    return jax.tree.map(lambda v: v.reshape(n, blocks * size, *v.shape[2:])[:, :draws], found)


def _cut(
    arrays: dict[str, np.ndarray], infos: Sequence[VariableInfo], task: Task
) -> dict[str, np.ndarray]:
    """Cut arrays of shape (dataset, draw, ...) from the length of a batch to the task's."""
    row, dims = task.layout.row, {i.name: i.dims for i in infos}

    def cut(name: str, value: np.ndarray) -> np.ndarray:
        here = dims[name][: value.ndim - 2]  # a likelihood of whole vectors has fewer
        if row not in here or task.room == task.width:
            return value
        return value.take(np.arange(task.width), axis=2 + here.index(row))

    return {name: cut(name, value) for name, value in arrays.items()}


def constrain(
    compiled: CompiledModel, z: np.ndarray, task: Task, names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Named variables of z of shape (dataset, draw, dim): arrays of (dataset, draw, ...).

    Deterministics are NaN where they depend on values that are missing.
    """
    found = walk(lambda batch, u: _constrain(compiled, u, batch.values, names), z, task.batch())
    found = _cut(found, (*compiled.free, *compiled.deterministics), task)
    found = of_real_rows(compiled, z, task, found)
    told = told_by_data(compiled, lambda i: i.name in task.there) if task.there else ()
    told = tuple(n for n in told if n in names and found[n].dtype.kind == "f")
    if told:  # nobody knows what depends on values that are missing
        other = constrain(compiled, z, _filled_otherwise(task), names)
        found |= {n: np.where(found[n] == other[n], found[n], np.nan) for n in told}
    return found


def _filled_otherwise(task: Task) -> Task:
    """A task with other values in place of what is missing, as if they were there.

    NaN; the variable's largest value, or its smallest, where its type has none.
    """
    values = dict(task.values)
    for name, there in task.there.items():
        value = values[name]
        most = np.where(value == value.max(), value.min(), value.max())
        other = np.nan if value.dtype.kind == "f" else most
        values[name] = np.where(there, value, other).astype(value.dtype)
    return replace(task, values=values, there={})


def pointwise(compiled: CompiledModel, z: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """Elementwise log likelihood, NaN of what is missing: arrays of shape (dataset, draw, ...)."""
    row, batch = task.layout.row, task.batch()
    if not compiled.has_series:  # terms of padding are cut off
        batch = batch._replace(mask=None)
    found = walk(lambda part, u: _pointwise(compiled, row, u, part), z, batch)
    found = _cut(found, compiled.observed, task)
    for name, there in task.there.items():
        # a vector has one term, and is there as a whole
        kept = there.all(axis=tuple(range(found[name].ndim - 1, there.ndim)))
        found[name] = np.where(kept[:, None], found[name], np.nan)
    return found


def prior_terms(compiled: CompiledModel, z: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """Log prior of every free variable, without Jacobian: arrays of shape (dataset, draw).

    Of the groups that there are, where batches say which these are (`Task.beside`).
    """
    return walk(lambda batch, u: _prior_terms(compiled, u, batch.values), z, task.batch())


def densities(compiled: CompiledModel, z: np.ndarray, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Log prior and log likelihood of z of shape (dataset, draw, dim)."""
    row = task.layout.row
    return walk(lambda batch, u: _densities(compiled, row, u, batch), z, task.batch())
