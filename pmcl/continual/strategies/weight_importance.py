"""How much each weight of the network matters for datasets that it has learned."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.continual.objectives.objectives import Example, LogRatioVariance
from pmcl.data.batching import chunks, over_datasets, taken
from pmcl.data.task import Batch, Task
from pmcl.networks import Amortizer
from pmcl.networks.contexts import placed
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.search.search import Place
from pmcl.training import combine, weights_of

type Kind = Literal["fisher", "self_consistency"]
_TOGETHER = 16  # datasets whose gradients are held at once


@jit
def _fisher(
    amortizer: Amortizer, batch: Batch, seed: Array, position: Array, counted: Array, draws: int
) -> Amortizer:
    """E_{z~q}[(d log q(z | h(x)) / dw)^2], summed over the datasets of a batch."""
    weights = weights_of(amortizer)

    def one(
        data: dict[str, Array], mask: Mask | None, place: Place | None, key: Array
    ) -> Amortizer:
        context = amortizer.context(data, mask, place)
        z = jax.lax.stop_gradient(amortizer.draw(key, draws, context)[0])

        def squared(u: Array) -> Amortizer:
            def log_q(w: Amortizer) -> Array:
                q = combine(w, amortizer)
                return q.log_prob(u, q.context(data, mask, place))

            return jax.tree.map(_square, jax.grad(log_q)(weights))

        def add(total: Amortizer, u: Array) -> tuple[Amortizer, None]:
            return jax.tree.map(jnp.add, total, squared(u)), None

        # Draw by draw: one gradient of all weights for each dataset is held, not one for each draw.
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), z)
        return jax.tree.map(lambda f: f / draws, total)

    return _summed(one, batch, seed, position, counted)


@jit
def _self_consistency(
    amortizer: Amortizer,
    density: Density,
    batch: Batch,
    seed: Array,
    position: Array,
    counted: Array,
    draws: int,
) -> Amortizer:
    """(dL(x)/dw)^2, summed over the datasets of a batch, L the self-consistency variance."""
    objective = LogRatioVariance(draws)

    def one(
        data: dict[str, Array], mask: Mask | None, place: Place | None, key: Array
    ) -> Amortizer:
        def loss(w: Amortizer) -> Array:
            q = combine(w, amortizer)
            return objective(q, density, Example(data, mask, None, place), key).loss

        return jax.tree.map(_square, jax.grad(loss)(weights_of(amortizer)))

    return _summed(one, batch, seed, position, counted)


def importance(
    amortizer: Amortizer,
    density: Density,
    task: Task,
    kind: Kind,
    *,
    draws: int,
    seed: int,
) -> Amortizer:
    """Importance F of the weights for the datasets of a task: the mean over datasets.

    Parameters
    ----------
    amortizer, density, task
    kind : {"fisher", "self_consistency"}
        The Fisher information of q, or the paper's squared gradients of the variance.
    draws : int
        Draws of z for each dataset.
    seed : int

    Returns
    -------
    Amortizer
        Trainable weights' places hold F >= 0; a gradient that is not finite counts as zero.
    """
    total, batch = None, placed(amortizer, task.batch())
    for which, n in chunks(len(task), _TOGETHER):
        counted = np.arange(len(which)) < n
        given = taken(batch, which), np.asarray(seed), which, counted, draws
        if kind == "fisher":
            found = _fisher(amortizer, *given)
        else:
            found = _self_consistency(amortizer, density, *given)
        found = jax.tree.map(devices.gathered, found)
        total = found if total is None else jax.tree.map(np.add, total, found)
    return jax.tree.map(lambda t: jnp.asarray(t / np.float32(len(task))), total)


def _summed(
    one: Callable[..., Amortizer], batch: Batch, seed: Array, position: Array, counted: Array
) -> Amortizer:
    """Sum over the datasets that count of one(data, mask, place, key)."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(position)
    each = over_datasets(one, batch, batch.place, keys)
    return jax.tree.map(lambda e: jnp.einsum("d,d...->...", counted.astype(e.dtype), e), each)


def _square(gradient: Array) -> Array:
    return jnp.where(jnp.isfinite(gradient), gradient, 0.0) ** 2


def weighted_distance(weights: Amortizer, anchor: Amortizer, by: Amortizer) -> Array:
    """sum_i by_i (w_i - anchor_i)^2, the quadratic penalty of weight consolidation."""
    terms = jax.tree.map(lambda w, a, f: jnp.sum(f * (w - a) ** 2), weights, anchor, by)
    return jax.tree.reduce(jnp.add, terms)
