"""Datasets that go through the same stages, their modes, and what may be chosen for them."""

from typing import NamedTuple

import jax
import numpy as np

from pmcl.refinement.alignment import Mode
from pmcl.refinement.proposals import Pool

_SAME_MODE = 1.0  # squared distance, in scales of the mode, below which two searches met
_NEGLIGIBLE = 10.0  # nats of evidence by which a mode may lie behind


class Group(NamedTuple):
    """Datasets that go through the same stages, with their proposals.

    Attributes
    ----------
    rows : array of int
        Positions in the run.
    pool : Pool
        Of these datasets.
    modes : int
    local : str or None
        Base of the proposals that took local steps: "network" or "normal".
    """

    rows: np.ndarray
    pool: Pool
    modes: int
    local: str | None

    def subset(self, which: np.ndarray) -> "Group":
        """Some of the datasets, by position in `rows`."""
        pool = jax.tree.map(lambda x: x[which], self.pool)
        return self._replace(rows=self.rows[which], pool=pool)


class Verdict(NamedTuple):
    """The choice for each dataset of a group: arrays with a leading dataset."""

    engine: np.ndarray
    weights: np.ndarray
    names: list[str]
    efficiency: np.ndarray


def distinct(found: Mode) -> tuple[np.ndarray, np.ndarray]:
    """Order searches by evidence; those that met another, or are negligible, repeat the first.

    Returns
    -------
    order : array of shape (dataset, start)
    number : array of shape (dataset,)
        Distinct modes.
    """
    n, m = found.log_p.shape
    log_det = np.asarray(jax.vmap(jax.vmap(lambda s: s.log_det()))(found.scale))
    evidence = np.where(np.isfinite(found.log_p), found.log_p + log_det, -np.inf)
    evidence = np.where(np.isnan(evidence), -np.inf, evidence)
    solve = jax.vmap(jax.vmap(lambda s, x: s.solve(x)))
    # Scaled differences of all pairs of one dataset: (dataset, from, to).
    apart = np.stack(
        [
            np.sum(np.asarray(solve(found.scale, found.z - found.z[:, j : j + 1])) ** 2, axis=-1)
            for j in range(m)
        ],
        axis=2,
    )
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


def sizes(pool: Pool) -> tuple[int, int, int]:
    """Return how many components there are of each kind, in arrays that have a leading dataset."""
    network, normal, student = (
        0 if part is None else part.shift.shape[1]
        for part in (pool.network, pool.normal, pool.student)
    )
    return network, normal, student


def candidates(group: Group) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Mixtures that may be chosen: their engines, members and preferences.

    Singles first, for their draws are cheaper; the mixture of all has to be better by a quarter.
    """
    network, normal, student = sizes(group.pool)
    total, modes = network + normal + student, group.modes
    names: list[str] = []
    members: list[np.ndarray] = []

    def add(name: str, begin: int, end: int) -> None:
        names.append(name)
        members.append((np.arange(total) >= begin) & (np.arange(total) < end))

    if network:
        add("amortized", 0, 1)
        if modes == 1:
            add("aligned", 1, 2)
    add("aligned", network, network + modes)
    if group.local == "network":
        add("refined", 2, 3)
    elif group.local == "normal":
        add("refined", network + modes, network + 2 * modes)
    add("mixture", 0, total)
    return names, np.stack(members), np.where(np.array(names) == "mixture", 0.8, 1.0)
