"""Posterior draws by NUTS for many datasets of one model, compiled once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
from xarray import DataTree

from pmcl.compile import CompiledModel, compiling
from pmcl.progress import progress_bar
from pmcl.reference.data import Checked, check_datasets, check_rebuilt
from pmcl.reference.shared import Arrays, SharedModel, share_data
from pmcl.reference.whitened import WHITE, Metric, whitened

# ArviZ's name of each statistic (PyMC's too), then nutpie's
_STATS = (
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


class NutsDraws(NamedTuple):
    """Draws of the reference sampler.

    Attributes
    ----------
    unconstrained
        Draws of z, shape (dataset, chain, draw, dim): the value variables raveled and concatenated
        in the order of ``model.value_vars``.
    stats
        Sampler statistics by ArviZ's ``sample_stats`` names, each of shape (dataset, chain, draw):
        ``lp``, ``acceptance_rate``, ``diverging``, ``energy``, ``energy_error``,
        ``max_energy_error``, ``n_steps`` (gradient evaluations), ``step_size``, ``tree_depth``.
    seconds
        Wall time of sampling each dataset, tuning included, shape (dataset,).
    compile_seconds
        Wall time of the compilation that all datasets share.
    failures
        What the sampler said of datasets on which it failed, by position; their draws are NaN.
    """

    unconstrained: np.ndarray
    stats: dict[str, np.ndarray]
    seconds: np.ndarray
    compile_seconds: float
    failures: dict[int, str]


class _Settings(NamedTuple):
    draws: int
    tune: int
    chains: int
    cores: int | None
    target_accept: float


class _Chains(NamedTuple):
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

    def start(self, seed: int) -> np.ndarray:
        """Return where one chain begins, in the metric's coordinates."""
        if not len(self.draws):
            return np.zeros(len(self.metric.centre))
        return self.metric.to(self.draws[np.random.default_rng(seed).integers(len(self.draws))])


# draws one dataset, with settings, one seed and perhaps a beginning
type _Sampler = Callable[[Arrays, Mapping[str, int], _Settings, int, Begin | None], _Chains]

# which arrays a dataset has, and of which shapes
type _Kind = frozenset[tuple[str, tuple[int, ...]]]


class Cached(NamedTuple):
    """What was compiled of one model for datasets of some kinds.

    Attributes
    ----------
    sampler : str
    dim : int, optional
        Length of z where chains walk in coordinates of their own.
    kinds : frozenset
    sample : callable
    """

    sampler: str
    dim: int | None
    kinds: frozenset[_Kind]
    sample: _Sampler


type Cache = list[Cached]


def kept(compiled: CompiledModel) -> Cache:
    """What NUTS compiled of a model, as long as the model is there."""
    return compiled.keep("nuts", list)


