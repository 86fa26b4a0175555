"""The last of a correction: NUTS where draws cannot be trusted, and what no sampler tells."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pmcl.compile import Density
from pmcl.data.task import Task
from pmcl.draws.drawn import Drawn, resampled
from pmcl.metrics import ImportanceDiagnostics
from pmcl.refinement.fallback import MOST_RHAT, by_nuts, together
from pmcl.refinement.settings import Asked
from pmcl.refinement.standing import tails
from pmcl.refinement.treatment import Engine, Treatment, at, joined, replaced
from pmcl.runtime.devices import accelerated

# Datasets that nutpie takes one by one on an accelerator, too: the chains of more walk there in
# one program. On two cores that took twice as long (`benchmarks/vectorised.py`).
_HANDFUL = 5
_MANY = 20  # datasets that NUTS takes over unasked: half a minute, with most models


class Corrected(NamedTuple):
    """Final draws, their diagnostics before resampling, and what was done to each dataset."""

    drawn: Drawn
    diagnostics: ImportanceDiagnostics
    log_weights: np.ndarray
    treatment: Treatment

    def fallen(self, asked: Asked) -> np.ndarray | None:
        """Positions of the datasets that NUTS is to take over; None where nobody asked for it."""
        if asked.fallback is None:
            return None
        doubtful = self.treatment.warning != ""
        which = np.flatnonzero(doubtful | (self.diagnostics.finite_fraction == 0))
        return which if asked.fallback == "nuts" or 0 < len(which) <= _MANY else None


class Weighed(NamedTuple):
    """Draws that count alike, before NUTS.

    Attributes
    ----------
    found : Corrected
    best : Drawn
        The draws before resampling.
    look : callable, optional
        Looks for modes that draws miss.
    """

    found: Corrected
    best: Drawn
    look: Callable[..., tuple[np.ndarray, np.ndarray]] | None = None


def finished(
    density: Density, task: Task, weighed: Weighed, asked: Asked, *, progressbar: bool
) -> Corrected:
    """Sample by NUTS what cannot be trusted, and say what no sampler tells."""
    found, best, look = weighed
    if density.compiled.implicit:
        return found
    which = found.fallen(asked)
    if which is not None:
        judged = found.diagnostics
        found = _fallen(density, task, best, found, which, asked, progressbar)
        if look is not None:  # chains do not go from mode to mode
            by = np.flatnonzero(found.treatment.engine == Engine.NUTS)
            judged = judged._replace(log_weights=found.log_weights)
            found = warned(found, look(by, found.drawn, judged, seed=asked.seed)[0])
    # last: no sampler tells what so many draws cannot
    return warned(found, tails(density.compiled, found.drawn.z, found.log_weights))


def warned(found: Corrected, more: np.ndarray) -> Corrected:
    """Add to the warnings."""
    warning = joined(found.treatment.warning, more)
    return found._replace(treatment=found.treatment._replace(warning=warning))


def _in_one_program(datasets: int) -> bool:
    """Whether NUTS takes so many all at once, rather than one by one."""
    return datasets > _HANDFUL and accelerated()


def _fallen(
    density: Density,
    task: Task,
    best: Drawn,
    found: Corrected,
    which: np.ndarray,
    asked: Asked,
    progressbar: bool,
) -> Corrected:
    """Put draws of NUTS in the places of the datasets `which`, and say how its chains agree."""
    nothing = np.full(len(task), np.nan)
    treatment = found.treatment._replace(rhat=nothing, ess=nothing, divergences=nothing)
    if not len(which):
        return found._replace(treatment=treatment)
    if progressbar:
        print(f"NUTS samples {len(which)} of {len(task)} datasets: others cannot be trusted.")  # noqa: T201
    # By weight, whatever k-hat: these are the best there are, for a start and a metric.
    smoothed = found.diagnostics.log_weights
    start = resampled(best, smoothed, which, seed=asked.seed, position=task.position).z[which]
    draws = found.drawn.log_prior.shape[1]
    given = {"draws": draws, "seed": asked.seed, "progressbar": progressbar}
    if _in_one_program(len(which)):
        fallen = together(density, task, start, which, **given)
    else:
        fallen = by_nuts(density.compiled, task, start, which, **given)
    # Where NUTS failed the draws stay those of before, with their k-hat's warning and its own; and
    # where its chains do not agree, as between modes, if weights are not hopeless.
    use = np.isfinite(fallen.drawn.z).all(axis=(1, 2))
    use &= ~(fallen.rhat > MOST_RHAT) | ~(found.diagnostics.khat[which] < 1.0)
    done, failed = which[use], which[~use]
    log_weights = np.array(found.log_weights)
    log_weights[done] = -np.log(draws)
    old, new = at(treatment, done), at(fallen, use)
    old = old._replace(
        engine=np.full(len(done), Engine.NUTS, dtype=object),
        gradients=old.gradients + new.gradients,
        warning=new.warning,
        rhat=new.rhat,
        ess=new.ess,
        divergences=new.divergences,
    )
    treatment = replaced(treatment, done, old)
    treatment = treatment.noted(done, "k-hat of importance sampling is too high")
    treatment.warning[failed] = joined(treatment.warning[failed], fallen.warning[~use])
    drawn = replaced(found.drawn, done, at(fallen.drawn, use))
    return found._replace(drawn=drawn, log_weights=log_weights, treatment=treatment)
