"""The online posterior of a model whose rows have local variables of their own."""

import time as clock
import warnings
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from pmcl.data import DataError, Layout, TaskLike
from pmcl.metrics.importance import importance_diagnostics
from pmcl.online import latent
from pmcl.online.gaussian import MeanField
from pmcl.online.latent import Encoder, LatentRows, Latents
from pmcl.online.rows import check_separate
from pmcl.posterior import positive, seed_of
from pmcl.progress import progress_bar
from pmcl.results import attributes
from pmcl.stream import OnlinePosterior, UpdateRecord

_MANY = 0.1  # of a batch's rows


@dataclass(frozen=True, eq=False)
class LatentPosterior(OnlinePosterior):
    """Mean-field posterior of a model's parameters, and an encoder that tells local variables.

    Made by :func:`pmcl.fit_online` with `local=`. Immutable: `update` returns a new one. `sample`
    draws the parameters, `sample_local` the local variables of rows, `predict` new rows.

    Attributes
    ----------
    compiled : CompiledModel
        Of the model with its local variables observed.
    latents : Latents
        The local variables, and the encoder or one an update.
    """

    latents: Latents | None = None

    def __repr__(self) -> str:
        where = self._known.encoder
        return (
            f"LatentPosterior of {[i.name for i in self.compiled.free]} and, along {self.row!r}, "
            f"of {list(self._known.variables.names)}\n"
            f"  given rows of {[v.name for v in self._layout.variables]}\n"
            f"  {self.state.updates} updates with {self.state.seen} rows; "
            f"drift: {self.settings.drift!r}\n"
            f"  {where!r}: {len(self._known.networks)} built"
        )

    @property
    def encoder(self) -> Encoder:
        """How local variables are told from data."""
        return self._known.encoder

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the local variables."""
        return self._known.variables.names

    def update(
        self,
        batch: TaskLike,
        *,
        time: float | None = None,
        name: str | None = None,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> "LatentPosterior":
        """Return the posterior after a batch of rows; values may be missing (NaN).

        Parameters
        ----------
        batch : xarray.Dataset or mapping of arrays
            Every observed variable and covariate, with any number of rows; no local variables.
        time : float, optional
            When the rows came, in the drift's units; one more than the last by default.
        name : str, optional
            Of the batch; its number by default. Its encoder is asked for by it.
        random_seed : int, optional
            Follows from the posterior's by default.
        progressbar : bool

        Returns
        -------
        LatentPosterior

        Raises
        ------
        DataError
            Naming the variable that does not fit the model.
        UnsupportedModelError
            At the first batch, where rows depend on one another.
        ValueError
            Where time runs backwards.

        Warns
        -----
        UserWarning
            Where most steps had a gradient that is not finite, or the encoder does not see how far
            out many rows lie.
        """
        data = self._read(batch)
        updates = self.state.updates
        now = self._time(time)
        label = str(updates) if name is None else str(name)
        seed = seed_of(random_seed, (self.seed + 1 + updates) % 2**32)
        begin = clock.perf_counter()
        n = latent.length(self.problem.rows, self._known.variables, data)
        total = self.settings.search.length(n, first=not updates)
        with (
            self._scope(),
            progress_bar(f"Update {label}", total, enabled=progressbar) as bar,
        ):
            problem = self.problem
            prior_key, key = jax.random.split(jax.random.key(seed))
            imagined = latent.imagine(problem, self._known.variables, data, prior_key)
            if not updates:
                some = {k: v[0] for k, v in imagined.local.items()}
                rows = problem.rows
                index = np.arange(len(next(iter(some.values()))))
                few = latent.take(rows, latent.values_alone(data), index)
                if not check_separate(rows, problem.prior, {**few, **some}, prior_key):
                    rows = replace(rows, local=None)
                problem = replace(problem, rows=rows)
            state, known, info = latent.update(
                problem, self._known, self.state, data, imagined, now, self.settings, key,
                bar.advance,
            )  # fmt: skip
            inputs = latent.features(problem.rows, known.variables, data)
            beyond = int(known.networks[-1].beyond(*inputs).sum())
        if beyond > _MANY * n:
            warnings.warn(
                f"Update {label!r}: {beyond} of {n} rows have values more than {latent.FARTHEST:g} "
                "standard deviations from the rows that the encoder's inputs are scaled by, and it "
                "sees all of these alike. Check the units, or give new tasks an encoder of their "
                "own (`Encoder(per_task=True)`).",
                stacklevel=2,
            )
        records = self._recorded(UpdateRecord(label, now, info, clock.perf_counter() - begin))
        return replace(self, problem=problem, state=state, latents=known, records=records)

    def sample_local(
        self,
        data: TaskLike,
        draws: int = 1000,
        *,
        time: float | None = None,
        task: str | None = None,
        random_seed: int | None = None,
    ) -> xr.DataTree:
        """Draw the local variables of rows, new ones or old ones, by the encoder.

        Parameters
        ----------
        data : xarray.Dataset or mapping of arrays
            As for :meth:`update`.
        draws : int
        time : float, optional
            Later than the last batch: parameters have drifted since.
        task : str, optional
            Name of the batch whose encoder is asked; the last one by default.
        random_seed : int, optional

        Returns
        -------
        xarray.DataTree
            Groups `posterior` with dims chain (one), draw and row; `sample_stats` (`log_weight`,
            the log density of row and local variables over the encoder's density, nats); and
            `row_stats`, by row: `khat` and `efficiency` of the encoder's draws, `log_predictive`
            and its Monte Carlo `error` (nats). A row whose k-hat is above 0.7 is one that the
            encoder does not know.

        Raises
        ------
        DataError
            Naming the variable that does not fit the model.
        ValueError
            Before the first update, where time runs backwards, or where no batch had that name.
        """
        begin = clock.perf_counter()
        u, ratio = self._weighed(data, draws, time, task, random_seed, keep=True)
        assert u is not None
        flat = u.reshape(-1, u.shape[-1])
        with self._scope():
            values = self._known.variables.constrain(jnp.asarray(flat))
        found = {k: np.asarray(v, float).reshape(1, draws, -1, *v.shape[1:])
                 for k, v in values.items()}  # fmt: skip
        infos = {i.name: i for i in self.compiled.observed}
        attrs = attributes("online", clock.perf_counter() - begin)
        stats = {"log_weight": ((self.row,), ratio[None].astype(float))}
        return xr.DataTree.from_dict(
            {
                "posterior": self._labelled({n: (infos[n].dims, v) for n, v in found.items()})
                .assign_attrs(attrs),
                "sample_stats": self._labelled(stats),
                "row_stats": self._row_stats(ratio),
            }
        )  # fmt: skip

    def log_predictive(
        self,
        test: TaskLike,
        *,
        draws: int = 5000,
        time: float | None = None,
        task: str | None = None,
        random_seed: int | None = None,
    ) -> xr.DataArray:
        """Log predictive density of new rows, by importance sampling from the encoder.

        log mean_s p(row, u_s | z_s) / q(u_s | row), with z_s of the parameters' posterior.

        Parameters
        ----------
        test : xarray.Dataset or mapping of arrays
            As for :meth:`update`.
        draws : int
        time, task
            As in :meth:`sample_local`.
        random_seed : int, optional

        Returns
        -------
        xarray.DataArray
            Along the row dim (nats), with coords `error`, its Monte Carlo standard error, and
            `khat` of the weights: above 0.7 the estimate is too low, and its error too.

        Raises
        ------
        DataError
            Naming the variable that does not fit the model.
        ValueError
            Before the first update, where time runs backwards, or where no batch had that name.

        References
        ----------
        Burda, Grosse & Salakhutdinov (2016), Importance weighted autoencoders; Nguyen et al.
        (2018), section 6.2.
        """
        _, ratio = self._weighed(test, draws, time, task, random_seed)
        stats = self._row_stats(ratio)
        found = stats["log_predictive"].assign_coords(error=stats["error"], khat=stats["khat"])
        return found.assign_attrs(units="nats")

    def approximation(
        self, *, time: float | None = None, task: str | None = None, random_seed: int | None = None
    ) -> MeanField:
        """Return the normal of z that predictions are made with.

        Parameters
        ----------
        time : float, optional
            Later than the last batch: parameters have drifted since.
        task : str, optional
            The parameters are those of all batches: it only has to be the name of one.
        random_seed : int, optional

        Raises
        ------
        ValueError
            Where time runs backwards, or where no batch had that name.
        """
        if task is not None:
            self._network(task)
        return super().approximation(time=time, random_seed=random_seed)

    def _weighed(
        self,
        data: TaskLike,
        draws: int,
        time: float | None,
        task: str | None,
        random_seed: int | None,
        *,
        keep: bool = False,
    ) -> tuple[np.ndarray | None, np.ndarray]:
        if not self.records:
            raise ValueError("expected an update before rows are encoded, there was none.")
        values = self._read(data)
        q = self.approximation(time=time, task=task)
        with self._scope():
            network = self._network(task)
            if latent.has_gaps(values) and not network.masked:
                network = self.encoder.told_of_gaps(network)
            rows = LatentRows(
                self.problem.rows, self._known.variables, self.encoder.learning_rate, network
            )
            key = jax.random.key(seed_of(random_seed, self.seed))
            n = rows.length(values)
            given, _ = latent.lengthened(self.problem.rows, values, n)
            u, ratio = latent.weigh(rows, q, given, key, positive("draws", draws), keep=keep)
            return None if u is None else u[:, :n], ratio[:, :n]

    def _row_stats(self, ratio: np.ndarray) -> xr.Dataset:
        found = importance_diagnostics(ratio.T)
        columns = {
            "khat": found.khat,
            "efficiency": found.efficiency,
            "log_predictive": found.log_evidence,
            "error": found.log_evidence_error,
        }
        return xr.Dataset({k: (self.row, v) for k, v in columns.items()})

    def _network(self, task: str | None) -> latent.EncoderNetwork:
        networks = self._known.networks
        names = [r.name for r in self.records]
        if task is not None and task not in names:
            raise ValueError(f"task: expected the name of a batch, one of {names}, got {task!r}.")
        if task is None or not self.encoder.per_task:
            return networks[-1]
        return networks[len(names) - 1 - names[::-1].index(task)]

    @property
    def _known(self) -> Latents:
        assert self.latents is not None
        return self.latents

    @property
    def _layout(self) -> Layout:
        """What a batch looks like: without local variables, which nobody sees."""
        whole = Layout.of(self.compiled, self.row)
        seen = tuple(v for v in whole.variables if v.name not in self.local)
        return replace(whole, variables=seen, n_observed=whole.n_observed - len(self.local))

    def _read(self, data: TaskLike) -> dict[str, np.ndarray]:
        task = self._one(data, self._layout)
        values = {k: v[0] for k, v in task.values.items()}
        there = {k: v[0] for k, v in task.there.items()}
        for name, seen in there.items():
            terms = self.compiled.term_dims(name)
            across = tuple(range(terms, seen.ndim))
            if across and (seen.any(axis=across) != seen.all(axis=across)).any():
                raise DataError(
                    f"Variable {name!r}: expected values that are all there or all missing where "
                    f"they have one likelihood together ({seen.ndim - terms} last dims), got some "
                    "of each. Write it as independent variables given local ones, or leave such "
                    "rows out."
                )
        rows, networks = self.problem.rows, self._known.networks
        if networks:
            found = latent.features(rows, self._known.variables, values)[0].shape[1]
            if found != len(networks[-1].location):
                raise DataError(
                    f"data: expected rows of {len(networks[-1].location)} numbers as in the first "
                    f"batch, got {found}. Fill rows up with NaN to one length."
                )
        return latent.with_gaps(values, there)
