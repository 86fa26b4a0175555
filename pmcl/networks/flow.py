"""Specifications of the conditional flow: flowjax's bijections from a standard normal to z."""

from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.bijections import (
    AbstractBijection,
    Affine,
    Chain,
    Coupling,
    MaskedAutoregressive,
    RationalQuadraticSpline,
)
from flowjax.distributions import StandardNormal
from flowjax.flows import coupling_flow, masked_autoregressive_flow
from flowjax.utils import get_ravelled_pytree_constructor
from jax import Array
from paramax import NonTrainable, Parameterize

from pmcl.runtime.jitting import jit
from pmcl.runtime.precision import network_scope


def _elu(x: Array) -> Array:
    # jax.nn.elu calls expm1, far slower, for digits near zero that float32 has no use for.
    return jnp.where(x > 0, x, jnp.exp(jnp.minimum(x, 0.0)) - 1.0)


_ACTIVATIONS = {
    "elu": _elu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "mish": jax.nn.mish,
    "tanh": jnp.tanh,
}


class AbstractFlow(eqx.Module):
    """A specification of a conditional flow: hyper-parameters only."""

    def prepare(self) -> None:
        """Make what cannot be made inside jit, where :meth:`build` is called."""

    @abstractmethod
    def build(self, dim: int, context: int, *, key: Array) -> AbstractBijection:
        """Build the bijection eps -> z for `dim` parameters given a context vector."""


def _bounded(log_scale: Array) -> Array:
    # Scales from e^-7 to e^7: posteriors far narrower than the prior, but never zero or infinite.
    return 7.0 * jnp.tanh(log_scale / 7.0)


def _bounded_exp(log_scale: Array) -> Array:
    return jnp.exp(_bounded(log_scale))


@cache
def _spline(knots: int) -> tuple[AbstractBijection, Callable]:
    """Transform a scalar z -> eps: bring it to unit scale, then bend it by a spline on (-5, 5).

    And what makes one of numbers that a network gives.
    """
    with network_scope():  # it is kept, so whoever asks first must not decide the precision
        spline = _first(knots)
        made, _ = get_ravelled_pytree_constructor(
            spline,
            filter_spec=eqx.is_inexact_array,
            is_leaf=lambda leaf: isinstance(leaf, NonTrainable),
        )
    return spline, made


@partial(jit, once=True)
def _first(knots: int) -> AbstractBijection:
    affine = eqx.tree_at(
        lambda a: a.scale,
        Affine(),
        Parameterize(_bounded_exp, jnp.zeros(())),
        is_leaf=lambda x: x is None,
    )
    # The interval has to be an int: a float would become a float64 array where x64 is on.
    return Chain([affine, RationalQuadraticSpline(knots=knots, interval=5)])


def _closed(flow: AbstractBijection, knots: int) -> AbstractBijection:
    """Let all layers make their splines by one function, in which nothing of a trace is left."""
    kinds = Coupling | MaskedAutoregressive

    def close(layer: AbstractBijection) -> AbstractBijection:
        if not isinstance(layer, kinds):
            return layer
        return eqx.tree_at(lambda c: c.transformer_constructor, layer, _spline(knots)[1])

    return jax.tree.map(close, flow, is_leaf=lambda x: isinstance(x, kinds))


class ContextAffine(AbstractBijection):
    """z = loc(c) + L(c) u with a lower triangular L: a Gaussian whose parameters the context gives.

    They do not depend on u, so they are computed once a dataset, however many draws: the cheapest
    way to put the flow where the posterior is, with its correlations. Above `full` dims L is
    diagonal.
    """

    shape: tuple[int, ...]
    cond_shape: tuple[int, ...] | None
    full: bool
    net: eqx.nn.MLP

    def __init__(self, dim: int, context: int, width: int, *, full: int = 40, key: Array):
        self.shape, self.cond_shape, self.full = (dim,), (context,), dim <= full
        size = dim * (dim + 3) // 2 if self.full else 2 * dim
        self.net = eqx.nn.MLP(context, size, width, 1, jax.nn.silu, key=key)

    def _parameters(self, condition: Array) -> tuple[Array, Array, Array]:
        dim = self.shape[0]
        out = self.net(condition)
        log_scale = _bounded(out[dim : 2 * dim])
        lower = jnp.diag(jnp.exp(log_scale))
        if self.full:
            # Below the diagonal relative to the row's scale: correlations, not covariances.
            rows, cols = jnp.tril_indices(dim, -1)
            lower = lower.at[rows, cols].set(out[2 * dim :] * jnp.exp(log_scale)[rows])
        return out[:dim], lower, jnp.sum(log_scale)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        assert condition is not None
        loc, lower, log_det = self._parameters(condition)
        return loc + lower @ x, log_det

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        assert condition is not None
        loc, lower, log_det = self._parameters(condition)
        return jax.scipy.linalg.solve_triangular(lower, y - loc, lower=True), -log_det


