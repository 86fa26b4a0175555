"""Modes that differ, places for the proposals of each dataset, and what may be chosen of them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from pmcl.networks.amortizer import Context
from pmcl.refinement.proposals import Component, Proposals
from pmcl.refinement.treatment import Engine
from pmcl.search.newton import Mode
from pmcl.search.student import Student

_MIXTURE = (
    0.8  # by so much the mixture of all has to be better than one kind, whose draws are cheap
)


class Kinds(NamedTuple):
    """Places of each kind: `network` of the network's proposals, and so on; slices.

    `wide` is of two wider proposals that draws are made of, `judge` of two that judge them.
    """

    network: slice
    normal: slice
    bent: slice
    student: slice
    population: slice
    wide: slice
    judge: slice

    @classmethod
    def of(cls, network: int, starts: int, components: int) -> "Kinds":
        """Where a pool has its places, with so many modes at most."""
        ends = np.cumsum([0, network, starts, starts, starts, components, 2, 2])
        return cls(*(slice(int(a), int(b)) for a, b in pairwise(ends)))


@dataclass
class ProposalArrays:
    """Proposals of many datasets, in NumPy arrays that stages write into.

    Attributes
    ----------
    pool : Proposals
        Fields (dataset, place, ...).
    there : array of bool of shape (dataset, place)
    modes : array of int of shape (dataset,)
    kinds : Kinds
    """

    pool: Proposals
    there: np.ndarray
    modes: np.ndarray
    kinds: Kinds

    @classmethod
    def of(
        cls,
        modes: Mode,
        number: np.ndarray,
        context: Context | None,
        components: int,
    ) -> "ProposalArrays":
        """Normals and t distributions at the modes, and the network's posterior.

        Parameters
        ----------
        modes : Mode
            Of fields (dataset, start, ...): the distinct ones, of which there are `number`, first.
        number : array of int of shape (dataset,)
        context : Context, optional
            Of the network, with a leading dataset; None without one.
        components : int
            Places for what population Monte Carlo finds.
        """
        n, starts, dim = modes.z.shape
        twice = jax.tree.map(lambda x: np.concatenate([x, x], axis=1), (modes.z, modes.scale))
        unbent: Any = np.zeros((n, 2 * starts, 2 * dim))
        normal = Component(unbent, *twice)
        kinds = Kinds.of(int(context is not None), starts, components)
        more = np.minimum(np.arange(kinds.judge.stop - kinds.student.start), starts - 1)
        student = Student(*jax.tree.map(lambda x: x[:, more], (modes.z, modes.scale)))
        network = jax.tree.map(lambda x: np.asarray(x)[:, None], context)
        pool = Proposals(network, normal, student)
        there = np.zeros((n, kinds.judge.stop), bool)
        there[:, kinds.network] = True
        distinct = np.arange(starts) < number[:, None]
        there[:, kinds.normal] = there[:, kinds.student] = distinct
        return cls(pool, there, number, kinds)

    def put(self, kind: str, rows: np.ndarray, found: Student) -> slice:
        """Put t distributions, fields (dataset, place, ...), in the first places of a kind.

        Returns
        -------
        slice
            These places.
        """
        begin, first = getattr(self.kinds, kind).start, self.kinds.student.start
        end = begin + found.shift.shape[1]
        for place, value in zip(
            jax.tree.leaves(self.pool.student), jax.tree.leaves(found), strict=True
        ):
            place[rows, begin - first : end - first] = value
        return slice(begin, end)

    def at(self, rows: np.ndarray) -> Proposals:
        """Proposals of some of the datasets."""
        return jax.tree.map(lambda x: x[rows], self.pool)

    def candidates(self, rows: np.ndarray) -> tuple[list[Engine], np.ndarray, np.ndarray]:
        """Mixtures that may be chosen: their engines, their members, and preferences.

        Members have shape (candidate, dataset, place); the mixture of all comes last.
        """
        there, kinds = self.there[rows], self.kinds
        names: list[Engine] = []
        members: list[np.ndarray] = []

        def add(name: Engine, places: slice | int) -> None:
            found = np.zeros_like(there)
            found[:, places] = there[:, places]
            names.append(name)
            members.append(found)

        if kinds.network.stop:
            add(Engine.AMORTIZED, 0)
        add(Engine.ALIGNED, kinds.normal)
        add(Engine.REFINED, kinds.bent)
        add(Engine.MIXTURE, slice(None))
        prefer = np.where(np.array(names) == Engine.MIXTURE, _MIXTURE, 1.0)
        return names, np.stack(members), prefer
