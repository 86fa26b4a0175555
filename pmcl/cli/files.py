"""Data files as `as_task` takes them: CSV, Parquet, netCDF and Zarr."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from pmcl.cli.tables import read_table
from pmcl.data.forms import with_index
from pmcl.data.label_text import storable
from pmcl.data.task import DATASET, DataError

if TYPE_CHECKING:
    import pandas as pd


_SUFFIXES = ".csv, .csv.gz, .tsv, .parquet, .nc, .zarr"


def read_data(
    path: Path, *, dataset: str = DATASET, labels: Mapping[str, Any] | None = None
) -> "xr.Dataset | xr.DataTree | pd.DataFrame":
    """Read the datasets of a task from a file.

    Parameters
    ----------
    path : path
        A long table (``.csv``, ``.csv.gz``, ``.tsv``, ``.parquet``), or labelled arrays (``.nc``,
        ``.zarr``), those of ArviZ's groups, too.
    dataset : str
        The table's column, or the arrays' dim, that tells datasets apart.
    labels : mapping of str to sequence, optional
        Dims of the model with their labels, None where they have none: columns of a text file that
        are called so hold names.

    Raises
    ------
    DataError
        Where there is no such file, it cannot be read, or its kind is not known.
    """
    import pandas as pd

    if not path.exists():
        raise DataError(f"{path}: expected a data file or folder, there is none.")
    name = path.name.lower().removesuffix(".gz")
    try:
        if name.endswith((".csv", ".tsv")):
            separator = "\t" if name.endswith(".tsv") else ","
            found = read_table(path, separator, dataset, labels or {})
        elif name.endswith((".parquet", ".pq")):
            found = with_index(pd.read_parquet(path))
        elif name.endswith((".nc", ".nc4", ".h5")):
            found = _arrays(path)
        elif name.endswith(".zarr"):
            with _plainly():
                found = _arrays(path, engine="zarr")
        else:
            raise DataError(f"{path}: expected one of {_SUFFIXES}.")
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected text in UTF-8, got other bytes ({error.reason}). Save it as UTF-8; "
            "a compressed file's name ends in .gz."
        ) from error
    except Exception as error:  # whatever the readers say of a damaged file
        raise DataError(f"{path}: could not be read ({error}).") from error
    frame, tree = isinstance(found, pd.DataFrame), isinstance(found, xr.DataTree)
    if tree:
        known = [*dict.fromkeys(name for node in found.subtree for name in _names(node))]
    else:
        known = [*found.columns] if frame else _names(found)
    if dataset not in known and (frame or dataset != DATASET):
        raise DataError(
            f"{path}: expected a {'column' if frame else 'dim'} {dataset!r} that tells datasets "
            f"apart, got {known}; `--dataset` says which it is."
        )
    if dataset == DATASET:
        return found

    def rename(one: xr.Dataset) -> xr.Dataset:
        if dataset not in _names(one):
            return one
        if DATASET in one.dims:
            raise DataError(f"{path}: expected one dim of datasets, got {dataset!r} and 'dataset'.")
        return one.drop_vars(DATASET, errors="ignore").rename({dataset: DATASET})

    if frame:  # a column `dataset` beside the one that counts is another
        return found.drop(columns=DATASET, errors="ignore").rename(columns={dataset: DATASET})
    return found.map_over_datasets(rename) if tree else rename(found)


def _names(data: xr.Dataset | xr.DataTree) -> list[str]:
    return [*map(str, dict.fromkeys([*data.variables, *data.dims]))]


def _arrays(path: Path, **how: Any) -> xr.Dataset | xr.DataTree:
    """Arrays of a file, or results with their groups."""
    try:
        with xr.open_datatree(path, **how) as tree:
            tree.load()
    except ValueError:  # netCDF 3; groups that do not align
        with xr.open_dataset(path, **how) as root:
            if root.data_vars:
                return root.load()
        raise
    return tree if tree.children and not tree.data_vars else tree.to_dataset()


@contextmanager
def _plainly() -> Iterator[None]:
    """Read a Zarr folder as it is: whether its metadata are in one place is no concern of ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*consolidated")
        yield


def read_results(path: Path) -> xr.DataTree:
    """Open results of `sample` or `sample_reference`: netCDF, or a Zarr folder.

    Raises
    ------
    DataError
        Where there are none, or they cannot be read.
    """
    if not path.exists():
        raise DataError(f"{path}: expected results (.nc or .zarr), there is nothing.")
    try:
        if path.is_file():
            return xr.open_datatree(path)
        return xr.open_datatree(path, engine="zarr", consolidated=False)
    except Exception as error:
        raise DataError(f"{path}: could not be read as results ({error}).") from error


def check_new(path: Path) -> None:
    """Refuse a place for results where there is something already, before any are made.

    Raises
    ------
    DataError
    """
    if path.exists():
        raise DataError(f"{path}: is there already; choose another name, or remove it.")


def write_results(path: Path, tree: xr.DataTree) -> None:
    """Write results: netCDF where the name ends in ``.nc``, else a Zarr folder.

    Raises
    ------
    DataError
        Where there is something already.
    """
    check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = tree.map_over_datasets(storable)
    if path.name.endswith(".nc"):
        tree.to_netcdf(path)
    else:
        tree.to_zarr(path, mode="w", consolidated=False)
