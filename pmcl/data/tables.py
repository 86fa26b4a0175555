"""Long tables: a row for each element of a dim, a column for each variable."""

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from pmcl.compile import VariableInfo
from pmcl.data.constants import check_constants
from pmcl.data.forms import with_index
from pmcl.data.label_text import name_of
from pmcl.data.labels import in_order
from pmcl.data.order import check_one_order
from pmcl.data.plain import alike, array_of
from pmcl.data.stacking import stack
from pmcl.data.task import DATASET, DataError, Layout, Task
from pmcl.runtime.arguments import listed, warn

if TYPE_CHECKING:
    import pandas as pd


def from_frame(data: "pd.DataFrame", layout: Layout) -> Task:
    """Read a long table: one dataset, or several by the column `dataset`.

    Raises
    ------
    DataError
        Naming the column, and the dataset.
    """
    data = _with_times(data, layout)
    _warn_of_parameters(data, layout)
    if DATASET not in data.columns:
        _warn_of_names(data, layout)
        return stack([_rows_of(data, layout, "0")], ["0"], layout)
    nameless = int((data[DATASET].isna() | (data[DATASET] == "")).sum())
    if nameless:
        raise DataError(
            f"data: expected a name in every row of column {DATASET!r}, {nameless} rows have none."
        )
    groups = [(name_of(n), rows) for n, rows in data.groupby(DATASET, sort=False, observed=True)]
    check_one_order(dict(groups), layout)
    datasets = [_rows_of(rows, layout, name) for name, rows in groups]
    return stack(datasets, [name for name, _ in groups], layout)


def one_table(data: "pd.DataFrame", layout: Layout, name: str) -> dict[str, np.ndarray]:
    """Read a long table that is one dataset, by its name.

    Raises
    ------
    DataError
        Where it has several.
    """
    data = _with_times(data, layout)
    _warn_of_parameters(data, layout)
    names = data[DATASET].nunique() if DATASET in data else 1
    if names > 1:
        raise DataError(
            f"Dataset {name!r}: expected one dataset under one name, got {names} in column "
            f"{DATASET!r}."
        )
    return _rows_of(data, layout, name)


def _with_times(data: "pd.DataFrame", layout: Layout) -> "pd.DataFrame":
    """Make columns of an index; the one of a series has its times, whatever its name is."""
    row, index = layout.row, data.index
    numbered = index.name is None and index.dtype.kind in "iu"  # by pandas: no times
    alone = index.nlevels == 1 and index.name != DATASET and not numbered
    if row in layout.times and row not in data and alone:
        data = data.assign(**{str(row): index})
    return with_index(data)


def _warn_of_names(data: "pd.DataFrame", layout: Layout) -> None:
    """Say which columns of text that nobody reads may name datasets."""
    own = {*layout.names, *layout.coords, *layout.holders}
    text = [
        c
        for c in data.columns
        if str(c).split("[")[0] not in own
        and data[c].dtype.kind not in "biufcmM"
        and 1 < data[c].nunique() < len(data)
    ]
    if text:
        warn(
            f"data: a table without a column {DATASET!r} is read as one dataset of {len(data)} "
            f"rows. Do {listed(text)} tell datasets apart? Then pass `data.groupby({text[0]!r})`."
        )


def _warn_of_parameters(data: "pd.DataFrame", layout: Layout) -> None:
    """Say which columns are called like parameters, as a formula's are, and unread."""
    called = {part for name in layout.parameters for part in _in_formula(name)}
    known = {*layout.names, *layout.coords, *layout.holders, *layout.constants, DATASET}
    unread = [c for c in data.columns if c in called - known]
    if unread:
        warn(
            f"data: columns {listed(unread)} are called like parameters, and are not read: in the "
            "model are arrays of its own (as in those of Bambi), or nothing. Right for a table "
            "with the rows that the model was made with, in their order; else make them `pm.Data`."
        )


def _in_formula(name: str) -> set[str]:
    """Parts of a parameter's name, and what a formula calls functions of.

    `x` and `g` of `x:g`, `1|g_sigma` and `bs(x, df=4)|g`.
    """
    grouped = "|" in name
    parts = re.split(r"[|:]", re.sub("_(sigma|offset)$", "", name) if grouped else name)
    inner = " ".join(re.findall(r"\((.*)\)", name))
    return {*parts, *re.findall(r"[^\W\d]\w*\b(?!\s*[(=])", inner)}


def _rows_of(rows: "pd.DataFrame", layout: Layout, name: str) -> dict[str, np.ndarray]:
    """Read the rows of one dataset."""
    rows = by_variable(rows, layout)
    along = layout.row if layout.row else next(iter(layout.variables[0].dims), None)
    rows = in_order(rows, along, layout, f"Column {along!r} of dataset {name!r}")
    check_constants(rows, layout, name)
    return {i.name: from_columns(rows, i, layout, along, name) for i in layout.variables}


def by_variable(rows: "pd.DataFrame", layout: Layout) -> "pd.DataFrame":
    """Name observations by their variable; a `pm.Data` that says the same beside them is left out.

    Returns
    -------
    pandas.DataFrame
    """
    both = [(h, n) for h, n in layout.holders.items() if h in rows and n in rows]
    twice = [h for h, n in both if alike(rows[h], rows[n])]
    return rows.drop(columns=twice).rename(columns=dict(layout.holders))


def from_columns(
    rows: "pd.DataFrame", info: VariableInfo, layout: Layout, along: str | None, name: str
) -> np.ndarray:
    """One variable of one dataset; rows of the table are the dim `along`, columns another.

    Raises
    ------
    DataError
        Naming the columns.
    """
    across = [d for d in info.dims if d != along]
    if len(across) > 1:
        raise DataError(
            f"Variable {info.name!r} has {len(info.dims)} dims: a table cannot hold it; pass an "
            "xarray.Dataset for each dataset."
        )
    wanted: list[Hashable] = [info.name]
    if across:
        size = info.shape[info.dims.index(across[0])]
        wanted = [f"{info.name}[{v}]" for v in layout.coords.get(across[0], np.arange(size))]
    missing = [c for c in wanted if c not in rows.columns]
    if missing:
        raise DataError(
            f"Variable {info.name!r} of dataset {name!r}: expected column(s) {missing} of a table "
            f"with a row for each element of {along!r}, got {list(rows.columns)}."
        )
    twice = [c for c in wanted if [*rows.columns].count(c) > 1]
    if twice:
        raise DataError(f"data: columns {twice} come more than once; leave one of each.")
    # Column by column: together, flags beside numbers would become objects.
    value = np.stack([array_of(rows[c]) for c in wanted], axis=1)
    if along not in info.dims:
        different = max(len({*column.tolist()}) for column in value.T)
        if different > 1:
            raise DataError(
                f"Variable {info.name!r} of dataset {name!r}: expected one value for the whole "
                f"dataset, got {different} different ones; a table of several needs a column "
                f"{DATASET!r}."
            )
        value = value[0]
    elif across and info.dims.index(along) == 1:
        value = value.T
    return value if across else value[..., 0]
