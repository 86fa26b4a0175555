"""One scanned training loop, used by pretraining and adaptation alike."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from pmcl import devices
from pmcl.compile import jit
from pmcl.networks import Amortizer


class Problem(eqx.Module):
    """What is minimised: its arrays are arguments of the compiled step, the rest is static."""

    @abstractmethod
    def loss(self, amortizer: Amortizer, key: Array, host: dict[str, Array]) -> Array:
        """Loss at one step (shape ()); `host` is what was made outside jit for this step."""

    def penalty(self, params: Amortizer) -> Array | None:
        """What is added to the loss for the weights themselves (shape ()); None: nothing."""
        return None

    def trace(self, params: Amortizer) -> Any:
        """Begin what is followed over the steps; None: nothing."""
        return None

    def perturb(self, trace: Any, params: Amortizer, key: Array) -> tuple[Any, Amortizer]:
        """Return the weights at which a step's loss and gradient are taken, and the trace."""
        return trace, params

    def follow(self, trace: Any, gradient: Amortizer, change: Amortizer) -> Any:
        """Follow a step: the gradient of the loss without the penalty, the weights' change."""
        return trace


class Optimiser(eqx.Module):
    """Adam with clipping, warm-up and cosine decay.

    Attributes
    ----------
    steps : int
    rate : Array
        Highest learning rate. An argument, not a constant: changing it compiles nothing.
    warmup : int
        Steps of linear warm-up.
    clip : float
        Largest global gradient norm.
    final : float
        Rate at the end, as a fraction of the highest.
    """

    rate: Array
    steps: int = eqx.field(static=True)
    warmup: int = eqx.field(static=True, default=0)
    clip: float = eqx.field(static=True, default=1.0)
    final: float = eqx.field(static=True, default=0.0)

    def transform(self) -> optax.GradientTransformation:
        schedule = optax.warmup_cosine_decay_schedule(
            init_value=0.0 if self.warmup else 1.0,
            peak_value=1.0,
            warmup_steps=self.warmup,
            decay_steps=max(self.steps, self.warmup + 1),
            end_value=self.final,
        )
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(schedule),
        )


class LoopState(NamedTuple):
    """Everything that changes from step to step; a pytree of arrays."""

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
    amortizer: Amortizer, optimiser: Optimiser, key: Array, problem: Problem | None = None
) -> LoopState:
    """Begin a run at the amortizer's weights; `problem` where something is followed."""
    params = weights_of(amortizer)
    zero = jnp.zeros((), jnp.int32)
    trace = None if problem is None else problem.trace(params)
    return LoopState(params, optimiser.transform().init(params), key, zero, zero, trace)


def combine(params: Amortizer, amortizer: Amortizer) -> Amortizer:
    """Put trained weights into an amortizer."""
    return eqx.combine(params, amortizer)


@jit
def run_block(
    problem: Problem,
    optimiser: Optimiser,
    amortizer: Amortizer,
    state: LoopState,
    host: dict[str, Array],
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

    def loss_of(params: Amortizer, key: Array, host_step: dict[str, Array]) -> Array:
        return problem.loss(eqx.combine(params, rest), key, host_step)

    def take(state: LoopState, host_step: dict[str, Array]) -> tuple[LoopState, Array]:
        key, step_key = jax.random.split(state.key)
        noise_key = jax.random.fold_in(step_key, 1)
        trace, there = problem.perturb(state.trace, state.params, noise_key)
        loss, gradient = jax.value_and_grad(loss_of)(there, step_key, host_step)
        whole = gradient
        if problem.penalty(state.params) is not None:
            more, pull = jax.value_and_grad(problem.penalty)(state.params)
            whole = jax.tree.map(jnp.add, gradient, pull)
            loss = loss + more
        finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(whole))
        updates, opt_state = transform.update(whole, state.opt_state, state.params)
        updates = jax.tree.map(lambda u: u * optimiser.rate.astype(u.dtype), updates)
        params = optax.apply_updates(state.params, updates)
        trace = problem.follow(trace, gradient, updates)
        params, opt_state, trace = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, opt_state, trace),
            (state.params, state.opt_state, state.trace),
        )
        skipped = state.skipped + jnp.where(finite, 0, 1).astype(jnp.int32)
        state = devices.alike(LoopState(params, opt_state, key, state.step + 1, skipped, trace))
        return state, jnp.where(finite, loss, jnp.nan).astype(jnp.float32)

    def rest_still(state: LoopState, host_step: dict[str, Array]) -> tuple[LoopState, Array]:
        return state, jnp.full((), jnp.nan, jnp.float32)

    def step(state: LoopState, host_step: dict[str, Array]) -> tuple[LoopState, Array]:
        return jax.lax.cond(state.step < optimiser.steps, take, rest_still, state, host_step)

    return jax.lax.scan(step, state, host, length=size)


def blocks(steps: int, *, longest: int) -> tuple[int, int]:
    """Split `steps` into equal blocks of at most `longest`: (number of blocks, their size)."""
    number = -(-steps // longest)
    return number, -(-steps // number)
