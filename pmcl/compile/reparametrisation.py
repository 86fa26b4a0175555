"""Local reparametrisation: noise of linear layers' outputs in place of noise of their weights.

Where weights are independent normals, the outputs of `x @ W + b` are too, given x: one draw of them
for each row says as much of a row as a draw of all weights, and rows do not share its noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jax import Array
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor

from pmcl.compile.conversion import graphs
from pmcl.compile.function import Dataset
from pmcl.compile.model import CompiledModel
from pmcl.compile.variables import ValueSlice

# Each entry of what comes out is another entry of what goes in.
_ARRANGE = (DimShuffle, Reshape, Subtensor)
_SMALLEST = 1e-30  # variance: the square root of zero has no derivative


@dataclass(frozen=True, eq=False)
class LocalLikelihood:
    """Log likelihood terms at a draw of the outputs of linear layers, and of the rest of z.

    Attributes
    ----------
    compiled : CompiledModel
    weights : tuple of ValueSlice
        The value variables that are weights of linear layers: their own noise is never drawn.
    deep : bool
        Whether a layer's input comes from another layer: a neural network.

    References
    ----------
    Kingma, Salimans & Welling (2015), Variational dropout and the local reparameterization trick.
    """

    compiled: CompiledModel = field(repr=False)
    weights: tuple[ValueSlice, ...]
    deep: bool
    _terms: graphs.ShapedFunction = field(repr=False)
    _outputs: graphs.ShapedFunction = field(repr=False)

    @cached_property
    def others(self) -> np.ndarray:
        """Entries of z that are no weights of a layer."""
        outside = np.ones(self.compiled.dim, bool)
        for where in self.weights:
            outside[where.start : where.start + where.size] = False
        return np.flatnonzero(outside)

    @property
    def layers(self) -> int:
        """Number of linear layers."""
        return len(self._outputs.outputs)

    def noise(self, dataset: Dataset, key: Array) -> list[Array]:
        """Standard normal noise of every layer's output for a dataset, and of z's other entries."""
        zeros = self.compiled.split(jnp.zeros(self.compiled.dim))
        shapes = [o.shape for o in jax.eval_shape(self._outputs, *zeros, *self._read(dataset))]
        shapes.append(self.others.shape)
        keys = jax.random.split(key, len(shapes))
        dtype = jnp.result_type(float)
        return [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True)]

    def log_likelihood_terms(
        self, mean: Array, sd: Array, dataset: Dataset, noise: Sequence[Array]
    ) -> dict[str, Array]:
        """Log likelihood of every observed variable at the draw that the noise gives.

        Parameters
        ----------
        mean, sd : Array of shape (dim,)
            Of independent normals of z.
        dataset : mapping
        noise : sequence of arrays
            From :meth:`noise`.
        """
        i = self.others
        c = self.compiled
        drawn = c.split(mean.at[i].add(sd[i] * noise[-1]))
        # From the mean itself: of many draws at a time, a layer's first product is then made once.
        means = c.split(mean)
        each = zip(c.values, means, drawn, strict=True)
        values = [still if v in self.weights else moved for v, still, moved in each]
        parts = dict(zip(c.values, c.split(sd), strict=True))
        sds = [parts[w] for w in self.weights]
        found = self._terms(*values, *self._read(dataset), *sds, *noise[:-1])
        return {i.name: term for i, term in zip(self.compiled.observed, found, strict=True)}

    def narrowed(self, compiled: CompiledModel) -> "LocalLikelihood":
        """Return the same for value variables of other shapes: those of a narrowed model."""
        shapes = dict(enumerate(value.shape for value in compiled.values))
        weights = tuple(compiled.values[self.compiled.values.index(w)] for w in self.weights)
        # Inputs: values, data, standard deviations of the weights, noise.
        first = len(self._terms.inputs) - self.layers - len(weights)
        sds = {first + i: weight.shape for i, weight in enumerate(weights)}
        return LocalLikelihood(
            compiled,
            weights,
            self.deep,
            self._terms.with_shapes({**shapes, **sds}),
            self._outputs.with_shapes(shapes),
        )

    def _read(self, dataset: Dataset) -> list[Array]:
        c = self.compiled
        return list(c._read([*c.observed, *c._log_likelihood.data], dataset))


def localise(compiled: CompiledModel) -> LocalLikelihood | None:
    """Find the linear layers of a model's likelihood whose weights are z itself; None without any.

    A layer is `x @ W`, or `x @ W + b`, with W and b value variables (or slices of them, or in
    another shape) that nothing else uses. Whether rows share nothing but these has to be tested at
    data: the graph does not say. Made once of a compiled model, in each precision.
    """
    single = not jax.config.jax_enable_x64
    return compiled.keep(("layers", single), lambda: _localised(compiled.without_model()))


def _localised(compiled: CompiledModel) -> LocalLikelihood | None:
    source = compiled._log_likelihood.call
    fgraph = rewrite_graph(
        FunctionGraph(source.inputs, source.outputs, clone=True), include=("canonicalize",)
    )
    plain, before = fgraph.clone_get_equiv()
    values = fgraph.inputs[: len(compiled.values)]
    position = {value: i for i, value in enumerate(values)}
    chains = {i: chain for i, v in enumerate(values) if (chain := _chain(fgraph, v))}
    found: list[int] = []
    sds: list[Variable] = []
    noises: list[Variable] = []
    outputs: list[Variable] = []
    deep = False

    def squared(i: int) -> Variable:
        """The variances of a weight, arranged as the weight is."""
        sd = values[i].type(name=f"sd of {values[i].name}")
        found.append(i)
        sds.append(sd)
        arranged = sd**2
        for node in chains[i][:-1]:
            arranged = node.op(arranged, *node.inputs[1:])
        return arranged

    for node in fgraph.toposort():
        if not (isinstance(node.op, Dot) and node.inputs[1].type.ndim > 0):
            continue
        i = _weight(node, 1, chains, position)
        if i is None or _weight(node, 0, chains, position) is not None:
            continue
        variance = pt.dot(node.inputs[0] ** 2, squared(i))
        deep = deep or bool({*ancestors([node.inputs[0]])} & {*values})
        end = node
        arranged = _follow(fgraph, node.outputs[0], (DimShuffle, Reshape))
        if (
            arranged
            and _is_sum(arranged[-1])
            and not _repeats([node, *arranged][-2].outputs[0], arranged[-1].outputs[0])
        ):
            for step in arranged[:-1]:
                variance = step.op(variance, *step.inputs[1:])
            end = arranged[-1]
            for k, term in enumerate(end.inputs):
                j = _weight(end, k, chains, position)
                if j is not None and not _repeats(term, end.outputs[0]):
                    variance = variance + squared(j)
        noise = end.outputs[0].type.clone(shape=(None,) * end.outputs[0].type.ndim)(name="noise")
        noises.append(noise)
        outputs.append(before[end.outputs[0]])
        # Another layer may be in the same sum.
        total = end.op(*end.inputs)
        before[total] = before[end.outputs[0]]
        drawn = total + pt.sqrt(pt.maximum(variance, _SMALLEST)) * noise
        fgraph.replace(end.outputs[0], drawn.astype(end.outputs[0].type.dtype), import_missing=True)
    if not found:
        return None
    inputs = fgraph.inputs[: len(source.inputs)]
    return LocalLikelihood(
        compiled,
        tuple(compiled.values[i] for i in found),
        deep,
        graphs.ShapedFunction([*inputs, *sds, *noises], fgraph.outputs),
        graphs.ShapedFunction(plain.inputs, outputs),
    )


def _repeats(term: Variable, total: Variable) -> bool:
    """Whether outputs of one row share an entry of a term: they are not independent then."""
    pairs = zip(term.type.broadcastable[1:], total.type.broadcastable[1:], strict=True)
    return any(repeated and not single for repeated, single in pairs)


def _clients(fgraph: FunctionGraph, var: Variable) -> list[Apply]:
    """Nodes that use the values of a variable, and not its shape alone."""
    nodes = [node for node, _ in fgraph.clients[var]]
    return [node for node in nodes if not isinstance(node.op, Shape | Shape_i)]


def _follow(fgraph: FunctionGraph, var: Variable, through: tuple[type, ...]) -> list[Apply]:
    """Nodes from a variable on, through some kinds, to the first of another; [] if they part."""
    chain: list[Apply] = []
    while True:
        clients = _clients(fgraph, var)
        if len(clients) != 1 or clients[0].inputs.count(var) != 1:
            return []
        chain.append(clients[0])
        if not isinstance(clients[0].op, through) or clients[0].inputs[0] is not var:
            return chain
        var = clients[0].outputs[0]


def _chain(fgraph: FunctionGraph, value: Variable) -> list[Apply]:
    chain = _follow(fgraph, value, _ARRANGE)
    return chain if chain and (isinstance(chain[-1].op, Dot) or _is_sum(chain[-1])) else []


def _is_sum(node: Apply) -> bool:
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Add)


def _weight(
    node: Apply, k: int, chains: dict[int, list[Apply]], position: dict[Variable, int]
) -> int | None:
    """The value variable that an input of a node is an arrangement of."""
    var = node.inputs[k]
    while var not in position and var.owner is not None and isinstance(var.owner.op, _ARRANGE):
        var = var.owner.inputs[0]
    i = position.get(var)
    return i if i in chains and chains[i][-1] is node else None