class Asinh(AbstractBijection):
    """y = c sinh(x / c): as it is near zero, and far out as far as a posterior may reach.

    A spline covers a few units; its image covers tails and other modes hundreds of scales away.
    """

    shape: tuple[int, ...]
    cond_shape: None = None
    width: float = eqx.field(static=True, default=3.0)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        inner = x / self.width
        return self.width * jnp.sinh(inner), jnp.sum(_log_cosh(inner))

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        inner = jnp.arcsinh(y / self.width)
        return self.width * inner, -jnp.sum(_log_cosh(inner))


def _log_cosh(x: Array) -> Array:
    size = jnp.abs(x)
    return size + jnp.log1p(jnp.exp(-2.0 * size)) - jnp.log(2.0)


def as_identity(flow: AbstractBijection) -> AbstractBijection:
    """The same flow with the last layers of its networks at zero: it changes nothing.

    But for the order of the dims, in which a standard normal is the same.
    """
    nets: dict[type, Callable[[Any], eqx.nn.MLP]] = {
        Coupling: lambda layer: layer.conditioner,
        MaskedAutoregressive: lambda layer: layer.masked_autoregressive_mlp,
        ContextAffine: lambda layer: layer.net,
    }

    def still(layer: Any) -> Any:
        if type(layer) not in nets:
            return layer
        last = lambda x: nets[type(layer)](x).layers[-1]  # noqa: E731
        zero = lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x  # noqa: E731
        return eqx.tree_at(last, layer, jax.tree.map(zero, last(layer)))

    return jax.tree.map(still, flow, is_leaf=lambda x: type(x) in nets)


class CouplingFlow(AbstractFlow):
    """Neural spline flow by coupling layers: sampling and density cost the same.

    Attributes
    ----------
    layers : int
        Coupling layers.
    width, depth : int
        Hidden units and hidden layers of each conditioner network.
    knots : int
        Inner knots of the rational-quadratic splines.
    activation : str
        One of elu, relu, silu, gelu, mish, tanh.
    affine : bool
        End with an affine layer whose shift and triangular matrix the context gives: computed
        once a dataset, it takes most of the work off the couplings.
    affine_width : int
        Hidden units of that layer's network.

    References
    ----------
    Durkan et al. (2019), Neural Spline Flows, section 3.
    """

    layers: int = 6
    width: int = 128
    depth: int = 2
    knots: int = 8
    activation: str = "elu"
    affine: bool = True
    affine_width: int = 256

    def prepare(self) -> None:
        _spline(self.knots)

    def build(self, dim: int, context: int, *, key: Array) -> AbstractBijection:
        key, affine = jax.random.split(key)
        flow = coupling_flow(
            key,
            base_dist=StandardNormal((dim,)),
            transformer=_spline(self.knots)[0],
            cond_dim=context,
            flow_layers=self.layers,
            nn_width=self.width,
            nn_depth=self.depth,
            nn_activation=_activation(self.activation),
        )
        couplings = _closed(flow.bijection, self.knots)
        if not self.affine:
            return couplings
        return Chain([couplings, ContextAffine(dim, context, self.affine_width, key=affine)])


class MaskedAutoregressiveFlow(AbstractFlow):
    """Neural spline flow by masked autoregressive layers: fast density, sampling of `dim` passes.

    Attributes are those of :class:`CouplingFlow`, without its last, affine layer.

    References
    ----------
    Papamakarios et al. (2017), Masked Autoregressive Flow, section 3.
    """

    layers: int = 4
    width: int = 128
    depth: int = 2
    knots: int = 8
    activation: str = "elu"

    def prepare(self) -> None:
        _spline(self.knots)

    def build(self, dim: int, context: int, *, key: Array) -> AbstractBijection:
        flow = masked_autoregressive_flow(
            key,
            base_dist=StandardNormal((dim,)),
            transformer=_spline(self.knots)[0],
            cond_dim=context,
            flow_layers=self.layers,
            nn_width=max(self.width, dim),
            nn_depth=self.depth,
            nn_activation=_activation(self.activation),
        )
        return _closed(flow.bijection, self.knots)


def _activation(name: str):  # noqa: ANN202
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation: expected one of {sorted(_ACTIVATIONS)}, got {name!r}.")
    return _ACTIVATIONS[name]
