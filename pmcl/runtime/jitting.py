"""`jit` as pmcl uses it: XLA's options for one function, and compiled functions that are few.

Nothing is set for the process. What is compiled is kept by function and by all that is static in
its arguments, the oldest first, so that a process may work with any number of models.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from threading import Lock, get_ident
from time import monotonic
from typing import Any, NamedTuple

import jax
import numpy as np

type Options = dict[str, str | bool | int]
# XLA's fusions for the YNN library copy and recompute in the gradients of small networks: without
# them a pretraining step of a set transformer takes two thirds of the time (jaxlib 0.12, 2 cores).
# They also compute wrong numbers: sqrt(max(h^2 @ v, tiny)) * noise, batched over the noise alone,
# lost rows of h (found with a Bayesian neural network's last layer).
_ALWAYS: Options = {"xla_cpu_experimental_ynn_fusion_type": ""}

# A training step compiles in three quarters of the time with these, and runs a little faster; with
# level 0 in less than two thirds, and runs four times as long: for what runs once. XLA's preset
# CPU_OPT_PRESET_FAST_COMPILE saves nothing beside them, and computed wrong numbers where a loop
# makes derivatives by rows, and covariances from them (62 in place of 4).
_OFTEN: Options = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
}

_ONCE: Options = {**_OFTEN, "xla_backend_optimization_level": 0}
# Linux ends a process that has more memory maps than 65,530; a compiled function takes dozens.
_MOST_MAPS = 30_000
_MORE_MAPS = 5_000  # beyond those that are left when all is forgotten
_MAPS = Path("/proc/self/maps")
_functions: OrderedDict[tuple, Any] = OrderedDict()  # the oldest use first
_lock = Lock()  # of the functions
_left = [0]  # maps below which nothing is forgotten, from when all was
_began: dict[int, list[float]] = {}  # when what is being compiled at this moment began, by thread


@cache
def _options(once: bool) -> Options:
    """Options that this version of XLA knows: they come and go, and none is needed."""
    wanted = dict(_ALWAYS)
    if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
        wanted |= _ONCE if once else _OFTEN
    if _known(wanted):
        return wanted
    return {k: v for k, v in wanted.items() if _known({k: v})}


def _known(options: Options) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except Exception:  # noqa: BLE001 (XLA's own errors, of a class that moves between versions)
        return False
    return True


def compiling_for() -> float | None:
    """Seconds since what is being compiled at this moment began; None: nothing is."""
    since = [began[0] for began in [*_began.values()] if began]
    return monotonic() - min(since) if since else None


@contextmanager
def compiling() -> Iterator[None]:
    """Say, to whoever asks :func:`compiling_for`, that something is being compiled."""
    mine = _began.setdefault(get_ident(), [])
    mine.append(monotonic())
    try:
        yield
    finally:
        mine.pop()


def jit[T](function: Callable[..., T], *, once: bool = False) -> Callable[..., T]:
    """Compile a function with pmcl's options; arrays are traced, all else in arguments is static.

    Parameters
    ----------
    function : callable
        Of pytrees, to pytrees of arrays or of whatever else is known when it is traced.
    once : bool
        Whether it runs so seldom that compiling it well would not pay.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        arrays, rest = _split((args, kwargs))
        key = (function, once, rest)
        options = _options(once)
        with _lock:  # taken out and put in last
            running = _functions.pop(key, None) or _compiled(function, rest, options)
            _functions[key] = running
        mine = _began.setdefault(get_ident(), [])
        outside = len(mine)
        try:
            found, others = running(arrays)
        finally:
            if len(mine) > outside:  # it was traced, so it was compiled
                del mine[outside:]
                forget_oldest()
        return others.joined(found)

    return call


class _Rest(NamedTuple):
    """What of a pytree is no array; with its type, as 1 is not True."""

    structure: Any
    leaves: tuple

    def joined(self, arrays: list) -> Any:
        """Put the arrays back in their places."""
        left = iter(arrays)
        leaves = [next(left) if one is None else one[1] for one in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


class _Known:
    """A pytree without leaves, by which a trace gives what is no array."""

    def __init__(self, rest: _Rest):
        self.joined = rest.joined
        self.rest = rest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.rest == other.rest

    def __hash__(self) -> int:
        return hash(self.rest)


jax.tree_util.register_pytree_node(_Known, lambda o: ((), o), lambda o, _: o)


def _split(tree: Any) -> tuple[list, _Rest]:
    leaves, structure = jax.tree.flatten(tree)
    is_array = [isinstance(x, jax.Array | np.ndarray | np.generic) for x in leaves]
    pairs = [*zip(leaves, is_array, strict=True)]
    rest = tuple(None if array else (type(x), x) for x, array in pairs)
    return [x for x, array in pairs if array], _Rest(structure, rest)


def _compiled(function: Callable, rest: _Rest, options: Options) -> Any:
    def traced(arrays: list) -> tuple[list, _Known]:
        _began[get_ident()].append(monotonic())
        args, kwargs = rest.joined(arrays)
        found, others = _split(function(*args, **kwargs))
        return found, _Known(others)

    traced.__name__ = traced.__qualname__ = getattr(function, "__name__", "function")
    return jax.jit(traced, compiler_options=options)


def forget_oldest(most: int = _MOST_MAPS) -> None:
    """Forget compiled functions, the oldest first, where the process has many memory maps.

    Nothing to do where the system does not count them. A function that is forgotten is compiled
    again when it is next called.
    """
    if not _MAPS.exists() or _maps() <= max(most, _left[0]):
        return
    while _maps() > most:
        with _lock:  # other threads forget, too
            number = -(-len(_functions) // 4) if len(_functions) > 1 else 0
            oldest = [_functions.popitem(last=False)[1] for _ in range(number)]
        if not oldest:
            break
        for function in oldest:
            function.clear_cache()
    if _maps() > most:  # small programs of JAX's own, and those of others
        jax.clear_caches()
    # what others hold is not ours to free: not each new function is to be forgotten for it
    _left[0] = _maps() + _MORE_MAPS


def _maps() -> int:
    return _MAPS.read_bytes().count(b"\n")


def few_lengths(n: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is not below `n`."""
    power = 1 << max(n - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power
