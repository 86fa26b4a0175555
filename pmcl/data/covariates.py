"""Which of a model's data come with a call, and which stay as they are."""

from collections.abc import Iterable, Mapping

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import Variable

from pmcl.compile.variables import content, dims_of, holders, is_nameless, own_value
from pmcl.data.forms import in_form, is_frame, several, with_index
from pmcl.data.plain import alike
from pmcl.data.reading import names_in
from pmcl.data.task import DATASET, DataError, Task, TaskLike
from pmcl.runtime.arguments import listed, warn


def covariates_among(model: pm.Model, data: TaskLike) -> tuple[str, ...]:
    """Names of the model's `pm.Data` that come with the data, in the model's order."""
    data = in_form(data)
    if isinstance(data, Mapping) and several(data, list(model.named_vars)) and data:
        data = in_form(next(iter(data.values())))
    if isinstance(data, Task):
        came: Iterable = data.values
    elif isinstance(data, xr.Dataset):
        came = names_in(data, {DATASET, *model.coords})
    elif is_frame(data):
        columns = [str(c) for c in with_index(data).columns]
        came = {*columns, *(c.split("[")[0] for c in columns)} - {DATASET}
    else:
        came = data if isinstance(data, Mapping) else ()
    names = {str(n) for n in came}
    _warn_of_others(model, names)
    held, reached = holders(model), _reached(model)
    return tuple(
        v.name
        for v in model.data_vars
        if v.name in names
        and v.name not in held
        and (v in reached or not _says_nothing(data, v.name, own_value(model, v.name)))
    )


def _says_nothing(data: TaskLike, name: str, own: np.ndarray) -> bool:
    """Whether data on which nothing depends came as the model has them, as from `pm.sample`."""
    return isinstance(data, Mapping) and name in data and alike(data[name], own)


def _reached(model: pm.Model) -> set[Variable]:
    return content([*model.basic_RVs, *model.deterministics, *model.potentials])


def _warn_of_others(model: pm.Model, came: set[str]) -> None:
    """Say which of the model's data did not come, and stay as they are there.

    Those along the rows, or as long where dims have no names, and such as look like placeholders;
    what else a model has as `pm.Data` may well be a constant.
    """
    rows = {d for rv in model.observed_RVs for d in dims_of(model, rv)}
    lengths = {
        n for rv in model.observed_RVs for n in own_value(model, str(rv.name)).shape[:1] if n > 1
    }

    def differs(name: str) -> bool:
        value, dims = own_value(model, name), dims_of(model, model[name])
        long = any(is_nameless(d) and n in lengths for d, n in zip(dims, value.shape, strict=True))
        alike = value.size > 1 and bool(np.all(value == value.flat[0]))
        return bool(rows & {*dims}) or long or alike

    reached, held = _reached(model), holders(model)
    stay = [
        v.name
        for v in model.data_vars
        if v in reached and v.name not in came and v.name not in held and differs(str(v.name))
    ]
    for name in stay:
        alike = [n for n in came if n.lower() == name.lower()]
        if alike:
            raise DataError(f"data: expected {name!r}, as the model calls it, got {alike[0]!r}.")
    observed = {*model.observed_RVs} - {model[held[n]] for n in came & {*held}}
    if stay and {str(rv.name) for rv in observed} <= came:  # else an error follows
        warn(
            f"{listed(stay)} did not come with the data: the values that the model has are taken "
            "for every dataset. Pass them with the data if they differ."
        )
