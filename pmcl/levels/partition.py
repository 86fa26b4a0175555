"""Global parameters and groups, from which terms of a density depend on which parameters."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from pmcl.compile.variables import ValueSlice

_WIDEST = 24  # parameters of a group
_MOST_GLOBAL = 60  # parameters of all groups together
_SMALL = 30  # entries up to which a variable with an entry a group may count as global
_VECTORS = 10  # variables with entries that are tried as global or local


class Partition(NamedTuple):
    """Global variables, and the groups that are left.

    Attributes
    ----------
    shared : frozenset of str
        Names of the global variables' values.
    group : array of int of shape (dim,)
        Group of every entry of z; -1 for global ones.
    """

    shared: frozenset[str]
    group: np.ndarray

    @property
    def number(self) -> int:
        """Number of groups."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def width(self) -> int:
        """Most parameters of a group."""
        return int(np.bincount(self.group[self.group >= 0], minlength=1).max())

    @property
    def shared_entries(self) -> int:
        """Number of global parameters."""
        return int((self.group < 0).sum())

    @property
    def cost(self) -> int:
        """What is searched for at once, and what is integrated out at once."""
        return self.shared_entries + self.width


def partition(
    pattern: csr_array, values: Sequence[ValueSlice], shared: frozenset[str] | None = None
) -> Partition | None:
    """Separate global parameters so that groups do not depend on each other.

    Of all sets of variables that leave small independent groups the smallest is taken. Variables
    that are no vectors, or whose entries all belong to one group, are global.

    Parameters
    ----------
    pattern : sparse array of bool of shape (element, dim)
        Which terms of the log density depend on which entries of z.
    values : sequence of ValueSlice
    shared : frozenset of str, optional
        The global variables, if they are known.

    Returns
    -------
    Partition or None
        None where no set of global variables leaves groups.
    """
    kinds = np.unique(pattern.toarray(), axis=0)
    tried = [shared] if shared is not None else candidates(values)
    found = (_groups(kinds, values, names) for names in tried)
    return min((p for p in found if p is not None), key=lambda p: p.cost, default=None)


def candidates(values: Sequence[ValueSlice]) -> Iterator[frozenset[str]]:
    """Sets of variables that may be the global ones."""
    scalars = {v.name for v in values if v.size == 1}
    vectors = sorted((v for v in values if v.size > 1), key=lambda v: -v.size)[:_VECTORS]
    rest = {v.name for v in values} - scalars - {v.name for v in vectors}
    small = [v.name for v in vectors if v.size <= _SMALL]
    for some in chain.from_iterable(combinations(small, n) for n in range(len(small) + 1)):
        yield frozenset(scalars | rest | {*some})


def _groups(
    pattern: np.ndarray, values: Sequence[ValueSlice], shared: frozenset[str]
) -> Partition | None:
    """Split what is not shared in groups that have no term in common."""
    dim = pattern.shape[1]
    while True:
        local = np.concatenate(
            [np.arange(v.start, v.start + v.size) for v in values if v.name not in shared]
            or [np.zeros(0, int)]
        )
        if not len(local) or dim - len(local) > _MOST_GLOBAL or len(local) == dim:
            return None
        label = _components(pattern[:, local])
        group = np.full(dim, -1)
        group[local] = label
        alone = {
            v.name
            for v in values
            if v.name not in shared and len({*group[v.start : v.start + v.size]}) == 1
        }
        if not alone:
            break
        shared = shared | alone
    small = all(v.size <= _SMALL for v in values if v.name in shared)
    if not small:
        return None
    found = _gathered(Partition(shared, group), values)
    return found if found.number > 1 and found.width <= _WIDEST else None


def _gathered(found: Partition, values: Sequence[ValueSlice]) -> Partition:
    """Put parameters of a group without rows together, by their place among the others.

    They have no term in common. The place is that along an axis along which all groups are; no
    group becomes larger than one with rows is.
    """
    local = [v for v in values if v.name not in found.shared]
    for size in set.intersection(*({*v.shape} for v in local)):
        place = np.full(len(found.group), -1)
        for v in local:
            axes = (axis for axis, n in enumerate(v.shape) if n == size)
            tried = [np.indices(v.shape)[axis].ravel() for axis in axes]
            own = slice(v.start, v.start + v.size)
            place[own] = next((p for p in tried if _alike(found.group[own], p)), tried[0])
        other = found._replace(group=place)
        if size < found.number and _alike(found.group, place) and other.width <= found.width:
            return other
    return found


def _alike(label: np.ndarray, other: np.ndarray) -> bool:
    """Whether entries of one label have one other label."""
    pairs = np.unique(np.stack([label, other]), axis=1)
    return pairs.shape[1] == len(np.unique(label))


def _components(pattern: np.ndarray) -> np.ndarray:
    """Label columns; two that are in one row have one label. Labels are in order of columns."""
    rows = csr_array(pattern.astype(np.int32))
    _, label = connected_components(rows.T @ rows, directed=False)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
