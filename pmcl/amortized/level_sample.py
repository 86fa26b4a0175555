"""The job of sampling a multilevel model's posteriors: more datasets than memory holds."""

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from pmcl.amortized.groups import Checked
from pmcl.amortized.level_sampler import LevelSampler
from pmcl.compile import CompiledModel
from pmcl.data.task import Layout, Task
from pmcl.draws.groups import Named
from pmcl.parts.datasets import Parts
from pmcl.parts.job import Job, bytes_of, check_devices
from pmcl.parts.run import run
from pmcl.refinement.settings import Asked
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.files import check_sum

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class LevelSampleJob(Job):
    """Sampling, part by part.

    Attributes
    ----------
    sampler : LevelSampler
        At the size of the data.
    asked : Asked
    devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
    named : Named, optional
        Names of all datasets' groups.
    """

    description: ClassVar[str] = "Sampling"

    sampler: LevelSampler
    asked: Asked
    devices: DevicesLike
    named: Named | None

    @property
    def compiled(self) -> CompiledModel:  # type: ignore[override]
        """The model."""
        return self.sampler.sized.compiled

    @property
    def layout(self) -> Layout:
        """What a dataset looks like."""
        return Layout.of(self.compiled, self.sampler.row)

    def label(self) -> dict[str, Any]:
        """Tell this job by what was asked for, and check sums of the weights."""
        leaves = jax.tree.leaves(eqx.filter(self.sampler.amortizer, eqx.is_array))
        sums = [check_sum(np.asarray(leaf)) for leaf in leaves]
        groups = None if self.named is None else self.named.about()
        return {"sample": repr(self.asked), "weights": sums, "groups": groups}

    def work(self, task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        """Draw; groups have their names."""
        given = Checked(task, self.sampler.sized)
        tree = self.sampler.sample(given, self.asked, devices=self.devices)
        if self.named is not None and task.labels is not None:
            tree = self.named.of(tree, task.labels)
        return tree, {}

    def whole(self, parts: Parts) -> dict[str, xr.Dataset]:
        """Groups that are written at once: the data."""
        found = super().whole(parts)
        if self.named is None or not found:
            return found
        tree = self.named.of(xr.DataTree.from_dict(found), self.named.labels)
        return {name: node.to_dataset() for name, node in tree.children.items()}


def sample_stored(
    sampler: LevelSampler,
    given: Checked,
    asked: Asked,
    *,
    store: str | os.PathLike,
    client: "Client | None",
    devices: DevicesLike,
    progressbar: bool,
) -> xr.DataTree:
    """Draw for all datasets, and write results part by part."""
    check_devices(client, devices)
    named = None
    if sampler.groups is not None and given.labels is not None:
        named = Named(sampler.groups.grouping.dim, given.labels)
    job = LevelSampleJob(sampler.at(given.sized), asked, devices, named)
    size = partial(bytes_of, job.compiled, asked.draws, asked.names, terms=asked.extra.terms)
    parts = Parts.of(given.task, job.layout, size)
    tree, _ = run(job, parts, store, client=client, progressbar=progressbar)
    return tree
