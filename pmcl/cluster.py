"""Many datasets, part by part: in this process, or on the workers of a Dask cluster."""

import os
import uuid
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from pmcl.data import DATASET, DataError, Layout, Task, TaskLike, as_task, listed
from pmcl.extras import need
from pmcl.progress import progress_bar
from pmcl.storing import Folder, folder_for, one_writer

if TYPE_CHECKING:
    from distributed import Client, Future

    from pmcl.compile import CompiledModel
    from pmcl.compile.variables import VariableInfo

TOGETHER = 256  # datasets of a part, at most
MOST = 2**28  # bytes of a part's results, about
_AHEAD = 2  # parts a worker is given at a time, so that none waits for the driver
_FEWEST = 16  # parts that are given out, for workers that come later

# datasets of one part, with their position in the whole, to their results and what else is noted
type Engine = Callable[[Task], tuple[xr.DataTree, dict[str, Any]]]


def bytes_of(
    compiled: "CompiledModel",
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

    def numbers(info: "VariableInfo") -> int:
        shape = zip(info.dims, info.shape, strict=True)
        return int(np.prod([lengths.get(d, n) for d, n in shape], dtype=int))

    drawn = sum(numbers(i) for i in (*compiled.free, *compiled.deterministics) if i.name in names)
    values = sum(numbers(i) for i in compiled.observed)
    return 8 * draws * (compiled.dim + drawn + 8 + terms * values)


class Work:
    """What is done with each part, as data: it travels to each worker once."""

    @abstractmethod
    def prepare(self) -> tuple[Layout, Engine]:
        """Compile what is needed; seconds to minutes, once a process."""


class Part(NamedTuple):
    """Some datasets: labelled ones, perhaps not read yet, or a task's.

    Attributes
    ----------
    number : int
    begin : int
        Position of the first dataset.
    data : xarray.Dataset or Task
    ragged : bool
        Whether datasets of the whole have different lengths.
    """

    number: int
    begin: int
    data: xr.Dataset | Task
    ragged: bool


@dataclass(frozen=True)
class Parts:
    """Datasets cut in parts.

    Attributes
    ----------
    source : xarray.Dataset or Task
        A Dataset is read part by part, where it is needed.
    size : int
        Datasets of a part.
    """

    source: xr.Dataset | Task
    size: int

    @classmethod
    def of(
        cls,
        data: TaskLike,
        layout: Layout,
        each: Callable[[Mapping[str, np.ndarray]], int] = lambda first: 0,
    ) -> "Parts":
        """Cut data in parts, along the chunks of arrays that are read when they are used.

        `each` gives the size of the results of a dataset like the first one in bytes (of datasets
        of different lengths, like the longest): memory bounds the parts.

        Raises
        ------
        DataError
            Where the data do not fit the model. Of a Dataset only the first one is looked at.
        """

        def together(first: Mapping[str, np.ndarray]) -> int:
            fit = max(MOST // max(each(first), 1), 1)
            return min(TOGETHER, 1 << (fit.bit_length() - 1))

        if not isinstance(data, xr.Dataset) or DATASET not in data.dims:
            task = as_task(data, layout)
            return cls(task, together({k: v[0] for k, v in task.values.items()}))
        given = data[DATASET].values if DATASET in data.coords else range(data.sizes[DATASET])
        names = [*map(str, given)]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise DataError(
                f"data: dataset names must differ; {listed(twice)} came more than once."
            )
        data = data.assign_coords({DATASET: names})
        size = together(as_task(data.isel({DATASET: slice(1)}), layout).dataset(0))
        chunks = [v.chunksizes[DATASET][0] for v in data.values() if DATASET in v.chunksizes]
        if chunks:
            chunk = max(chunks)
            shares = -(-chunk // size)
            # Whole chunks a part, or else whole parts a chunk, which each of them reads whole.
            size = size // chunk * chunk if shares == 1 else -(-chunk // shares)
        return cls(data, size)

    @property
    def names(self) -> tuple[str, ...]:
        if isinstance(self.source, Task):
            return self.source.names
        return tuple(map(str, self.source[DATASET].values))

    def __len__(self) -> int:
        if isinstance(self.source, Task):
            return len(self.source)
        return self.source.sizes[DATASET]

    def part(self, number: int) -> Part:
        begin = number * self.size
        end = min(begin + self.size, len(self))
        if isinstance(self.source, Task):
            some = self.source.select(np.arange(begin, end))
            some = replace(some, first=self.source.first + begin)
            return Part(number, begin, some, self.source.ragged)
        return Part(number, begin, self.source.isel({DATASET: slice(begin, end)}), ragged=False)

    def first(self, layout: Layout) -> dict[str, np.ndarray]:
        """Arrays of the first dataset."""
        if isinstance(self.source, Task):
            return self.source.dataset(0)
        return as_task(self.source.isel({DATASET: slice(1)}), layout).dataset(0)

    def whole(self, compiled: "CompiledModel") -> dict[str, xr.Dataset]:
        """Return groups that are written at once: the data, where they are in memory."""
        from pmcl.results import data_groups

        return data_groups(compiled, self.source) if isinstance(self.source, Task) else {}

    def about(self) -> dict[str, Any]:
        """What tells these data from others, as far as that can be told without reading them."""
        found: dict[str, Any] = {"names": zlib.crc32("\n".join(self.names).encode())}
        if isinstance(self.source, Task):
            task = self.source
            arrays = {f"values of {k}": v for k, v in task.values.items()}
            arrays |= {f"gaps of {k}": v for k, v in task.there.items()}
            if task.lengths is not None:
                arrays["lengths"] = task.lengths
            return found | {k: check_sum(v) for k, v in arrays.items()}
        for name, value in self.source.data_vars.items():
            shown: Any = [*value.shape]
            if value.chunks is not None:
                shown = [shown, str(value.data.name)]  # Dask's, which follows from the source
            elif value.variable._in_memory:
                shown = check_sum(value.values)
            found[f"values of {name}"] = shown
        return found


def check_sum(value: np.ndarray) -> int:
    """Tell an array from others."""
    return zlib.crc32(np.ascontiguousarray(value).tobytes())


def about_model(compiled: "CompiledModel", first: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tell a model from others: its variables, and its densities at a few points of a dataset."""
    from pmcl.compile import precision
    from pmcl.state.fingerprint import describe

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


def run_part(engine: Engine, layout: Layout, part: Part) -> tuple[xr.DataTree, dict[str, Any]]:
    """Read one part, and work on it; groups that are written at once are left out."""
    if isinstance(part.data, Task):
        tree, note = engine(part.data)
        groups = {k: v.to_dataset() for k, v in tree.children.items() if not k.endswith("_data")}
        if part.ragged and "posterior_predictive" in groups:
            # What is past the end of a shorter dataset is NaN, in another part if not in this one.
            drawn = groups["posterior_predictive"]
            groups["posterior_predictive"] = drawn.assign(
                {
                    k: v.astype(float)
                    for k, v in drawn.items()
                    if layout.row in v.dims and v.dtype.kind in "iub"
                }
            )
        return xr.DataTree.from_dict(groups), note
    # within a worker Dask would else send the reading to the cluster, and wait for it
    data = part.data.load(scheduler="synchronous")
    tree, note = engine(replace(as_task(data, layout), first=part.begin))
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


def run(
    work: Work | None,
    layout: Layout,
    engine: Engine,
    parts: Parts,
    path: str | os.PathLike,
    *,
    client: "Client | None",
    about: Mapping[str, Any],
    whole: Mapping[str, xr.Dataset],
    description: str,
    progressbar: bool,
) -> tuple[xr.DataTree, list[dict[str, Any]]]:
    """Work on all parts, and write their results to a Zarr folder as they come.

    What an interrupted call has written is not done again by the next one like it.

    Parameters
    ----------
    work : Work, optional
        For the workers of a cluster.
    layout : Layout
    engine : Engine
        The work, prepared for this process.
    parts : Parts
    path : path
        A new folder; it is there once all is written, and not before.
    client : distributed.Client, optional
        None: one part after another in this process.
    about : mapping
        What tells this job from others, beside its data.
    whole : mapping of Datasets
        Groups that are written at the end.
    description : str
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
    with one_writer(Path(path)):
        folder = folder_for(path, {**about, **parts.about()}, len(parts), parts.size)
        left = folder.left()
        total = len(parts)

        def size(number: int) -> int:
            return min(parts.size, total - folder.begin(number))

        with progress_bar(description, total, enabled=progressbar) as bar:
            bar.advance(total - sum(map(size, left)))
            if client is None or work is None:
                done: Iterator[int] = _here(layout, engine, parts, folder, left)
            else:
                done = _there(client, work, parts, folder, left)
            for number in done:
                bar.advance(size(number))
        return folder.finish(Path(path), parts.names, whole)


def _here(
    layout: Layout, engine: Engine, parts: Parts, folder: Folder, left: list[int]
) -> Iterator[int]:
    for number in left:
        tree, note = run_part(engine, layout, parts.part(number))
        folder.write(number, tree, **note)
        yield number


def _there(
    client: "Client", work: Work, parts: Parts, folder: Folder, left: list[int]
) -> Iterator[int]:
    """Give parts to the workers, a few ahead, and write what they cannot write themselves."""
    need("cluster", "client=", "distributed")
    import dask
    from distributed import as_completed

    from pmcl.worker import Prepared, work_on

    token = f"pmcl-{uuid.uuid4().hex}"
    if len(left) < folder.parts:
        folder.open(token)
    client.register_plugin(Prepared(token, work))
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
