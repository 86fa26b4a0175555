"""Draws of wider proposals beside those that were made: do they move the posterior's moments?

Weights see only where there are draws, and k-hat is of the weights: tails that the proposal hardly
reaches are told by neither.
"""

from typing import Protocol

import jax
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from pmcl.data.batching import over_items
from pmcl.draws.drawn import Drawn, judge
from pmcl.metrics import FEWEST_DRAWS, ImportanceDiagnostics
from pmcl.refinement.choice import Verdict, mixture_log_q
from pmcl.refinement.groups import ProposalArrays
from pmcl.refinement.stages import BLOCK
from pmcl.refinement.treatment import Engine, at, replaced
from pmcl.runtime.jitting import jit
from pmcl.search.scales import Dense
from pmcl.search.student import Student

_TIMES = (2.0, 10.0)  # scales of one parameter by which they are wider; less where it has company
_DRAWS = BLOCK  # of wider proposals
_TOGETHER = 16  # datasets
_MOVED = 0.08  # sd by which draws of wider proposals may move moments: else it joins the others
_FAR = 0.3  # and what is said, where they do so to the end
_NOISE = 2.0  # by so much, over the root of their number, may few draws be moved by chance
_SHARES = (0.1, 0.05)  # of wider proposals that join
_STAGES = (10, 20, 30, 40)  # of random numbers; as often wider proposals judge


class _Run(Protocol):
    """What refines some datasets; see :mod:`pmcl.refinement.engine`."""

    @property
    def populates(self) -> bool: ...

    @property
    def further(self) -> int: ...

    def propose(
        self,
        proposals: ProposalArrays,
        rows: np.ndarray,
        used: np.ndarray,
        which: np.ndarray,
        stage: int,
    ) -> tuple[np.ndarray, ...]: ...

    def weak(self, judged: ImportanceDiagnostics) -> np.ndarray: ...

    def judge(self, proposals: ProposalArrays, rows: np.ndarray, *, stage: int) -> Verdict: ...

    def populate(self, proposals: ProposalArrays, rows: np.ndarray, *, stage: int) -> Verdict: ...

    def draw(
        self, proposals: ProposalArrays, choice: Verdict, rows: np.ndarray, *, stage: int
    ) -> Drawn: ...


def widened(
    run: _Run, proposals: ProposalArrays, choice: Verdict, drawn: Drawn, rows: np.ndarray
) -> tuple[Drawn, Verdict, np.ndarray, np.ndarray]:
    """Judge draws of the datasets `rows` by wider proposals, which join where they move moments.

    So they do where draws are poor; never with ``rounds=0``. What joined does not judge again.
    They join once, and more often where a mixture can be fitted to what they show.

    Returns
    -------
    drawn : Drawn
    choice : Verdict
    said : array of str, shape (dataset,)
        Where moments are moved still; else empty.
    left : array of bool, shape (dataset,)
        Where they are, or draws are poor, as far as wider proposals could mend.
    """
    left, said = np.zeros(len(drawn.z), bool), np.full(len(drawn.z), "", dtype=object)
    draws = drawn.z.shape[1]
    if draws < FEWEST_DRAWS or not len(rows):
        return drawn, choice, said, left
    noise = _NOISE / np.sqrt(draws)
    stages = _STAGES if run.further > 1 else _STAGES[:2]
    for stage in stages:
        judged = judge(at(drawn, rows))
        wide = around(drawn.z[rows], judged.log_weights)
        by = _moved_by(run, proposals, wide, at(choice, rows), at(drawn, rows), rows, stage)
        text = np.char.mod("wider proposals move a mean or a sd by %.2f sd", by)
        said[rows] = np.where(by > max(_FAR, noise), text, "")
        far = by > max(_MOVED, noise)
        again = far | run.weak(judged)
        left[rows] = again
        if stage == stages[-1] or not again.any() or not run.populates:
            break
        rows, far, judged = rows[again], far[again], at(judged, again)
        student = proposals.pool.student
        places, there = jax.tree.leaves(student), proposals.there[rows]
        before = [x[rows] for x in places]
        proposals.put("wide", rows, at(wide, again))
        proposals.there[rows, proposals.kinds.wide] = True
        # at first it is weighed with what there is; then a mixture is fitted to what it shows
        fit = run.judge if stage == _STAGES[0] else run.populate
        chosen = fit(proposals, rows, stage=stage + 1)
        chosen.engine[:] = Engine.MIXTURE
        chosen.weights[:] *= 1 - sum(_SHARES)
        chosen.weights[:, proposals.kinds.wide] += _SHARES
        new = run.draw(proposals, chosen, rows, stage=stage + 4)
        after = judge(new)
        better = far | (after.khat < judged.khat) | (after.efficiency > judged.efficiency)
        drawn = replaced(drawn, rows[better], at(new, better))
        choice = replaced(choice, rows[better], at(chosen, better))
        # where the choice stays, its weights are of the proposals that there were
        for place, old in zip(places, before, strict=True):
            place[rows[~better]] = old[~better]
        proposals.there[rows[~better]] = there[~better]
    return drawn, choice, said, left


