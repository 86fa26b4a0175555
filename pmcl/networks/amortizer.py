"""The amortized posterior q(z | h(x)): inputs, summary network and conditional flow, joined."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jax import Array

from pmcl.compile import Mask
from pmcl.networks.flow import AbstractFlow, CouplingFlow
from pmcl.networks.inputs import InputLayout, Scaling
from pmcl.networks.summary import AbstractSummary, AbstractSummaryNetwork, DeepSet
from pmcl.runtime.jitting import jit
from pmcl.runtime.precision import NETWORK, as_network, network_scope

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

    def draw(self, key: Array, number: int, context: Array) -> tuple[Array, Array]:
        """Draws z of shape (number, dim) and their log q(z | context)."""
        eps = jax.random.normal(key, (number, self.dim), NETWORK)
        return jax.vmap(self.transform, in_axes=(0, None))(eps, context)

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
