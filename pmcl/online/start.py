"""Where the search for the first approximation begins."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import MeanField
from pmcl.online.point import maximise
from pmcl.online.projection import Search
from pmcl.online.rows import Batch, Rows


class AbstractStart(eqx.Module):
    """Where the first search of all begins; later ones begin at what is known."""

    @abstractmethod
    def __call__(
        self,
        rows: Rows,
        prior: MeanField,
        batch: Batch,
        search: Search,
        key: Array,
        advance: Callable[[int, str], None] = lambda n, note: None,
    ) -> MeanField:
        """Return where a search begins; `advance` hears of the steps of its own."""

    def length(self, n: int, search: Search) -> int:
        """Number of steps of its own, for a first batch of n rows."""
        return 0


class Start(AbstractStart):
    """At the prior's mean, or near it, with a part of its standard deviation.

    Attributes
    ----------
    scale : float
        Of the prior's standard deviation.
    scatter : float
        How far from the prior's mean, at random, in the prior's standard deviations.
    """

    scale: float = 0.1
    scatter: float = 0.0

    def __call__(
        self,
        rows: Rows,
        prior: MeanField,
        batch: Batch,
        search: Search,
        key: Array,
        advance: Callable[[int, str], None] = lambda n, note: None,
    ) -> MeanField:
        mean = prior.mean
        if self.scatter:
            noise = jax.random.normal(key, mean.shape, mean.dtype)
            mean = mean + self.scatter * jnp.exp(prior.log_sd) * noise
        return MeanField(mean, prior.log_sd + np.log(self.scale))


class ScatteredStart(AbstractStart):
    """At random, with the prior's variance shared by the means and the approximation.

    What a neural network needs: units that begin alike stay alike.

    Attributes
    ----------
    means : float
        beta, the part of the prior's variance that the means have.
    spread : float
        alpha, the standard deviation of the log standard deviations.

    References
    ----------
    Kurle et al. (2020), appendix I.
    """

    means: float = 0.999
    spread: float = 1e-3

    def __call__(
        self,
        rows: Rows,
        prior: MeanField,
        batch: Batch,
        search: Search,
        key: Array,
        advance: Callable[[int, str], None] = lambda n, note: None,
    ) -> MeanField:
        mean, log_sd = jax.random.normal(key, (2, *prior.mean.shape), prior.mean.dtype)
        unit = jnp.exp(prior.log_sd)
        middle = prior.log_sd + np.log1p(-self.means) / 2 - self.spread**2
        return MeanField(
            prior.mean + np.sqrt(self.means) * unit * mean, middle + self.spread * log_sd
        )


class MaximumLikelihoodStart(AbstractStart):
    """At the maximum of the first batch's likelihood, with a small variance.

    Attributes
    ----------
    variance : float
    scale : float
        Of the random weights that the maximum is searched from, in the prior's standard deviations.
    learning_rate : float

    References
    ----------
    Nguyen et al. (2018), appendix A.
    """

    variance: float = 1e-6
    scale: float = 0.1
    learning_rate: float = 1e-3

    def __call__(
        self,
        rows: Rows,
        prior: MeanField,
        batch: Batch,
        search: Search,
        key: Array,
        advance: Callable[[int, str], None] = lambda n, note: None,
    ) -> MeanField:
        scatter, key = jax.random.split(key)
        unit = self.scale * jnp.exp(prior.log_sd)
        mean = prior.mean + unit * jax.random.normal(scatter, prior.mean.shape, prior.mean.dtype)
        search = eqx.tree_at(lambda s: s.learning_rate, search, self.learning_rate)
        found = maximise(rows, mean, None, batch, search, key, advance, first=True)
        return MeanField(found.mean, jnp.full_like(found.mean, np.log(self.variance) / 2))

    def length(self, n: int, search: Search) -> int:
        """Those of the search for the maximum."""
        return search.length(n, first=True)
