"""From amortized draws to a posterior's final draws: refined, reweighted, NUTS where asked."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr

from pmcl.compile import CompiledModel, Density
from pmcl.compile.integral import of_prior
from pmcl.data.task import Task
from pmcl.draws.densities import constrain
from pmcl.draws.drawn import Drawn, judge, resampled
from pmcl.draws.prediction import extra_groups
from pmcl.draws.results import assemble, posterior_tree
from pmcl.levels.structure import Levels
from pmcl.metrics import FEWEST_DRAWS, ImportanceDiagnostics, khat_threshold
from pmcl.networks import Amortizer
from pmcl.refinement.engine import poor, refine_task
from pmcl.refinement.finishing import Corrected, Weighed, finished
from pmcl.refinement.multilevel import refine_levels
from pmcl.refinement.settings import Asked, Beginning
from pmcl.refinement.standing import elsewhere, objections
from pmcl.refinement.treatment import Engine, Treatment, at, joined, replaced
from pmcl.runtime.arguments import listed

_ELSEWHERE = 8  # searches by which a refined posterior is judged
_ROUNDS = 2  # of refinement that begins at what they found, too


def correct(
    density: Density,
    amortizer: Amortizer | None,
    task: Task,
    drawn: Drawn | None,
    beginning: Beginning | None,
    asked: Asked,
    *,
    levels: Levels | None = None,
    progressbar: bool,
) -> Corrected:
    """Refine the datasets that need it, make draws count alike, and sample by NUTS what is left.

    Parameters
    ----------
    density, amortizer, task
    drawn : Drawn, optional
        Amortized draws; None where there is no network.
    beginning : Beginning, optional
        Where refinement is asked for.
    asked : Asked
    levels : Levels, optional
        Of the task; draws are made here, and the search is one for the global parameters, as is the
        network, where there is one.
    progressbar : bool
    """
    weighed = weigh(
        density, amortizer, task, drawn, beginning, asked, levels=levels, progressbar=progressbar
    )
    return finished(density, task, weighed, asked, progressbar=progressbar)


def weigh(
    density: Density,
    amortizer: Amortizer | None,
    task: Task,
    drawn: Drawn | None,
    beginning: Beginning | None,
    asked: Asked,
    *,
    levels: Levels | None = None,
    progressbar: bool,
) -> Weighed:
    """Refine the datasets that need it, and make draws count alike; see :func:`correct`."""
    before = None if drawn is None else judge(drawn)
    treatment = Treatment.none(len(task), before)
    diagnostics = before
    if levels is not None and beginning is not None:
        drawn, treatment = refine_levels(
            density, levels, task, beginning, asked, amortizer=amortizer, progressbar=progressbar
        )
        diagnostics = judge(drawn)
    elif asked.refine is not None and beginning is not None:
        drawn, diagnostics, treatment = _refined(
            density, amortizer, task, drawn, beginning, asked, progressbar=progressbar
        )
    assert drawn is not None and diagnostics is not None
    if density.compiled.implicit:  # nothing to weigh draws by
        said = f"no likelihood of {', '.join(density.compiled.implicit)}: draws of the network"
        treatment = treatment.noted(np.arange(len(task)), said)
        nothing = np.full(len(task), np.nan)
        diagnostics = diagnostics._replace(
            khat=nothing,
            efficiency=nothing,
            log_evidence=nothing,
            log_evidence_error=nothing,
            sc_variance=nothing,
        )
        treatment = treatment._replace(khat_amortized=None, efficiency_amortized=None)
        alike = np.full(drawn.log_prior.shape, -np.log(drawn.log_prior.shape[1]))
        return Weighed(Corrected(drawn, diagnostics, alike, treatment), drawn)
    against = objections(drawn, diagnostics, asked.draws)
    # the joint density of a multilevel model may have no mode to look for
    look = None
    if beginning is not None and levels is None and asked.draws >= FEWEST_DRAWS:
        starts = _ELSEWHERE if asked.refine is not None and asked.everywhere else 1
        look = partial(elsewhere, beginning.search, task, starts=starts)
        again = partial(refine_task, density, amortizer, task, asked=asked, further=True)
        now = _Now(drawn, diagnostics, treatment, against)
        drawn, diagnostics, treatment, against = _looked(now, look, again, beginning, asked)
    treatment = treatment._replace(warning=joined(treatment.warning, against))
    found = Corrected(drawn, diagnostics, diagnostics.log_weights, treatment)
    if asked.correct is not None:
        found = _alike(found, task, asked)
    return Weighed(found, drawn, look)


class _Now(NamedTuple):
    """Where correction stands: draws, what they are worth, what was done, what is against them."""

    drawn: Drawn
    diagnostics: ImportanceDiagnostics
    treatment: Treatment
    against: np.ndarray


def _looked(
    now: _Now,
    look: Callable[..., tuple[np.ndarray, np.ndarray]],
    again: Callable[..., tuple[Drawn, Treatment]],
    beginning: Beginning,
    asked: Asked,
) -> _Now:
    """Look for modes that draws miss; begin again at all that was found, where one is missed."""
    drawn, diagnostics, treatment, against = now
    rows = np.flatnonzero(against == "")
    found: list[np.ndarray] = []
    for round_ in range(_ROUNDS + 1):
        missed, z = look(rows, drawn, diagnostics, seed=asked.seed + round_)
        rows = np.flatnonzero(missed != "")
        if not len(rows) or asked.refine is None or round_ == _ROUNDS:
            break
        found.append(z)
        # as many starts in the first round as in the last: they are compiled once
        fill = [np.full_like(z, np.nan)] * (_ROUNDS - len(found))
        begin = beginning.beside(np.concatenate([*found, *fill], axis=1))
        new, done = again(begin, which=rows)
        drawn = replaced(drawn, rows, new)
        diagnostics = replaced(diagnostics, rows, judge(new))
        treatment = _put(treatment, rows, done).noted(rows, "begun again at other modes")
        against[rows] = objections(new, judge(new), asked.draws)
        rows = rows[against[rows] == ""]
    return _Now(drawn, diagnostics, treatment, joined(against, missed))


def as_tree(
    compiled: CompiledModel,
    task: Task,
    corrected: Corrected,
    asked: Asked,
    *,
    begin: float,
    constrained: Mapping[str, np.ndarray] | None = None,
    left: tuple[np.ndarray, np.ndarray] | None = None,
) -> xr.DataTree:
    """Label final draws: the results that users see; `begin` is the clock when sampling began.

    `constrained`: named variables of z, and `left`: the share of the prior that transforms leave,
    and its error, of each dataset, where somebody knows better.
    """
    diagnostics, treatment = corrected.diagnostics, corrected.treatment
    prior = of_prior(compiled)
    share, error = prior.left if left is None else left
    if prior.without:
        nothing = np.full(len(task), np.nan)
        diagnostics = diagnostics._replace(log_evidence=nothing, log_evidence_error=nothing)
        treatment = treatment.noted(np.arange(len(task)), f"no evidence: {prior.without}")
    else:
        diagnostics = diagnostics._replace(
            log_evidence=diagnostics.log_evidence - np.log(share),
            log_evidence_error=np.hypot(diagnostics.log_evidence_error, error / share),
        )
        notes = [*map(_said_of, np.broadcast_to(share, len(task)))]
        treatment = treatment.noted(np.arange(len(task)), np.array(notes, dtype=object))
    if prior.besides:
        said = f"evidence of a prior with {listed(prior.besides)}, which may not integrate to 1"
        treatment = treatment.noted(np.arange(len(task)), said)
    z = np.asarray(corrected.drawn.z)
    if constrained is None:
        constrained = constrain(compiled, z, task, asked.names)
    extra = extra_groups(compiled, task, z, asked.extra, seed=asked.seed)
    draws = assemble(
        corrected.drawn,
        diagnostics,
        constrained,
        treatment.columns(),
        log_weights=corrected.log_weights,
        seconds=time.perf_counter() - begin,
    )
    engine = ", ".join(sorted(set(map(str, treatment.engine))))
    return posterior_tree(compiled, task, draws, engine=engine, extra=extra)


def _said_of(share: float) -> str:
    """Say what the evidence is of where transforms leave a share of the prior."""
    if np.isnan(share):
        return "no evidence: transforms cut the prior, and how much is left cannot be told"
    if share == 1:
        return ""
    return f"evidence of the {share:.2g} of the prior that its transforms leave"


def _refined(
    density: Density,
    amortizer: Amortizer | None,
    task: Task,
    drawn: Drawn | None,
    beginning: Beginning,
    asked: Asked,
    *,
    progressbar: bool,
) -> tuple[Drawn, ImportanceDiagnostics, Treatment]:
    """Refine what needs it; amortized draws stay where refined ones are worse."""
    before = None if drawn is None else judge(drawn)
    treatment = Treatment.none(len(task), before)
    which = np.arange(len(task))
    assert asked.refine is not None
    if before is not None and not asked.everywhere:
        which = poor(before, asked.refine, asked.draws)
        treatment = treatment.noted(np.setdiff1d(np.arange(len(task)), which), "good as it is")
    if not len(which):
        assert drawn is not None and before is not None
        return drawn, before, treatment
    found, done = refine_task(
        density, amortizer, task, beginning, asked, which=which, progressbar=progressbar
    )
    after = judge(found)
    if before is None or drawn is None:
        return found, after, done
    worse = (after.khat > khat_threshold(max(asked.draws, 2))) & (before.khat[which] < after.khat)
    use = ~worse & np.isfinite(after.efficiency) & (after.efficiency > 0)
    done = done.noted(~use, "refinement did not help")
    done.engine[~use] = Engine.AMORTIZED
    done.warning[~use] = ""
    rows = which[use]
    return (
        replaced(drawn, rows, at(found, use)),
        replaced(before, rows, at(after, use)),
        _put(treatment, which, done),
    )


def _put(treatment: Treatment, rows: np.ndarray, done: Treatment) -> Treatment:
    """Put what was done to some datasets; what is said of the network's draws stays."""
    old = at(treatment, rows)
    done = done._replace(
        khat_amortized=old.khat_amortized, efficiency_amortized=old.efficiency_amortized
    )
    return replaced(treatment, rows, done)


def _alike(found: Corrected, task: Task, asked: Asked) -> Corrected:
    """Resample by smoothed weights, so that all draws count alike."""
    diagnostics, treatment = found.diagnostics, found.treatment
    usable = diagnostics.finite_fraction > 0
    if treatment.khat_amortized is not None:
        # Weights that cannot be trusted would put all on a few draws.
        loose = usable & (diagnostics.khat > 1.0)
        usable &= ~loose
        if asked.fallback is None and asked.draws >= FEWEST_DRAWS:
            treatment = treatment.noted(loose, "k-hat is above 1: draws keep their weights")
    which = np.flatnonzero(usable)
    drawn = resampled(
        found.drawn, found.log_weights, which, seed=asked.seed, position=task.position
    )
    log_weights = np.array(found.log_weights)
    log_weights[which] = -np.log(drawn.z.shape[1])
    return found._replace(drawn=drawn, log_weights=log_weights, treatment=treatment)
