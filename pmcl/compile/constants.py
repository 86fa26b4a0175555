"""Constants of a model that look like data: as long as the observations."""

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pmcl.compile.model import CompiledModel
from pmcl.compile.variables import holders

_SHOWN = 3  # numbers by which a nameless constant is told


def lengths_of_constants(compiled: CompiledModel) -> frozenset[int]:
    """Lengths of the constant arrays that observations depend on: what they say goes by position.

    Equal values say the same of every row.
    """

    def found() -> frozenset[int]:
        known = {i.name for i in compiled.covariates}
        shared = [
            np.asarray(v.get_value(borrow=True))
            for v in ancestors(_densities(compiled))
            if isinstance(v, SharedVariable) and v.name not in known
        ]
        fixed = [
            v.data
            for v in ancestors(_densities(compiled))
            if isinstance(v, Constant) and isinstance(v.data, np.ndarray)
        ]
        return frozenset(
            n
            for value in (*shared, *fixed)
            for axis, n in enumerate(value.shape)
            if n > 1 and (value != value.take([0], axis=axis)).any()
        )

    return compiled.keep("lengths of constants", found)


def _densities(compiled: CompiledModel) -> list:
    return [*compiled.model.observed_RVs, *compiled.model.potentials]


def beside_rows(compiled: CompiledModel) -> str:
    """Say which constants have the observations' length, and the lines to write; "" for none."""
    model = compiled.model
    lengths = {
        n: i.name
        for i in reversed(compiled.observed)
        for d, n in zip(i.dims, i.shape, strict=True)
        if n > 1 and d not in {d for v in compiled.free for d in v.dims}
    }
    known = {*holders(model), *(i.name for i in compiled.covariates)}
    found = []
    for var in ancestors(model.observed_RVs):
        if var in model.data_vars:
            if var.name in known or not isinstance(var, SharedVariable):
                continue
            value, name = np.asarray(var.get_value(borrow=True)), repr(var.name)
            line = f"covariates=[{name}]"
        elif isinstance(var, Constant) and isinstance(var.data, np.ndarray):
            value = var.data
            start = ", ".join(f"{v:.3g}" for v in value.ravel()[:_SHOWN])
            name = f"the array [{start}, ...]"
            line = 'x = pm.Data("x", ...), and covariates=["x"]'
        else:
            continue
        if value.ndim and value.shape[0] in lengths and np.ptp(value) > 0:
            text = f"{name} beside {len(value)} values of {lengths[len(value)]!r} ({line})"
            found += [text] if text not in found else []
    if not found:
        return ""
    return f"constants of every dataset, unless you make them covariates: {'; '.join(found)}"
