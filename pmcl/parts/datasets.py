"""Tasks cut into parts of one size."""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pmcl.data.reading import as_task
from pmcl.data.task import DATASET, DataError, Layout, Task, TaskLike
from pmcl.runtime.arguments import listed
from pmcl.runtime.files import check_sum

if TYPE_CHECKING:
    from pmcl.compile import CompiledModel


TOGETHER = 256  # datasets of a part, at most
MOST = 2**28  # bytes of a part's results, about


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


def check_sums(task: Task) -> dict[str, int]:
    """Tell the datasets of a task from others, array by array."""
    arrays = {f"values of {k}": v for k, v in task.values.items()}
    arrays |= {f"gaps of {k}": v for k, v in task.there.items()}
    if task.known is not None:
        arrays |= {f"known {k}": v for k, v in task.known.values.items()}
    if task.lengths is not None:
        arrays["lengths"] = task.lengths
    names = {"names": zlib.crc32("\n".join(task.names).encode())}
    return names | {k: check_sum(v) for k, v in arrays.items()}


def content_of(task: Task) -> int:
    """Tell the datasets of a task from others, in one number; their order does not count."""
    task = task.select(sorted(range(len(task)), key=task.names.__getitem__))
    labels = {} if task.labels is None else {"labels": task.labels}
    return zlib.crc32(repr(sorted((check_sums(task) | labels).items())).encode())


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
        from pmcl.draws.results import data_groups

        return data_groups(compiled, self.source) if isinstance(self.source, Task) else {}

    def about(self) -> dict[str, Any]:
        """What tells these data from others, as far as that can be told without reading them."""
        if isinstance(self.source, Task):
            return check_sums(self.source)
        found: dict[str, Any] = {"names": zlib.crc32("\n".join(self.names).encode())}
        for name, value in self.source.data_vars.items():
            shown: Any = [*value.shape]
            if value.chunks is not None:
                shown = [shown, str(value.data.name)]  # Dask's, which follows from the source
            elif value.variable._in_memory:
                shown = check_sum(value.values)
            found[f"values of {name}"] = shown
        return found
