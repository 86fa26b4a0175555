"""What runs on the workers of a Dask cluster; needs the extra "cluster"."""

from threading import Lock
from typing import Any

import cloudpickle
import xarray as xr
from distributed import Worker, WorkerPlugin, get_worker

from pmcl.parts.datasets import Part
from pmcl.parts.folder import Folder
from pmcl.parts.job import Job, run_part
from pmcl.runtime.devices import at_most


class Prepared(WorkerPlugin):
    """A job that each worker has: those that come later, too, and those that come back.

    Attributes
    ----------
    name : str
    pickled : bytes
        The job, made of it at the first part: compiling takes seconds to minutes.
    """

    def __init__(self, name: str, pickled: bytes):
        self.name = name
        self.pickled = pickled

    def setup(self, worker: Worker) -> None:
        """Begin with nothing compiled: a worker that dies costs its part and this, no more."""
        # One part at a time: JAX has threads of its own, and memory is for one.
        self.lock = Lock()
        self.ready: Job | None = None

    def job(self) -> Job:
        """Compile at the first part."""
        if self.ready is None:
            self.ready = cloudpickle.loads(self.pickled)
        return self.ready


def work_on(
    name: str, part: Part, folder: Folder
) -> tuple[int, xr.DataTree | None, dict[str, Any]]:
    """Work on one part; write its results where the folder can be seen from here.

    Returns
    -------
    number : int
    tree : xarray.DataTree, optional
        What the driver has to write.
    note : dict
        That goes with it.
    """
    here = folder.is_open(name)
    if here and folder.is_done(part.number):
        # written by a worker that died before it could say so
        return part.number, None, {}
    worker = get_worker()
    plugin = worker.plugins[name]
    assert isinstance(plugin, Prepared)
    with plugin.lock, at_most(worker.state.nthreads):  # other workers may be on this machine
        tree, note = run_part(plugin.job(), part)
    if here or folder.is_open(name):
        folder.write(part.number, tree, **note)
        return part.number, None, {}
    return part.number, tree, note
