"""What JAX has no conversion of, replaced in a graph that becomes JAX: samplers, and a spline."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pymc.distributions.continuous import (
    InterpolatedRV,
    MoyalRV,
    RiceRV,
    SkewNormalRV,
    SkewStudentTRV,
    TruncatedNormalRV,
    WaldRV,
)
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.distributions.dist_math import SplineWrapper
from pymc.distributions.multivariate import (
    CARRV,
    ICARRV,
    LKJCorrRV,
    MatrixNormalRV,
    StickBreakingWeightsRV,
    _LKJCholeskyCovRV,
)
from pymc.distributions.truncated import TruncatedRV
from pymc.pytensorf import collect_default_updates, constant_fold
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.scalar.basic import Cast, Log, Log1p
from pytensor.scalar.math import (
    BetaInc,
    BetaIncInv,
    Erfcx,
    GammaIncCInv,
    GammaIncInv,
    Ive,
    Log1mexp,
    Softplus,
)
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random import basic
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT

from pmcl.compile.conversion import samplers, special

type Convert = Callable[[Sequence[Variable], Sequence[Variable]], Callable[..., tuple]]

SAMPLERS: dict[type[RandomVariable], samplers.Draw] = {
    basic.BernoulliRV: samplers.bernoulli,
    basic.BinomialRV: samplers.binomial,
    basic.CategoricalRV: samplers.categorical,
    basic.HyperGeometricRV: samplers.hypergeometric,
    basic.MultinomialRV: samplers.multinomial,
    basic.TriangularRV: samplers.triangular,
    basic.VonMisesRV: samplers.von_mises,
    basic.WeibullRV: samplers.weibull,
    CARRV: samplers.car,
    DiscreteUniformRV: samplers.discrete_uniform,
    ICARRV: samplers.icar,
    InterpolatedRV: samplers.interpolated,
    MatrixNormalRV: samplers.matrix_normal,
    MoyalRV: samplers.moyal,
    RiceRV: samplers.rice,
    SkewNormalRV: samplers.skew_normal,
    SkewStudentTRV: samplers.skew_student_t,
    StickBreakingWeightsRV: samplers.stick_breaking_weights,
    TruncatedNormalRV: samplers.truncated_normal,
    WaldRV: samplers.wald,
}

SPECIAL: dict[type | None, tuple[str, Callable]] = {
    BetaInc: ("betainc", special.betainc),
    Erfcx: ("erfcx", special.erfcx),
    Ive: ("ive", special.ive),
    # PyTensor's has the right values, but no gradient where exp(|x|) overflows: 88 in single.
    Softplus: ("softplus", jax.nn.softplus),
}

# In the outermost graph, and in loops that are converted anew anyway.
LOGARITHMS: dict[type | None, tuple[str, Callable]] = {
    Log: ("log", special.log),
    Log1p: ("log1p", special.log1p),
    Log1mexp: ("log1mexp", special.log1mexp),
}


class JaxOp(Op):
    """A node that runs a JAX function of its inputs, generators among them."""

    def __init__(self, name: str, function: Callable) -> None:
        self.name, self.function = name, function

    def __str__(self) -> str:
        return f"JaxOp({self.name})"

    def in_place_of(self, node: Apply) -> list[Variable]:
        """Outputs of this operation at the inputs of `node`, with the types of its outputs."""
        return Apply(self, node.inputs, [o.type() for o in node.outputs]).outputs

    def perform(self, node: Apply, inputs: Sequence, outputs: Sequence) -> None:
        raise NotImplementedError(f"{self} runs in JAX only")


def expand(fgraph: FunctionGraph, convert: Convert) -> None:
    """Replace distributions that are graphs themselves, before these become parts of the whole.

    PyMC samples a truncated distribution that has no inverse distribution function by a loop
    without an end that is known, and an LKJ matrix by a loop over arrays that grow: JAX has
    neither.
    """
    found = True
    while found:
        found = False
        for node in fgraph.toposort():
            if isinstance(node.op, TruncatedRV) and _cannot_invert(node.op.fgraph):
                new = _truncated(node, convert).in_place_of(node)
            elif isinstance(node.op, LKJCorrRV | _LKJCholeskyCovRV):
                new = _lkj(node).in_place_of(node)
            elif isinstance(node.op, OpFromGraph) and (
                _has_symbolic(node.op.fgraph) or _inside(node.op.fgraph)
            ):
                new = inline_ofg_node(node)
            else:
                continue
            fgraph.replace_all(list(zip(node.outputs, new, strict=True)), import_missing=True)
            found = True
            break


def substitute(fgraph: FunctionGraph) -> None:
    """Replace random variables, and what else JAX has no conversion of, in loops too."""
    _register()
    for node in fgraph.toposort():
        if type(node.op) in SAMPLERS:
            function = _random_variable(node, SAMPLERS[type(node.op)])
            new = JaxOp(str(node.op.name), function).in_place_of(node)
        elif _scalar(node) in SPECIAL:
            new = JaxOp(*SPECIAL[_scalar(node)]).in_place_of(node)
        elif _scalar(node) in LOGARITHMS and node.inputs[0].type.dtype.startswith("float"):
            new = JaxOp(*LOGARITHMS[_scalar(node)]).in_place_of(node)
        elif _real_of_integers(node):
            # JAX alone would take 32-bit integers' functions in single precision
            dtype = node.outputs[0].type.dtype
            new = node.op.make_node(*(v.astype(dtype) for v in node.inputs)).outputs
        elif isinstance(node.op, SplineWrapper):
            new = JaxOp("spline", _linear_spline(node.op)).in_place_of(node)
        elif isinstance(node.op, Scan) and _inside(node.op.fgraph):
            inner = node.op.fgraph.unfreeze()
            substitute(inner)
            new = node.op.clone_with_inner_graph(inner).make_node(*node.inputs).outputs
        elif isinstance(node.op, HasInnerGraph) and _inside(node.op.fgraph):
            raise NotImplementedError(
                f"no JAX conversion of {_inside(node.op.fgraph)} in {node.op}"
            )
        else:
            continue
        fgraph.replace_all(list(zip(node.outputs, new, strict=True)), import_missing=True)


def _register() -> None:
    # For a class of our own: PyTensor's dispatch of its own stays as it is.
    from pytensor.link.jax.dispatch import jax_funcify

    jax_funcify.register(JaxOp, lambda op, **_: op.function)


def _scalar(node: Apply) -> type | None:
    """The scalar function that a node applies to every element."""
    return type(node.op.scalar_op) if isinstance(node.op, Elemwise) else None


def _real_of_integers(node: Apply) -> bool:
    """Whether a node makes real numbers of integers, by more than taking them as such."""
    scalar = _scalar(node)
    return (
        scalar is not None
        and scalar is not Cast
        and all(np.dtype(o.type.dtype).kind == "f" for o in node.outputs)
        and all(np.dtype(v.type.dtype).kind in "biu" for v in node.inputs)
    )


def _replaceable(node: Apply) -> str:
    """Name what `substitute` puts something else in the place of."""
    if type(node.op) in SAMPLERS:
        return str(node.op.name)
    if isinstance(node.op, SplineWrapper):
        return "spline"
    return SPECIAL[_scalar(node)][0] if _scalar(node) in SPECIAL else ""


def _inside(fgraph: FunctionGraph) -> str:
    for node in fgraph.apply_nodes:
        if _replaceable(node):
            return _replaceable(node)
        if isinstance(node.op, HasInnerGraph) and _inside(node.op.fgraph):
            return _inside(node.op.fgraph)
    return ""


def _has_symbolic(fgraph: FunctionGraph) -> bool:
    return any(
        isinstance(node.op, TruncatedRV | LKJCorrRV | _LKJCholeskyCovRV)
        or (isinstance(node.op, OpFromGraph) and _has_symbolic(node.op.fgraph))
        for node in fgraph.apply_nodes
    )


def _cannot_invert(fgraph: FunctionGraph) -> bool:
    """Whether a truncated distribution is sampled by rejection, or by an inverse JAX lacks."""
    return any(
        (isinstance(node.op, Scan) and node.op.info.as_while)
        or _scalar(node) in (GammaIncInv, GammaIncCInv, BetaIncInv)
        for node in fgraph.apply_nodes
    )


def _next(state: dict) -> tuple[dict, Array]:
    """Advance a generator as PyTensor's samplers in JAX do; return a key beside it."""
    following, key = jax.random.split(state["jax_state"], 2)
    return {**state, "jax_state": following}, key


