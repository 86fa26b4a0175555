"""Adaptation: train the amortizer on unlabeled datasets and on what the strategy rehearses."""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.batching import check_padding, chunks
from pmcl.compile import Density, jit
from pmcl.continual.objectives import AbstractObjective
from pmcl.data import Batch, Task, concatenate
from pmcl.networks import Amortizer
from pmcl.progress import progress_bar
from pmcl.training import Optimiser, Problem, blocks, combine, run, start

_STEEP = 100.0  # gradient per draw, in standardised units, above which a dataset is held back
_SCREEN = 64  # datasets looked at together when non-finite densities are searched for


@dataclass(frozen=True)
class AdaptationSettings:
    """Hyper-parameters of one adaptation; the arguments of `adapt` of the same names."""

    steps: int
    learning_rate: float
    batch_size: int
    clip: float
    warmup: int


class AdaptationRecord(NamedTuple):
    """What happened in one adaptation; losses are the objective's, one a step."""

    losses: np.ndarray
    skipped: int
    datasets: int
    rehearsed: int
    excluded: tuple[str, ...]


class SelfConsistency(Problem):
    """Weighted mean of an objective over a task's datasets and the rehearsed ones.

    Attributes
    ----------
    weights : Array of shape (dataset,)
        Zero for empty places of the memory and for excluded datasets: sizes stay the same from
        task to task, so nothing is compiled again.
    batch_size : int
        Datasets a step: all of them where they are not more, else a draw by weight.
    """

    objective: AbstractObjective
    density: Density
    batch: Batch
    weights: Array
    batch_size: int = eqx.field(static=True)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Array]) -> Array:
        batch, weights = self.batch, self.weights
        if weights.shape[0] > self.batch_size:
            key, choice = jax.random.split(key)
            index = jax.random.choice(
                choice, weights.shape[0], (self.batch_size,), p=weights / jnp.sum(weights)
            )
            batch = jax.tree.map(lambda x: x[index], batch)
            weights = jnp.ones(self.batch_size, weights.dtype)
        keys = jax.random.split(key, weights.shape[0])
        mask_axis = None if batch.mask is None else 0
        found = jax.vmap(
            lambda data, mask, k: self.objective(amortizer, self.density, data, mask, k),
            in_axes=(0, mask_axis, 0),
        )(batch.values, batch.mask, keys)
        weights = jnp.where(found.finite > 0, weights, 0.0)
        loss = _shrink(jnp.where(weights > 0, found.loss, 0.0), jnp.asarray(found.scale))
        return jnp.sum(weights * loss) / jnp.maximum(jnp.sum(weights), 1e-12)


def _shrink(loss: Array, scale: Array) -> Array:
    """Keep the value of each dataset's loss; divide its gradient by its scale beyond a limit.

    Where the network extrapolates, log densities of -1e20 occur, and one dataset would own the
    gradient of all, or overflow it. A constant factor leaves each dataset's optimum where it is.
    """
    factor = jax.lax.stop_gradient(1.0 / jnp.maximum(1.0, scale / _STEEP))
    still = jax.lax.stop_gradient(loss)
    return still + factor * (loss - still)


