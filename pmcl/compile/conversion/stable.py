"""Log densities that lose their digits the way PyTensor writes them, written in another way."""

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import Log
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape
from pytensor.tensor.special import Softmax, log_softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

# They choose or arrange entries, and compute nothing.
SELECTIONS = (DimShuffle, Reshape, Subtensor, AdvancedSubtensor)


def take_logarithms_first(fgraph: FunctionGraph) -> None:
    """Rewrite the logarithm of chosen entries of a softmax as entries of its logarithm.

    PyMC's `Categorical(logit_p=...)` is the former: where one category is far less likely than
    another it is log 0, with a gradient that is no number.
    """
    for node in fgraph.toposort():
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Log):
            chosen = _chosen(node.inputs[0])
            if chosen is not None:
                fgraph.replace(node.outputs[0], chosen, import_missing=True)


def _chosen(var: Variable) -> Variable | None:
    """Entries of the logarithm of a softmax, where a variable is entries of the softmax."""
    node: Apply | None = var.owner
    if node is None:
        return None
    if isinstance(node.op, Softmax):
        return log_softmax(node.inputs[0], axis=node.op.axis)
    if isinstance(node.op, SELECTIONS):
        inner = _chosen(node.inputs[0])
        return None if inner is None else node.op(inner, *node.inputs[1:])
    return None
