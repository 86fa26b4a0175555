"""What `fit_online` was asked for, read and checked."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pmcl.compile.compiling import compile_model
from pmcl.compile.local_variables import LocalVariables, separate
from pmcl.compile.variables import content, dims_of, holders, own_value, used
from pmcl.continual import AbstractStrategy
from pmcl.online.drift import AbstractDrift, ChangePoint, LearnedDrift, Static
from pmcl.online.families.search import GaussNewton
from pmcl.online.latent.encoder import Encoder
from pmcl.online.memory import AbstractMemory
from pmcl.online.one_point import METHODS
from pmcl.online.search.search import Search
from pmcl.online.search.start import AbstractStart, MaximumLikelihoodStart


class Options(NamedTuple):
    """Arguments of :func:`pmcl.fit_online`; see there."""

    memory: AbstractMemory | None
    drift: AbstractDrift | None
    search: Search | GaussNewton | None
    family: str
    start: AbstractStart | None
    method: AbstractStrategy | None
    row: str | None
    covariates: Sequence[str] | None
    local: str | Sequence[str] | None
    encoder: Encoder | None
    power: float
    strength: float
    precision: str
    components: int = 1


def read(
    model: pm.Model, asked: Options
) -> tuple[pm.Model, LocalVariables | None, str, Sequence[str]]:
    """Return the model whose parameters are followed, its local variables, row and covariates.

    Raises
    ------
    TypeError, ValueError
        Naming the option that is of another kind than expected, or does not fit the others.
    """
    _check_kinds(asked)
    _check_factors(asked)
    _check_method(asked)
    _check_components(asked)
    names = _local_names(asked)
    learned = isinstance(asked.drift, LearnedDrift)
    if names and (learned or isinstance(asked.drift, ChangePoint)):
        raise ValueError(
            f"drift: {asked.drift!r} is told by the density of new rows: expected no local "
            "variables, of which there is a bound alone."
        )
    if asked.memory is not None and learned:
        raise ValueError(
            f"drift: {asked.drift!r} follows a stream under each of its drifts, and each would "
            "need a memory of its own: expected none."
        )
    variables: LocalVariables | None = None
    row = asked.row
    if names:
        model, variables = separate(model, names)
        dim = dims_of(model, model[names[0]])[0]
        if row not in (None, dim):
            raise ValueError(
                f"row: expected {dim!r}, the first dim of the local variables, got {row!r}."
            )
        row = dim
    if asked.precision not in ("double", "single"):
        raise ValueError(f"precision: expected 'double' or 'single', got {asked.precision!r}.")
    if not model.observed_RVs:
        raise ValueError("fit_online: expected a model with observed variables, there are none.")
    first = model.observed_RVs[0]
    row = dims_of(model, first)[0] if row is None and first.type.ndim else row
    if row is None:
        raise ValueError(
            f"fit_online: expected {first.name!r} to have a dim of rows, it is a single value."
        )
    covariates = asked.covariates
    if covariates is None:
        covariates = covariates_along(model, row)
    prior = sorted({str(v.name) for v in content(model.free_RVs)} & {*covariates})
    if prior:
        raise ValueError(
            f"covariates: expected data of the rows, got {prior}, on which the prior of the "
            "parameters depends: a stream has one prior. Leave them out of `covariates`, and give "
            "the model their values."
        )
    return model, variables, row, covariates


def covariates_along(model: pm.Model, row: str) -> list[str]:
    """Names of the `pm.Data` that come with every batch."""
    data = [v for v in model.data_vars if v.name not in holders(model)]
    found = [v.name for v in data if row in dims_of(model, v)]
    return found + _joining(model, row, found, data)


def _joining(
    model: pm.Model, row: str, covariates: Sequence[str], data: Sequence[Variable]
) -> list[str]:
    """Names of `pm.Data` without dims that are read as having the rows, too."""
    n, reached = own_value(model, model.observed_RVs[0].name).shape, used(model)
    open_ones = [
        v.name
        for v in data
        if v in reached
        and v.name not in covariates
        and model.named_vars_to_dims.get(v.name) is None
        and {*n} & {*own_value(model, v.name).shape}
    ]
    for names in [open_ones] if len(open_ones) == 1 else [open_ones, *([v] for v in open_ones)]:
        if names:
            compiled = compile_model(model, covariates=[*covariates, *names])
            found = [i.name for i in compiled.covariates if i.name in names and row in i.dims]
            if found:
                return found
    return []


def _check_kinds(asked: Options) -> None:
    kinds: dict[str, tuple[Any, str]] = {
        "memory": (AbstractMemory, "KCenterCoreset(200)"),
        "drift": (AbstractDrift, "Static()"),
        "search": ((Search, GaussNewton), "Search(steps=1000)"),
        "start": (AbstractStart, "Start()"),
        "encoder": (Encoder, "Encoder()"),
    }
    for name, (kind, example) in kinds.items():
        value: Any = getattr(asked, name)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name}: expected None or such as pmcl.{example}, got {value!r}.")


def _local_names(asked: Options) -> tuple[str, ...]:
    """Names of local variables, and whether the other options allow for them."""
    local = asked.local
    if isinstance(local, bool):
        raise ValueError(
            f"local: expected names of variables, got {local}; whether noise of linear layers is "
            "drawn in place of their weights' is `local_noise`."
        )
    names = (local,) if isinstance(local, str) else tuple(local or ())
    if not names and asked.encoder is not None:
        raise ValueError(
            "encoder: expected `local` to name the variables that it tells, none came."
        )
    if names and asked.memory is not None:
        raise ValueError(f"memory: with local variables expected none, got {asked.memory!r}.")
    if names and isinstance(asked.start, MaximumLikelihoodStart):
        raise ValueError(
            "start: with local variables the likelihood is an integral; expected Start or "
            f"ScatteredStart, got {asked.start!r}."
        )
    return names


def _check_method(asked: Options) -> None:
    method, memory = asked.method, asked.memory
    if method is None:
        return
    if memory is not None or not isinstance(method, METHODS):
        raise ValueError(
            f"method: expected one of {[m.__name__ for m in METHODS]} and no memory, got "
            f"{method!r} and {memory!r}."
        )
    if not isinstance(asked.drift, Static | None):
        raise ValueError(
            f"drift: with a method that follows one value of the parameters expected Static(), got "
            f"{asked.drift!r}: there is no distribution that could widen."
        )
    for name in ("power", "strength"):
        factor = getattr(asked, name)
        if factor != 1:
            raise ValueError(
                f"{name}: with a method that follows one value of the parameters expected 1, got "
                f"{factor!r}: what holds it has a strength of its own."
            )


def _check_components(asked: Options) -> None:
    n = asked.components
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"components: expected a number of normals of at least 1, got {n!r}.")
    if n == 1:
        return
    why = ""
    if asked.local:
        why = "with local variables there is one encoder, of one normal"
    elif asked.method is not None:
        why = f"{asked.method!r} follows one value of the parameters"
    elif isinstance(asked.drift, LearnedDrift | ChangePoint):
        why = f"{asked.drift!r} would be told something else by each"
    elif asked.start is not None and not asked.start.scatters:
        why = f"{asked.start!r} begins at one place, from where all would be found alike"
    if why:
        raise ValueError(f"components: expected 1, got {n}: {why}.")


def _check_factors(asked: Options) -> None:
    power, strength = asked.power, asked.strength
    if isinstance(power, bool) or not isinstance(power, Real) or not 0 < power < np.inf:
        raise ValueError(f"power: expected a number above 0, got {power!r}.")
    if isinstance(strength, bool) or not isinstance(strength, Real) or not 0 <= strength < np.inf:
        raise ValueError(f"strength: expected a number of at least 0, got {strength!r}.")
    if asked.memory is not None and strength != 1:
        raise ValueError(
            f"strength: with a memory expected 1, got {strength!r}: stored rows are not held."
        )
