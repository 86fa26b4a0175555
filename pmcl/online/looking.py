"""What a memory looks at, and how far a projection is from what it projects."""

import jax
import numpy as np
from jax import Array

from pmcl.metrics.importance import importance_diagnostics
from pmcl.online.families import AnyNormal
from pmcl.online.memory import Candidates, Stored
from pmcl.online.rows import Rows
from pmcl.online.search.bound import Target, log_likelihood
from pmcl.online.state import RowModel, State
from pmcl.runtime.jitting import jit

_DRAWS = 500
_DEAR = 10**9  # products of rows, draws and entries of z: k-hat is not looked at beyond


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
def _log_ratios(rows: Rows, q: AnyNormal, target: Target, key: Array) -> Array:
    def one(key: Array) -> Array:
        z = q.at(jax.random.normal(key, q.mean.shape, q.mean.dtype))
        before = target.prior.log_density(z)
        if target.remainder is not None:
            before = before + target.remainder(rows, z)
        return before + log_likelihood(rows, z, target.batch) - q.log_density(z)

    return jax.lax.map(one, jax.random.split(key, _DRAWS))


def khat_of(problem: RowModel, q: AnyNormal, target: Target, key: Array) -> float:
    """k-hat of draws of a projection, weighed against its target; NaN where that is dear."""
    if target.batch.weights.size * q.mean.size * _DRAWS > _DEAR:
        return np.nan
    ratio = _log_ratios(problem.rows, q, target, key)
    return float(importance_diagnostics(np.asarray(ratio)).khat)
