"""Levels of any dataset of a model, from those that were found of a few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np

from pmcl.compile import Density
from pmcl.data.task import Task
from pmcl.levels.find import checked, find
from pmcl.levels.structure import Levels, NoLevels, Split

_MOST = 10**6  # values of an index


class Rule(NamedTuple):
    """To which groups the terms of one variable belong.

    Attributes
    ----------
    axis : int
        Of the terms: along the others they belong to the same group.
    table : array of int
        Groups of what is along the axis, or of the values of `by`; one, if it is that of all.
    by : str
        Name of the data that say which, along their only dim; none where the place itself does.
    """

    axis: int
    table: np.ndarray
    by: str = ""

    def owner(self, shape: tuple[int, ...], data: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Groups of terms of this shape, (dataset, *shape); None where the rule does not fit."""
        if self.by:
            which = data[self.by].astype(int)
            if which.shape[1:] != shape[self.axis : self.axis + 1] or which.max() >= len(
                self.table
            ):
                return None
            along = self.table[which]
        else:
            n = len(next(iter(data.values())))
            if len(self.table) == 1:
                return np.full((n, *shape), self.table[0])
            if shape[self.axis : self.axis + 1] != (len(self.table),):
                return None
            along = np.broadcast_to(self.table, (n, len(self.table)))
        ends = [1] * len(shape)
        ends[self.axis] = shape[self.axis]
        return np.broadcast_to(along.reshape(-1, *ends), (len(along), *shape))


@dataclass(frozen=True, eq=False)
class Reading:
    """How the levels of any dataset follow from its data.

    Attributes
    ----------
    like : Levels
        Of the datasets that were looked at.
    rules : tuple of Rule, or None
        By term; None where the levels of a dataset have to be looked for.
    """

    like: Levels
    rules: tuple[Rule, ...] | None

    @property
    def shared(self) -> np.ndarray:
        """Positions of the global parameters in z."""
        return self.like.shared

    def of(self, density: Density, task: Task, *, check: bool = True) -> Levels | NoLevels:
        """Levels of every dataset of a task; those that rules give are checked by evaluation."""
        owner, initial = self._owner(density, task), density.compiled.initial
        if owner is not None:
            split, n = self.like.split, len(task)
            alike = [np.broadcast_to(x[0], (n, *x.shape[1:])) for x in (split.place, split.real)]
            split = Split(alike[0], owner, alike[1])  # type: ignore[arg-type]
            good = not check
            if check:
                told = checked(density, task, split, initial)
                good = bool(told.same and told.exact >= self.like.exact)
            if good:
                concave = self.like.concave and (not check or bool(told.concave))
                return replace(self.like, split=split, concave=concave)
        found = find(density, task, initial)
        if isinstance(found, NoLevels) or np.array_equal(found.shared, self.shared):
            return found
        return NoLevels("no levels: those of the data are not those of simulations")

    def _owner(self, density: Density, task: Task) -> np.ndarray | None:
        if self.rules is None:
            return None
        data = task.batch().values
        parts = []
        for rule, shape in zip(self.rules, term_shapes(density, task), strict=True):
            part = rule.owner(shape, data)  # type: ignore[arg-type]
            if part is None:
                return None
            parts.append(part.reshape(len(task), -1).astype(np.int32))
        return np.concatenate(parts, axis=1)


def term_shapes(density: Density, task: Task) -> list[tuple[int, ...]]:
    """Shapes of the terms of one dataset's log density, in the order of `Density.elements`."""
    batch = task.batch()
    one = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch._replace(place=None)
    )
    z = jax.ShapeDtypeStruct((density.dim,), np.float64)
    terms = jax.eval_shape(
        lambda u, data, mask: density.compiled.log_elements(u, data, mask=mask, dim=density.row),
        z,
        one.values,
        one.mask,
    )
    return [t.shape for t in terms]


def read(density: Density, task: Task) -> Reading | NoLevels:
    """Find levels, and rules by which they follow from the data.

    Parameters
    ----------
    density : Density
    task : Task
        A few datasets without padding and gaps.

    Returns
    -------
    Reading or NoLevels
    """
    found = find(density, task, density.compiled.initial)
    if isinstance(found, NoLevels):
        return found
    # what a zero hides, such as the slope of a row, other data have
    full = find(density, without_zeros(density, task), density.compiled.initial)
    if isinstance(full, Levels) and all(map(np.array_equal, full.split[::2], found.split[::2])):
        found = replace(found, split=full.split)
    split = jax.tree.map(np.asarray, found.split)
    rules: list[Rule] | None = []
    if not all((x == x[0]).all() for x in (split.place, split.real)):
        rules = None
    begin = 0
    for shape in term_shapes(density, task):
        size = int(np.prod(shape))
        owner = split.owner[:, begin : begin + size].reshape(-1, *shape)
        begin += size
        rule = _rule(owner, task, found.groups)
        if rule is None or rules is None:
            return Reading(found, None)
        rules.append(rule)
    return Reading(found, None if rules is None else tuple(rules))


def without_zeros(density: Density, task: Task) -> Task:
    """The datasets with other numbers for zeros in covariates that are no index.

    A zero may hide what depends on a covariate.
    """
    index = {n for p in density.compiled.indices.places for n in p.data.split(", ")}
    rng, values = np.random.default_rng(0), dict(task.values)
    for info in task.layout.variables[task.layout.n_observed :]:
        value = np.asarray(values[info.name])
        if info.name not in index and value.dtype.kind in "if":
            whole = value.dtype.kind == "i"
            other = 1 if whole else 1e-3 * rng.uniform(0.5, 1.5, value.shape)
            values[info.name] = np.where(value == 0, other, value).astype(value.dtype)
    return replace(task, values=values)


def _rule(owner: np.ndarray, task: Task, groups: int) -> Rule | None:
    """A rule that gives these groups of terms, of shape (dataset, *shape).

    An index comes before the place: other data may have another one, where these do not. Terms that
    happen to depend on no group, as with a slope at zero, may belong to any.
    """
    axes = range(owner.ndim - 1)
    if (owner == owner.flat[0]).all():
        return Rule(0, owner.reshape(-1)[:1])
    names = [
        i.name
        for i in task.layout.variables[task.layout.n_observed :]
        if len(i.dims) == 1 and np.dtype(i.dtype).kind in "iu"
    ]
    # a group's number is less than that of no group
    least = [owner.min(axis=tuple(i + 1 for i in axes if i != axis)) for axis in axes]
    tried = [r for axis in axes for r in _tables(least[axis], axis, task.values, names, groups)]
    tried += [Rule(axis, least[axis].min(axis=0)) for axis in axes]
    for rule in tried:
        given = rule.owner(owner.shape[1:], task.values)
        if given is not None and ((given == owner) | (owner == groups)).all():
            return rule
    return None


def _tables(
    least: np.ndarray, axis: int, data: Mapping[str, np.ndarray], names: Sequence[str], groups: int
) -> list[Rule]:
    """Rules by each of the data that may be an index, the table as it was seen.

    `least`, of shape (dataset, place), are the groups of what is along the axis.
    """
    found = []
    for name in names:
        which = data[name].astype(int)
        if which.shape != least.shape or which.min() < 0 or which.max() > _MOST:
            continue
        size = max(int(which.max()) + 1, groups)
        table = np.arange(size)  # of what was not seen, as the plain index of groups has it
        seen = least < groups
        table[which[seen]] = least[seen]
        plain = (table == np.arange(size)).all() and size == groups
        if plain or len(np.unique(which[seen])) == size:
            found.append(Rule(axis, table, name))
    return found
