"""Simulation-based pretraining: maximum likelihood of q on draws from the model's joint."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Simulator, prefetched
from pmcl.networks import Amortizer
from pmcl.progress import progress_bar
from pmcl.training.loop import LoopState, Optimiser, Problem, blocks, combine, run_block, start


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


class PretrainingRecord(NamedTuple):
    """What happened: losses in nats, one training loss a step, one validation loss a block."""

    losses: np.ndarray
    validation: np.ndarray
    steps: int
    best_step: int
    skipped: int
    stopped_early: bool


class SimulationLoss(Problem):
    """L_SB = -mean_n log q(z_n | h(x_n)) over fresh simulations (design: Pretraining)."""

    simulator: Simulator
    batch_size: int = eqx.field(static=True)

    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Array]) -> Array:
        keys = jax.random.split(key, self.batch_size)
        z, data = jax.vmap(self.simulator.draw)(keys, host)
        return negative_log_likelihood(amortizer, z, data)


def negative_log_likelihood(amortizer: Amortizer, z: Array, data: dict[str, Array]) -> Array:
    """Mean of -log q(z | h(x)) over simulations, leaving out those with non-finite values."""
    valid = jnp.isfinite(z).all(axis=1)
    for value in data.values():
        valid &= jnp.isfinite(value).reshape(value.shape[0], -1).all(axis=1)
    # Zero times NaN is NaN, in gradients too: put a valid value before the network.
    z = jnp.where(valid[:, None], z, 0.0)
    data = {
        k: jnp.where(valid.reshape((-1,) + (1,) * (v.ndim - 1)), v, jnp.zeros((), v.dtype))
        for k, v in data.items()
    }
    log_q = jax.vmap(lambda zi, xi: amortizer.log_prob(zi, amortizer.context(xi)))(z, data)
    return -jnp.sum(jnp.where(valid, log_q, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


_validate = eqx.filter_jit(negative_log_likelihood)


class _Progressed(NamedTuple):
    """A pytree: all that a checkpoint holds."""

    state: LoopState
    best: Amortizer
    best_loss: Array
    best_block: Array
    block: Array
    losses: Array
    validation: Array


def pretrain(
    amortizer: Amortizer,
    simulator: Simulator,
    settings: PretrainingSettings,
    *,
    seed: int,
    checkpoint: str | os.PathLike | None = None,
    progressbar: bool = True,
) -> tuple[Amortizer, PretrainingRecord]:
    """Train on fresh simulations; return the best weights by validation loss.

    Parameters
    ----------
    amortizer, simulator
    settings : PretrainingSettings
    seed : int
    checkpoint : path, optional
        Written after every block; if it is there at the start, training goes on from it and ends
        with the weights that an uninterrupted run has.
    progressbar : bool
    """
    number, size = blocks(settings.steps, longest=settings.block)
    optimiser = Optimiser(
        jnp.asarray(settings.learning_rate, jnp.float32),
        steps=settings.steps,
        warmup=min(settings.warmup, settings.steps // 2),
        clip=settings.clip,
    )
    key = jax.random.key(seed)
    problem = SimulationLoss(simulator, settings.batch_size)
    validation = jax.tree.map(
        jnp.asarray, simulator.simulate(settings.validation, random_seed=_other(seed))
    )
    initial = start(amortizer, optimiser, jax.random.key_data(key))
    now = _Progressed(
        state=initial._replace(key=jax.random.key_data(key)),
        best=initial.params,
        best_loss=jnp.asarray(jnp.inf, jnp.float32),
        best_block=jnp.asarray(-1),
        block=jnp.asarray(0),
        losses=jnp.full((number, size), jnp.nan, jnp.float32),
        validation=jnp.full(number, jnp.nan, jnp.float32),
    )
    path = None if checkpoint is None else Path(checkpoint)
    label = json.dumps({**asdict(settings), "seed": seed, "shapes": _shapes(now)})
    if path is not None and path.exists():
        now = _read(path, label, now)

    stopped = False
    with progress_bar("Pretraining", settings.steps, unit="steps", enabled=progressbar) as bar:
        first = int(now.block)
        bar.advance(min(first * size, settings.steps))
        hosts = _hosts(simulator, settings.batch_size, size, range(first, number), seed)
        for block, host in zip(range(first, number), hosts, strict=True):
            state = now.state._replace(key=jax.random.wrap_key_data(now.state.key))
            state, losses = run_block(problem, optimiser, amortizer, state, host, size)
            loss = _validate(combine(state.params, amortizer), *validation)
            better = bool(loss < now.best_loss)
            now = now._replace(
                state=state._replace(key=jax.random.key_data(state.key)),
                best=state.params if better else now.best,
                best_loss=jnp.minimum(loss, now.best_loss).astype(jnp.float32),
                best_block=jnp.asarray(block if better else int(now.best_block)),
                block=jnp.asarray(block + 1),
                losses=now.losses.at[block].set(losses),
                validation=now.validation.at[block].set(loss.astype(jnp.float32)),
            )
            taken = min((block + 1) * size, settings.steps) - min(block * size, settings.steps)
            bar.advance(
                taken, f"loss {float(jnp.nanmean(losses)):.3f} (new data {float(loss):.3f})"
            )
            if path is not None:
                _write(path, label, now)
            if settings.patience is not None and block - int(now.best_block) >= settings.patience:
                stopped = True
                break

    done = min(int(now.block) * size, settings.steps)
    record = PretrainingRecord(
        losses=np.asarray(now.losses).ravel()[:done],
        validation=np.asarray(now.validation)[: int(now.block)],
        steps=done,
        best_step=min((int(now.best_block) + 1) * size, settings.steps),
        skipped=int(now.state.skipped),
        stopped_early=stopped,
    )
    return combine(now.best, amortizer), record


def _other(seed: int) -> int:
    """Return a seed for the validation data, far from those that users give in a row."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0] >> 1)


def _hosts(
    simulator: Simulator, batch: int, size: int, which: range, seed: int
) -> Iterator[dict[str, Array]]:
    # A generator of its own for each block: a resumed run sees what an uninterrupted one sees.
    plan = ((size * batch, np.random.default_rng([seed, block])) for block in which)
    for host in prefetched(simulator, plan):
        yield {k: jnp.asarray(v).reshape(size, batch, *v.shape[1:]) for k, v in host.items()}


def _shapes(tree: object) -> list[list]:
    return [[list(x.shape), str(x.dtype)] for x in jax.tree.leaves(tree)]


def _write(path: Path, label: str, now: _Progressed) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write((label + "\n").encode())
        eqx.tree_serialise_leaves(file, now)
    partial.replace(path)  # a crash leaves the old checkpoint or the new one, never half


def _read(path: Path, label: str, like: _Progressed) -> _Progressed:
    with path.open("rb") as file:
        found = file.readline(10_000_000).decode().rstrip("\n")
        if found != label:
            raise ValueError(
                f"checkpoint {str(path)!r} belongs to another run: expected {_differences(label)}, "
                f"got {_differences(found)}. Delete it, or give another path."
            )
        return eqx.tree_deserialise_leaves(file, like)


def _differences(label: str) -> dict:
    return {k: v for k, v in json.loads(label).items() if k != "shapes"}
