"""JAX samplers that stand in for PyTensor's where those are missing or wrong."""

import jax
import jax.numpy as jnp
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.tensor.random.basic import BinomialRV, CategoricalRV
from pytensor.tensor.random.op import RandomVariable


class Categorical(CategoricalRV):
    """PyTensor 3.3 hands `logit(p)` to JAX where it wants `log(p)`, which changes the odds."""


class Binomial(BinomialRV):
    """PyTensor 3.3 samples it through NumPyro only; JAX has a sampler of its own."""


REPLACEMENTS: dict[type[RandomVariable], type[RandomVariable]] = {
    CategoricalRV: Categorical,
    BinomialRV: Binomial,
}


def replace_samplers(fgraph: FunctionGraph) -> None:
    """Put the samplers of this module in the place of PyTensor's, in one graph.

    Raises
    ------
    NotImplementedError
        If one is inside a loop or another inner graph, where it is not replaced.
    """
    _register()
    for node in fgraph.toposort():
        new = REPLACEMENTS.get(type(node.op))
        if new is not None:
            outputs = new(dtype=node.op.dtype).make_node(*node.inputs).outputs
            fgraph.replace_all(list(zip(node.outputs, outputs, strict=True)), import_missing=True)
        elif isinstance(node.op, HasInnerGraph) and _inside(node.op.fgraph):
            raise NotImplementedError(f"no JAX sampler of {_inside(node.op.fgraph)} in {node.op}")


def _inside(fgraph: FunctionGraph) -> str:
    for node in fgraph.apply_nodes:
        if type(node.op) in REPLACEMENTS:
            return node.op.name
        if isinstance(node.op, HasInnerGraph) and _inside(node.op.fgraph):
            return _inside(node.op.fgraph)
    return ""


def _register() -> None:
    # Only for this module's own classes: PyTensor's dispatch of its own stays as it is.
    from pytensor.link.jax.dispatch.random import jax_sample_fn

    jax_sample_fn.register(Categorical, lambda op, node: _categorical)
    jax_sample_fn.register(Binomial, lambda op, node: _binomial)


def _categorical(key, size, dtype, p):  # type: ignore[no-untyped-def]
    return jax.random.categorical(key, jnp.log(p), shape=size).astype(dtype)


def _binomial(key, size, dtype, n, p):  # type: ignore[no-untyped-def]
    shape = jnp.broadcast_shapes(jnp.shape(n), jnp.shape(p)) if size is None else tuple(size)
    return jax.random.binomial(key, n, p, shape=shape).astype(dtype)
