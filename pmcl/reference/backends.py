"""One dataset through nutpie, or PyMC's own sampler, compiled for all datasets of its kind."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
from xarray import DataTree

from pmcl.reference.checks import Checked
from pmcl.reference.shared_model import Arrays, SharedModel
from pmcl.reference.whitened import WHITE, Metric, whitened

# ArviZ's name of each statistic (PyMC's too), then nutpie's
STATS = (
    ("lp", "logp", np.float64),
    ("acceptance_rate", "mean_tree_accept", np.float64),
    ("diverging", "diverging", np.bool_),
    ("energy", "energy", np.float64),
    ("energy_error", "energy_error", np.float64),
    ("max_energy_error", "max_energy_error", np.float64),
    ("n_steps", "n_steps", np.int64),
    ("step_size", "step_size", np.float64),
    ("tree_depth", "depth", np.int64),
)

_ABOUT = 64  # points of which each chain begins at one


class NutsSettings(NamedTuple):
    """How NUTS runs.

    Attributes
    ----------
    draws, tune
        Draws of each chain to keep, and to spend on tuning before.
    chains
        Number of chains.
    cores
        Chains that nutpie runs at a time, each in a thread. None: as many as the machine has cores.
        PyMC runs one after the other: it would fork processes, which is not safe beside JAX.
    target_accept
        Mean acceptance probability to which the step size is tuned.
    sampler
        ``"nutpie"`` compiles with Numba, once. ``"pymc"`` also compiles once, unless the prior of a
        free variable depends on what the datasets set: then once a dataset, within ``seconds``.
        ``"blackjax"`` is for :mod:`pmcl.reference.vectorised`.
    """

    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    cores: int | None = None
    target_accept: float = 0.8
    sampler: Literal["nutpie", "pymc", "blackjax"] = "nutpie"


class Chains(NamedTuple):
    """Draws of one dataset: z (chain, draw, dim), statistics (chain, draw)."""

    z: np.ndarray
    stats: dict[str, np.ndarray]


class Begin(NamedTuple):
    """Where the chains of one dataset begin.

    Attributes
    ----------
    metric : Metric
        They walk in its coordinates.
    draws : array of shape (draw, dim)
        Draws of z that are thought to be good; each chain begins at one of them.
    """

    metric: Metric
    draws: np.ndarray

    @classmethod
    def at(cls, z: np.ndarray) -> "Begin":
        """At draws of shape (draw, dim), with their moments for a metric."""
        z = np.asarray(z, float)
        return cls(Metric.of(z), z[np.isfinite(z).all(axis=1)])

    @classmethod
    def about(cls, initial: np.ndarray) -> "Begin":
        """Near the model's initial point (dim,), as PyMC begins: up to one away in each entry."""
        away = np.random.default_rng(0).uniform(-1, 1, (_ABOUT, len(initial)))
        return cls(Metric.identity(initial), initial + away)

    def start(self, seed: int) -> np.ndarray:
        """Return where one chain begins, in the metric's coordinates."""
        if not len(self.draws):
            return np.zeros(len(self.metric.centre))
        return self.metric.to(self.draws[np.random.default_rng(seed).integers(len(self.draws))])


# draws one dataset, with settings, one seed and perhaps a beginning
type Sampler = Callable[[Arrays, Mapping[str, int], NutsSettings, int, Begin | None], Chains]


def _concatenate(columns: Mapping[str, np.ndarray], order: Sequence[str]) -> np.ndarray:
    """Join (chain, draw, ...) arrays of the value variables to z."""
    flat = [columns[name].reshape(*columns[name].shape[:2], -1) for name in order]
    return np.concatenate(flat, axis=-1, dtype=np.float64)


