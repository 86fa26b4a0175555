"""Simulation-based pretraining: maximum likelihood of q on draws from the model's joint."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask, Simulator, prefetched
from pmcl.networks import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.search.search import Place
from pmcl.training.bank import Bank, Simulated, identity
from pmcl.training.labels import label_log_q
from pmcl.training.loop import Optimiser, Problem, combine
from pmcl.training.run import Callback, Course, run

_PROGRESS = 0.002  # nats a dataset


BLOCK = 100  # steps between two looks at what is held back


@dataclass(frozen=True)
class PretrainingSettings:
    """Hyper-parameters of pretraining; the arguments of `fit_amortized` of the same names."""

    steps: int
    batch_size: int
    learning_rate: float
    warmup: int
    clip: float
    validation: int
    patience: int | None
    block: int
    simulations: int | None = None
    labels: int = 1


class PretrainingRecord(NamedTuple):
    """What happened: losses in nats, one training loss a step, one validation loss a block.

    `simulations` were made once (0: fresh ones in every step), of which `left_out` were not finite
    and `lost` had no search that converged.
    """

    losses: np.ndarray
    validation: np.ndarray
    steps: int
    best_step: int
    skipped: int
    stopped_early: bool
    simulations: int = 0
    left_out: int = 0
    lost: int = 0


class SimulationLoss(Problem):
    """L_SB = -mean_n log q(z_n | h(x_n)) over fresh simulations."""

    simulator: Simulator
    batch_size: int = eqx.field(static=True)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Any]) -> Array:
        keys = jax.random.split(key, self.batch_size)
        return simulation_loss(amortizer, self.simulator, keys, host)

    def hosts(
        self, batch: int, size: int, which: range, seed: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield what simulations need from outside, for each block of `size` steps."""
        return simulation_hosts(self.simulator, batch, size, which, seed)


