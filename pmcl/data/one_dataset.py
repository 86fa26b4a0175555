"""One dataset of results as it was before others were beside it."""

from collections.abc import Collection, Mapping

import xarray as xr

from pmcl.data.task import DATASET, DataError

PREDICTIONS = "predictions"
LABEL, LENGTH = "_label", "_length"  # after a dim: each dataset's own names, and how many there are
OF_MODEL = "of_model"  # attribute of a variable of the model that is called as lengths are


def one_dataset(
    groups: Mapping[str, xr.Dataset], position: int, dims: Collection[str]
) -> dict[str, xr.Dataset]:
    """Take one dataset of groups of results, without padding and under its own labels.

    Parameters
    ----------
    groups : mapping of str to xarray.Dataset
        With a dim `dataset` where there is one. A variable called ``{dim}_length`` that has no
        other dim says how long a dim is in each dataset.
    position : int
        Of the dataset.
    dims : collection of str
        Of all results.
    """
    found: dict[str, xr.Dataset] = {}
    sizes: dict[str, int] = {}
    of_predictions: dict[str, int] = {}  # which may be of other rows
    for name, data in groups.items():
        lengths = [n for n in data.data_vars if is_length(str(n), data[n], dims)]
        data = data.isel({DATASET: position}, drop=True) if DATASET in data.dims else data
        own = {str(n).removesuffix(LENGTH): int(data[n]) for n in lengths}
        (of_predictions if name.startswith(PREDICTIONS) else sizes).update(own)
        found[name] = data.drop_vars(lengths)
    for name, data in found.items():  # deterministics and likelihoods have the rows' padding too
        here = sizes | of_predictions if name.startswith(PREDICTIONS) else sizes
        data = data.isel({d: slice(n) for d, n in here.items() if d in data.dims})
        labels = {d: data[f"{d}{LABEL}"] for d in data.dims if f"{d}{LABEL}" in data.coords}
        data = data.drop_vars([f"{d}{LABEL}" for d in labels])
        found[name] = data.assign_coords({d: label.values for d, label in labels.items()})
    return found


def check_length(dim: str, names: Collection[str]) -> None:
    """Refuse a variable that is called as the lengths of a dim are, where results have these.

    Raises
    ------
    DataError
    """
    if f"{dim}{LENGTH}" in names:
        raise DataError(
            f"{dim}{LENGTH}: results say by this name how long {dim!r} is in each dataset, where "
            "lengths differ; give the variable of the model another one."
        )


def dims_of(tree: xr.DataTree) -> set[str]:
    """All dims of results."""
    return {str(d) for node in tree.children.values() for d in node.dims}


def is_length(name: str, value: xr.DataArray, dims: Collection[str]) -> bool:
    """Whether a variable of results says how long a dim is in each dataset."""
    of_dim = name.endswith(LENGTH) and name.removesuffix(LENGTH) in dims
    own = OF_MODEL in value.attrs
    return of_dim and not own and value.dims == (DATASET,) and value.dtype.kind in "iuf"
