"""What a memory looks at, and how far a projection is from what it projects."""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from pmcl.metrics.importance import importance_diagnostics
from pmcl.online.families import AnyNormal, sites
from pmcl.online.families.anchor import Told
from pmcl.online.memory import Candidates, Stored
from pmcl.online.rows import RowBatch, Rows
from pmcl.online.search.bound import Target, log_factor
from pmcl.online.state import RowModel, Settings, State, drifted
from pmcl.runtime.jitting import jit

_DRAWS = 500
_ALIKE = 0.99  # efficiency, above which weights have no tail that could mean something
DEAR = 10**9  # of `cost`: k-hat is not looked at beyond


def cost(q: AnyNormal, batch: RowBatch, draws: int) -> int:
    """What it takes to weigh draws of a projection: products of rows, draws and entries of z."""
    return batch.weights.size * q.mean.size * draws


def candidates(
    rows: Rows, everything: Stored, state: State, score: np.ndarray | None = None
) -> Candidates:
    """Describe the stored rows and the new ones."""
    c = rows.compiled
    named = [i.name for i in c.covariates if rows.axis(i.name) is not None]
    n = len(everything)
    points = [
        np.moveaxis(np.asarray(everything.data[k], float), rows.axis(k) or 0, 0).reshape(n, -1)
        for k in named or [i.name for i in c.observed]
    ]
    return Candidates(np.concatenate(points, axis=1), len(state.memory), state.seen, score)


@jit
def _log_ratios(
    rows: Rows, q: AnyNormal, target: Target, key: Array, told: Told | None = None
) -> Array:
    keys = jax.random.split(key, _DRAWS)
    noise = jax.vmap(lambda k: jax.random.normal(k, q.mean.shape, q.mean.dtype))(keys)
    z = q.at(noise)

    def one(z: Array) -> Array:
        if told is None:
            return log_factor(rows, z, target)
        found = sites.log_likelihood(told, rows, z, target.batch)
        return found if target.remainder is None else found + target.remainder(rows, z)

    return jax.lax.map(one, z) + target.prior.log_density(z) - q.log_density(z)


class Weighed(NamedTuple):
    """What draws of a projection say of it.

    Attributes
    ----------
    khat : float
        Of draws of z, in the model as it is.
    log_evidence : float
        Of the target's rows given what was known (nats).
    divergence : float
        Kullback-Leibler divergence of the target from the projection (nats).
    """

    khat: float = np.nan
    log_evidence: float = np.nan
    divergence: float = np.nan


def weigh(
    problem: RowModel, q: AnyNormal, target: Target, key: Array, told: Told | None = None,
    log_ratios: Array | None = None,
) -> Weighed:  # fmt: skip
    """Weigh draws of a projection against its target; NaN where that is dear.

    Parameters
    ----------
    problem : RowModel
    q : MeanField, Full or LowRank
    target : Target
    key : Array
    told : Anchored, optional
        Predictors of a linearised network, of which the evidence is then.
    log_ratios : Array of shape (draw,), optional
        Those of draws of the projection, where they are at hand.
    """
    if log_ratios is None:
        if cost(q, target.batch, _DRAWS) > DEAR:
            return Weighed()
        log_ratios = _log_ratios(problem.rows, q, target, key)
    found = importance_diagnostics(np.asarray(log_ratios))
    few = found
    if len(log_ratios) > _DRAWS:  # more would find a tail where a few say that there is none
        few = importance_diagnostics(np.asarray(log_ratios[:_DRAWS]))
    khat = -np.inf if found.efficiency > _ALIKE else float(few.khat)
    log = found.log_weights[np.isfinite(found.log_weights)]
    divergence = np.exp(log) @ (log + np.log(len(found.log_weights)))
    if not found.efficiency > 0:
        divergence = np.inf
    evidence = found.log_evidence
    if told is not None:
        ratios = _log_ratios(problem.rows, q, target, key, told)
        evidence = importance_diagnostics(np.asarray(ratios)).log_evidence
    return Weighed(khat, float(evidence), float(divergence))


def highest(khat: list[float]) -> float:
    """The highest k-hat of those that were looked at; NaN where none was."""
    found = [k for k in khat if not np.isnan(k)]
    return float(np.max(found)) if found else np.nan


def foretold(
    problem: RowModel, settings: Settings, before: State, after: AnyNormal, batch: RowBatch,
    elapsed: float, key: Array, told: Told | None = None,
) -> Weighed:  # fmt: skip
    """Weigh a batch by what was known of all before it, where a projection is of other rows."""
    known = before.predictive
    if before.seen:
        known = drifted(problem, settings.drift, known, elapsed)
    remainder = None if before.seen else problem.remainder
    return weigh(problem, after, Target(known, batch, remainder), key, told)
