"""The amortized posterior q(z | h(x)): inputs, summary network and conditional flow, joined."""

from collections.abc import Mapping
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jax import Array
from jax.typing import ArrayLike

from pmcl.compile import Mask, Masking, VariableInfo, jit
from pmcl.compile.precision import NETWORK, as_network, network_scope
from pmcl.networks.flow import AbstractFlow, CouplingFlow
from pmcl.networks.summary import AbstractSummary, AbstractSummaryNetwork, DeepSet

_LOG_2PI = float(np.log(2 * np.pi))


class Network(eqx.Module):
    """Specification of the whole network: summary and flow.

    Attributes
    ----------
    summary : AbstractSummary
    flow : AbstractFlow
    """

    summary: AbstractSummary = DeepSet()
    flow: AbstractFlow = CouplingFlow()


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
    """

    rows: tuple[tuple[str, int], ...] = eqx.field(static=True)
    fixed: tuple[str, ...] = eqx.field(static=True)
    shapes: tuple[tuple[str, tuple[int | None, ...]], ...] = eqx.field(static=True)
    lengths: tuple[int, int] | None = eqx.field(static=True, default=None)
    flagged: tuple[str, ...] = eqx.field(static=True, default=())

    @classmethod
    def of(
        cls,
        variables: tuple[VariableInfo, ...],
        row: str | None,
        *,
        masking: Masking | None = None,
        observed: int = 0,
    ) -> "InputLayout":
        """Lay out variables, of which the first `observed` may have missing values."""
        rows = tuple((v.name, v.dims.index(row)) for v in variables if row in v.dims)
        shapes = tuple(
            (v.name, tuple(None if d == row else n for d, n in zip(v.dims, v.shape, strict=True)))
            for v in variables
        )
        fixed = tuple(v.name for v in variables if row not in v.dims)
        if masking is None:
            return cls(rows, fixed, shapes)
        flagged = tuple(v.name for v in variables[:observed]) if masking.missing else ()
        return cls(rows, fixed, shapes, masking.lengths, flagged)

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
        rows, fixed = self.split({**whole, **mask.values})
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


class Amortizer(eqx.Module):
    """q(z | h(x)) with the standardisation of inputs and parameters.

    Everything acts on one dataset. `eps` is the base draw of a standard normal, so that
    ``z, log_q = transform(eps, context)`` is the reparametrised draw T(eps; h(x)).
    """

    summary: AbstractSummaryNetwork
    flow: AbstractBijection
    row_scaling: Scaling
    fixed_scaling: Scaling
    z_scaling: Scaling
    inputs: InputLayout
    dim: int = eqx.field(static=True)

    def context(self, data: dict[str, Array], mask: Mask | None = None) -> Array:
        """Context vector h(x) of one dataset; `mask` says what of it counts."""
        rows, fixed, counts = self.standardised(data, mask)
        if rows is None:
            return fixed
        # a summary of the user's own may have made something of double precision
        return jnp.concatenate([self.summary(rows, counts).astype(NETWORK), fixed])

    def standardised(
        self, data: dict[str, Array], mask: Mask | None
    ) -> tuple[Array | None, Array, Array | None]:
        """Standardised rows, fixed values, and which rows count."""
        rows, fixed = self.inputs.split(data)
        fixed, counts = self.fixed_scaling.squash(fixed), None
        if rows is not None:
            rows = self.row_scaling.squash(rows)
        if mask is not None:
            rows_there, fixed_there, counts = self.inputs.there(data, mask)
            fixed = jnp.where(fixed_there, fixed, 0.0)
            if rows is not None and rows_there is not None:
                rows = jnp.where(rows_there, rows, 0.0)
        row_flags, fixed_flags = self.inputs.flags(data, mask)
        if row_flags is not None:
            assert rows is not None
            rows = jnp.concatenate([rows, row_flags], axis=1)
        more = [fixed, fixed_flags]
        if self.inputs.lengths is not None and rows is not None:
            n = rows.shape[0] if counts is None else jnp.maximum(jnp.sum(counts), 1)
            low, high = self.inputs.lengths
            position = jnp.log(n / low) / max(np.log(high / low), 1e-6)
            more.append((2 * position - 1).reshape(1).astype(NETWORK))
        return rows, jnp.concatenate(more), counts

    def transform(self, eps: Array, context: Array) -> tuple[Array, Array]:
        """Return z = T(eps; context) and log q(z | context)."""
        eps = eps.astype(NETWORK)
        wild, log_det = self.flow.transform_and_log_det(eps, context)
        u, tamed = _tame(wild)
        z = self.z_scaling.loc + self.z_scaling.scale * u
        return z, _normal(eps) - log_det - tamed - jnp.sum(jnp.log(self.z_scaling.scale))

    def log_prob(self, z: Array, context: Array) -> Array:
        """log q(z | context)."""
        u = (z.astype(NETWORK) - self.z_scaling.loc) / self.z_scaling.scale
        wild, tamed = _untame(u)
        eps, log_det = self.flow.inverse_and_log_det(wild, context)
        return _normal(eps) + log_det + tamed - jnp.sum(jnp.log(self.z_scaling.scale))

    def trainable(self) -> "Amortizer":
        """Return a tree of booleans: True where training may change an array."""
        spec = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(
            lambda a: (a.summary, a.flow),
            spec,
            jax.tree.map(eqx.is_inexact_array, (self.summary, self.flow)),
        )


_FAR = 20.0  # prior sds


def _tame(wild: Array) -> tuple[Array, Array]:
    """Leave values as they are up to 20 prior sds; beyond let them grow like the logarithm.

    Where a network extrapolates it may put draws thousands of prior sds away, a log scale at
    -1,300 for instance, where no density is finite from which it could learn better. Returns the
    values and the log determinant.
    """
    beyond = jnp.maximum(jnp.abs(wild) - _FAR, 0.0) / _FAR
    log = jnp.log1p(beyond)
    return jnp.clip(wild, -_FAR, _FAR) + jnp.sign(wild) * _FAR * log, -jnp.sum(log)


def _untame(u: Array) -> tuple[Array, Array]:
    """Invert `_tame`: the values and the log determinant of the inverse."""
    log = jnp.minimum(jnp.maximum(jnp.abs(u) - _FAR, 0.0) / _FAR, 80.0)  # float32 ends at e^88
    return jnp.clip(u, -_FAR, _FAR) + jnp.sign(u) * _FAR * jnp.expm1(log), jnp.sum(log)


def _normal(eps: Array) -> Array:
    return -0.5 * jnp.sum(eps**2) - 0.5 * eps.shape[-1] * _LOG_2PI


def build_amortizer(
    network: Network,
    inputs: InputLayout,
    z: np.ndarray,
    data: dict[str, np.ndarray],
    *,
    key: Array,
) -> Amortizer:
    """Build a network, standardised by prior-predictive draws.

    Parameters
    ----------
    network : Network
    inputs : InputLayout
    z : array of shape (simulations, dim)
    data : dict of arrays of shape (simulations, ...)
    key : Array
    """
    rows, fixed = jax.tree.map(np.asarray, _split(inputs, data))
    keep = np.isfinite(z).all(axis=1) & np.isfinite(fixed).all(axis=1)
    features = 0
    row_scaling = fixed_scaling = Scaling.of(np.zeros(0), np.ones(0))
    if rows is not None:
        keep &= np.isfinite(rows).all(axis=(1, 2))
        features = rows.shape[2]
        row_scaling = Scaling.robust(np.asarray(rows, float)[keep].reshape(-1, features))
    if fixed.shape[1]:
        fixed_scaling = Scaling.robust(np.asarray(fixed, float)[keep])
    one = {k: jax.ShapeDtypeStruct(np.shape(v)[1:], np.asarray(v).dtype) for k, v in data.items()}
    row_flags, fixed_flags = jax.eval_shape(lambda d: inputs.flags(d, None), one)
    features += 0 if row_flags is None else row_flags.shape[1]
    others = fixed.shape[1] + fixed_flags.shape[0] + (inputs.lengths is not None)
    with network_scope():
        network.flow.prepare()
        number = None if rows is None else rows.shape[1]
        summary, flow = _built(network, z.shape[1], number, features, others, key)
    return Amortizer(
        summary=summary,
        flow=flow,
        row_scaling=row_scaling,
        fixed_scaling=fixed_scaling,
        z_scaling=Scaling.moments(z[keep]),
        inputs=inputs,
        dim=z.shape[1],
    )


@partial(jit, once=True)
def _split(inputs: InputLayout, data: dict[str, Array]) -> tuple[Array | None, Array]:
    return jax.vmap(inputs.split)(data)


@partial(jit, once=True)
def _built(
    network: Network, dim: int, rows: int | None, features: int, others: int, key: Array
) -> tuple[AbstractSummaryNetwork, AbstractBijection]:
    """Networks of random weights, all made in one program."""
    summary_key, flow_key = jax.random.split(key)
    summary, outputs = network.summary.build(features, key=summary_key), 0
    if rows is not None:
        row = jax.ShapeDtypeStruct((rows, features), NETWORK)
        outputs = jax.eval_shape(summary, row, None).shape[0]
    flow = network.flow.build(dim, outputs + others, key=flow_key)
    return as_network((summary, flow))
