"""A network that is a line, whose every answer is known: q(z | x) = N(a + b mean(y), exp(c))."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.networks import Amortizer, Network, Scaling, Structure
from pmcl.networks.amortizer import Context
from pmcl.runtime import precision
from pmcl.training import PretrainingSettings

ROWS = 10
PRECISION = 1 / 2**2 + ROWS  # of the posterior of the fixture `normal_mean`, whatever the data


class Line(eqx.Module):
    """It holds the exact posterior of `normal_mean`."""

    a: jax.Array
    b: jax.Array
    c: jax.Array
    dim: int = eqx.field(static=True, default=1)
    noise: int = eqx.field(static=True, default=1)
    search: None = None

    def context(self, data, mask=None, place=None):
        keep = jnp.ones(data["y"].shape, bool) if mask is None else mask.rows
        mean = jnp.sum(jnp.where(keep, data["y"], 0.0), keepdims=True) / jnp.sum(keep)
        return Context(mean, None)

    draw = Amortizer.draw

    def transform(self, eps, context):
        z = self.a + self.b * context.vector + jnp.exp(self.c) * eps
        return z, self.log_prob(z, context)

    def log_prob(self, z, context):
        u = (z - self.a - self.b * context.vector) / jnp.exp(self.c)
        return jnp.sum(-0.5 * u**2 - self.c - 0.5 * np.log(2 * np.pi))

    @property
    def z_scaling(self) -> Scaling:
        return Scaling(jnp.zeros(1), jnp.ones(1))

    def whitened_slope(self, slope, context):
        return slope

    def trainable(self) -> "Line":
        return jax.tree.map(lambda _: True, self)

    @property
    def numbers(self) -> np.ndarray:
        return np.array([float(self.a), float(self.b), float(self.c)])

    def divergence(self, y: np.ndarray) -> np.ndarray:
        """KL(q || exact posterior) of each dataset of ``y`` (dataset, row), in nats."""
        a, b, c = self.numbers
        off = a + b * y.mean(axis=1) - (1 / 4 + y.sum(axis=1)) / PRECISION
        return 0.5 * (PRECISION * (off**2 + np.exp(2 * c)) - 1 - np.log(PRECISION)) - c


def line(a: float, b: float, c: float) -> Line:
    with precision.scope():
        return Line(*(jnp.asarray(v, jnp.float64) for v in (a, b, c)))


EXACT = line(1 / 4 / PRECISION, ROWS / PRECISION, -0.5 * np.log(PRECISION))
OFF = line(0.4, 0.7, -0.8)


def y_of(mu, seed: int = 0) -> np.ndarray:
    """Datasets of `normal_mean` at given values of mu: shape (dataset, row)."""
    mu = np.atleast_1d(mu)
    return mu[:, None] + np.random.default_rng(seed).normal(size=(len(mu), ROWS))


def posterior_of(compiled, simulator, q: Line = OFF) -> AmortizedPosterior:
    """Give a posterior whose network is a line: what is left is adaptation itself."""
    return AmortizedPosterior(
        compiled,
        simulator,
        Structure("exchangeable", "obs", "it is"),
        Network(),
        q,  # type: ignore[arg-type]
        PretrainingSettings(1, 1, 1e-3, 0, 1.0, 1, None, 1),
        seed=0,
    )
