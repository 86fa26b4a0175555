"""What distributions of rows are told by z: their parameters, on scales without bounds.

Every observed variable `y ~ F(theta(z, data))` has its predictors eta, which are theta through a
link (the logarithm of a standard deviation, the log odds of a probability). The likelihood is
smooth and low-dimensional in them, whatever theta is of z.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jax import Array
from pymc.logprob.basic import logp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.special import Softmax
from scipy.special import expit, softmax

from pmcl.compile import variables
from pmcl.compile.conversion import graphs
from pmcl.compile.function import Dataset
from pmcl.compile.model import CompiledModel

# Links of the parameters that PyTensor's operations have, in their order.
LINKS: dict[str, tuple[str, ...]] = {
    "normal": ("identity", "log"),
    "lognormal": ("identity", "log"),
    "laplace": ("identity", "log"),
    "logistic": ("identity", "log"),
    "t": ("log", "identity", "log"),
    "bernoulli": ("logit",),
    "binomial": ("", "logit"),  # the number of trials is no predictor
    "categorical": ("log",),
    "poisson": ("log",),
    "negative_binomial": ("log", "logit"),
    "exponential": ("log",),
    "gamma": ("log", "log"),
    "beta": ("log", "log"),
    "weibull": ("log", "log"),
}
# How values are drawn of those that PyMC makes of other distributions.
_DRAWN: dict[str, Callable] = {
    "weibull": lambda rng, alpha, beta, size: beta * rng.weibull(alpha, size)
}
_LEAST, _MOST = 1e-300, 1 - 2.0**-53  # probabilities


@dataclass(frozen=True, eq=False)
class Predictor:
    """The predictors of one observed variable.

    Attributes
    ----------
    name : str
        Of the observed variable.
    kind : str
        Of its distribution, one of `LINKS`.
    told : tuple of int
        Which of the distribution's parameters z has a part in.
    """

    name: str
    kind: str
    told: tuple[int, ...]
    _density: graphs.ShapedFunction = field(repr=False)
    _draw: Callable = field(repr=False)

    @property
    def links(self) -> tuple[str, ...]:
        """Links of those."""
        return tuple(LINKS[self.kind][i] for i in self.told)

    def log_density(self, eta: Array, others: tuple[Array, ...], y: Array) -> Array:
        """Log density of every value (nats, shape (value,)).

        Parameters
        ----------
        eta : Array of shape (value, predictor)
        others : tuple of arrays of shape (value,)
            The parameters that z has no part in.
        y : Array of shape (value,)
        """
        parts = [eta] if self.kind == "categorical" else list(jnp.moveaxis(eta, -1, 0))
        return self._density(*parts, *others, y)[0]

    def draw(
        self, eta: np.ndarray, others: tuple[np.ndarray, ...], rng: np.random.Generator
    ) -> np.ndarray:
        """Draw values, shape (...), from predictors of shape (..., predictor)."""
        if self.kind == "categorical":
            p = softmax(eta, axis=-1).reshape(-1, eta.shape[-1])
            return self._draw(rng, p, None).reshape(eta.shape[:-1])
        linked, rest = list(np.moveaxis(eta, -1, 0)), list(others)
        theta = [
            _unlinked(linked.pop(0), link) if i in self.told else rest.pop(0)
            for i, link in enumerate(LINKS[self.kind])
        ]
        return np.asarray(self._draw(rng, *theta, None))


@dataclass(frozen=True, eq=False)
class Predictors:
    """The predictors of all observed variables.

    Attributes
    ----------
    compiled : CompiledModel
    parts : tuple of Predictor
    """

    compiled: CompiledModel = field(repr=False)
    parts: tuple[Predictor, ...]
    _parameters: graphs.ShapedFunction = field(repr=False)
    _names: tuple[str, ...] = field(repr=False)

    def __call__(self, z: Array, dataset: Dataset) -> list[tuple[Array, tuple[Array, ...]]]:
        """Predictors, shape (*terms, predictor), and other parameters, shape (*terms), at z."""
        c = self.compiled
        infos = {i.name: i for i in c.data}
        read = c._read([*c.observed, *c.covariates], dataset)
        given = dict(zip(infos, read, strict=True))
        found = list(self._parameters(*c.split(z), *(given[n] for n in self._names)))
        results = []
        for part in self.parts:
            shape = given[part.name].shape
            linked = [found.pop(0) for _ in part.told]
            if part.kind == "categorical":
                eta = jnp.broadcast_to(linked[0], (*shape, linked[0].shape[-1]))
            else:
                eta = jnp.stack([jnp.broadcast_to(v, shape) for v in linked], axis=-1)
            others = len(LINKS[part.kind]) - len(part.told)
            results.append((eta, tuple(jnp.broadcast_to(found.pop(0), shape)
                                       for _ in range(others))))  # fmt: skip
        return results


def predictors(compiled: CompiledModel) -> Predictors | str:
    """Find the predictors of a model; or say, in words, why there are none."""
    return compiled.keep("predictors", lambda: _find(compiled))


def _find(compiled: CompiledModel) -> Predictors | str:
    model = compiled.model
    for rv in model.observed_RVs:
        op = rv.owner.op
        drawn = isinstance(op, RandomVariable) or op.name in _DRAWN
        if not drawn or op.name not in LINKS:
            kind = getattr(op, "name", None) or type(op).__name__
            return f"{rv.name!r} is of {kind!r}, which is none of {sorted(LINKS)}"
    if compiled.potentials:
        return f"{compiled.potentials[0].name!r} is a Potential that depends on data"
    data = [model[i.name] for i in compiled.covariates]
    inputs = {var: var.type(name=var.name) for var in data}
    observed = {
        rv: pt.TensorType(rv.type.dtype, (None,) * rv.type.ndim)(f"{rv.name}")
        for rv in model.observed_RVs
    }
    symbols: dict[Variable, Variable] = {**inputs, **observed}
    sized = variables.resize_observed(model, {rv: tuple(v.shape) for rv, v in observed.items()})
    fixed = variables.fixed_lengths(model, data, sized)
    lengths = variables.varying_lengths(model, symbols, fixed)
    lengths |= variables.held_as(model, {rv.name: v for rv, v in observed.items()})
    values, free = list(model.value_vars), list(model.free_RVs)
    given = dict(zip(free, model.replace_rvs_by_values(free), strict=True))
    parts, outputs = [], []
    for rv, y in observed.items():
        node = sized[rv].owner
        swap = {sized[v]: value for v, value in given.items()}
        swap |= {sized[v]: symbol for v, symbol in observed.items() if v is not rv}
        raw = list(node.op.dist_params(node))
        theta = list(graph_replace(raw, swap, strict=False))
        kind = node.op.name
        told = tuple(
            i
            for i, (v, link) in enumerate(zip(theta, LINKS[kind], strict=True))
            if {*ancestors([v])} & {*values}
        )
        if any(not LINKS[kind][i] for i in told) or not told:
            return f"the distribution of {rv.name!r} has a parameter that must not depend on z"
        outputs += [_linked(theta[i], kind, LINKS[kind][i]) for i in told]
        outputs += [v for i, v in enumerate(theta) if i not in told]
        density = _density(node, kind, told, y)
        draw = _DRAWN[kind] if kind in _DRAWN else node.op.rng_fn
        parts.append(Predictor(rv.name, kind, told, density, draw))
    bound, generators = graphs.bind(outputs, {**inputs, **lengths})
    if generators:
        return "a parameter of the likelihood is drawn at random"
    reached = {*ancestors(bound)}
    used = [s for s in symbols.values() if s in reached]
    call = graphs.ShapedFunction([*values, *used], bound)
    names = tuple(str(s.name) for s in used)
    return Predictors(compiled.without_model(), tuple(parts), call, names)


def _linked(theta: Variable, kind: str, link: str) -> Variable:
    """The parameter on a scale without bounds.

    Probabilities that round to 0 or 1 (those of a probit far out, say) have no finite log odds, and
    no slopes of them; they stop before. Of sigmoids and softmaxes PyTensor finds the exact ones.
    """
    bounded = link == "logit" or kind == "categorical"
    if bounded and not _is_exact(theta):
        theta = pt.clip(theta, _LEAST, 1.0 if link == "log" else _MOST)
    if link == "log":
        return pt.log(theta)
    if link == "logit":
        return pt.log(theta) - pt.log1p(-theta)
    return theta


def _is_exact(theta: Variable) -> bool:
    """Whether a probability is a sigmoid or a softmax, or entries of one."""
    while theta.owner is not None and not isinstance(theta.owner.op, Elemwise | Softmax):
        theta = theta.owner.inputs[0]
    op = None if theta.owner is None else theta.owner.op
    return isinstance(op, Softmax) or isinstance(getattr(op, "scalar_op", None), Sigmoid)


def _unlinked(eta: np.ndarray, link: str) -> np.ndarray:
    return {"log": np.exp, "logit": expit, "identity": np.asarray}[link](eta)


def _density(node, kind: str, told: tuple[int, ...], y: Variable) -> graphs.ShapedFunction:  # noqa: ANN001
    """Log density of values, as vectors, by their predictors and other parameters."""
    dtype = "float64"
    etas: list[Variable] = []
    others: list[Variable] = []
    theta: list[Variable] = []
    for i, link in enumerate(LINKS[kind]):
        if i not in told:
            theta.append(pt.vector(f"theta {i}", dtype=dtype))
            others.append(theta[-1])
            continue
        eta = pt.matrix(f"eta {i}", dtype=dtype) if kind == "categorical" else pt.vector(
            f"eta {i}", dtype=dtype
        )  # fmt: skip
        etas.append(eta)
        if kind == "categorical":
            theta.append(pt.special.softmax(eta, axis=-1))
        else:
            inverse = {"log": pt.exp, "logit": pt.sigmoid, "identity": lambda v: v}
            theta.append(inverse[link](eta))
    value = pt.vector("y", dtype=y.type.dtype)
    if isinstance(node.op, RandomVariable):
        made = node.op.make_node(node.inputs[0], None, *theta).outputs[1]
    else:
        made = type(node.op).rv_op(*theta)
    return graphs.ShapedFunction([*etas, *others, value], [logp(made, value)])
