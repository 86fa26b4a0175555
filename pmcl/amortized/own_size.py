"""Datasets in a model of their own number of groups: what has no use for padding."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import xarray as xr

from pmcl.amortized.groups import Checked, Sized
from pmcl.compile import CompiledModel, Density
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.data.places import at_possible
from pmcl.data.task import DATASET, Layout, Task
from pmcl.draws.densities import constrain, densities
from pmcl.draws.real_rows import same
from pmcl.draws.results import SAMPLE, flat_z, labelled, unconstrained_dataset
from pmcl.levels.sizes import Groups, kept_terms
from pmcl.refinement.finishing import Corrected, Weighed, finished
from pmcl.refinement.known import conditioned
from pmcl.refinement.settings import Asked
from pmcl.refinement.standalone import RefineJob
from pmcl.refinement.treatment import at, replaced
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.jitting import few_lengths

_LOOKED_AT = 2  # draws
_FAR = 8.0  # on the unconstrained scale
_SIZES = 4  # models that are compiled for NUTS unasked: of numbers of groups, of what is known


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

    def left(self) -> tuple[CompiledModel, Task, np.ndarray]:
        """Condition on what is known of these datasets, the same entries of each.

        Returns
        -------
        compiled, task
        left : array of int
            Where the entries of z lie in that of these datasets' whole model.
        """
        compiled, known = self.sized.compiled, self.task.known
        values = {} if known is None else known.values
        given = {n: v for n, v in values.items() if not np.isnan(v).all()}
        if not given:
            return compiled, replace(self.task, known=None), np.arange(compiled.dim)
        rest = conditioned(compiled, self.task, given)
        return rest.compiled, rest.task, rest.left

    def refined(
        self, prior: np.ndarray, asked: Asked, *, devices: DevicesLike, progressbar: bool
    ) -> xr.DataTree:
        """Draw without a network, from draws (draw, dim) of the padded model's prior."""
        compiled, task, left = self.left()
        names = {i.name for i in (*compiled.free, *compiled.deterministics)}
        drawn = asked._replace(names=tuple(n for n in asked.names if n in names), everywhere=True)
        start, row = prior[:, self.places[left]], task.layout.row
        job = RefineJob(compiled, start, drawn, devices, None, row)
        tree = job.refined(task, None, progressbar=progressbar)
        if self.task.known is None:
            return tree
        self._with_known(tree, {*asked.names} - names)
        rest = flat_z(compiled, tree)
        z = np.full((*rest.shape[:-1], len(self.places)), np.nan)  # what is known is not drawn
        z[..., left] = rest
        data = unconstrained_dataset(self.sized.compiled, self.task, z)
        tree["unconstrained_posterior"] = xr.DataTree(data)
        return tree

    def _with_known(self, tree: xr.DataTree, names: Collection[str]) -> None:
        """Put in the posterior what is known of these datasets, and not of others."""
        posterior, known = tree["posterior"].to_dataset(), self.task.known
        compiled, leading = self.sized.compiled, [posterior.sizes[d] for d in SAMPLE[:2]]
        held = {n: v for n, v in known.values.items() if n in names}
        held = {n: np.broadcast_to(v, (*leading, *v.shape)) for n, v in held.items()}
        infos = {i.name: i for i in compiled.free}
        more = labelled(compiled, self.task, infos, held, SAMPLE)
        tree["posterior"] = xr.DataTree(posterior.assign(more.data_vars))

    def whole(self, tree: xr.DataTree, size: int) -> xr.DataTree:
        """Results with so many groups, NaN where there are none."""
        groups = {}
        for name, node in tree.children.items():
            data = node.to_dataset()
            if self.dim in data.dims:
                data = data.drop_vars(self.dim, errors="ignore")
                data = data.map(lambda v: v.astype(float) if self.dim in v.dims else v)
                data = data.pad({self.dim: (0, size - data.sizes[self.dim])})
            groups[name] = data.assign_attrs(node.attrs)
        return xr.DataTree.from_dict(groups)


