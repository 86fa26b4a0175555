"""Refinement of many datasets: alignment, local path gradient, choice, draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from pmcl.compile import Density
from pmcl.compile.size import say_parameters
from pmcl.data.batching import over_chunks, taken
from pmcl.data.task import Batch, Task
from pmcl.draws.drawn import Drawn, judge
from pmcl.metrics import FEWEST_DRAWS, ImportanceDiagnostics, khat_threshold
from pmcl.networks import Amortizer
from pmcl.networks.contexts import contexts
from pmcl.refinement import stages
from pmcl.refinement.choice import Pilot, Verdict, choose, mixture_log_q
from pmcl.refinement.groups import ProposalArrays
from pmcl.refinement.settings import Asked, Beginning, Refine
from pmcl.refinement.stages import BLOCK, Keys
from pmcl.refinement.standing import heavy
from pmcl.refinement.treatment import UNCONVERGED, Engine, Treatment, at, joined, replaced
from pmcl.refinement.wider import widened
from pmcl.runtime import devices
from pmcl.runtime.progress import progress_bar
from pmcl.search.many import searched, searched_everywhere, several
from pmcl.search.newton import Mode

_TOGETHER = 4  # datasets, or parts of their draws, that a device works on together
_BYTES = 2**28  # about, for proposals
_JUDGED = 64  # datasets whose pilot draws are held at once
_FITTED = 4 * BLOCK  # draws that population Monte Carlo begins with, and of its first rounds
_EACH = 400  # of a later round, for each component
_ENTRIES = 2**22  # of draws' covariances
_STARTS = 48  # searches of a dataset whose draws are poor
_MODES = 8  # most that are kept of them


def refine_task(
    density: Density,
    amortizer: Amortizer | None,
    task: Task,
    beginning: Beginning,
    asked: Asked,
    *,
    which: np.ndarray,
    further: bool = False,
    progressbar: bool = False,
) -> tuple[Drawn, Treatment]:
    """Refine datasets of a task.

    Parameters
    ----------
    density : Density
    amortizer : Amortizer, optional
        The network; None: proposals are normals whose margins are bent.
    task : Task
    beginning : Beginning
    asked : Asked
        Each dataset's draws depend on its seed and the dataset's position alone.
    which : array of int
        Positions of the datasets to refine.
    further : bool
        Whether to begin with more searches and a mixture, where one can be fitted.
    progressbar : bool

    Returns
    -------
    drawn : Drawn
        In the order of `which`.
    treatment : Treatment
    """
    say_parameters(density.compiled, int(task.counts.max()), "refine")
    parts = []
    with progress_bar("Refining", len(which), enabled=progressbar) as bar:
        for some in np.array_split(which, -(-len(which) // _most(density.compiled.dim))):
            run = _Run(density, amortizer, task.batch(), task.position, beginning, asked, some)
            parts.append(run._replace(further=int(further and run.populates)).all())
            bar.advance(len(some))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _most(dim: int) -> int:
    """Datasets whose proposals are held at once: some dozens of matrices each."""
    return int(np.clip(_BYTES // (400 * dim**2), 16, 256))


class _Run(NamedTuple):
    """Datasets that are refined together, and what they share.

    `part` are positions in the task, `position` those of its datasets in the whole. `further`:
    1 where draws were poor, for more searches and a mixture; 2 where they are poor still, for one
    that is fitted to many draws.
    """

    density: Density
    amortizer: Amortizer | None
    whole: Batch
    position: np.ndarray
    beginning: Beginning
    asked: Asked
    part: np.ndarray
    further: int = 0

    @property
    def settings(self) -> Refine:
        """Hyper-parameters."""
        assert self.asked.refine is not None
        return self.asked.refine

    def staged(
        self, function: Callable[..., Any], rows: np.ndarray, *trees: Any, together: int = _TOGETHER
    ) -> Any:
        """Call function(batch, *trees) on items of the datasets `rows`, in chunks of one size."""
        size = devices.together(together)
        return over_chunks(function, self.whole, self.part[rows], *trees, size=size)

    def keys(self, stage: int, rows: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, ...]:
        """What the random numbers of items follow from, in the order of `Keys`."""
        n = len(rows)
        position = self.position[self.part[rows]]
        return np.full(n, self.asked.seed), np.full(n, stage), position, block

    def all(self) -> tuple[Drawn, Treatment]:
        """Align, judge the proposals, take local steps where they are not good enough, draw.

        Where draws are poor, or wider ones move their moments, begin again with more of all.
        """
        everyone = np.arange(len(self.part))
        modes, number, unconverged, treatment = self.search()
        context = None
        if self.amortizer is not None:
            context = contexts(self.amortizer, self.whole, self.part)
        places = self.components[1] if self.further else 0
        proposals = ProposalArrays.of(modes, number, context, places)
        if self.further:
            choice = self.populate(proposals, everyone)
            treatment = treatment.noted(everyone, "population Monte Carlo")
        else:
            choice, treatment = self.stepped(proposals, treatment)
        drawn = self.draw(proposals, choice, everyone, stage=4)
        rests = unconverged & np.isin(choice.engine, (Engine.ALIGNED, Engine.REFINED))
        # under an improper prior that there is no mode may mean that there is no posterior
        nowhere = unconverged & bool(self.density.compiled.improper)
        warning = np.where(rests | nowhere, UNCONVERGED, "").astype(object)
        weak = self.weak(judge(drawn))
        again = self.populates and self.further < 2
        if self.beginning.search.exact:  # where z is long no wider draw has any weight
            rows = np.flatnonzero(~weak) if again else everyone
            drawn, choice, said, moved = widened(self, proposals, choice, drawn, rows)
            warning, weak = joined(warning, said), weak | moved
        treatment = treatment._replace(engine=choice.engine, warning=warning)
        rows = np.flatnonzero(weak)
        if not again or not len(rows):
            return drawn, treatment
        new, done = self._replace(part=self.part[rows], further=self.further + 1).all()
        gradients = done.gradients + treatment.gradients[rows]
        done = done._replace(gradients=gradients, steps=treatment.steps[rows])
        return self.better((drawn, treatment), rows, (new, done))

    def search(self) -> tuple[Mode, np.ndarray, np.ndarray, Treatment]:
        """Search for modes, from many more places where draws were poor; see :func:`several`."""
        start, search = self.beginning.start, self.beginning.search
        start = None if start is None else start[self.part]
        batch, n = taken(self.whole, self.part), len(self.part)
        found = searched_everywhere(search, batch, start)
        most = None
        if self.further:
            seeds = [(self.asked.seed, 8, int(p)) for p in self.position[self.part]]
            more = searched(search, batch, search.scattered(_STARTS, seeds))
            found = jax.tree.map(lambda *x: np.concatenate(x, axis=1), found, more)
            most = _MODES
        pooled = search.searches is not None
        modes, number, unconverged = several(found, alone=pooled, most=most)
        treatment = Treatment.none(n)._replace(
            search_steps=np.max(found.steps, axis=1),
            modes=number,
            gradients=np.sum(found.gradients, axis=1),
        )
        return modes, number, unconverged, treatment.noted(unconverged, UNCONVERGED)

    def stepped(self, proposals: ProposalArrays, treatment: Treatment) -> tuple[Verdict, Treatment]:
        """Choose proposals, after local steps where none is good enough."""
        settings, everyone = self.settings, np.arange(len(self.part))
        choice = self.judge(proposals, everyone, stage=1)
        further = np.zeros(len(everyone), bool)
        if settings.steps:
            further = choice.efficiency.max(axis=1) < settings.enough
        skipped = "efficient without" if settings.steps else "steps=0"
        treatment = treatment.noted(~further, f"local path gradient: {skipped}")
        if further.any():
            rows = np.flatnonzero(further)
            done = at(treatment, rows)
            gradients = done.gradients + settings.steps * settings.draws * proposals.modes[rows]
            done = done._replace(steps=self.step(proposals, rows), gradients=gradients)
            treatment = replaced(treatment, rows, done)
            choice = replaced(choice, rows, self.judge(proposals, rows, stage=3))
        return choice, treatment

    def better(
        self,
        old: tuple[Drawn, Treatment],
        rows: np.ndarray,
        new: tuple[Drawn, Treatment],
    ) -> tuple[Drawn, Treatment]:
        """Take what came of more searches and a mixture, unless it is poor, and poorer."""
        before, after = judge(at(old[0], rows)), judge(new[0])
        poor = after.khat > khat_threshold(max(self.asked.draws, 2))
        poor |= new[1].warning != ""
        worse = poor & (after.efficiency < before.efficiency) & ~(after.khat < before.khat)
        drawn, treatment = replaced(old, rows[~worse], at(new, ~worse))
        return drawn, treatment.noted(rows[worse], "population Monte Carlo did not help")

    @property
    def populates(self) -> bool:
        """Whether a mixture is fitted where all else is poor; it has no chance where z is long."""
        return bool(self.settings.rounds) and self.beginning.search.exact

    def propose(
        self,
        proposals: ProposalArrays,
        rows: np.ndarray,
        used: np.ndarray,
        which: np.ndarray,
        stage: int,
    ) -> tuple[np.ndarray, ...]:
        """Make draws of the places `which` (row, draw): z, log q by place, log prior, likelihood.

        `used` has shape (row, place).
        """
        n, draws = which.shape
        blocks = -(-draws // BLOCK)
        filled = which[:, np.minimum(np.arange(blocks * BLOCK), draws - 1)].reshape(-1, BLOCK)
        item, block = np.repeat(np.arange(n), blocks), np.tile(np.arange(blocks), n)
        z, log_q, log_prior, log_likelihood = self.staged(
            lambda batch, used, which, keys, row: stages.propose(
                self.density,
                self.amortizer,
                batch,
                proposals.at(row),
                used,
                which,
                Keys.of_chunk(keys),
            ),
            rows[item],
            used[item],
            filled,
            self.keys(stage, rows[item], block),
            rows[item],
        )
        log_q = np.moveaxis(log_q.reshape(n, blocks, -1, BLOCK), 1, 2)
        return (
            z.reshape(n, -1, z.shape[-1])[:, :draws],
            log_q.reshape(n, log_q.shape[1], -1)[:, :, :draws],
            log_prior.reshape(n, -1)[:, :draws],
            log_likelihood.reshape(n, -1)[:, :draws],
        )

    def pilot(
        self, proposals: ProposalArrays, rows: np.ndarray, stage: int, draws: int
    ) -> tuple[np.ndarray, Pilot]:
        """Make draws in equal numbers of every proposal that there is."""
        there = proposals.there[rows]
        turn = np.arange(draws)
        which = np.stack([np.flatnonzero(t)[turn % t.sum()] for t in there])
        z, log_q, log_prior, log_likelihood = self.propose(proposals, rows, there, which, stage)
        return z, Pilot(log_prior + log_likelihood, log_q, there)

    def judge(self, proposals: ProposalArrays, rows: np.ndarray, *, stage: int) -> Verdict:
        """Choose the proposal of every dataset by pilot draws, some datasets at a time."""
        names, members, prefer = proposals.candidates(rows)
        most = self.settings.pilot * proposals.there[rows].sum(axis=1)
        blocks = -(-most // BLOCK)
        verdict = Verdict(
            np.empty(len(rows), object),
            np.zeros((len(rows), members.shape[2])),
            np.zeros((len(rows), len(names))),
        )
        for number in np.unique(blocks):
            alike = np.flatnonzero(blocks == number)
            for some in np.array_split(alike, -(-len(alike) // _JUDGED)):
                _, pilot = self.pilot(proposals, rows[some], stage, int(number) * BLOCK)
                choice = choose(pilot, members[:, some], prefer)
                verdict.engine[some] = [names[i] for i in choice.which]
                verdict.weights[some] = choice.weights
                verdict.efficiency[some] = choice.efficiency
        return verdict

    def step(self, proposals: ProposalArrays, rows: np.ndarray) -> np.ndarray:
        """Take local steps from the normal at every mode; the most that were finite, by row."""
        settings, modes = self.settings, proposals.modes[rows]
        item = np.repeat(rows, modes)
        mode = np.concatenate([np.arange(m) for m in modes])
        old = proposals.pool.normal
        new, taken = self.staged(
            lambda batch, component, keys: stages.local(
                self.density,
                batch,
                component,
                Keys.of_chunk(keys),
                settings.steps,
                settings.draws,
                settings.rate,
            ),
            item,
            jax.tree.map(lambda x: x[item, mode], old),
            self.keys(2, item, mode),
        )
        for place, value in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
            place[item, proposals.kinds.bent.start - proposals.kinds.normal.start + mode] = value
        proposals.there[item, proposals.kinds.bent.start + mode] = True
        return np.maximum.reduceat(np.asarray(taken), np.cumsum(modes) - modes)

    def weak(self, judged: ImportanceDiagnostics) -> np.ndarray:
        """Whether draws of each dataset are poor; of a first mixture more is expected."""
        least = self.settings.enough if self.further == 1 else self.settings.efficiency
        return heavy(judged, self.asked.draws) | (judged.efficiency < least)

    @property
    def components(self) -> tuple[int, int]:
        """Of a first mixture, and of one with many draws: twice as many, if that leaves enough."""
        first = self.settings.components
        return first, max(first, min(2 * first, self.each_round // _EACH))

    @property
    def each_round(self) -> int:
        """Draws of a round of population Monte Carlo; fewer where z is long, and fits are dear."""
        most = _ENTRIES // self.density.compiled.dim**2
        return max(_FITTED, min(2 * _EACH * self.settings.components, most))

    def populate(self, proposals: ProposalArrays, rows: np.ndarray, *, stage: int = 5) -> Verdict:
        """Fit a mixture by population Monte Carlo, and judge again; three stages.

        At first with few draws a round, until these are efficient.
        """
        settings = self.settings
        first, components = self.components
        draws, enough = self.each_round, np.inf
        if self.further == 1:
            draws, enough, components = _FITTED, settings.enough, first
        z, pilot = self.pilot(proposals, rows, stage, _FITTED)
        weight = pilot.there / pilot.there.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            ratio = pilot.log_p - mixture_log_q(pilot.log_q, weight)
        found = self.staged(
            lambda batch, z, ratio, keys: stages.populate(
                self.density,
                batch,
                z,
                ratio,
                Keys.of_chunk(keys),
                components,
                settings.rounds,
                draws,
                np.asarray(enough),  # an array, for which nothing is compiled anew
            ),
            rows,
            np.where(np.isfinite(z), z, 0.0),
            np.where(np.isfinite(ratio), ratio, -np.inf),
            self.keys(stage + 1, rows, np.zeros(len(rows), int)),
            together=1,  # it has draws enough, and one dataset is not filled up with itself
        )
        places = proposals.put("population", rows, found)
        proposals.there[rows, places] = True
        return self.judge(proposals, rows, stage=stage + 2)

    def draw(
        self, proposals: ProposalArrays, choice: Verdict, rows: np.ndarray, *, stage: int
    ) -> Drawn:
        """Draw from the chosen mixtures, in numbers as equal to the weights as can be."""
        draws, seed = self.asked.draws, self.asked.seed
        which = np.zeros((len(rows), draws), int)
        for i, row in enumerate(rows):
            rng = np.random.default_rng([seed, stage, self.position[self.part[row]]])
            which[i] = _shared_out(choice.weights[i], draws, rng)
        used = choice.weights > 0
        z, log_q, log_prior, log_likelihood = self.propose(proposals, rows, used, which, stage)
        return Drawn(z, mixture_log_q(log_q, choice.weights), log_prior, log_likelihood)


def _shared_out(weights: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Places of draws in random order, in numbers as equal to the weights as can be."""
    points = (np.arange(draws) + rng.random()) / draws
    total = np.cumsum(weights)
    place = np.searchsorted(total, points * total[-1] * (1 - 1e-12), side="right")
    return rng.permutation(np.minimum(place, len(weights) - 1))


def poor(judged: ImportanceDiagnostics, settings: Refine, draws: int) -> np.ndarray:
    """Positions of datasets whose amortized posterior needs refinement (``refine="auto"``)."""
    limit = min(settings.khat, khat_threshold(max(draws, 2)))
    few = draws < FEWEST_DRAWS
    return np.flatnonzero(
        ((judged.khat > limit) & (not few)) | (judged.efficiency < settings.efficiency)
    )
