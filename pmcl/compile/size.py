"""What will take long, or cannot end, said before it is begun."""

import warnings

import pymc as pm
from pytensor.graph.traversal import applys_between

from pmcl.compile.model import CompiledModel

_NODES = 3_000  # operations of a graph from which compiling takes minutes
_PARAMETERS = 2_000  # from which matrices of that size fill gigabytes
_BYTES = 400  # held by the square of the parameters: some dozens of matrices


def say_graph(model: pm.Model) -> None:
    """Warn of a model whose graph is so large that compiling it takes minutes.

    Warns
    -----
    UserWarning
        Naming the variable and the number of operations.
    """
    number, name = max(
        (sum(1 for _ in applys_between([], [v])), v.name)
        for v in (*model.basic_RVs, *model.potentials)
    )
    if number > _NODES:
        warnings.warn(
            f"Variable {name!r} is a graph of {number} operations, whose compilation takes "
            "minutes, or does not end: a Python loop over rows makes such graphs. Write it with "
            "arrays, or its steps with `pytensor.scan`, which is compiled once for any number.",
            stacklevel=3,
        )


def say_parameters(compiled: CompiledModel, rows: int, what: str) -> None:
    """Warn of more parameters than networks and refinement are made for.

    Warns
    -----
    UserWarning
        Naming the variable that has most of them.
    """
    if compiled.dim > _PARAMETERS:
        most = max(compiled.values, key=lambda v: v.size)
        warnings.warn(
            f"{what}: the model has {compiled.dim} parameters ({most.variable!r} has "
            f"{most.size}), for {rows} observed values. Each dataset takes matrices of that size, "
            f"about {_BYTES * compiled.dim**2 / 2**30:.1f} GiB, and hours: expect no result. "
            "Integrate them out (`pm.gp.Marginal` for a process, a Kalman filter in a "
            "`pm.Potential` for a series), write fewer (a basis, `pm.gp.HSGP`), or let NUTS "
            "sample it: `pmcl.sample_reference`.",
            stacklevel=3,
        )
