"""How far data lie outside what was simulated: a distance, calibrated on fresh simulations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Mask
from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.task import Batch
from pmcl.networks.amortizer import Amortizer
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit

_MOST_PAIRS = 12  # columns between which correlations are taken
_FAR = 1.25  # times the farthest simulation
_ITEMS = 64  # datasets that a device works on together


class FarDataWarning(UserWarning):
    """Data far from anything that was simulated: amortized draws extrapolate."""


class Familiar(NamedTuple):
    """Where simulations lie, and how far they lie from their own centre.

    Attributes
    ----------
    mean : array of shape (feature,)
    factor : array of shape (feature, feature)
        Features times it are white.
    distances : array of shape (simulation,)
        Of simulations that had no part in the two above, in ascending order.
    """

    mean: np.ndarray
    factor: np.ndarray
    distances: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Familiar":
        """Learn from features of simulations, of shape (simulation, feature)."""
        features = features[np.isfinite(features).all(axis=1)]
        half = len(features) // 2
        first, rest = features[:half], features[half:]
        mean, spread = first.mean(axis=0), first.std(axis=0)
        scale = np.where(spread > 1e-9, spread, 1.0)
        white = (first - mean) / scale
        # shrunk towards independence (Ledoit and Wolf 2004), so that few simulations will do
        from sklearn.covariance import ledoit_wolf

        covariance = ledoit_wolf(white, assume_centered=True)[0]
        values, vectors = np.linalg.eigh(covariance)
        factor = (vectors / np.sqrt(np.maximum(values, 1e-6))) / scale[:, None]
        found = cls(mean, factor, np.zeros(0))
        return found._replace(distances=np.sort(found.distance(rest)))

    def distance(self, features: np.ndarray) -> np.ndarray:
        """Mahalanobis distance over the root of the number of features; about 1 for simulations."""
        white = (features - self.mean) @ self.factor
        return np.sqrt(np.mean(white**2, axis=-1))

    def quantile(self, distance: np.ndarray) -> np.ndarray:
        """Fraction of simulations that lie nearer."""
        return np.searchsorted(self.distances, distance) / len(self.distances)

    def far(self, distance: np.ndarray) -> np.ndarray:
        """Whether something lies well beyond the farthest simulation."""
        return ~(distance <= _FAR * self.distances[-1])


def describe_inputs(amortizer: Amortizer, batch: Batch, *, extremes: bool = True) -> Array:
    """What a dataset's inputs are like, whatever the network makes of them: (dataset, feature).

    Of every standardised column the mean, sd, lowest and highest value, of pairs of columns the
    correlation, and all values of fixed size. Without `extremes` no lowest and highest values,
    which are further out the more rows there are.
    """

    def one(data: dict[str, Array], mask: Mask | None) -> Array:
        rows, fixed, counts = amortizer.standardised(data, mask)
        if rows is None:
            return fixed
        keep = jnp.ones(rows.shape[0], bool) if counts is None else counts
        n = jnp.maximum(jnp.sum(keep), 1)
        weights = keep[:, None] / n
        mean = jnp.sum(weights * rows, axis=0)
        centred = (rows - mean) * keep[:, None]
        sd = jnp.sqrt(jnp.sum(weights * centred**2, axis=0) + 1e-12)
        low = jnp.min(jnp.where(keep[:, None], rows, jnp.inf), axis=0)
        high = jnp.max(jnp.where(keep[:, None], rows, -jnp.inf), axis=0)
        some = (centred / sd)[:, :_MOST_PAIRS]
        correlation = (some.T @ some / n)[jnp.triu_indices(some.shape[1], 1)]
        ends = [low, high] if extremes else []
        return jnp.concatenate([mean, jnp.log(sd + 1e-3), *ends, correlation, fixed])

    return over_datasets(one, batch)


_describe = jit(describe_inputs)


def input_features(amortizer: Amortizer, batch: Batch, *, extremes: bool = True) -> np.ndarray:
    """What the inputs of any number of datasets are like: see :func:`describe_inputs`."""
    found = over_chunks(
        lambda part: _describe(amortizer, part, extremes=extremes),
        batch,
        np.arange(len(jax.tree.leaves(batch.values)[0])),
        size=devices.together(_ITEMS),
    )
    return found.astype(float)


def familiar_inputs(
    amortizer: Amortizer, data: dict[str, np.ndarray], mask: Mask | None
) -> Familiar:
    """Learn what simulated inputs are like."""
    return Familiar.of(input_features(amortizer, Batch(dict(data), mask)))  # type: ignore[arg-type]
