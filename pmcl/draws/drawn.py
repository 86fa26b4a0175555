"""Draws of many datasets with their densities, judged and resampled."""

from typing import NamedTuple

import numpy as np

from pmcl.metrics import (
    ImportanceDiagnostics,
    importance_diagnostics,
    resample,
)


class Drawn(NamedTuple):
    """Draws with their densities: z (dataset, draw, dim), the others (dataset, draw)."""

    z: np.ndarray
    log_q: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray


def judge(drawn: Drawn) -> ImportanceDiagnostics:
    """Importance diagnostics of draws."""
    return importance_diagnostics(drawn.log_prior + drawn.log_likelihood - drawn.log_q)


def resampled(
    drawn: Drawn, log_weights: np.ndarray, which: np.ndarray, *, seed: int, position: np.ndarray
) -> Drawn:
    """Resample the datasets `which` by their Pareto-smoothed weights; the others stay.

    `position` is that of every dataset in the whole (see `Task`).
    """
    index = np.tile(np.arange(drawn.z.shape[1]), (len(drawn.z), 1))
    for i in which:
        rng = np.random.default_rng([seed, position[i]])
        index[i] = resample(log_weights[i], index.shape[1], rng)
    return _taken(drawn, index)


def _taken(drawn: Drawn, index: np.ndarray) -> Drawn:
    """Take draws of every dataset: `index` has shape (dataset, draw)."""
    rows = np.arange(len(index))[:, None]
    return Drawn(*(np.asarray(v)[rows, index] for v in drawn))
