"""Backward and forward transfer, from a matrix of moments by tasks."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Transfer(NamedTuple):
    """What later tasks did to earlier ones, and earlier tasks to later ones.

    Attributes
    ----------
    backward : float
        Mean over earlier tasks of the value after the last task minus the one right after the
        task itself. Of an error: positive where it was forgotten.
    forward : float
        Mean over later tasks of the value right before the task minus the one after pretraining.
        Of an error: negative where earlier tasks helped.
    """

    backward: float
    forward: float


def transfer(matrix: ArrayLike) -> Transfer:
    """Backward and forward transfer of an error or a score.

    Parameters
    ----------
    matrix : array_like, shape (T + 1, T)
        Row 0 after pretraining, row t after the t-th task; column t - 1 the t-th task. NaN where
        there is no value.

    Returns
    -------
    Transfer
        NaN where there are fewer than two tasks, or no value.

    Raises
    ------
    ValueError
        For another shape.

    References
    ----------
    Lopez-Paz & Ranzato (2017), Gradient Episodic Memory for Continual Learning, section 2.
    """
    values = np.asarray(matrix, dtype=float)
    if values.ndim != 2 or values.shape[0] != values.shape[1] + 1:
        raise ValueError(
            "matrix: expected shape (tasks + 1, tasks), a row after pretraining and one after each "
            f"task, got {values.shape}."
        )
    n = values.shape[1]
    at_task = np.array([values[t + 1, t] for t in range(n)])
    before = np.array([values[t, t] for t in range(n)])
    with np.errstate(invalid="ignore"):  # k-hat may be infinite before and after
        return Transfer(
            _mean((values[-1] - at_task)[: n - 1]),
            _mean((before - values[0])[1:]),
        )


def _mean(values: np.ndarray) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else float("nan")
