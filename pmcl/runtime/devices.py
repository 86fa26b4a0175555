"""Devices to compute on: datasets are spread over them, and each has a copy of the weights."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from pmcl.runtime.jitting import jit

type DevicesLike = int | Sequence[jax.Device] | Mesh | None
_AXIS = "dataset"
_most_cores = ContextVar("most cores", default=8)  # each has a chunk in memory
# settings of JAX that a `with` makes for one thread
_OF_A_THREAD = (
    "enable_x64",
    "default_device",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "numpy_dtype_promotion",
    "debug_nans",
    "debug_infs",
    "disable_jit",
    "check_tracer_leaks",
)


def mesh_of(devices: DevicesLike) -> Mesh | None:
    """Read the argument `devices`; None: nothing is spread.

    Raises
    ------
    ValueError
        Where there are not so many devices, or none is given.
    TypeError
    """
    if devices is None:
        return None
    if isinstance(devices, Mesh):
        # Shardings are found by XLA, whatever the types of the axes that the user works with.
        automatic = (AxisType.Auto,) * len(devices.axis_names)
        return Mesh(devices.devices, devices.axis_names, axis_types=automatic)
    if isinstance(devices, int) and not isinstance(devices, bool):
        known = jax.devices()
        if not 1 <= devices <= len(known):
            raise ValueError(
                f"devices: expected a number from 1 to {len(known)} (JAX finds {known[0].platform} "
                f"devices), got {devices}. `jax.devices()` lists them."
            )
        devices = known[:devices]
    if not isinstance(devices, Sequence) or isinstance(devices, str):
        raise TypeError(
            "devices: expected a number, a sequence of JAX devices or a jax.sharding.Mesh, got "
            f"{devices!r}."
        )
    if not devices or not all(isinstance(d, jax.Device) for d in devices):
        raise ValueError(f"devices: expected at least one JAX device, got {list(devices)!r}.")
    return Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))


@contextmanager
def scope(devices: DevicesLike) -> Iterator[None]:
    """Context in which datasets are spread over devices; None leaves things as they are.

    The functions compiled in it are of one program for all devices, so that with several processes
    (`jax.distributed`) each has to enter it with the same arguments.
    """
    mesh = mesh_of(devices)
    if mesh is None:
        yield
    else:
        with jax.set_mesh(mesh):
            yield


def number() -> int:
    """How many devices the present scope spreads over; 1 outside of one."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.size


def accelerated() -> bool:
    """Whether the present scope computes on accelerators, rather than on cores."""
    mesh = jax.sharding.get_mesh()
    return (jax.default_backend() if mesh.empty else mesh.devices.flat[0].platform) != "cpu"


def cores() -> int:
    """How many programs the present scope may run beside one another; 1 on other devices."""
    if not jax.sharding.get_mesh().empty or accelerated():
        return 1
    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return min(_most_cores.get(), len(allowed(0)))


@contextmanager
def at_most(cores: int) -> Iterator[None]:
    """Context in which no more programs run beside one another: others have the other cores."""
    before = _most_cores.set(cores)
    try:
        yield
    finally:
        _most_cores.reset(before)


def scope_of_threads() -> Callable[[], ExitStack]:
    """Return a context that gives another thread this one's settings of JAX."""
    now = {name: getattr(jax.config, f"jax_{name}") for name in _OF_A_THREAD}

    def scope() -> ExitStack:
        stack = ExitStack()
        for name, value in now.items():
            stack.enter_context(getattr(jax, name)(value))
        return stack

    return scope


def together(n: int) -> int:
    """How many items a device works on together, where a core has `n`."""
    return 32 * n if accelerated() else n


def even(n: int) -> int:
    """Return the smallest number of datasets, not below `n`, of which each device has as many."""
    return -(-n // number()) * number()


def filled[T](tree: T, n: int) -> tuple[T, np.ndarray | None]:
    """Repeat some of `n` datasets, so that each device has as many; and say which ones count.

    Returns
    -------
    tree
    counted : array of bool, optional
        None: all do.
    """
    if even(n) == n:
        return tree, None
    index = np.arange(even(n)) % n
    return jax.tree.map(lambda x: x[index], tree), np.arange(even(n)) < n


def spread[T](tree: T) -> T:
    """Give each device a part of the leading dim, inside jit; what cannot be shared evenly stays.

    Values are as they were: only where they are computed changes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tree

    def one(x: Any) -> Any:
        if not isinstance(x, jax.Array) or not x.ndim or x.shape[0] % mesh.size:
            return x
        return jax.lax.with_sharding_constraint(x, PartitionSpec(mesh.axis_names))

    return jax.tree.map(one, tree)


def alike[T](tree: T) -> T:
    """Give every device all of it, inside jit."""
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    return jax.tree.map(
        lambda x: (
            jax.lax.with_sharding_constraint(x, PartitionSpec()) if isinstance(x, jax.Array) else x
        ),
        tree,
    )


@jit
def _copied(x: jax.Array) -> jax.Array:
    return alike(x)


def gathered(x: Any) -> np.ndarray:
    """Return an array whole, as NumPy's, wherever its parts are."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable and not x.is_fully_replicated:
        x = _copied(x)
    return np.asarray(x)


def settled[T](tree: T) -> T:
    """Put copied arrays that were made in a scope, after it, on the default device alone."""
    return jax.tree.map(
        lambda x: (
            jax.numpy.asarray(np.asarray(x)) if isinstance(x, jax.Array) and x.committed else x
        ),
        tree,
    )


def writes() -> bool:
    """Whether this process writes files and shows progress: of several that share a mesh, one."""
    if number() == 1:
        return True
    shared = {d.process_index for d in jax.sharding.get_mesh().devices.flat}
    return jax.process_index() == min(shared)


def check_alike(what: str, value: int) -> None:
    """Refuse a number that differs between the processes of the scope: they would wait forever.

    Raises
    ------
    ValueError
    """
    if number() == 1 or jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    found = multihost_utils.process_allgather(np.asarray(value))
    if len(set(found.tolist())) > 1:
        raise ValueError(
            f"{what} differs between processes: {found.tolist()}. Expected one file that all of "
            "them see; put it in a shared folder."
        )
