"""The one place where floating-point precision is decided.

Densities are evaluated in float64, networks in float32. PyTensor switches `jax_enable_x64` on when
its JAX backend is imported; pmcl leaves that flag as it finds it and opens its own scope instead.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pmcl.runtime import precision

NETWORK = jnp.float32
DENSITY = jnp.float64


def scope() -> AbstractContextManager[None]:
    """Context in which pmcl traces and runs its functions, whatever the process-wide flag says."""
    return jax.enable_x64(True)


def network_scope() -> AbstractContextManager[None]:
    """Context in which networks are built, so that constants inside them are float32 too."""
    return jax.enable_x64(False)


def as_network[T](tree: T) -> T:
    """Cast every floating-point array of a pytree to the networks' precision."""
    return jax.tree.map(
        lambda x: (
            jnp.asarray(x, NETWORK)
            if isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
            else x
        ),
        tree,
    )


type Precision = Literal["double", "single"]


@contextmanager
def scope_of(chosen: Precision) -> Iterator[None]:
    """Context in which an online posterior is computed."""
    with warnings.catch_warnings():
        # PyTensor asks for the model's own types, which JAX cuts where single precision is chosen.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        with precision.scope() if chosen == "double" else precision.network_scope():
            yield
