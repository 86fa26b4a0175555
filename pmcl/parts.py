"""Draws of an amortized posterior for more datasets than memory holds, here or on a cluster."""

import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.cluster import Engine, Parts, Work, run
from pmcl.correction import Asked, sample_task
from pmcl.data import Layout, Task, TaskLike
from pmcl.devices import DevicesLike
from pmcl.devices import scope as device_scope

if TYPE_CHECKING:
    from distributed import Client

    from pmcl.posterior import AmortizedPosterior


@dataclass(frozen=True)
class SampleWork(Work):
    """Sampling on the workers of a cluster.

    Attributes
    ----------
    model : pymc.Model
    state : bytes
        The posterior, as `save` writes it.
    asked : Asked
    devices
    """

    model: pm.Model
    state: bytes
    asked: Asked
    devices: DevicesLike

    @classmethod
    def of(
        cls, posterior: "AmortizedPosterior", asked: Asked, devices: DevicesLike
    ) -> "SampleWork":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "posterior.zarr.zip"
            posterior.save(path)
            return cls(posterior.compiled.model, path.read_bytes(), asked, devices)

    def prepare(self) -> tuple[Layout, Engine]:
        from pmcl.posterior import AmortizedPosterior
        from pmcl.saving import load

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "posterior.zarr.zip"
            path.write_bytes(self.state)
            posterior = load(path, self.model)
        assert isinstance(posterior, AmortizedPosterior)
        return posterior.layout, engine(posterior, self.asked, self.devices)


def engine(posterior: "AmortizedPosterior", asked: Asked, devices: DevicesLike) -> Engine:
    """Return what samples a part, and says which of its datasets are far from simulations."""

    def work(task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        checked = posterior.checked(task)
        with device_scope(devices):
            tree = sample_task(
                posterior.amortizer, posterior.density, checked, asked, progressbar=False
            )
        return tree, {"far": posterior.far(checked)}

    return work


def sample_parts(
    posterior: "AmortizedPosterior",
    data: TaskLike,
    asked: Asked,
    store: str | os.PathLike,
    *,
    client: "Client | None",
    devices: DevicesLike,
    progressbar: bool,
) -> tuple[xr.DataTree, tuple[str, ...], list[str]]:
    """Draw as `sample` does, part by part, into a Zarr folder.

    Returns
    -------
    tree : xarray.DataTree
        Whose values are read when they are used.
    names : tuple of str
    far : list of str
        Names of datasets that are far from simulations.
    """
    parts = Parts.of(data, posterior.layout)
    work = None if client is None else SampleWork.of(posterior, asked, devices)
    tree, notes = run(
        work,
        posterior.layout,
        engine(posterior, asked, devices),
        parts,
        store,
        client=client,
        about={"sample": repr(asked), "weights": _sum(posterior)},
        whole=parts.whole(posterior.compiled),
        description="Sampling",
        progressbar=progressbar,
    )
    return tree, parts.names, [name for note in notes for name in note["far"]]


def _sum(posterior: "AmortizedPosterior") -> int:
    """Check sum of the weights."""
    found = 0
    for leaf in jax.tree.leaves(eqx.filter(posterior.amortizer, eqx.is_array)):
        found = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), found)
    return found
