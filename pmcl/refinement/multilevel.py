"""Posteriors of a multilevel model: of its global parameters alone, then draws of each group's."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from pmcl.compile import Density
from pmcl.data.batching import over_chunks, taken
from pmcl.data.task import Batch, Task
from pmcl.draws.densities import walk
from pmcl.draws.drawn import Drawn
from pmcl.levels.integrals import Marginal, anchored
from pmcl.levels.structure import KEY, Given, Levels, NoLevels
from pmcl.metrics import (
    ImportanceDiagnostics,
    importance_diagnostics,
    khat_threshold,
)
from pmcl.networks import Amortizer
from pmcl.networks.amortizer import Context
from pmcl.networks.contexts import contexts
from pmcl.refinement import level_stages as stages
from pmcl.refinement.by_group import ByGroup, by_group, chosen
from pmcl.refinement.engine import poor
from pmcl.refinement.level_stages import BLOCK, GroupDraws, Mixture
from pmcl.refinement.settings import Asked, Beginning, Refine
from pmcl.refinement.stages import Keys
from pmcl.refinement.treatment import UNCONVERGED, Engine, Treatment, at, joined, replaced
from pmcl.runtime import devices
from pmcl.runtime.progress import progress_bar
from pmcl.search.many import searched_everywhere, several
from pmcl.search.newton import Mode
from pmcl.search.search import Search

_TOGETHER = 4  # datasets, or parts of their draws, that a device works on together
_PART = 64  # datasets whose draws are made before the next are searched for
_ROUNDS = 2  # of fitting mixtures, before draws are made
_DRAWS = 512  # of a round, at least; half of them of a block, whose draws are dear
_POINTS = (8, 16, 64)  # proposals a group: the first with which the noise is small
_NOT_EXACT = "groups are not normal where the posterior is: integrated out by their own curvature"
_MANY = 0.01  # of a posterior, where groups may not be as they count
_NOISE = 0.1  # variance of log weights at given global parameters that is small

type Proposal = Mixture | Context  # a context: of a network


def refine_levels(
    density: Density,
    levels: Levels,
    task: Task,
    beginning: Beginning,
    asked: Asked,
    *,
    amortizer: Amortizer | None = None,
    progressbar: bool = False,
) -> tuple[Drawn, Treatment]:
    """Draw the global parameters, groups integrated out, and the groups' given them.

    A network's draws stay where they are good enough, or nothing is to be refined; elsewhere the
    global parameters are refined.

    Parameters
    ----------
    density : Density
    levels : Levels
        Of this task.
    task : Task
    beginning : Beginning
        Of the global parameters.
    asked : Asked
    amortizer : Amortizer, optional
        Of the global parameters.
    progressbar : bool

    Returns
    -------
    drawn : Drawn
        Of all parameters. `log_q` is that by which the weight of a draw is its density's ratio:
        where groups are not exact, of the draw and of all proposals that it was chosen from.
    treatment : Treatment
    """
    marginal = Marginal.of(density, levels)
    plain = task.batch()
    given: Any = Given(levels.split)
    whole = plain._replace(values={**plain.values, KEY: given})
    parts = []
    block = levels.split.block
    what = "one block" if block else f"{levels.groups} groups"
    # LAPACK's threads wait for each other longer than matrices of a block take
    threads = threadpool_limits(1, user_api="blas") if block else nullcontext()
    with threads, progress_bar(f"Sampling, {what}", len(task), enabled=progressbar) as bar:
        for begin in range(0, len(task), _PART):
            rows = np.arange(begin, min(begin + _PART, len(task)))
            run = _Run(marginal, whole, task.position, beginning, asked, rows)
            draws, done = run.made(amortizer)
            done = run.named(draws, done, levels)
            if len(apart := run.apart(draws)):
                some = run._replace(marginal=marginal.inexact, rows=rows[apart])
                again, new = some.made(amortizer)
                new = some.named(again, new.noted(np.arange(len(apart)), _NOT_EXACT), levels)
                draws, done = replaced((draws, done), apart, (again, new))
            parts.append((draws, done))
            bar.advance(len(rows))
    found, treatment = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    log_prior, log_likelihood = walk(
        lambda batch, z: stages.densities(density, z, batch), found.z, whole
    )
    log_q = log_prior + log_likelihood - (found.log_p - found.log_q)
    return Drawn(found.z, log_q, log_prior, log_likelihood), treatment


def levels_told(levels: Levels | NoLevels, tree: xr.DataTree) -> str:
    """What levels there are, and whether draws said otherwise of the groups of some datasets."""
    notes = tree["dataset_stats"].to_dataset()["note"].values
    less = any(_NOT_EXACT in str(note) for note in notes)
    return f"{levels}{'; in some datasets by their own curvature (see note)' if less else ''}"


class _Run(NamedTuple):
    """Datasets that are refined together, and what they share.

    `rows` are the datasets' places in the batch, `position` those of all of it in the task.
    """

    marginal: Marginal
    whole: Batch
    position: np.ndarray
    beginning: Beginning
    asked: Asked
    rows: np.ndarray
    amortizer: Amortizer | None = None

    @property
    def settings(self) -> Refine:
        """Hyper-parameters."""
        return self.asked.refine or Refine()

    @property
    def together(self) -> int:
        """Datasets, or parts of their draws, that a device works on together."""
        given: Any = self.whole.values[KEY]
        return 1 if given.split.block else _TOGETHER

    def staged(
        self,
        function: Callable[..., Any],
        which: np.ndarray,
        *trees: Any,
        together: int | None = None,
    ) -> Any:
        """Call function(batch, *trees) on items of the datasets `which`, in chunks of one size."""
        size = devices.together(together or self.together)
        return over_chunks(function, self.whole, self.rows[which], *trees, size=size)

    def keys(self, stage: int, which: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, ...]:
        """What the random numbers of items follow from, in the order of `Keys`."""
        n, position = len(which), self.position[self.rows[which]]
        return np.full(n, self.asked.seed), np.full(n, stage), position, block

    def anchored(self, g: np.ndarray) -> "_Run":
        """Return the same, whose searches for groups' modes begin near those at g."""
        everyone = np.arange(len(self.rows))
        anchor = self.staged(lambda batch, g: anchored(self.marginal, batch, g), everyone, g)
        part = taken(self.whole, self.rows)
        given: Any = part.values[KEY]
        values = {**part.values, KEY: given._replace(anchor=anchor)}
        return self._replace(
            whole=part._replace(values=values), position=self.position[self.rows], rows=everyone
        )

    def made(self, amortizer: Amortizer | None) -> tuple[GroupDraws, Treatment]:
        """Draw, by a network where there is one."""
        return self.all() if amortizer is None else self.amortized(amortizer)

    def all(self) -> tuple[GroupDraws, Treatment]:
        """Search, fit mixtures, draw; fit on where draws are poor."""
        found, modes, number, lost = self.search()
        treatment = self.treatment(found, number, lost)
        run = self
        if not self.marginal.exact:
            run = self.anchored(np.asarray(modes.z)[:, 0])
        return run.drawn(stages.mixture_at(modes, number), treatment)

    def amortized(self, amortizer: Amortizer) -> tuple[GroupDraws, Treatment]:
        """Draw by the network, and refine where that is asked for."""
        n, refine = len(self.rows), self.asked.refine
        context = contexts(amortizer, self.whole, self.rows)
        run, place = self._replace(amortizer=amortizer), context.place
        assert place is not None
        if not self.marginal.exact:
            run = run.anchored(np.asarray(place.loc)[:, 0])
        everyone = np.arange(n)
        points, noise = run.points(context, everyone)
        draws = run.draw(context, everyone, points, turn=0)
        judged = _judged(draws)
        treatment = Treatment.none(n, judged)._replace(group_noise=noise, group_points=points)
        treatment = treatment.noted(np.asarray(place.status) != 0, UNCONVERGED)
        if refine is None:
            return draws, treatment
        weak = everyone if self.asked.everywhere else poor(judged, refine, self.asked.draws)
        if not len(weak):
            return draws, treatment
        new, done = self._replace(rows=self.rows[weak]).all()
        after, before = _judged(new), at(judged, weak)
        bad = after.khat > khat_threshold(max(self.asked.draws, 2))
        use = (~bad | (after.khat <= before.khat)) & (after.efficiency > 0)
        rows = weak[use]
        done = done._replace(khat_amortized=before.khat, efficiency_amortized=before.efficiency)
        treatment = replaced(treatment, rows, at(done, use))
        treatment = treatment.noted(weak[~use], "refinement did not help")
        return replaced(draws, rows, at(new, use)), treatment

    def search(self) -> tuple[Mode, Mode, np.ndarray, np.ndarray]:
        """Search for modes of the global parameters: all ends, then what :func:`several` says."""
        own, given = self.beginning.start, self.beginning.search
        starts, spread = np.asarray(given.starts), np.asarray(given.spread)
        search = replace(Search.at(self.marginal, starts, spread), exact=True)  # type: ignore[arg-type]
        found = searched_everywhere(
            search,
            taken(self.whole, self.rows),
            None if own is None else own[self.rows],
            together=self.together,
        )
        return found, *several(found)

    def treatment(self, found: Mode, number: np.ndarray, lost: np.ndarray) -> Treatment:
        """Say how the search ended."""
        n = len(number)
        treatment = Treatment.none(n)._replace(
            engine=np.full(n, Engine.MIXTURE, dtype=object),
            search_steps=np.max(found.steps, axis=1),
            modes=number,
            gradients=np.sum(found.gradients, axis=1),
        )
        return treatment.noted(lost, UNCONVERGED)

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
        number = max(_DRAWS if self.together > 1 else _DRAWS // 2, 64 * self.marginal.dim)
        new, log_weight = self.staged(
            lambda batch, mixture, keys: stages.fitted(
                self.marginal, batch, mixture, Keys.of_chunk(keys), number
            ),
            which,
            mixture,
            self.keys(20 + turn, which, np.zeros(len(which), int)),
            together=1,  # it has draws enough, and one dataset is not filled up with itself
        )
        return new, importance_diagnostics(log_weight).efficiency

    def points(self, proposal: Proposal, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Choose how many proposals a group has; the variance of log weights with so many."""
        points, noise = np.ones(len(which), int), np.zeros(len(which))
        if self.marginal.exact:
            return points, noise
        left = np.arange(len(which))
        for number in _POINTS:
            some, blocks = at(proposal, left), np.zeros(len(left), int)
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
        self, proposal: Proposal, which: np.ndarray, points: np.ndarray, *, turn: int
    ) -> GroupDraws:
        """Make the draws of the datasets `which`, with so many proposals a group."""
        draws = self.asked.draws
        blocks = -(-draws // BLOCK)
        parts, places = [], []
        for number in np.unique(points):
            rows = np.flatnonzero(points == number)
            item, block = np.repeat(rows, blocks), np.tile(np.arange(blocks), len(rows))
            found = self.blocks(
                at(proposal, item), which[item], block, int(number), stage=40 + turn, turn=0
            )
            shaped = [v.reshape(len(rows), -1, *v.shape[2:])[:, :draws] for v in found]
            parts.append(GroupDraws(*shaped))
            places.append(rows)
        back = np.argsort(np.concatenate(places))
        return jax.tree.map(lambda *x: np.concatenate(x)[back], *parts)

    def blocks(
        self,
        proposal: Proposal,
        which: np.ndarray,
        block: np.ndarray,
        points: int,
        *,
        stage: int,
        turn: int,
    ) -> GroupDraws:
        """Make blocks of draws: one an item."""

        def made(batch: Batch, proposal: Any, keys: tuple, turn: np.ndarray) -> GroupDraws:
            given = (self.marginal, batch, proposal, Keys.of_chunk(keys), turn, points)
            if self.amortizer is not None:
                return stages.drawn_by_network(self.amortizer, *given)
            return stages.drawn(*given)

        turns = np.full(len(which), turn)
        return self.staged(made, which, proposal, self.keys(stage, which, block), turns)

    def named(self, draws: GroupDraws, treatment: Treatment, levels: Levels) -> Treatment:
        """Say which group's own weights have the heaviest tails, and warn of those too heavy."""
        n = len(self.rows)
        found = ByGroup(np.full(n, np.nan), *(np.full(n, "", dtype=object) for _ in range(2)))
        if not self.marginal.exact:
            assert treatment.group_points is not None
            seeds = [(self.asked.seed, int(p)) for p in self.position[self.rows]]
            z = chosen(np.asarray(draws.z), _judged(draws).log_weights, seeds, BLOCK)
            for number in np.unique(treatment.group_points):
                rows = np.flatnonzero(treatment.group_points == number)
                groups, log_w = self.staged(
                    lambda batch, z, keys, k=int(number): stages.group_weights(
                        self.marginal, batch, z, Keys.of_chunk(keys), k
                    ),
                    rows,
                    z[rows],
                    self.keys(60, rows, np.zeros(len(rows), int)),
                )
                told = by_group(
                    self.marginal.density.compiled, levels, self.rows[rows], groups, log_w
                )
                found = replaced(found, rows, told)
        warning = joined(treatment.warning, found.warning)
        return treatment._replace(group_khat=found.khat, worst_group=found.name, warning=warning)

    def apart(self, draws: GroupDraws) -> np.ndarray:
        """Positions of datasets of which groups that count as exact are not normal in a part."""
        weight = np.exp(_judged(draws).log_weights)
        return np.flatnonzero((weight * draws.apart).sum(axis=1) > _MANY * weight.sum(axis=1))

    def weak(self, draws: GroupDraws) -> np.ndarray:
        """Positions of datasets whose draws are poor."""
        judged = _judged(draws)
        bad = judged.khat > khat_threshold(max(self.asked.draws, 2))
        return np.flatnonzero(bad | (judged.efficiency < self.settings.efficiency))


def _judged(draws: GroupDraws) -> ImportanceDiagnostics:
    with np.errstate(invalid="ignore"):
        return importance_diagnostics(draws.log_p - draws.log_q)
