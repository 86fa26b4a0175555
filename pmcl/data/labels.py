"""Labels: where both sides have them values go by name, and they are never joined in silence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from pmcl.compile import VariableInfo
from pmcl.compile.variables import is_nameless
from pmcl.data.forms import as_pandas, is_frame, with_index
from pmcl.data.label_text import are_places, few, labels_of, numbers, text
from pmcl.data.plain import array_of, plain
from pmcl.data.task import DATASET, DataError, Layout
from pmcl.runtime.arguments import listed, warn


def aligned(value: xr.DataArray, info: VariableInfo, layout: Layout, where: str) -> xr.DataArray:
    """Put the labels of dims other than the rows' in the model's order.

    By position where one side has no labels: none, or 0, 1, 2 ... So are rows, unless the model has
    names for them, and a constant as long.

    Raises
    ------
    DataError
        Where labels differ, or some come more than once.

    Warns
    -----
    UserWarning
        Where they differ along a dim whose length may differ too, so that the model's may be
        placeholders; where times of a series are not in order.
    """
    for dim in info.dims:
        if dim not in value.coords:
            continue
        theirs = labels_of(value, dim)
        if dim not in layout.coords:
            continue
        ours = text(layout.coords[dim])
        tied = dim in layout.tied and is_turned(theirs, ours)
        if dim == layout.row and not tied:
            continue
        rows = dim == layout.row or layout.row is None
        if tied and rows and ours == numbers(len(ours)):  # which may be no names
            warn(
                f"{where}: labels are {few(theirs)} along {dim!r}, which the model numbers from 0, "
                "and it has a constant as long. Values are taken by position. Give the model names "
                "(`coords`) where these count; else leave the labels out "
                "(`.to_numpy()`)."
            )
            continue
        if len(ours) != len(theirs) or ours == theirs:
            continue  # of another length it has the wrong shape, or the dim may have any
        if ({*ours} != {*theirs}) and numbers(len(theirs)) in (ours, theirs):
            continue
        what = _difference(theirs, ours)
        if not what:
            value = _reordered(value, dim, theirs, ours)
        elif dim in layout.data_dims:
            columns = dim in value.attrs.get(_COLUMNS, ())
            if columns and _consecutive(ours) and not any(map(_is_whole, theirs)):
                continue  # y1, y2 ... beside placeholders
            warn(
                f"{where}: labels of dim {dim!r} are {few(theirs)}, the model's are {few(ours)}: "
                f"{what}. Values are taken by position. Leave the labels out if that is right."
            )
        else:
            columns = dim in value.attrs.get(_COLUMNS, ())
            how = f" (`table.set_axis(range({len(ours)}), axis=1)`)" if columns else ""
            raise DataError(
                f"{where}: labels of dim {dim!r} are {few(theirs)}, the model's are "
                f"{few(ours)}: {what}. Rename them, give the model the same labels, or leave them "
                f"out{how}: then positions count."
            )
    for dim in info.dims:  # as they are by now; the model's own order is meant
        if dim not in layout.times or dim not in value.coords:
            continue
        came = labels_of(value, dim)
        if came != text(layout.coords.get(dim, ())) and _goes_back(came):
            warn(
                f"{where}: labels along {dim!r} are {few(came)}, which do not rise, and the "
                "likelihood is a series: its steps are in the order in which values came. Sort "
                "them first if the labels are times; else leave these out."
            )
    return value


def is_turned(theirs: list[str], ours: list[str]) -> bool:
    """Whether these are the same labels in another order, each of them once."""
    return theirs != ours and len(theirs) == len(ours) == len({*ours}) and {*theirs} == {*ours}


def in_dims(value: xr.DataArray, info: VariableInfo, layout: Layout, where: str) -> xr.DataArray:
    """Bring an array in the model's order of dims and of their labels, datasets first.

    Raises
    ------
    DataError
        Where dims or labels differ.
    """
    value = _by_position(value, info)
    if {*value.dims} - {DATASET} != {*info.dims}:
        raise DataError(
            f"{where}: expected dims {info.dims}, with or without {DATASET!r}, got "
            f"{value.dims}; `data.rename(...)` gives them the model's names."
        )
    value = value.transpose(*(d for d in (DATASET, *info.dims) if d in value.dims))
    return aligned(value, info, layout, where)


def _by_position(value: xr.DataArray, info: VariableInfo) -> xr.DataArray:
    """Take dims in their order where the model has no names for its own."""
    came = [d for d in value.dims if d != DATASET]
    new = [(old, ours) for old, ours in zip(came, info.dims, strict=False) if old != ours]
    ours = [ours for _, ours in new]
    if len(came) != len(info.dims) or not all(is_nameless(d) for d in ours):
        return value
    return value.drop_vars([old for old, _ in new if old in value.coords]).rename(dict(new))


def as_the_model(
    value: object, info: VariableInfo, layout: Layout, names: Sequence[str], where: str
) -> np.ndarray:
    """Values of a variable, in the model's order of dims and labels, and in that of the datasets.

    Raises
    ------
    DataError
        Where dims, labels or names of datasets differ.
    """
    value = with_labels(value, info)
    if not isinstance(value, xr.DataArray):
        return plain(value)
    value = in_dims(value, info, layout, where)
    if DATASET in value.dims and DATASET in value.coords:
        theirs = labels_of(value, DATASET)
        what = _apart(theirs, text(names))
        if what:
            raise DataError(
                f"{where}: names of datasets are {few(theirs)}, those of the data "
                f"{few([*names])}: {what}."
            )
        if {*theirs} == {*text(names)}:
            value = _reordered(value, DATASET, theirs, text(names))
    return plain(value.values)


def together(arrays: Mapping[str, xr.DataArray], where: str) -> dict[str, xr.DataArray]:
    """Bring the variables of a dataset in one order of their labels.

    Raises
    ------
    DataError
        Where two have different labels along a dim, or some come more than once in another order.
    """
    found = dict(arrays)
    seen: dict[Any, list[tuple[str, list[str], bool]]] = {}
    for name, value in arrays.items():
        for dim in value.dims:
            columns = dim in value.attrs.get(_COLUMNS, ())
            known = own_labels(value, dim)
            if known is None:
                continue
            own = known
            before = seen.setdefault(dim, [])
            for other, theirs, names in before:
                what = _apart(own, theirs)
                if what and not (columns or names):
                    raise DataError(
                        f"Variable {name!r}{where}: labels of {dim!r} are {few(own)}, those of "
                        f"{other!r} are {few(theirs)}: {what}. Rows that belong together need "
                        "the same labels, or none."
                    )
                if {*own} == {*theirs} and own != theirs and not what:
                    if dim not in value.coords:  # numbered by pandas: now the numbers count
                        found[name] = found[name].assign_coords({dim: own})
                    found[name], own = _reordered(found[name], dim, own, theirs), theirs
            if all(own != theirs for _, theirs, _ in before):
                before.append((name, own, columns))
    return found


def _apart(own: list[str], theirs: list[str]) -> str:
    """What keeps the labels of two variables from being matched; nothing where positions count."""
    if own == theirs or len(own) != len(theirs):
        return ""
    if {*own} != {*theirs} and numbers(len(own)) in (own, theirs):
        return ""
    return _difference(own, theirs)


def _is_whole(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def _goes_back(labels: list[str]) -> bool:
    """Whether numbers or dates are not in order."""
    dates = all(v[:4].isdecimal() and len(v) > 4 and not v[4].isdecimal() for v in labels)
    try:
        values: list[Any] = labels if dates else [*map(float, labels)]
    except ValueError:
        return False
    return any(b < a for a, b in pairwise(values))


def _consecutive(labels: list[str]) -> bool:
    """Whether labels are whole numbers one after another, as placeholders are."""
    if not all(map(_is_whole, labels)):
        return False
    return {b - a for a, b in pairwise(map(int, labels))} <= {1}


def own_labels(value: object, dim: Any) -> list[str] | None:
    """Labels of one variable along a dim, those that pandas gave by itself too, or none."""
    if not isinstance(value, xr.DataArray) or dim not in value.dims:
        return None
    if dim in value.coords:
        return labels_of(value, dim)
    return numbers(value.sizes[dim]) if dim in value.attrs.get(_NUMBERED, ()) else None


def along(data: Any, dim: str, layout: Layout) -> list[str] | None:
    """Labels that a dataset has along a dim, in the order in which values are read, if it has any.

    A table has a column of them; of arrays they are the first's, as the others are put in its
    order.
    """
    if is_frame(data):
        data = with_index(data)
        return text(data[dim]) if dim in data and dim not in layout.names else None
    infos = {info.name: info for info in layout.variables if dim in info.dims}
    infos |= {held: infos[name] for held, name in layout.holders.items() if name in infos}
    values = {str(n): with_labels(v, infos[n]) for n, v in data.items() if n in infos}
    arrays = {n: v for n, v in values.items() if isinstance(v, xr.DataArray)}
    for value in together(arrays, "").values():
        if dim in value.dims and dim in value.coords:
            return labels_of(value, dim)
    return None


def in_order(rows: Any, along: str | None, layout: Layout, where: str) -> Any:
    """Put the rows of a table in the model's order, where they are labelled elements of a dim."""
    if along is None or along in layout.names or along not in rows:
        return rows
    found = xr.DataArray(np.arange(len(rows)), dims=along, coords={along: text(rows[along])})
    info = VariableInfo(along, (along,), (len(rows),), "int64")
    return rows.iloc[aligned(found, info, layout, where).values]


