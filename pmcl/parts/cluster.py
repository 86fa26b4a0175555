"""Parts on the workers of a Dask cluster."""

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import cloudpickle
import xarray as xr

from pmcl.parts.datasets import Parts
from pmcl.parts.folder import Folder
from pmcl.parts.job import Job
from pmcl.runtime.extras import need

if TYPE_CHECKING:
    from distributed import Client, Future


_AHEAD = 2  # parts a worker is given at a time, so that none waits for the driver
_FEWEST = 16  # parts that are given out, for workers that come later


def there(
    client: "Client", job: Job, parts: Parts, folder: Folder, left: list[int]
) -> Iterator[int]:
    """Give parts to the workers, a few ahead, and write what they cannot write themselves."""
    need("cluster", "client=", "distributed")
    import dask
    from distributed import as_completed

    from pmcl.parts.worker import Prepared, work_on

    token = f"pmcl-{uuid.uuid4().hex}"
    if len(left) < folder.parts:
        folder.open(token)
    client.register_plugin(Prepared(token, cloudpickle.dumps(job)))
    queue = iter(left)

    def submitted(number: int) -> "Future":
        part = parts.part(number)
        if isinstance(part.data, xr.Dataset):
            # without the other parts, which the graph of its arrays has, too
            part = part._replace(data=dask.optimize(part.data)[0])
        return client.submit(work_on, token, part, folder, key=f"{token}-{number}", pure=False)

    def more(running: int) -> "list[Future]":
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        return [submitted(n) for n in islice(queue, max(_AHEAD * workers, _FEWEST) - running)]

    running = as_completed(more(0))
    try:
        for future in running:
            number, tree, note = future.result()
            if tree is not None:
                folder.write(number, tree, **note)
                folder.open(token)
            yield number
            for following in more(running.count()):
                running.add(following)
    finally:
        client.cancel(list(running.futures))
        client.unregister_worker_plugin(token)
