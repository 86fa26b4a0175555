"""The stages of refinement with levels, as compiled functions over a chunk of datasets."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_datasets
from pmcl.data.task import Batch
from pmcl.levels.integrals import Marginal
from pmcl.levels.one_dataset import sums
from pmcl.levels.structure import KEY
from pmcl.networks import Amortizer, defence
from pmcl.networks.amortizer import Context
from pmcl.networks.defence import wider
from pmcl.refinement.population import population_round
from pmcl.refinement.stages import Keys
from pmcl.runtime.jitting import jit
from pmcl.search.newton import Mode
from pmcl.search.scales import Dense
from pmcl.search.student import Student, mixture_draws, mixture_log_q

BLOCK = 64  # draws of one dataset that are made together
_DEGREES = 4  # of t distributions, at least: tails wider than most posteriors'
LOOKED_AT = 3  # groups whose k-hat is told


class Mixture(NamedTuple):
    """Proposals for global parameters: t distributions and their shares."""

    parts: Student
    share: Array


class GroupDraws(NamedTuple):
    """Draws of all parameters.

    Attributes
    ----------
    z : Array of shape (item, BLOCK, dim)
    log_q : Array of shape (item, BLOCK)
        Of the global parameters.
    log_p : Array of shape (item, BLOCK)
        log p(g, x_0) and the logarithms of unbiased estimates of the groups' integrals.
    apart : Array of bool of shape (item, BLOCK)
        Where groups that count as exact are not normal after all.
    """

    z: Array
    log_q: Array
    log_p: Array
    apart: Array


def mixture_at(modes: Mode, number: np.ndarray) -> Mixture:
    """Place a t distribution at each mode, and wider ones at the first.

    `modes` and `number` are those of `several`. All arrays have a leading dataset.
    """
    lower = np.asarray(modes.scale.lower)  # type: ignore[attr-defined]
    most = lower.shape[1]
    again = np.maximum(np.arange(most) - number[:, None] + 1, 0)  # 0: a mode of its own
    evidence = np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=-1) + modes.log_p
    evidence = evidence - evidence[:, :1] - np.where(again, np.log(5.0), 0.0)
    share = np.exp(np.where(np.isfinite(evidence), evidence, -20.0))
    lower = lower * wider(lower.shape[-1]) ** again[..., None, None]
    degrees = max(_DEGREES, lower.shape[-1])
    scale: Any = Dense(lower, np.linalg.inv(lower))  # type: ignore[arg-type]
    parts = Student(modes.z, scale, degrees)
    return Mixture(parts, share / share.sum(axis=1, keepdims=True))  # type: ignore[arg-type]


@jit
def fitted(
    marginal: Marginal, batch: Batch, mixture: Mixture, keys: Keys, draws: int
) -> tuple[Mixture, Array]:
    """Fit mixtures to their own weighted draws; their log weights have shape (dataset, draw)."""

    def one(
        data: dict[str, Any], mask: Mask | None, mixture: Mixture, key: Array
    ) -> tuple[Mixture, Array]:
        new, log_weight = population_round(
            lambda g: jnp.add(*marginal.parts(g, data, mask)),
            mixture.parts,
            mixture.share,
            key,
            draws=draws,
        )
        return Mixture(*new), log_weight

    return over_datasets(one, batch, mixture, keys.each())


@jit
def drawn(
    marginal: Marginal, batch: Batch, mixture: Mixture, keys: Keys, turn: Array, points: int
) -> GroupDraws:
    """Draw global parameters from mixtures, and each group's given them.

    Global parameters follow from `keys`, the groups' from these and from `turn`, of shape (item,).
    """

    def one(
        data: dict[str, Any], mask: Mask | None, mixture: Mixture, key: Array, turn: Array
    ) -> GroupDraws:
        g = mixture_draws(mixture.parts, mixture.share, key, BLOCK)
        z, *told = marginal.draw(g, jax.random.fold_in(key, turn), data, mask, points)
        return GroupDraws(z, mixture_log_q(mixture.parts, mixture.share, g), *told)

    return over_datasets(one, batch, mixture, keys.each(), turn)


@jit
def drawn_by_network(
    amortizer: Amortizer,
    marginal: Marginal,
    batch: Batch,
    context: Context,
    keys: Keys,
    turn: Array,
    points: int,
) -> GroupDraws:
    """Draw global parameters from a network, and each group's given them; as :func:`drawn`.

    A tenth of the draws are those of wide t distributions (:mod:`pmcl.networks.defence`).
    """

    def one(
        data: dict[str, Any], mask: Mask | None, context: Context, key: Array, turn: Array
    ) -> GroupDraws:
        g, log_q = defence.draw(amortizer, key, BLOCK, context)
        z, *told = marginal.draw(g, jax.random.fold_in(key, turn), data, mask, points)
        return GroupDraws(z, log_q, *told)

    return over_datasets(one, batch, context, keys.each(), turn)


@jit
def by_network(amortizer: Amortizer, z: Array, batch: Batch, context: Context) -> Array:
    """Log density of what :func:`drawn_by_network` draws from, at z of shape (item, draw, dim)."""

    def one(data: dict[str, Any], mask: Mask | None, z: Array, context: Context) -> Array:
        return defence.log_prob(amortizer, z, context)

    return over_datasets(one, batch, z, context)


@jit
def group_weights(
    marginal: Marginal, batch: Batch, z: Array, keys: Keys, points: int
) -> tuple[Array, Array]:
    """Log weights of the proposals of the groups that vary most, at draws z (item, draw, dim).

    Returns
    -------
    which : Array of int of shape (item, LOOKED_AT)
        These groups, the worst first; the first again where there are fewer.
    log_weight : Array of shape (item, LOOKED_AT, draw * point)
    """

    def one(data: dict[str, Any], mask: Mask | None, z: Array, key: Array) -> tuple[Array, Array]:
        log_w = marginal.weights(z, key, data, mask, points)
        log_w = log_w.reshape(-1, log_w.shape[-1]).T
        real = data[KEY].split.real.any(axis=0)
        spread = jnp.where(real, jnp.var(jnp.exp(log_w), axis=1), -1.0)
        number = min(LOOKED_AT, log_w.shape[0])
        which = jnp.argsort(-spread)[:number]
        which = jnp.where(real[which], which, which[0])
        return which, log_w[which]

    return over_datasets(one, batch, z, keys.each())


@jit
def densities(density: Density, z: Array, batch: Batch) -> tuple[Array, Array]:
    """Log prior and log likelihood of z of shape (item, draw, dim), without padded groups."""

    def one(data: dict[str, Any], mask: Mask | None, z: Array) -> tuple[Array, Array]:
        return jax.vmap(lambda u: sums(density, data, mask, data[KEY].split, u))(z)

    return over_datasets(one, batch, z)


@jit
def integrated(marginal: Marginal, g: Array, batch: Batch) -> tuple[Array, Array]:
    """log p(g, x_0), and the logarithm of all groups' integrals, at g (item, draw, shared)."""
    return over_datasets(lambda data, mask, u: marginal.parts(u, data, mask), batch, g)


@jit
def apart(marginal: Marginal, z: Array, batch: Batch) -> Array:
    """Whether groups that count as exact are not normal at z of shape (item, draw, dim)."""
    return over_datasets(lambda data, mask, u: marginal.apart(u, data, mask), batch, z)
