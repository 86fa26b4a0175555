"""Rows that are stored as they are, beside the normal that stands for the rest."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np

from pmcl.metrics.clusters import k_centers
from pmcl.online.gaps import filled
from pmcl.online.rows import Rows


class Stored(NamedTuple):
    """Rows, and when each came.

    Attributes
    ----------
    data : dict of arrays
        Observed variables and covariates, and which values of the observed are there.
    times : ndarray of shape (row,)
    tasks : ndarray of str of shape (row,)
        Name of the batch that each came with.
    """

    data: Mapping[str, np.ndarray]
    times: np.ndarray
    tasks: np.ndarray

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: Rows, index: np.ndarray) -> "Stored":
        """Some of the rows."""
        index = np.flatnonzero(index) if index.dtype == bool else index
        return Stored(rows.take(self.data, index), self.times[index], self.tasks[index])

    def add(self, rows: Rows, other: "Stored") -> "Stored":
        """These rows, then others."""
        if not len(self):
            return other
        mine, theirs = filled(self.data, other.data), filled(other.data, self.data)
        data = {k: np.concatenate([mine[k], v], axis=rows.axis(k) or 0) for k, v in theirs.items()}
        times = np.concatenate([self.times, other.times])
        return Stored(data, times, np.concatenate([self.tasks, other.tasks]))


class Candidates(NamedTuple):
    """What a memory chooses from.

    Attributes
    ----------
    points : ndarray of shape (row, feature)
        Covariates (observations where there are none): of the stored rows, then of the new ones.
    stored : int
        How many of them are stored now.
    seen : int
        Rows that came before.
    score : ndarray of shape (row,), optional
        How ill a Gaussian factor fits each; of a :class:`ResidualMemory` alone.
    """

    points: np.ndarray
    stored: int
    seen: int
    score: np.ndarray | None


class AbstractMemory(eqx.Module):
    """Which rows are stored.

    Attributes
    ----------
    capacity : int
    per_task : bool
        Whether that many of every batch are stored (the memory grows), or that many in all.
    """

    capacity: eqx.AbstractVar[int]
    per_task: eqx.AbstractVar[bool]

    def __check_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(
                f"{type(self).__name__}: expected a capacity of at least 1, got {self.capacity}; "
                "leave `memory` out to store nothing."
            )

    @abstractmethod
    def choose(self, among: Candidates, rng: np.random.Generator) -> np.ndarray:
        """Positions of `capacity` of the candidates, of which there are more."""

    def keep(self, among: Candidates, rng: np.random.Generator) -> np.ndarray:
        """Whether each of the candidates is stored from now on, as booleans."""
        n = len(among.points)
        kept = np.zeros(n, bool)
        first = among.stored if self.per_task else 0
        kept[:first] = True
        part = Candidates(
            among.points[first:],
            among.stored - first,
            0 if self.per_task else among.seen,
            None if among.score is None else among.score[first:],
        )
        if n - first <= self.capacity:
            kept[:] = True
        else:
            kept[first + self.choose(part, rng)] = True
        return kept


class RandomCoreset(AbstractMemory):
    """Rows at random: each that ever came with the same chance, or each of a batch.

    Attributes
    ----------
    capacity : int
    per_task : bool
        Whether that many of every batch are stored (the paper's), or that many in all.

    References
    ----------
    Nguyen et al. (2018), Variational continual learning, Algorithm 1.
    """

    capacity: int
    per_task: bool = eqx.field(static=True, default=False)

    def choose(self, among: Candidates, rng: np.random.Generator) -> np.ndarray:
        # A reservoir: what is stored is a random part of all that came before.
        new = len(among.points) - among.stored
        before = max(among.seen, among.stored)
        arrived = int(rng.hypergeometric(new, before, self.capacity)) if before else self.capacity
        arrived = max(arrived, self.capacity - among.stored)
        old = rng.choice(among.stored, self.capacity - arrived, replace=False)
        return np.concatenate([old, among.stored + rng.choice(new, arrived, replace=False)])


class KCenterCoreset(AbstractMemory):
    """Rows spread over the space of covariates by the greedy k-center algorithm.

    Attributes
    ----------
    capacity : int
    per_task : bool
        Whether that many of every batch are stored (the paper's), or that many in all.
    standardise : bool
        Covariates, before distances are taken.

    References
    ----------
    Nguyen et al. (2018), Variational continual learning, Algorithm 1; Gonzalez (1985).
    """

    capacity: int
    per_task: bool = eqx.field(static=True, default=False)
    standardise: bool = eqx.field(static=True, default=True)

    def choose(self, among: Candidates, rng: np.random.Generator) -> np.ndarray:
        return k_centers(among.points, self.capacity, standardise=self.standardise)


class ResidualMemory(AbstractMemory):
    """Rows whose likelihood a Gaussian factor fits worst (Gaussian residual scoring).

    The normal that stands for the rest is not searched for anew: the stored rows' Gaussian factors
    are divided out of the one that was found with all rows.

    Attributes
    ----------
    capacity : int
    draws : int
        Pairs of draws of z by which each row's factor is estimated.
    per_task : bool
        Whether that many of every batch are stored, or that many in all.
    score : {"misfit", "gain"}
        Variance of the difference of the log likelihood and the factor's logarithm, or its mean,
        which is the paper's. The mean depends on the likelihood's value at the origin, which no
        posterior knows of.

    References
    ----------
    Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data,
    sections 3.2 and 3.3.
    """

    capacity: int
    draws: int = eqx.field(static=True, default=500)
    score: Literal["misfit", "gain"] = eqx.field(static=True, default="misfit")
    per_task: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.score not in ("misfit", "gain"):
            raise ValueError(
                f"ResidualMemory: expected score 'misfit' or 'gain', got {self.score!r}."
            )
        if self.draws < 2:
            raise ValueError(f"ResidualMemory: expected draws, at least 2, got {self.draws}.")

    def choose(self, among: Candidates, rng: np.random.Generator) -> np.ndarray:
        assert among.score is not None
        return np.argsort(-among.score, kind="stable")[: self.capacity]
