"""The amortized posterior of a PyMC model: fit, adapt, sample."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import jax
import numpy as np
import pymc as pm
import xarray as xr

from pmcl import sampling
from pmcl.compile import (
    CompiledModel,
    Simulator,
    compile_model,
    make_simulator,
    precision,
    read_covariates,
)
from pmcl.compile.covariates import Source
from pmcl.compile.predictive import predict
from pmcl.compile.refuse import check_finite
from pmcl.continual import (
    AbstractObjective,
    AbstractStrategy,
    AdaptationRecord,
    AdaptationSettings,
    Density,
    Memory,
    Naive,
    PathGradient,
    adapt,
)
from pmcl.data import DATASET, Layout, Task, TaskLike, as_task, check_padding
from pmcl.networks import (
    AbstractSummary,
    Amortizer,
    InputLayout,
    Network,
    Structure,
    build_amortizer,
    default_network,
    read_structure,
)
from pmcl.results import SAMPLE, flat_z, labelled, posterior_tree
from pmcl.training import PretrainingRecord, PretrainingSettings, pretrain


class TaskRecord(NamedTuple):
    """One adaptation in the posterior's history."""

    name: str
    strategy: AbstractStrategy
    objective: AbstractObjective
    record: AdaptationRecord


@dataclass(frozen=True, eq=False)
class AmortizedPosterior:
    """Posterior of any dataset of one PyMC model, by one pass through a network.

    Made by :func:`fit_amortized`. Immutable: `adapt` and `pretrain` return new posteriors.

    Attributes
    ----------
    compiled : CompiledModel
    simulator : Simulator
        Its `repr` says where simulations are made.
    structure : Structure
        How a dataset is read, and why.
    network : Network
        Specification of the network.
    amortizer : Amortizer
        The weights.
    strategy : AbstractStrategy or None
        The strategy in force; None before the first adaptation.
    memory : Memory
        Stored past datasets.
    pretraining : tuple of PretrainingRecord
    history : tuple of TaskRecord
        One entry an adaptation, oldest first.
    """

    compiled: CompiledModel
    simulator: Simulator
    structure: Structure
    network: Network
    amortizer: Amortizer = field(repr=False)
    settings: PretrainingSettings = field(repr=False)
    seed: int
    strategy: AbstractStrategy | None = None
    memory: Memory = field(default_factory=Memory, repr=False)
    pretraining: tuple[PretrainingRecord, ...] = field(default=(), repr=False)
    history: tuple[TaskRecord, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        tasks = ", ".join(t.name for t in self.history) or "none"
        steps = sum(r.steps for r in self.pretraining)
        return (
            f"AmortizedPosterior of {[i.name for i in self.compiled.free]} "
            f"given {[i.name for i in self.compiled.data]}\n"
            f"  data: {self.structure}\n"
            f"  simulations: {self.simulator!r}\n"
            f"  network: {self.network.summary!r}, {self.network.flow!r}\n"
            f"  pretrained for {steps} steps; adapted to: {tasks}\n"
            f"  strategy: {self.strategy!r}; stored datasets: {len(self.memory)}"
        )

    @property
    def layout(self) -> Layout:
        """What a dataset of the model looks like."""
        return Layout.of(self.compiled, self.structure.row)

    @property
    def density(self) -> Density:
        """The compiled log density of z and a dataset."""
        return Density(self.compiled, self.structure.row)

    def pretrain(
        self,
        more_steps: int,
        *,
        learning_rate: float | None = None,
        checkpoint: str | os.PathLike | None = None,
        progressbar: bool = True,
    ) -> "AmortizedPosterior":
        """Go on with simulation-based pretraining and return the new posterior.

        Parameters
        ----------
        more_steps : int
        learning_rate : float, optional
            Highest rate; a third of the first training's where not given.
        checkpoint : path, optional
            Written after every block of steps; training goes on from it where it exists.
        progressbar : bool

        Raises
        ------
        ValueError
            After the first adaptation: simulations would overwrite what was learned from data.
        """
        if self.history:
            raise ValueError(
                "pretrain: the posterior has been adapted to "
                f"{[t.name for t in self.history]}; expected one that was not. Pretrain first, "
                "then adapt."
            )
        rate = learning_rate if learning_rate is not None else self.settings.learning_rate / 3
        settings = replace(
            self.settings, steps=_positive("more_steps", more_steps), learning_rate=rate
        )
        with precision.scope():
            amortizer, record = pretrain(
                self.amortizer,
                self.simulator,
                settings,
                seed=self.seed + 1 + len(self.pretraining),
                checkpoint=checkpoint,
                progressbar=progressbar,
            )
        return replace(self, amortizer=amortizer, pretraining=(*self.pretraining, record))

    def adapt(
        self,
        task: TaskLike,
        *,
        name: str,
        strategy: AbstractStrategy | None = None,
        objective: AbstractObjective | None = None,
        steps: int = 400,
        learning_rate: float = 1e-3,
        batch_size: int = 64,
        clip: float = 1.0,
        warmup: int = 20,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> "AmortizedPosterior":
        """Adapt to the unlabeled datasets of a task and return the new posterior.

        Parameters
        ----------
        task : xarray.Dataset, mapping or pandas.DataFrame
            See :func:`pmcl.as_task`.
        name : str
            Name of the task, shown in the history and in the memory.
        strategy : AbstractStrategy, optional
            What protects earlier tasks. None goes on with the one in force (`Naive` at first).
        objective : AbstractObjective, optional
            `PathGradient` by default.
        steps : int
        learning_rate : float
            Highest rate of Adam, after warm-up and before cosine decay.
        batch_size : int
            Datasets a step; all of the task's and the memory's where they are not more.
        clip : float
            Largest global gradient norm.
        warmup : int
            Steps of linear warm-up.
        random_seed : int, optional
            Derived from the posterior's own seed and the number of tasks where not given.
        progressbar : bool

        Returns
        -------
        AmortizedPosterior

        Raises
        ------
        DataError
            Where the data do not fit the model, naming the variable and the dataset.
        """
        if strategy is None:
            strategy = self.strategy if self.strategy is not None else Naive()
        settings = AdaptationSettings(
            _positive("steps", steps),
            learning_rate,
            _positive("batch_size", batch_size),
            clip,
            warmup,
        )
        chosen = objective if objective is not None else PathGradient()
        seed = _seed(random_seed, self.seed + 1000 * (len(self.history) + 1))
        checked = self._task(task)
        capacity = strategy.capacity
        rehearsal = self.memory.datasets if capacity and len(self.memory) else None
        with precision.scope():
            amortizer, record = adapt(
                self.amortizer,
                self.density,
                checked,
                rehearsal,
                capacity=capacity,
                objective=chosen,
                settings=settings,
                seed=seed,
                description=f"Adapting to {name}",
                progressbar=progressbar,
            )
            kept = checked.select(
                [i for i, n in enumerate(checked.names) if n not in record.excluded]
            )
            memory = strategy.remember(
                self.memory,
                kept,
                name,
                lambda stored: sampling.embed(amortizer, stored),
                np.random.default_rng(seed),
            )
        return replace(
            self,
            amortizer=amortizer,
            strategy=strategy,
            memory=memory,
            history=(*self.history, TaskRecord(name, strategy, chosen, record)),
        )

    def sample(
        self,
        data: TaskLike,
        draws: int = 1000,
        *,
        var_names: Sequence[str] | None = None,
        random_seed: int | None = None,
        log_likelihood: bool = False,
        posterior_predictive: bool = False,
        progressbar: bool = False,
    ) -> xr.DataTree:
        """Draw from the posterior of every dataset.

        Parameters
        ----------
        data : xarray.Dataset, mapping or pandas.DataFrame
            See :func:`pmcl.as_task`.
        draws : int
            Independent draws per dataset: one chain, for which r-hat is not defined.
        var_names : sequence of str, optional
            Variables of the group `posterior`; all free variables and deterministics by default.
        random_seed : int, optional
        log_likelihood, posterior_predictive : bool
            Add the group of that name, elementwise.
        progressbar : bool

        Returns
        -------
        xarray.DataTree
            Groups `posterior`, `unconstrained_posterior`, `sample_stats` (log_prior,
            log_likelihood, log_q, log_weight per draw), `dataset_stats` (k-hat, efficiency,
            evidence, engine, warning per dataset), `observed_data` and `constant_data`.
            Weights are Pareto smoothed, in logs, and sum to one for each dataset.

        Warns
        -----
        UserWarning
            Naming the datasets whose k-hat says that the draws should not be trusted.
        """
        task = self._task(data)
        seed = _seed(random_seed, self.seed)
        with precision.scope():
            found = sampling.sample(
                self.amortizer,
                self.density,
                task,
                draws=_positive("draws", draws),
                names=sampling.pick(self.compiled, None if var_names is None else list(var_names)),
                seed=seed,
                progressbar=progressbar,
            )
            extra = {}
            z = np.moveaxis(found.z[0], 0, 1)
            if log_likelihood:
                terms = sampling.pointwise(self.compiled, z, task)
                extra["log_likelihood"] = self._observed(task, terms)
            if posterior_predictive:
                extra["posterior_predictive"] = self._observed(
                    task, self._predict(z, [task.dataset(i) for i in range(len(task))], task, seed)
                )
        _warn_of_khat(task, found.dataset_stats)
        return posterior_tree(self.compiled, task, found, engine="amortized", extra=extra)

    def log_prob(self, parameters: xr.DataTree | xr.Dataset, data: TaskLike) -> xr.DataArray:
        """Log density of the amortized posterior, log q(z | h(x)), on the unconstrained scale.

        Parameters
        ----------
        parameters : xarray.DataTree or xarray.Dataset
            Results of `sample` or `sample_reference`, or their group `unconstrained_posterior`.
        data : xarray.Dataset, mapping or pandas.DataFrame
            The datasets, in the same order.

        Returns
        -------
        xarray.DataArray of dims chain, draw, dataset
        """
        task = self._task(data)
        z = flat_z(self.compiled, parameters)
        if z.shape[2] != len(task):
            raise ValueError(f"log_prob: expected draws of {len(task)} datasets, got {z.shape[2]}.")
        chains, draws = z.shape[:2]
        flat = np.moveaxis(z.reshape(chains * draws, *z.shape[2:]), 0, 1)
        with precision.scope():
            value = sampling.log_q(self.amortizer, flat, task)
        return xr.DataArray(
            np.moveaxis(value, 0, 1).reshape(chains, draws, len(task)),
            dims=SAMPLE,
            coords={DATASET: list(task.names)},
            name="log_q",
        )

    def predict(
        self,
        data: TaskLike,
        new_covariates: xr.Dataset | Mapping[str, np.ndarray] | None = None,
        *,
        draws: int = 1000,
        random_seed: int | None = None,
    ) -> xr.DataTree:
        """Posterior predictive draws of the observed variables at new covariates.

        Parameters
        ----------
        data : xarray.Dataset, mapping or pandas.DataFrame
            The datasets that the posterior is conditioned on.
        new_covariates : xarray.Dataset or mapping of arrays, optional
            Covariates to predict at, of any length along the dims of the data: one set for all
            datasets, or one each with a leading dim `dataset`. Those of `data` by default.
        draws : int
        random_seed : int, optional

        Returns
        -------
        xarray.DataTree
            Groups `predictions` and `predictions_constant_data`, beside `posterior`.
        """
        tree = self.sample(data, draws, random_seed=random_seed)
        task = self._task(data)
        seed = _seed(random_seed, self.seed)
        z = np.moveaxis(flat_z(self.compiled, tree)[0], 0, 1)
        if new_covariates is None:
            at = [task.dataset(i) for i in range(len(task))]
        else:
            at = self._new_covariates(new_covariates, task)
        with precision.scope():
            values = self._predict(z, at, None, seed)
        like = Task(self.layout, {}, task.names, None)
        constant = {
            i.name: np.stack([np.asarray(a[i.name]) for a in at]) for i in self.compiled.covariates
        }
        observed = {i.name: i for i in self.compiled.observed}
        tree["predictions"] = xr.DataTree(
            _numbered(labelled(self.compiled, like, observed, values, SAMPLE))
        )
        if constant:
            infos = {i.name: i for i in self.compiled.covariates}
            tree["predictions_constant_data"] = xr.DataTree(
                labelled(self.compiled, like, infos, constant, (DATASET,))
            )
        return tree

    def _task(self, data: TaskLike) -> Task:
        task = as_task(data, self.layout)
        if task.ragged:
            check_padding(self.compiled, task)
        return task

    def _observed(self, task: Task, arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
        infos = {i.name: i for i in self.compiled.observed}
        ordered = {
            k: v if v.ndim == len(infos[k].dims) + 3 else np.moveaxis(v, 0, 1)[None]
            for k, v in arrays.items()
        }
        for name, info in infos.items():  # a likelihood of whole vectors has one term for them
            if ordered[name].ndim != 3 + len(info.dims):
                infos[name] = info._replace(dims=info.dims[: ordered[name].ndim - 3])
        return labelled(self.compiled, task, infos, ordered, SAMPLE)

    def _predict(
        self, z: np.ndarray, at: Sequence[Mapping[str, np.ndarray]], task: Task | None, seed: int
    ) -> dict[str, np.ndarray]:
        """Observed variables for z of shape (dataset, draw, dim): (chain, draw, dataset, ...)."""
        rng = np.random.default_rng(seed)
        parts = [
            predict(self.compiled, u, data, self._lengths(data), rng=rng)
            for u, data in zip(z, at, strict=True)
        ]
        longest = {k: max(p[k].shape[1:] for p in parts) for k in parts[0]}
        return {
            k: np.stack([_fill(p[k], longest[k]) for p in parts], axis=1)[None] for k in parts[0]
        }

    def _lengths(self, data: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Lengths of the dims of the data: of the covariates, else of the observations given."""
        found = {d: n for i in self.compiled.observed for d, n in zip(i.dims, i.shape, strict=True)}
        for info in (*self.compiled.observed, *self.compiled.covariates):
            if info.name in data:
                found |= dict(zip(info.dims, np.shape(data[info.name]), strict=True))
        return {d: n for d, n in found.items() if d in self.compiled.data_dims}

    def _new_covariates(
        self, new: xr.Dataset | Mapping[str, np.ndarray], task: Task
    ) -> list[dict[str, np.ndarray]]:
        infos = self.compiled.covariates
        missing = [i.name for i in infos if i.name not in new]
        if missing or not infos:
            raise ValueError(
                f"new_covariates: expected {[i.name for i in infos]}, {missing} did not come."
                if infos
                else "new_covariates: the posterior has no covariates; leave the argument out."
            )
        found: list[dict[str, np.ndarray]] = [{} for _ in task.names]
        for info in infos:
            value = new[info.name]
            if isinstance(value, xr.DataArray):
                value = value.transpose(*(d for d in (DATASET, *info.dims) if d in value.dims))
            array = np.asarray(value)
            if array.ndim not in (len(info.dims), len(info.dims) + 1):
                raise ValueError(
                    f"new_covariates[{info.name!r}]: expected shape {self.layout.expected(info)}, "
                    f"got {array.shape}."
                )
            each = array if array.ndim > len(info.dims) else [array] * len(task)
            if len(each) != len(task):
                raise ValueError(
                    f"new_covariates[{info.name!r}]: expected {len(task)} datasets, got {len(each)}."
                )
            for one, entry in zip(found, each, strict=True):
                one[info.name] = np.asarray(entry, info.dtype)
        return found


def fit_amortized(
    model: pm.Model | None = None,
    *,
    covariates: Mapping[str, Source] | xr.Dataset | None = None,
    exchangeable: str | None = None,
    sequence: str | None = None,
    network: Network | AbstractSummary | None = None,
    steps: int = 4000,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    warmup: int = 200,
    clip: float = 1.0,
    validation: int = 512,
    patience: int | None = None,
    simulator: Literal["auto", "jax", "pytensor"] = "auto",
    checkpoint: str | os.PathLike | None = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> AmortizedPosterior:
    """Compile a PyMC model, derive its simulator and train an amortized posterior on simulations.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context when not given. Observed values are placeholders: only their shape
        and type matter.
    covariates : mapping or xarray.Dataset, optional
        For each `pm.Data` that changes from dataset to dataset, where simulated ones come from: a
        PyMC distribution of one entry or one row (``pm.Normal.dist(0, 1)``), an array to resample
        rows or whole datasets from, or a function of a `numpy.random.Generator` and a length. Any
        other `pm.Data` is a constant.
    exchangeable, sequence : str, optional
        The dim of the observed variables along which order does not matter, or does. Found by
        itself where the likelihood makes it certain.
    network : Network or AbstractSummary, optional
        The default follows from the data: `DeepSet`, `Recurrent` or `Flatten`, and `CouplingFlow`.
    steps, batch_size : int
        Training steps, and fresh simulations in each.
    learning_rate, warmup, clip
        Highest rate of Adam, steps of warm-up before cosine decay, largest gradient norm.
    validation : int
        Fresh simulations by whose loss the best weights are chosen.
    patience : int, optional
        Stop after this many blocks of 100 steps without a better validation loss.
    simulator : {"auto", "jax", "pytensor"}
        Where simulations are made; "auto" takes JAX where it can sample the model.
    checkpoint : path, optional
        Written after every block; training goes on from it where it exists.
    random_seed : int, optional
        Same seed, same weights.
    progressbar : bool

    Returns
    -------
    AmortizedPosterior

    Raises
    ------
    UnsupportedModelError
        If the model cannot be compiled or simulated, naming the variable and the way out.
    ValueError
        If a covariate's source does not fit, naming it.
    """
    model = pm.modelcontext(model)
    seed = _seed(random_seed, None)
    settings = PretrainingSettings(
        steps=_positive("steps", steps),
        batch_size=_positive("batch_size", batch_size),
        learning_rate=learning_rate,
        warmup=warmup,
        clip=clip,
        validation=_positive("validation", validation),
        patience=patience,
        block=100,
    )
    with precision.scope():
        compiled = compile_model(model, covariates=tuple(map(str, covariates or ())))
        source = make_simulator(
            compiled, read_covariates(covariates, compiled.covariates), backend=simulator
        )
        check_finite(source)
        structure = read_structure(compiled, source, exchangeable=exchangeable, sequence=sequence)
        chosen = default_network(structure, network)
        z, data = source.simulate(1000, random_seed=seed)
        amortizer = build_amortizer(
            chosen,
            InputLayout.of(compiled.data, structure.row),
            z,
            data,
            key=jax.random.key(seed),
        )
        posterior = AmortizedPosterior(
            compiled, source, structure, chosen, amortizer, settings, seed
        )
        if progressbar:
            print(posterior)  # noqa: T201  (what was chosen is shown, as PyMC shows its samplers)
        amortizer, record = pretrain(
            amortizer, source, settings, seed=seed, checkpoint=checkpoint, progressbar=progressbar
        )
    return replace(posterior, amortizer=amortizer, pretraining=(record,))


def _fill(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape[1:] == shape:
        return value
    pad = [(0, 0), *((0, n - m) for n, m in zip(shape, value.shape[1:], strict=True))]
    return np.pad(value.astype(float), pad, constant_values=np.nan)


def _numbered(data: xr.Dataset) -> xr.Dataset:
    return data.assign_coords({d: np.arange(data.sizes[d]) for d in ("chain", "draw")})


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}.")
    return value


def _seed(given: int | None, derived: int | None) -> int:
    if given is not None:
        return int(given)
    return (
        derived if derived is not None else int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    )


def _warn_of_khat(task: Task, stats: Mapping[str, np.ndarray]) -> None:
    bad = [n for n, w in zip(task.names, stats["warning"], strict=True) if w]
    if bad:
        shown = ", ".join(map(repr, bad[:5])) + (", ..." if len(bad) > 5 else "")
        warnings.warn(
            f"The amortized posterior of {len(bad)} of {len(task)} datasets has a high Pareto "
            f"k-hat ({shown}): adapt to data like these, or compare with `sample_reference`. "
            "`dataset_stats` has the values.",
            stacklevel=3,
        )
