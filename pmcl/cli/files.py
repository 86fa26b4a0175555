"""Data files as `as_task` takes them: CSV, Parquet, netCDF and Zarr."""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from pmcl.cli.tables import read_table
from pmcl.data.forms import with_index
from pmcl.data.task import DATASET, DataError

if TYPE_CHECKING:
    import pandas as pd


_SUFFIXES = ".csv, .csv.gz, .tsv, .parquet, .nc, .zarr"


def read_data(
    path: Path, *, dataset: str = DATASET, labels: Collection[str] = ()
) -> "xr.Dataset | xr.DataTree | pd.DataFrame":
    """Read the datasets of a task from a file.

    Parameters
    ----------
    path : path
        A long table (``.csv``, ``.csv.gz``, ``.tsv``, ``.parquet``), or labelled arrays (``.nc``,
        ``.zarr``), those of ArviZ's groups, too.
    dataset : str
        The table's column, or the arrays' dim, that tells datasets apart.
    labels : collection of str
        Dims of the model: columns of a text file that are called so hold names.

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
            found = read_table(path, "\t" if name.endswith(".tsv") else ",", dataset, labels)
        elif name.endswith((".parquet", ".pq")):
            found = with_index(pd.read_parquet(path))
        elif name.endswith((".nc", ".nc4", ".h5")):
            with xr.open_datatree(path) as opened:
                found = _of_tree(opened.load())
        elif name.endswith(".zarr"):
            with _plainly(), xr.open_datatree(path, engine="zarr") as opened:
                found = _of_tree(opened.load())
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
    if isinstance(found, xr.DataTree):
        return found
    frame = isinstance(found, pd.DataFrame)
    known = [*found.columns] if frame else [*found.variables, *found.dims]
    if dataset not in known and (frame or dataset != DATASET):
        raise DataError(
            f"{path}: expected a {'column' if frame else 'dim'} {dataset!r} that tells datasets "
            f"apart, got {known}; `--dataset` says which it is."
        )
    if dataset == DATASET:
        return found
    return found.rename(columns={dataset: DATASET}) if frame else found.rename({dataset: DATASET})


def _of_tree(tree: xr.DataTree) -> xr.Dataset | xr.DataTree:
    """Arrays of a file, or results with their groups."""
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


def write_results(path: Path, tree: xr.DataTree) -> None:
    """Write results: netCDF where the name ends in ``.nc``, else a Zarr folder.

    Raises
    ------
    DataError
        Where there is something already.
    """
    if path.exists():
        raise DataError(f"{path}: is there already; choose another name, or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".nc"):
        tree.to_netcdf(path)
    else:
        tree.to_zarr(path, mode="w", consolidated=False)
