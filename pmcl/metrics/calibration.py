"""Simulation-based calibration: where the truth lies among posterior draws."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pit(draws: ArrayLike, truth: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
    """Randomised probability integral transform of the truth among posterior draws.

    Uniform on (0, 1) if truth and draws have the same distribution, ties included.

    Parameters
    ----------
    draws : array_like, shape (n, S, ...)
        S posterior draws for each of n simulated datasets.
    truth : array_like, shape (n, ...)
        The parameters that made the datasets.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (n, ...)

    Raises
    ------
    ValueError
        If the shapes do not match.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari & Gelman (2018). Validating Bayesian inference algorithms
    with simulation-based calibration, theorem 1.
    """
    drawn, true = np.asarray(draws), np.asarray(truth)
    if drawn.ndim < 2 or drawn.shape[:1] + drawn.shape[2:] != true.shape:
        raise ValueError(
            f"draws: expected shape (n, S, ...) for a truth of shape (n, ...) = {true.shape}, "
            f"got {drawn.shape}."
        )
    below = np.sum(drawn < true[:, None], axis=1)
    equal = np.sum(drawn == true[:, None], axis=1)
    return (below + rng.random(true.shape) * (equal + 1)) / (drawn.shape[1] + 1)
