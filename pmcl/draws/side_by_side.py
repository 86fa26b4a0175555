"""Results of different datasets in one tree."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import xarray as xr

from pmcl.data.one_dataset import LENGTH, is_length
from pmcl.data.task import DATASET
from pmcl.draws.handed import DATA


def side_by_side(
    trees: Sequence[xr.DataTree], order: Sequence[int] | np.ndarray, row: str | None
) -> xr.DataTree:
    """Put results of datasets in one tree, NaN where some have less along a dim.

    Parameters
    ----------
    trees : sequence of xarray.DataTree
    order : sequence of int
        Position of every dataset in the whole, tree after tree.
    row : str, optional
        The dim of the rows, whose numbers are said.
    """
    back, found = np.argsort(order), {}
    for name in trees[0].children:
        parts = [t[name].to_dataset() for t in trees]
        if name in DATA and row is not None:
            parts = _counted(parts, row)
        parts = [_with_all(p, parts) for p in _of_one_size(parts)]
        whole = xr.concat(
            parts, DATASET, coords="minimal", compat="override", join="override",
            combine_attrs="override",
        )  # fmt: skip
        found[name] = whole.isel({DATASET: back})
    tree = xr.DataTree.from_dict(found)
    tree["posterior"].attrs["levels"] = in_one(
        str(t["posterior"].attrs.get("levels", "")) for t in trees
    )
    return tree


def in_one(said: Iterable[str]) -> str:
    """What is said of parts, each once, and not what another of them begins with."""
    each = dict.fromkeys(said)
    return "; ".join(s for s in each if s and not any(o != s and o.startswith(s) for o in each))


def _counted(parts: Sequence[xr.Dataset], row: str) -> list[xr.Dataset]:
    """Say how many rows datasets have, where these differ."""
    name = f"{row}{LENGTH}"
    numbers = {p.sizes[row] for p in parts if row in p.dims}
    said = [name in p and is_length(name, p[name], {row}) for p in parts]
    if len(numbers) < 2 and not any(said):
        return list(parts)
    return [
        p if here else p.assign({name: (DATASET, np.full(p.sizes[DATASET], p.sizes[row]))})
        for p, here in zip(parts, said, strict=True)
    ]


def _of_one_size(parts: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Fill dims that are longer in some with NaN."""
    most = {d: max(p.sizes.get(d, 0) for p in parts) for p in parts for d in p.dims}
    uneven = [
        d for d, n in most.items() if d != DATASET and any(p.sizes.get(d) != n for p in parts)
    ]

    def wide(part: xr.Dataset) -> xr.Dataset:
        fill = {d: (0, most[d] - part.sizes[d]) for d in uneven if d in part.dims}
        return part.drop_vars(uneven, errors="ignore").pad(fill) if fill else part

    return [wide(p) for p in parts]


def _with_all(part: xr.Dataset, others: Collection[xr.Dataset]) -> xr.Dataset:
    """Add what only some datasets are said of."""
    for other in others:
        for name, like in other.data_vars.items():
            if name not in part and like.dims == (DATASET,):
                nothing = "" if like.dtype.kind in "OU" else np.nan
                part = part.assign({name: (DATASET, np.full(part.sizes[DATASET], nothing))})
    return part
