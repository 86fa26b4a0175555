"""Refinement of many datasets: alignment, local path gradient, choice, draws."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from pmcl import devices
from pmcl.batching import over_chunks
from pmcl.compile import Density
from pmcl.data import Batch, Task
from pmcl.metrics import (
    FEWEST_DRAWS,
    ImportanceDiagnostics,
    importance_diagnostics,
    khat_threshold,
)
from pmcl.networks import Amortizer, contexts
from pmcl.progress import progress_bar
from pmcl.refinement import stages
from pmcl.refinement.choice import Pilot, choose, mixture_log_q
from pmcl.refinement.groups import Proposals, distinct
from pmcl.refinement.stages import BLOCK, Drawn, Keys, Search

_TOGETHER = 4  # datasets, or parts of their draws, that a device works on together
_BYTES = 2**28  # about, for proposals
_JUDGED = 64  # datasets whose pilot draws are held at once
_FITTED = 4 * BLOCK  # draws that population Monte Carlo begins with
FEWEST_STARTS = 200  # draws that searches and covariances are made from


class Refine(eqx.Module):
    """Hyper-parameters of refinement.

    Attributes
    ----------
    steps : int
        Local path-gradient steps; 0: alignment alone.
    draws : int
        Draws of each step.
    rate : float
        Highest learning rate of the steps (Adam, cosine decay), relative to the posterior's scale.
    starts : int
        Draws that a search for modes starts from.
    search : int
        Most steps of a search.
    exact : int
        Largest number of parameters for which Newton steps use the exact Hessian; L-BFGS beyond.
    pilot : int
        Draws of every proposal by which they are judged.
    enough : float
        Estimated efficiency with which no further stage is tried; above 1: all always are.
    rounds : int
        Rounds of population Monte Carlo where local steps leave a poor efficiency; 0: none.
    components : int
        Components of its mixture.
    khat, efficiency : float
        With ``refine="auto"``: what an amortized posterior may have and be left alone. Population
        Monte Carlo is for draws below this efficiency, too.
    """

    steps: int = 100
    draws: int = 16
    rate: float = 0.03
    starts: int = 4
    search: int = 50
    exact: int = 100
    pilot: int = 100
    enough: float = 0.7
    rounds: int = 8
    components: int = 6
    khat: float = 0.5
    efficiency: float = 0.3


class Verdict(NamedTuple):
    """The choice for each dataset: engine, weights of the places, efficiency of each candidate."""

    engine: np.ndarray
    weights: np.ndarray
    efficiency: np.ndarray


class Refined(NamedTuple):
    """What refinement gives for every dataset.

    Attributes
    ----------
    drawn : Drawn
        Of NumPy arrays.
    engine : array of str
    local_steps, search_steps, modes, gradients : arrays of int
        Finite local steps, steps of the longest search, distinct modes, and gradients evaluated.
    note : array of str
        Why a stage was skipped, or its result not used.
    """

    drawn: Drawn
    engine: np.ndarray
    local_steps: np.ndarray
    search_steps: np.ndarray
    modes: np.ndarray
    gradients: np.ndarray
    note: np.ndarray


def refine_task(
    density: Density,
    amortizer: Amortizer | None,
    task: Task,
    start: np.ndarray,
    centre: np.ndarray,
    spread: np.ndarray,
    settings: Refine,
    *,
    draws: int,
    seed: int,
    which: Sequence[int] | np.ndarray | None = None,
    progressbar: bool = False,
) -> Refined:
    """Refine datasets of a task.

    Parameters
    ----------
    density : Density
    amortizer : Amortizer, optional
        The network; None: proposals are normals whose margins are bent.
    task : Task
    start : array of shape (dataset, draw, dim)
        Draws that searches start from; the network's own where there is one.
    centre, spread : arrays of shape (dim,)
        Mean and sd of the parameters under the prior, on the unconstrained scale.
    settings : Refine
    draws : int
    seed : int
        Each dataset's draws depend on the seed and its position alone.
    which : sequence of int, optional
        Positions of the datasets to refine; all by default.
    progressbar : bool

    Returns
    -------
    Refined
        Rows in the order of `which`.
    """
    chosen = np.arange(len(task)) if which is None else np.asarray(which, int)
    if not len(chosen):
        raise ValueError("which: expected at least one dataset, got none.")
    parts = []
    with progress_bar("Refining", len(chosen), enabled=progressbar) as bar:
        run = _Run(
            density,
            amortizer,
            task.batch(),
            task.first,
            start,
            centre,
            spread,
            settings,
            draws,
            seed,
            chosen,
        )
        for some in np.array_split(chosen, -(-len(chosen) // _most(density.compiled.dim))):
            parts.append(run._replace(part=some).all())
            bar.advance(len(some))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _most(dim: int) -> int:
    """Datasets whose proposals are held at once: some dozens of matrices each."""
    return int(np.clip(_BYTES // (400 * dim**2), 16, 256))


class _Run(NamedTuple):
    """Datasets that are refined together, and what they share.

    `part` are positions in the task, of which `first` is that of its first dataset in the whole.
    """

    density: Density
    amortizer: Amortizer | None
    whole: Batch
    first: int
    start: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    settings: Refine
    draws: int
    seed: int
    part: np.ndarray

    def staged(self, function: Callable[..., Any], rows: np.ndarray, *trees: Any) -> Any:
        """Call function(batch, *trees) on items of the datasets `rows`, in chunks of one size."""
        size = devices.together(_TOGETHER)
        return over_chunks(function, self.whole, self.part[rows], *trees, size=size)

    def keys(self, stage: int, rows: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, ...]:
        """What the random numbers of items follow from, in the order of `Keys`."""
        n = len(rows)
        position = self.first + self.part[rows]
        return np.full(n, self.seed), np.full(n, stage), position, block

    def all(self) -> Refined:
        """Align, judge the proposals, take local steps where they are not good enough, draw."""
        settings, dim, n = self.settings, self.density.compiled.dim, len(self.part)
        everyone = np.arange(n)
        search = Search(settings.starts, settings.search, 1e-4, dim <= settings.exact)
        found = self.staged(
            lambda batch, z: stages.align(self.density, batch, z, self.centre, self.spread, search),
            everyone,
            self.start[self.part][:, :FEWEST_STARTS],
        )
        order, number = distinct(found)
        result = Refined(
            Drawn(np.empty((n, self.draws, dim)), *(np.empty((n, self.draws)) for _ in range(3))),
            np.full(n, "amortized", dtype=object),
            np.zeros(n, int),
            found.mode.steps.max(axis=1),
            number,
            found.mode.gradients.sum(axis=1),
            np.full(n, "", dtype=object),
        )
        unconverged = ~found.mode.converged[everyone, order[:, 0]]
        result.note[unconverged] = "the search for the mode did not converge"
        context, start = None, self.start[self.part]
        if self.amortizer is not None:
            context = contexts(self.amortizer, self.whole, self.part)
        proposals = Proposals.of(
            jax.tree.map(lambda x: x[everyone[:, None], order], found.mode),
            number,
            context,
            start,
            settings.components if self.populates else 0,
        )
        choice = self.judge(proposals, everyone, stage=1)
        further = np.zeros(n, bool)
        if settings.steps:
            further = choice.efficiency.max(axis=1) < settings.enough
        skipped = "efficient without" if settings.steps else "steps=0"
        for i in everyone[~further]:
            result.note[i] = _join(result.note[i], f"local path gradient: {skipped}")
        if further.any():
            rows = np.flatnonzero(further)
            self.step(proposals, rows, result)
            again = self.judge(proposals, rows, stage=3)
            for old, new in zip(choice, again, strict=True):
                old[rows] = new
        self.draw(proposals, choice, everyone, result, stage=4)
        weak = self.weak(result)
        if len(weak):
            self.populate(proposals, weak, result)
        return result

    @property
    def populates(self) -> bool:
        """Whether a mixture is fitted where all else is poor; it has no chance where z is long."""
        return bool(self.settings.rounds) and self.density.compiled.dim <= self.settings.exact

    def propose(
        self,
        proposals: Proposals,
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
                self.density, self.amortizer, batch, proposals.at(row), used, which, _keys(keys)
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
        self, proposals: Proposals, rows: np.ndarray, stage: int, draws: int
    ) -> tuple[np.ndarray, Pilot]:
        """Make draws in equal numbers of every proposal that there is."""
        there = proposals.there[rows]
        turn = np.arange(draws)
        which = np.stack([np.flatnonzero(t)[turn % t.sum()] for t in there])
        z, log_q, log_prior, log_likelihood = self.propose(proposals, rows, there, which, stage)
        return z, Pilot(log_prior + log_likelihood, log_q, there)

    def judge(self, proposals: Proposals, rows: np.ndarray, *, stage: int) -> Verdict:
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

    def step(self, proposals: Proposals, rows: np.ndarray, result: Refined) -> None:
        """Take local steps from the normal at every mode."""
        settings, modes = self.settings, proposals.modes[rows]
        item = np.repeat(rows, modes)
        mode = np.concatenate([np.arange(m) for m in modes])
        old = proposals.pool.normal
        new, taken = self.staged(
            lambda batch, component, keys: stages.local(
                self.density,
                batch,
                component,
                _keys(keys),
                settings.steps,
                settings.draws,
                settings.rate,
            ),
            item,
            jax.tree.map(lambda x: x[item, mode], old),
            self.keys(2, item, mode),
        )
        for place, value in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
            place[item, settings.starts + mode] = value
        proposals.there[item, proposals.kinds.bent.start + mode] = True
        np.maximum.at(result.local_steps, item, taken)
        np.add.at(result.gradients, item, settings.steps * settings.draws)

    def weak(self, result: Refined) -> np.ndarray:
        """Positions of datasets whose draws are still poor, if a mixture may help."""
        if not self.populates:
            return np.arange(0)
        judged = judge(result.drawn)
        bad = judged.khat > khat_threshold(max(self.draws, 2))
        inefficient = judged.efficiency < self.settings.efficiency
        return np.flatnonzero((bad & (self.draws >= FEWEST_DRAWS)) | inefficient)

    def populate(self, proposals: Proposals, rows: np.ndarray, result: Refined) -> None:
        """Fit a mixture by population Monte Carlo, judge again, and draw; keep the better draws."""
        settings = self.settings
        z, pilot = self.pilot(proposals, rows, 5, _FITTED)
        weight = pilot.there / pilot.there.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            ratio = pilot.log_p - mixture_log_q(pilot.log_q, weight)
        found = self.staged(
            lambda batch, z, ratio, keys: stages.populate(
                self.density,
                batch,
                z,
                ratio,
                _keys(keys),
                settings.components,
                settings.rounds,
                settings.pilot * settings.components,
            ),
            rows,
            np.where(np.isfinite(z), z, 0.0),
            np.where(np.isfinite(ratio), ratio, -np.inf),
            self.keys(8, rows, np.zeros(len(rows), int)),
        )
        places = jax.tree.leaves(proposals.pool.student)
        for place, value in zip(places, jax.tree.leaves(found), strict=True):
            place[rows, settings.starts :] = value
        proposals.there[rows, proposals.kinds.population] = True
        before = Drawn(*(v[rows] for v in result.drawn))
        engine = result.engine[rows]
        choice = self.judge(proposals, rows, stage=6)
        self.draw(proposals, choice, rows, result, stage=7)
        old, new = judge(before), judge(Drawn(*(v[rows] for v in result.drawn)))
        worse = (new.efficiency < old.efficiency) & ~(new.khat < old.khat)
        for target, value in zip(result.drawn, before, strict=True):
            target[rows[worse]] = value[worse]
        result.engine[rows[worse]] = engine[worse]
        for i, bad in zip(rows, worse, strict=True):
            how = "population Monte Carlo" + (" did not help" if bad else "")
            result.note[i] = _join(result.note[i], how)

    def draw(
        self,
        proposals: Proposals,
        choice: Verdict,
        rows: np.ndarray,
        result: Refined,
        *,
        stage: int,
    ) -> None:
        """Draw from the chosen mixtures, in numbers as equal to the weights as can be."""
        which = np.zeros((len(rows), self.draws), int)
        for i, row in enumerate(rows):
            rng = np.random.default_rng([self.seed, stage, self.first + int(self.part[row])])
            which[i] = _shared_out(choice.weights[i], self.draws, rng)
        used = choice.weights > 0
        z, log_q, log_prior, log_likelihood = self.propose(proposals, rows, used, which, stage)
        values = (z, mixture_log_q(log_q, choice.weights), log_prior, log_likelihood)
        for target, value in zip(result.drawn, values, strict=True):
            target[rows] = value
        result.engine[rows] = choice.engine


def _keys(given: tuple) -> Keys:
    """Keys of a chunk, whose seed and stage are those of all."""
    seed, stage, position, block = given
    return Keys(seed[0], stage[0], position, block)


def _shared_out(weights: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Places of draws in random order, in numbers as equal to the weights as can be."""
    points = (np.arange(draws) + rng.random()) / draws
    total = np.cumsum(weights)
    place = np.searchsorted(total, points * total[-1] * (1 - 1e-12), side="right")
    return rng.permutation(np.minimum(place, len(weights) - 1))


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)


def judge(drawn: Drawn) -> ImportanceDiagnostics:
    """Importance diagnostics of draws."""
    return importance_diagnostics(drawn.log_prior + drawn.log_likelihood - drawn.log_q)


def poor(judged: ImportanceDiagnostics, settings: Refine, draws: int) -> np.ndarray:
    """Positions of datasets whose amortized posterior needs refinement (``refine="auto"``)."""
    limit = min(settings.khat, khat_threshold(max(draws, 2)))
    few = draws < FEWEST_DRAWS
    return np.flatnonzero(
        ((judged.khat > limit) & (not few)) | (judged.efficiency < settings.efficiency)
    )
