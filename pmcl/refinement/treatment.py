"""What was done to each dataset, as a record."""

from enum import StrEnum
from typing import NamedTuple

import jax
import numpy as np

from pmcl.metrics import ImportanceDiagnostics

UNCONVERGED = "the search for the mode did not converge"


class Engine(StrEnum):
    """What made the draws of a dataset."""

    AMORTIZED = "amortized"
    ALIGNED = "aligned"
    REFINED = "refined"
    MIXTURE = "mixture"
    NUTS = "nuts"


class Treatment(NamedTuple):
    """What was done to each dataset: arrays of shape (dataset,).

    Attributes
    ----------
    engine : array of Engine
    steps, search_steps, modes, gradients : arrays of int
        Finite local steps, steps of the longest search, distinct modes, and gradients evaluated.
    note : array of str
        Why a stage was skipped, or its result not used.
    warning : array of str
        Why draws should not be trusted; empty where they may be.
    khat_amortized, efficiency_amortized : arrays, optional
        Of the network's own draws; None without a network.
    group_noise, group_points : arrays, optional
        Of a model with levels: variance of the log weights that comes from drawing groups (sigma
        squared; at most 1 is good), and proposals a group; None of any other.
    group_khat, worst_group : arrays, optional
        The largest k-hat of the weights of one group's proposals, and that group's name; NaN and
        empty where groups are integrated out exactly.
    rhat, ess, divergences : arrays, optional
        Of NUTS, NaN where it did not run; None where nobody asked for it.
    """

    engine: np.ndarray
    steps: np.ndarray
    search_steps: np.ndarray
    modes: np.ndarray
    gradients: np.ndarray
    note: np.ndarray
    warning: np.ndarray
    khat_amortized: np.ndarray | None = None
    efficiency_amortized: np.ndarray | None = None
    group_noise: np.ndarray | None = None
    group_points: np.ndarray | None = None
    group_khat: np.ndarray | None = None
    worst_group: np.ndarray | None = None
    rhat: np.ndarray | None = None
    ess: np.ndarray | None = None
    divergences: np.ndarray | None = None

    @classmethod
    def none(cls, n: int, before: ImportanceDiagnostics | None = None) -> "Treatment":
        """Nothing was done to n datasets; `before` says how their amortized draws are."""
        number, text = np.zeros(n, int), np.full(n, "", dtype=object)
        engine = np.full(n, Engine.AMORTIZED, dtype=object)
        found = cls(engine, number, number, number, number, text, text)
        if before is None:
            return found
        return found._replace(khat_amortized=before.khat, efficiency_amortized=before.efficiency)

    def noted(self, rows: np.ndarray, more: str | np.ndarray) -> "Treatment":
        """Add to the notes of some datasets."""
        note = self.note.copy()
        note[rows] = joined(note[rows], more)
        return self._replace(note=note)

    def columns(self) -> dict[str, np.ndarray]:
        """What there is, by name, for `dataset_stats`."""
        there = {k: v for k, v in self._asdict().items() if v is not None}
        return {k: v.astype(str) if v.dtype == object else v for k, v in there.items()}


def replaced[T](old: T, rows: np.ndarray, new: T) -> T:
    """Put the datasets of a tree of arrays in the places `rows` of another."""

    def one(before: np.ndarray, after: np.ndarray) -> np.ndarray:
        found = np.array(before)
        found[rows] = after
        return found

    return jax.tree.map(one, old, new)


def at[T](tree: T, rows: np.ndarray) -> T:
    """Datasets of a tree of arrays."""
    return jax.tree.map(lambda v: np.asarray(v)[rows], tree)


def joined(notes: np.ndarray, more: str | np.ndarray) -> np.ndarray:
    """Put notes one after another, where there are any."""
    pairs = zip(notes, np.broadcast_to(np.asarray(more, object), len(notes)), strict=True)
    return np.array(["; ".join(str(t) for t in p if t) for p in pairs], dtype=object)