def nuts(
    model: pm.Model,
    datasets: Sequence[Mapping[str, np.ndarray]],
    *,
    names: Sequence[str],
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    target_accept: float = 0.8,
    sampler: Literal["nutpie", "pymc"] = "nutpie",
    begins: Sequence[Begin] | None = None,
    agreed: Callable[[np.ndarray], bool] | None = None,
    keep_going: bool = False,
    cache: Cache | None = None,
    random_seed: int | np.random.Generator | Sequence[int] | None = None,
    progressbar: bool = True,
) -> NutsDraws:
    """Sample the posterior of every dataset by NUTS, with one compilation for all.

    The model is rebuilt with its observations, the given covariates and the lengths of their dims
    as shared variables; the user's model is left as it is.

    Parameters
    ----------
    model
        Model with observed variables, whatever their values are made of (arrays or ``pm.Data``).
        Potentials, Deterministics and initial values are kept in what they do to sampling.
    datasets
        One mapping a dataset from the name of every observed variable, and of any ``pm.Data`` that
        is a covariate, to its array: of the model's rank, of any length along dims that can follow.
        A ``pm.Data`` that no dataset has is a constant.
    names
        Names of the datasets, which errors cite.
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
    begins
        Where each dataset's chains begin, and in which coordinates they walk. With nutpie only.
    agreed
        Whether a dataset's chains, z of shape (chain, draw, dim), agree. Where they do not, they
        run once more, from what they found: a metric may have been far off.
    keep_going
        Whether datasets on which the sampler fails are left out rather than raised. With `begins`.
    cache
        What calls with the same model compiled before, to which this one adds what it compiles.
    random_seed
        Seed from which every dataset's own seed is derived, or those of all datasets. The same
        seed, the same draws.
    progressbar
        Whether to show one progress bar over the datasets.

    Returns
    -------
    NutsDraws

    Raises
    ------
    ValueError
        If a dataset does not fit the model (its name and the variable are cited), the size of z
        would change from one dataset to the next, or an argument is out of range.
    RuntimeError
        If the sampler fails on a dataset, for instance as its log density is finite nowhere near
        the initial values.

    References
    ----------
    Hoffman, M. D. and Gelman, A. (2014). The No-U-Turn Sampler: Adaptively Setting Path Lengths in
    Hamiltonian Monte Carlo. Journal of Machine Learning Research 15, 1593-1623.
    """
    settings = _check_settings(_Settings(draws, tune, chains, cores, target_accept))
    if sampler not in ("nutpie", "pymc"):
        raise ValueError(f'Expected sampler="nutpie" or "pymc", got {sampler!r}.')
    if begins is not None and sampler != "nutpie":
        raise ValueError(f'Expected sampler="nutpie" with begins, got {sampler!r}.')
    checked = check_datasets(model, datasets, names)
    seeds = seeds_of(random_seed, len(datasets))

    dim = None if begins is None else len(begins[0].metric.centre)
    cache = [] if cache is None else cache
    parts: list[_Chains] = []
    seconds: list[float] = []
    failures: dict[int, str] = {}
    with progress_bar("NUTS", len(names), enabled=progressbar) as bar:
        start = perf_counter()
        sample = _compiled(model, checked, names, sampler, dim, settings, cache)
        compile_seconds = perf_counter() - start

        def one(i: int) -> _Chains:
            arrays, lengths = checked.arrays[i], checked.lengths[i]
            with _explained(f"on dataset {names[i]!r}"):
                begin = None if begins is None else begins[i]
                found = sample(arrays, lengths, settings, seeds[i], begin)
                if begin is not None and agreed is not None and not agreed(found.z):
                    begin = Begin.at(found.z.reshape(-1, found.z.shape[-1]))
                    found = sample(arrays, lengths, settings, seeds[i] ^ 1, begin)
            return found

        for i, name in enumerate(names):
            bar.say(name)
            start = perf_counter()
            try:
                parts.append(one(i))
            except RuntimeError as error:
                if begins is None or not keep_going:
                    raise
                failures[i] = str(error)
                parts.append(_nothing(settings, len(begins[i].metric.centre)))
            seconds.append(perf_counter() - start)
            bar.advance(1)
    return NutsDraws(
        unconstrained=np.stack([part.z for part in parts]),
        stats={name: np.stack([part.stats[name] for part in parts]) for name in parts[0].stats},
        seconds=np.array(seconds),
        compile_seconds=compile_seconds,
        failures=failures,
    )


def _compiled(
    model: pm.Model,
    checked: Checked,
    names: Sequence[str],
    sampler: str,
    dim: int | None,
    settings: _Settings,
    cache: Cache,
) -> _Sampler:
    """Compile the rebuilt model, unless the cache has it for datasets of these kinds."""
    kinds = frozenset(_kind(arrays) for arrays in checked.arrays)
    for known in cache:
        if (known.sampler, known.dim) == (sampler, dim) and kinds <= known.kinds:
            return known.sample
    shared = share_data(model, checked.arrays)
    with compiling():
        check_rebuilt(shared, checked, names)
        order = [value.name for value in model.value_vars]
        shared.set(checked.arrays[0], checked.lengths[0])  # the one that compilation sees
        with _explained(f"to compile with dataset {names[0]!r}"):
            if sampler == "nutpie":
                sample = _nutpie(shared, order, dim)
            else:
                sample = _pymc(shared, checked, order, settings)
    cache.append(Cached(sampler, dim, kinds, sample))
    return sample


