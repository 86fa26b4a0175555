"""Whether a search arrived, and from where it goes on if it did not."""

from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import MeanField

ENOUGH = 0.1  # nats left to gain, at which a search goes on
_EACH = 1e-3  # nats, for each weight of a network
MUCH = 10.0  # times as much is warned of
_LATE = 10  # the last part of its steps, and at least so many, tell
_REACH = 5.0  # units that a search goes in any case
_ENTRY = 0.02  # nats that an entry must have to gain to count
_SURE = 5.0  # standard errors by which a slope must differ from zero to count


class Slopes(NamedTuple):
    """Slopes of a lower bound in late steps: sums of them, and of their squares.

    Attributes
    ----------
    number : Array of shape ()
    mean, log_sd : Array of shape (2, dim)
        By the mean, and by the log standard deviation.
    """

    number: Array
    mean: Array
    log_sd: Array

    @classmethod
    def none(cls, q: MeanField) -> Self:
        """Before any step."""
        nothing = jnp.zeros((2, *q.mean.shape), q.mean.dtype)
        return cls(jnp.zeros((), q.mean.dtype), nothing, nothing)

    def add(self, mean: Array, log_sd: Array, late: Array) -> "Slopes":
        """Add those of a step, if it is a late one."""
        both = (
            had + jnp.where(late, jnp.stack([v, v**2]), 0.0)
            for had, v in zip(self[1:], (mean, log_sd), strict=True)
        )
        return Slopes(self.number + late, *both)


def enough(dim: int, *, network: bool) -> float:
    """Nats that a search may leave: of a network, whose weights say little alone, by how many."""
    return max(ENOUGH, _EACH * dim) if network else ENOUGH


def late(steps: int) -> np.ndarray:
    """Which steps of a search tell where it ended."""
    return np.arange(steps) >= steps - max(steps // 10, min(steps, _LATE))


class Left(NamedTuple):
    """What a search had left to gain where it ended.

    Attributes
    ----------
    nats : float
        That a step of the natural gradient promises, entry by entry; NaN where too few steps tell.
    far : ndarray of shape (dim,)
        How far the mean has to go by that step.
    wide : ndarray of shape (dim,)
        Variance over what it is to be, where it is far too large; else 1.
    """

    nats: float
    far: np.ndarray
    wide: np.ndarray

    def unit(self, q: MeanField, before: Array) -> Array:
        """Units in which a search goes on: its own width, but where the mean has farther to go."""
        sd, wide = jnp.exp(q.log_sd), jnp.asarray(self.wide, q.mean.dtype)
        far = jnp.abs(jnp.asarray(self.far, sd.dtype))
        longer = jnp.clip(far / _REACH, before, 10 * before)
        return jnp.where(far > sd / jnp.sqrt(wide), longer, jnp.minimum(before, sd))


def left(q: MeanField, slopes: Slopes) -> Left:
    """Tell what is left to gain from the slopes where a search ended.

    The slope by the log sd is 1 - sd^2 (the expected curvature), and zero where the width is right;
    the one by the mean, in standard deviations, is then how far it has to go.
    """
    n = float(slopes.number)
    sd = np.exp(np.asarray(q.log_sd, float))
    nothing = np.zeros_like(sd)
    if n < 2:
        return Left(np.nan, nothing, nothing + 1)
    far, noise_far = _mean_of(np.asarray(slopes.mean, float) * [sd, sd**2], n)
    rise, noise_rise = _mean_of(np.asarray(slopes.log_sd, float), n)
    far = np.where(np.abs(far) > _SURE * noise_far, far, 0.0)
    rise = np.where(np.abs(rise) > _SURE * noise_rise, rise, 0.0)
    down = np.maximum(-rise, 0.0)
    gains = far**2 / 2, np.where(rise > 0, rise**2 / 4, (down - np.log1p(down)) / 2)
    nats = sum(float(g[g > _ENTRY].sum()) for g in gains)
    wide = np.where(rise < -1, 1 - rise, 1.0)
    return Left(nats, far * sd / wide, wide)


def _mean_of(sums: np.ndarray, n: float) -> tuple[np.ndarray, np.ndarray]:
    mean = sums[0] / n
    return mean, np.sqrt(np.maximum(sums[1] / n - mean**2, 0.0) / (n - 1))