def adapt(
    amortizer: Amortizer,
    density: Density,
    task: Task,
    rehearsal: Task | None,
    *,
    capacity: int,
    objective: AbstractObjective,
    settings: AdaptationSettings,
    seed: int,
    description: str,
    progressbar: bool,
) -> tuple[Amortizer, AdaptationRecord]:
    """Adapt the amortizer to a task; datasets whose density is nowhere finite are left out.

    Parameters
    ----------
    amortizer, density
    task : Task
    rehearsal : Task or None
        Stored datasets to train on beside the task.
    capacity : int
        Places kept for rehearsed datasets; fixed, so that shapes do not change with the memory.
    objective : AbstractObjective
    settings : AdaptationSettings
    seed : int
    description : str
        Shown beside the progress bar.
    progressbar : bool
    """
    key = jax.random.key(seed)
    finite = finite_fractions(amortizer, density, task, seed=seed)
    excluded = tuple(n for n, f in zip(task.names, finite, strict=True) if f == 0)
    if excluded:
        shown = ", ".join(map(repr, excluded[:10])) + (", ..." if len(excluded) > 10 else "")
        warnings.warn(
            f"{len(excluded)} of {len(task)} datasets are left out of the adaptation: their log "
            f"density is not finite at any draw of the posterior: {shown}. Look at their values, "
            "and at the likelihood's support.",
            stacklevel=3,
        )
    if len(excluded) == len(task):
        raise ValueError(
            f"adapt: the log density is not finite for any of the {len(task)} datasets; expected "
            "at least one with a finite density."
        )
    together = task if rehearsal is None else concatenate_named(task, rehearsal)
    if together.ragged:  # also where each of the two is not
        check_padding(density.compiled, together)
    batch, weights = _join(together, len(task), capacity, keep=finite > 0)
    problem = SelfConsistency(objective, density, batch, weights, settings.batch_size)
    optimiser = Optimiser(
        jnp.asarray(settings.learning_rate, jnp.float32),
        steps=settings.steps,
        warmup=min(settings.warmup, settings.steps // 2),
        clip=settings.clip,
    )
    number, size = blocks(settings.steps, longest=25)
    with progress_bar(description, settings.steps, unit="steps", enabled=progressbar) as bar:
        state, losses = run(
            problem,
            optimiser,
            amortizer,
            start(amortizer, optimiser, key),
            size=size,
            hosts=({} for _ in range(number)),
            bar=bar,
        )
    record = AdaptationRecord(
        losses=np.asarray(losses)[: settings.steps],
        skipped=int(state.skipped),
        datasets=len(task) - len(excluded),
        rehearsed=0 if rehearsal is None else len(rehearsal),
        excluded=excluded,
    )
    return combine(state.params, amortizer), record


def _join(together: Task, new: int, capacity: int, keep: np.ndarray) -> tuple[Batch, Array]:
    """Lay out a task and `capacity` places for rehearsed datasets, with their weights."""
    rehearsed = len(together) - new
    # A strategy that holds less than the one before it finds more stored than it has places for.
    empty = max(capacity - rehearsed, 0)
    good = int(np.argmax(keep))  # empty places hold a valid dataset, at weight zero
    index = np.concatenate([np.arange(len(together)), np.full(empty, good)]).astype(int)
    weights = np.concatenate([keep, np.ones(rehearsed), np.zeros(empty)]).astype(np.float32)
    batch = together.batch()
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[index]), batch), jnp.asarray(weights)


def concatenate_named(task: Task, rehearsal: Task) -> Task:
    """Join a task with rehearsed datasets, whose names may be the same."""
    renamed = Task(
        rehearsal.layout,
        rehearsal.values,
        tuple(f"memory: {n}" for n in rehearsal.names),
        rehearsal.lengths,
    )
    return concatenate([task, renamed])


@jit
def _finite(amortizer: Amortizer, density: Density, batch: Batch, key: Array, draws: int) -> Array:
    def one(data: dict[str, Array], mask: Array | None, key: Array) -> Array:
        context = amortizer.context(data, mask)
        eps = jax.random.normal(key, (draws, amortizer.dim), jnp.float32)
        z, _ = jax.vmap(amortizer.transform, in_axes=(0, None))(eps, context)
        log_p = jax.vmap(lambda u: density(u, data, mask))(z.astype(jnp.float64))
        return jnp.mean(jnp.isfinite(log_p))

    keys = jax.random.split(key, len(jax.tree.leaves(batch.values)[0]))
    return jax.vmap(one, in_axes=(0, None if batch.mask is None else 0, 0))(
        batch.values, batch.mask, keys
    )


def finite_fractions(
    amortizer: Amortizer, density: Density, task: Task, *, seed: int, draws: int = 64
) -> np.ndarray:
    """Fraction of amortized draws with a finite log density, for each dataset."""
    key = jax.random.key(seed)
    return np.concatenate(
        [
            np.asarray(_finite(amortizer, density, chunk, jax.random.fold_in(key, i), draws))[:n]
            for i, (chunk, n) in enumerate(chunks(task, _SCREEN))
        ]
    )
