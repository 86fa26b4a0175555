"""A model made ready for any number of groups."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import pymc as pm

from pmcl.compile import (
    CompiledModel,
    Density,
    compile_model,
    make_simulator,
    read_covariates,
)
from pmcl.compile.covariates import SourcesLike, sources_of
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.resizing import resized
from pmcl.compile.variables import holders
from pmcl.data.sources import aligned_sources
from pmcl.data.task import Task
from pmcl.levels.integrals import Marginal
from pmcl.levels.reading import Reading, read
from pmcl.levels.sizes import Groups, Members, grouping_of, reading_at
from pmcl.networks import Amortizer, InputLayout, Network, build_amortizer
from pmcl.runtime.jitting import few_lengths
from pmcl.search.search import Search
from pmcl.training import Simulated
from pmcl.training.levels import simulated

_LOOKED_AT = 4  # simulations
_SIZES = 64  # numbers of groups whose models are kept


class Prepared(NamedTuple):
    """A model of the largest size that networks are trained at, with sources of its covariates.

    `reading` is of the model as it was.
    """

    model: pm.Model
    covariates: Mapping[str, Any]
    groups: Groups
    reading: Reading


@dataclass(frozen=True, eq=False)
class Sized:
    """All that depends on the number of groups.

    Attributes
    ----------
    compiled : CompiledModel
    reading : Reading
    """

    compiled: CompiledModel
    reading: Reading

    def amortizer(self, like: Amortizer, row: str | None) -> Amortizer:
        """The network, whose search is one in this model."""
        marginal = Marginal.of(Density(self.compiled, row), self.reading.like)
        return eqx.tree_at(lambda a: a.search.density, like, marginal)

    def at(self, groups: Groups, number: int) -> "Sized":
        """The same with so many groups, or a few more: one of few sizes, each made once."""
        return self.exactly(groups, few_lengths(max(number, 2)))

    def exactly(self, groups: Groups, size: int) -> "Sized":
        """The same with so many groups and no more; made once, as long as it is among the last."""
        if size == len(self.compiled.coords[groups.grouping.dim]):
            return self
        make = partial(self._made, groups.grouping.dim, size)
        compiled = self.compiled.keep_few("groups", size, make, most=_SIZES)
        # of one model networks may have read different levels
        return Sized(compiled, reading_at(self.reading, compiled, groups.grouping))

    def _made(self, dim: str, size: int) -> CompiledModel:
        names = [i.name for i in self.compiled.covariates]
        return compile_model(resized(self.compiled.model, dim, size), covariates=names)


class Checked(NamedTuple):
    """Datasets as a task, and all that depends on their size."""

    task: Task
    sized: Sized

    @property
    def labels(self) -> tuple[tuple[str, ...], ...] | None:
        """Names of each dataset's groups; None where all have those of the model."""
        return self.task.labels

    @property
    def numbers(self) -> np.ndarray:
        """Groups of each dataset."""
        if self.labels is None:
            return np.full(len(self.task), self.sized.reading.like.groups)
        return np.array([len(names) for names in self.labels])

    @property
    def padded(self) -> bool:
        """Whether some datasets have fewer groups than the model that they are put in."""
        return bool((self.numbers < self.sized.reading.like.groups).any())


def skeleton(network: Network, marginal: Marginal, *, starts: int, modes: int) -> Amortizer:
    """A network of global parameters of the right shapes, whose numbers mean nothing."""
    z = np.zeros((2, marginal.dim))
    search = Search.of(marginal, z[0], z, starts=starts)  # type: ignore[arg-type]
    search = replace(search, exact=True, modes=modes)
    layout, key = InputLayout((), (), ()), jax.random.key(0)
    return build_amortizer(network, layout, z, {"": np.zeros(2)}, key=key, search=search)


def prepared(model: pm.Model, covariates: SourcesLike | None, groups: tuple[int, int]) -> Prepared:
    """Find what the number of groups changes, and make the model of the largest.

    An integer `pm.Data` that indexes the groups needs no source: rows are put in groups of any
    sizes.

    Raises
    ------
    ValueError
        Where `groups` is no pair of numbers.
    UnsupportedModelError
        Where the model has no levels, or a number of groups of its own.
    """
    low, high = _pair(groups)
    given = sources_of(model, covariates)
    held, reached = holders(model), {v.name for v in model.data_vars}
    free = [
        str(v.name)
        for v in model.data_vars
        if v.name not in given
        and v.name not in held
        and v.name in reached
        and np.dtype(v.type.dtype).kind in "iu"
        and v.type.ndim == 1
    ]
    compiled = compile_model(model, covariates=(*given, *free))
    # rows of every group: without any its parameters might seem to have nothing in common
    sources = {**given, **{name: Members(*(_indexed(compiled, name),) * 2) for name in free}}
    read_in = read_covariates(aligned_sources(compiled, sources), compiled.covariates)
    source = make_simulator(compiled, read_in)
    few = Simulated.of(source, _LOOKED_AT, random_seed=0)
    density = Density(compiled, next(iter(compiled.shared_dims), None))
    task = simulated(density, few)
    found = read(density, task)
    if not isinstance(found, Reading):
        raise UnsupportedModelError(f"groups: expected a multilevel model; {found}.")
    grouping = grouping_of(found, density, task)
    index = grouping.by
    if index in given:
        raise ValueError(
            f"covariates: expected no source of {index!r}, which says to which group a row is of: "
            "with `groups` rows are put in groups of any sizes."
        )
    others = [name for name in free if name != index]
    if others:
        raise ValueError(f"covariates: expected a source for each of {others}, got none.")
    constant = [n for n in compiled.constants if grouping.dim in _dims(model, n)]
    if constant:
        raise UnsupportedModelError(
            f"groups: expected covariates along {grouping.dim!r}; {constant} are constants of the "
            "model, of one number of groups. Name them in `covariates`."
        )
    sources = {**given, **({index: Members(low, high)} if index else {})}
    ready = Groups(low, high, grouping)
    return Prepared(largest(model, ready), sources, ready, found)


def _indexed(compiled: CompiledModel, name: str) -> int:
    """How many elements there are in what data index; at least two."""
    beyond = np.iinfo(np.int32).max
    try:
        told = compiled.indices.misplaced({name: np.full(1, beyond)})
    except IndexError:
        told = None
    return 2 if told is None else max(2, told.size)


def largest(model: pm.Model, groups: Groups) -> pm.Model:
    """The model of the size that networks are trained at."""
    return resized(model, groups.grouping.dim, few_lengths(groups.high))


def _dims(model: pm.Model, name: str) -> tuple[str | None, ...]:
    return tuple(model.named_vars_to_dims.get(name) or ())


def _pair(groups: tuple[int, int]) -> tuple[int, int]:
    pair = tuple(groups)
    if len(pair) != 2 or any(int(n) != n for n in pair) or not 2 <= pair[0] <= pair[1]:
        raise ValueError(
            "groups: expected the smallest and the largest number of groups, such as (5, 60), at "
            f"least 2, got {groups!r}."
        )
    return int(pair[0]), int(pair[1])
