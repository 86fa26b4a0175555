"""Refinement of a multilevel model: of its global parameters alone, then draws of each group's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from pmcl.compile import Density
from pmcl.data.batching import over_chunks, taken
from pmcl.data.task import Batch, Task
from pmcl.draws.densities import densities
from pmcl.draws.drawn import Drawn
from pmcl.levels.integrals import KEY, Marginal
from pmcl.levels.structure import Given, Levels
from pmcl.metrics import ImportanceDiagnostics, importance_diagnostics, khat_threshold
from pmcl.refinement import level_stages as stages
from pmcl.refinement.level_stages import BLOCK, GroupDraws, Mixture
from pmcl.refinement.settings import Asked, Beginning, Refine
from pmcl.refinement.stages import Keys
from pmcl.refinement.treatment import Engine, Treatment, at, replaced
from pmcl.runtime import devices
from pmcl.runtime.progress import progress_bar
from pmcl.search.many import searched, several
from pmcl.search.newton import Mode
from pmcl.search.search import Search

_TOGETHER = 4  # datasets, or parts of their draws, that a device works on together
_PART = 64  # datasets whose draws are made before the next are searched for
_ROUNDS = 2  # of fitting mixtures, before draws are made
_DRAWS = 512  # of a round, at least
_POINTS = (8, 16, 64)  # proposals a group: the first with which the noise is small
_NOISE = 0.1  # variance of log weights at given global parameters that is small


def refine_levels(
    density: Density,
    levels: Levels,
    task: Task,
    beginning: Beginning,
    asked: Asked,
    *,
    progressbar: bool = False,
) -> tuple[Drawn, Treatment]:
    """Refine the global parameters, groups integrated out, and draw the groups' given them.

    Parameters
    ----------
    density : Density
    levels : Levels
        Of this task.
    task : Task
    beginning : Beginning
        Of all parameters.
    asked : Asked
    progressbar : bool

    Returns
    -------
    drawn : Drawn
        Of all parameters. `log_q` is that by which the weight of a draw is its density's ratio:
        where groups are not exact, of the draw and of all proposals that it was chosen from.
    treatment : Treatment
    """
    marginal = Marginal(density, len(levels.shared), levels.exact)
    plain = task.batch()
    given: Any = Given(levels.split)
    whole = plain._replace(values={**plain.values, KEY: given})
    parts = []
    with progress_bar(f"Refining, {levels.groups} groups", len(task), enabled=progressbar) as bar:
        for begin in range(0, len(task), _PART):
            rows = np.arange(begin, min(begin + _PART, len(task)))
            run = _Run(marginal, levels, whole, task.first, beginning, asked, rows)
            parts.append(run.all())
            bar.advance(len(rows))
    found, treatment = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    log_prior, log_likelihood = densities(density.compiled, found.z, task)
    log_q = log_prior + log_likelihood - (found.log_p - found.log_q)
    return Drawn(found.z, log_q, log_prior, log_likelihood), treatment


class _Run(NamedTuple):
    """Datasets that are refined together, and what they share; `rows` are positions in the task."""

    marginal: Marginal
    levels: Levels
    whole: Batch
    first: int
    beginning: Beginning
    asked: Asked
    rows: np.ndarray

    @property
    def settings(self) -> Refine:
        """Hyper-parameters."""
        return self.asked.refine or Refine()

    def staged(self, function: Callable[..., Any], which: np.ndarray, *trees: Any) -> Any:
        """Call function(batch, *trees) on items of the datasets `which`, in chunks of one size."""
        size = devices.together(_TOGETHER)
        return over_chunks(function, self.whole, self.rows[which], *trees, size=size)

    def keys(self, stage: int, which: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, ...]:
        """What the random numbers of items follow from, in the order of `Keys`."""
        n, position = len(which), self.first + self.rows[which]
        return np.full(n, self.asked.seed), np.full(n, stage), position, block

    def anchored(self, g: np.ndarray) -> "_Run":
        """Return the same, whose searches for groups' modes begin near those at g."""
        everyone = np.arange(len(self.rows))
        anchor = self.staged(lambda batch, g: stages.anchored(self.marginal, batch, g), everyone, g)
        part = taken(self.whole, self.rows)
        given: Any = part.values[KEY]
        values = {**part.values, KEY: given._replace(anchor=anchor)}
        first = self._replace(whole=part._replace(values=values), rows=everyone)
        return first._replace(first=self.first + int(self.rows[0]))

    def all(self) -> tuple[GroupDraws, Treatment]:
        """Search, fit mixtures, draw; fit on where draws are poor."""
        found, modes, number = self.search()
        treatment = self.treatment(found, modes, number)
        run = self
        if not self.marginal.exact:
            run = self.anchored(np.asarray(modes.z)[:, 0])
        return run.drawn(stages.mixture_at(modes, number), treatment)

    def search(self) -> tuple[Mode, Mode, np.ndarray]:
        """Search for modes of the global parameters; all ends, and those that differ, in order."""
        shared, whole = self.levels.shared, self.beginning.search
        starts, spread = (np.asarray(v)[..., shared] for v in (whole.starts, whole.spread))
        search = replace(Search.at(self.marginal, starts, spread), exact=True)  # type: ignore[arg-type]
        own = self.beginning.start
        found = searched(
            search,
            taken(self.whole, self.rows),
            None if own is None else own[self.rows][..., shared],
            together=_TOGETHER,
        )
        return found, *several(found)

    def treatment(self, found: Mode, modes: Mode, number: np.ndarray) -> Treatment:
        """Say how the search ended."""
        n = len(number)
        treatment = Treatment.none(n)._replace(
            engine=np.full(n, Engine.MIXTURE, dtype=object),
            search_steps=np.max(found.steps, axis=1),
            modes=number,
            gradients=np.sum(found.gradients, axis=1),
        )
        unconverged = ~np.asarray(modes.converged)[:, 0]
        return treatment.noted(unconverged, "the search for the mode did not converge")

    def drawn(self, mixture: Mixture, treatment: Treatment) -> tuple[GroupDraws, Treatment]:
        """Fit mixtures and draw; fit on where draws are poor."""
        settings, everyone = self.settings, np.arange(len(self.rows))
        mixture = self.improved(mixture)
        points, noise = self.points(mixture, everyone)
        draws = self.draw(mixture, everyone, points, turn=0)
        weak = self.weak(draws)
        if len(weak) and settings.rounds > _ROUNDS:
            better = at(mixture, weak)
            for turn in range(_ROUNDS, settings.rounds):
                better, _ = self.fitted(better, weak, turn)
            some, noisy = self.points(better, weak)
            new = self.draw(better, weak, some, turn=1)
            use = _judged(new).efficiency > _judged(at(draws, weak)).efficiency
            rows = weak[use]
            draws = replaced(draws, rows, at(new, use))
            points, noise = replaced((points, noise), rows, at((some, noisy), use))
            treatment = treatment.noted(rows, "population Monte Carlo")
        return draws, treatment._replace(group_noise=noise, group_points=points)

    def improved(self, mixture: Mixture) -> Mixture:
        """Fit the mixtures of all datasets, once more where they were not efficient enough."""
        new, before = self.fitted(mixture, np.arange(len(self.rows)), 0)
        rows = np.flatnonzero(before < self.settings.enough)
        if not len(rows):
            return new
        again, after = self.fitted(at(new, rows), rows, 1)
        new = replaced(new, rows, again)
        # of few draws for many parameters a fit may be worse than none
        worse = rows[before[rows] > after]
        return replaced(new, worse, at(mixture, worse))

    def fitted(self, mixture: Mixture, which: np.ndarray, turn: int) -> tuple[Mixture, np.ndarray]:
        """Fit the mixtures of the datasets `which` once more, and say how efficient they were."""
        number = max(_DRAWS, 64 * self.marginal.dim)
        new, log_weight = self.staged(
            lambda batch, mixture, keys: stages.fitted(
                self.marginal, batch, mixture, Keys.of_chunk(keys), number
            ),
            which,
            mixture,
            self.keys(20 + turn, which, np.zeros(len(which), int)),
        )
        return new, importance_diagnostics(log_weight).efficiency

    def points(self, mixture: Mixture, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Choose how many proposals a group has; the variance of log weights with so many."""
        points, noise = np.ones(len(which), int), np.zeros(len(which))
        if self.marginal.exact:
            return points, noise
        left = np.arange(len(which))
        for number in _POINTS:
            some, blocks = at(mixture, left), np.zeros(len(left), int)
            first, second = (
                self.blocks(some, which[left], blocks, number, stage=30, turn=t) for t in (1, 2)
            )
            with np.errstate(invalid="ignore"):
                mean = 0.5 * (first.log_p + second.log_p) - first.log_q
                apart = np.nan_to_num(first.log_p - second.log_p)
            weight = np.exp(importance_diagnostics(mean).log_weights)
            noise[left] = 0.5 * np.sum(weight * apart**2, axis=1)
            points[left] = number
            left = np.flatnonzero(noise > _NOISE)
            if not len(left):
                break
        return points, noise

    def draw(
        self, mixture: Mixture, which: np.ndarray, points: np.ndarray, *, turn: int
    ) -> GroupDraws:
        """Make the draws of the datasets `which`, with so many proposals a group."""
        draws = self.asked.draws
        blocks = -(-draws // BLOCK)
        parts, places = [], []
        for number in np.unique(points):
            rows = np.flatnonzero(points == number)
            item, block = np.repeat(rows, blocks), np.tile(np.arange(blocks), len(rows))
            found = self.blocks(
                at(mixture, item), which[item], block, int(number), stage=40 + turn, turn=0
            )
            shaped = [v.reshape(len(rows), -1, *v.shape[2:])[:, :draws] for v in found]
            parts.append(GroupDraws(*shaped))
            places.append(rows)
        back = np.argsort(np.concatenate(places))
        return jax.tree.map(lambda *x: np.concatenate(x)[back], *parts)

    def blocks(
        self,
        mixture: Mixture,
        which: np.ndarray,
        block: np.ndarray,
        points: int,
        *,
        stage: int,
        turn: int,
    ) -> GroupDraws:
        """Make blocks of draws: one an item."""
        return self.staged(
            lambda batch, mixture, keys, turn: stages.drawn(
                self.marginal, batch, mixture, Keys.of_chunk(keys), turn, points
            ),
            which,
            mixture,
            self.keys(stage, which, block),
            np.full(len(which), turn),
        )

    def weak(self, draws: GroupDraws) -> np.ndarray:
        """Positions of datasets whose draws are poor."""
        judged = _judged(draws)
        bad = judged.khat > khat_threshold(max(self.asked.draws, 2))
        return np.flatnonzero(bad | (judged.efficiency < self.settings.efficiency))


def _judged(draws: GroupDraws) -> ImportanceDiagnostics:
    with np.errstate(invalid="ignore"):
        return importance_diagnostics(draws.log_p - draws.log_q)
