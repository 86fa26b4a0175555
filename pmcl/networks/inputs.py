"""What a network is given of a dataset: rows, fixed values, what is missing; standardised."""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from pmcl.compile import Mask, Masking, VariableInfo
from pmcl.runtime.precision import NETWORK


class InputLayout(eqx.Module):
    """Which variables of a dataset are rows of the summary network, and which go past it.

    Attributes
    ----------
    rows : tuple of (str, int)
        Variables with the row dim, and its axis.
    fixed : tuple of str
        Variables without it: their values join the context directly.
    shapes : tuple of (str, tuple)
        The shape that each variable must have, None along the row dim.
    lengths : tuple of int, optional
        Shortest and longest dataset of training: the network then sees how long one is.
    flagged : tuple of str
        Variables of which the network sees what is missing, in columns of their own.
    times : tuple of str
        Variables of the rows of a sequence, of whose steps from row to row the network sees, too.
    """

    rows: tuple[tuple[str, int], ...] = eqx.field(static=True)
    fixed: tuple[str, ...] = eqx.field(static=True)
    shapes: tuple[tuple[str, tuple[int | None, ...]], ...] = eqx.field(static=True)
    lengths: tuple[int, int] | None = eqx.field(static=True, default=None)
    flagged: tuple[str, ...] = eqx.field(static=True, default=())
    times: tuple[str, ...] = eqx.field(static=True, default=())

    @classmethod
    def of(
        cls,
        variables: tuple[VariableInfo, ...],
        row: str | None,
        *,
        masking: Masking | None = None,
        observed: int = 0,
        times: tuple[str, ...] = (),
    ) -> "InputLayout":
        """Lay out variables, of which the first `observed` may have missing values."""
        rows = tuple((v.name, v.dims.index(row)) for v in variables if row in v.dims)
        shapes = tuple(
            (v.name, tuple(None if d == row else n for d, n in zip(v.dims, v.shape, strict=True)))
            for v in variables
        )
        fixed = tuple(v.name for v in variables if row not in v.dims)
        if masking is None:
            return cls(rows, fixed, shapes, times=times)
        flagged = tuple(v.name for v in variables[:observed]) if masking.missing else ()
        return cls(rows, fixed, shapes, masking.lengths, flagged, times)

    def split(self, data: Mapping[str, ArrayLike]) -> tuple[Array | None, Array]:
        """Arrays of one dataset -> rows (n, features) or None, and fixed values (m,)."""
        for name, expected in self.shapes:
            shape = jnp.shape(data[name])
            # Left to broadcasting, one value would pass for many.
            if len(shape) != len(expected) or any(
                m not in (n, None) for n, m in zip(shape, expected, strict=True)
            ):
                known = tuple("any" if m is None else m for m in expected)
                raise ValueError(
                    f"Variable {name!r}: the network was built for shape {known}, got {shape}; "
                    "only a dim named by `exchangeable` or `sequence` may have another length."
                )
        parts = []
        for name, axis in self.rows:
            value = jnp.moveaxis(jnp.asarray(data[name]), axis, 0)
            parts.append(value.reshape(value.shape[0], -1).astype(NETWORK))
        for name in self.times:
            time = jnp.asarray(data[name])
            parts.append(jnp.diff(time, prepend=time[:1]).astype(NETWORK)[:, None])
        fixed = [jnp.ravel(jnp.asarray(data[name])).astype(NETWORK) for name in self.fixed]
        return (
            jnp.concatenate(parts, axis=1) if parts else None,
            jnp.concatenate(fixed) if fixed else jnp.zeros(0, NETWORK),
        )

    def there(
        self, data: Mapping[str, ArrayLike], mask: Mask
    ) -> tuple[Array | None, Array, Array | None]:
        """Say which numbers of :meth:`split` are there, and which rows count (None: all)."""
        whole = {name: jnp.ones(jnp.shape(data[name]), bool) for name, _ in self.shapes}
        rows, fixed = replace(self, times=()).split({**whole, **mask.values})
        if rows is not None:  # times are never missing
            rows = jnp.pad(rows, ((0, 0), (0, len(self.times))), constant_values=1)
        counts = mask.rows
        seen = [(n, axis) for n, axis in self.rows if n in mask.values]
        if seen and not self.flagged:
            # To a network that learned of no gaps a row without any observation is no row.
            gaps = [jnp.moveaxis(mask.values[n], axis, 0) for n, axis in seen]
            some = jnp.any(jnp.stack([g.reshape(g.shape[0], -1).any(axis=1) for g in gaps]), 0)
            counts = some if counts is None else counts & some
        return None if rows is None else rows > 0, fixed > 0, counts

    def flags(self, data: Mapping[str, ArrayLike], mask: Mask | None) -> tuple[Array | None, Array]:
        """Columns (1: there, -1: missing) of what may be missing, along rows and of fixed size."""
        gone = {} if mask is None else mask.values
        parts = InputLayout(
            tuple(r for r in self.rows if r[0] in self.flagged),
            tuple(n for n in self.fixed if n in self.flagged),
            tuple(s for s in self.shapes if s[0] in self.flagged),
        )
        whole = {n: jnp.ones(jnp.shape(data[n]), bool) for n in self.flagged}
        rows, fixed = parts.split({**whole, **{n: v for n, v in gone.items() if n in whole}})
        return None if rows is None else 2 * rows - 1, 2 * fixed - 1


class Scaling(eqx.Module):
    """Location and scale of one kind of input."""

    loc: Array
    scale: Array

    @classmethod
    def of(cls, loc: np.ndarray, scale: np.ndarray) -> "Scaling":
        """Take them as they are, in the networks' precision."""
        return cls(*(jnp.asarray(np.asarray(v, np.float32)) for v in (loc, scale)))

    @classmethod
    def robust(cls, values: np.ndarray) -> "Scaling":
        """Median and interquartile range over the first dim, as mean and sd of a normal."""
        low, mid, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        scale = (high - low) / 1.349
        # Counts and binary inputs often have no interquartile range.
        scale = np.where(scale > 1e-12, scale, np.std(values, axis=0))
        return cls.of(mid, np.where(scale > 1e-12, scale, 1.0))

    @classmethod
    def moments(cls, values: np.ndarray) -> "Scaling":
        """Mean and sd over the first dim."""
        scale = np.std(values, axis=0)
        return cls.of(np.mean(values, axis=0), np.where(scale > 1e-12, scale, 1.0))

    def squash(self, values: Array) -> Array:
        """Standardise; beyond a few scales grow like the logarithm: heavy tails stay tame."""
        # Simulated values may lie beyond float32.
        return 3.0 * jnp.arcsinh(jnp.clip((values - self.loc) / (3.0 * self.scale), -1e30, 1e30))
