"""Where the covariates of simulated datasets come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
import pymc as pm
import xarray as xr
from jax import Array
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.basic import Variable

from pmcl.compile.model import VariableInfo

Source = Variable | np.ndarray | xr.DataArray | Callable[[np.random.Generator, int], np.ndarray]


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
    """

    infos: tuple[VariableInfo, ...]
    distributions: dict[str, Variable] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    datasets: dict[str, np.ndarray] = field(default_factory=dict)
    functions: dict[str, Callable] = field(default_factory=dict)

    def tables(self, key: Array) -> dict[str, Array]:
        """Draw the covariates that are resampled from tables, inside jit."""
        drawn: dict[str, Array] = {}
        for kind in (self.rows, self.datasets):
            index: dict[int, Array] = {}
            for name, table in kind.items():
                shape = self._info(name).shape
                size = (shape[0],) if kind is self.rows else ()
                n = table.shape[0]
                if n not in index:
                    key, subkey = jax.random.split(key)
                    index[n] = jax.random.randint(subkey, size, 0, n)
                drawn[name] = jax.numpy.asarray(table)[index[n]]
        return drawn

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
            drawn[name] = value.astype(info.dtype)
        return drawn

    def _info(self, name: str) -> VariableInfo:
        return next(i for i in self.infos if i.name == name)

    def __repr__(self) -> str:
        kinds = {
            **{n: "distribution" for n in self.distributions},
            **{n: f"rows of a table of {len(t)}" for n, t in self.rows.items()},
            **{n: f"one of {len(t)} datasets" for n, t in self.datasets.items()},
            **{n: "function (host)" for n in self.functions},
        }
        return ", ".join(f"{n}: {k}" for n, k in kinds.items()) or "none"


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
    found = Covariates(infos=tuple(infos))
    for info in infos:
        source = sources[info.name]  # type: ignore[index]
        if isinstance(source, Variable):
            found.distributions[info.name] = _resize(source, info)
        elif callable(source):
            found.functions[info.name] = source
        else:
            table = _ordered(source, info)
            if table.ndim == len(info.shape) and table.shape[1:] == info.shape[1:] and info.shape:
                found.rows[info.name] = table
            elif table.ndim == len(info.shape) + 1 and table.shape[1:] == info.shape:
                found.datasets[info.name] = table
            else:
                raise ValueError(
                    f"covariates[{info.name!r}]: expected rows of shape (rows, "
                    f"{', '.join(map(str, info.shape[1:]))}) or whole datasets of shape (datasets, "
                    f"{', '.join(map(str, info.shape))}), got {table.shape}."
                )
            if not np.all(np.isfinite(table.astype(float))):
                raise ValueError(
                    f"covariates[{info.name!r}]: expected finite values, got "
                    f"{int((~np.isfinite(table.astype(float))).sum())} that are not; drop or fill them."
                )
    return found


def _ordered(source: object, info: VariableInfo) -> np.ndarray:
    if isinstance(source, xr.DataArray):
        order = [d for d in ("dataset", *info.dims) if d in source.dims]
        extra = [d for d in source.dims if d not in order]
        if not extra:
            source = source.transpose(*order)
    return np.asarray(source).astype(info.dtype)


def _resize(dist: Variable, info: VariableInfo) -> Variable:
    if dist.owner is None:
        raise TypeError(
            f"covariates[{info.name!r}]: expected an unnamed PyMC distribution such as "
            "`pm.Normal.dist(0, 1)`, a table or a function."
        )
    row = info.shape[len(info.shape) - dist.type.ndim :] if dist.type.ndim else ()
    shape = tuple(pm.draw(dist, random_seed=0).shape)
    if shape != tuple(row):
        raise ValueError(
            f"covariates[{info.name!r}]: expected the distribution of one entry (shape ()) or of "
            f"one row (shape {info.shape[1:]}), got draws of shape {shape}."
        )
    support = dist.owner.op.ndim_supp if hasattr(dist.owner.op, "ndim_supp") else 0
    return change_dist_size(dist, info.shape[: len(info.shape) - support])
