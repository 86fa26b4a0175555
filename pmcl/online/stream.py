"""What posteriors of arriving rows have in common: time, records, draws."""

import time as clock
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Self

import jax
import numpy as np
import pymc as pm
import xarray as xr
from jax import Array

from pmcl.compile import CompiledModel
from pmcl.compile.predictive import lengths_of, predict
from pmcl.data.task import Layout, Task, TaskLike
from pmcl.draws.prediction import covariates_of
from pmcl.online.arriving import alone, time_after
from pmcl.online.draws import labelled, tree_of
from pmcl.online.families import AnyNormal
from pmcl.online.records import UpdateRecord, history_of, recorded
from pmcl.online.rows import check_separate
from pmcl.online.state import Info, RowModel, Settings, State, drifted
from pmcl.runtime.arguments import positive, seed_of, warn
from pmcl.runtime.precision import Precision, scope_of

TRUSTED = 0.7  # k-hat
_LOST = 1.0  # k-hat, at which an update tells nothing of where the next begins


@dataclass(frozen=True, eq=False)
class AbstractStream(ABC):
    """A normal posterior that is kept up to date as batches of rows arrive.

    Attributes
    ----------
    compiled : CompiledModel
    problem : RowModel
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
    problem: RowModel = field(repr=False)
    settings: Settings
    precision: Precision
    state: State = field(repr=False)
    seed: int
    records: tuple[UpdateRecord, ...] = field(default=(), repr=False)

    @property
    def row(self) -> str:
        """The dim along which data arrive."""
        return self.problem.rows.row

    @property
    def history(self) -> xr.Dataset:
        """What happened, update by update: `Info`'s fields, and seconds."""
        return history_of(self.records)

    def update(
        self,
        batch: TaskLike,
        *,
        time: float | None = None,
        name: str | None = None,
        model: pm.Model | None = None,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> Self:
        """Return the posterior after a batch of rows.

        Once the memory is full, a batch as long as one before runs without compiling anew.

        Parameters
        ----------
        batch : xarray.Dataset or mapping of arrays
            Every observed variable and covariate, with any number of rows; no local variables.
            Values of the observed variables may be missing (NaN).
        time : float, optional
            When the rows came, in the drift's units; one more than the last by default.
        name : str, optional
            Of the batch; its number by default. Stored rows remember it; batches of one name are
            one task.
        model : pymc.Model, optional
            The model with more entries, from this batch on; see :meth:`grow`.
        random_seed : int, optional
            Follows from the posterior's by default.
        progressbar : bool

        Returns
        -------
        OnlinePosterior or LatentPosterior

        Raises
        ------
        DataError
            Naming the variable that does not fit the model, or of values that have one likelihood
            together lacks some.
        UnsupportedModelError
            At the first batch, where rows depend on one another.
        TypeError
            Where time is not a number.
        FloatingPointError
            Where a normal with covariances was searched for, and what was found is no number.
        ValueError
            Where time runs backwards.

        Warns
        -----
        UserWarning
            Where most steps had a gradient that is not finite, a search ended before it arrived,
            few rows place a network with covariances, a full normal is far from what rows that are
            gone made known, or an encoder does not see how far out many rows lie.
        """
        if model is not None:
            grown = self.grow(model)
            return grown.update(
                batch, time=time, name=name, random_seed=random_seed, progressbar=progressbar
            )
        data = self._read(batch)
        updates = self.state.updates
        now = self._time(time)
        label = str(updates) if name is None else str(name)
        seed = seed_of(random_seed, (self.seed + 1 + updates) % 2**32)
        begin = clock.perf_counter()
        with self._scope():
            after, info = self._after(data, now, label, jax.random.key(seed), progressbar)
            enough = self.problem.enough
        record = UpdateRecord(label, now, info, clock.perf_counter() - begin)
        return replace(after, records=recorded(self.records, record, self.compiled.dim, enough))

    def grow(self, model: pm.Model) -> Self:
        """Return the same knowledge as that of a model with more entries.

        Entries are matched by the names of variables and, along dims with coords, by labels. What
        is known of old entries stays bit for bit; new ones are as in the prior given what is known
        of the others.

        Parameters
        ----------
        model : pymc.Model
            With all variables and labels that there were, under the priors that they had, and more:
            new levels of a factor, new predictors, new heads, new variables.

        Returns
        -------
        OnlinePosterior

        Raises
        ------
        UnsupportedModelError
            If the model cannot be compiled.
        ValueError
            Naming the variable or dim that is missing or has another prior, or what stored rows
            lack.
        """
        raise ValueError(
            f"model: a {type(self).__name__} keeps the model that it began with; start a new one."
        )

    @abstractmethod
    def _after(
        self, data: dict[str, np.ndarray], now: float, label: str, key: Array, progressbar: bool
    ) -> tuple[Self, Info]:
        """Return what is known after a batch, less the record of it."""

    @abstractmethod
    def _read(self, data: TaskLike) -> dict[str, np.ndarray]:
        """Read rows, and refuse what the model cannot take."""

    @abstractmethod
    def log_predictive(self, test: TaskLike) -> xr.DataArray:
        """Log predictive density of new rows."""

    def approximation(
        self, *, time: float | None = None, task: str | None = None, random_seed: int | None = None
    ) -> AnyNormal:
        """Return the normal of z that predictions are made with.

        Parameters
        ----------
        time : float, optional
            Later than the last batch: parameters have drifted since.
        task : str, optional
            Name of a batch: of the stored rows only its own are used, as in multi-head networks.
            With local variables the parameters are those of all batches.
        random_seed : int, optional

        Raises
        ------
        TypeError
            Where time is not a number.
        ValueError
            Where time runs backwards, or where no batch had that name.
        """
        names = [r.name for r in self.records]
        if task is not None and task not in names:
            raise ValueError(f"task: expected the name of a batch, one of {names}, got {task!r}.")
        with self._scope():
            q = self._known(task, random_seed)
            elapsed = 0.0 if time is None else self._time(time) - self.state.time
            elapsed = elapsed if self.state.updates else 0.0  # the prior is that of the first batch
            drift = self.settings.drift.settled(self.state.scores)
            return drifted(self.problem, drift, q, elapsed)

    def _known(self, task: str | None, random_seed: int | None) -> AnyNormal:
        """Return the normal at the time of the last batch."""
        return self.state.predictive

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
            Where the k-hat of the last update is above 0.7, or one before it was above 1.
        """
        warn_of(self._khat, [r.info.khat for r in self.records[:-1]])
        begin = clock.perf_counter()
        q, z = self._draw(draws, time, task, random_seed)
        with self._scope():
            return tree_of(self.compiled, z, q.log_density(z), begin)

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
            given = {} if new_covariates is None else alone(new_covariates, layout)
            values = covariates_of(layout, given, one)[0]
        lengths = lengths_of(self.compiled, values)
        if rows is not None:
            by_row = [n for n in values if self.problem.rows.axis(n) is not None]
            if by_row and lengths[self.row] != rows:
                raise ValueError(
                    f"rows: expected {lengths[self.row]}, as {by_row[0]!r} has, got {rows}."
                )
            lengths[self.row] = positive("rows", rows)
        q, z = self._draw(draws, time, task, random_seed)
        rng = np.random.default_rng([seed_of(random_seed, self.seed), 1])
        drawn = self._simulated(q, z, values, lengths, rng)
        infos = {i.name: i for i in self.compiled.observed}
        return labelled(self.compiled, {n: (infos[n].dims, v[None]) for n, v in drawn.items()})

    def _simulated(
        self,
        q: AnyNormal,
        z: Array,
        values: dict[str, np.ndarray],
        lengths: dict[str, int],
        rng: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Draw observations at draws of z, shape (draw, ...)."""
        return predict(self.compiled, np.asarray(z, np.float64), values, lengths, rng=rng)

    def _scope(self) -> AbstractContextManager[None]:
        return scope_of(self.precision)

    @property
    def _khat(self) -> float:
        return self.records[-1].info.khat if self.records else np.nan

    def _draw(
        self, draws: int, time: float | None, task: str | None, random_seed: int | None
    ) -> tuple[AnyNormal, Array]:
        """Draw z, shape (draw, dim), for predictions; and say from what."""
        q = self.approximation(time=time, task=task, random_seed=random_seed)
        with self._scope():
            key = jax.random.key(seed_of(random_seed, self.seed))
            shape = (positive("draws", draws), *q.mean.shape)
            return q, q.at(jax.random.normal(key, shape, q.mean.dtype))

    def _time(self, time: float | None) -> float:
        return time_after(time, self.state.time, self.state.updates)


def warn_of(khat: float, before: Sequence[float] = ()) -> None:
    """Warn where the normal that is followed is, or was, far from what it approximates."""
    lost = np.flatnonzero(np.asarray(before) > _LOST)
    if khat > TRUSTED:
        where, worst = "is far from what it approximates in the last update", khat
    elif len(lost):
        worst = before[lost[0]]
        where = f"was far from what it approximated in update {lost[0]}, which all later rest on"
    else:
        return
    warn(
        f"The normal that is followed {where} (k-hat {worst:.2f}): do not trust its tails, nor "
        "what depends on several parameters together. Where all data are at hand, compare with "
        "NUTS."
    )


def separated(problem: RowModel, data: Mapping[str, np.ndarray], key: Array) -> RowModel:
    """Find out at the first batch what the model's graph does not say."""
    rows = problem.rows
    if not check_separate(rows, problem.prior, data, key) and rows.local is not None:
        rows = replace(rows, local=None)
    return replace(problem, rows=rows)
