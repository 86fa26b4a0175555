"""What an encoder sees of rows, and how many there are."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.local_variables import LocalVariables
from pmcl.online.gaps import THERE
from pmcl.online.rows import Data, Rows, padding


def lengthened(
    rows: Rows, data: Mapping[str, np.ndarray], n: int
) -> tuple[dict[str, Array], np.ndarray]:
    """Add copies of the first of n rows (:func:`pmcl.online.rows.padding`); say which are not."""
    index = padding(n)
    filled = rows.take({k: np.asarray(v) for k, v in data.items()}, index)
    return {k: jnp.asarray(v) for k, v in filled.items()}, np.arange(len(index)) < n


def length(
    rows: Rows, local: LocalVariables, data: Mapping[str, Array] | Mapping[str, np.ndarray]
) -> int:
    """Number of rows of a batch's data."""
    first = next(i for i in rows.compiled.observed if i.name not in local.names)
    return data[first.name].shape[first.dims.index(rows.row)]


def features(
    rows: Rows, local: LocalVariables, data: Data | Mapping[str, np.ndarray]
) -> tuple[Array, Array]:
    """What an encoder sees: numbers of shape (row, features), and which of them are there.

    All observed variables and covariates that rows do not share.
    """
    named = [i.name for i in rows.compiled.data if i.name not in local.names]
    parts, there = [], []
    for name in named:
        axis = rows.axis(name)
        if axis is None:
            continue
        value = jnp.moveaxis(jnp.asarray(data[name], jnp.result_type(float)), axis, 0)
        seen = data.get(name + THERE)
        seen = jnp.ones(value.shape, bool) if seen is None else jnp.moveaxis(seen, axis, 0)
        parts.append(value.reshape(len(value), -1))
        there.append(seen.reshape(len(value), -1))
    return jnp.concatenate(parts, axis=1), jnp.concatenate(there, axis=1)
