"""Work on one part of a task, wherever it is done."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.compile import CompiledModel, VariableInfo, compile_model
from pmcl.compile.description import describe
from pmcl.data.reading import as_task, layout_of
from pmcl.data.task import Layout, Task
from pmcl.parts.datasets import Part, Parts
from pmcl.runtime import precision


class Job(ABC):
    """What is done with every part: in this process, or on workers, to which it travels as data.

    Subclasses are frozen dataclasses. A compiled model among their fields travels as the PyMC model
    that it is of, and is compiled again where it arrives.

    Attributes
    ----------
    description : str
        Of what the progress says.
    """

    description: ClassVar[str]
    compiled: CompiledModel

    @property
    def layout(self) -> Layout:
        """What a dataset looks like."""
        return layout_of(self.compiled)

    @abstractmethod
    def label(self) -> dict[str, Any]:
        """Tell this job from others of the same model and data."""

    @abstractmethod
    def work(self, task: Task) -> tuple[xr.DataTree, dict[str, Any]]:
        """Results of a part, and what else is to be noted of it."""

    def whole(self, parts: Parts) -> dict[str, xr.Dataset]:
        """Groups that are written at once: the data, where they are in memory."""
        return parts.whole(self.compiled)

    def __reduce__(self) -> tuple:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return _arrived, (type(self), {k: packed(v) for k, v in values.items()})


class _Packed(NamedTuple):
    model: pm.Model
    covariates: tuple[str, ...]


def packed(value: Any) -> Any:
    """Put a compiled model, which holds functions, as data; all else stays."""
    if isinstance(value, CompiledModel):
        return _Packed(value.model, tuple(i.name for i in value.covariates))
    return value


def unpacked(value: Any) -> Any:
    """Compile what :func:`packed` made; all else stays."""
    if isinstance(value, _Packed):
        return compile_model(value.model, covariates=value.covariates)
    return value


def _arrived(kind: type[Job], values: dict[str, Any]) -> Job:
    return kind(**{k: unpacked(v) for k, v in values.items()})


def bytes_of(
    compiled: CompiledModel,
    draws: int,
    names: Collection[str],
    first: Mapping[str, np.ndarray],
    *,
    terms: int = 0,
) -> int:
    """Size of the results of a dataset like the first one, about.

    Parameters
    ----------
    compiled : CompiledModel
    draws : int
    names : collection of str
        Variables of the group `posterior`.
    first : mapping of arrays
    terms : int
        Numbers for every value and draw.
    """
    lengths = {
        dim: n
        for info in compiled.data
        if info.name in first
        for dim, n in zip(info.dims, first[info.name].shape, strict=True)
    }

    def numbers(info: VariableInfo) -> int:
        shape = zip(info.dims, info.shape, strict=True)
        return int(np.prod([lengths.get(d, n) for d, n in shape], dtype=int))

    drawn = sum(numbers(i) for i in (*compiled.free, *compiled.deterministics) if i.name in names)
    values = sum(numbers(i) for i in compiled.observed)
    return 8 * draws * (compiled.dim + drawn + 8 + terms * values)


def about_model(compiled: CompiledModel, first: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tell a model from others: its variables, and its densities at a few points of a dataset."""
    z = 0.3 * np.random.default_rng(0).normal(size=(3, compiled.dim))
    with precision.scope():
        at = {k: jnp.asarray(v) for k, v in first.items()}
        values = [float(compiled.log_joint(jnp.asarray(u), at)) for u in z]
    return {"model": describe(compiled), "log densities": [f"{v:.6g}" for v in values]}


def check_devices(client: object, devices: object) -> None:
    """Refuse devices of this process for the workers of a cluster.

    Raises
    ------
    ValueError
    """
    if client is not None and not (devices is None or isinstance(devices, int)):
        raise ValueError(
            f"devices: expected a number with `client=`, each worker has devices of its own; got "
            f"{devices!r}."
        )


def need_store(client: object) -> None:
    """Refuse a cluster whose results have nowhere to go.

    Raises
    ------
    ValueError
    """
    if client is not None:
        raise ValueError(
            "client: expected `store=`, too: the results of a cluster go to a folder, part by part."
        )


def run_part(job: Job, part: Part) -> tuple[xr.DataTree, dict[str, Any]]:
    """Read one part, and work on it; groups that are written at once are left out."""
    if isinstance(part.data, Task):
        tree, note = job.work(part.data)
        groups = {k: v.to_dataset() for k, v in tree.children.items() if not k.endswith("_data")}
        if part.ragged and "posterior_predictive" in groups:
            # What is past the end of a shorter dataset is NaN, in another part if not in this one.
            drawn = groups["posterior_predictive"]
            groups["posterior_predictive"] = drawn.assign(
                {
                    k: v.astype(float)
                    for k, v in drawn.items()
                    if job.layout.row in v.dims and v.dtype.kind in "iub"
                }
            )
        return xr.DataTree.from_dict(groups), note
    # within a worker Dask would else send the reading to the cluster, and wait for it
    data = part.data.load(scheduler="synchronous")
    tree, note = job.work(replace(as_task(data, job.layout), first=part.begin))
    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    for name in ("observed_data", "constant_data"):
        if name in groups:
            # Another part may have gaps, where this one has whole numbers only.
            groups[name] = groups[name].assign(
                {
                    k: v.astype(np.result_type(v.dtype, data[k].dtype))
                    for k, v in groups[name].items()
                }
            )
    return xr.DataTree.from_dict(groups), note
