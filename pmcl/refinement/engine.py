"""Refinement of many datasets: alignment, local path gradient, choice, draws."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pmcl import devices
from pmcl.compile import Density
from pmcl.data import Batch, Task
from pmcl.metrics import (
    FEWEST_DRAWS,
    ImportanceDiagnostics,
    importance_diagnostics,
    khat_threshold,
)
from pmcl.networks import Amortizer
from pmcl.progress import Bar, progress_bar
from pmcl.refinement import stages
from pmcl.refinement.alignment import Mode
from pmcl.refinement.groups import Group, Verdict, candidates, distinct, sizes
from pmcl.refinement.proposals import Pool, Student
from pmcl.refinement.stages import Drawn, Search

# Datasets that a device works on together: a few compilations of a stage serve any number.
_SIZES = (2, 16)
_SIZES_OF_ACCELERATORS = (2, 16, 512)
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
    with progress_bar("Refining", len(chosen), unit="datasets", enabled=progressbar) as bar:
        return _Run(
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
            bar,
        ).all()


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
    bar: Bar

    def staged[T](self, rows: np.ndarray, stage: int, function: Callable[..., T], *trees: Any) -> T:
        """Call function(batch, keys, *trees) on chunks of datasets, filled up to a few sizes.

        Leaves of `trees` have a leading dataset for each of `rows`; so has the result, in NumPy.
        """
        key = jax.random.fold_in(jax.random.key(self.seed), stage)
        parts = []
        size = _sizes()[-1]
        for begin in range(0, len(rows), size):
            which = np.arange(begin, min(begin + size, len(rows)))
            fill = _filled(which)
            index = self.part[rows[fill]]
            batch = jax.tree.map(lambda x, i=index: jnp.asarray(np.asarray(x)[i]), self.whole)
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.asarray(self.first + index))
            given = jax.tree.map(lambda x, f=fill: jnp.asarray(x[f]), trees)
            found = function(batch, keys, *given)
            n = len(which)
            parts.append(jax.tree.map(lambda x, n=n: devices.gathered(x)[:n], found))
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def all(self) -> Refined:
        """Align all, then go on with datasets of one mode and of several apart."""
        settings, dim, n = self.settings, self.density.compiled.dim, len(self.part)
        search = Search(settings.starts, settings.search, 1e-4, dim <= settings.exact)
        centre, spread = jnp.asarray(self.centre), jnp.asarray(self.spread)
        found = self.staged(
            np.arange(n),
            0,
            lambda batch, keys, z: stages.align(self.density, batch, z, centre, spread, search),
            self.start[self.part][:, :FEWEST_STARTS],
        )
        order, number = distinct(found)
        result = Refined(
            Drawn(np.empty((n, self.draws, dim)), *(np.empty((n, self.draws)) for _ in range(3))),
            np.full(n, "amortized", dtype=object),
            np.zeros(n, int),
            np.asarray(found.steps).max(axis=1),
            number,
            np.asarray(found.gradients).sum(axis=1),
            np.full(n, "", dtype=object),
        )
        unconverged = ~np.asarray(found.converged)[np.arange(n), order[:, 0]]
        result.note[unconverged] = "the search for the mode did not converge"
        for several in (False, True):
            rows = np.flatnonzero((number > 1) == several)
            if len(rows):
                which = order[rows, : settings.starts if several else 1]
                modes = jax.tree.map(lambda x, w=which, r=rows: x[r[:, None], w], found)
                self.aligned(rows, modes, result)
        return result

    def aligned(self, rows: np.ndarray, modes: Mode, result: Refined) -> None:
        """Judge the aligned proposals; take local steps where they are not good enough; draw."""
        number = modes.z.shape[1]
        network = None
        if self.amortizer is not None:
            amortizer = self.amortizer
            network = self.staged(
                rows,
                0,
                lambda batch, keys, z, modes: stages.whiten(
                    amortizer, stages.contexts(amortizer, batch), z, modes
                ),
                self.start[self.part[rows]],
                modes,
            )
        pool = Pool(network, stages.laplace(modes), Student(modes.z, modes.scale))
        group = Group(rows, pool, number, None)
        verdict = self.judge(group, stage=1)
        best = verdict.efficiency.max(axis=1)
        further = (best < self.settings.enough) & (self.settings.steps > 0)
        skipped = "efficient without" if self.settings.steps else "steps=0"
        for i in rows[~further]:
            result.note[i] = _join(result.note[i], f"local path gradient: {skipped}")
        self.draw(group, verdict, np.flatnonzero(~further), result)
        # The network's shape where it is the better one at the mode, a normal where it is not.
        by_network = np.zeros(len(rows), bool)
        if network is not None and number == 1:
            flow, normal = (i for i, n in enumerate(verdict.names) if n == "aligned")
            by_network = verdict.efficiency[:, flow] >= verdict.efficiency[:, normal]
        for base in ("network", "normal"):
            which = np.flatnonzero(further & (by_network == (base == "network")))
            if len(which):
                self.refined(group.subset(which), base, result)
        weak = self.weak(rows, result)
        if len(weak):
            self.populated(group.subset(weak), result)
        self.bar.advance(len(rows))

    def refined(self, group: Group, base: str, result: Refined) -> None:
        """Take local steps, judge again, and draw."""
        pool, settings, rows = group.pool, self.settings, group.rows
        network = base == "network"
        old = pool.network if network else pool.normal
        assert old is not None
        component = jax.tree.map(lambda x: x[:, 1:2], old) if network else old
        found, taken = self.staged(
            rows,
            2,
            lambda batch, keys, component: stages.local(
                self.density,
                self.amortizer if network else None,
                batch,
                component,
                keys,
                settings.steps,
                settings.draws,
                settings.rate,
            ),
            component,
        )
        new = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), old, found)
        pool = Pool(new if network else pool.network, pool.normal if network else new, pool.student)
        group = group._replace(pool=pool, local=base)
        result.local_steps[rows] = taken.max(axis=1)
        result.gradients[rows] += settings.steps * settings.draws * component.shift.shape[1]
        self.draw(group, self.judge(group, stage=3), np.arange(len(rows)), result)

    def weak(self, rows: np.ndarray, result: Refined) -> np.ndarray:
        """Positions in `rows` of draws that are still poor, if a mixture may help."""
        # A mixture has no chance where z is long.
        if not self.settings.rounds or self.density.compiled.dim > self.settings.exact:
            return np.arange(0)
        judged = judge(Drawn(*(v[rows] for v in result.drawn)))
        bad = judged.khat > khat_threshold(max(self.draws, 2))
        inefficient = judged.efficiency < self.settings.efficiency
        return np.flatnonzero((bad & (self.draws >= FEWEST_DRAWS)) | inefficient)

    def populated(self, group: Group, result: Refined) -> None:
        """Fit a mixture by population Monte Carlo, judge again, and draw; keep the better draws."""
        settings, rows, pool = self.settings, group.rows, group.pool
        found = self.staged(
            rows,
            5,
            lambda batch, keys, pool: stages.populate(
                self.density,
                self.amortizer,
                batch,
                pool,
                keys,
                settings.components,
                settings.rounds,
                settings.pilot,
            ),
            pool,
        )
        student = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), pool.student, found)
        group = group._replace(pool=Pool(pool.network, pool.normal, student))
        before = Drawn(*(v[rows] for v in result.drawn))
        engine = result.engine[rows]
        self.draw(group, self.judge(group, stage=6), np.arange(len(rows)), result)
        old, new = judge(before), judge(Drawn(*(v[rows] for v in result.drawn)))
        worse = (new.efficiency < old.efficiency) & ~(new.khat < old.khat)
        for target, value in zip(result.drawn, before, strict=True):
            target[rows[worse]] = value[worse]
        result.engine[rows[worse]] = engine[worse]
        for i, bad in zip(rows, worse, strict=True):
            how = "population Monte Carlo" + (" did not help" if bad else "")
            result.note[i] = _join(result.note[i], how)

    def judge(self, group: Group, *, stage: int) -> Verdict:
        """Choose the proposal of every dataset of a group by pilot draws."""
        names, members, prefer = candidates(group)
        which, weights, efficiency = self.staged(
            group.rows,
            stage,
            lambda batch, keys, pool: stages.pilot(
                self.density,
                self.amortizer,
                batch,
                pool,
                keys,
                jnp.asarray(members),
                jnp.asarray(prefer),
                self.settings.pilot,
            ),
            group.pool,
        )
        engine = np.array([names[i] for i in which], dtype=object)
        return Verdict(engine, np.asarray(weights), names, np.asarray(efficiency))

    def draw(self, group: Group, verdict: Verdict, which: np.ndarray, result: Refined) -> None:
        """Draw for some of a group: from one component where that is enough."""
        network, normal, _ = sizes(group.pool)
        weights = verdict.weights
        alone = np.where((weights > 0).sum(axis=1) == 1, weights.argmax(axis=1), -1)
        ways = {
            "network": (alone >= 0) & (alone < network),
            "normal": (alone >= network) & (alone < network + normal),
        }
        ways["mixture"] = ~(ways["network"] | ways["normal"])
        for way, there in ways.items():
            members = which[there[which]]
            if not len(members):
                continue
            some = group.subset(members)
            if way == "mixture":
                found = self.staged(
                    some.rows,
                    4,
                    lambda batch, keys, pool, weights: stages.draw_mixture(
                        self.density, self.amortizer, batch, pool, weights, keys, self.draws
                    ),
                    some.pool,
                    weights[members],
                )
            else:
                stacked = some.pool.network if way == "network" else some.pool.normal
                index = alone[members] - (0 if way == "network" else network)
                rows = np.arange(len(members))
                base = self.amortizer if way == "network" else None
                found = self.staged(
                    some.rows,
                    4,
                    lambda batch, keys, component, base=base: stages.draw_one(
                        self.density, base, batch, component, keys, self.draws
                    ),
                    jax.tree.map(lambda x, r=rows, i=index: x[r, i], stacked),
                )
            for target, value in zip(result.drawn, found, strict=True):
                target[some.rows] = value
            result.engine[some.rows] = verdict.engine[members]


def _sizes() -> list[int]:
    """Numbers of datasets that stages are compiled for."""
    each = _SIZES_OF_ACCELERATORS if devices.accelerated() else _SIZES
    return [size * devices.number() for size in each]


def _filled(index: np.ndarray) -> np.ndarray:
    """Fill up with the first element to a size that is compiled for."""
    sizes = _sizes()
    size = next((s for s in sizes if len(index) <= s), sizes[-1])
    return np.concatenate([index, np.full(size - len(index), index[0])])


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