# Of a table that became an array: dims along which pandas numbered rows by itself, and those whose
# labels are names of columns, which may differ between variables (x1, x2 and y1, y2).
_NUMBERED, _COLUMNS = "pmcl: numbered", "pmcl: columns"


def with_labels(value: object, info: VariableInfo) -> object:
    """Give Series and DataFrames the labels that they have; all else stays.

    One with a dim more than the variable has a dataset in each row. A table whose axes have the
    names of dims, in the other order, is turned.
    """
    if isinstance(value, xr.DataArray | xr.Dataset | np.ndarray | float | int | list | tuple):
        return value
    table: Any = value if hasattr(value, "reindex") else as_pandas(value)
    if not hasattr(table, "reindex") or not hasattr(table, "axes"):  # an Index has values alone
        return table
    if len(info.dims) < 2 and getattr(table, "shape", ())[1:] == (1,):
        table = table.iloc[:, 0]  # a table of one column
    axes = table.axes
    several = len(axes) == len(info.dims) + 1
    if len(axes) != len(info.dims) and not several:
        return table
    dims = (DATASET, *info.dims) if several else info.dims
    turned = len(dims) == 2 and (axes[0].name == dims[1] or axes[1].name == dims[0])
    if turned:  # as `pivot` may give it
        table, axes = table.T, axes[::-1]
    labels = {d: text(a) for d, a in zip(dims, axes, strict=True) if not _counts(a)}
    about = {
        _NUMBERED: [d for d in dims[turned : turned + 1] if d not in labels],
        _COLUMNS: [d for d in dims[1:] if several and d in labels and not turned],
    }
    return xr.DataArray(array_of(table), dims=dims, coords=labels, attrs=about)


