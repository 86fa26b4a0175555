"""Farthest-first traversal: points that are far from each other."""

import jax
import jax.numpy as jnp
from jax import Array


def farthest_first(
    points: Array, first: Array, more: int, *, scale: Array, eligible: Array
) -> Array:
    """Positions of the first points, then each time of the one that is farthest from all chosen.

    Parameters
    ----------
    points : Array of shape (n, dim)
    first : Array of int of shape (k,)
    more : int
        How many to choose beside them.
    scale : Array of shape (dim,)
        What distances are measured in.
    eligible : Array of bool of shape (n,)
        Which may be chosen.

    Returns
    -------
    Array of int of shape (k + more,)

    References
    ----------
    Gonzalez (1985), Clustering to minimize the maximum intercluster distance.
    """

    def distance(i: Array) -> Array:
        return jnp.sum(((points - points[i]) / scale) ** 2, axis=1)

    def choose(nearest: Array, _: None) -> tuple[Array, Array]:
        index = jnp.argmax(jnp.where(eligible, nearest, -1.0))
        return jnp.minimum(nearest, distance(index)), index

    nearest = jnp.min(jax.vmap(distance)(first), axis=0)
    _, others = jax.lax.scan(choose, nearest, length=more)
    return jnp.concatenate([first, others])
