"""The online posterior: what is known after each batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr
from jax import Array
from scipy.special import logsumexp

from pmcl.compile.predictors import Predictors, predictors
from pmcl.data.possible import check_rows
from pmcl.data.task import DataError, Layout, TaskLike
from pmcl.online import step
from pmcl.online.arriving import one_dataset
from pmcl.online.drift import AbstractDrift, LearnedDrift, Restart
from pmcl.online.families import AnyNormal
from pmcl.online.families import predict as linear
from pmcl.online.families.anchor import Anchored
from pmcl.online.gaps import values_alone, with_gaps, without_filling
from pmcl.online.growing import grown
from pmcl.online.memory import ResidualMemory, Stored
from pmcl.online.records import look_at_first_rows
from pmcl.online.rows import Rows
from pmcl.online.state import Info, RowModel, State, as_batch, init, is_exact
from pmcl.online.step import recalled
from pmcl.online.stream import AbstractStream, separated
from pmcl.runtime.arguments import seed_of
from pmcl.runtime.jitting import jit
from pmcl.runtime.progress import progress_bar


@dataclass(frozen=True, eq=False)
class OnlinePosterior(AbstractStream):
    """Normal posterior of one PyMC model, kept up to date as batches of rows arrive.

    Made by :func:`pmcl.fit_online`. Immutable: `update` returns a new one.
    """

    def __repr__(self) -> str:
        how = "exact updates" if self.problem.gaussian else f"{self.settings.search!r}"
        local = self.problem.rows.local
        layers = 0 if local is None else local.layers
        return (
            f"OnlinePosterior of {[i.name for i in self.compiled.free]} "
            f"given rows of {[i.name for i in self.compiled.data]} along {self.row!r}\n"
            f"  {self.state.updates} updates with {sum(r.info.rows for r in self.records)} rows, "
            f"{len(self.state.memory)} of them stored: {self.settings.memory!r}\n"
            f"  drift: {self.settings.drift!r}; k-hat of the last update: {self._khat:.2f}\n"
            f"  {self.settings.family}; {how}; local reparametrisation of {layers} linear layers"
        )

    @property
    def memory(self) -> xr.Dataset:
        """The stored rows, with the batch and the time that each came with."""
        stored = self.state.memory
        values = without_filling(stored.data)
        found = {i.name: (i.dims, values[i.name]) for i in self.compiled.data if i.name in values}
        coords = {"batch": (self.row, stored.tasks), "time": (self.row, stored.times)}
        return xr.Dataset(found, coords=coords if len(stored) else None)

    def grow(self, model: pm.Model) -> "OnlinePosterior":  # noqa: D102 (inherited)
        return grown(self, model)

    def _after(
        self, data: dict[str, np.ndarray], now: float, label: str, key: Array, progressbar: bool
    ) -> tuple["OnlinePosterior", Info]:
        problem, first = self.problem, not self.state.updates
        if first:
            problem = separated(problem, data, key)
        n = problem.rows.length(data)
        arrived = Stored(data, np.full(n, now), np.full(n, label))
        if self.settings.method is None and (problem.gaussian or first):
            # A later batch may say what the first did not.
            problem = replace(problem, gaussian=is_exact(problem, arrived, key))
        searches = 0 if problem.gaussian else 1 if self._one_search() else 2
        if self.settings.family != "mean_field":
            searches = 0  # they are too short for a bar
        total = searches * self.settings.search.length(n, first=first)
        total *= 1 if first else len(self.settings.drift.ways(1.0))
        if searches and first:
            total += self.settings.start.length(n, self.settings.search)
        shown = progressbar and searches > 0
        with progress_bar(f"Update {label}", total, enabled=shown) as bar:
            state, info = self._likeliest(problem, arrived, key, bar.advance)
        known = state.predictive
        if not bool(jnp.isfinite(known.mean).all() & jnp.isfinite(known.log_volume)):
            raise FloatingPointError(
                f"Update {label!r}: the search ended where the mean or the precision of the normal "
                f"(family={self.settings.family!r}) is no number, so that nothing was learned of "
                "this batch. Look for values that the model cannot have made and for priors "
                "without an end; another family may get by."
            )
        again = state.seen < self.state.seen + n
        if state.anchors is not None and (self.state.whole or again) and not state.whole:
            look_at_first_rows(label, state.seen, int((~state.anchors.waiting).sum()))
        return replace(self, problem=problem, state=state), info

    def _likeliest(
        self,
        problem: RowModel,
        arrived: Stored,
        key: Array,
        advance: Callable[[int, str], None],
    ) -> tuple[State, Info]:
        """Update under all that may have happened since the last batch; keep what is likeliest."""
        state, settings = self.state, self.settings
        elapsed = float(arrived.times[0]) - state.time
        drift = settings.drift
        if not state.updates or (elapsed <= 0 and not state.branches):  # nothing can have happened
            still = settings._replace(drift=drift.settled(state.scores))
            return step.update(problem, state, arrived, still, key, advance)
        ways = drift.ways(elapsed)
        known = state.branches or (state.q,) * len(ways)
        shown = int(np.argmax(state.scores)) if state.branches else 0
        by_way: dict[int, tuple[State, Info]] = {}
        for i in sorted(range(len(ways)), key=lambda i: i != shown):
            begin = self._begun(problem, ways[i].drift, known[i])
            if by_way and isinstance(drift, LearnedDrift):
                # what is shown says where all are linearised
                begin = begin._replace(anchors=by_way[shown][0].anchors)
            still = settings._replace(drift=ways[i].drift)
            by_way[i] = step.update(problem, begin, arrived, still, key, advance)
        found = [by_way[i] for i in range(len(ways))]
        if len(ways) == 1:
            return found[0]
        evidence = told = np.array([i.log_evidence for _, i in found])
        if not np.isfinite(told).all():  # draws could not be weighed: the lower bound has to do
            if settings.memory is not None:
                raise ValueError(
                    f"update: {drift!r} with a memory compares densities of the batch, which are "
                    "too dear to look at here: expected smaller batches, a model with fewer "
                    "parameters, or no memory."
                )
            told = np.where(np.isfinite(told), told, [i.lower_bound for _, i in found])
        log_prior = np.array([w.log_prior for w in ways])
        scores, branches = told + log_prior, tuple[AnyNormal, ...]()
        foretold = float(logsumexp(evidence + log_prior))
        if isinstance(drift, LearnedDrift):
            before = np.asarray(state.scores or np.zeros(len(ways)))
            foretold = float(evidence[np.argmax(before)])  # by what was shown before the batch
            scores, branches = scores + drift.kept * before, tuple(s.q for s, _ in found)
        best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
        after, info = found[best]
        after = after._replace(scores=tuple((scores - scores[best]).tolist()), branches=branches)
        return after, info._replace(drift=best, log_evidence=foretold)

    def _begun(self, problem: RowModel, drift: AbstractDrift, q: AnyNormal) -> State:
        """Return what an update begins with under one of the things that may have happened."""
        state, settings = self.state, self.settings
        if isinstance(drift, Restart):
            nothing = init(problem, settings.family, getattr(settings.search, "rank", 0))
            return nothing._replace(time=state.time, updates=state.updates)
        return state._replace(q=q, predictive=q) if state.branches else state

    def _known(self, task: str | None, random_seed: int | None) -> AnyNormal:
        if task is None:
            return self.state.predictive
        mine = self.state.memory.tasks == task
        key = jax.random.key(seed_of(random_seed, self.seed))
        return recalled(self.problem, self.state, self.settings, mine, key)

    def log_predictive(
        self,
        test: TaskLike,
        *,
        draws: int = 500,
        time: float | None = None,
        task: str | None = None,
        random_seed: int | None = None,
    ) -> xr.DataArray:
        """Log predictive density of new rows: log mean_s p(row | z_s).

        Parameters
        ----------
        test : xarray.Dataset or mapping of arrays
            As for :meth:`update`.
        draws : int
        time, task
            As in :meth:`approximation`.
        random_seed : int, optional

        Returns
        -------
        xarray.DataArray
            Along the row dim (nats).
        """
        data = self._read(test)
        q, z = self._draw(draws, time, task, random_seed)
        rows = self.problem.rows
        n = rows.length(data)
        with self._scope():
            part = Stored(data, np.zeros(n), np.zeros(n, "U1"))
            batch = as_batch(rows, part, np.ones(n))
            if self._linearised:
                found = np.asarray(linear.log_predictive(self._told, rows, q, batch, z))[:n]
            else:
                found = np.asarray(_log_predictive(rows, z, batch.data), np.float64)[:n]
        return xr.DataArray(found, dims=[self.row], name="log_predictive", attrs={"units": "nats"})

    @property
    def _linearised(self) -> bool:
        """Whether predictions are those of a linearised network."""
        return self.state.anchors is not None

    @property
    def _told(self) -> Anchored:
        found, anchors = predictors(self.compiled), self.state.anchors
        assert isinstance(found, Predictors)
        assert anchors is not None
        return Anchored(found, anchors)

    def _simulated(
        self,
        q: AnyNormal,
        z: Array,
        values: dict[str, np.ndarray],
        lengths: dict[str, int],
        rng: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        if not self._linearised:
            return super()._simulated(q, z, values, lengths, rng)
        sizes = {i.name: [lengths.get(d, n) for d, n in zip(i.dims, i.shape, strict=True)]
                 for i in self.compiled.observed}  # fmt: skip
        empty = {i.name: np.zeros(sizes[i.name], i.dtype) for i in self.compiled.observed}
        given = {**values, **empty}
        with self._scope():
            return linear.drawn(self._told, self.problem.rows, q.mean, given, z, rng)

    def _one_search(self) -> bool:
        rule = self.settings.memory
        return rule is None or isinstance(rule, ResidualMemory)

    def _read(self, data: TaskLike) -> dict[str, np.ndarray]:
        task = one_dataset(data, Layout.of(self.compiled, self.row), self.row)
        rows = self.problem.rows
        if self.settings.memory is not None:
            shared = [i.name for i in self.compiled.data if rows.axis(i.name) is None]
            if shared:
                raise DataError(
                    f"Variable {shared[0]!r}: expected a value for each row along dim "
                    f"{rows.row!r}: rows of several batches are stored together. Give it that dim, "
                    "or leave `memory` out."
                )
        check_rows(self.compiled, task)
        values = with_gaps(self.compiled, task)
        memory = self.state.memory
        for name, stored in values_alone(memory.data).items() if len(memory) else ():
            axis = rows.axis(name) or 0
            before, now = (np.delete(v.shape, axis) for v in (stored, values[name]))
            if not np.array_equal(before, now):
                raise DataError(
                    f"Variable {name!r}: expected rows of shape {tuple(before)} as in the memory, "
                    f"got {tuple(now)}."
                )
        return values


@jit
def _log_predictive(rows: Rows, z: Array, data: Mapping[str, Array]) -> Array:
    terms = jax.lax.map(lambda one: rows(one, data), z)
    return jax.nn.logsumexp(terms, axis=0) - jnp.log(len(z))
