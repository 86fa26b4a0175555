"""What happens to an approximation between two batches, where the world does not stand still."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from pmcl.online.families import AnyNormal
from pmcl.online.gaussian import MeanField


class AbstractDrift(eqx.Module):
    """How the Gaussian part of an approximation, and the weights of a memory, change with time."""

    @abstractmethod
    def move[Q: AnyNormal](self, q: Q, prior: MeanField, elapsed: Array) -> Q:
        """Return the distribution of the parameters when `elapsed` units of time have gone by."""

    def weight(self, age: Array) -> Array:
        """Weight of the likelihood of a stored datum of an age."""
        return jnp.ones_like(age)


class Static(AbstractDrift):
    """Nothing changes: every datum counts for ever."""

    def move[Q: AnyNormal](self, q: Q, prior: MeanField, elapsed: Array) -> Q:
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
            raise ValueError(f"BayesianForgetting: expected a rate from 0 to 1, got {self.rate}.")
        _check_positive(self, "scale")

    def move[Q: AnyNormal](self, q: Q, prior: MeanField, elapsed: Array) -> Q:
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

    def move[Q: AnyNormal](self, q: Q, prior: MeanField, elapsed: Array) -> Q:
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

    def move[Q: AnyNormal](self, q: Q, prior: MeanField, elapsed: Array) -> Q:
        return q.diffused(prior, jnp.ones(()), self.rate * elapsed / self.scale)


def _check_positive(drift: AbstractDrift, name: str) -> None:
    value = getattr(drift, name)
    if not value > 0:
        raise ValueError(f"{type(drift).__name__}: expected {name} above 0, got {value}.")
