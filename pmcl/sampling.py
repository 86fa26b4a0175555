"""Draws of the amortized posterior with their densities, in chunks of one size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl import devices
from pmcl.batching import over_chunks, over_datasets
from pmcl.compile import CompiledModel, Density, Mask, VariableInfo, jit
from pmcl.compile.precision import NETWORK
from pmcl.data import Batch, Task
from pmcl.metrics import ImportanceDiagnostics, independence_chain, resample
from pmcl.networks import Amortizer, contexts
from pmcl.progress import Bar, progress_bar
from pmcl.refinement import Drawn
from pmcl.results import Draws

# One size for any number of draws and of datasets, so that nothing is compiled for another number.
_BLOCK = 256  # draws of one dataset that are made together
_FEW = 16  # the size where there are no more
_ITEMS = 8  # such blocks, of any datasets, that a device works on together


@jit
def _draw(
    amortizer: Amortizer,
    density: Density,
    seed: Array,
    batch: Batch,
    context: Array,
    position: Array,
    block: Array,
) -> tuple[Array, ...]:
    """Draw z and evaluate log q, log prior and log likelihood: arrays of (item, draw, ...)."""
    compiled, row = density.compiled, density.row

    def one(
        data: dict[str, Array], mask: Mask | None, context: Array, position: Array, block: Array
    ) -> tuple[Array, ...]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), position), block)
        eps = jax.random.normal(key, (_BLOCK, amortizer.dim), NETWORK)
        z, log_q = jax.vmap(amortizer.transform, in_axes=(0, None))(eps, context)
        z = z.astype(jnp.float64)
        log_prior = jax.vmap(lambda u: compiled.log_prior(u, data))(z)
        log_likelihood = jax.vmap(lambda u: compiled.log_likelihood(u, data, mask=mask, dim=row))(z)
        return z, log_q, log_prior, log_likelihood

    return over_datasets(one, batch, context, position, block)


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
def _log_q(amortizer: Amortizer, context: Array, z: Array) -> Array:
    every = jax.vmap(jax.vmap(amortizer.log_prob, in_axes=(0, None)))
    return devices.spread(every(*devices.spread((z.astype(NETWORK), context))))


@jit
def _pointwise(compiled: CompiledModel, z: Array, values: dict[str, Array]) -> dict[str, Array]:
    return _by_dataset(compiled.log_likelihood_terms, z, values)


@jit
def _prior_terms(compiled: CompiledModel, z: Array, values: dict[str, Array]) -> dict[str, Array]:
    return _by_dataset(compiled.log_constrained_prior_terms, z, values)


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
    """Names of the variables to return: all of them, or those asked for."""
    known = [i.name for i in (*compiled.free, *compiled.deterministics)]
    if var_names is None:
        return tuple(known)
    unknown = [n for n in var_names if n not in known]
    if unknown:
        raise ValueError(f"var_names: expected some of {known}, got {unknown}.")
    return tuple(var_names)


def _walk(
    evaluate: Callable[..., Any], z: np.ndarray, batch: Batch, context: np.ndarray | None = None
) -> Any:
    """Evaluate draws z of shape (dataset, draw, dim), some of them together, whatever their number.

    `evaluate` takes a batch, draws of shape (item, draw, dim) and perhaps contexts of each item.
    """
    n, draws = z.shape[:2]
    size = _BLOCK if draws > _FEW else _FEW
    blocks = -(-draws // size)
    index = np.minimum(np.arange(blocks * size), draws - 1)
    items = z[:, index].reshape(n * blocks, size, *z.shape[2:])
    which = np.repeat(np.arange(n), blocks)
    rows = (items,) if context is None else (items, context[which])
    found = over_chunks(evaluate, batch, which, *rows, size=devices.together(_ITEMS))
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
    """Named variables of z of shape (dataset, draw, dim): arrays of (dataset, draw, ...)."""
    found = _walk(lambda batch, u: _constrain(compiled, u, batch.values, names), z, task.batch())
    return _cut(found, (*compiled.free, *compiled.deterministics), task)


def pointwise(compiled: CompiledModel, z: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """Elementwise log likelihood: arrays of shape (dataset, draw, ...)."""
    found = _walk(lambda batch, u: _pointwise(compiled, u, batch.values), z, task.batch())
    return _cut(found, compiled.observed, task)


def prior_terms(compiled: CompiledModel, z: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """Log prior of every free variable, without Jacobian: arrays of shape (dataset, draw)."""
    return _walk(lambda batch, u: _prior_terms(compiled, u, batch.values), z, task.batch())


def densities(compiled: CompiledModel, z: np.ndarray, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Log prior and log likelihood of z of shape (dataset, draw, dim)."""
    row = task.layout.row
    return _walk(lambda batch, u: _densities(compiled, row, u, batch), z, task.batch())


def log_q(amortizer: Amortizer, z: np.ndarray, batch: Batch) -> np.ndarray:
    """log q(z | h(x)) for z of shape (dataset, draw, dim)."""
    context = contexts(amortizer, batch, np.arange(len(z)))
    return _walk(lambda _, u, c: _log_q(amortizer, c, u), z, batch, context)