def _kind(arrays: Arrays) -> _Kind:
    return frozenset((name, a.shape) for name, a in arrays.items())


def _nothing(settings: _Settings, dim: int) -> _Chains:
    """Stand in the place of chains that could not be run."""
    shape = (settings.chains, settings.draws)
    return _Chains(
        np.full((*shape, dim), np.nan), {name: np.zeros(shape, dtype) for name, _, dtype in _STATS}
    )


def seeds_of(
    random_seed: int | np.random.Generator | Sequence[int] | None, number: int
) -> list[int]:
    """Return a seed for each dataset, which is the same however many follow it."""
    if isinstance(random_seed, Sequence):
        return list(random_seed)
    generators = np.random.default_rng(random_seed).spawn(number)
    return [int(generator.integers(2**31)) for generator in generators]


def _check_settings(settings: _Settings) -> _Settings:
    for name, lowest in (("draws", 1), ("tune", 0), ("chains", 1)):
        if getattr(settings, name) < lowest:
            raise ValueError(f"Expected {name} >= {lowest}, got {getattr(settings, name)}.")
    if settings.cores is not None and settings.cores < 1:
        raise ValueError(f"Expected cores >= 1 or None, got {settings.cores}.")
    if not 0 < settings.target_accept < 1:
        raise ValueError(f"Expected 0 < target_accept < 1, got {settings.target_accept}.")
    return settings


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Say which dataset a failure within PyMC, PyTensor or a sampler belongs to."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"NUTS failed {doing}: {error}") from error


def _concatenate(columns: Mapping[str, np.ndarray], order: Sequence[str]) -> np.ndarray:
    """Join (chain, draw, ...) arrays of the value variables to z."""
    flat = [columns[name].reshape(*columns[name].shape[:2], -1) for name in order]
    return np.concatenate(flat, axis=-1, dtype=np.float64)


def _nutpie(shared: SharedModel, order: Sequence[str], dim: int | None) -> _Sampler:
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
        settings: _Settings,
        seed: int,
        begin: Begin | None,
    ) -> _Chains:
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
        except BaseException:
            background.cancel()
            raise
        values_by_chain, stats_by_chain = trace.get_arrow_trace()
        z = {name: _column(values_by_chain, name, settings) for name in columns}
        stats = {
            name: _column(stats_by_chain, own, settings)[..., 0].astype(dtype)
            for name, own, dtype in _STATS
        }
        walked = _concatenate(z, columns)
        return _Chains(walked if begin is None else begin.metric.back(walked), stats)

    return sample


def _column(tables: Sequence[Any], name: str, settings: _Settings) -> np.ndarray:
    """One column of every chain's Arrow table, less the tuning: (chain, draw, size)."""
    import pyarrow

    chains = []
    for table in tables:
        column = pyarrow.record_batch(table).column(name).slice(table.num_rows - settings.draws)
        flat = column.flatten() if pyarrow.types.is_nested(column.type) else column
        chains.append(flat.to_numpy(zero_copy_only=False).reshape(settings.draws, -1))
    return np.stack(chains)


def _pymc(
    shared: SharedModel, checked: Checked, order: Sequence[str], settings: _Settings
) -> _Sampler:
    if not shared.free_depend_on_data(checked.arrays[0], checked.lengths[0]):
        shared = shared.frozen()  # PyMC's own way to compile once

    def run(settings: _Settings, seed: int) -> DataTree:
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
        settings: _Settings,
        seed: int,
        begin: Begin | None,
    ) -> _Chains:
        shared.set(arrays, lengths)
        tree = run(settings, seed)
        z = {name: tree["posterior"][name].to_numpy() for name in order}
        stats = {
            name: tree["sample_stats"][name].to_numpy().astype(dtype) for name, _, dtype in _STATS
        }
        return _Chains(_concatenate(z, order), stats)

    run(settings._replace(draws=1, tune=1, chains=1), 0)  # compile
    return sample
