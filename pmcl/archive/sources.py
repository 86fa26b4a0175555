"""Where simulated covariates come from, as data: tables, and distributions by their names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor.random.basic as basic
import xarray as xr
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

from pmcl.archive.configuration import dumps, loads
from pmcl.archive.errors import StateError
from pmcl.compile import VariableInfo
from pmcl.compile.conversion import graphs
from pmcl.compile.covariates import MADE, Covariates
from pmcl.levels.sizes import Members

_MOST = 10**5  # groups

# Random variables by name, and nothing else that a file could ask for.
_DISTRIBUTIONS: dict[str, RandomVariable] = {
    op.name: op for op in vars(basic).values() if isinstance(op, RandomVariable) and op.name
}


def to_dataset(covariates: Covariates) -> xr.Dataset:
    """Tables and parameters of distributions; functions of the user are named, not stored."""
    found: dict[str, tuple] = {}
    kinds: dict[str, Any] = {}
    for info in covariates.infos:
        name = info.name
        if name in covariates.made:
            kinds[name] = {"kind": MADE}
        elif isinstance(source := covariates.functions.get(name), Members):
            kinds[name] = {"kind": "members", "low": source.low, "high": source.high}
        elif name in covariates.functions:
            kinds[name] = {"kind": "function"}
        elif name in covariates.distributions:
            op, parameters = _read(covariates.distributions[name])
            if op is None:
                kinds[name] = {"kind": "function"}  # made of others: its graph is code
                continue
            kinds[name] = {"kind": "distribution", "name": op, "parameters": len(parameters)}
            for i, value in enumerate(parameters):
                label = f"{name}: parameter {i}"
                found[label] = (tuple(f"{label}, {d}" for d in range(value.ndim)), value)
        else:
            rows = name in covariates.rows
            kinds[name] = {"kind": "rows" if rows else "datasets"}
            table = (covariates.rows if rows else covariates.datasets)[name]
            dims = tuple(f"{name}: {i}" for i in range(table.ndim))
            found[f"{name}: table"] = (dims, table)
    return xr.Dataset(found, attrs={"sources": dumps(kinds)})


def from_dataset(
    stored: xr.Dataset, infos: Sequence[VariableInfo], *, where: str
) -> dict[str, Any]:
    """Read the argument `covariates` of `fit_amortized` again.

    Raises
    ------
    StateError
        Naming a covariate that came from a function, which a state does not hold.
    """
    kinds = loads(stored.attrs.get("sources"), where=f"{where}: sources")
    expected = [i.name for i in infos]
    if not isinstance(kinds, dict) or sorted(kinds) != sorted(expected):
        raise StateError(f"{where}: expected sources of the covariates {expected}.")
    found: dict[str, Any] = {}
    for info in infos:
        kind = kinds[info.name]
        if not isinstance(kind, dict):
            raise StateError(f"{where}: {info.name!r}: expected a description of its source.")
        if kind.get("kind") == "function":
            raise StateError(
                f"{where}: covariate {info.name!r} came from a function or a composed "
                "distribution, which a state does not hold; pass "
                f"covariates={{{info.name!r}: ...}} to load."
            )
        if kind.get("kind") == MADE:
            found[info.name] = MADE
        elif kind.get("kind") == "members":
            low, high = kind.get("low"), kind.get("high")
            if type(low) is not int or type(high) is not int or not 2 <= low <= high <= _MOST:
                raise StateError(f"{where}: {info.name!r}: {low!r} to {high!r} are no groups.")
            found[info.name] = Members(low, high)
        elif kind.get("kind") == "distribution":
            op = _DISTRIBUTIONS.get(str(kind.get("name")))
            number = kind.get("parameters")
            labels = [
                f"{info.name}: parameter {i}"
                for i in range(number if type(number) is int and 0 <= number < 20 else 0)
            ]
            if op is None or not labels or any(name not in stored for name in labels):
                raise StateError(f"{where}: {info.name!r}: not a distribution that is known.")
            try:
                size = info.shape[: len(info.shape) - op.ndim_supp]
                rng = pytensor.shared(np.random.default_rng(0))
                values = (stored[name].values for name in labels)
                found[info.name] = op(*values, size=size, rng=rng)
            except (ValueError, TypeError, NotImplementedError) as error:
                raise StateError(f"{where}: {info.name!r}: {error}") from error
        else:
            if f"{info.name}: table" not in stored:
                raise StateError(f"{where}: {info.name!r}: expected a table.")
            found[info.name] = stored[f"{info.name}: table"].values
    return found


def _read(dist: Variable) -> tuple[str | None, list[np.ndarray]]:
    """Name and parameters of a distribution; None where it is not one of NumPy's own kind."""
    node = dist.owner
    if node is None or not isinstance(node.op, RandomVariable):
        return None, []
    op: Any = node.op
    known = _DISTRIBUTIONS.get(str(op.name))
    if known is None or known.__class__ is not op.__class__:
        return None, []
    parameters = op.dist_params(node)
    values = pytensor.function([], list(parameters), mode=graphs.host_mode())()
    return op.name, [np.asarray(v) for v in values]
