"""The amortized posterior q(z | h(x)): inputs, summary network and conditional flow, joined."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jax import Array

from pmcl.compile import Mask
from pmcl.networks.flow import AbstractFlow, Asinh, CouplingFlow, as_identity
from pmcl.networks.inputs import InputLayout, Scaling
from pmcl.networks.summary import AbstractSummary, AbstractSummaryNetwork, DeepSet
from pmcl.runtime.jitting import jit
from pmcl.runtime.precision import NETWORK, as_network, network_scope
from pmcl.search.scales import AbstractScale
from pmcl.search.search import Place, Search

_LOG_2PI = float(np.log(2 * np.pi))


class Network(eqx.Module):
    """Specification of the whole network: summary and flow.

    Attributes
    ----------
    summary : AbstractSummary
    flow : AbstractFlow
    whiten : bool
        Whether the flow learns what is left of each posterior once its mode and scale are known,
        which a search of the compiled density finds; else it learns all of it from the data.
    """

    summary: AbstractSummary = DeepSet()
    flow: AbstractFlow = CouplingFlow()
    whiten: bool = True


class Context(NamedTuple):
    """What the posterior of one dataset is made of.

    Attributes
    ----------
    vector : Array of shape (context,), or (mode, context)
        What the flow sees: h(x), what goes past the summary network, and of a whitened network what
        the search found at each mode.
    place : Place, optional
        Where the posterior is; None: the flow has to know.
    """

    vector: Array
    place: Place | None


class Amortizer(eqx.Module):
    """q(z | h(x)) with the standardisation of inputs and parameters.

    Everything acts on one dataset. `eps` is the base draw of a standard normal, so that
    ``z, log_q = transform(eps, context)`` is the reparametrised draw T(eps; h(x)). With a search
    z = loc + A u with u = c sinh(v / c), and the flow is one of v (whitening); where the search
    keeps several modes q is the mixture of such flows, one at each mode, weighed by evidence and by
    what `weigher` learns of it; for draws, by the density (`contexts.weighed`).
    """

    summary: AbstractSummaryNetwork
    flow: AbstractBijection
    row_scaling: Scaling
    fixed_scaling: Scaling
    z_scaling: Scaling
    inputs: InputLayout
    dim: int = eqx.field(static=True)
    search: Search | None = None
    weigher: eqx.nn.Linear | None = None

    @property
    def noise(self) -> int:
        """Length of `eps`: the last number chooses the mode where there are several."""
        return self.dim + (self.modes > 1)

    @property
    def modes(self) -> int:
        """Modes of which q is a mixture."""
        return 1 if self.search is None else self.search.modes

    def context(
        self, data: dict[str, Array], mask: Mask | None = None, place: Place | None = None
    ) -> Context:
        """Context of one dataset; `mask` says what of it counts.

        `place` is what the search found, where it is known; else it is searched for here.
        """
        rows, fixed, counts = self.standardised(data, mask)
        parts = [fixed]
        if rows is not None:
            # a summary of the user's own may have made something of double precision
            parts = [self.summary(rows, counts).astype(NETWORK), fixed]
        if self.search is None:
            return Context(jnp.concatenate(parts), None)
        place = self.search(data, mask) if place is None else place
        seen = self.search.seen(place).astype(NETWORK)
        shared = jnp.broadcast_to(jnp.concatenate(parts), (len(seen), sum(map(len, parts))))
        return Context(jnp.concatenate([shared, seen], axis=1), place)

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

    def transform(self, eps: Array, context: Context) -> tuple[Array, Array]:
        """Return z = T(eps; context) and log q(z | context)."""
        eps = eps.astype(NETWORK)
        if context.place is None:
            wild, log_det = self.flow.transform_and_log_det(eps, context.vector)
            u, tamed = _tame(wild)
            z = self.z_scaling.loc + self.z_scaling.scale * u
            return z, _normal(eps) - log_det - tamed - jnp.sum(jnp.log(self.z_scaling.scale))
        if self.modes == 1:
            return self._at_mode(eps, *_mode(context, 0))
        chance = jnp.cumsum(jnp.exp(self.log_weights(context)))
        which = jnp.sum(jax.scipy.special.ndtr(eps[-1]) * chance[-1] > chance[:-1])
        z, _ = self._at_mode(eps[:-1], *_mode(context, which))
        return z, self.log_prob(z, context)

    def draw(self, key: Array, number: int, context: Context) -> tuple[Array, Array]:
        """Draws z of shape (number, dim) and their log q(z | context)."""
        eps = jax.random.normal(key, (number, self.noise), NETWORK)
        return jax.vmap(self.transform, in_axes=(0, None))(eps, context)

    def log_prob(self, z: Array, context: Context) -> Array:
        """log q(z | context)."""
        if context.place is None:
            u = (z.astype(NETWORK) - self.z_scaling.loc) / self.z_scaling.scale
            wild, tamed = _untame(u)
            eps, log_det = self.flow.inverse_and_log_det(wild, context.vector)
            return _normal(eps) + log_det + tamed - jnp.sum(jnp.log(self.z_scaling.scale))
        if self.modes == 1:
            return self._log_prob_at_mode(z, *_mode(context, 0))
        loc, scale, *_ = context.place
        each = jax.vmap(self._log_prob_at_mode, in_axes=(None, 0, 0, 0))(
            z, context.vector, loc, scale
        )
        return jax.nn.logsumexp(self.log_weights(context) + each)

    def _at_mode(
        self, eps: Array, vector: Array, loc: Array, scale: AbstractScale
    ) -> tuple[Array, Array]:
        wild, log_det = self.flow.transform_and_log_det(eps, vector)
        u, stretched = self._asinh.transform_and_log_det(wild.astype(loc.dtype))
        log_q = _normal(eps) - log_det - stretched - scale.log_det()
        return loc + scale.multiply(u), log_q

    def _log_prob_at_mode(self, z: Array, vector: Array, loc: Array, scale: AbstractScale) -> Array:
        v, stretched = self._asinh.inverse_and_log_det(scale.solve(z.astype(loc.dtype) - loc))
        eps, log_det = self.flow.inverse_and_log_det(v.astype(NETWORK), vector)
        return _normal(eps) + log_det + stretched - scale.log_det()

    def log_weights(self, context: Context) -> Array:
        """Log share of each mode."""
        assert context.place is not None
        if self.modes == 1:
            return jnp.zeros(1)
        return jax.nn.log_softmax(context.place.log_weight + self._learned(context))

    def _learned(self, context: Context) -> Array:
        assert self.weigher is not None
        return jax.vmap(self.weigher)(context.vector)[:, 0]

    def with_weights(self, context: Context, log_weight: Array) -> Context:
        """The context with these log shares of the modes."""
        assert context.place is not None
        place = context.place._replace(log_weight=log_weight - self._learned(context))
        return context._replace(place=place)

    def of_modes(self, eps: Array, context: Context) -> tuple[Array, Array]:
        """Draws (mode * number, dim), from each mode those of `eps`, and their log q by mode."""
        assert context.place is not None
        loc, scale, *_ = context.place
        parts = (context.vector, loc, scale)
        drawn = lambda part: jax.vmap(lambda one: self._at_mode(one, *part)[0])(eps)  # noqa: E731
        z = jax.vmap(drawn)(parts).reshape(-1, self.dim)
        each = jax.vmap(self._log_prob_at_mode, in_axes=(None, 0, 0, 0))
        return z, jax.vmap(lambda u: each(u, *parts))(z)

    def whitened_slope(self, slope: Array, context: Context) -> Array:
        """Turn a gradient by z into one in units of the posterior's size, as far as it is known."""
        if context.place is None:
            return slope * self.z_scaling.scale
        *_, scale = _mode(context, 0)
        (found,) = jax.linear_transpose(scale.multiply, slope)(slope)
        return found

    @property
    def _asinh(self) -> Asinh:
        return Asinh((self.dim,))

    def trainable(self) -> "Amortizer":
        """Return a tree of booleans: True where training may change an array."""
        spec = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(
            lambda a: (a.summary, a.flow, a.weigher),
            spec,
            jax.tree.map(eqx.is_inexact_array, (self.summary, self.flow, self.weigher)),
            is_leaf=lambda x: x is None,
        )