def _known(v: Variable) -> np.ndarray | None:
    """Give the value of what does not depend on anything."""
    if isinstance(v.type, NoneTypeT):
        return None
    (value,) = constant_fold([v], raise_not_constant=False)
    return None if isinstance(value, Variable) else np.asarray(value)


def _static(shape: Sequence[int | None], size: Variable) -> tuple[int, ...] | None:
    """Give a batch shape that is known before the graph runs."""
    if None not in shape:
        return tuple(int(n) for n in shape if n is not None)
    value = _known(size)
    return None if value is None else tuple(int(n) for n in value)


def _random_variable(node: Apply, draw: samplers.Draw) -> Callable[..., tuple]:
    """Make the JAX function of one random variable's inputs."""
    op: RandomVariable = node.op
    batch = op.batch_ndim(node)
    static = _static(node.outputs[1].type.shape[:batch], node.inputs[1])
    dtype = node.outputs[1].type.dtype
    fixed = [v.data if isinstance(v, Constant) else None for v in node.inputs[2:]]

    def function(state: dict, size: object, *parameters: Array) -> tuple:
        state, key = _next(state)
        # A parameter that gives a shape has to be known now; in a trace it is not.
        given = [
            p if f is None or op.ndims_params[i] else f
            for i, (p, f) in enumerate(zip(parameters, fixed, strict=True))
        ]
        shape = static
        if shape is None and size is None:
            cut = zip(parameters, op.ndims_params, strict=True)
            shape = jnp.broadcast_shapes(*(jnp.shape(p)[: jnp.ndim(p) - n] for p, n in cut))
        elif shape is None:
            shape = tuple(int(n) for n in size)  # type: ignore[attr-defined]
        return state, draw(key, shape, *given).astype(jax.dtypes.canonicalize_dtype(dtype))

    return function


