"""What happens to an approximation between two batches, where the world does not stand still."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import MeanField


class AbstractDrift(eqx.Module):
    """How the Gaussian part of an approximation, and the weights of a memory, change with time."""

    @abstractmethod
    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        """Return the distribution of the parameters when `elapsed` units of time have gone by."""

    def weight(self, age: Array) -> Array:
        """Weight of the likelihood of a stored datum of an age."""
        return jnp.ones_like(age)

    def ways(self, elapsed: float) -> tuple["Possible", ...]:
        """What may have happened in some time; the batch that comes then tells which it was."""
        return (Possible(self, 0.0),)

    def settled(self, scores: tuple[float, ...]) -> "AbstractDrift":
        """What the batches so far say that happens."""
        return self


class Possible(NamedTuple):
    """One of the things that may have happened between two batches.

    Attributes
    ----------
    drift : AbstractDrift
    log_prior : float
        Before the batch is seen (nats).
    """

    drift: AbstractDrift
    log_prior: float


class Static(AbstractDrift):
    """Nothing changes: every datum counts for ever."""

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        return q


class BayesianForgetting(AbstractDrift):
    """Likelihoods lose weight with their age, and so the approximation returns to the prior.

    Attributes
    ----------
    rate : float
        Epsilon, the part of the information that is forgotten in `scale` units of time.
    scale : float
        Tau, the usual time between two batches.

    References
    ----------
    Kurle et al. (2020), eqs. 10 to 12.
    """

    rate: float
    scale: float = 1.0

    def __check_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(
                f"BayesianForgetting: expected a rate from 0 to 1, 1 itself left out, got "
                f"{self.rate}. To forget all, begin a new stream."
            )
        _check_positive(self, "scale")

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        kept = self.weight(elapsed)
        return q.forgotten(prior, kept)

    def weight(self, age: Array) -> Array:
        return jnp.exp(jnp.log1p(-self.rate) * age / self.scale)


class AbstractDiffusion(AbstractDrift):
    """Parameters wander by a process of time; the memory cannot, so its weights stay.

    Attributes
    ----------
    rate : float
        How much of it happens in `scale` units of time.
    scale : float
        Tau, the usual time between two batches.
    """

    rate: float
    scale: float = 1.0

    def __check_init__(self) -> None:
        _check_positive(self, "rate")
        _check_positive(self, "scale")


class OrnsteinUhlenbeck(AbstractDiffusion):
    """Parameters wander, and are pulled to the prior.

    A memory cannot wander with them: `weight` leaves stored data as they are, and the paper uses
    this drift without one.

    Attributes
    ----------
    rate : float
        a, how much they are pulled in `scale` units of time.
    scale : float
        Tau, the usual time between two batches.

    References
    ----------
    Kurle et al. (2020), section 4.2.
    """

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        kept = jnp.exp(-self.rate * elapsed / self.scale)
        return q.diffused(prior, kept, 1 - kept**2)


class Wiener(AbstractDiffusion):
    """Parameters wander, and nothing pulls them back.

    Attributes
    ----------
    rate : float
        Part of the prior's variance that is added in `scale` units of time.
    scale : float
        Tau, the usual time between two batches.
    """

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        return q.diffused(prior, jnp.ones(()), self.rate * elapsed / self.scale)


class LearnedDrift(AbstractDrift):
    """The one of several drifts that has foretold best.

    The stream is followed under every one, and the density of each batch given the earlier ones is
    added to that drift's score; what is known under the best one is what is shown. It costs as many
    updates as there are drifts. No memory goes with it: each would need one of its own.

    Attributes
    ----------
    drifts : tuple of AbstractDrift
        Such as one kind with several rates.
    kept : float
        Of the scores from one batch to the next: below 1 the rate itself may change.

    References
    ----------
    Dawid (1984), Present position and potential developments: the prequential approach.
    """

    drifts: tuple[AbstractDrift, ...]
    kept: float = 1.0

    def __check_init__(self) -> None:
        if len(self.drifts) < 2 or any(
            isinstance(d, LearnedDrift | ChangePoint) or not isinstance(d, AbstractDrift)
            for d in self.drifts
        ):
            raise ValueError(
                "LearnedDrift: expected at least two of Static, BayesianForgetting, "
                f"OrnsteinUhlenbeck and Wiener, got {self.drifts!r}."
            )
        if not 0 < self.kept <= 1:
            raise ValueError(f"LearnedDrift: expected kept above 0 and at most 1, got {self.kept}.")

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        raise TypeError("LearnedDrift moves nothing: `settled` says which of its drifts does.")

    def ways(self, elapsed: float) -> tuple[Possible, ...]:
        return tuple(Possible(drift, 0.0) for drift in self.drifts)

    def settled(self, scores: tuple[float, ...]) -> AbstractDrift:
        return self.drifts[int(np.argmax(scores)) if scores else 0]


class ChangePoint(AbstractDrift):
    """Either nothing happens between two batches, or all starts again at the prior.

    The batch tells: it is followed from what was known and from the prior, and the likelier one is
    kept, by its density times the probability of what happened. Where all starts again stored rows
    are forgotten with the rest.

    Attributes
    ----------
    probability : float
        Of a change in `scale` units of time.
    scale : float
        Tau, the usual time between two batches.

    References
    ----------
    Adams & MacKay (2007), Bayesian online changepoint detection, of whose run lengths the likeliest
    is kept here.
    """

    probability: float = 0.01
    scale: float = 1.0

    def __check_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ValueError(
                f"ChangePoint: expected a probability between 0 and 1, got {self.probability}."
            )
        _check_positive(self, "scale")

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        return q

    def ways(self, elapsed: float) -> tuple[Possible, ...]:
        none = np.log1p(-self.probability) * elapsed / self.scale
        return (Possible(Static(), none), Possible(Restart(), float(np.log(-np.expm1(none)))))


class Restart(AbstractDrift):
    """All that was known is forgotten."""

    def move(self, q: Any, prior: MeanField, elapsed: Array) -> Any:
        return q.forgotten(prior, jnp.zeros(()))

    def weight(self, age: Array) -> Array:
        return jnp.where(age > 0, 0.0, 1.0)


def _check_positive(drift: AbstractDrift, name: str) -> None:
    value = getattr(drift, name)
    if not value > 0:
        raise ValueError(f"{type(drift).__name__}: expected {name} above 0, got {value}.")