def _moved_by(
    run: _Run,
    proposals: ProposalArrays,
    wide: Student,
    choice: Verdict,
    drawn: Drawn,
    rows: np.ndarray,
    stage: int,
) -> np.ndarray:
    """By how many sd draws of wider proposals move moments, of the datasets `rows`."""
    places = proposals.put("judge", rows, wide)
    used = choice.weights > 0
    used[:, places] = True
    turn = places.start + np.arange(_DRAWS) % len(_TIMES)
    which = np.broadcast_to(turn, (len(rows), _DRAWS))
    z, log_q, log_prior, log_likelihood = run.propose(proposals, rows, used, which, stage)
    beside = Drawn(z, mixture_log_q(log_q, choice.weights), log_prior, log_likelihood)
    even = np.full((len(rows), len(_TIMES)), 1 / len(_TIMES))
    log_weights = judge(drawn).log_weights
    return moved(
        drawn, log_weights, _log_q_of(wide, drawn.z), beside, mixture_log_q(log_q[:, places], even)
    )


def around(z: np.ndarray, log_weights: np.ndarray) -> Student:
    """T distributions about weighted draws (dataset, draw, dim), wider and much wider than they."""
    weights = np.exp(log_weights)[..., None]
    dim = z.shape[-1]
    z = np.where(weights > 0, z, 0.0)
    mean = (weights * z).sum(axis=1)
    apart = z - mean[:, None]
    covariance = np.einsum("dn,dni,dnj->dij", weights[..., 0], apart, apart)
    own = np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 1e-30)
    sd = np.sqrt(own)
    # units of each parameter's sd, and a ridge: draws may lie on a line
    unit = covariance / (sd[:, :, None] * sd[:, None])
    unit = np.where(np.isfinite(unit), unit, np.eye(dim))
    unit = (1 - 1e-6) * unit + 1e-6 * np.eye(dim)
    lower = sd[:, :, None] * np.linalg.cholesky(unit)
    lower = np.stack([(1 + t / np.sqrt(dim)) * lower for t in _TIMES], axis=1)
    shift = np.stack([mean] * len(_TIMES), axis=1)
    return Student(shift, Dense(lower, np.linalg.inv(lower)))  # type: ignore[arg-type]


def _log_q_of(wide: Student, z: np.ndarray) -> np.ndarray:
    """Log density (dataset, draw) of an even mixture."""
    return over_items(_log_q, wide, z, size=_TOGETHER)


@jit
def _log_q(wide: Student, z: Array) -> Array:
    def one(wide: Student, z: Array) -> Array:
        each = jax.vmap(lambda s: jax.vmap(s.log_prob)(z))(wide)
        return logsumexp(each, axis=0, b=1 / each.shape[0])

    return jax.vmap(one)(wide, z)


def moved(
    drawn: Drawn, log_weights: np.ndarray, log_r: np.ndarray, beside: Drawn, beside_r: np.ndarray
) -> np.ndarray:
    """By how many sd draws of wider proposals move a mean or a sd, at most: shape (dataset,).

    All draws are weighted by the mixture of both proposals, in the shares of their numbers.

    Parameters
    ----------
    drawn : Drawn
    log_weights : array of shape (dataset, draw)
        What the draws count by themselves.
    log_r : array of shape (dataset, draw)
        Log density of the wider proposal at them.
    beside : Drawn
        Of the wider proposal; `log_q` under the old one.
    beside_r : array of shape (dataset, draw)

    References
    ----------
    Owen & Zhou (2000), Safe and effective importance sampling; Veach & Guibas (1995) for the
    balance heuristic.
    """
    n, m = drawn.z.shape[1], beside.z.shape[1]
    q = np.concatenate([drawn.log_q, beside.log_q], axis=1)
    r = np.concatenate([log_r, beside_r], axis=1)
    p = [d.log_prior + d.log_likelihood for d in (drawn, beside)]
    mixture = np.logaddexp(np.log(n / (n + m)) + q, np.log(m / (n + m)) + r)
    with np.errstate(invalid="ignore"):
        ratio = np.concatenate(p, axis=1) - mixture
    ratio = np.where(np.isfinite(ratio), ratio, -np.inf)
    top = ratio.max(axis=1, keepdims=True)
    weights = np.exp(ratio - np.where(np.isfinite(top), top, 0.0))
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    mean, sd = _moments(np.concatenate([drawn.z, beside.z], axis=1), weights)
    old_mean, old_sd = _moments(drawn.z, np.exp(log_weights))
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.maximum(np.abs(old_mean - mean), np.abs(old_sd - sd)) / sd
    return np.where(np.isfinite(apart), apart, 0.0).max(axis=1)


def _moments(z: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = np.where(weights[..., None] > 0, z, 0.0)
    mean = np.einsum("dn,dni->di", weights, z)
    return mean, np.sqrt(np.einsum("dn,dni->di", weights, (z - mean[:, None]) ** 2))
