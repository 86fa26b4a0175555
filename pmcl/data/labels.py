"""Labels: where both sides have them values go by name, and they are never joined in silence."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pmcl.compile import VariableInfo
from pmcl.data.task import DataError, Layout
from pmcl.runtime.arguments import warn


def aligned(value: xr.DataArray, info: VariableInfo, layout: Layout, where: str) -> xr.DataArray:
    """Put the labels of dims other than the rows' in the model's order.

    By position where one side has no labels: none, or 0, 1, 2 ...

    Raises
    ------
    DataError
        Where labels differ, or some come more than once.

    Warns
    -----
    UserWarning
        Where they differ along a dim whose length may differ too, so that the model's may be
        placeholders.
    """
    for dim in info.dims:
        if dim == layout.row or dim not in layout.coords or dim not in value.coords:
            continue
        ours, theirs = text(layout.coords[dim]), _labels(value, dim)
        if len(ours) != len(theirs) or ours == theirs:
            continue  # of another length it has the wrong shape, or the dim may have any
        if ({*ours} != {*theirs}) and numbers(len(theirs)) in (ours, theirs):
            continue
        what = _difference(theirs, ours)
        if not what:
            value = _reordered(value, dim, theirs, ours)
        elif dim in layout.data_dims:
            warn(
                f"{where}: labels of dim {dim!r} are {_few(theirs)}, the model's are {_few(ours)}: "
                f"{what}. Values are taken by position. Leave the labels out if that is right."
            )
        else:
            raise DataError(
                f"{where}: labels of dim {dim!r} are {_few(theirs)}, the model's are "
                f"{_few(ours)}: {what}. Rename them, give the model the same labels, or leave them "
                "out: then positions count."
            )
    return value


def together(arrays: Mapping[str, xr.DataArray], where: str) -> dict[str, xr.DataArray]:
    """Bring the variables of a dataset in one order of their labels.

    Raises
    ------
    DataError
        Where two have different labels along a dim, or some come more than once in another order.
    """
    first: dict[Any, tuple[str, list[str]]] = {}
    found = dict(arrays)
    for name, value in arrays.items():
        for dim in value.dims:
            if dim not in value.coords:
                continue
            own = _labels(value, dim)
            other, theirs = first.setdefault(dim, (name, own))
            numbered = numbers(len(own))
            if own == theirs or len(own) != len(theirs) or numbered in (own, theirs) and (
                {*own} != {*theirs}
            ):  # fmt: skip
                continue
            what = _difference(own, theirs)
            if what:
                raise DataError(
                    f"Variable {name!r}{where}: labels of {dim!r} are {_few(own)}, those of "
                    f"{other!r} are {_few(theirs)}: {what}. Rows that belong together need the "
                    "same labels, or none."
                )
            found[name] = _reordered(found[name], dim, own, theirs)
    return found


def in_order(rows: Any, along: str | None, layout: Layout, where: str) -> Any:
    """Put the rows of a table in the model's order, where they are labelled elements of a dim."""
    if along is None or along == layout.row or along in layout.names or along not in rows:
        return rows
    found = xr.DataArray(np.arange(len(rows)), dims=along, coords={along: text(rows[along])})
    info = VariableInfo(along, (along,), (len(rows),), "int64")
    return rows.iloc[aligned(found, info, layout, where).values]


def with_labels(value: object, info: VariableInfo) -> object:
    """Give pandas' Series and DataFrames the labels that they have; all else stays."""
    if not hasattr(value, "reindex") or isinstance(value, xr.DataArray | xr.Dataset):
        return value
    if len(info.dims) == 1 and getattr(value, "shape", ())[1:] == (1,):
        value = value.iloc[:, 0]  # type: ignore[attr-defined]  # a table of one column
    axes = value.axes  # type: ignore[attr-defined]
    if len(axes) != len(info.dims):
        return value
    labels = {d: text(a) for d, a in zip(info.dims, axes, strict=True) if not _counts(a)}
    return xr.DataArray(array_of(value), dims=info.dims, coords=labels)


def array_of(value: Any) -> np.ndarray:
    """Values of a Series or a DataFrame; what pandas calls NA is NaN."""
    kinds = [value.dtype] if value.ndim == 1 else [*value.dtypes]
    own = [k for k in kinds if not isinstance(k, np.dtype) and getattr(k, "kind", "O") in "biuf"]
    if own and value.isna().to_numpy().any():
        return value.to_numpy(dtype=float, na_value=np.nan)
    if own and len(own) == len(kinds):
        return value.to_numpy(dtype=np.result_type(*(k.numpy_dtype for k in own)))
    return value.to_numpy()


def _counts(index: Any) -> bool:
    """Whether pandas numbered rows by itself."""
    return hasattr(index, "step") and index.start == 0 and index.step == 1


def text(labels: Iterable[object]) -> list[str]:
    """Text of labels, by which they are compared; 1.0 is 1, a date is a date."""
    return [_text(label) for label in labels]


def numbers(n: int) -> list[str]:
    """Labels that say no more than positions do."""
    return [*map(str, range(n))]


def _labels(value: xr.DataArray, dim: Any) -> list[str]:
    index = value.indexes.get(dim)  # pandas' has the zone of dates, and periods
    return text(value.coords[dim].values if index is None else index)


def _text(label: Any) -> str:
    if isinstance(label, np.datetime64) or hasattr(label, "isoformat"):
        import pandas as pd

        try:
            stamp = pd.Timestamp(label)
        except (TypeError, ValueError):  # a time of day, or of another calendar
            return str(label)
        return (stamp if stamp.tzinfo is None else stamp.tz_convert("UTC")).isoformat()
    whole = isinstance(label, float | np.floating) and float(label).is_integer()
    return str(int(label)) if whole else str(label)


def _reordered(value: xr.DataArray, dim: Any, now: list[str], wanted: list[str]) -> xr.DataArray:
    where = {label: i for i, label in enumerate(now)}
    return value.isel({dim: [where[label] for label in wanted]})


def _difference(theirs: list[str], ours: list[str]) -> str:
    """What keeps labels from being matched by name; nothing where they are the same."""
    twice = sorted({v for v, n in [*Counter(ours).items(), *Counter(theirs).items()] if n > 1})
    if twice:
        return f"{_few(twice)} came more than once"
    if {*ours} == {*theirs}:
        return ""
    plain = [{v.strip().casefold() for v in labels} for labels in (ours, theirs)]
    return "they differ in case or blanks" if plain[0] == plain[1] else "they differ"


def _few(labels: list[str], most: int = 8) -> str:
    return str(labels) if len(labels) <= most else f"[{str(labels[:most])[1:-1]}, ...]"