def _linear_spline(op: SplineWrapper) -> Callable[[Array], Array]:
    """The density of `pm.Interpolated`: straight lines between its points, zero outside."""
    if op.spline.get_coeffs().shape != op.spline.get_knots().shape:
        raise NotImplementedError("a spline that is not linear")
    knots, heights = jnp.asarray(op.spline.get_knots()), jnp.asarray(op.spline.get_coeffs())
    return lambda x: jnp.interp(x, knots, heights, left=0.0, right=0.0)


def _lkj(node: Apply) -> JaxOp:
    """Cholesky factors of correlations, or of covariances packed by rows (the two have PyMC's)."""
    scaled = isinstance(node.op, _LKJCholeskyCovRV)
    size, n = (None, node.inputs[1]) if scaled else node.inputs[1:3]
    n = _known(n)
    if n is None:
        raise NotImplementedError("the size of an LKJ matrix has to be a constant")
    order = int(n)
    dtype = node.outputs[1].type.dtype
    static = () if scaled else _static(node.outputs[1].type.shape[:-2], size)
    if static is None:
        raise NotImplementedError("the shape of an LKJ matrix has to be known to be drawn in JAX")

    def function(state: dict, *rest: Array) -> tuple:
        state, key = _next(state)
        eta = rest[1] if scaled else rest[2]
        shape = rest[2].shape[:-1] if scaled else static
        L = samplers.lkj_cholesky(key, shape, order, jnp.squeeze(eta))
        if scaled:
            row, column = jnp.tril_indices(order)
            L = (rest[2][..., :, None] * L)[..., row, column]
        return state, L.astype(jax.dtypes.canonicalize_dtype(dtype))

    return JaxOp("lkj", function)


def _truncated(node: Apply, convert: Convert) -> JaxOp:
    """Redraw what lies outside, as PyMC does and as often; what is left then stays outside."""
    op: TruncatedRV = node.op
    inner, outer = [], []
    for i, v in enumerate(node.inputs[:-2]):
        known = None
        if isinstance(v.type, TensorType) and v.type.ndim == 1 and v.type.dtype == "int64":
            known = _known(v)  # most likely its size
        if known is not None:
            inner.append(v.type.make_constant(known))
        elif isinstance(v, Constant):
            inner.append(v)
        else:
            inner.append(v.type())
            outer.append(i)
    draw = op.base_rv_op.make_node(*inner).default_output()
    generators = [v for v in inner if isinstance(v.type, RandomType)]
    updates = collect_default_updates(draw, inputs=inner, must_be_shared=False)
    once = convert([inner[i] for i in outer], [draw, *(updates[g] for g in generators)])
    random = [j for j, i in enumerate(outer) if inner[i] in generators]

    def function(*inputs: Any) -> tuple:
        *arguments, lower, upper = inputs
        given = [arguments[i] for i in outer]

        def redraw(state: tuple) -> tuple:
            tries, reject, x, states = state
            for j, s in zip(random, states, strict=True):
                given[j] = dict(s)
            new, *states = once(*given)
            x = jnp.where(reject, new, x)
            keys = tuple({"jax_state": s["jax_state"]} for s in states)
            return tries + 1, (x < lower) | (x > upper), x, keys

        start = tuple({"jax_state": given[j]["jax_state"]} for j in random)  # type: ignore[index]
        like = jax.eval_shape(lambda: once(*given)[0])
        x = jnp.zeros(like.shape, like.dtype)
        first = (jnp.zeros((), int), jnp.ones(like.shape, bool), x, start)
        *_, x, states = jax.lax.while_loop(
            lambda s: jnp.any(s[1]) & (s[0] < op.max_n_steps), redraw, first
        )
        return x, *states

    return JaxOp(f"truncated {op.base_rv_op}", function)
