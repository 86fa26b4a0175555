"""A model of those entries of z alone that a batch says anything of: one task's, and the shared."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.variables import ValueSlice
from pmcl.online.gaussian import MeanField
from pmcl.online.rows import AbstractRows, Data, RowBatch
from pmcl.runtime.jitting import jit

_WORTH = 100_000  # entries of z that have to be left out, for what is compiled to be worth it
_TOLERANCE = 1e-4  # of a row's log likelihood, for two ways to compute it
_FEW = 100  # rows of the whole batch at which they are compared


class Ranges(eqx.Module):
    """Ranges of the entries of vectors as long as z.

    Where they start is an array, so that what was compiled for one task's parameters serves for
    another's, which are as many.

    Attributes
    ----------
    starts : Array of int of shape (range,)
    lengths : tuple of int
    """

    starts: Array
    lengths: tuple[int, ...] = eqx.field(static=True)

    def take[T](self, whole: T) -> T:
        """Take the ranges of a vector, or of every vector in a tree of them, one after another."""

        def one(vector: Array) -> Array:
            pairs = zip(self.starts, self.lengths, strict=True)
            return jnp.concatenate([jax.lax.dynamic_slice(vector, (s,), (n,)) for s, n in pairs])

        return jax.tree.map(one, whole)

    def put[T](self, whole: T, part: T) -> T:
        """Return vectors whose ranges are `part`, and that are else as they were."""

        def one(vector: Array, taken: Array) -> Array:
            pieces = jax.lax.split(taken, self.lengths)
            for start, piece in zip(self.starts, pieces, strict=True):
                vector = jax.lax.dynamic_update_slice(vector, piece, (start,))
            return vector

        return jax.tree.map(one, whole, part)


class Narrow(NamedTuple):
    """The problem of a batch that says nothing of most entries of z.

    Of every variable it has one range of the first axis, and what tells which entry of that axis
    a batch is of, such as the number of a task, counts from where the range begins.

    Attributes
    ----------
    ranges : Ranges
    rows : AbstractRows
        Of the ranges alone.
    first : int
        Where the ranges begin that are not whole variables, along their first axis.
    told : tuple of str
        Covariates that tell it.
    """

    ranges: Ranges
    rows: AbstractRows
    first: int
    told: tuple[str, ...]

    def data(self, data: Data) -> Data:
        """A batch's data, as the narrow model reads them."""
        return {k: v - self.first if k in self.told else v for k, v in data.items()}

    def batch(self, batch: RowBatch) -> RowBatch:
        """A batch, as the narrow model reads it."""
        return batch._replace(data=self.data(batch.data))


def narrow(
    rows: AbstractRows, around: MeanField, wanted: np.ndarray, batch: RowBatch, key: Array
) -> Narrow | None:
    """Narrow a model to what is wanted; None where that cannot be, or is not worth it.

    Whether the narrow model's likelihood is the whole one's is tested at some rows of the batch.

    Parameters
    ----------
    rows : AbstractRows
    around : MeanField
        Where they are compared.
    wanted : ndarray of bool of shape (dim,)
        Entries of z.
    batch : RowBatch
    key : Array
    """
    values = rows.compiled.values
    parts = [_part(value, wanted) for value in values]
    lengths = tuple(part.size for part in parts)
    begins = {
        (part.start - value.start) // (value.size // value.shape[0])
        for value, part in zip(values, parts, strict=True)
        if part != value
    }
    if len(wanted) - sum(lengths) < _WORTH or len(begins) != 1:
        return None
    first = begins.pop()
    told = tuple(
        info.name
        for info in rows.compiled.covariates
        if np.issubdtype(info.dtype, np.integer)
        and np.ndim(batch.data[info.name]) == 0
        and batch.data[info.name] == first
    )
    if first and not told:  # what is looked up in the variables would be another entry of them
        return None
    ranges = Ranges(jnp.asarray([part.start for part in parts]), lengths)
    spread = np.linspace(0, rows.length(batch.data) - 1, _FEW).astype(int)
    few = rows.part(batch, jnp.asarray(spread)).data
    try:
        found = Narrow(ranges, rows.narrow(tuple(part.shape for part in parts)), first, told)
        return found if _same(rows, found, around, few, key) else None
    except (TypeError, ValueError):  # something else than an index looks at the variables' lengths
        return None


def _part(value: ValueSlice, wanted: np.ndarray) -> ValueSlice:
    """Return the range of a variable's first axis that holds all that is wanted of it."""
    if not value.shape:
        return value
    here = wanted[value.start : value.start + value.size].reshape(value.shape[0], -1).any(axis=1)
    if not here.any():
        return value
    first, last = (int(i) for i in np.flatnonzero(here)[[0, -1]])
    number = last + 1 - first
    if 2 * number > len(here):  # units that are silent are no reason to compile anew
        return value
    start = value.start + first * (value.size // len(here))
    return value._replace(start=start, shape=(number, *value.shape[1:]))


@jit
def _terms(rows: AbstractRows, z: Array, data: Data, key: Array) -> Array:
    return rows.drawn(MeanField(z, jnp.full_like(z, -jnp.inf)), data, key)


def _same(rows: AbstractRows, found: Narrow, around: MeanField, few: Data, key: Array) -> bool:
    """Whether both have the same likelihood at a draw."""
    z = around.at(jax.random.normal(key, around.mean.shape, around.mean.dtype))
    one = np.asarray(_terms(rows, z, few, key))
    other = np.asarray(_terms(found.rows, found.ranges.take(z), found.data(few), key))
    return bool(np.isfinite(one).all()) and np.allclose(one, other, rtol=_TOLERANCE)
