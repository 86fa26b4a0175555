"""The stages of refinement with levels, as compiled functions over a chunk of datasets."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Mask
from pmcl.data.batching import over_datasets
from pmcl.data.task import Batch
from pmcl.levels.integrals import Marginal
from pmcl.levels.structure import Anchor
from pmcl.refinement.population import mixture_draws, mixture_log_q, population_round
from pmcl.refinement.proposals import Student
from pmcl.refinement.stages import Keys, Modes, ModeSearch
from pmcl.runtime.jitting import jit
from pmcl.search.newton import lbfgs, newton
from pmcl.search.scales import Dense
from pmcl.search.starts import starts

BLOCK = 64  # draws of one dataset that are made together
_DEGREES = 4  # of t distributions, at least: tails wider than most posteriors'


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
    """

    z: Array
    log_q: Array
    log_p: Array


def mixture_at(found: Modes, order: np.ndarray, number: np.ndarray) -> Mixture:
    """Place a t distribution at each mode, and wider ones at the first.

    `order` and `number` are those of `distinct`. All arrays have a leading dataset.
    """
    n, most = order.shape
    rows = np.arange(n)[:, None]
    again = np.maximum(np.arange(most) - number[:, None] + 1, 0)  # 0: a mode of its own
    lower = np.asarray(found.mode.scale.lower)[rows, order]  # type: ignore[attr-defined]
    wider = 1.5 ** min(1.0, 3.0 / lower.shape[-1])  # less where there are many parameters
    lower = lower * wider ** again[..., None, None]
    shift = np.asarray(found.mode.z)[rows, order]
    evidence = np.asarray(found.evidence)[rows, order]
    evidence = evidence - evidence[:, :1] - np.where(again, np.log(5.0), 0.0)
    share = np.exp(np.where(np.isfinite(evidence), evidence, -20.0))
    degrees = max(_DEGREES, shift.shape[-1])
    scale: Any = Dense(lower, np.linalg.inv(lower))  # type: ignore[arg-type]
    parts = Student(shift, scale, degrees)  # type: ignore[arg-type]
    return Mixture(parts, share / share.sum(axis=1, keepdims=True))  # type: ignore[arg-type]


@jit
def search_globals(
    marginal: Marginal, batch: Batch, z: Array, centre: Array, spread: Array, search: ModeSearch
) -> Modes:
    """Search for modes of the global parameters, from draws z of shape (dataset, draw, shared)."""

    def one(data: dict[str, Any], mask: Mask | None, z: Array) -> Modes:
        def log_density(g: Array) -> Array:
            return marginal(g, data, mask)

        z = jnp.concatenate([z, centre[None]])
        log_p = jnp.add(*marginal.parts(z, data, mask))
        begin = starts(z, log_p, search.starts, z.shape[0] - 1)
        method = newton if search.exact else lbfgs
        found = jax.lax.map(
            lambda g: method(log_density, g, spread, steps=search.steps, tol=search.tol),
            begin,
            batch_size=marginal.together(data, marginal.dim),
        )
        evidence = found.log_p + jax.vmap(lambda s: s.log_det())(found.scale)
        apart = jax.vmap(
            lambda s, u: jax.vmap(lambda other: jnp.sum(s.solve(u - other) ** 2))(found.z)
        )(found.scale, found.z)
        return Modes(found, jnp.where(jnp.isnan(evidence), -jnp.inf, evidence), apart)

    return over_datasets(one, batch, z)


@jit
def anchored(marginal: Marginal, batch: Batch, g: Array) -> Anchor:
    """Where each dataset's groups have their modes about g of shape (dataset, shared)."""
    return over_datasets(lambda data, mask, g: marginal.anchor(g, data, mask), batch, g)


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
        z, log_p = marginal.draw(g, jax.random.fold_in(key, turn), data, mask, points)
        return GroupDraws(z, mixture_log_q(mixture.parts, mixture.share, g), log_p)

    return over_datasets(one, batch, mixture, keys.each(), turn)
