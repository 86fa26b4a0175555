"""Parameters that a distribution cannot have, where JAX raises no error: a density of zero."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All

# of a zero-sum value: its transform makes it so, and rounding less so than PyMC asks
_OF_A_VALUE = "mean(value, axis=n_zerosum_axes) = 0"


def without_checks(terms: Sequence[Variable]) -> list[Variable]:
    """Densities without PyMC's checks, for models of `check_bounds=False`."""
    fgraph = FunctionGraph(outputs=list(terms), clone=False)
    for node in fgraph.toposort():
        if isinstance(node.op, CheckParameterValue):
            fgraph.replace(node.outputs[0], node.inputs[0], import_missing=True)
    return list(fgraph.outputs)


def zero_where_impossible(fgraph: FunctionGraph) -> None:
    """Put minus infinity where PyMC's check of a density's parameters fails, as PyMC does.

    PyTensor's conversion passes over the checks, and many densities are finite all the same: a
    Bernoulli's with a probability of 1.2, a Beta's with a negative parameter, those of cutpoints
    that are in no order.
    """
    for node in fgraph.toposort():
        if not isinstance(node.op, CheckParameterValue) or node.op.msg == _OF_A_VALUE:
            continue
        if node.op.can_be_replaced_by_ninf:
            log_p, *checks = node.inputs
            conditions = [c for check in checks for c in _conditions(check)]
            good = _all_true(log_p, conditions)
            nothing = pt.constant(np.array(-np.inf, log_p.type.dtype))
            new = log_p if good is None else pt.switch(good, log_p, nothing)
            if not new.type.is_super(log_p.type) and not log_p.type.is_super(new.type):
                new = log_p.type.filter_variable(new)
            fgraph.replace(node.outputs[0], new, import_missing=True)


def _conditions(check: Variable) -> Iterator[Variable]:
    """Conditions, element by element, of which PyMC asks whether all are true."""
    node = check.owner
    if node is not None and isinstance(node.op, All):
        inner = node.inputs[0]
        made = inner.owner
        if made is not None and isinstance(made.op, MakeVector | Join):
            parts = made.inputs[isinstance(made.op, Join) :]
            for part in parts:
                yield from _conditions(part)
        else:
            yield inner
    elif node is not None and isinstance(node.op, DimShuffle | ScalarFromTensor):
        yield from _conditions(node.inputs[0])
    else:
        yield check


def _all_true(log_p: Variable, conditions: list[Variable]) -> Variable | None:
    """Where all conditions hold; by element for those on what is an operand of the density."""
    own, found = operands(log_p), None
    for condition in conditions:
        if isinstance(condition, Constant) and condition.data.all():
            continue
        apart = condition.type.ndim <= log_p.type.ndim and operands(condition) <= own
        here = condition if apart else pt.all(condition)
        found = here if found is None else found & here
    return found


def operands(var: Variable) -> set[Variable]:
    """What a variable follows from element by element, axes aligned at the last."""
    found, todo, seen = set(), [var], set()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        op = None if v.owner is None else v.owner.op
        if isinstance(op, Elemwise):
            todo += v.owner.inputs
        elif isinstance(op, DimShuffle) and _only_leads(op):
            todo += v.owner.inputs
        elif not (isinstance(v, Constant) and all(v.type.broadcastable)):
            found.add(v)
    return found


def _only_leads(op: DimShuffle) -> bool:
    """Whether axes are added in front, and nothing else is done."""
    kept = [i for i in op.new_order if i != "x"]
    return (
        kept == [*range(op.input_ndim)] and [*op.new_order][len(op.new_order) - len(kept) :] == kept
    )
