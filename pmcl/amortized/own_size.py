"""Datasets in a model of their own number of groups: what has no use for padding."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.amortized.groups import Checked, Sized
from pmcl.compile import Density
from pmcl.data.grouped import Grouped
from pmcl.data.reading import as_task
from pmcl.data.task import DATASET, Layout, Task
from pmcl.levels.sizes import Groups
from pmcl.refinement.finishing import Corrected, Weighed, finished
from pmcl.refinement.settings import Asked
from pmcl.refinement.treatment import at, replaced

_SIZES = 4  # numbers of groups for which models are compiled for NUTS unasked


class OwnSize(NamedTuple):
    """Some datasets of one number of groups.

    Attributes
    ----------
    rows : array of int
        Which ones, of those that were given.
    sized : Sized
        Of that number.
    task : Task
        Without padding.
    places : array of int of shape (dim,)
        Where the entries of z lie in that of the padded model.
    dim : str
        That of the groups.
    """

    rows: np.ndarray
    sized: Sized
    task: Task
    places: np.ndarray
    dim: str

    def cut(self, tree: xr.DataTree) -> xr.DataTree:
        """These datasets' results, of results of all."""
        groups = {}
        for name, node in tree.children.items():
            data = node.to_dataset().isel({DATASET: self.rows})
            if self.dim in data.dims:
                number = len(self.sized.compiled.coords[self.dim])
                data = data.isel({self.dim: slice(number)}).drop_vars(self.dim, errors="ignore")
            groups[name] = data
        return xr.DataTree.from_dict(groups)

    def known(self, given: Mapping[str, ArrayLike] | None) -> dict[str, np.ndarray] | None:
        """These datasets' known values, of those of all: `given` of :func:`pmcl.refine`.

        Raises
        ------
        ValueError
            Where values have labels.
        """
        if given is None:
            return None
        infos, found = {i.name: i for i in self.sized.compiled.free}, {}
        for name, value in given.items():
            array, info = np.asarray(value), infos.get(name)
            if array.ndim and hasattr(value, "reindex"):  # its labels would be passed over
                raise ValueError(
                    f"given: {name!r}: expected an array without labels, in the order of the "
                    f"data, where datasets have groups of their own; got a "
                    f"{type(value).__name__}. Pass its values, put in that order."
                )
            if info is not None and array.ndim == len(info.dims) + 1:
                array = array[self.rows]
            if info is not None and self.dim in info.dims and array.ndim >= len(info.dims):
                axis = array.ndim - len(info.dims) + info.dims.index(self.dim)
                number = min(array.shape[axis], len(self.sized.compiled.coords[self.dim]))
                array = array.take(np.arange(number), axis=axis)
            found[name] = array
        return found


def of_own_size(groups: Groups, given: Checked, rows: Sequence[int] | np.ndarray) -> OwnSize:
    """Put datasets of one number of groups in a model of that number, compiled once."""
    dim, local = groups.grouping.dim, groups.grouping.local
    number = int(given.numbers[rows[0]])
    sized = given.sized.exactly(groups, number)
    found = Grouped.of(given.task.select(rows), dim)
    task = as_task(found.datasets, Layout.of(sized.compiled, given.task.layout.row))
    first = given.task.first + int(rows[0])
    task = replace(task, labels=found.labels, first=first, maskable=given.task.maskable)
    dims, parts = {i.name: i.dims for i in sized.compiled.free}, []
    for v in given.sized.compiled.values:
        place = np.arange(v.start, v.start + v.size).reshape(v.shape)
        if v.name in local:
            place = place.take(np.arange(number), axis=dims[v.variable].index(dim))
        parts.append(place.ravel())
    return OwnSize(np.asarray(rows), sized, task, np.concatenate(parts), dim)


def by_number(given: Checked) -> list[np.ndarray]:
    """Positions of the datasets of each number of groups."""
    return [np.flatnonzero(given.numbers == n) for n in np.unique(given.numbers)]


def finished_by_size(
    groups: Groups | None, given: Checked, weighed: Weighed, asked: Asked, *, progressbar: bool
) -> Corrected:
    """Finish draws, each dataset that NUTS takes over in a model of its own size.

    See :func:`pmcl.refinement.finishing.finished`.
    """
    row, (task, sized) = given.task.layout.row, given
    density = Density(sized.compiled, row)
    if groups is None or not given.padded:
        return finished(density, task, weighed, asked, progressbar=progressbar)
    alone = asked._replace(fallback=None)
    found = finished(density, task, weighed, alone, progressbar=progressbar)
    which = weighed.found.fallen(asked)
    if which is None or (
        asked.fallback == "auto" and len(np.unique(given.numbers[which])) > _SIZES
    ):
        return found
    nothing = np.full(len(task), np.nan)
    treatment = found.treatment._replace(rhat=nothing, ess=nothing, divergences=nothing)
    found = found._replace(treatment=treatment)
    for i in which:
        own = of_own_size(groups, given, [int(i)])
        before, best = at((weighed.found, weighed.best), own.rows)
        whole = before.drawn.z
        part = Weighed(
            before._replace(drawn=before.drawn._replace(z=whole[..., own.places])),
            best._replace(z=best.z[..., own.places]),
        )
        done = finished(
            Density(own.sized.compiled, row),
            own.task,
            part,
            asked._replace(fallback="nuts"),
            progressbar=progressbar,
        )
        whole[..., own.places] = done.drawn.z
        found = replaced(found, own.rows, done._replace(drawn=done.drawn._replace(z=whole)))
    return found
