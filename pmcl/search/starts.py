"""Where searches for a mode begin, of draws at hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.data.batching import over_items
from pmcl.runtime.jitting import jit
from pmcl.search.farthest import farthest_first

_TOGETHER = 16  # datasets


def from_draws(z: np.ndarray, log_p: np.ndarray, centre: np.ndarray, number: int) -> np.ndarray:
    """Choose starts for each dataset: of shape (dataset, number, dim).

    Parameters
    ----------
    z : array of shape (dataset, draw, dim)
    log_p : array of shape (dataset, draw)
        Their log density; all alike where it is not known.
    centre : array of shape (dim,)
        Of the prior, which is a start in any case: a network may be lost.
    number : int
    """
    n = len(z)
    points = np.concatenate([z, np.broadcast_to(centre, (n, 1, len(centre)))], axis=1)
    known = np.concatenate([log_p, np.full((n, 1), np.nan)], axis=1)
    return over_items(lambda u, p: _starts(u, p, number), points, known, size=_TOGETHER)


@jit
def _starts(z: Array, log_p: Array, number: int) -> Array:
    return jax.vmap(lambda u, p: starts(u, p, number, u.shape[0] - 1))(z, log_p)


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
