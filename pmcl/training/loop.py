"""One scanned training loop, used by pretraining and adaptation alike."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.networks import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.runtime.precision import NETWORK


class Problem(eqx.Module):
    """What is minimised: its arrays are arguments of the compiled step, the rest is static."""

    @abstractmethod
    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Any]) -> Array:
        """Loss at one step (shape ()); `host` is what was made outside jit for this step."""

    def loss_and_gradient(
        self, amortizer: Amortizer, key: Array, host: dict[str, Any]
    ) -> tuple[Array, Amortizer]:
        """Loss, and its gradient with respect to the trainable weights."""
        return gradient_of(lambda a: self.loss(a, key, host), amortizer)

    def penalty(self, params: Amortizer) -> Array | None:
        """What is added to the loss for the weights themselves (shape ()); None: nothing."""
        return None

    def trace(self, params: Amortizer) -> Any:
        """Begin what is followed over the steps; None: nothing."""
        return None

    def follow(self, trace: Any, gradient: Amortizer, change: Amortizer) -> Any:
        """Follow a step: the gradient of the loss without the penalty, the weights' change."""
        return trace


class Optimiser(eqx.Module):
    """Adam with clipping, warm-up and cosine decay.

    Attributes
    ----------
    rate : Array
        Highest learning rate. All are arguments, not constants: changing them compiles nothing.
    steps : Array
    warmup : Array
        Steps of linear warm-up.
    clip : Array
        Largest global gradient norm.
    final : Array
        Rate at the end, as a fraction of the highest.
    """

    rate: Array
    steps: Array
    warmup: Array
    clip: Array
    final: Array

    @classmethod
    def of(
        cls, rate: float, steps: int, *, warmup: int = 0, clip: float = 1.0, final: float = 0.0
    ) -> "Optimiser":
        """Take plain numbers."""
        numbers = (rate, steps, warmup, clip, final)
        return cls(*(np.asarray(n, d) for n, d in zip(numbers, "fiiff", strict=True)))  # type: ignore[arg-type]

    def transform(self) -> optax.GradientTransformation:
        def schedule(step: Array) -> Array:
            # optax.warmup_cosine_decay_schedule, whose numbers have to be constants
            left = jnp.clip((step - self.warmup) / jnp.maximum(self.steps - self.warmup, 1), 0, 1)
            decay = self.final + (1 - self.final) * 0.5 * (1 + jnp.cos(jnp.pi * left))
            rate = jnp.where(step < self.warmup, step / jnp.maximum(self.warmup, 1), decay)
            return self.rate * rate.astype(NETWORK)

        adam = optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(schedule),
        )
        return optax.flatten(adam)  # one update of all weights: it takes half the time to compile


class LoopState(NamedTuple):
    """Everything that changes from step to step; a pytree of arrays, `key` as raw data."""

    params: Amortizer
    opt_state: optax.OptState
    key: Array
    step: Array
    skipped: Array
    trace: Any = None


def weights_of(amortizer: Amortizer) -> Amortizer:
    """Return the weights that training may change; the other places are None."""
    return eqx.filter(amortizer, amortizer.trainable())


def start(
    amortizer: Amortizer, optimiser: Optimiser, seed: int, problem: Problem | None = None
) -> LoopState:
    """Begin a run at the amortizer's weights, and what the problem follows over the steps."""
    if problem is not None and type(problem).trace is Problem.trace:
        problem = None  # nothing: its arrays are not needed
    return _start(amortizer, optimiser, np.asarray(seed), problem)


@partial(jit, once=True)
def _start(
    amortizer: Amortizer, optimiser: Optimiser, seed: Array, problem: Problem | None
) -> LoopState:
    params = weights_of(amortizer)
    zero, key = jnp.zeros((), jnp.int32), jax.random.key_data(jax.random.key(seed))
    trace = None if problem is None else problem.trace(params)
    return LoopState(params, optimiser.transform().init(params), key, zero, zero, trace)


def combine(params: Amortizer, amortizer: Amortizer) -> Amortizer:
    """Put trained weights into an amortizer."""
    return eqx.combine(params, amortizer)


def gradient_of(
    loss: Callable[[Amortizer], Any], amortizer: Amortizer, *, aside: bool = False
) -> tuple[Any, Amortizer]:
    """Value of a loss, and its gradient with respect to the trainable weights.

    `aside`: the loss is a pair, of which the gradient of the first is taken.
    """
    rest = eqx.filter(amortizer, amortizer.trainable(), inverse=True)
    both = jax.value_and_grad(lambda w: loss(eqx.combine(w, rest)), has_aux=aside)
    return both(weights_of(amortizer))


@jit
def run_block(
    problem: Problem,
    optimiser: Optimiser,
    amortizer: Amortizer,
    state: LoopState,
    host: dict[str, Any],
    size: int,
) -> tuple[LoopState, Array]:
    """Take `size` steps in one scan; steps past the optimiser's last change nothing.

    A step whose loss or gradient is not finite is skipped and counted.

    Returns
    -------
    state : LoopState
    losses : Array of shape (size,)
        NaN where a step was skipped or past the end.
    """
    rest = eqx.filter(amortizer, amortizer.trainable(), inverse=True)
    transform = optimiser.transform()

    def take(state: LoopState, host_step: dict[str, Any]) -> tuple[LoopState, Array]:
        key, step_key = jax.random.split(jax.random.wrap_key_data(state.key))
        there = eqx.combine(state.params, rest)
        loss, gradient = problem.loss_and_gradient(there, step_key, host_step)
        whole = gradient
        if problem.penalty(state.params) is not None:
            more, pull = jax.value_and_grad(problem.penalty)(state.params)
            whole = jax.tree.map(jnp.add, gradient, pull)
            loss = loss + more
        finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(whole))
        updates, opt_state = transform.update(whole, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        trace = problem.follow(state.trace, gradient, updates)
        params, opt_state, trace = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, opt_state, trace),
            (state.params, state.opt_state, state.trace),
        )
        skipped = state.skipped + jnp.where(finite, 0, 1).astype(jnp.int32)
        key = jax.random.key_data(key)
        state = devices.alike(LoopState(params, opt_state, key, state.step + 1, skipped, trace))
        return state, jnp.where(finite, loss, jnp.nan).astype(jnp.float32)

    def rest_still(state: LoopState, host_step: dict[str, Any]) -> tuple[LoopState, Array]:
        return state, jnp.full((), jnp.nan, jnp.float32)

    def step(state: LoopState, host_step: dict[str, Any]) -> tuple[LoopState, Array]:
        return jax.lax.cond(state.step < optimiser.steps, take, rest_still, state, host_step)

    return jax.lax.scan(step, state, host, length=size)
