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
from pmcl.refinement.choice import Choice
from pmcl.refinement.proposals import Component, Pool, Student
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
            chunk = _Chunk(density, amortizer, whole, start, centre, spread, settings, draws, seed)
            parts.append(chunk.run(part))
            bar.advance(len(part))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


class _Chunk(NamedTuple):
    """What all datasets of a call share."""

    density: Density
    amortizer: Amortizer | None
    whole: Batch
    start: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    settings: Refine
    draws: int
    seed: int

    def batch(self, index: np.ndarray) -> Batch:
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[index]), self.whole)

    def keys(self, index: np.ndarray, stage: int) -> Array:
        key = jax.random.fold_in(jax.random.key(self.seed), stage)
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.asarray(index))

    def run(self, part: np.ndarray) -> Refined:
        """Align all, then go on with datasets of one mode and of several apart."""
        settings, dim = self.settings, self.density.compiled.dim
        filled = _filled(part)
        search = Search(settings.starts, settings.search, 1e-4, dim <= settings.exact)
        begin = jnp.asarray(self.start[filled][:, :FEWEST_STARTS])
        centre, spread = jnp.asarray(self.centre), jnp.asarray(self.spread)
        found = stages.align(self.density, self.batch(filled), begin, centre, spread, search)
        found = jax.tree.map(np.asarray, found)
        order, number = _distinct(found)
        n = len(part)
        result = Refined(
            Drawn(np.empty((n, self.draws, dim)), *(np.empty((n, self.draws)) for _ in range(3))),
            np.full(n, "amortized", dtype=object),
            np.zeros(n, int),
            found.steps.max(axis=1)[:n],
            number[:n],
            found.gradients.sum(axis=1)[:n],
            np.full(n, "", dtype=object),
        )
        unconverged = ~np.take_along_axis(found.converged, order[:, :1], 1)[:n, 0]
        result.note[unconverged] = "the search for the mode did not converge"
        for several in (False, True):
            group = np.flatnonzero((number[:n] > 1) == several)
            if len(group):
                picked = order[:, : settings.starts if several else 1]
                modes = jax.tree.map(
                    lambda x, p=picked: np.take_along_axis(
                        x, p.reshape(*p.shape, *[1] * (x.ndim - 2)), 1
                    ),
                    found,
                )
                self._proposals(part, group, modes, result)
        return result

    def _proposals(self, part: np.ndarray, group: np.ndarray, modes: Mode, result: Refined) -> None:
        """Judge the aligned proposals; refine what is not good enough; draw."""
        fill = _filled(group)
        index = part[fill]
        batch = self.batch(index)
        at = jax.tree.map(lambda x: jnp.asarray(x[fill]), modes)
        network = None
        if self.amortizer is not None:
            z = jnp.asarray(self.start[index])
            context = stages.contexts(self.amortizer, batch)
            network = stages.whiten(self.amortizer, context, z, at)
        pool = Pool(network, stages.laplace(at), Student(at.z, at.scale))
        names, members, prefer = _candidates(pool, local=None)
        choice = self._pilot(index, batch, pool, members, prefer, stage=1)
        engine = np.array([names[i] for i in np.asarray(choice.which)], dtype=object)
        best = np.asarray(choice.efficiency).max(axis=1)
        better = np.flatnonzero(best[: len(group)] < self.settings.enough)
        if self.settings.steps == 0:
            better = better[:0]
        done = np.setdiff1d(np.arange(len(group)), better)
        skipped = "efficient without local steps" if self.settings.steps else "steps=0"
        for i in group[done]:
            result.note[i] = _join(result.note[i], f"local path gradient: {skipped}")
        self._draw(part, group, done, pool, np.asarray(choice.weights), engine, result)
        # The network's shape where it is the better one at the mode, a normal where it is not.
        efficiency = np.asarray(choice.efficiency)
        single = at.z.shape[1] == 1 and network is not None
        flow = efficiency[:, names.index("aligned")] if single else np.zeros(len(fill))
        normal = efficiency[:, _laplace(names, pool)]
        by_flow = (flow >= normal) if single else np.zeros(len(fill), bool)
        for shaped in (True, False):
            subset = better[by_flow[better] == shaped]
            if len(subset):
                self._local(part, group, subset, pool, shaped, result)

    def _pilot(
        self,
        index: np.ndarray,
        batch: Batch,
        pool: Pool,
        members: np.ndarray,
        prefer: np.ndarray,
        *,
        stage: int,
    ) -> Choice:
        keys = self.keys(index, stage)
        n = self.settings.pilot
        return stages.pilot(
            self.density,
            self.amortizer,
            batch,
            pool,
            keys,
            jnp.asarray(members),
            jnp.asarray(prefer),
            n,
        )

    def _local(
        self,
        part: np.ndarray,
        group: np.ndarray,
        subset: np.ndarray,
        pool: Pool,
        shaped: bool,
        result: Refined,
    ) -> None:
        """Take local steps on some datasets of a group, judge again, and draw."""
        fill = _filled(subset)
        index = part[group[fill]]
        batch = self.batch(index)
        pool = jax.tree.map(lambda x: x[fill], pool)
        settings = self.settings
        if shaped:
            assert pool.network is not None
            component = jax.tree.map(lambda x: x[:, 1:2], pool.network)
        else:
            assert pool.normal is not None
            component = pool.normal
        base = self.amortizer if shaped else None
        found, taken = stages.local(
            self.density,
            base,
            batch,
            component,
            self.keys(index, 2),
            settings.steps,
            settings.draws,
            settings.rate,
        )
        joined = jax.tree.map(
            lambda a, b: jnp.concatenate([a, b], axis=1),
            pool.network if shaped else pool.normal,
            found,
        )
        pool = Pool(
            joined if shaped else pool.network, pool.normal if shaped else joined, pool.student
        )
        names, members, prefer = _candidates(pool, local="network" if shaped else "normal")
        choice = self._pilot(index, batch, pool, members, prefer, stage=3)
        engine = np.array([names[i] for i in np.asarray(choice.which)], dtype=object)
        at = group[subset]
        result.local_steps[at] = np.asarray(taken).max(axis=1)[: len(subset)]
        result.gradients[at] += settings.steps * settings.draws * component.shift.shape[1]
        weights = np.asarray(choice.weights)
        self._draw(part, at, np.arange(len(subset)), pool, weights, engine, result)

    def _draw(
        self,
        part: np.ndarray,
        group: np.ndarray,
        subset: np.ndarray,
        pool: Pool,
        weights: np.ndarray,
        engine: np.ndarray,
        result: Refined,
    ) -> None:
        """Draw for the members `subset` of a group: by one component where one is enough."""
        network, normal, _ = (0 if p is None else p.shift.shape[1] for p in _parts(pool))
        alone = np.where((weights > 0).sum(axis=1) == 1, weights.argmax(axis=1), -1)
        ways = {
            "network": (alone >= 0) & (alone < network),
            "normal": (alone >= network) & (alone < network + normal),
        }
        ways["mixture"] = ~(ways["network"] | ways["normal"])
        for way, there in ways.items():
            members = subset[there[subset]]
            if not len(members):
                continue
            fill = _filled(members)
            index = part[group[fill]]
            batch, keys = self.batch(index), self.keys(index, 4)
            if way == "mixture":
                found = stages.draw_mixture(
                    self.density,
                    self.amortizer,
                    batch,
                    jax.tree.map(lambda x, f=fill: x[f], pool),
                    jnp.asarray(weights[fill]),
                    keys,
                    self.draws,
                )
            else:
                stacked = pool.network if way == "network" else pool.normal
                which = alone[fill] - (0 if way == "network" else network)
                component = jax.tree.map(lambda x, f=fill, w=which: x[f, w], stacked)
                base = self.amortizer if way == "network" else None
                found = stages.draw_one(self.density, base, batch, component, keys, self.draws)
            for target, value in zip(result.drawn, found, strict=True):
                target[group[members]] = np.asarray(value)[: len(members)]
            result.engine[group[members]] = engine[members]


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


def _parts(pool: Pool) -> tuple[Component | None, Component | None, Student | None]:
    return pool.network, pool.normal, pool.student


def _candidates(pool: Pool, *, local: str | None) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Mixtures that may be chosen: their engines, members and preferences.

    Singles first, for their draws are cheaper; the mixture of all has to be better by a quarter.
    """
    network, normal, student = (0 if p is None else p.shift.shape[1] for p in _parts(pool))
    modes = student
    total = network + normal + student
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
    if local == "network":
        add("refined", 2, 3)
    elif local == "normal":
        add("refined", network + modes, network + 2 * modes)
    add("mixture", 0, total)
    return names, np.stack(members), np.where(np.array(names) == "mixture", 0.8, 1.0)


def _laplace(names: list[str], pool: Pool) -> int:
    """Position of the candidate made of normals at the modes: the last that is called aligned."""
    del pool
    return max(i for i, n in enumerate(names) if n == "aligned")


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
