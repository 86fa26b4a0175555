"""Modes that differ, places for the proposals of each dataset, and what may be chosen of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from pmcl.refinement.proposals import Component, Proposals, Student
from pmcl.refinement.stages import Modes
from pmcl.refinement.treatment import Engine
from pmcl.search.newton import Mode
from pmcl.search.scales import AbstractScale, Dense, LowRank

_SAME_MODE = 1.0  # squared distance, in scales of the mode, below which two searches met
_NEGLIGIBLE = 10.0  # nats of evidence by which a mode may lie behind
_MIXTURE = (
    0.8  # by so much the mixture of all has to be better than one kind, whose draws are cheap
)


def distinct(found: Modes) -> tuple[np.ndarray, np.ndarray]:
    """Order searches by evidence; those that met another, or are negligible, repeat the first.

    Returns
    -------
    order : array of shape (dataset, start)
    number : array of shape (dataset,)
        Distinct modes.
    """
    evidence, apart = np.asarray(found.evidence), np.asarray(found.apart)
    n, m = evidence.shape
    order, number = np.zeros((n, m), int), np.zeros(n, int)
    for i in range(n):
        kept: list[int] = []
        for j in np.argsort(-evidence[i], kind="stable"):
            far = all(min(apart[i, j, k], apart[i, k, j]) > _SAME_MODE for k in kept)
            if not kept or (far and evidence[i, j] > evidence[i, kept[0]] - _NEGLIGIBLE):
                kept.append(int(j))
        order[i] = (kept + [kept[0]] * m)[:m]
        number[i] = len(kept)
    return order, number


class Kinds(NamedTuple):
    """Places of each kind: `network` of the network's proposals, and so on; slices."""

    network: slice
    normal: slice
    bent: slice
    student: slice
    population: slice

    @classmethod
    def of(cls, pool: Proposals, starts: int) -> "Kinds":
        """Where a pool has its places, with so many modes at most."""
        a = 0 if pool.network is None else 2
        b, total = a + 2 * starts, a + 2 * starts + pool.student.shift.shape[1]
        return cls(
            slice(0, a),
            slice(a, a + starts),
            slice(a + starts, b),
            slice(b, b + starts),
            slice(b + starts, total),
        )


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
        context: np.ndarray | None,
        z: np.ndarray,
        components: int,
    ) -> "ProposalArrays":
        """Normals and t distributions at the modes, the network's posterior and its alignment.

        Parameters
        ----------
        modes : Mode
            Of fields (dataset, start, ...): the distinct ones, of which there are `number`, first.
        number : array of int of shape (dataset,)
        context : array of shape (dataset, context), optional
            Of the network; None without one.
        z : array of shape (dataset, draw, dim)
            Draws of the network, whose mean and covariance are brought to the first mode's.
        components : int
            Places for what population Monte Carlo finds.
        """
        n, starts, dim = modes.z.shape
        twice = jax.tree.map(lambda x: np.concatenate([x, x], axis=1), (modes.z, modes.scale))
        unbent: Any = np.zeros((n, 2 * starts, 2 * dim))
        normal = Component(unbent, None, None, *twice)
        more = np.minimum(np.arange(starts + components), starts - 1)
        student = Student(*jax.tree.map(lambda x: x[:, more], (modes.z, modes.scale)))
        network = None if context is None else _of_network(context, z, modes)
        pool = Proposals(network, normal, student)
        kinds = Kinds.of(pool, starts)
        there = np.zeros((n, kinds.population.stop), bool)
        there[:, kinds.network] = True
        distinct = np.arange(starts) < number[:, None]
        there[:, kinds.normal] = there[:, kinds.student] = distinct
        return cls(pool, there, number, kinds)

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

        def add(name: Engine, *places: slice | int, of: np.ndarray | None = None) -> None:
            found = np.zeros_like(there)
            for place in places:
                found[:, place] = there[:, place]
            names.append(name)
            members.append(found if of is None else found & of[:, None])

        if kinds.network.stop:
            add(Engine.AMORTIZED, 0)
            add(Engine.ALIGNED, 1, of=self.modes[rows] == 1)
        add(Engine.ALIGNED, kinds.normal)
        add(Engine.REFINED, kinds.bent)
        add(Engine.MIXTURE, slice(None))
        prefer = np.where(np.array(names) == Engine.MIXTURE, _MIXTURE, 1.0)
        return names, np.stack(members), prefer


def _of_network(context: Any, z: np.ndarray, modes: Mode) -> Component:
    """The network's posterior, and its alignment with the first mode."""
    n, dim = len(context), modes.z.shape[2]
    loc: Any = z.mean(axis=1)
    sd: Any = np.maximum(z.std(axis=1), 1e-12)
    zero: Any = np.zeros((n, dim))
    one: Any = np.ones((n, dim))
    eye: Any
    scale: AbstractScale = jax.tree.map(lambda x: np.asarray(x)[:, 0], modes.scale)
    white: AbstractScale
    if isinstance(scale, Dense):
        v = (z - loc[:, None]) / sd[:, None]
        lower: Any = _cholesky(np.einsum("nsi,nsj->nij", v, v) / z.shape[1] + 1e-6 * np.eye(dim))
        lower = sd[:, :, None] * lower
        inverse: Any = np.linalg.inv(lower)
        white = Dense(lower, inverse)
        eye = np.broadcast_to(np.eye(dim), (n, dim, dim))
        whole: AbstractScale = Dense(eye, eye)
        standard: AbstractScale = whole
    else:
        assert isinstance(scale, LowRank)
        rank = scale.core.shape[-1]
        eye = np.broadcast_to(np.eye(rank), (n, rank, rank))
        still: Any = np.zeros((n, dim, rank))
        nothing: Any = np.zeros((n, dim, 0)), np.zeros((n, 0, 0))
        whole = LowRank(one, still, eye)
        white, standard = LowRank(sd, *nothing), LowRank(one, *nothing)
    amortized = Component(context, zero, standard, zero, whole)
    aligned = Component(context, loc, white, modes.z[:, 0], scale)
    return jax.tree.map(lambda *x: np.stack(x, axis=1), amortized, aligned)


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    """Lower factors; the identity where there is none."""
    found = np.broadcast_to(np.eye(matrices.shape[-1]), matrices.shape).copy()
    for i, matrix in enumerate(matrices):
        if np.isfinite(matrix).all():
            try:
                found[i] = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                pass  # draws that lie in fewer dimensions: their sd is scale enough
    return found
