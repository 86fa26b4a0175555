"""The online posterior of a model whose rows have local variables of their own."""

import time as clock
import warnings
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from pmcl.data.task import DataError, Layout, TaskLike
from pmcl.draws.results import attributes
from pmcl.metrics.importance import importance_diagnostics
from pmcl.online.arriving import one_dataset
from pmcl.online.draws import labelled
from pmcl.online.gaps import has_gaps, values_alone, with_gaps
from pmcl.online.gaussian import MeanField
from pmcl.online.latent.encoder import FARTHEST, Encoder, EncoderNetwork, Latents, imagine
from pmcl.online.latent.features import features, length, lengthened
from pmcl.online.latent.rows import LatentRows, weigh
from pmcl.online.latent.update import Arrival, update
from pmcl.online.state import Info
from pmcl.online.stream import AbstractStream, separated
from pmcl.runtime.arguments import positive, seed_of
from pmcl.runtime.progress import progress_bar

_MANY = 0.1  # of a batch's rows


@dataclass(frozen=True, eq=False)
class LatentPosterior(AbstractStream):
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

    latents: Latents = field(kw_only=True)

    def __repr__(self) -> str:
        where = self.latents.encoder
        return (
            f"LatentPosterior of {[i.name for i in self.compiled.free]} and, along {self.row!r}, "
            f"of {list(self.latents.variables.names)}\n"
            f"  given rows of {[v.name for v in self._layout.variables]}\n"
            f"  {self.state.updates} updates with {self.state.seen} rows; "
            f"drift: {self.settings.drift!r}\n"
            f"  {where!r}: {len(self.latents.networks)} built"
        )

    @property
    def encoder(self) -> Encoder:
        """How local variables are told from data."""
        return self.latents.encoder

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the local variables."""
        return self.latents.variables.names

    def _after(
        self, data: dict[str, np.ndarray], now: float, label: str, key: Array, progressbar: bool
    ) -> tuple["LatentPosterior", Info]:
        problem, first = self.problem, not self.state.updates
        n = length(problem.rows, self.latents.variables, data)
        total = self.settings.search.length(n, first=first)
        with progress_bar(f"Update {label}", total, enabled=progressbar) as bar:
            prior_key, key = jax.random.split(key)
            imagined = imagine(problem, self.latents.variables, data, prior_key)
            if first:
                some = {k: v[0] for k, v in imagined.local.items()}
                rows = problem.rows
                index = np.arange(len(next(iter(some.values()))))
                few = rows.take(values_alone(data), index)
                problem = separated(problem, {**few, **some}, prior_key)
            arrived = Arrival(data, imagined, now)
            state, latents, info = update(
                problem, self.latents, self.state, arrived, self.settings, key, bar.advance
            )
            inputs = features(problem.rows, latents.variables, data)
            beyond = int(latents.networks[-1].beyond(*inputs).sum())
        if beyond > _MANY * n:
            warnings.warn(
                f"Update {label!r}: {beyond} of {n} rows have values more than {FARTHEST:g} "
                "standard deviations from the rows that the encoder's inputs are scaled by, and it "
                "sees all of these alike. Check the units, or give new tasks an encoder of their "
                "own (`Encoder(per_task=True)`).",
                stacklevel=3,
            )
        return replace(self, problem=problem, state=state, latents=latents), info

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
            values = self.latents.variables.constrain(jnp.asarray(flat))
        found = {k: np.asarray(v, float).reshape(1, draws, -1, *v.shape[1:])
                 for k, v in values.items()}  # fmt: skip
        infos = {i.name: i for i in self.compiled.observed}
        attrs = attributes("online", clock.perf_counter() - begin)
        stats = {"log_weight": ((self.row,), ratio[None].astype(float))}
        drawn = labelled(self.compiled, {n: (infos[n].dims, v) for n, v in found.items()})
        return xr.DataTree.from_dict(
            {
                "posterior": drawn.assign_attrs(attrs),
                "sample_stats": labelled(self.compiled, stats),
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
        assert isinstance(q, MeanField)
        with self._scope():
            network = self._network(task)
            if has_gaps(values) and not network.masked:
                network = self.encoder.told_of_gaps(network)
            rows = LatentRows(
                self.problem.rows, self.latents.variables, self.encoder.learning_rate, network
            )
            key = jax.random.key(seed_of(random_seed, self.seed))
            n = rows.length(values)
            given, _ = lengthened(self.problem.rows, values, n)
            u, ratio = weigh(rows, q, given, key, positive("draws", draws), keep=keep)
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

    def _network(self, task: str | None) -> EncoderNetwork:
        networks = self.latents.networks
        if task is None or not self.encoder.per_task:
            return networks[-1]
        names = [r.name for r in self.records]
        return networks[len(names) - 1 - names[::-1].index(task)]

    @property
    def _layout(self) -> Layout:
        """What a batch looks like: without local variables, which nobody sees."""
        whole = Layout.of(self.compiled, self.row)
        seen = tuple(v for v in whole.variables if v.name not in self.local)
        return replace(whole, variables=seen, n_observed=whole.n_observed - len(self.local))

    def _read(self, data: TaskLike) -> dict[str, np.ndarray]:
        task = one_dataset(data, self._layout, self.row)
        values = with_gaps(self.compiled, task)
        rows, networks = self.problem.rows, self.latents.networks
        if networks:
            found = features(rows, self.latents.variables, values)[0].shape[1]
            if found != len(networks[-1].location):
                raise DataError(
                    f"data: expected rows of {len(networks[-1].location)} numbers as in the first "
                    f"batch, got {found}. Fill rows up with NaN to one length."
                )
        return values
