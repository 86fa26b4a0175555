"""Levels of a model with any number of groups, from those of one number."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel, Density, Mask
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.data.batching import over_datasets
from pmcl.data.places import at_possible
from pmcl.data.task import Batch, Task
from pmcl.levels.find import stacked
from pmcl.levels.naming import described
from pmcl.levels.one_dataset import parts_of
from pmcl.levels.partition import Partition
from pmcl.levels.reading import Reading, Rule, term_shapes
from pmcl.levels.structure import NoLevels, Split
from pmcl.runtime.jitting import jit


class Grouping(NamedTuple):
    """Where a model says how many groups there are.

    Attributes
    ----------
    dim : str
        That of the groups.
    by : str
        Name of the data that say to which group a row belongs; empty where no data do.
    local : tuple of str
        Names of the groups' value variables.
    """

    dim: str
    by: str
    local: tuple[str, ...]


class Groups(NamedTuple):
    """Numbers of groups that a network is trained over, and what has to change with them.

    Attributes
    ----------
    low, high : int
    grouping : Grouping
    """

    low: int
    high: int
    grouping: Grouping

    def __str__(self) -> str:
        by = f", by {self.grouping.by!r}" if self.grouping.by else ""
        return f"{self.low} to {self.high} groups along {self.grouping.dim!r}{by}"


@dataclass(frozen=True)
class Members:
    """Source of an index: rows in between `low` and `high` groups, of any sizes.

    The number is log-uniform; the first rows are one of each group, in order, so that of fewer rows
    fewer groups are left.
    """

    low: int
    high: int

    def __call__(self, rng: np.random.Generator, n: int) -> np.ndarray:
        number = min(int(group_numbers(rng, self.low, self.high, 1)[0]), n)
        even = np.exp(rng.uniform(np.log(0.5), np.log(20.0)))
        rest = rng.choice(number, n - number, p=rng.dirichlet(np.full(number, even)))
        return np.concatenate([np.arange(number), rest])


def group_numbers(rng: np.random.Generator, low: int, high: int, n: int) -> np.ndarray:
    """Log-uniform numbers of groups, of shape (n,)."""
    found = np.floor(low * ((high + 1) / low) ** rng.uniform(size=n)).astype(int)
    return np.minimum(found, high)


def grouping_of(reading: Reading, density: Density, task: Task) -> Grouping:
    """Find what has to change where the number of groups does.

    Raises
    ------
    UnsupportedModelError
        Where the model itself says which parameters or rows belong to which group.
    """
    compiled, groups = density.compiled, reading.like.groups
    dims = {i.name: i.dims for i in compiled.free}
    shared = {*reading.shared}
    local = tuple(v.name for v in compiled.values if v.start not in shared)
    common = [{*dims[v.variable]} for v in compiled.values if v.name in local]
    along = [
        d
        for d in sorted(set.intersection(*common))
        if len(compiled.coords.get(d, ())) == groups and _in_order(reading, compiled, d, local)
    ]
    if len(along) != 1:
        raise UnsupportedModelError(
            "groups: expected one dim that all parameters of the groups have, with an element a "
            f"group; {reading.like}. Without `groups` their number is fixed."
        )
    index = {rule.by for rule in reading.rules or () if rule.by}
    shapes = term_shapes(density, task)
    plain = reading.rules is not None and all(
        len(r.table) == 1 or np.array_equal(r.table, np.arange(groups)) for r in reading.rules
    )
    if not plain or len(index) > 1 or len(shapes) != len(reading.rules or ()):
        raise UnsupportedModelError(
            f"groups: expected rows with the dim {along[0]!r}, or a `pm.Data` of integers that "
            "says to which group each belongs; here constants of the model do. Without `groups` "
            "their number is fixed."
        )
    return Grouping(along[0], "".join(index), local)


def reading_at(reading: Reading, compiled: CompiledModel, grouping: Grouping) -> Reading:
    """The same levels of a model with another number of elements along the dim of the groups."""
    size, before = len(compiled.coords[grouping.dim]), reading.like.groups
    shared = frozenset(v.name for v in compiled.values if v.name not in grouping.local)
    partition = Partition(shared, group_of(compiled, grouping.dim, grouping.local))

    def again(rule: Rule) -> Rule:
        if len(rule.table) == 1:
            return rule._replace(table=np.where(rule.table == before, size, rule.table))
        return rule._replace(table=np.arange(size))

    like = replace(
        reading.like,
        shared=np.flatnonzero(partition.group < 0),
        split=stacked([partition], [np.zeros(0, int)]),
        text=described(compiled, partition, exact=reading.like.exact),
    )
    return Reading(like, None if reading.rules is None else tuple(map(again, reading.rules)))


def group_of(compiled: CompiledModel, dim: str, local: tuple[str, ...]) -> np.ndarray:
    """Group of every entry of z, where it is the place along a dim; -1 for global ones."""
    dims = {i.name: i.dims for i in compiled.free}
    group = np.full(compiled.dim, -1)
    for v in compiled.values:
        if v.name in local:
            axis = dims[v.variable].index(dim)
            place = np.indices(v.shape)[axis]
            group[v.start : v.start + v.size] = place.ravel()
    return group


def _in_order(reading: Reading, compiled: CompiledModel, dim: str, local: tuple[str, ...]) -> bool:
    """Whether the group of every parameter is its place along the dim."""
    group, groups = group_of(compiled, dim, local), reading.like.groups
    place = np.asarray(reading.like.split.place)[0]
    mine = group >= 0
    found = (place[mine] - (~mine).sum()) % groups
    return np.array_equal(found, group[mine])


def check_padding(density: Density, reading: Reading, task: Task, dim: str) -> None:
    """Refuse a model whose other groups depend on the data of those that are padding.

    Parameters
    ----------
    density : Density
    reading : Reading
    task : Task
        Datasets without padding: at least two.
    dim : str
        That of the groups.

    Raises
    ------
    UnsupportedModelError
    """
    half = reading.like.groups // 2
    two = task.select([0, 0])
    for info in task.layout.variables:
        if dim in info.dims:
            axis = info.dims.index(dim)
            other = np.arange(info.shape[axis]) >= half
            shape = [-1 if i == axis else 1 for i in range(len(info.dims))]
            both = np.array(two.values[info.name])
            both[1] = np.where(other.reshape(shape), task.values[info.name][1], both[0])
            two.values[info.name] = both
    _, found = at_possible(lambda z: kept_terms(density, reading, two, half, z), density, two)
    if not np.allclose(found[0], found[1], rtol=1e-9, atol=1e-9, equal_nan=True):
        raise UnsupportedModelError(
            f"groups: expected groups along {dim!r} that depend on their own data; what belongs to "
            "one changes with those of others (a mean over groups?). Compute such data before, and "
            "give them as covariates. Without `groups` their number is fixed."
        )


def kept_terms(
    density: Density, reading: Reading, task: Task, number: int, z: np.ndarray
) -> np.ndarray:
    """Log density of the first groups of each dataset at each z: an array (dataset, point)."""
    levels = reading.of(density, task, check=False)
    assert not isinstance(levels, NoLevels)
    split = levels.cut(np.full(len(task), number)).split
    return np.asarray(_kept(density, task.batch(), split, z))


@partial(jit, once=True)
def _kept(density: Density, batch: Batch, split: Split, z: Array) -> Array:
    """Sum of all terms that belong to something, at each z, by dataset."""

    def one(data: dict[str, Array], mask: Mask | None, split: Split) -> Array:
        each = jax.vmap(lambda u: parts_of(density, data, mask, split, u))(z)
        return each[0] + each[1].sum(axis=1)

    return over_datasets(one, batch, split)
