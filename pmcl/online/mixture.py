"""One stream followed from several starts: a mixture of the normals that were found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pmcl.compile import CompiledModel
from pmcl.data.task import TaskLike
from pmcl.online.draws import tree_of
from pmcl.online.families.mixture import Mixture, alike, counts_of, faded, stacked
from pmcl.online.growing import lengthened, longer
from pmcl.online.posterior import OnlinePosterior
from pmcl.online.stream import TRUSTED, warn_of
from pmcl.runtime.arguments import positive, seed_of
from pmcl.runtime.precision import scope_of


@dataclass(frozen=True, eq=False)
class OnlineMixture:
    """Mixture of normals of one PyMC model, kept up to date as batches of rows arrive.

    Made by :func:`pmcl.fit_online` with `components` above one. Every component follows all rows,
    from a start of its own, with a memory of its own. Immutable: `update` returns a new one.

    Attributes
    ----------
    components : tuple of OnlinePosterior
    seed : int
    log_weights : tuple of tuple of float
        After every update, one a component.
    shared : tuple of float
        Log of how many components found what each found in the first batch; empty where weights are
        not by evidence.
    foretold : float
        Rows since the first batch, and one for each component, less what is forgotten.
    """

    components: tuple[OnlinePosterior, ...] = field(repr=False)
    seed: int
    log_weights: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    shared: tuple[float, ...] = field(default=(), repr=False)
    foretold: float = field(default=0.0, repr=False)

    @classmethod
    def of(cls, stream: OnlinePosterior, components: int) -> "OnlineMixture":
        """Make as many of a stream that knows nothing as yet."""
        seeds = _seeds(stream.seed, components)
        return cls(tuple(replace(stream, seed=seed) for seed in seeds), stream.seed)

    def __repr__(self) -> str:
        weights = np.array2string(self.weights, precision=2, separator=", ")
        return f"OnlineMixture of {len(self.components)} components, weights {weights}, each\n" + (
            repr(self.components[0])
        )

    @property
    def compiled(self) -> CompiledModel:
        """The model, compiled."""
        return self.components[0].compiled

    @property
    def row(self) -> str:
        """The dim along which data arrive."""
        return self.components[0].row

    @property
    def weights(self) -> np.ndarray:
        """What the components count for, shape (component,); they add up to one."""
        return np.exp(self._log_weights)

    @property
    def history(self) -> xr.Dataset:
        """What happened, by component and update: `Info`'s fields, seconds, and the weight."""
        found = _by_component([c.history for c in self.components])
        shape = (len(self.log_weights), len(self.components))
        weights = np.exp(np.asarray(self.log_weights, float).reshape(shape))
        return found.assign(weight=(("component", "update"), weights.T))

    def update(
        self,
        batch: TaskLike,
        *,
        time: float | None = None,
        name: str | None = None,
        model: pm.Model | None = None,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> "OnlineMixture":
        """Return the posterior after a batch of rows.

        All components learn from it. As long as the k-hat of every one of them was at most 0.7,
        their weights are multiplied by the density of the batch given what each knew, and
        components that found the same mode in the first batch share what one of them would have.
        From the first batch on where it was higher, as with neural networks, such a density cannot
        be trusted: weights are those by which the mixture foretells rows best, at first equal ones.

        Parameters
        ----------
        batch, time, name, model, random_seed, progressbar
            As for :meth:`OnlinePosterior.update`, which also says what is raised.

        Returns
        -------
        OnlineMixture

        References
        ----------
        Yao, Vehtari, Simpson & Gelman (2018), Using stacking to average Bayesian predictive
        distributions.
        """
        if model is not None:
            grown = self.grow(model)
            return grown.update(
                batch, time=time, name=name, random_seed=random_seed, progressbar=progressbar
            )
        seeds: Sequence[int | None] = [None] * len(self.components)
        if random_seed is not None:
            seeds = _seeds(random_seed, len(self.components))
        after: list[OnlinePosterior] = []
        for component, seed in zip(self.components, seeds, strict=True):
            if after and not component.state.updates:  # what is found of the model holds for all
                component = replace(component, problem=after[0].problem)
            after.append(
                component.update(
                    batch, time=time, name=name, random_seed=seed, progressbar=progressbar
                )
            )
        return self._weighed(tuple(after), batch, seed_of(random_seed, self.seed))

    def _weighed(
        self, after: tuple[OnlinePosterior, ...], batch: TaskLike, seed: int
    ) -> "OnlineMixture":
        """Return the mixture of components that a batch was learned by."""
        first, time = not self.log_weights, after[0].state.time
        state, drift = self.components[0].state, self.components[0].settings.drift
        told = np.array([c.records[-1].info.log_evidence for c in after])
        trusted = bool(np.isfinite(told).all()) and all(c._khat <= TRUSTED for c in after)
        shared, foretold = self.shared, self.foretold
        with scope_of(after[0].precision):
            if first:
                log_weights, foretold = self._log_weights, float(len(after))
                if trusted:
                    parts = tuple(c.state.predictive for c in after)
                    found = np.log(alike(parts, jax.random.key(seed)))
                    shared, log_weights = tuple(found.tolist()), log_weights - found + told
            else:
                kept = float(drift.weight(jnp.asarray(time - state.time)))
                if shared and trusted:
                    log_weights = self._log_weights_at(time) + told
                else:  # evidence that could not be trusted once is in the weights from then on
                    log_p = [
                        c.log_predictive(batch, time=time, random_seed=seed).values
                        for c in self.components
                    ]
                    log_weights = stacked(self._log_weights, np.stack(log_p), kept * foretold)
                    shared = ()
                foretold = kept * foretold + after[0].records[-1].info.rows
        log_weights = log_weights - logsumexp(log_weights)
        weights = (*self.log_weights, tuple(log_weights.tolist()))
        return OnlineMixture(after, self.seed, weights, shared, foretold)

    def _log_weights_at(self, time: float | None) -> np.ndarray:
        """Log weights at a time: those by evidence return to the prior's, as components do."""
        now, state = self._log_weights, self.components[0].state
        if time is None or not self.shared:
            return now
        drift = self.components[0].settings.drift
        with scope_of(self.components[0].precision):
            kept = drift.weight(jnp.asarray(time - state.time))
            if float(kept) >= 1:
                return now
            lost = [faded(c.state.predictive, c.problem.prior, kept) for c in self.components]
        shared = np.asarray(self.shared)
        found = float(kept) * (now + shared) - shared + np.array(lost, float)
        return found - logsumexp(found)

    def grow(self, model: pm.Model) -> "OnlineMixture":
        """Return the same knowledge as that of a model with more entries.

        Parameters
        ----------
        model : pymc.Model
            As for :meth:`OnlinePosterior.grow`, which also says what is raised.

        Returns
        -------
        OnlineMixture
        """
        problem, place = longer(self.components[0], model)
        grown = tuple(lengthened(c, problem, place) for c in self.components)
        return replace(self, components=grown)

    def approximation(
        self, *, time: float | None = None, task: str | None = None, random_seed: int | None = None
    ) -> Mixture:
        """Return the mixture of normals of z that predictions are made with.

        Parameters
        ----------
        time, task, random_seed
            As for :meth:`OnlinePosterior.approximation`, which also says what is raised.

        Returns
        -------
        Mixture
            With `mean`, `variance`, `log_density`, and the normals as `parts`.
        """
        parts = tuple(
            c.approximation(time=time, task=task, random_seed=random_seed) for c in self.components
        )
        with scope_of(self.components[0].precision):
            return Mixture(jnp.asarray(self._log_weights_at(time)), parts)

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
            Of all components together.
        time, task, random_seed
            As for :meth:`OnlinePosterior.sample`.

        Returns
        -------
        xarray.DataTree
            As :meth:`OnlinePosterior.sample` gives it; `log_q` is the mixture's.

        Warns
        -----
        UserWarning
            Where the k-hat of the last update is above 0.7 for a component that counts.
        """
        begin = perf_counter()
        q = self.approximation(time=time, task=task, random_seed=random_seed)
        of = self._of(draws, time, random_seed)
        khat = [self.components[i]._khat for i in set(of.tolist())]
        warn_of(float(np.nanmax([*khat, -np.inf])))
        with scope_of(self.components[0].precision):
            key = jax.random.key(seed_of(random_seed, self.seed))
            noise = jax.random.normal(key, (draws, len(q.mean)), q.mean.dtype)
            z = jnp.stack([p.at(noise) for p in q.parts])[of, np.arange(draws)]
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
        new_covariates, rows, time, task, random_seed
            As for :meth:`OnlinePosterior.predict`, which also says what is raised.
        draws : int
            Of all components together.

        Returns
        -------
        xarray.Dataset
            Observed variables with dims chain, draw and their own.
        """
        seeds = _seeds(seed_of(random_seed, self.seed), len(self.components))
        parts = [
            component.predict(
                new_covariates, rows=rows, draws=draws, time=time, task=task, random_seed=seed
            )
            for component, seed in zip(self.components, seeds, strict=True)
        ]
        found = _by_component(parts)
        of = xr.DataArray(self._of(draws, time, random_seed), dims="draw")
        found = found.isel(component=of, draw=xr.DataArray(np.arange(draws), dims="draw"))
        return found.transpose("chain", "draw", ...)

    def log_predictive(
        self,
        test: TaskLike,
        *,
        draws: int = 500,
        time: float | None = None,
        task: str | None = None,
        random_seed: int | None = None,
    ) -> xr.DataArray:
        """Log predictive density of new rows, a weighted mean of the components' densities.

        Parameters
        ----------
        test : xarray.Dataset or mapping of arrays
            As for :meth:`update`.
        draws : int
            Of every component.
        time, task, random_seed
            As for :meth:`OnlinePosterior.log_predictive`.

        Returns
        -------
        xarray.DataArray
            Along the row dim (nats).
        """
        parts = [
            c.log_predictive(test, draws=draws, time=time, task=task, random_seed=random_seed)
            for c in self.components
        ]
        log_weights = self._log_weights_at(time)[:, None]
        terms = np.stack([part.values for part in parts]) + log_weights
        return parts[0].copy(data=logsumexp(terms, axis=0))

    @property
    def _log_weights(self) -> np.ndarray:
        if self.log_weights:
            return np.asarray(self.log_weights[-1])
        return np.full(len(self.components), -np.log(len(self.components)))

    def _of(self, draws: int, time: float | None, random_seed: int | None) -> np.ndarray:
        """Which component each of some draws comes from, shape (draw,)."""
        rng = np.random.default_rng([seed_of(random_seed, self.seed), 2])
        counts = counts_of(np.exp(self._log_weights_at(time)), positive("draws", draws), rng)
        return rng.permutation(np.repeat(np.arange(len(counts)), counts))


def _by_component(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Put what each component gives side by side."""
    return xr.concat(
        parts, "component", data_vars="all", coords="minimal", compat="override", join="exact"
    )


def _seeds(seed: int, n: int) -> list[int]:
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(n) >> 1]
