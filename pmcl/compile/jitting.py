"""`jit` as pmcl uses it: options of XLA are passed to one function, never set for the process."""

from collections.abc import Callable
from functools import cache, wraps

import equinox as eqx
import jax

# XLA's fusions for the YNN library copy and recompute in the gradients of small networks: without
# them a pretraining step of a set transformer takes two thirds of the time (jaxlib 0.12, 2 cores).
# They also compute wrong numbers: sqrt(max(h^2 @ v, tiny)) * noise, batched over the noise alone,
# lost rows of h (found with a Bayesian neural network's last layer).
_OPTIONS: dict[str, str | bool | int] = {"xla_cpu_experimental_ynn_fusion_type": ""}


@cache
def _options() -> dict[str, str | bool | int]:
    """Options that this version of XLA knows: they come and go, and none is needed."""
    try:
        jax.jit(lambda x: x, compiler_options=_OPTIONS).lower(0.0).compile()
    except Exception:  # noqa: BLE001 (XLA's own errors, of a class that moves between versions)
        return {}
    return _OPTIONS


def jit[**P, T](function: Callable[P, T]) -> Callable[P, T]:
    """`equinox.filter_jit`, compiled with pmcl's options; not to be called inside another jit."""

    @cache
    def compiled() -> Callable[P, T]:
        return eqx.filter_jit(function, compiler_options=_options())  # type: ignore[call-overload]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return compiled()(*args, **kwargs)

    return call
