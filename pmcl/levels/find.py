"""Levels found in a compiled model and its data, by derivatives and by evaluation."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.sparse import csr_array

from pmcl.compile import CompiledModel, Density, Mask
from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.places import near, possible
from pmcl.data.task import Batch, Task
from pmcl.levels.block import close, one_block, quadratic
from pmcl.levels.naming import described
from pmcl.levels.one_dataset import parts_of
from pmcl.levels.partition import Partition, partition
from pmcl.levels.structure import Levels, NoLevels, Split
from pmcl.runtime.jitting import jit

_COLUMNS = 32  # derivatives that are taken together
_TOGETHER = 4  # datasets that a device works on together
_HELD = 16  # datasets
_FEW = 20  # global parameters that leave a block
_FEWER = 10  # than groups leave
_SHORTER = 0.1  # a move of groups, each time it is impossible
_SHORTENED = 5  # times


class Checked(NamedTuple):
    """What evaluation says of levels.

    Attributes
    ----------
    same : Array of bool
        Whether the parts are the density, and independent of each other.
    exact : Array of bool
        Whether every group's is quadratic.
    concave : Array of bool
        Whether it is concave, wherever it was looked at.
    possible : Array of bool
        Whether the density was finite where the parts were compared.
    """

    same: Array
    exact: Array
    concave: Array
    possible: Array


def find(
    density: Density, task: Task, initial: np.ndarray, *, block: bool = False
) -> Levels | NoLevels:
    """Find global parameters, groups, and the rows of each.

    A parameter belongs to a group where only terms of that group depend on it, given the global
    parameters: read from derivatives at random points, dataset by dataset where data index
    something, and checked by evaluation: other groups' parameters change nothing.

    Parameters
    ----------
    density : Density
    task : Task
    initial : array of shape (dim,)
        The model's initial point, about which derivatives are taken.
    block : bool
        Whether one block of all that is not global will do, where there are no groups, or these
        leave many more global parameters.

    Returns
    -------
    Levels or NoLevels
    """
    compiled, n = density.compiled, len(task)
    vectors = [v for v in compiled.values if v.size > 1]
    if not vectors:
        return NoLevels("no levels: no parameter has entries")
    # Where nothing is indexed and nothing is left out all datasets should be alike.
    alike = not (compiled.indices.places or task.there or task.padded)
    found = _read(density, task, initial, alike=alike, block=block)
    if alike and n > 1 and found is None:
        found = _read(density, task, initial, alike=False, block=block)
    if found is None:
        return NoLevels("no levels: groups that derivatives show depend on each other all the same")
    return found


def _read(
    density: Density, task: Task, initial: np.ndarray, *, alike: bool, block: bool
) -> Levels | NoLevels | None:
    """Levels of every dataset, or of the first for all that are alike; None: they are wrong."""
    compiled, n = density.compiled, len(task)
    which = np.arange(1 if alike else n)
    places = near(initial, len(which))
    patterns, finite = _patterns(density, task, places, which)
    if not finite:  # the slopes of a term that is impossible are zero, or none
        places = possible(density, task.select(which), initial)
        patterns, _ = _patterns(density, task, places, which)
    found = _partitions(patterns, compiled)
    if block and (one := one_block(density, task.select(which), places, _most(found))):
        owner = [np.zeros(pattern.shape[0], int) for pattern in patterns]  # it has all terms
        split, told = _evaluated(density, task, [one] * len(which), owner)
        if told.same and (told.exact or told.concave):
            return _levels(compiled, one, split, told)
    if isinstance(found, NoLevels):
        return found
    owner = [_owner(*pair) for pair in zip(found, patterns, strict=True)]
    split, told = _evaluated(density, task, found, owner)
    return _levels(compiled, found[0], split, told) if told.same else None


def _most(found: list[Partition] | NoLevels) -> int:
    """Global parameters up to which a block is better than groups."""
    return _FEW if isinstance(found, NoLevels) else min(_FEW, found[0].shared_entries - _FEWER)


def _evaluated(
    density: Density, task: Task, found: Sequence[Partition], owner: Sequence[np.ndarray]
) -> tuple[Split, Checked]:
    """Parts of every dataset, from those of the first where all are alike, and what they are."""
    n, split = len(task), stacked(found, owner)
    if len(found) < n:
        split = jax.tree.map(lambda x: np.broadcast_to(x, (n, *x.shape[1:])), split)
    return split, checked(density, task, split, density.compiled.initial)


def _levels(compiled: CompiledModel, first: Partition, split: Split, told: Checked) -> Levels:
    """Levels that were found, and evaluated."""
    text = described(compiled, first, exact=bool(told.exact))
    shared = np.flatnonzero(first.group < 0)
    return Levels(shared, split, bool(told.exact), text, concave=bool(told.concave))


def checked(density: Density, task: Task, split: Split, initial: np.ndarray) -> Checked:
    """Evaluate whether what was read of some datasets is so, of all of them."""
    places = near(initial, len(task))
    told = _looked(density, task, split, places)
    if told.same or told.possible:
        return told
    places, shortened = possible(density, task, initial), False
    for _ in range(_SHORTENED):
        told = _looked(density, task, split, places)
        if told.possible:
            break
        places = places[:, :1] + _SHORTER * (places - places[:, :1])
        shortened = True
    # a move of next to nothing shows no third derivative
    return told._replace(exact=told.exact & (not shortened))


def _looked(density: Density, task: Task, split: Split, places: np.ndarray) -> Checked:
    found = over_chunks(
        lambda batch, split, places: _checked(density, batch, split, places),
        task.batch(),
        np.arange(len(task)),
        split,
        places,
        size=_TOGETHER,
    )
    return Checked(*(v.all() for v in found))


def _patterns(
    density: Density, task: Task, places: np.ndarray, which: np.ndarray
) -> tuple[list[csr_array], bool]:
    """Which terms of some datasets (element) depend on which entries of z; are all finite there.

    `places` are those of the datasets `which`. Some datasets at a time: dense patterns are large.
    """
    found, all_finite = [], True
    for part in np.array_split(np.arange(len(which)), -(-len(which) // _HELD)):
        dense, finite = over_chunks(
            lambda batch, places: _pattern(density, batch, places),
            task.batch(),
            which[part],
            places[part],
            size=_TOGETHER,
        )
        found += [csr_array(one) for one in dense]
        all_finite &= bool(finite.all())
    return found, all_finite


@jit
def _pattern(density: Density, batch: Batch, places: Array) -> tuple[Array, Array]:
    """Which terms (element) depend on which entries of z: (dataset, element, dim).

    Also whether all terms of each dataset are finite.
    """

    def one(data: dict[str, Array], mask: Mask | None, places: Array) -> tuple[Array, Array]:
        def moved(z: Array, axis: Array) -> tuple[Array, Array]:
            value, slope = jax.jvp(lambda u: density.elements(u, data, mask), (z,), (axis,))
            return slope != 0, jnp.isfinite(value).all()

        def column(axis: Array) -> tuple[Array, Array]:
            depends, finite = jax.vmap(lambda z: moved(z, axis))(places)
            return depends.any(axis=0), finite.all()

        found, finite = jax.lax.map(column, jnp.eye(density.dim), batch_size=_COLUMNS)
        return found.T, finite.all()

    return over_datasets(one, batch, places)


@jit
def _checked(density: Density, batch: Batch, split: Split, places: Array) -> Checked:
    """Evaluate the parts of each dataset's density."""

    def one(data: dict[str, Array], mask: Mask | None, split: Split, places: Array) -> Checked:
        width, groups = split.width, split.groups
        number = density.dim - jnp.sum(split.real)  # of global parameters
        flat = jnp.arange(split.real.size)

        def parted(z: Array) -> tuple[Array, Array]:
            """Spread z over (g, l); what is padding is zero."""
            whole = jnp.zeros(density.dim + split.real.size).at[split.place].set(z)
            shift = number.astype(int)
            return whole, whole[shift + flat].reshape(width, groups)

        def again(whole: Array, l: Array) -> Array:  # noqa: E741
            shift = number.astype(int)
            return whole.at[shift + flat].set(l.ravel())[split.place]

        def values(z: Array) -> tuple[Array, Array]:
            return parts_of(density, data, mask, split, z)

        a, b = places[0], places[1]
        whole, first = parted(a)
        second = parted(b)[1]
        rest, left = values(again(whole, first))
        right = values(again(whole, second))[1]

        def independent(bit: Array) -> Array:
            """Move the groups whose number has a bit: any two differ in one of them."""
            moved = (jnp.arange(groups) >> bit) % 2 == 1
            other, by_group = values(again(whole, jnp.where(moved, second, first)))
            return close(other, rest) & close(by_group, jnp.where(moved, right, left)).all()

        bits = jnp.arange(max(groups - 1, 1).bit_length())
        density_at = density(a, data, mask)
        possible = jnp.isfinite(density_at + rest + left.sum() + right.sum())
        same = close(density_at, rest + left.sum())
        same &= jax.lax.map(independent, bits).all()

        def along(move: Array) -> tuple[Array, Array]:
            return quadratic(lambda t: values(again(whole, first + t * move))[1])

        moves = jnp.stack([second - first, second + first, -second])
        exact, concave = jax.vmap(along)(moves)
        return Checked(same, exact.all(), concave.all(), possible)

    return over_datasets(one, batch, split, places)


