"""Where the covariates of simulated datasets come from."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from jax import Array
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

from pmcl.compile.casting import lost
from pmcl.compile.conversion import graphs
from pmcl.compile.variables import VariableInfo, own_value

if TYPE_CHECKING:
    import pandas as pd

type Source = (
    Variable | np.ndarray | xr.DataArray | Callable[[np.random.Generator, int], np.ndarray]
)
MADE = "made"  # in the place of a source: the user's simulator makes it
type SourcesLike = (
    Mapping[str, Source] | xr.Dataset | pd.DataFrame | pd.Series | Sequence[str] | str
)
type Group = tuple[
    int, tuple[int, ...]
]  # number of rows or datasets in a table, shape of its index


@dataclass(frozen=True, eq=False)
class Covariates:
    """Sources of the covariates, sorted by how they are drawn.

    Attributes
    ----------
    distributions : dict of str to PyTensor variable
        Already at the covariate's full size: they join the simulator's graph.
    rows, datasets : dict of str to array
        Tables to resample rows, or whole datasets, from; all tables of one kind and length are
        resampled together, so that columns of one table stay aligned.
    functions : dict of str to callable
        Called on the host with a generator and a length.
    made : set of str
        Made with the observations, by the user's simulator.
    """

    infos: tuple[VariableInfo, ...]
    distributions: dict[str, Variable] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    datasets: dict[str, np.ndarray] = field(default_factory=dict)
    functions: dict[str, Callable] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def tables(self, key: Array) -> dict[str, Array]:
        """Draw the covariates that are resampled from tables, inside jit."""
        index = {
            (n, size): jax.random.randint(jax.random.fold_in(key, i), size, 0, n)
            for i, (n, size) in enumerate(self._groups())
        }
        return {k: jnp.asarray(t)[index[g]] for k, t, g in self._grouped()}

    def host_tables(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the covariates that are resampled from tables, on the host."""
        index = {(n, size): rng.integers(0, n, size) for n, size in self._groups()}
        return {k: t[index[g]] for k, t, g in self._grouped()}

    def host(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the covariates that the user's functions make, for one dataset."""
        drawn = {}
        for name, function in self.functions.items():
            info = self._info(name)
            n = info.shape[0] if info.shape else 1
            value = np.asarray(function(rng, n))
            if value.shape != info.shape:
                raise ValueError(
                    f"covariates[{name!r}]: the function was called with length {n}; expected an "
                    f"array of shape {info.shape}, got {value.shape}."
                )
            drawn[name] = _cast(value, info)
        return drawn

    def _grouped(self) -> list[tuple[str, np.ndarray, Group]]:
        rows = [(k, t, (len(t), self._info(k).shape[:1])) for k, t in self.rows.items()]
        return [*rows, *((k, t, (len(t), ())) for k, t in self.datasets.items())]

    def _groups(self) -> list[Group]:
        return list(dict.fromkeys(group for _, _, group in self._grouped()))

    def _info(self, name: str) -> VariableInfo:
        return next(i for i in self.infos if i.name == name)

    def __repr__(self) -> str:
        kinds = {
            **{n: "distribution" for n in self.distributions},
            **{n: f"rows of a table of {len(t)}" for n, t in self.rows.items()},
            **{n: f"one of {len(t)} datasets" for n, t in self.datasets.items()},
            **{n: "function (host)" for n in self.functions},
            **{n: "made by the simulator" for n in self.made},
        }
        return ", ".join(f"{n}: {k}" for n, k in kinds.items()) or "none"


def sources_of(model: pm.Model, given: SourcesLike | None) -> dict[str, Any]:
    """Read the user's `covariates=` argument as a mapping of names to sources.

    Parameters
    ----------
    model : pymc.Model
    given : mapping, xarray.Dataset, pandas.DataFrame or Series, or sequence of str
        The columns of a table are covariates of that name, or `X[label]` parts of one. Names stand
        for the values that the model itself has.

    Raises
    ------
    ValueError
        If a name's values in the model are all equal: placeholders are no source.
    TypeError
        If it is something else.
    """
    if given is None:
        return {}
    if isinstance(given, xr.Dataset):
        names = {v.name for v in model.data_vars} - {*map(str, given.dims)}
        found = given.reset_coords([n for n in given.coords if n in names])
        return {str(k): v for k, v in found.data_vars.items()}
    if hasattr(given, "to_frame") and hasattr(given, "name"):  # a Series
        given = given.to_frame()
    if hasattr(given, "columns"):
        return _columns(given, model)
    if isinstance(given, Mapping):
        return {str(k): v for k, v in given.items()}
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(
            "covariates: expected a mapping from names to distributions, tables or functions, a "
            f"DataFrame, or a list of names, got {type(given).__name__}."
        )
    return {name: _own_values(model, name) for name in given}


def _columns(table: Any, model: pm.Model) -> dict[str, np.ndarray]:
    parts: dict[str, list[str]] = {}
    for column in table.columns:
        parts.setdefault(str(column).split("[")[0], []).append(column)
    found = {}
    for name, columns in parts.items():
        dims = model.named_vars_to_dims.get(name) or ()
        own = (model.coords.get(dims[-1], None) or ()) if dims else ()
        plain = [f"{name}[{i}]" for i in range(len(columns))]
        labels = [f"{name}[{v}]" for v in own] or plain
        if {*labels} == {*columns}:
            columns = labels  # in the model's order
        elif "[" in str(columns[0]) and plain not in (labels, columns):
            raise ValueError(f"covariates[{name!r}]: expected columns {labels}, got {columns}.")
        value = np.stack([table[c].to_numpy() for c in columns], axis=1)
        found[name] = value if "[" in str(columns[0]) else value[:, 0]
    return found


def _own_values(model: pm.Model, name: str) -> np.ndarray | None:
    if name not in {v.name for v in model.data_vars}:
        return None  # which compilation refuses by name
    value = own_value(model, name)
    if not value.ndim or np.all(value == value.flat[0]):
        raise ValueError(
            f"covariates: {name!r} has no values in the model that differ (placeholders?); give "
            f"their source: covariates={{{name!r}: pm.Normal.dist(0, 1)}}, or a table."
        )
    return value


def read_covariates(
    sources: Mapping[str, Source] | xr.Dataset | None, infos: Sequence[VariableInfo]
) -> Covariates:
    """Sort the user's `covariates=` argument by kind and check it against the model.

    Parameters
    ----------
    sources : mapping or xarray.Dataset
        A PyMC distribution of one entry or one row, an array to resample rows or whole datasets
        from, or a function of a `numpy.random.Generator` and a length.
    infos : sequence of VariableInfo
        The covariates of the compiled model.

    Raises
    ------
    ValueError, TypeError
        Naming the covariate, what was expected and what came.
    """
    given: Mapping = sources.data_vars if isinstance(sources, xr.Dataset) else (sources or {})
    expected, came = [info.name for info in infos], list(given)
    if sorted(expected) != sorted(map(str, came)):
        raise ValueError(
            f"covariates: expected a source for each of {expected}, got {came} (missing: "
            f"{[n for n in expected if n not in came]}, unknown: "
            f"{[n for n in came if n not in expected]})."
        )
    found = Covariates(infos=tuple(infos))
    for info in infos:
        source = given[info.name]
        if source is MADE:
            found.made.add(info.name)
        elif isinstance(source, Variable):
            found.distributions[info.name] = _resize(source, info)
        elif callable(source):
            found.functions[info.name] = _takes_two(source, info.name)
        else:
            table = _table(source, info)
            if info.shape and table.ndim == len(info.shape) and table.shape[1:] == info.shape[1:]:
                found.rows[info.name] = table
            elif table.ndim == len(info.shape) + 1 and table.shape[1:] == info.shape:
                found.datasets[info.name] = table
            else:
                rows = f"rows of shape {_sizes('rows', info.shape[1:])} or " if info.shape else ""
                raise ValueError(
                    f"covariates[{info.name!r}]: expected {rows}whole datasets of shape "
                    f"{_sizes('datasets', info.shape)}, got {table.shape}."
                )
            if not len(table):
                raise ValueError(f"covariates[{info.name!r}]: expected at least one row, got none.")
    return found


def _takes_two(function: Callable, name: str) -> Callable:
    """Refuse functions of other arguments than a generator and a length, before one is called."""
    try:
        inspect.signature(function).bind(None, 1)
    except TypeError as error:
        raise TypeError(
            f"covariates[{name!r}]: expected a function of two arguments, a "
            f"numpy.random.Generator and a length; of this one {error}."
        ) from None
    except ValueError:  # it has no signature
        pass
    return function


def _sizes(first: str, rest: Sequence[int]) -> str:
    return f"({', '.join([first, *map(str, rest)])}{'' if rest else ','})"


def _table(source: object, info: VariableInfo) -> np.ndarray:
    if isinstance(source, xr.DataArray):
        named = [d for d in info.dims if d in source.dims]
        if set(source.dims) <= {"dataset", *info.dims}:
            source = source.transpose(*(d for d in ("dataset", *named) if d in source.dims))
        elif "dataset" in source.dims:
            source = source.transpose("dataset", ...)
    return _cast(np.asarray(source), info)


def _cast(value: np.ndarray, info: VariableInfo) -> np.ndarray:
    """Give values the covariate's dtype, if that changes none of them."""
    where = f"covariates[{info.name!r}]"
    if not (np.issubdtype(value.dtype, np.number) or value.dtype == bool):
        raise TypeError(
            f"{where}: expected a PyMC distribution, an array of numbers ({info.dtype}) or a "
            f"function of a numpy.random.Generator and a length, got {value.dtype}."
        )
    bad = int((~np.isfinite(value)).sum())
    if bad:
        raise ValueError(
            f"{where}: expected finite values, got {bad} that are not; drop or fill them."
        )
    cast = value.astype(info.dtype)
    whole = np.dtype(info.dtype).kind in "iu"
    if whole and value.dtype.kind == "f" and not np.array_equal(np.round(value), value):
        raise ValueError(f"{where}: expected integers ({info.dtype}), got fractions.")
    told = lost(value, info.dtype)
    if told:
        raise ValueError(f"{where}: {told}")
    return cast


def _resize(dist: Variable, info: VariableInfo) -> Variable:
    where = f"covariates[{info.name!r}]"
    op = dist.owner.op if dist.owner is not None else None
    if not isinstance(op, RandomVariable | SymbolicRandomVariable):
        raise TypeError(
            f"{where}: expected an unnamed PyMC distribution such as `pm.Normal.dist(0, 1)`, a "
            f"table or a function, got {dist}."
        )
    if np.issubdtype(info.dtype, np.integer) and not np.issubdtype(dist.type.dtype, np.integer):
        raise TypeError(
            f"{where}: expected a distribution of integers ({info.dtype}), got {dist.type.dtype}."
        )
    shape = _shape(dist)
    if shape != info.shape[len(info.shape) - len(shape) :] or len(shape) > len(info.shape):
        raise ValueError(
            f"{where}: expected the distribution of one entry (shape ()) or of one row (shape "
            f"{info.shape[1:]}), got draws of shape {shape}."
        )
    return change_dist_size(dist, info.shape[: len(info.shape) - op.ndim_supp])


def _shape(dist: Variable) -> tuple[int, ...]:
    if None not in dist.type.shape:
        return tuple(dist.type.shape)
    shape = pytensor.function([], dist.shape, mode=graphs.host_mode())()
    return tuple(int(n) for n in shape)
