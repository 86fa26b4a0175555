"""Representative points: k-centers and k-medoids."""

import numpy as np
from scipy.spatial.distance import cdist


def standardised(points: np.ndarray) -> np.ndarray:
    """Divide every column by its sd, so that none outweighs the others."""
    spread = points.std(axis=0)
    return points / np.where(spread > 0, spread, 1.0)


def k_centers(points: np.ndarray, k: int, *, standardise: bool = True) -> np.ndarray:
    """Greedy k-center: begin at the point nearest the mean, then always take the farthest one.

    Parameters
    ----------
    points : array of shape (n, d)
    k : int
    standardise : bool
        Columns, so that none outweighs the others.

    Returns
    -------
    array of int of shape (k,)
        Indices, sorted.

    References
    ----------
    Gonzalez (1985), Clustering to minimize the maximum intercluster distance, Theoretical Computer
    Science 38: within a factor of two of the best covering radius.
    """
    n = len(points)
    if k >= n:
        return np.arange(n)
    standard = standardised(points) if standardise else points
    chosen = [int(np.argmin(cdist(standard, standard.mean(axis=0, keepdims=True))))]
    nearest = cdist(standard, standard[chosen])[:, 0]
    while len(chosen) < k:
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, cdist(standard, standard[chosen[-1:]])[:, 0])
        nearest[chosen] = -1.0  # points that are the same do not come twice
    return np.sort(np.asarray(chosen))


def k_medoids(points: np.ndarray, k: int) -> np.ndarray:
    """Partitioning around medoids (PAM): `k` points with the least summed distance to the rest.

    Parameters
    ----------
    points : array of shape (n, d)
        Standardised per column here, so that no column outweighs the others.
    k : int

    Returns
    -------
    array of int of shape (k,)
        Indices of the medoids, sorted.

    References
    ----------
    Kaufman & Rousseeuw (1990), Finding Groups in Data, chapter 2 (BUILD and SWAP).
    """
    n = len(points)
    if k >= n:
        return np.arange(n)
    standard = standardised(points)
    distance = cdist(standard, standard)
    medoids: list[int] = []
    nearest = np.full(n, np.inf)
    for _ in range(k):  # BUILD: the point that helps most
        gain = np.minimum(nearest, distance).sum(axis=1)
        gain[medoids] = np.inf
        medoids.append(int(np.argmin(gain)))
        nearest = np.minimum(nearest, distance[medoids[-1]])
    cost = nearest.sum()
    while True:  # SWAP: the best exchange of a medoid for another point, while one helps
        best = (cost, -1, -1)
        for i in range(k):
            rest = [m for j, m in enumerate(medoids) if j != i]
            without = distance[rest].min(axis=0) if rest else np.full(n, np.inf)
            costs = np.minimum(without, distance).sum(axis=1)
            costs[medoids] = np.inf
            other = int(np.argmin(costs))
            if costs[other] < best[0] - 1e-12:
                best = (costs[other], i, other)
        if best[1] < 0:
            return np.sort(np.asarray(medoids))
        cost, i, other = best
        medoids[i] = other