class StoredLoss(Problem):
    """L_SB over simulations that were made once, each seen equally often.

    `labels` is the number of draws by which each is learned: see :func:`label_log_q`.
    """

    simulated: Simulated
    density: Density
    labels: int = eqx.field(static=True, default=1)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Any]) -> Array:
        index = host["index"]
        index, counted = devices.filled(index, index.shape[0])
        keys = jax.random.split(key, len(index))
        given = devices.spread((*self.simulated.take(index), keys))
        log_q = jax.vmap(
            partial(label_log_q, amortizer, self.density, labels=self.labels),
            in_axes=tuple(None if x is None else 0 for x in given),
        )(*given)
        counts = jnp.isfinite(log_q) if counted is None else jnp.isfinite(log_q) & counted
        return -jnp.sum(jnp.where(counts, log_q, 0.0)) / jnp.maximum(jnp.sum(counts), 1)

    def hosts(
        self, batch: int, size: int, which: range, seed: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield which ones each step sees, for each block of `size` steps: epoch after epoch."""
        n = len(self.simulated.z)
        epochs = -(-size * batch // n)
        for block in which:
            rng = np.random.default_rng([seed, block])
            order = np.concatenate([rng.permutation(n) for _ in range(epochs)])[: size * batch]
            yield {"index": order.reshape(size, batch)}


def simulation_loss(
    amortizer: Amortizer, simulator: Simulator, keys: Array, host: dict[str, Array]
) -> Array:
    """L_SB over one fresh simulation a key, each with a length and gaps of its own."""
    (keys, host), counted = devices.filled((keys, host), keys.shape[0])
    keys, host = devices.spread((keys, host))
    z, data = jax.vmap(simulator.draw)(keys, host)
    mask = None
    if simulator.masking:
        mask = jax.vmap(lambda key: simulator.mask(jax.random.fold_in(key, 1)))(keys)
    return negative_log_likelihood(amortizer, z, data, mask, counted=counted)


def negative_log_likelihood(
    amortizer: Amortizer,
    z: Array,
    data: dict[str, Array],
    mask: Mask | None = None,
    place: Place | None = None,
    counted: np.ndarray | None = None,
) -> Array:
    """Mean of -log q(z | h(x)) over simulations, leaving out those with non-finite values.

    `counted` is False for simulations that are there only to fill up.
    """
    total, number = _summed(amortizer, z, data, mask, place, counted)
    return total / jnp.maximum(number, 1)


def _summed(
    amortizer: Amortizer,
    z: Array,
    data: dict[str, Array],
    mask: Mask | None,
    place: Place | None,
    counted: Array | np.ndarray | None,
) -> tuple[Array, Array]:
    """Return the sum of -log q(z | h(x)) over valid simulations, and how many these are."""
    z, data, mask, place = devices.spread((z, data, mask, place))
    valid = jnp.isfinite(z).all(axis=1)
    if counted is not None:
        valid &= counted
    for value in jax.tree.leaves(data):
        valid &= jnp.isfinite(value).reshape(value.shape[0], -1).all(axis=1)
    # Zero times NaN is NaN, in gradients too: put a valid value before the network.
    z = jnp.where(valid[:, None], z, 0.0)
    data = jax.tree.map(
        lambda v: jnp.where(valid.reshape((-1,) + (1,) * (v.ndim - 1)), v, jnp.zeros((), v.dtype)),
        data,
    )
    log_q = jax.vmap(
        lambda zi, *xi: amortizer.log_prob(zi, amortizer.context(*xi)),
        in_axes=(0, 0, None if mask is None else 0, None if place is None else 0),
    )(z, data, mask, place)
    return -jnp.sum(jnp.where(valid, log_q, 0.0)), jnp.sum(valid)


def _validate(amortizer: Amortizer, held_back: Simulated, batch: int) -> float:
    """L_SB over all that is held back, no more at a time than a step has: memory is bounded."""
    n = len(held_back.z)
    total, number = 0.0, 0
    for begin in range(0, n, batch):
        index = np.arange(begin, begin + min(batch, n))
        part = held_back.take(np.minimum(index, n - 1))
        one, valid = map(float, _validate_part(amortizer, *part, index < n))
        total, number = total + one, number + int(valid)
    return total / max(number, 1)


@jit
def _validate_part(
    amortizer: Amortizer,
    z: Array,
    data: dict[str, Array],
    mask: Mask | None,
    place: Place | None,
    counted: Array,
) -> tuple[Array, Array]:
    return _summed(amortizer, z, data, mask, place, counted)


def pretrain(
    amortizer: Amortizer,
    simulator: Simulator,
    settings: PretrainingSettings,
    *,
    seed: int,
    bank: Bank | None = None,
    checkpoint: str | os.PathLike | None = None,
    callback: Callback | None = None,
    progressbar: bool = True,
) -> tuple[Amortizer, PretrainingRecord]:
    """Train on simulations; return the best weights by validation loss.

    Parameters
    ----------
    amortizer, simulator
    settings : PretrainingSettings
    seed : int
    bank : Bank, optional
        What :func:`bank_of` gave: all that may be trained on, a part of it held back for
        validation; fresh simulations in every step by default.
    checkpoint : path, optional
        Written after every block; if it is there at the start, training goes on from it and ends
        with the weights that an uninterrupted run has.
    callback : callable, optional
        See :class:`pmcl.training.run.Moment`.
    progressbar : bool

    Raises
    ------
    ValueError
        If the checkpoint belongs to another run, or the validation loss was never finite.
    """
    size, steps = settings.block, settings.steps
    warmup = min(settings.warmup, steps // 2)
    optimiser = Optimiser.of(settings.learning_rate, steps, warmup=warmup, clip=settings.clip)
    problem: SimulationLoss | StoredLoss
    about: dict[str, int] = {}
    if bank is None:
        problem = SimulationLoss(simulator, settings.batch_size)
        held_back = Simulated.of(simulator, settings.validation, random_seed=_other(seed))
    else:
        simulated, left_out, density = bank
        number = len(simulated.z)
        cut = number - min(settings.validation, number // 10)
        kept = jax.device_put(simulated.take(slice(cut)))
        problem = StoredLoss(kept, density, settings.labels)
        held_back = simulated.take(slice(cut, None))
        lost = 0 if simulated.place is None else int(np.sum(simulated.place.status != 0))
        about = {"simulations": number + left_out, "left_out": left_out, "lost": lost}
    course = Course(
        "Pretraining",
        seed,
        steps,
        size,
        settings.patience,
        least=_PROGRESS if settings.labels > 1 else 0.0,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        callback=callback,
        label={**asdict(settings), "seed": seed, **identity(amortizer)},
    )

    def hosts(left: range) -> Iterator[tuple[int, list[dict[str, np.ndarray]]]]:
        for host in problem.hosts(settings.batch_size, size, left, seed):
            yield size, [host]

    def judge(found: Amortizer) -> tuple[float]:
        return (_validate(found, held_back, settings.batch_size),)

    now = run(problem, optimiser, amortizer, course, hosts, judge, progressbar=progressbar)
    if int(now.best_block) < 0:
        raise ValueError(
            f"pretraining: the validation loss was not finite after any of {int(now.block)} blocks "
            f"({int(now.state.skipped)} steps skipped); expected a finite one. Try a lower "
            "`learning_rate`, and look at the prior predictive for values beyond all bounds."
        )
    done = min(int(now.block) * size, steps)
    record = PretrainingRecord(
        losses=now.losses.ravel()[:done],
        validation=now.judged[: int(now.block), 0].astype(np.float32),
        steps=done,
        best_step=min((int(now.best_block) + 1) * size, steps),
        skipped=int(now.state.skipped),
        stopped_early=done < steps,
        **about,
    )
    return combine(now.best, amortizer), record


def _other(seed: int) -> int:
    """Return a seed for the validation data, far from those that users give in a row."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0] >> 1)


def simulation_hosts(
    simulator: Simulator, batch: int, size: int, which: range, seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield what simulations inside jit need from outside, for each block of `size` steps."""
    # A generator of its own for each block: a resumed run sees what an uninterrupted one sees.
    plan = ((size * batch, np.random.default_rng([seed, block])) for block in which)
    for host in prefetched(simulator, plan):
        yield {k: v.reshape(size, batch, *v.shape[1:]) for k, v in host.items()}