def _partitions(
    patterns: Sequence[csr_array], compiled: CompiledModel
) -> list[Partition] | NoLevels:
    """Groups of every dataset, with one set of global variables for all."""
    shared: frozenset[str] | None = None
    while True:
        found = []
        for pattern in patterns:
            one = partition(pattern, compiled.values, shared)
            if one is None and shared is not None:
                one = partition(pattern, compiled.values)
            if one is None:
                return NoLevels(
                    "no levels: no few global parameters leave groups that are independent of "
                    "each other (crossed effects, chains and large blocks are not groups)"
                )
            if shared is not None and one.shared != shared:
                break
            shared = one.shared
            found.append(one)
        if len(found) == len(patterns):
            return found
        assert shared is not None and one is not None
        if one.shared <= shared:
            return NoLevels("no levels: those of one dataset are not those of another")
        shared = shared | one.shared


def _owner(found: Partition, pattern: csr_array) -> np.ndarray:
    """Group of every term; their number for those of no group."""
    group = found.group
    owner = np.full(pattern.shape[0], found.number)
    term, entry = pattern.nonzero()
    mine = group[entry] >= 0
    owner[term[mine]] = group[entry[mine]]
    return owner


def stacked(found: Sequence[Partition], terms: Sequence[np.ndarray]) -> Split:
    """Put the groups of all datasets, and those of their terms, in arrays of one shape."""
    groups, width = max(p.number for p in found), max(p.width for p in found)
    shared = int((found[0].group < 0).sum())
    places, owners, reals = [], [], []
    for one, owner in zip(found, terms, strict=True):
        group, local = one.group, one.group >= 0
        order = np.flatnonzero(local)
        order = order[np.argsort(group[order], kind="stable")]
        size = np.bincount(group[order], minlength=one.number)
        position = np.zeros(len(group), int)
        position[order] = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        place = np.zeros(len(group), int)
        place[~local] = np.arange(shared)
        place[local] = shared + position[local] * groups + group[local]
        real = np.zeros((width, groups), bool)
        real[position[local], group[local]] = True
        places.append(place)
        owners.append(np.where(owner == one.number, groups, owner))
        reals.append(real)
    return Split(*map(np.stack, (places, owners, reals)))  # type: ignore[arg-type]
