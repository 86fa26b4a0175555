"""Draws of an amortized posterior for more datasets than memory holds, here or on a cluster."""

import os
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.cluster import (
    Engine,
    Parts,
    Work,
    about_model,
    bytes_of,
    check_devices,
    check_sum,
    run,
)
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
        The posterior, as `save` writes it, less what it has stored.
    stored : array of shape (dataset, feature), optional
        What the stored datasets' inputs are like.
    covariates : dict
        Sources, where the state cannot hold them.
    asked : Asked
    devices : int, optional
    """

    model: pm.Model
    state: bytes
    stored: np.ndarray | None
    covariates: dict[str, Any]
    asked: Asked
    devices: DevicesLike

    @classmethod
    def of(
        cls, posterior: "AmortizedPosterior", asked: Asked, devices: DevicesLike
    ) -> "SampleWork":
        c = posterior.simulator.covariates
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "posterior.zarr.zip"
            replace(posterior, strategy=None, states=(), records=()).save(path)
            return cls(
                posterior.compiled.model,
                path.read_bytes(),
                posterior.stored_features(),
                {**c.distributions, **c.rows, **c.datasets, **c.functions},
                asked,
                devices,
            )

    def prepare(self) -> tuple[Layout, Engine]:
        from pmcl.posterior import AmortizedPosterior
        from pmcl.saving import load
        from pmcl.state import StateError

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "posterior.zarr.zip"
            path.write_bytes(self.state)
            try:
                posterior = load(path, self.model)
            except StateError:
                posterior = load(path, self.model, covariates=self.covariates)
        assert isinstance(posterior, AmortizedPosterior)
        return posterior.layout, engine(posterior, self.stored, self.asked, self.devices)


def engine(
    posterior: "AmortizedPosterior", stored: np.ndarray | None, asked: Asked, devices: DevicesLike
) -> Engine:
    """Return what samples a part, and says which of its datasets are far from simulations."""

    def work(task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        checked = posterior.checked(task)
        with device_scope(devices):
            tree = sample_task(
                posterior.amortizer,
                posterior.density,
                checked,
                asked,
                progressbar=False,
            )
        return tree, {"far": posterior.far(checked, stored)}

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
    check_devices(client, devices)
    each = partial(bytes_of, posterior.compiled, asked.draws, asked.names, terms=asked.extra.terms)
    parts = Parts.of(data, posterior.layout, each)
    work = None if client is None else SampleWork.of(posterior, asked, devices)
    tree, notes = run(
        work,
        posterior.layout,
        engine(posterior, posterior.stored_features(), asked, devices),
        parts,
        store,
        client=client,
        about={
            "sample": repr(asked),
            "weights": _sum(posterior),
            **about_model(posterior.compiled, parts.first(posterior.layout)),
        },
        whole=parts.whole(posterior.compiled),
        description="Sampling",
        progressbar=progressbar,
    )
    return tree, parts.names, [name for note in notes for name in note["far"]]


def _sum(posterior: "AmortizedPosterior") -> list[int]:
    """Check sums of the weights."""
    leaves = jax.tree.leaves(eqx.filter(posterior.amortizer, eqx.is_array))
    return [check_sum(np.asarray(leaf)) for leaf in leaves]
