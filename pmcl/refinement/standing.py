"""Whether a posterior stands: what says that draws should not be trusted."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel
from pmcl.data.batching import over_items, taken
from pmcl.data.task import Task
from pmcl.draws.drawn import Drawn
from pmcl.metrics import FEWEST_DRAWS, ImportanceDiagnostics, khat_threshold
from pmcl.refinement.treatment import joined
from pmcl.runtime.jitting import jit
from pmcl.search.many import searched
from pmcl.search.newton import Mode
from pmcl.search.search import Search, evidence_of

# Of 96 posteriors of hierarchies and vague priors those that were off had at most 0.11, those that
# were right at least 0.18.
_INEFFICIENT = 0.1
# A weight that is seen to matter costs efficiency: above this the largest are a few times the mean,
# and a shape fitted to their tail tells of nothing that is there.
_ALIKE = 0.99
_RESOLUTION = 0.01  # nats by which the rounding of a log density may change it
_NOTHING = 10.0  # nats below an equal share, at which a draw does not count
_BEHIND = 5.0  # nats by which a mode that hardly a draw is near may lie behind the evidence
_PART = 0.1  # of the share of the draws that such a mode's evidence promises
_TOGETHER = 16  # modes that are compared with draws at once
_FEW = 25  # draws that squared distances may rest on, of 1,000 or more
_PART_FEW = 40  # of fewer draws: of a normal it is a third of them
_HANDFUL = 2.5  # times fewer draws, on which they may not rest whatever k-hat is
_HEAVY = 1.0  # k-hat of squared distances
_LOG_2PI = float(np.log(2 * np.pi))


def objections(drawn: Drawn, diagnostics: ImportanceDiagnostics, draws: int) -> np.ndarray:
    """What weights and densities say against draws: text of shape (dataset,), empty for nothing."""
    limit, many = khat_threshold(max(draws, 2)), draws >= FEWEST_DRAWS
    khat, efficiency = diagnostics.khat, diagnostics.efficiency
    found = np.where(
        heavy(diagnostics, draws),
        np.char.add(np.char.mod("k-hat %.2f is above ", khat), f"{limit:.2f}"),
        "",
    ).astype(object)
    low = (efficiency < _INEFFICIENT) & many
    found = joined(found, np.where(low, np.char.mod("efficiency %.2g", efficiency), ""))
    # of draws that count: the farthest of a heavy tail have any density, and no weight
    counts = diagnostics.log_weights > -np.log(max(draws, 2)) - _NOTHING
    size = np.where(counts, np.abs(drawn.log_prior) + np.abs(drawn.log_likelihood), 0.0)
    size = np.where(np.isnan(size), 0.0, size).max(axis=1)
    rounded = np.finfo(float).eps * np.where(np.isfinite(size), size, 0.0) > _RESOLUTION
    text = np.char.mod("the log density is of the order of %.0e: no resolution is left", size)
    return joined(found, np.where(rounded, text, ""))


def heavy(diagnostics: ImportanceDiagnostics, draws: int) -> np.ndarray:
    """Whether k-hat of so many draws is too high."""
    many = draws >= FEWEST_DRAWS  # else k-hat cannot be told, which says nothing of the posterior
    bad = diagnostics.khat > khat_threshold(max(draws, 2))
    return bad & many & ~(diagnostics.efficiency > _ALIKE)


def tails(compiled: CompiledModel, z: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """Whose sd the final draws (dataset, draw, dim) do not tell: text of shape (dataset,).

    Where the squared distance from the median has a Pareto k-hat above 1 it has no mean that draws
    could be near to, and the few largest are all of it; so they are where it rests on a handful.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao & Gabry (2024), section 2.4: k-hat of what is averaged.
    """
    from arviz_stats.base import array_stats

    text, draws = np.full(len(z), "", dtype=object), z.shape[1]
    if draws < FEWEST_DRAWS:
        return text
    weights = np.exp(log_weights)[..., None]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart = np.where(weights > 0, z - np.median(z, axis=1, keepdims=True), 0.0) ** 2
        each = weights * apart
        number = each.sum(axis=1) ** 2 / (each**2).sum(axis=1)
    names = np.repeat([v.name for v in compiled.values], [v.size for v in compiled.values])
    most = min(_FEW, draws / _PART_FEW)
    for i, j in np.argwhere(number < most):
        with np.errstate(all="ignore"):
            log = np.log(each[i, :, j])
            khat = float(array_stats.psislw(log.max() - log)[1])
        if (khat > _HEAVY or number[i, j] < most / _HANDFUL) and not text[i]:
            text[i] = (
                f"the sd of {names[j]} rests on {number[i, j]:.0f} draws of its tails, which are "
                "too heavy for so many draws (quantiles may be trusted)"
            )
    return text


def elsewhere(
    search: Search,
    task: Task,
    which: np.ndarray,
    drawn: Drawn,
    diagnostics: ImportanceDiagnostics,
    *,
    starts: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """What searches from other places find that draws have no part of, of the datasets `which`.

    Each dataset is searched from points of its own, spread over the prior to its edges. A mode at
    which the normal has a share of the evidence, but hardly any draw is near, is named.

    Returns
    -------
    text : array of shape (dataset,)
    z : array of shape (dataset, start, dim)
        Where these searches ended, of the datasets that have such a mode; else NaN.
    """
    text, dim = np.full(len(task), "", dtype=object), len(search.spread)
    z = np.full((len(task), starts, dim), np.nan)
    if not len(which):
        return text, z
    begin = search.scattered(starts, [(seed, 9, int(p)) for p in task.position[which]])
    found = searched(search, taken(task.batch(), which), begin)
    row, modes = (
        np.repeat(which, starts),
        jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found),
    )
    weights = np.exp(diagnostics.log_weights)
    evidence, share = over_items(
        lambda mode, of: _compared(mode, drawn.z[of], weights[of]), modes, row, size=_TOGETHER
    )
    ahead = evidence - diagnostics.log_evidence[row]
    missed = (ahead > -_BEHIND) & (share < _PART * np.exp(np.minimum(ahead, 0.0)))
    missed = np.flatnonzero(missed)
    for k in missed[np.argsort(ahead[missed])]:
        text[row[k]] = (
            f"a search from elsewhere found a mode of {ahead[k]:+.1f} nats of evidence, relative "
            "to that of the draws, which hardly any of them is near"
        )
    z[which] = found.z
    z[text == ""] = np.nan
    return text, z


def _far(dim: int) -> float:
    """Squared distance from a mode, in its scales, within which it has most of its draws."""
    return dim + 3 * np.sqrt(2 * dim) + 9


@jit
def _compared(mode: Mode, z: Array, weights: Array) -> tuple[Array, Array]:
    """Evidence of the normal at each mode, and the share of the draws that are near it.

    `z` has shape (item, draw, dim), `weights` (item, draw).
    """

    def near(mode: Mode, z: Array, weights: Array) -> Array:
        apart = jax.vmap(lambda u: jnp.sum(mode.scale.solve(u - mode.z) ** 2))(z)
        return jnp.sum(jnp.where(apart <= _far(z.shape[-1]), weights, 0.0))

    evidence = evidence_of(mode) + 0.5 * z.shape[-1] * _LOG_2PI
    return evidence, jax.vmap(near)(mode, z, weights)
