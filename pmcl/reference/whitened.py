"""A PyMC model in coordinates in which its posterior is nearly standard normal."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.replace import graph_replace
from scipy.linalg import solve_triangular

WHITE = "u"
_DENSE = 200  # dims of z above which only standard deviations are used: a matrix is too large


class Metric(NamedTuple):
    """Where a posterior lies, and its shape: z = centre + scale u.

    Attributes
    ----------
    centre : array of shape (dim,)
    scale : array of shape (dim, dim)
        Lower triangular; of shape (dim,) where it is diagonal.
    """

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> "Metric":
        """Moments of draws of shape (draw, dim); draws that are not finite are left out."""
        z = np.asarray(z, float)
        z = z[np.isfinite(z).all(axis=1)]
        dim = z.shape[1]
        if len(z) < 2:
            return cls.identity(z[0] if len(z) else np.zeros(dim))
        centre, sd = z.mean(axis=0), z.std(axis=0)
        # Draws that all agree say nothing of the scale.
        sd = np.where(sd > 1e-8, sd, 1.0)
        if dim > _DENSE or len(z) < 2 * dim:
            return cls(centre, sd if dim > _DENSE else np.diag(sd))
        standard = (z - centre) / sd
        correlation = standard.T @ standard / len(z)
        # A little towards none: resampled draws may lie in fewer dimensions than z has.
        correlation = 0.99 * correlation + 0.01 * np.eye(dim)
        return cls(centre, sd[:, None] * np.linalg.cholesky(correlation))

    @classmethod
    def identity(cls, centre: np.ndarray) -> "Metric":
        """About a point (dim,), with scale one."""
        return cls(np.asarray(centre, float), _identity(len(centre)))

    def to(self, z: np.ndarray) -> np.ndarray:
        """Return u of z, of shape (dim,)."""
        far = z - self.centre
        if self.scale.ndim == 1:
            return far / self.scale
        return solve_triangular(self.scale, far, lower=True)

    def back(self, u: np.ndarray) -> np.ndarray:
        """Return z of u, of shape (..., dim)."""
        moved = u * self.scale if self.scale.ndim == 1 else u @ self.scale.T
        return self.centre + moved


class White(NamedTuple):
    """A model over the one vector `u`, and the shared variables that say where z is."""

    model: pm.Model
    centre: SharedVariable
    scale: SharedVariable

    def updates(self, metric: Metric) -> dict[SharedVariable, np.ndarray]:
        """Values that the shared variables take for one dataset."""
        return {self.centre: metric.centre, self.scale: metric.scale}


def whitened(model: pm.Model, order: Sequence[str], dim: int) -> White:
    """Write a model's density as one of u, z = centre + scale u, with nothing else changed.

    The Jacobian is a constant for each dataset, and left out.

    Parameters
    ----------
    model : pymc.Model
        With its data as shared variables (:func:`pmcl.reference.shared.share_data`).
    order : sequence of str
        Names of the value variables as z has them; a rebuilt model has its own order.
    dim : int
        Length of z.
    """
    start = Metric.identity(np.zeros(dim))
    centre = pytensor.shared(start.centre, name="pmcl_centre")
    scale = pytensor.shared(start.scale, name="pmcl_scale")
    density = model.logp()
    point = model.initial_point()
    with pm.Model() as white:
        u = pm.Flat(WHITE, shape=dim)
        z = centre + (scale * u if start.scale.ndim == 1 else scale @ u)
        parts, begin = {}, 0
        by_name = {value.name: value for value in model.value_vars}
        for name in order:
            value, shape = by_name[name], np.shape(point[name])
            size = int(np.prod(shape, dtype=int))
            part = z[begin : begin + size].reshape(shape)
            parts[value] = part.astype(value.type.dtype)
            begin += size
        pm.Potential("density", graph_replace([density], parts, strict=False)[0])
    return White(white, centre, scale)


def _identity(dim: int) -> np.ndarray:
    return np.ones(dim) if dim > _DENSE else np.eye(dim)
