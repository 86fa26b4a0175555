"""Constants of the model that come with data: right where they have the values that it has."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pmcl.compile import VariableInfo
from pmcl.data.label_text import text
from pmcl.data.labels import in_dims, with_labels
from pmcl.data.plain import alike, array_of, close
from pmcl.data.task import DATASET, DataError, Layout

if TYPE_CHECKING:
    import pandas as pd


def with_labels_of_constants(came: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Constants that came and have dims, with the labels that they came with."""
    found = {}
    for name, own in layout.constants.items():
        info = _info(name, own, layout)
        if name in came and info is not None:
            found[name] = with_labels(came[name], info)
    return found


def _info(name: str, own: np.ndarray, layout: Layout) -> VariableInfo | None:
    """What is known of a constant, if all its dims have names."""
    dims = layout.dims_of_constants.get(name, ())
    if len(dims) != own.ndim or not all(dims):
        return None
    return VariableInfo(name, dims, own.shape, str(own.dtype))


def as_in_model(value: Any, name: str, layout: Layout, where: str) -> bool:
    """Whether a constant has the model's values, by its labels; or each of several datasets has."""
    own = layout.constants[name]
    info = _info(name, own, layout)
    if isinstance(value, list | tuple) and any(
        hasattr(v, "dims") or hasattr(v, "reindex") for v in value
    ):
        return all(as_in_model(v, name, layout, where) for v in value)
    if info is not None:
        value = with_labels(value, info)
        if isinstance(value, xr.DataArray) and {*value.dims} - {DATASET} == {*info.dims}:
            value = in_dims(value, info, layout, f"Variable {name!r}{where}")
    try:
        shape = np.shape(value)
    except ValueError:  # a ragged list
        return False
    several = len(shape) == own.ndim + 1 and shape[1:] == own.shape
    return alike(value, own) or (several and alike(value, np.broadcast_to(own, shape)))


def check_constants(rows: "pd.DataFrame", layout: Layout, name: str) -> None:
    """Refuse columns that are constants of the model, with other values there.

    Rows are in the model's order, where they are its. A column may say of each row what is one
    value of a group: that of the name in the column of the groups, or any of the model's.

    Raises
    ------
    DataError
    """
    for column, own in layout.constants.items():
        if own.ndim > 1 or [*rows.columns].count(column) != 1:
            continue
        if not _right(array_of(rows[column]), own, _places(rows, column, layout)):
            raise DataError(
                f"Column {column!r} of dataset {name!r}: it is a `pm.Data` that was no covariate "
                "when the model was compiled: a constant, with other values in the model. Fit it "
                f"again with covariates=[{column!r}], or leave the column out."
            )


def _right(value: np.ndarray, own: np.ndarray, places: np.ndarray | None) -> bool:
    """Whether a column has the model's values."""
    if own.ndim == 0:
        return alike(value, np.broadcast_to(own, value.shape))
    if places is not None:  # a gap says nothing
        known = value == value
        return alike(value[known], own[places][known])
    if own.shape == value.shape:
        return alike(value, own)
    there = value[value == value]
    if {there.dtype.kind, own.dtype.kind} <= {*"biuf"}:
        return bool(close(np.unique(there)[:, None], np.unique(own)).any(axis=1).all())
    return {*there.tolist()} <= {*own.tolist()}


def _places(rows: "pd.DataFrame", column: str, layout: Layout) -> np.ndarray | None:
    """Where the elements that rows name are, along the dim of a constant; None: they name none."""
    (dim,) = layout.dims_of_constants.get(column) or ("",)
    if dim not in rows or dim in layout.names or dim not in layout.coords:
        return None
    if dim in layout.tied:  # rows are in order where names count
        return None
    ours, theirs = text(layout.coords[dim]), text(rows[dim])
    if len({*ours}) < len(ours) or not {*theirs} <= {*ours}:
        return None
    where = {label: i for i, label in enumerate(ours)}
    return np.array([where[label] for label in theirs], dtype=int)