def _mode(context: Context, which: Array | int) -> tuple[Array, Array, AbstractScale]:
    """What the flow needs of one mode."""
    assert context.place is not None
    loc, scale, *_ = context.place
    return jax.tree.map(lambda x: jnp.asarray(x)[which], (context.vector, loc, scale))


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
    search: Search | None = None,
) -> Amortizer:
    """Build a network, standardised by prior-predictive draws.

    Parameters
    ----------
    network : Network
    inputs : InputLayout
    z : array of shape (simulations, dim)
    data : dict of arrays of shape (simulations, ...)
    key : Array
    search : Search, optional
        Of a whitened network.
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
    if search is not None:
        others += search.features
    with network_scope():
        network.flow.prepare()
        number = None if rows is None else rows.shape[1]
        modes = 0 if search is None else search.modes
        summary, flow, weigher = _built(network, z.shape[1], number, features, others, key, modes)
    return Amortizer(
        summary=summary,
        flow=flow,
        row_scaling=row_scaling,
        fixed_scaling=fixed_scaling,
        z_scaling=Scaling.moments(z[keep]),
        inputs=inputs,
        dim=z.shape[1],
        search=search,
        weigher=weigher,
    )


@partial(jit, once=True)
def _split(inputs: InputLayout, data: dict[str, Array]) -> tuple[Array | None, Array]:
    return jax.vmap(inputs.split)(data)


@partial(jit, once=True)
def _built(
    network: Network,
    dim: int,
    rows: int | None,
    features: int,
    others: int,
    key: Array,
    modes: int,
) -> tuple[AbstractSummaryNetwork, AbstractBijection, eqx.nn.Linear | None]:
    """Networks of random weights, all made in one program; whitened ones begin as normals."""
    summary_key, flow_key = jax.random.split(key)
    summary, outputs = network.summary.build(features, key=summary_key), 0
    if rows is not None:
        row = jax.ShapeDtypeStruct((rows, features), NETWORK)
        outputs = jax.eval_shape(summary, row, None).shape[0]
    flow = network.flow.build(dim, outputs + others, key=flow_key)
    weigher = None
    if modes:
        flow = as_identity(flow)
    if modes > 1:
        linear = eqx.nn.Linear(outputs + others, 1, key=key)
        weigher = jax.tree.map(jnp.zeros_like, linear)
    return as_network((summary, flow, weigher))