def embed(amortizer: Amortizer, task: Task) -> np.ndarray:
    """Context vectors h(x) of a task's datasets, shape (dataset, context)."""
    return contexts(amortizer, task.batch(), np.arange(len(task)))


def draw(
    amortizer: Amortizer,
    density: Density,
    task: Task,
    *,
    draws: int,
    seed: int,
    progressbar: bool,
) -> Drawn:
    """Draw from the amortized posterior of every dataset and evaluate all densities.

    Parameters
    ----------
    amortizer, density, task
    draws : int
        Draws per dataset.
    seed : int
        Each draw depends on the seed, its dataset's position and its own alone.
    progressbar : bool
    """
    with progress_bar("Sampling", len(task), enabled=progressbar) as bar:
        found = _drawn(
            amortizer, density, task.batch(), task.first + np.arange(len(task)), draws, seed, bar
        )
    return Drawn(*(v[:, :draws] for v in found))


def look(amortizer: Amortizer, density: Density, batch: Batch, *, seed: int) -> Drawn:
    """Draws that datasets are judged by while a network learns."""
    position = np.arange(len(jax.tree.leaves(batch.values)[0]))
    return _drawn(amortizer, density, batch, position, _BLOCK, seed)


def _drawn(
    amortizer: Amortizer,
    density: Density,
    batch: Batch,
    position: np.ndarray,
    draws: int,
    seed: int,
    bar: Bar | None = None,
) -> Drawn:
    """Make at least so many draws of every dataset; `position` is that in the whole."""
    n, blocks = len(position), -(-draws // _BLOCK)
    context = contexts(amortizer, batch, np.arange(n))
    which, block = np.repeat(np.arange(n), blocks), np.tile(np.arange(blocks), n)
    found = over_chunks(
        lambda *given: _draw(amortizer, density, np.asarray(seed), *given),
        batch,
        which,
        context[which],
        position[which],
        block,
        size=devices.together(_ITEMS),
        advance=None if bar is None else lambda m: bar.advance(m / blocks),
    )
    return Drawn(*(v.reshape(n, -1, *v.shape[2:]) for v in found))


def resampled(
    drawn: Drawn, log_weights: np.ndarray, which: np.ndarray, *, seed: int, first: int = 0
) -> Drawn:
    """Resample the datasets `which` by their Pareto-smoothed weights; the others stay.

    `first` is the position of the first dataset (see `Task`).
    """
    index = np.tile(np.arange(drawn.z.shape[1]), (len(drawn.z), 1))
    for i in which:
        rng = np.random.default_rng([seed, first + int(i)])
        index[i] = resample(log_weights[i], index.shape[1], rng)
    return _taken(drawn, index)


def chained(
    drawn: Drawn, which: np.ndarray, *, seed: int, first: int = 0
) -> tuple[Drawn, np.ndarray]:
    """Walk over the draws of the datasets `which` by independence Metropolis-Hastings.

    Returns the draws and the acceptance rate of each dataset, NaN for those that stay.
    """
    n, draws = drawn.log_q.shape
    index = np.tile(np.arange(draws), (n, 1))
    rate = np.full(n, np.nan)
    if len(which):
        ratio = np.asarray(drawn.log_prior + drawn.log_likelihood - drawn.log_q)[which]
        rngs = [np.random.default_rng([seed, first + int(i)]) for i in which]
        index[which], accepted = independence_chain(ratio, rngs)
        rate[which] = accepted.mean(axis=1)
    return _taken(drawn, index), rate


def _taken(drawn: Drawn, index: np.ndarray) -> Drawn:
    """Take draws of every dataset: `index` has shape (dataset, draw)."""
    rows = np.arange(len(index))[:, None]
    return Drawn(*(np.asarray(v)[rows, index] for v in drawn))


def assemble(
    drawn: Drawn,
    diagnostics: ImportanceDiagnostics,
    constrained: Mapping[str, np.ndarray],
    dataset_stats: Mapping[str, np.ndarray],
    *,
    log_weights: np.ndarray,
    seconds: float,
) -> Draws:
    """Put draws of shape (dataset, draw, ...) in ArviZ's order, with importance diagnostics."""

    def ordered(value: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.asarray(value), 0, 1)[None]

    return Draws(
        z=ordered(drawn.z),
        constrained={k: ordered(v) for k, v in constrained.items()},
        sample_stats={
            "log_prior": ordered(drawn.log_prior),
            "log_likelihood": ordered(drawn.log_likelihood),
            "log_q": ordered(drawn.log_q),
            "log_weight": ordered(log_weights),
        },
        dataset_stats={
            "khat": np.asarray(diagnostics.khat),
            "efficiency": np.asarray(diagnostics.efficiency),
            "log_evidence": np.asarray(diagnostics.log_evidence),
            "log_evidence_error": np.asarray(diagnostics.log_evidence_error),
            "finite_fraction": np.asarray(diagnostics.finite_fraction),
            "sc_variance": np.asarray(diagnostics.sc_variance),
            **dataset_stats,
        },
        seconds=seconds,
    )
