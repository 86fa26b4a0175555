"""The model's own data, where none come with a call."""

from collections.abc import Iterable

import numpy as np
import pymc as pm

from pmcl.compile.variables import holder_of, own_value
from pmcl.data.task import DataError
from pmcl.runtime.arguments import listed


def own_data(
    model: pm.Model, covariates: Iterable[str] = (), *, say: bool = True
) -> dict[str, np.ndarray]:
    """Values that the model itself has of its observed variables, and of covariates.

    Parameters
    ----------
    model : pymc.Model
    covariates : iterable of str
    say : bool
        Print that they are taken.

    Raises
    ------
    DataError
        If all observed values are equal: most likely placeholders.
    """
    # what a `pm.Data` holds before PyMC makes whole numbers of it
    held = {rv.name: holder_of(model, rv.name) or rv.name for rv in model.observed_RVs}
    observed = {name: own_value(model, holder) for name, holder in held.items()}
    number = sum(value.size for value in observed.values())
    alike = all(value.size and np.all(value == value.flat[0]) for value in observed.values())
    if observed and alike and (number > 1 or not any(map(np.any, observed.values()))):
        name, value = next(iter(observed.items()))
        raise DataError(
            f"data: none came, and the model's own values of {listed(list(observed))} are all "
            f"equal ({value.flat[0]:g}), as placeholders are. Pass the data: {{{name!r}: ...}}."
        )
    if say:
        sizes = [f"{name} {value.shape}" for name, value in observed.items()]
        print(f"No data came: the model's own are taken ({', '.join(sizes) or 'constants'}).")  # noqa: T201
    return {**observed, **{name: own_value(model, name) for name in covariates}}
