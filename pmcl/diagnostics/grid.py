"""The grid of hyperparameters that a question is asked for."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pmcl.compile.casting import lost
from pmcl.compile.variables import own_value


class Grid(dict[str, np.ndarray]):
    """Values of each setting, of shape (value, ...)."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(v) for v in self.values())

    def combinations(self) -> list[tuple[int, ...]]:
        return list(product(*map(range, self.lengths)))

    def coords(self) -> dict[str, np.ndarray]:
        """Values where they are numbers, else their positions."""
        return {n: v if v.ndim == 1 else np.arange(len(v)) for n, v in self.items()}


def grid_of(model: pm.Model, settings: Mapping[str, Sequence[ArrayLike]]) -> Grid:
    """Read the values of some `pm.Data` of a model.

    Raises
    ------
    ValueError
        Naming what the model does not have, or the setting whose values do not fit.
    """
    known = [v.name for v in model.data_vars]
    unknown = [n for n in settings if n not in known]
    if unknown or not settings:
        raise ValueError(
            f"settings: expected names of `pm.Data` of the model, {known}, got {list(settings)}. "
            'Write a hyperparameter as `pm.Data("prior_sd", 1.0)` to change it.'
        )
    found = Grid()
    for name, values in settings.items():
        like = own_value(model, name)
        found[name] = np.asarray(values, like.dtype if like.dtype.kind == "f" else float)
        whole, beyond = like.dtype.kind != "f", lost(found[name], str(like.dtype))
        if whole and (found[name] != np.trunc(found[name])).any():  # 0.5 would be 0; NaN is none
            raise ValueError(
                f"settings[{name!r}]: expected values of type {like.dtype}, as the `pm.Data` has "
                f"it, got {values!r}. For fractions write `pm.Data({name!r}, 1.0)`."
            )
        if beyond:
            raise ValueError(f"settings[{name!r}]: {beyond}")
        if found[name].shape[1:] != like.shape or not len(found[name]):
            raise ValueError(
                f"settings[{name!r}]: expected a sequence of values of shape {like.shape}, got "
                f"shape {found[name].shape}."
            )
        found[name] = found[name].astype(like.dtype)
    return found
