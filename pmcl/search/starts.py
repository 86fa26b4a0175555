"""Where searches for a mode begin."""

import jax.numpy as jnp
from jax import Array

from pmcl.search.farthest import farthest_first


def starts(z: Array, log_p: Array, number: int, always: int) -> Array:
    """Choose draws to start from: the most probable one, then each time the farthest away.

    Parameters
    ----------
    z : Array of shape (draws, dim)
    log_p : Array of shape (draws,)
        Draws without a finite density are not chosen while there are others.
    number : int
    always : int
        Position of a draw that comes second: the centre of the prior, for a network that is lost.

    Returns
    -------
    Array of shape (number, dim)
    """
    usable = jnp.isfinite(log_p)
    scale = jnp.maximum(jnp.std(z, axis=0), 1e-12)
    # Far-away draws of hardly any density are outliers, not other modes: the better half competes.
    floor = jnp.nanmedian(jnp.where(usable, log_p, jnp.nan))
    eligible = usable & ~(log_p < floor)
    first = jnp.argmax(jnp.where(usable, log_p, -jnp.inf))

    if number == 1:
        return z[first[None]]
    both = jnp.stack([first, jnp.asarray(always)])
    return z[farthest_first(z, both, number - 2, scale=scale, eligible=eligible)]
