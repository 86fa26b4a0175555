"""Forms that users' data have, before a model says what is what."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pmcl.data.one_dataset import dims_of, is_length, one_dataset
from pmcl.data.task import DATASET, DataError

_DATA = ("observed_data", "constant_data")  # of ArviZ


def in_form(data: Any) -> Any:
    """Turn grouped tables and sequences of datasets into mappings, other tables into pandas'.

    Raises
    ------
    DataError
        Where what came has no variables with names.
    """
    if isinstance(data, xr.DataTree):
        return _of_tree(data)
    if is_frame(data) and hasattr(data, "compute"):  # a table of Dask
        data = data.compute()
    if is_frame(data) and data.columns.nlevels > 1:
        raise DataError(
            f"data: expected columns with one name each, got {data.columns[0]!r} and the like; "
            '`table.columns = ["_".join(c) for c in table.columns]` joins the parts.'
        )
    if isinstance(data, xr.Dataset | Mapping) or is_frame(data):
        return data
    if hasattr(data, "ngroups") and hasattr(data, "groups"):  # what pandas' `groupby` gives
        return _groups(data)
    if isinstance(data, np.ndarray) or hasattr(data, "to_frame") or isinstance(data, xr.DataArray):
        raise DataError(
            f"data: expected values by the variables' names, got {_what(data)}: write "
            '{"y": values}.'
        )
    if isinstance(data, list | tuple):
        if not all(isinstance(one, Mapping) or is_frame(one) for one in data):
            raise DataError(
                "data: a sequence is read as one dataset for each entry, each a mapping of arrays, "
                f"a Dataset or a DataFrame; got {_what(data)}. Values of one variable come by its "
                'name: {"y": values}.'
            )
        return {str(i): one for i, one in enumerate(data)}
    return as_pandas(data)


def _of_tree(tree: xr.DataTree) -> Any:
    """Read the data of ArviZ's groups, where there are such, or a dataset from each node."""
    if "observed_data" in tree.children:
        groups = {n: tree[n].to_dataset() for n in _DATA if n in tree.children}
        return _of_results(groups, dims_of(tree))
    if tree.children and not tree.data_vars:
        return {name: in_form(node) for name, node in tree.children.items()}
    return tree.to_dataset()


def _of_results(groups: dict[str, xr.Dataset], dims: set[str]) -> dict[str, Any]:
    """Variables of results; by dataset where these have lengths of their own."""
    if not any(is_length(str(n), v, dims) for g in groups.values() for n, v in g.items()):
        return _variables(groups)
    names = next(g for g in groups.values() if DATASET in g.dims)[DATASET].values
    return {str(name): _variables(one_dataset(groups, i, dims)) for i, name in enumerate(names)}


def _variables(groups: Mapping[str, xr.Dataset]) -> dict[str, xr.DataArray]:
    return {str(n): value for data in groups.values() for n, value in data.data_vars.items()}


def _groups(data: Any) -> dict[str, Any]:
    found = [(str(_name(name)), rows) for name, rows in data]
    found = [(name, rows if is_frame(rows) else rows.to_frame()) for name, rows in found]
    twice = sorted(name for name, n in Counter(name for name, _ in found).items() if n > 1)
    if twice:
        raise DataError(f"data: names of groups must differ as text; {twice} came more than once.")
    nameless = len(data.obj) - sum(len(rows) for _, rows in found)
    if nameless:
        raise DataError(
            f"data: {nameless} rows have no group, and `groupby` leaves them out: give them one, "
            "or drop them before."
        )
    return dict(found)


def is_frame(data: object) -> bool:
    """Whether data are a table of pandas."""
    return hasattr(data, "columns") and hasattr(data, "groupby") and hasattr(data, "iloc")


def with_index(table: Any) -> Any:
    """Make columns of an index that has names, as its levels may name datasets and rows.

    A column of that name is what counts.
    """
    names = [n for n in table.index.names if n is not None]
    twice = [n for n in names if n in table.columns]
    table = table.reset_index(twice, drop=True) if twice else table
    rest = [n for n in names if n not in table.columns]
    return table.reset_index(rest) if rest else table


def several(data: Mapping, variables: Iterable[str]) -> bool:
    """Whether a mapping holds datasets by their names, and not arrays by variables'."""
    if isinstance(data, xr.Dataset) or not data:
        return False
    frames = not {*map(str, data)} & {*variables}
    return all(isinstance(v, Mapping) or (frames and _is_table(v)) for v in data.values())


def _is_table(value: object) -> bool:
    from narwhals.dependencies import is_into_dataframe

    return is_frame(value) or is_into_dataframe(value)


def as_pandas(data: Any) -> Any:
    """A table of another library as one of pandas; anything else as it is."""
    import narwhals

    table = narwhals.from_native(data, pass_through=True)
    if isinstance(table, narwhals.LazyFrame):
        table = table.collect()
    if not isinstance(table, narwhals.DataFrame):
        return data
    import pandas as pd

    return pd.DataFrame({name: table[name].to_numpy() for name in table.columns})


def _name(key: object) -> object:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def _what(data: object) -> str:
    kind = type(data).__name__
    if isinstance(data, Sequence) and len(data):
        return f"a {kind} of {type(data[0]).__name__}"
    shape = getattr(data, "shape", None)
    return kind if shape is None else f"{kind} of shape {tuple(shape)}"