def of_own_size(groups: Groups | None, given: Checked, rows: Sequence[int] | np.ndarray) -> OwnSize:
    """Put datasets of one number of groups in a model of that number, compiled once."""
    task, rows = given.task.select(rows), np.asarray(rows)
    task = replace(task, scattered=given.task.position[rows])
    if groups is None:
        return OwnSize(rows, given.sized, task, np.arange(given.sized.compiled.dim), "")
    dim, number = groups.grouping.dim, int(given.numbers[rows[0]])
    sized = given.sized.exactly(groups, number)
    compiled, places = sized.compiled, _places(given.sized.compiled, groups, number)
    axes = {i.name: i.dims.index(dim) for i in (*compiled.data, *compiled.free) if dim in i.dims}

    def cut(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        real = np.arange(number)
        return {k: v.take(real, axis=1 + axes[k]) if k in axes else v for k, v in arrays.items()}

    known = task.known
    if known is not None:
        of_z = known.of_z._replace(z=known.of_z.z[:, places])
        known = known._replace(values=cut(known.values), of_z=of_z)
    layout = Layout.of(compiled, task.layout.row)
    task = replace(
        task, layout=layout, values=cut(task.values), there=cut(task.there), known=known,
        labels=task.labels or (tuple(map(str, range(number))),) * len(rows), beside=None,
        place=None,
    )  # fmt: skip
    return OwnSize(rows, sized, task, places, dim)


def _places(compiled: CompiledModel, groups: Groups, number: int) -> np.ndarray:
    """Where the entries of z are that a model of fewer groups has."""
    dims, parts = {i.name: i.dims for i in compiled.free}, []
    for v in compiled.values:
        place = np.arange(v.start, v.start + v.size).reshape(v.shape)
        if v.name in groups.grouping.local:
            axis = dims[v.variable].index(groups.grouping.dim)
            place = place.take(np.arange(number), axis=axis)
        parts.append(place.ravel())
    return np.concatenate(parts)


def check_number(groups: Groups, given: Checked) -> None:
    """Refuse a model whose density depends on the number of groups beside their data.

    Parameters
    ----------
    groups : Groups
    given : Checked
        Datasets of the largest number.

    Raises
    ------
    UnsupportedModelError
    """
    sized, grouping = given.sized, groups.grouping
    number = min(few_lengths(groups.low), sized.reading.like.groups - 1)
    if number < 1:
        return
    given = _fewer(groups, given, number)
    own, row = of_own_size(groups, given, range(len(given.task))), given.task.layout.row
    density, small = Density(sized.compiled, row), Density(own.sized.compiled, row)
    task = replace(given.task, labels=None)
    z, padded = at_possible(
        lambda z: kept_terms(density, sized.reading, task, number, z), density, task
    )
    alone = kept_terms(small, own.sized.reading, own.task, number, z[:, own.places])
    if not np.allclose(padded, alone, rtol=1e-9, atol=1e-9, equal_nan=True):
        raise UnsupportedModelError(
            f"groups: expected a density that depends on groups along {grouping.dim!r} by their "
            f"own data alone; it depends on how many there are (the length of {grouping.dim!r} in "
            "a formula?). Give what follows from their number as a covariate. Without `groups` "
            "their number is fixed."
        )


def _fewer(groups: Groups, given: Checked, number: int) -> Checked:
    """The same datasets, as if they had so many groups: those beyond are padding."""
    task, by = given.task, groups.grouping.by
    values = {k: v % number if k == by else v for k, v in task.values.items()}
    labels = (tuple(map(str, range(number))),) * len(task)
    return given._replace(task=replace(task, values=values, labels=labels, beside=None, place=None))


def of_real_groups(
    groups: Groups | None, given: Checked, z: np.ndarray, names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Named variables of z (dataset, draw, dim): arrays (dataset, draw, ...), padded.

    What depends on several groups, such as their mean, is computed in models of the datasets' own
    numbers: padding has no part in it.
    """
    compiled, task = given.sized.compiled, given.task
    found = constrain(compiled, z, task, names)
    if groups is None or not given.padded:
        return found
    made = tuple(i.name for i in compiled.deterministics if i.name in names)
    few = {n: found[n][:, :_LOOKED_AT] for n in made}
    mixed = _mixed(groups, given, z[:, :_LOOKED_AT], few) if made else ()
    found |= {n: np.array(found[n]) for n in mixed}
    for rows in by_number(given) if mixed else ():
        own = of_own_size(groups, given, rows)
        values = constrain(own.sized.compiled, z[rows][..., own.places], own.task, mixed)
        for name, value in values.items():
            if found[name].dtype.kind == "f":
                found[name][rows] = np.nan  # entries that there are none of
            for i, v in zip(rows, value, strict=True):
                found[name][i][tuple(slice(n) for n in v.shape)] = v
    return found


def _mixed(
    groups: Groups, given: Checked, z: np.ndarray, first: Mapping[str, np.ndarray]
) -> tuple[str, ...]:
    """Those of some deterministics, of which `first` has the values, that padding has a part in."""
    compiled, task, dim = given.sized.compiled, given.task, groups.grouping.dim
    names = tuple(first)
    values = {k: np.array(v) for k, v in task.values.items()}
    far = [np.full_like(z, -_FAR), np.full_like(z, _FAR)]  # the largest, or the least, of all
    for i, number in enumerate(given.numbers):
        real = _places(compiled, groups, number)
        for moved in far:
            moved[i][:, real] = z[i][:, real]
        for k, info in enumerate(task.layout.variables):
            if dim in info.dims:
                value = np.moveaxis(values[info.name][i], info.dims.index(dim), 0)
                told = k >= task.layout.n_observed and value.dtype.kind == "f"
                value[number:] = 0.9 * value[0] if told else value[0]
    other = replace(task, values=values, beside=None, place=None)
    others = [constrain(compiled, u, other, names) for u in far]
    dims = {i.name: i.dims for i in compiled.deterministics}
    counted = _counted(groups, given)

    def stands(name: str, two: np.ndarray) -> bool:
        for i, number in enumerate(given.numbers):
            a, b = first[name][i], two[i]
            if dim in dims[name]:
                axis = 1 + dims[name].index(dim)
                a, b = (v.take(np.arange(number), axis=axis) for v in (a, b))
            if not same(a, b):
                return False
        return True

    return tuple(n for n in names if n in counted or not all(stands(n, v[n]) for v in others))


def _counted(groups: Groups, given: Checked) -> frozenset[str]:
    """Deterministics that depend on how many groups there are; told once of a model."""
    compiled, size = given.sized.compiled, given.sized.reading.like.groups
    names = tuple(i.name for i in compiled.deterministics)
    number = min(groups.low, size - 1)

    def told() -> frozenset[str]:
        task = given.task.select([0])
        task = replace(task, labels=None, scattered=None)
        few = _fewer(groups, given._replace(task=task), number)
        own = of_own_size(groups, few, [0])
        z = 0.5 * np.random.default_rng(0).normal(size=(1, _LOOKED_AT, compiled.dim))
        whole = constrain(compiled, z, replace(few.task, labels=None), names)
        alone = constrain(own.sized.compiled, z[..., own.places], own.task, names)
        cut = {n: whole[n][0][tuple(map(slice, alone[n][0].shape))] for n in names}
        return frozenset(n for n in names if not same(cut[n], alone[n][0]))

    if number < 1 or not names:
        return frozenset()
    return compiled.keep_few("counted groups", number, told, most=1)


def by_number(given: Checked) -> list[np.ndarray]:
    """Positions of the datasets of each number of groups."""
    return [np.flatnonzero(given.numbers == n) for n in np.unique(given.numbers)]


def by_known(given: Checked) -> list[np.ndarray]:
    """Positions of the datasets of each number of groups and set of entries that are known."""
    known = given.task.known
    open_ = np.zeros((len(given.task), 0)) if known is None else np.isnan(known.of_z.z)
    kinds = np.column_stack([given.numbers, open_])
    kind = np.unique(kinds, axis=0, return_inverse=True)[1].ravel()
    return [np.flatnonzero(kind == k) for k in range(kind.max() + 1)]


def finished_by_size(
    groups: Groups | None, given: Checked, weighed: Weighed, asked: Asked, *, progressbar: bool
) -> Corrected:
    """Finish draws, each dataset that NUTS takes over in a model of its own size.

    See :func:`pmcl.refinement.finishing.finished`.
    """
    row, (task, sized) = given.task.layout.row, given
    density = Density(sized.compiled, row)
    if not given.padded and task.known is None:
        return finished(density, task, weighed, asked, progressbar=progressbar)
    alone = asked._replace(fallback=None)
    found = finished(density, task, weighed, alone, progressbar=progressbar)
    which = weighed.found.fallen(asked)
    kinds = [] if which is None else [k for k in by_known(given) if np.isin(k, which).any()]
    if which is None or too_many(asked, len(kinds)):
        return found
    nothing = np.full(len(task), np.nan)
    treatment = found.treatment._replace(rhat=nothing, ess=nothing, divergences=nothing)
    found = found._replace(treatment=treatment)
    for i in which:
        own = of_own_size(groups, given, [int(i)])
        known = own.task.known
        if known is not None and np.isfinite(known.of_z.z).all():
            continue  # nothing to sample
        compiled, alone_task, left = own.left()
        places = own.places[left]
        before, best = at((weighed.found, weighed.best), own.rows)
        whole = before.drawn.z
        part = Weighed(
            before._replace(drawn=before.drawn._replace(z=whole[..., places])),
            best._replace(z=best.z[..., places]),
        )
        nuts = asked._replace(fallback="nuts")
        done = finished(Density(compiled, row), alone_task, part, nuts, progressbar=progressbar)
        whole[..., places] = done.drawn.z
        drawn = done.drawn._replace(z=whole)
        if known is not None:  # its own density is of the prior, as for other datasets
            prior, likelihood = densities(own.sized.compiled, whole[..., own.places], own.task)
            prior = prior - np.asarray(known.of_z.log_jacobian)[:, None]
            drawn = drawn._replace(log_prior=prior, log_likelihood=likelihood)
        found = replaced(found, own.rows, done._replace(drawn=drawn))
    return found


def too_many(asked: Asked, kinds: int) -> bool:
    """Whether NUTS would have so many models to compile that it has to be asked for."""
    return asked.fallback == "auto" and kinds > _SIZES