def by_nutpie(shared: SharedModel, order: Sequence[str], dim: int | None) -> Sampler:
    import nutpie

    white = None if dim is None else whitened(shared.model, order, dim)
    columns = order if white is None else [WHITE]
    # value variables come along whatever var_names says; nothing else is wanted
    compiled = nutpie.compile_pymc_model(
        shared.model if white is None else white.model, var_names=[]
    )
    read = {variable.name for variable in compiled.shared_var_keys}

    def sample(
        arrays: Arrays,
        lengths: Mapping[str, int],
        settings: NutsSettings,
        seed: int,
        begin: Begin | None,
    ) -> Chains:
        shared.set(arrays, lengths)
        values = shared.updates(arrays, lengths)
        if white is not None and begin is not None:
            values |= white.updates(begin.metric)
        ready = compiled.with_data(**{v.name: x for v, x in values.items() if v.name in read})
        if begin is not None:  # PyMC's initial points are what they jitter around
            ready = replace(ready, initial_point_func=begin.start)
        background = nutpie.sample(
            ready,
            draws=settings.draws,
            tune=settings.tune,
            chains=settings.chains,
            cores=settings.cores,
            target_accept=settings.target_accept,
            seed=seed,
            progress_bar=False,
            save_warmup=False,
            return_raw_trace=True,  # making a DataTree takes longer than sampling a small model
            blocking=False,
        )
        try:
            trace = background.wait()
        except BaseException as error:
            with suppress(BaseException):  # after a panic it panics, too
                background.cancel()
            if isinstance(error, Exception | KeyboardInterrupt | SystemExit):
                raise
            # a panic of Rust is no Exception
            raise RuntimeError(str(error).split("` value: ")[-1]) from None
        values_by_chain, stats_by_chain = trace.get_arrow_trace()
        z = {name: _column(values_by_chain, name, settings) for name in columns}
        stats = {
            name: _column(stats_by_chain, own, settings)[..., 0].astype(dtype)
            for name, own, dtype in STATS
        }
        walked = _concatenate(z, columns)
        return Chains(walked if begin is None else begin.metric.back(walked), stats)

    return sample


def _column(tables: Sequence[Any], name: str, settings: NutsSettings) -> np.ndarray:
    """One column of every chain's Arrow table, less the tuning: (chain, draw, size)."""
    import pyarrow

    chains = []
    for table in tables:
        column = pyarrow.record_batch(table).column(name).slice(table.num_rows - settings.draws)
        flat = column.flatten() if pyarrow.types.is_nested(column.type) else column
        chains.append(flat.to_numpy(zero_copy_only=False).reshape(settings.draws, -1))
    return np.stack(chains)


def by_pymc(
    shared: SharedModel, checked: Checked, order: Sequence[str], settings: NutsSettings
) -> Sampler:
    if not shared.free_depend_on_data(checked.arrays[0], checked.lengths[0]):
        shared = shared.frozen()  # PyMC's own way to compile once

    def run(settings: NutsSettings, seed: int) -> DataTree:
        with np.errstate(over="ignore"):  # a diverging trajectory while tuning
            return pm.sample(
                model=shared.model,
                draws=settings.draws,
                tune=settings.tune,
                chains=settings.chains,
                cores=1,  # JAX is loaded: the processes that more cores would fork may deadlock
                target_accept=settings.target_accept,
                nuts_sampler="pymc",
                random_seed=seed,
                progressbar=False,
                quiet=True,
                compute_convergence_checks=False,
                idata_kwargs={"include_transformed": True},
            )

    def sample(
        arrays: Arrays,
        lengths: Mapping[str, int],
        settings: NutsSettings,
        seed: int,
        begin: Begin | None,
    ) -> Chains:
        shared.set(arrays, lengths)
        tree = run(settings, seed)
        z = {name: tree["posterior"][name].to_numpy() for name in order}
        stats = {
            name: tree["sample_stats"][name].to_numpy().astype(dtype) for name, _, dtype in STATS
        }
        return Chains(_concatenate(z, order), stats)

    run(settings._replace(draws=1, tune=1, chains=1), 0)  # compile
    return sample
