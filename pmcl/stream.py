"""The online posterior: what is known after each batch."""

import os
import time as clock
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel, jit, precision
from pmcl.compile.predictive import lengths_of, predict
from pmcl.compile.variables import VariableInfo
from pmcl.data import DataError, Layout, Task, TaskLike, as_task
from pmcl.online import inference
from pmcl.online.gaussian import MeanField
from pmcl.online.inference import Info, Problem, Settings, State
from pmcl.online.memory import ResidualMemory, Stored
from pmcl.online.rows import Rows, check_separate
from pmcl.posterior import positive, seed_of
from pmcl.prediction import covariates_of
from pmcl.progress import progress_bar
from pmcl.results import attributes, value_infos

_TRUSTED = 0.7  # k-hat

type Precision = Literal["double", "single"]


class UpdateRecord(NamedTuple):
    """One update.

    Attributes
    ----------
    name : str
        Of the batch.
    time : float
    info : Info
    seconds : float
    """

    name: str
    time: float
    info: Info
    seconds: float


@dataclass(frozen=True, eq=False)
class OnlinePosterior:
    """Mean-field posterior of one PyMC model, kept up to date as batches of rows arrive.

    Made by :func:`pmcl.fit_online`. Immutable: `update` returns a new one.

    Attributes
    ----------
    compiled : CompiledModel
    problem : Problem
        The model by rows, and the normal nearest to its prior.
    row : str
        The dim along which data arrive.
    settings : Settings
        Memory, drift, search, start, method, power and strength.
    precision : {"double", "single"}
    state : State
        The normal, and the stored rows beside it.
    records : tuple of UpdateRecord
        One entry an update; `history` shows them.
    """

    compiled: CompiledModel = field(repr=False)
    problem: Problem = field(repr=False)
    settings: Settings
    precision: Precision
    state: State = field(repr=False)
    seed: int
    records: tuple[UpdateRecord, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        how = "exact updates" if self.problem.gaussian else f"{self.settings.search!r}"
        local = self.problem.rows.local
        layers = 0 if local is None else local.layers
        return (
            f"OnlinePosterior of {[i.name for i in self.compiled.free]} "
            f"given rows of {[i.name for i in self.compiled.data]} along {self.row!r}\n"
            f"  {self.state.updates} updates with {self.state.seen} rows, "
            f"{len(self.state.memory)} of them stored: {self.settings.memory!r}\n"
            f"  drift: {self.settings.drift!r}; k-hat of the last update: {self._khat:.2f}\n"
            f"  {how}; local reparametrisation of {layers} linear layers"
        )

    @property
    def row(self) -> str:
        """The dim along which data arrive."""
        return self.problem.rows.row

    @property
    def memory(self) -> xr.Dataset:
        """The stored rows, with the batch and the time that each came with."""
        stored = self.state.memory
        found = {
            i.name: (i.dims, stored.data[i.name])
            for i in self.compiled.data
            if i.name in stored.data
        }
        coords = {"batch": (self.row, stored.tasks), "time": (self.row, stored.times)}
        return xr.Dataset(found, coords=coords if len(stored) else None)

    @property
    def history(self) -> xr.Dataset:
        """What happened, update by update: `Info`'s fields, and seconds."""
        fields = {
            name: ("update", np.asarray([getattr(r.info, name) for r in self.records]))
            for name in Info._fields
        }
        fields["time"] = ("update", np.asarray([r.time for r in self.records], float))
        fields["seconds"] = ("update", np.asarray([r.seconds for r in self.records], float))
        names = np.asarray([r.name for r in self.records], dtype=str)
        return xr.Dataset(fields, coords={"update": names})

    def update(
        self,
        batch: TaskLike,
        *,
        time: float | None = None,
        name: str | None = None,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> "OnlinePosterior":
        """Return the posterior after a batch of rows.

        Once the memory is full, a batch as long as one before runs without compiling anew.

        Parameters
        ----------
        batch : xarray.Dataset or mapping of arrays
            Every observed variable and covariate, with any number of rows.
        time : float, optional
            When the rows came, in the drift's units; one more than the last by default.
        name : str, optional
            Of the batch; its number by default. Stored rows remember it; batches of one name are
            one task.
        random_seed : int, optional
            Follows from the posterior's by default.
        progressbar : bool

        Returns
        -------
        OnlinePosterior

        Raises
        ------
        DataError
            Naming the variable that does not fit the model or has missing values.
        UnsupportedModelError
            At the first batch, where rows depend on one another.
        TypeError
            Where time is not a number.
        ValueError
            Where time runs backwards.

        Warns
        -----
        UserWarning
            Where most steps had a gradient that is not finite.
        """
        data = self._read(batch)
        updates = self.state.updates
        now = self._time(time)
        label = str(updates) if name is None else str(name)
        seed = seed_of(random_seed, (self.seed + 1 + updates) % 2**32)
        begin = clock.perf_counter()
        with self._scope():
            problem = self.problem
            key = jax.random.key(seed)
            if not updates:
                problem = _separated(problem, data, key)
            n = problem.rows.length(data)
            arrived = Stored(data, np.full(n, now), np.full(n, label))
            if self.settings.method is None and (problem.gaussian or not updates):
                # A later batch may say what the first did not.
                exact = inference.is_exact(problem, arrived, key)
                problem = replace(problem, gaussian=exact)
            searches = 0 if problem.gaussian else 1 if self._one_search() else 2
            total = searches * self.settings.search.length(n, first=not updates)
            if searches and not updates:
                total += self.settings.start.length(n, self.settings.search)
            shown = progressbar and searches > 0
            with progress_bar(f"Update {label}", total, enabled=shown) as bar:
                state, info = inference.update(
                    problem, self.state, arrived, self.settings, key, bar.advance
                )
        records = self._recorded(UpdateRecord(label, now, info, clock.perf_counter() - begin))
        return replace(self, problem=problem, state=state, records=records)

    def _recorded(self, record: UpdateRecord) -> tuple[UpdateRecord, ...]:
        """Records with one more; warns of an update that hardly learned."""
        info = record.info
        if info.skipped > info.steps / 2:
            warnings.warn(
                f"Update {record.name!r}: {info.skipped} of {info.steps} steps were left out, as a "
                "gradient was not finite: little of this batch was learned. Look for values that "
                "the model cannot have made, or pass a `start` nearer to what is possible.",
                stacklevel=3,
            )
        return (*self.records, record)

    def approximation(
        self, *, time: float | None = None, task: str | None = None, random_seed: int | None = None
    ) -> MeanField:
        """Return the normal of z that predictions are made with.

        Parameters
        ----------
        time : float, optional
            Later than the last batch: parameters have drifted since.
        task : str, optional
            Name of a batch: of the stored rows only its own are used, as in multi-head networks.
        random_seed : int, optional

        Raises
        ------
        TypeError
            Where time is not a number.
        ValueError
            Where time runs backwards, or where no batch had that name.
        """
        with self._scope():
            q = self.state.predictive
            if task is not None:
                tasks = self.state.memory.tasks
                if task not in {r.name for r in self.records}:
                    raise ValueError(
                        f"task: expected the name of a batch, one of "
                        f"{[r.name for r in self.records]}, got {task!r}."
                    )
                seed = seed_of(random_seed, self.seed)
                q = inference.recalled(
                    self.problem, self.state, self.settings, tasks == task, jax.random.key(seed)
                )
            elapsed = 0.0 if time is None else self._time(time) - self.state.time
            return inference.drifted(self.problem, self.settings.drift, q, elapsed)

    def sample(
        self,
        draws: int = 1000,
        *,
        time: float | None = None,
        task: str | None = None,
        random_seed: int | None = None,
    ) -> xr.DataTree:
        """Draw from the posterior.

        Parameters
        ----------
        draws : int
        time, task
            As in :meth:`approximation`.
        random_seed : int, optional

        Returns
        -------
        xarray.DataTree
            Groups `posterior` and `unconstrained_posterior` with dims chain (one: draws are
            independent) and draw, and `sample_stats` (`log_q`). Deterministics that depend on
            data are left out.

        Warns
        -----
        UserWarning
            Where the k-hat of the last update is above 0.7.
        """
        if self._khat > _TRUSTED:
            warnings.warn(
                "The normal with independent entries is far from what it approximates in the last "
                f"update (k-hat {self._khat:.2f}): do not trust its tails, nor what depends on "
                "several parameters together. Where all data are at hand, compare with NUTS.",
                stacklevel=2,
            )
        begin = clock.perf_counter()
        q, z = self._draw(draws, time, task, random_seed)
        with self._scope():
            names, values = _constrained(self.compiled, z)
            infos = {i.name: i for i in (*self.compiled.free, *self.compiled.deterministics)}
            log_q = np.asarray(q.log_density(z))
        found = {n: np.asarray(v, np.float64)[None] for n, v in zip(names, values, strict=True)}
        attrs = attributes("online", clock.perf_counter() - begin)
        dims = value_infos(self.compiled)
        flat = np.asarray(z, np.float64)[None]
        unconstrained = {
            v.name: (
                dims[v.name].dims,
                flat[..., v.start : v.start + v.size].reshape(1, draws, *v.shape),
            )
            for v in self.compiled.values
        }
        return xr.DataTree.from_dict(
            {
                "posterior": self._labelled({n: (infos[n].dims, v) for n, v in found.items()})
                .assign_attrs(attrs),
                "unconstrained_posterior": self._labelled(unconstrained),
                "sample_stats": self._labelled({"log_q": ((), log_q[None].astype(float))}),
            }
        )  # fmt: skip

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
        _, z = self._draw(draws, time, task, random_seed)
        rows = self.problem.rows
        n = rows.length(data)
        with self._scope():
            part = Stored(data, np.zeros(n), np.zeros(n, "U1"))
            batch = inference.as_batch(rows, part, np.ones(n))
            found = np.asarray(_log_predictive(rows, z, batch.data), np.float64)[:n]
        return xr.DataArray(found, dims=[self.row], name="log_predictive", attrs={"units": "nats"})

    def predict(
        self,
        new_covariates: xr.Dataset | Mapping[str, np.ndarray] | None = None,
        *,
        rows: int | None = None,
        draws: int = 1000,
        time: float | None = None,
        task: str | None = None,
        random_seed: int | None = None,
    ) -> xr.Dataset:
        """Draw observations of new rows from the posterior predictive distribution.

        Parameters
        ----------
        new_covariates : xarray.Dataset or mapping of arrays, optional
            Of the new rows.
        rows : int, optional
            Number of rows, where no covariate has their dim.
        draws : int
        time, task
            As in :meth:`approximation`.
        random_seed : int, optional

        Returns
        -------
        xarray.Dataset
            Observed variables with dims chain, draw and their own.

        Raises
        ------
        ValueError
            Naming the covariate, what was expected and what came.
        """
        values: dict[str, np.ndarray] = {}
        if self.compiled.covariates or new_covariates is not None:
            layout = Layout.of(self.compiled, self.row)
            one = Task(layout, {}, ("rows",), None)
            given = {} if new_covariates is None else new_covariates
            values = covariates_of(layout, given, one)[0]
        lengths = lengths_of(self.compiled, values)
        if rows is not None:
            by_row = [n for n in values if self.problem.rows.axis(n) is not None]
            if by_row and lengths[self.row] != rows:
                raise ValueError(
                    f"rows: expected {lengths[self.row]}, as {by_row[0]!r} has, got {rows}."
                )
            lengths[self.row] = positive("rows", rows)
        _, z = self._draw(draws, time, task, random_seed)
        rng = np.random.default_rng([seed_of(random_seed, self.seed), 1])
        drawn = predict(self.compiled, np.asarray(z, np.float64), values, lengths, rng=rng)
        infos = {i.name: i for i in self.compiled.observed}
        return self._labelled({n: (infos[n].dims, v[None]) for n, v in drawn.items()})

    def save(self, path: str | os.PathLike, *, include_memory: bool = True) -> None:
        """Write everything needed to go on to one file, which :func:`load` reads.

        Parameters
        ----------
        path : path
        include_memory : bool
            Stored rows are raw data. Without them nothing of them is known when the file is read.

        Raises
        ------
        StateError
            Naming what cannot be stored, such as a memory of the user's own.
        """
        from pmcl.stream_state import save

        save(self, path, include_memory=include_memory)

    def _scope(self) -> AbstractContextManager[None]:
        return scope_of(self.precision)

    @property
    def _khat(self) -> float:
        return self.records[-1].info.khat if self.records else np.nan

    def _draw(
        self, draws: int, time: float | None, task: str | None, random_seed: int | None
    ) -> tuple[MeanField, Array]:
        """Draw z, shape (draw, dim), for predictions; and say from what."""
        q = self.approximation(time=time, task=task, random_seed=random_seed)
        with self._scope():
            key = jax.random.key(seed_of(random_seed, self.seed))
            shape = (positive("draws", draws), *q.mean.shape)
            return q, q.at(jax.random.normal(key, shape, q.mean.dtype))

    def _one_search(self) -> bool:
        rule = self.settings.memory
        return rule is None or isinstance(rule, ResidualMemory)

    def _time(self, time: float | None) -> float:
        last, updates = self.state.time, self.state.updates
        if time is None:
            return last + 1.0 if updates else 0.0
        if np.ndim(time) or not np.issubdtype(np.asarray(time).dtype, np.number):
            raise TypeError(
                "time: expected a number in the drift's units, such as days since the first batch, "
                f"got {time!r}."
            )
        if not np.isfinite(time) or (updates and time < last):
            least = f" of at least {last} (the last batch's time)" if updates else ""
            raise ValueError(f"time: expected a finite number{least}, got {time}.")
        return float(time)

    def _one(self, data: TaskLike, layout: Layout) -> Task:
        """Read rows of the one dataset that a stream is."""
        task = as_task(data, layout)
        if len(task) != 1:
            raise DataError(
                f"data: expected rows along dim {self.row!r}, got {len(task)} datasets; a stream "
                "has one posterior. Put the datasets' rows one after another, or use "
                "`fit_amortized` for a posterior of each."
            )
        return task

    def _read(self, data: TaskLike) -> dict[str, np.ndarray]:
        task = self._one(data, Layout.of(self.compiled, self.row))
        for name, there in task.there.items():
            if not there.all():
                raise DataError(
                    f"Variable {name!r}: expected no missing values, got "
                    f"{int((~there).sum())} (NaN); leave their rows out."
                )
        rows = self.problem.rows
        if self.settings.memory is not None:
            shared = [i.name for i in self.compiled.data if rows.axis(i.name) is None]
            if shared:
                raise DataError(
                    f"Variable {shared[0]!r}: expected a value for each row along dim "
                    f"{rows.row!r}: rows of several batches are stored together. Give it that dim, "
                    "or leave `memory` out."
                )
        values = {k: v[0] for k, v in task.values.items()}
        for name, stored in self.state.memory.data.items():
            axis = rows.axis(name) or 0
            before, now = (np.delete(v.shape, axis) for v in (stored, values[name]))
            if not np.array_equal(before, now):
                raise DataError(
                    f"Variable {name!r}: expected rows of shape {tuple(before)} as in the memory, "
                    f"got {tuple(now)}."
                )
        return values

    def _labelled(self, values: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> xr.Dataset:
        found = {n: (("chain", "draw", *dims), v) for n, (dims, v) in values.items()}
        used = {d: n for dims, v in found.values() for d, n in zip(dims, v.shape, strict=True)}
        coords = {
            d: self.compiled.coords[d]
            for d, n in used.items()
            if d in self.compiled.coords and len(self.compiled.coords[d]) == n
        }
        coords |= {d: np.arange(used[d]) for d in ("chain", "draw")}
        return xr.Dataset(found, coords=coords)


@contextmanager
def scope_of(chosen: Precision) -> Iterator[None]:
    """Context in which an online posterior is computed."""
    with warnings.catch_warnings():
        # PyTensor asks for the model's own types, which JAX cuts where single precision is chosen.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        with precision.scope() if chosen == "double" else precision.network_scope():
            yield


def _separated(problem: Problem, data: Mapping[str, np.ndarray], key: Array) -> Problem:
    """Find out at the first batch what the model's graph does not say."""
    rows = problem.rows
    if not check_separate(rows, problem.prior, data, key) and rows.local is not None:
        rows = replace(rows, local=None)
    return replace(problem, rows=rows)


@jit
def _log_predictive(rows: Rows, z: Array, data: Mapping[str, Array]) -> Array:
    terms = jax.lax.map(lambda one: rows(one, data), z)
    return jax.nn.logsumexp(terms, axis=0) - jnp.log(len(z))


def _constrained(compiled: CompiledModel, z: Array) -> tuple[list[str], list[Array]]:
    """Free variables and deterministics that no data are needed for."""
    infos: tuple[VariableInfo, ...] = (*compiled.free, *compiled.deterministics)
    call, positions = compiled.constrain_alone
    names = [infos[i].name for i in positions]
    return names, list(_map_z(compiled, call, z))


@jit
def _map_z(compiled: CompiledModel, call: object, z: Array) -> tuple[Array, ...]:
    return jax.vmap(lambda one: call(*compiled.split(one)))(z)  # type: ignore[operator]
