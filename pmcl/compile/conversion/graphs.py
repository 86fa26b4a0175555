"""PyTensor graphs to pure JAX functions, or to functions on the host: data become arguments."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
from jax import Array
from pymc.pytensorf import collect_default_updates
from pytensor.compile import mode as pytensor_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomGeneratorType

from pmcl.compile.conversion.parameters import zero_where_impossible
from pmcl.compile.conversion.stable import take_logarithms_first
from pmcl.compile.conversion.substitution import expand, substitute
from pmcl.runtime import precision


def shared_inputs(outputs: Sequence[Variable]) -> list[SharedVariable]:
    """Shared variables that `outputs` depend on, in graph order."""
    return [v for v in ancestors(outputs) if isinstance(v, SharedVariable)]


def bind(
    outputs: Sequence[Variable], replacements: Mapping[Variable, Variable]
) -> tuple[list[Variable], list[SharedVariable]]:
    """Replace shared data by `replacements`, and any other shared data by its present value.

    `pymc.sampling.jax.get_jaxified_graph` bakes every shared variable in, inputs included, so the
    replacement has to come first.

    Returns
    -------
    outputs, generators
        The new outputs, and the random generators they still depend on.
    """
    swap: dict[Variable, Variable] = {}
    generators: list[SharedVariable] = []
    # A replacement may itself be a graph (a dim's length is an input's shape), so look behind it.
    for var in shared_inputs([*outputs, *replacements.values()]):
        if isinstance(var.type, RandomGeneratorType):
            generators.append(var)
        elif var in replacements:
            swap[var] = replacements[var]
        else:
            swap[var] = pt.constant(var.get_value(borrow=True), name=var.name)
    for var, new in replacements.items():
        swap.setdefault(var, new)
    bound = list(graph_replace(list(outputs), swap, strict=False))
    reached = {*ancestors(bound)}
    return bound, [g for g in generators if g in reached]


def to_jax(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable[..., tuple]:
    """Compile a PyTensor graph to one pure JAX function of `inputs`, returning a tuple."""
    import pytensor.link.jax.dispatch  # noqa: F401  (registers the conversions)
    from pytensor.link.jax.dispatch import jax_funcify

    fgraph = FunctionGraph(inputs=list(inputs), outputs=list(outputs), clone=True)
    with warnings.catch_warnings():
        # PyTensor warns of each check that JAX cannot raise.
        warnings.filterwarnings("ignore", message=".*CheckAndRaise.*")
        warnings.filterwarnings("ignore", message=".*Skipping.*")
        expand(fgraph, to_jax)
        zero_where_impossible(fgraph)
        take_logarithms_first(fgraph)
        pytensor_mode.JAX.optimizer.rewrite(fgraph)
        substitute(fgraph)
        function = jax_funcify(fgraph)

    def call(*arguments: object) -> tuple:
        result = function(*arguments)
        return result if isinstance(result, tuple) else tuple(result or ())  # None: no outputs

    return call


class ShapedFunction:
    """A PyTensor graph as a pure JAX function, compiled once for each set of input shapes.

    JAX needs the lengths of loops, splits and new arrays when it traces. Given the inputs' shapes
    PyTensor works them out, and a trace knows its shapes; JAX compiles anew for new ones anyway.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self._compiled: dict[tuple[tuple[int, ...], ...], Callable[..., tuple]] = {}

    def __call__(self, *arrays: Array) -> tuple:
        shapes = tuple(tuple(array.shape) for array in arrays)
        if shapes not in self._compiled:
            # The constants of the graph must not become part of a trace that is going on.
            with jax.ensure_compile_time_eval(), precision.scope():
                self._compiled[shapes] = self._compile(shapes)
        # a constant, such as a flat density's, is a Python number
        return tuple(map(jax.numpy.asarray, self._compiled[shapes](*arrays)))

    def with_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> "ShapedFunction":
        """Return the same graph for inputs, by position, of shapes that their types do not allow.

        Raises
        ------
        TypeError, ValueError
            If an operation of the graph does not take such inputs.
        """
        inputs = list(self.inputs)
        for i, shape in shapes.items():
            inputs[i] = inputs[i].type.clone(shape=shape)(name=inputs[i].name)
        swap = {old: new for old, new in zip(self.inputs, inputs, strict=True) if old is not new}
        return ShapedFunction(inputs, clone_replace(self.outputs, swap, rebuild_strict=False))

    def _compile(self, shapes: Sequence[tuple[int, ...]]) -> Callable[..., tuple]:
        inputs = [
            v.type.clone(shape=shape)(name=v.name)
            for v, shape in zip(self.inputs, shapes, strict=True)
        ]
        swap = dict(zip(self.inputs, inputs, strict=True))
        return to_jax(inputs, graph_replace(self.outputs, swap, strict=False))


def random_states(key: Array, n: int) -> list[dict[str, Array]]:
    """Make `n` independent values for random generators that are inputs of a JAX function."""
    # The dispatched samplers read a raw key from the state and write the next one back.
    return [{"jax_state": jax.random.key_data(k)} for k in jax.random.split(key, n)] if n else []


def to_host(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    generators: Sequence[SharedVariable] | None = None,
) -> Callable[[np.random.Generator], Callable[..., list[np.ndarray]]]:
    """Compile a PyTensor graph to NumPy calls: seed it, then call it with `inputs`' values.

    The function has random generators of its own: the model's are not touched; all that there are
    by default. Values have to be arrays of the inputs' dtypes.
    """
    if generators is None:
        shared = shared_inputs(list(outputs))
        generators = [v for v in shared if isinstance(v.type, RandomGeneratorType)]
    own = {g: pytensor.shared(np.random.default_rng(0)) for g in generators}
    drawn = list(graph_replace(list(outputs), own, strict=False)) if own else list(outputs)
    function = pytensor.function(
        list(inputs),
        drawn,
        updates=collect_default_updates(drawn, inputs=list(inputs)),
        on_unused_input="ignore",
        mode=host_mode(),
    )
    function.trust_input = True

    def seeded(rng: np.random.Generator) -> Callable[..., list[np.ndarray]]:
        for generator, child in zip(own.values(), rng.spawn(len(own)), strict=True):
            generator.set_value(child, borrow=True)
        return function

    return seeded


def host_mode() -> pytensor_mode.Mode:
    """How PyTensor runs what stays on the host: NumPy calls, with no compiler in between.

    PyTensor's default, Numba, takes from seconds to minutes to compile a model's simulator. The
    graph is rewritten all the same: it is then that samplers stop copying their generators.
    Fused elementwise operations would be loops in Python.
    """
    return pytensor_mode.Mode(linker="py", optimizer="fast_run").excluding("fusion")


def as_input(value: object, dtype: str) -> Array:
    """Cast a value to a PyTensor dtype, as far as JAX's ambient precision allows."""
    return jax.numpy.asarray(value, dtype=jax.dtypes.canonicalize_dtype(np.dtype(dtype)))
