"""The job of sampling: draws of an amortized posterior for more datasets than memory holds."""

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from pmcl.amortized.sampler import Sampler
from pmcl.compile import CompiledModel
from pmcl.data.task import Layout, Task
from pmcl.parts.job import Job
from pmcl.refinement import Asked
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.files import check_sum


@dataclass(frozen=True, eq=False)
class SampleJob(Job):
    """Sampling, part by part.

    Attributes
    ----------
    sampler : Sampler
    asked : Asked
    devices : int, sequence of jax.Device or jax.sharding.Mesh, optional
    """

    description: ClassVar[str] = "Sampling"

    sampler: Sampler
    asked: Asked
    devices: DevicesLike

    @property
    def compiled(self) -> CompiledModel:  # type: ignore[override]
        """The model."""
        return self.sampler.target

    @property
    def layout(self) -> Layout:
        """What a dataset looks like."""
        return self.sampler.layout

    def label(self) -> dict[str, Any]:
        """Tell this job by what was asked for, and check sums of the weights."""
        leaves = jax.tree.leaves(eqx.filter(self.sampler.amortizer, eqx.is_array))
        sums = [check_sum(np.asarray(leaf)) for leaf in leaves]
        return {"sample": repr(self.asked), "weights": sums}

    def work(self, task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        """Draw, and note which datasets are far from simulations."""
        checked = self.sampler.checked(task)
        tree = self.sampler.sample(checked, self.asked, devices=self.devices)
        return tree, {"far": self.sampler.far(checked)}
