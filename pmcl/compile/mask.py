"""What of a dataset is there: rows that are no padding, and values that are not missing."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from pmcl.compile.variables import VariableInfo


class Mask(NamedTuple):
    """What of one dataset (or of several, with a leading dim) counts.

    Attributes
    ----------
    rows : Array of bool of shape (row,), optional
        False for padding; None where there is none.
    values : dict of arrays of bool
        False where a value of an observed variable is missing; only variables that lack some.
    """

    rows: Array | None = None
    values: dict[str, Array] = {}  # noqa: RUF012  (never written)

    def kept(self, info: VariableInfo, term: Array, dim: str | None) -> Array:
        """Terms of a likelihood, zero for padding along `dim` and for missing values.

        Raises
        ------
        ValueError
            Where what is not there has no term of its own.
        """
        keep: Array | None = None
        if self.rows is not None and dim in info.dims:
            axis, n = info.dims.index(dim), self.rows.shape[0]
            if axis >= term.ndim or term.shape[axis] != n:
                raise ValueError(
                    f"Variable {info.name!r}: expected a likelihood with a term for each of the "
                    f"{n} elements of dim {dim!r}, got terms of shape {term.shape}; padding "
                    "cannot be masked out of it."
                )
            keep = self.rows.reshape([n if i == axis else 1 for i in range(term.ndim)])
        if info.name in self.values:
            there = self.values[info.name]
            if there.shape[: term.ndim] != term.shape:
                raise ValueError(
                    f"Variable {info.name!r}: expected a likelihood with a term for each value, "
                    f"got terms of shape {term.shape} for values of shape {there.shape}; missing "
                    "values cannot be masked out of it."
                )
            there = jnp.all(there, axis=tuple(range(term.ndim, there.ndim)))
            keep = there if keep is None else keep & there
        return term if keep is None else jnp.where(keep, term, 0.0)


class Masking(eqx.Module):
    """Lengths and missing values that simulations are trained over.

    Attributes
    ----------
    row : str or None
        The dim of `lengths`.
    lengths : tuple of int, optional
        Shortest and longest dataset; lengths between are log-uniform.
    missing : float
        Mean fraction of missing observed values. A dataset's own fraction is uniform from 0 to
        twice that (at most 1), its missing values are any.
    """

    row: str | None = eqx.field(static=True, default=None)
    lengths: tuple[int, int] | None = eqx.field(static=True, default=None)
    missing: float = eqx.field(static=True, default=0.0)

    def __bool__(self) -> bool:
        return self.lengths is not None or self.missing > 0

    def sized(self, infos: Sequence[VariableInfo]) -> tuple[VariableInfo, ...]:
        """Give variables the shape that they are simulated at: the longest."""
        if self.lengths is None:
            return tuple(infos)
        longest = self.lengths[1]
        return tuple(
            v._replace(
                shape=tuple(
                    longest if d == self.row else n for d, n in zip(v.dims, v.shape, strict=True)
                )
            )
            for v in infos
        )

    def draw(self, key: Array, shapes: dict[str, tuple[tuple[int, ...], int]]) -> Mask:
        """Draw the mask of one simulated dataset.

        Parameters
        ----------
        key : Array
        shapes : dict
            Of each observed variable: its shape, and how many of its first dims the likelihood has
            a term for. The rest (the entries of a vector) are there or missing together.
        """
        length_key, rate_key, missing_key = jax.random.split(key, 3)
        rows = None
        if self.lengths is not None:
            low, high = self.lengths
            u = jax.random.uniform(length_key)
            n = jnp.floor(low * ((high + 1) / low) ** u).astype(int)
            rows = jnp.arange(high) < jnp.minimum(n, high)
        if not self.missing:
            return Mask(rows)
        rate = jax.random.uniform(rate_key, maxval=min(2 * self.missing, 1.0))
        values = {}
        for i, (name, (shape, terms)) in enumerate(sorted(shapes.items())):
            u = jax.random.uniform(jax.random.fold_in(missing_key, i), shape[:terms])
            there = (u >= rate).reshape(shape[:terms] + (1,) * (len(shape) - terms))
            values[name] = jnp.broadcast_to(there, shape)
        return Mask(rows, values)