def _counts(index: Any) -> bool:
    """Whether pandas numbered rows by itself."""
    return hasattr(index, "step") and index.start == 0 and index.step == 1


def _reordered(value: xr.DataArray, dim: Any, now: list[str], wanted: list[str]) -> xr.DataArray:
    where = {label: i for i, label in enumerate(now)}
    return value.isel({dim: [where[label] for label in wanted]})


def _difference(theirs: list[str], ours: list[str]) -> str:
    """What keeps labels from being matched by name; nothing where they are the same."""
    twice = sorted({v for v, n in [*Counter(ours).items(), *Counter(theirs).items()] if n > 1})
    if twice:
        return f"{few(twice)} came more than once"
    if {*ours} == {*theirs}:
        return ""
    plain = [{v.strip().casefold() for v in labels} for labels in (ours, theirs)]
    return "they differ in case or blanks" if plain[0] == plain[1] else "they differ"


def check_places(index: np.ndarray, labels: Sequence[str] | None, where: str) -> None:
    """Refuse numbers that may be places of groups, and their names as well.

    Raises
    ------
    DataError
    """
    came = {*text(index.ravel())}
    if labels is None or index.dtype.kind not in "biuf" or are_places(labels):
        return
    if came <= {*labels} and came <= {*numbers(len(labels))}:
        raise DataError(
            f"{where}: got {listed(sorted(came))}, which may be places from 0 and names of the "
            f"groups ({listed(labels)}) as well. Pass names as text (`.astype(str)`), or groups "
            "without names."
        )
