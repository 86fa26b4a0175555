"""Self-consistency objectives: unlabeled data and the compiled density instead of labels.

r(z; x) = log p(z) + log p(x | z) - log q(z | h(x)) is constant in z under the exact posterior.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.task import Batch, Task
from pmcl.draws.drawn import judge
from pmcl.draws.network import look
from pmcl.draws.path import efficiency, path_derivative
from pmcl.networks import Amortizer
from pmcl.networks.amortizer import Context
from pmcl.search.search import Place


class Teaching(NamedTuple):
    """What a teacher may use: the network at the beginning of a task, and the density."""

    amortizer: Amortizer
    density: Density
    seed: int
    progressbar: bool


class Labels(NamedTuple):
    """Posterior draws of datasets, by a teacher.

    Attributes
    ----------
    z : array of shape (dataset, draw, dim)
        Draws that count alike.
    trusted : array of bool of shape (dataset,)
        Whether they can be taken for draws of the posterior.
    """

    z: np.ndarray
    trusted: np.ndarray


class ObjectiveValue(NamedTuple):
    """What an objective says of one dataset.

    Attributes
    ----------
    loss : Array of shape ()
    finite : Array of shape ()
        Fraction of the draws at which the log density was finite.
    scale : Array of shape (), optional
        Typical size of the loss's gradient at a draw, in units of the standardised parameters. A
        dataset whose scale is beyond all measure has its gradient shrunk, not its optimum moved.
    efficiency : Array of shape (), optional
        Effective sample size of the draws over their number, where they are the network's.
    """

    loss: Array
    finite: Array
    scale: Array | float = 0.0
    efficiency: Array | float = jnp.nan


class Example(NamedTuple):
    """One dataset that is trained on.

    Attributes
    ----------
    data : dict of arrays
    mask : array of bool of shape (row,), optional
        False for padding.
    labels : array of shape (draw, dim), optional
        Posterior draws by a teacher, for objectives that learn from them.
    place : Place, optional
        Where the posterior is, once that was searched for.
    """

    data: dict[str, Array]
    mask: Mask | None = None
    labels: Array | None = None
    place: Place | None = None

    def context(self, amortizer: Amortizer) -> Context:
        """What a network makes of the dataset."""
        return amortizer.context(self.data, self.mask, self.place)


class AbstractObjective(eqx.Module):
    """An objective of adaptation: one dataset in, one loss out.

    Attributes
    ----------
    draws : int
        Draws of z per dataset and step.
    """

    draws: eqx.AbstractVar[int]

    @abstractmethod
    def __call__(
        self, amortizer: Amortizer, density: Density, example: Example, key: Array
    ) -> ObjectiveValue:
        """Loss of one dataset at the amortizer's present weights."""

    def label(self, datasets: Task, now: Teaching) -> Labels | None:
        """Make posterior draws for datasets before training; None: none are needed."""
        return None

    def held_back(
        self,
        amortizer: Amortizer,
        density: Density,
        batch: Batch,
        labels: np.ndarray | None,
        *,
        seed: int,
    ) -> "HeldBack | None":
        """Judge datasets by draws that are never trained on, or by a teacher's held-back ones.

        None, the default: the objective itself is evaluated, which is compiled for it.
        """
        return None


class HeldBack(NamedTuple):
    """What draws that were never trained on say of each dataset: arrays of shape (dataset,).

    Attributes
    ----------
    loss, finite, efficiency
        As in `ObjectiveValue`.
    """

    loss: np.ndarray
    finite: np.ndarray
    efficiency: np.ndarray

    @classmethod
    def of_draws(
        cls,
        loss: Callable[[np.ndarray], np.ndarray],
        amortizer: Amortizer,
        density: Density,
        batch: Batch,
        seed: int,
    ) -> "HeldBack":
        """Take a loss of the log ratios r (NaN where one is not finite) at fresh draws of q."""
        drawn = look(amortizer, density, batch, seed=seed)
        ratio = drawn.log_prior + drawn.log_likelihood - drawn.log_q
        finite = np.isfinite(ratio)
        some = finite.sum(axis=1) > 1
        value = np.full(len(ratio), np.nan)
        value[some] = loss(np.where(finite, ratio, np.nan)[some])
        return cls(value, finite.mean(axis=1), judge(drawn).efficiency)


