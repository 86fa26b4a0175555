"""Many datasets, part by part: in this process, or on the workers of a Dask cluster."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import xarray as xr

from pmcl.parts.cluster import there
from pmcl.parts.datasets import Parts
from pmcl.parts.folder import Folder, folder_for, one_writer
from pmcl.parts.job import Job, about_model, run_part
from pmcl.runtime.progress import progress_bar

if TYPE_CHECKING:
    from distributed import Client


def run(
    job: Job,
    parts: Parts,
    path: str | os.PathLike,
    *,
    client: "Client | None",
    progressbar: bool,
) -> tuple[xr.DataTree, list[dict[str, Any]]]:
    """Work on all parts, and write their results to a Zarr folder as they come.

    What an interrupted call has written is not done again by the next one like it.

    Parameters
    ----------
    job : Job
    parts : Parts
    path : path
        A new folder; it is there once all is written, and not before.
    client : distributed.Client, optional
        None: one part after another in this process.
    progressbar : bool

    Returns
    -------
    tree : xarray.DataTree
        Whose values are read from the folder when they are used.
    notes : list of dict
        Of every part.
    """
    if jax.process_count() > 1:
        raise ValueError(
            "store: expected one process to write it, this one is of several (`jax.distributed`). "
            "Leave `store` out, or sample on a cluster from one process."
        )
    about = {**job.label(), **about_model(job.compiled, parts.first(job.layout)), **parts.about()}
    with one_writer(Path(path)):
        folder = folder_for(path, about, len(parts), parts.size)
        left = folder.left()
        total = len(parts)

        def size(number: int) -> int:
            return min(parts.size, total - folder.begin(number))

        with progress_bar(job.description, total, enabled=progressbar) as bar:
            bar.advance(total - sum(map(size, left)))
            if client is None:
                done: Iterator[int] = _here(job, parts, folder, left)
            else:
                done = there(client, job, parts, folder, left)
            for number in done:
                bar.advance(size(number))
        return folder.finish(Path(path), parts.names, job.whole(parts))


def _here(job: Job, parts: Parts, folder: Folder, left: list[int]) -> Iterator[int]:
    for number in left:
        tree, note = run_part(job, parts.part(number))
        folder.write(number, tree, **note)
        yield number
