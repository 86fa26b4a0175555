"""Where the search for the first approximation begins."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import MeanField
from pmcl.online.rows import AbstractRows, RowBatch
from pmcl.online.search.maximum import maximise
from pmcl.online.search.search import Search, Way


class AbstractStart(eqx.Module):
    """Where a search begins for entries of z that no batch has said anything of.

    In the first search of all those are all entries; in later ones the head of a new task, say.
    What is known of the others is where they begin (but for :meth:`again`), and what a batch says
    nothing of stays where it is.
    """

    @abstractmethod
    def __call__(self, prior: MeanField, key: Array) -> MeanField:
        """Return where such entries begin, by the prior alone."""

    @property
    def narrows(self) -> bool:
        """Whether :meth:`again` changes anything."""
        return False

    @property
    def scatters(self) -> bool:
        """Whether searches begin elsewhere with another key."""
        return True

    def again(self, known: MeanField, prior: MeanField) -> MeanField:
        """Return where entries begin of which something is known."""
        if not self.narrows:
            return known
        return known._replace(log_sd=jnp.minimum(known.log_sd, self.log_sd(prior)))

    def log_sd(self, prior: MeanField) -> Array:
        """How wide searches begin that are to begin narrow again."""
        return prior.log_sd

    def first(
        self,
        rows: AbstractRows,
        prior: MeanField,
        batch: RowBatch,
        search: Search,
        key: Array,
        advance: Callable[[int, str], None] = lambda n, note: None,
    ) -> MeanField:
        """Return where the first search begins; `advance` hears of the steps of its own."""
        return self(prior, key)

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

    def __check_init__(self) -> None:
        _check(self, "scale", self.scale > 0, "above 0")
        _check(self, "scatter", self.scatter >= 0, "of at least 0")

    def __call__(self, prior: MeanField, key: Array) -> MeanField:
        mean = scattered(prior, self.scatter, key) if self.scatter else prior.mean
        return MeanField(mean, prior.log_sd + np.log(self.scale))

    @property
    def scatters(self) -> bool:
        return self.scatter > 0


class ScatteredStart(AbstractStart):
    """At random, with the prior's variance shared by the means and the approximation.

    What a neural network needs: units that begin alike stay alike.

    Attributes
    ----------
    means : float
        beta, the part of the prior's variance that the means have.
    spread : float
        alpha, the standard deviation of the log standard deviations.
    narrow : bool
        Whether later searches begin as narrow as the first: what earlier batches left wide in a
        network is noise at first, in which little can be learned.

    References
    ----------
    Kurle et al. (2020), appendix I.
    """

    means: float = 0.999
    spread: float = 1e-3
    narrow: bool = False

    def __check_init__(self) -> None:
        _check(self, "means", 0 <= self.means < 1, "of at least 0 and below 1")
        _check(self, "spread", self.spread >= 0, "of at least 0")

    def __call__(self, prior: MeanField, key: Array) -> MeanField:
        mean, log_sd = jax.random.normal(key, (2, *prior.mean.shape), prior.mean.dtype)
        unit = jnp.exp(prior.log_sd)
        return MeanField(
            prior.mean + np.sqrt(self.means) * unit * mean,
            self.log_sd(prior) + self.spread * log_sd,
        )

    @property
    def narrows(self) -> bool:
        return self.narrow

    @property
    def scatters(self) -> bool:
        return self.means > 0

    def log_sd(self, prior: MeanField) -> Array:
        return prior.log_sd + np.log1p(-self.means) / 2 - self.spread**2


class MaximumLikelihoodStart(AbstractStart):
    """At the maximum of the first batch's likelihood, with a small variance.

    Later searches begin where this search for the maximum did, for what they find new.

    Attributes
    ----------
    variance : float
    scale : float
        Of the random weights that the maximum is searched from, in the prior's standard deviations.
    learning_rate : float
    narrow : bool
        Whether later searches begin with that variance, too, where what is known is wider: so a
        network forgets less (permuted images, ten tasks).

    References
    ----------
    Nguyen et al. (2018), appendix A.
    """

    variance: float = 1e-6
    scale: float = 0.1
    learning_rate: float = 1e-3
    narrow: bool = False

    def __check_init__(self) -> None:
        for name in ("variance", "learning_rate"):
            _check(self, name, getattr(self, name) > 0, "above 0")
        _check(self, "scale", self.scale >= 0, "of at least 0")

    def __call__(self, prior: MeanField, key: Array) -> MeanField:
        mean = scattered(prior, self.scale, key)
        return MeanField(mean, self.log_sd(prior))

    def log_sd(self, prior: MeanField) -> Array:
        return jnp.full_like(prior.mean, np.log(self.variance) / 2)

    @property
    def narrows(self) -> bool:
        return self.narrow

    @property
    def scatters(self) -> bool:
        return self.scale > 0

    def first(
        self,
        rows: AbstractRows,
        prior: MeanField,
        batch: RowBatch,
        search: Search,
        key: Array,
        advance: Callable[[int, str], None] = lambda n, note: None,
    ) -> MeanField:
        scatter_key, key = jax.random.split(key)
        begun = self(prior, scatter_key)
        search = eqx.tree_at(lambda s: s.learning_rate, search, self.learning_rate)
        found = maximise(rows, begun.mean, None, batch, Way(search, True, advance), key)
        return begun._replace(mean=found.mean)

    def length(self, n: int, search: Search) -> int:
        """Those of the search for the maximum."""
        return search.length(n, first=True)


def _check(start: AbstractStart, name: str, valid: bool, wanted: str) -> None:
    value = getattr(start, name)
    if not (valid and np.isfinite(value)):
        raise ValueError(
            f"{type(start).__name__}: expected {name}, a number {wanted}, got {value!r}."
        )


def scattered(prior: MeanField, scale: float, key: Array) -> Array:
    """Draw around a prior's mean, by a part of its standard deviation."""
    noise = jax.random.normal(key, prior.mean.shape, prior.mean.dtype)
    return prior.mean + scale * jnp.exp(prior.log_sd) * noise
