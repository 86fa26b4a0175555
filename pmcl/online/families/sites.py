"""What each row says, as a normal of its predictors: one site for every value that is observed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.predictors import Predictor
from pmcl.online.families.anchor import Told
from pmcl.online.families.dense import symmetric_root
from pmcl.online.gaps import THERE
from pmcl.online.rows import Data, RowBatch, Rows
from pmcl.online.search.bound import weighted

_NODES = 20  # of a quadrature over one predictor
_DRAWS = 32  # pairs of draws of several


class Looked(NamedTuple):
    """The predictors of one observed variable where z is looked at.

    Attributes
    ----------
    eta : Array of shape (site, predictor)
    slope : Array of shape (site, predictor, dim)
        Its derivative by z.
    others : tuple of arrays of shape (site,)
        Parameters of the distribution that z has no part in.
    y, weights : Array of shape (site,)
    """

    eta: Array
    slope: Array
    others: tuple[Array, ...]
    y: Array
    weights: Array


class Said(NamedTuple):
    """What the sites of one observed variable say.

    Attributes
    ----------
    value : Array of shape (site,)
        Expected log likelihood (nats).
    slope : Array of shape (site, predictor)
        Expected derivative by the predictors.
    curvature : Array of shape (site, predictor, predictor)
        Expected second derivative, its sign turned.
    """

    value: Array
    slope: Array
    curvature: Array


def look(found: Told, rows: Rows, z: Array, batch: RowBatch) -> list[Looked]:
    """Look at the predictors of a batch, and at their derivatives, at z."""
    n = rows.length(batch.data)
    parts = etas(found, rows, z, batch.data)
    results = []
    for i, (eta, others) in enumerate(parts):

        def one(row: Array, i: int = i) -> Array:
            few = rows.take(batch.data, row[None])
            return jax.jacrev(lambda z: etas(found, rows, z, few)[i][0])(z)

        slope = jax.vmap(one)(jnp.arange(n)).reshape(*eta.shape, len(z))
        results.append(Looked(eta, slope, others, *observed(found.parts[i], rows, batch)))
    return results


def observed(part: Predictor, rows: Rows, batch: RowBatch) -> tuple[Array, Array]:
    """Every value of an observed variable, and its weight: none where it is missing."""
    axis = rows.axis(part.name) or 0
    y = jnp.moveaxis(jnp.asarray(batch.data[part.name]), axis, 0)
    weights = jnp.repeat(batch.weights, y.size // len(y))
    there = batch.data.get(part.name + THERE)
    if there is not None:
        weights = jnp.where(jnp.moveaxis(there, axis, 0).reshape(-1), weights, 0.0)
    return y.reshape(-1), weights


def etas(found: Told, rows: Rows, z: Array, data: Data) -> list[tuple[Array, tuple[Array, ...]]]:
    """Predictors, and parameters beside them, of every value of every observed variable in turn."""
    results = []
    for part, (eta, others) in zip(found.parts, found(z, data), strict=True):
        axis = rows.axis(part.name) or 0
        flat = jnp.moveaxis(eta, axis, 0).reshape(-1, eta.shape[-1])
        results.append((flat, tuple(jnp.moveaxis(v, axis, 0).reshape(-1) for v in others)))
    return results


def log_likelihood(found: Told, rows: Rows, z: Array, batch: RowBatch) -> Array:
    """Weighted log likelihood of a batch by its predictors (nats)."""
    total = jnp.zeros(())
    for part, (eta, others) in zip(found.parts, etas(found, rows, z, batch.data), strict=True):
        y, weights = observed(part, rows, batch)
        total = total + weighted(part.log_density(eta, others, y), weights)
    return total


def say(part: Predictor, at: Looked, spread: Array, firm: Array) -> Said:
    """Take expectations over normal predictors: means `at.eta`, covariances `spread`.

    Parameters
    ----------
    part : Predictor
    at : Looked
    spread : Array of shape (site, predictor, predictor)
    firm : Array of bool of shape ()
        Whether the scales of a normal distribution are told by entries of z that tell nothing else.
        Their curvature is then that of what is left when all others follow, 2 r^2 / s^2 with
        residuals r (MacKay, 1992, Bayesian interpolation, eq. 4.8): where there are nearly as many
        parameters as rows, steps by the curvature of the moment would fall short for ever, since
        the predictions' own variance is in proportion to that of the noise.
    """
    if part.kind == "normal":
        return _normal(part, at, spread, firm)
    if part.kind == "laplace":
        return _laplace(part, at, spread)
    k = at.eta.shape[-1]

    def total(eta: Array) -> tuple[Array, Array]:
        found = part.log_density(eta, at.others, at.y)
        return found.sum(), found

    def moments(eta: Array) -> tuple[Array, Array, Array]:
        slope = jax.grad(total, has_aux=True)
        value, tangent = total(eta)[1], slope(eta)[0]
        columns = [
            jax.jvp(lambda e: slope(e)[0], (eta,), (jnp.zeros_like(eta).at[:, j].set(1.0),))[1]
            for j in range(k)
        ]
        return value, tangent, -jnp.stack(columns, axis=-1)

    points, weights = _points(k)
    root = symmetric_root(spread)
    values = jax.vmap(lambda e: moments(at.eta + jnp.einsum("nij,j->ni", root, e)))(points)
    value, slope, curvature = (jnp.tensordot(weights, v, axes=1) for v in values)
    return Said(value, slope, curvature)


def _normal(part: Predictor, at: Looked, spread: Array, firm: Array) -> Said:
    """In closed form, whichever of mean and log sd z tells."""
    k = len(part.told)
    mean = at.eta[:, 0] if 0 in part.told else at.others[0]
    log_sd = at.eta[:, -1] if 1 in part.told else jnp.log(at.others[-1])
    more = spread[:, -1, -1] if 1 in part.told else 0.0
    wide = spread[:, 0, 0] if 0 in part.told else 0.0
    precision = jnp.exp(-2 * log_sd + 2 * more)
    far = at.y - mean
    square = (far**2 + wide) * precision
    value = -jnp.log(2 * jnp.pi) / 2 - log_sd - square / 2
    slopes = {0: far * precision, 1: square - 1}
    curvatures = {0: precision, 1: jnp.where(firm, 2 * far**2 * precision, 2.0)}
    slope = jnp.stack([slopes[i] for i in part.told], axis=-1)
    curved = jnp.stack([curvatures[i] for i in part.told], axis=-1)
    return Said(value, slope, curved[..., None] * jnp.eye(k))


def _laplace(part: Predictor, at: Looked, spread: Array) -> Said:
    """In closed form: the bend of a log density that is straight elsewhere is at one point.

    Expected over a normal mean it is twice the normal's density there.
    """
    k = len(part.told)
    mean = at.eta[:, 0] if 0 in part.told else at.others[0]
    log_b = at.eta[:, -1] if 1 in part.told else jnp.log(at.others[-1])
    rate = jnp.exp(-log_b + (spread[:, -1, -1] / 2 if 1 in part.told else 0.0))
    sd = jnp.sqrt(jnp.maximum(spread[:, 0, 0], 0.0)) if 0 in part.told else jnp.zeros_like(mean)
    known = sd <= 0
    sd = jnp.where(known, 1.0, sd)
    far = at.y - mean
    below = jnp.where(known, jnp.sign(far), jax.scipy.special.erf(far / sd / np.sqrt(2)))
    density = jnp.where(known, 0.0, jax.scipy.stats.norm.pdf(far / sd) / sd)
    distance = far * below + 2 * density * sd**2
    value = -jnp.log(2.0) - log_b - distance * rate
    slopes = {0: rate * below, 1: rate * distance - 1}
    curvatures = {0: 2 * rate * density, 1: rate * distance}
    slope = jnp.stack([slopes[i] for i in part.told], axis=-1)
    curved = jnp.stack([curvatures[i] for i in part.told], axis=-1)
    return Said(value, slope, curved[..., None] * jnp.eye(k))


def _points(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of standard normal expectations in k dimensions."""
    if k == 1:
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        return nodes[:, None], weights / weights.sum()
    half = np.random.default_rng(0).normal(size=(_DRAWS, k))
    points = np.concatenate([half, -half])
    return points / np.sqrt((points**2).mean(axis=0)), np.full(2 * _DRAWS, 0.5 / _DRAWS)


def columns(at: Looked, said: Said) -> Array:
    """C of shape (dim, column) with C C' what the sites add to the precision of z."""
    root = symmetric_root(said.curvature)
    root = root * jnp.sqrt(at.weights)[:, None, None]
    return jnp.einsum("nid,nij->dnj", at.slope, root).reshape(at.slope.shape[-1], -1)


def shifts(at: Looked, said: Said, z: Array) -> Array:
    """Second natural parameters of the sites around z, shape (site, dim), before weights."""
    along = at.slope @ z
    pull = said.slope + jnp.einsum("nij,nj->ni", said.curvature, along)
    return jnp.einsum("nid,ni->nd", at.slope, pull)
