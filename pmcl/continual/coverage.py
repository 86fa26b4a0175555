"""Adaptation that keeps what the network covered: modes, and supports that end."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from pmcl.compile import Density
from pmcl.continual.adaptation import Adapted, adapt
from pmcl.continual.objectives.objectives import AbstractObjective, PathGradient
from pmcl.continual.objectives.teacher import TeacherDistillation
from pmcl.continual.pool import NothingTrusted
from pmcl.continual.strategies.strategy import Occasion
from pmcl.data.task import Task
from pmcl.draws import network
from pmcl.draws.network import look
from pmcl.networks import Amortizer
from pmcl.runtime.arguments import listed

_LOST = 1.0  # nats
_SHARE = 0.1  # of a task's datasets


class Covered(NamedTuple):
    """An adaptation, by which objective, and the datasets that the first one lost."""

    adapted: Adapted
    objective: AbstractObjective
    lost: tuple[str, ...]


def lost_nats(
    before: Amortizer, after: Amortizer, density: Density, task: Task, *, seed: int
) -> np.ndarray:
    """By how much adaptation raised KL(p || q) at each dataset, in nats; shape (dataset,).

    E_p[log q_before - log q_after] by self-normalised importance sampling, the proposal being the
    equal mixture of both: draws of the network as it was are seen where the adapted one has none.
    The reverse divergence, which :class:`pmcl.PathGradient` minimises, cannot see that.

    Parameters
    ----------
    before, after : Amortizer
    density : Density
    task : Task
    seed : int

    References
    ----------
    Owen & Zhou (2000), Safe and effective importance sampling, section 4.
    """
    drawn = [look(a, density, task.batch(), seed=seed) for a in (before, after)]
    z = np.concatenate([d.z for d in drawn], axis=1)
    log_p = np.concatenate([d.log_prior + d.log_likelihood for d in drawn], axis=1)
    log_q = [network.log_q(a, z, task.batch()).astype(float) for a in (before, after)]
    mixture = np.logaddexp(*log_q) - np.log(2)
    usable = np.isfinite(log_p) & np.isfinite(mixture)
    # One network may give a draw of the other no density at all.
    with np.errstate(invalid="ignore"):
        ratio = np.where(usable, log_p - mixture, -np.inf)
        fell = np.clip(np.nan_to_num(log_q[0] - log_q[1]), -1e3, 1e3)
    weights = np.zeros(ratio.shape)
    some = usable.any(axis=1)
    weights[some] = softmax(ratio[some], axis=1)
    return (weights * fell).sum(axis=1)


def adapt_covering(
    now: Occasion,
    *,
    objective: AbstractObjective | None,
    checkpoint: Path | None,
    **options: Any,
) -> Covered:
    """Adapt by the objective that was asked for, or else by one that loses nothing.

    Without one, `PathGradient` is used. Where it lost part of the posterior of more than a tenth
    of the task's datasets - one of several modes, or a support that ends, outside of which its
    gradient says nothing - or where its weights had to be given back, the task is learned anew
    from refined draws, by `TeacherDistillation`.

    Parameters
    ----------
    now : Occasion
    objective : AbstractObjective, optional
    checkpoint : Path, optional
    **options
        Of :func:`pmcl.continual.adapt`.
    """
    learned = partial(adapt, now, **options)
    if objective is not None:
        return Covered(learned(objective=objective, checkpoint=checkpoint), objective, ())
    first = learned(objective=PathGradient(), checkpoint=checkpoint)
    back = first.record.stopped == "given back"
    lost = first.worse
    if not back:
        nats = lost_nats(now.amortizer, first.amortizer, now.density, now.task, seed=now.seed)
        lost = tuple(n for n, v in zip(now.task.names, nats, strict=True) if v > _LOST)
        if len(lost) <= _SHARE * len(now.task):
            return Covered(first, PathGradient(), ())
    if checkpoint is not None:
        checkpoint = checkpoint.with_name(f"{checkpoint.name}-teacher")
    teacher = TeacherDistillation()
    try:
        second = learned(objective=teacher, checkpoint=checkpoint)
    except NothingTrusted:
        if back:
            return Covered(first, PathGradient(), lost)
        warnings.warn(
            f"adapt: PathGradient lost part of the posterior of {len(lost)} of {len(now.task)} "
            f"datasets ({listed(lost)}), as it does where there are several modes or the support "
            "ends; refined draws to learn from instead cannot be trusted for any. Sample with "
            'fallback="nuts".',
            stacklevel=4,
        )
        return Covered(first, PathGradient(), lost)
    return Covered(second, teacher, lost)
