"""Draws of the amortized posterior with their densities, in chunks of bounded memory."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl import devices
from pmcl.batching import chunks, over_datasets
from pmcl.compile import CompiledModel, Density, Mask, jit
from pmcl.compile.precision import NETWORK
from pmcl.data import Batch, Task
from pmcl.metrics import ImportanceDiagnostics, independence_chain, resample
from pmcl.networks import Amortizer
from pmcl.networks.familiarity import input_features
from pmcl.progress import progress_bar
from pmcl.refinement import Drawn
from pmcl.refinement.stages import contexts
from pmcl.results import Draws

LOOKED = 16  # datasets that `look` works on together


@jit
def draw_only(amortizer: Amortizer, batch: Batch, key: Array, draws: int) -> Array:
    """Draw z of shape (dataset, draw, dim) without evaluating any density."""

    def one(data: dict[str, Array], mask: Mask | None, key: Array) -> Array:
        context = amortizer.context(data, mask)
        eps = jax.random.normal(key, (draws, amortizer.dim), NETWORK)
        return jax.vmap(amortizer.transform, in_axes=(0, None))(eps, context)[0]

    keys = jax.random.split(key, len(jax.tree.leaves(batch.values)[0]))
    return over_datasets(one, batch, keys)


@jit
def _draw(
    amortizer: Amortizer, density: Density, batch: Batch, keys: Array, draws: int
) -> tuple[Array, ...]:
    """Draw z and evaluate log q, log prior and log likelihood: arrays of (dataset, draw, ...)."""
    compiled, row = density.compiled, density.row

    def one(data: dict[str, Array], mask: Mask | None, key: Array) -> tuple[Array, ...]:
        context = amortizer.context(data, mask)
        eps = jax.random.normal(key, (draws, amortizer.dim), NETWORK)
        z, log_q = jax.vmap(amortizer.transform, in_axes=(0, None))(eps, context)
        z = z.astype(jnp.float64)
        log_prior = jax.vmap(lambda u: compiled.log_prior(u, data))(z)
        log_likelihood = jax.vmap(lambda u: compiled.log_likelihood(u, data, mask=mask, dim=row))(z)
        return z, log_q, log_prior, log_likelihood

    return over_datasets(one, batch, keys)


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
def _log_q(amortizer: Amortizer, batch: Batch, z: Array) -> Array:
    def one(data: dict[str, Array], mask: Mask | None, u: Array) -> Array:
        context = amortizer.context(data, mask)
        return jax.vmap(amortizer.log_prob, in_axes=(0, None))(u, context)

    return over_datasets(one, batch, z)


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


def _walk(task: Task, z: np.ndarray, size: int, evaluate: Callable[[Batch, Array], Any]) -> Any:
    """Evaluate chunks of datasets with their draws; join the results along the datasets."""
    parts = []
    begin = 0
    for chunk, n in chunks(task, size * devices.number()):
        filled = len(next(iter(chunk.values.values())))
        index = np.concatenate([np.arange(n), np.zeros(filled - n, int)]) + begin
        found = evaluate(chunk, jnp.asarray(z[index]))
        parts.append(jax.tree.map(lambda v, n=n: devices.gathered(v)[:n], found))
        begin += n
    return jax.tree.map(lambda *v: np.concatenate(v), *parts)


def constrain(
    compiled: CompiledModel, z: np.ndarray, task: Task, names: tuple[str, ...], *, size: int = 64
) -> dict[str, np.ndarray]:
    """Named variables of z of shape (dataset, draw, dim): arrays of (dataset, draw, ...)."""
    return _walk(task, z, size, lambda chunk, u: _constrain(compiled, u, chunk.values, names))


def pointwise(
    compiled: CompiledModel, z: np.ndarray, task: Task, *, size: int = 16
) -> dict[str, np.ndarray]:
    """Elementwise log likelihood: arrays of shape (dataset, draw, ...)."""
    return _walk(task, z, size, lambda chunk, u: _pointwise(compiled, u, chunk.values))


def prior_terms(
    compiled: CompiledModel, z: np.ndarray, task: Task, *, size: int = 64
) -> dict[str, np.ndarray]:
    """Log prior of every free variable, without Jacobian: arrays of shape (dataset, draw)."""
    return _walk(task, z, size, lambda chunk, u: _prior_terms(compiled, u, chunk.values))


def densities(
    compiled: CompiledModel, z: np.ndarray, task: Task, *, size: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Log prior and log likelihood of z of shape (dataset, draw, dim)."""
    row = task.layout.row
    return _walk(task, z, size, lambda chunk, u: _densities(compiled, row, u, chunk))


def log_q(amortizer: Amortizer, z: np.ndarray, task: Task, *, size: int = 64) -> np.ndarray:
    """log q(z | h(x)) for z of shape (dataset, draw, dim)."""
    return _walk(task, z, size, lambda chunk, u: _log_q(amortizer, chunk, u.astype(NETWORK)))


def embed(amortizer: Amortizer, task: Task, *, size: int = 64, full: bool = False) -> np.ndarray:
    """Context vectors h(x) of a task's datasets, shape (dataset, context); `full` as in `draw`."""
    return np.concatenate(
        [
            devices.gathered(contexts(amortizer, c))[:n]
            for c, n in chunks(task, size * devices.number(), full=full)
        ]
    )


def features(
    amortizer: Amortizer,
    task: Task,
    *,
    extremes: bool = True,
    size: int = 256,
    full: bool = False,
) -> np.ndarray:
    """What a task's inputs are like, whatever the network makes of them: (dataset, feature).

    `full` as in `draw`.
    """
    parts = [
        devices.gathered(input_features(amortizer, c, extremes=extremes))[:n]
        for c, n in chunks(task, size * devices.number(), full=full)
    ]
    return np.concatenate(parts).astype(float)


def draw(
    amortizer: Amortizer,
    density: Density,
    task: Task,
    *,
    draws: int,
    seed: int,
    progressbar: bool,
    size: int = 64,
    full: bool = False,
) -> Drawn:
    """Draw from the amortized posterior of every dataset and evaluate all densities.

    Parameters
    ----------
    amortizer, density, task
    draws : int
        Draws per dataset.
    seed : int
        Each dataset's draws depend on the seed and its position alone.
    progressbar : bool
    size : int
        Datasets that a device works on together; memory grows with `size` times `draws`.
    full : bool
        Compile for this size alone: for numbers of datasets that differ from call to call.
    """
    key = jax.random.key(seed)
    parts: list[tuple[np.ndarray, ...]] = []
    done = 0
    with progress_bar("Sampling", len(task), unit="datasets", enabled=progressbar) as bar:
        for chunk, n in chunks(task, size * devices.number(), full=full):
            filled = len(next(iter(chunk.values.values())))
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(
                task.first + done + np.arange(filled)
            )
            found = _draw(amortizer, density, chunk, keys, draws)
            parts.append(tuple(np.array(devices.gathered(f))[:n] for f in found))
            done += n
            bar.advance(n)
    return Drawn(*(np.concatenate(p) for p in zip(*parts, strict=True)))


def look(amortizer: Amortizer, density: Density, task: Task, *, seed: int) -> Drawn:
    """Draws that datasets are judged by while a network learns: always as many, compiled once."""
    return draw(
        amortizer, density, task, draws=256, seed=seed, progressbar=False, size=LOOKED, full=True
    )


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