class PathGradient(AbstractObjective):
    """Reverse Kullback-Leibler divergence by the path derivative; the default.

    L(x) = -mean_s [log p(z_s) + log p(x | z_s) - log q_detached(z_s | h(x))] at the reparametrised
    draws z_s = T(eps_s; h(x)), with q's own parameters detached inside log q. Its gradient has no
    variance at the solution. Needs d log p(x | z) / dz, which the compiled model has.

    Attributes
    ----------
    draws : int
        Draws S per dataset and step.

    References
    ----------
    Roeder, Wu & Duvenaud (2017), Sticking the Landing, eq. 8.
    """

    draws: int = eqx.field(static=True, default=16)

    def __call__(
        self, amortizer: Amortizer, density: Density, example: Example, key: Array
    ) -> ObjectiveValue:
        data, mask, *_ = example
        context = example.context(amortizer)
        z, _ = amortizer.draw(key, self.draws, context)
        detached, still = jax.lax.stop_gradient((eqx.filter(amortizer, eqx.is_array), context))
        detached = eqx.combine(detached, amortizer)
        log_q = jax.vmap(detached.log_prob, in_axes=(0, None))(z, still)
        path = path_derivative(lambda u: density(u, data, mask), z, log_q)
        n = jnp.maximum(jnp.sum(path.finite), 1)
        slope = jax.vmap(lambda s: amortizer.whitened_slope(s, still))(path.score)
        steepness = jnp.sqrt(jnp.sum(slope**2) / n)
        used = efficiency(path.ratio, path.finite)
        return ObjectiveValue(path.loss, jnp.mean(path.finite), steepness, used)

    def held_back(
        self, amortizer: Amortizer, density: Density, batch: Batch, labels: Any, *, seed: int
    ) -> HeldBack:
        return HeldBack.of_draws(lambda r: -np.nanmean(r, axis=1), amortizer, density, batch, seed)


class LogRatioVariance(AbstractObjective):
    """The paper's self-consistency loss: L(x) = Var_s[r(z_s; x)] over detached draws z_s ~ q.

    No gradient goes through the draws. Its expected gradient is twice that of the reverse
    Kullback-Leibler divergence; there to reproduce the paper.

    Attributes
    ----------
    draws : int
        Draws S per dataset and step.

    References
    ----------
    Continual amortized Bayesian inference, the self-consistency loss (``ddof = 1``); Schmitt et
    al. (2024), Leveraging Self-Consistency for Data-Efficient Amortized Bayesian Inference.
    """

    draws: int = eqx.field(static=True, default=16)

    def __call__(
        self, amortizer: Amortizer, density: Density, example: Example, key: Array
    ) -> ObjectiveValue:
        data, mask, *_ = example
        context = example.context(amortizer)
        z = jax.lax.stop_gradient(amortizer.draw(key, self.draws, context)[0])
        log_p = jax.vmap(lambda u: density(u, data, mask))(z.astype(jnp.float64))
        log_q = jax.vmap(amortizer.log_prob, in_axes=(0, None))(z, context)
        finite = jnp.isfinite(log_p) & jnp.isfinite(log_q)
        ratio = jnp.where(finite, log_p - log_q, 0.0)
        n = jnp.sum(finite)
        mean = jnp.sum(ratio) / jnp.maximum(n, 1)
        deviation = jnp.where(finite, ratio - mean, 0.0)
        variance = jnp.sum(deviation**2) / jnp.maximum(n - 1, 1)
        return ObjectiveValue(
            variance, jnp.mean(finite), 2 * jnp.sqrt(variance), efficiency(ratio, finite)
        )

    def held_back(
        self, amortizer: Amortizer, density: Density, batch: Batch, labels: Any, *, seed: int
    ) -> HeldBack:
        return HeldBack.of_draws(
            lambda r: np.nanvar(r, axis=1, ddof=1), amortizer, density, batch, seed
        )


def check_objective(objective: AbstractObjective | None) -> None:
    if objective is not None and not isinstance(objective, AbstractObjective):
        raise TypeError(
            f"objective: expected a pmcl objective such as pmcl.PathGradient(), got {objective!r}."
        )
