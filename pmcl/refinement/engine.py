"""Refinement of many datasets: alignment, local path gradient, choice, draws."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density
from pmcl.data import Batch, Task
from pmcl.metrics import FEWEST_DRAWS, importance_diagnostics, khat_threshold
from pmcl.networks import Amortizer
from pmcl.progress import progress_bar
from pmcl.refinement import stages
from pmcl.refinement.alignment import Mode
from pmcl.refinement.proposals import Pool, Student
from pmcl.refinement.stages import Drawn, Search

ENGINES = ("amortized", "aligned", "refined", "mixture")
_SIZES = (1, 4, 16, 64)  # datasets worked on together: so many compilations serve any number
FEWEST_STARTS = 200  # draws that searches and covariances are made from
_SAME_MODE = 1.0  # squared distance, in scales of the mode, below which two searches met
_NEGLIGIBLE = 10.0  # nats of evidence by which a mode may lie behind


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
        With ``refine="auto"``: what an amortized posterior may have and be left alone.
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
    whole = task.batch()
    parts: list[Refined] = []
    with progress_bar("Refining", len(chosen), unit="datasets", enabled=progressbar) as bar:
        for begin in range(0, len(chosen), _SIZES[-1]):
            part = chosen[begin : begin + _SIZES[-1]]
            chunk = _Chunk(
                density, amortizer, whole, start, centre, spread, settings, draws, seed, part
            )
            parts.append(chunk.run())
            bar.advance(len(part))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


class _Group(NamedTuple):
    """Datasets of a chunk that go through the same stages, with their proposals.

    Attributes
    ----------
    rows : array of int
        Positions in the chunk.
    pool : Pool
        Of the datasets of `_filled(rows)`.
    modes : int
    local : str or None
        Base of the proposals that took local steps: "network" or "normal".
    """

    rows: np.ndarray
    pool: Pool
    modes: int
    local: str | None

    def subset(self, which: np.ndarray) -> "_Group":
        """Some of the datasets, by position in `rows`."""
        pool = jax.tree.map(lambda x: x[_filled(which)], self.pool)
        return self._replace(rows=self.rows[which], pool=pool)


class _Verdict(NamedTuple):
    """The choice for each dataset of a group: arrays with a leading dataset, none to fill up."""

    engine: np.ndarray
    weights: np.ndarray
    names: list[str]
    efficiency: np.ndarray


class _Chunk(NamedTuple):
    """Datasets that are refined together, and what they share; `part` are positions in the task."""

    density: Density
    amortizer: Amortizer | None
    whole: Batch
    start: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    settings: Refine
    draws: int
    seed: int
    part: np.ndarray

    def batch(self, rows: np.ndarray) -> Batch:
        index = self.part[_filled(rows)]
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[index]), self.whole)

    def keys(self, rows: np.ndarray, stage: int) -> Array:
        key = jax.random.fold_in(jax.random.key(self.seed), stage)
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.asarray(self.part[_filled(rows)]))

    def run(self) -> Refined:
        """Align all, then go on with datasets of one mode and of several apart."""
        settings, dim, n = self.settings, self.density.compiled.dim, len(self.part)
        everyone = np.arange(n)
        search = Search(settings.starts, settings.search, 1e-4, dim <= settings.exact)
        begin = jnp.asarray(self.start[self.part[_filled(everyone)]][:, :FEWEST_STARTS])
        centre, spread = jnp.asarray(self.centre), jnp.asarray(self.spread)
        found = stages.align(self.density, self.batch(everyone), begin, centre, spread, search)
        found = jax.tree.map(lambda x: np.asarray(x)[:n], found)
        order, number = _distinct(found)
        result = Refined(
            Drawn(np.empty((n, self.draws, dim)), *(np.empty((n, self.draws)) for _ in range(3))),
            np.full(n, "amortized", dtype=object),
            np.zeros(n, int),
            found.steps.max(axis=1),
            number,
            found.gradients.sum(axis=1),
            np.full(n, "", dtype=object),
        )
        unconverged = ~np.take_along_axis(found.converged, order[:, :1], 1)[:, 0]
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
        at = jax.tree.map(lambda x: jnp.asarray(x[_filled(np.arange(len(rows)))]), modes)
        number = at.z.shape[1]
        network = None
        if self.amortizer is not None:
            z = jnp.asarray(self.start[self.part[_filled(rows)]])
            context = stages.contexts(self.amortizer, self.batch(rows))
            network = stages.whiten(self.amortizer, context, z, at)
        pool = Pool(network, stages.laplace(at), Student(at.z, at.scale))
        group = _Group(rows, pool, number, None)
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

    def refined(self, group: _Group, base: str, result: Refined) -> None:
        """Take local steps, judge again, and draw."""
        pool, settings = group.pool, self.settings
        network = base == "network"
        old = pool.network if network else pool.normal
        assert old is not None
        component = jax.tree.map(lambda x: x[:, 1:2], old) if network else old
        found, taken = stages.local(
            self.density,
            self.amortizer if network else None,
            self.batch(group.rows),
            component,
            self.keys(group.rows, 2),
            settings.steps,
            settings.draws,
            settings.rate,
        )
        new = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), old, found)
        pool = Pool(new if network else pool.network, pool.normal if network else new, pool.student)
        group = group._replace(pool=pool, local=base)
        rows = group.rows
        result.local_steps[rows] = np.asarray(taken).max(axis=1)[: len(rows)]
        result.gradients[rows] += settings.steps * settings.draws * component.shift.shape[1]
        self.draw(group, self.judge(group, stage=3), np.arange(len(rows)), result)

    def weak(self, rows: np.ndarray, result: Refined) -> np.ndarray:
        """Positions in `rows` of draws that are still poor, if a mixture may help."""
        # A mixture has no chance where z is long.
        if not self.settings.rounds or self.density.compiled.dim > self.settings.exact:
            return np.arange(0)
        judged = judge(Drawn(*(v[rows] for v in result.drawn)))
        bad = judged.khat > khat_threshold(max(self.draws, 2))
        return np.flatnonzero(
            (bad & (self.draws >= FEWEST_DRAWS)) | (judged.efficiency < self.settings.efficiency)
        )

    def populated(self, group: _Group, result: Refined) -> None:
        """Fit a mixture by population Monte Carlo, judge again, and draw; keep the better draws."""
        settings, rows, pool = self.settings, group.rows, group.pool
        found = stages.populate(
            self.density,
            self.amortizer,
            self.batch(rows),
            pool,
            self.keys(rows, 5),
            settings.components,
            settings.rounds,
            settings.pilot,
        )
        student = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), pool.student, found)
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

    def judge(self, group: _Group, *, stage: int) -> _Verdict:
        """Choose the proposal of every dataset of a group by pilot draws."""
        names, members, prefer = _candidates(group)
        found = stages.pilot(
            self.density,
            self.amortizer,
            self.batch(group.rows),
            group.pool,
            self.keys(group.rows, stage),
            jnp.asarray(members),
            jnp.asarray(prefer),
            self.settings.pilot,
        )
        which, weights, efficiency = (np.asarray(x)[: len(group.rows)] for x in found)
        engine = np.array([names[i] for i in which], dtype=object)
        return _Verdict(engine, weights, names, efficiency)

    def draw(self, group: _Group, verdict: _Verdict, which: np.ndarray, result: Refined) -> None:
        """Draw for some of a group: from one component where that is enough."""
        network, normal, _ = _sizes(group.pool)
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
            some, fill = group.subset(members), _filled(members)
            batch, keys = self.batch(some.rows), self.keys(some.rows, 4)
            if way == "mixture":
                found = stages.draw_mixture(
                    self.density,
                    self.amortizer,
                    batch,
                    some.pool,
                    jnp.asarray(weights[fill]),
                    keys,
                    self.draws,
                )
            else:
                stacked = some.pool.network if way == "network" else some.pool.normal
                index = alone[fill] - (0 if way == "network" else network)
                rows = np.arange(len(fill))
                component = jax.tree.map(lambda x, r=rows, i=index: x[r, i], stacked)
                base = self.amortizer if way == "network" else None
                found = stages.draw_one(self.density, base, batch, component, keys, self.draws)
            for target, value in zip(result.drawn, found, strict=True):
                target[some.rows] = np.asarray(value)[: len(members)]
            result.engine[some.rows] = verdict.engine[members]


def _filled(index: np.ndarray) -> np.ndarray:
    """Fill up with the first element to a size that is compiled for."""
    size = next((s for s in _SIZES if len(index) <= s), _SIZES[-1])
    return np.concatenate([index, np.full(size - len(index), index[0])])


def _distinct(found: Mode) -> tuple[np.ndarray, np.ndarray]:
    """Order searches by evidence; those that met another, or are negligible, repeat the first.

    Returns
    -------
    order : array of shape (dataset, start)
    number : array of shape (dataset,)
        Distinct modes.
    """
    n, m = found.log_p.shape
    log_det = np.asarray(jax.vmap(jax.vmap(lambda s: s.log_det()))(found.scale))
    evidence = np.where(np.isfinite(found.log_p), found.log_p + log_det, -np.inf)
    evidence = np.where(np.isnan(evidence), -np.inf, evidence)
    solve = jax.vmap(jax.vmap(lambda s, x: s.solve(x)))
    # Scaled differences of all pairs of one dataset: (dataset, from, to).
    apart = np.stack(
        [
            np.sum(np.asarray(solve(found.scale, found.z - found.z[:, j : j + 1])) ** 2, axis=-1)
            for j in range(m)
        ],
        axis=2,
    )
    order, number = np.zeros((n, m), int), np.zeros(n, int)
    for i in range(n):
        kept: list[int] = []
        for j in np.argsort(-evidence[i], kind="stable"):
            far = all(min(apart[i, j, k], apart[i, k, j]) > _SAME_MODE for k in kept)
            if not kept or (far and evidence[i, j] > evidence[i, kept[0]] - _NEGLIGIBLE):
                kept.append(int(j))
        order[i] = (kept + [kept[0]] * m)[:m]
        number[i] = len(kept)
    return order, number


def _sizes(pool: Pool) -> tuple[int, int, int]:
    """Return how many components there are of each kind, in arrays that have a leading dataset."""
    network, normal, student = (
        0 if part is None else part.shift.shape[1]
        for part in (pool.network, pool.normal, pool.student)
    )
    return network, normal, student


def _candidates(group: _Group) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Mixtures that may be chosen: their engines, members and preferences.

    Singles first, for their draws are cheaper; the mixture of all has to be better by a quarter.
    """
    network, normal, student = _sizes(group.pool)
    total, modes = network + normal + student, group.modes
    names: list[str] = []
    members: list[np.ndarray] = []

    def add(name: str, begin: int, end: int) -> None:
        names.append(name)
        members.append((np.arange(total) >= begin) & (np.arange(total) < end))

    if network:
        add("amortized", 0, 1)
        if modes == 1:
            add("aligned", 1, 2)
    add("aligned", network, network + modes)
    if group.local == "network":
        add("refined", 2, 3)
    elif group.local == "normal":
        add("refined", network + modes, network + 2 * modes)
    add("mixture", 0, total)
    return names, np.stack(members), np.where(np.array(names) == "mixture", 0.8, 1.0)


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)


class Judged(NamedTuple):
    """k-hat and efficiency of weighted draws, arrays of shape (dataset,)."""

    khat: np.ndarray
    efficiency: np.ndarray


def judge(drawn: Drawn) -> Judged:
    """Importance diagnostics of draws."""
    found = importance_diagnostics(drawn.log_prior + drawn.log_likelihood - drawn.log_q)
    return Judged(found.khat, found.efficiency)


def poor(judged: Judged, settings: Refine, draws: int) -> np.ndarray:
    """Positions of datasets whose amortized posterior needs refinement (``refine="auto"``)."""
    limit = min(settings.khat, khat_threshold(max(draws, 2)))
    few = draws < FEWEST_DRAWS
    return np.flatnonzero(
        ((judged.khat > limit) & (not few)) | (judged.efficiency < settings.efficiency)
    )
