"""Results written to Zarr part by part, for more datasets than memory holds."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import xarray as xr

from pmcl.data import DATASET


def write_parts(
    path: str | os.PathLike, whole: xr.DataTree, parts: Iterable[xr.DataTree]
) -> xr.DataTree:
    """Write the results of parts of a task one after another, and open what was written.

    Parameters
    ----------
    path : path
        A new folder; it is there once all is written, and not before.
    whole : xarray.DataTree
        Groups that are written as they are.
    parts : iterable of xarray.DataTree
        Groups along the dim `dataset`. The first part's size is that of the chunks.

    Returns
    -------
    xarray.DataTree
        Whose values are read from the folder when they are used.

    Raises
    ------
    FileExistsError
        Where there is something at `path` already.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(
            f"store: {target} is there already; expected the name of a new folder. Remove it, or "
            "choose another."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(partial, ignore_errors=True)
    seconds, engines = 0.0, set()
    try:
        for i, part in enumerate(parts):
            attrs = part["posterior"].attrs
            seconds += attrs["sampling_time"]
            engines |= set(attrs["engine"].split(", "))
            for name, node in part.children.items():
                _write(partial, name, node.to_dataset(), append=i > 0)
        for name, node in whole.children.items():
            _write(partial, name, node.to_dataset(), append=False)
        _describe(partial, sampling_time=seconds, engine=", ".join(sorted(engines)))
        partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return xr.open_datatree(target, engine="zarr", consolidated=False)


def _write(folder: Path, group: str, data: xr.Dataset, *, append: bool) -> None:
    # Text of any length: the names of a later part may be longer.
    text = {k: v.astype(object) for k, v in data.variables.items() if v.dtype.kind == "U"}
    data = data.assign({k: v for k, v in text.items() if k in data.data_vars}).assign_coords(
        {k: v for k, v in text.items() if k in data.coords}
    )
    if append:
        # What does not vary from dataset to dataset is there already.
        data = data.drop_vars([k for k, v in data.variables.items() if DATASET not in v.dims])
        data.to_zarr(folder, group=group, append_dim=DATASET, consolidated=False)
    else:
        encoding = {
            k: {"chunks": tuple(max(n, 1) for n in v.shape)} for k, v in data.variables.items()
        }
        data.to_zarr(
            folder, group=group, mode="a", consolidated=False, zarr_format=3, encoding=encoding
        )


def _describe(folder: Path, **attributes: float | str) -> None:
    import zarr

    zarr.open_group(folder, mode="r+", path="posterior").attrs.update(attributes)
