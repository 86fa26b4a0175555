"""Posterior draws by NUTS for many datasets of one model, compiled once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.distributions.transforms import CircularTransform

from pmcl.compile import CompiledModel
from pmcl.compile.variables import value_slices
from pmcl.reference.backends import (
    STATS,
    Begin,
    Chains,
    NutsSettings,
    Sampler,
    by_nutpie,
    by_pymc,
)
from pmcl.reference.checks import Checked, check_datasets, check_rebuilt
from pmcl.reference.shared_model import Arrays, share_data
from pmcl.runtime.jitting import compiling
from pmcl.runtime.progress import progress_bar

SAMPLERS = ("nutpie", "pymc", "blackjax")


class SamplingError(RuntimeError):
    """NUTS failed; the message names the dataset."""


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


class Warm(NamedTuple):
    """Chains that begin near good draws; datasets on which the sampler fails are left out.

    Attributes
    ----------
    begins : sequence of Begin
        Where each dataset's chains begin, and in which coordinates they walk.
    again : callable, optional
        Of a dataset's chains, z of shape (chain, draw, dim), to where they begin once more, or None
        where they agree: draws or a metric may have been far off.
    """

    begins: Sequence[Begin]
    again: Callable[[np.ndarray], Begin | None] | None = None


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
    sample: Sampler


type Cache = list[Cached]


def kept(compiled: CompiledModel) -> Cache:
    """What NUTS compiled of a model, as long as the model is there."""
    return compiled.keep("nuts", list)


def nuts(
    model: pm.Model,
    datasets: Sequence[Mapping[str, np.ndarray]],
    *,
    names: Sequence[str],
    settings: NutsSettings = NutsSettings(),  # noqa: B008
    warm: Warm | None = None,
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
    settings
    warm
        Where chains begin, if not near PyMC's initial point. With nutpie only.
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
    SamplingError
        If the sampler fails on a dataset, for instance as its log density is finite nowhere near
        the initial values.

    References
    ----------
    Hoffman, M. D. and Gelman, A. (2014). The No-U-Turn Sampler: Adaptively Setting Path Lengths in
    Hamiltonian Monte Carlo. Journal of Machine Learning Research 15, 1593-1623.
    """
    check_settings(settings, warm)
    checked = check_datasets(model, datasets, names)
    seeds = seeds_of(random_seed, len(datasets))

    dim = None if warm is None else len(warm.begins[0].metric.centre)
    cache = [] if cache is None else cache
    angles = _angles(model)

    def turned(found: Chains) -> Chains:
        """Bring angles into one turn: chains walk round and round."""
        z = np.array(found.z)
        z[..., angles] = (z[..., angles] + np.pi) % (2 * np.pi) - np.pi
        return found._replace(z=z)

    parts: list[Chains] = []
    seconds: list[float] = []
    failures: dict[int, str] = {}
    with progress_bar("NUTS", len(names), enabled=progressbar) as bar:
        start = perf_counter()
        sample = _compiled(model, checked, names, dim, settings, cache)
        compile_seconds = perf_counter() - start

        def one(i: int) -> Chains:
            arrays, lengths = checked.arrays[i], checked.lengths[i]
            with _explained(f"on dataset {names[i]!r}"):
                begin = None if warm is None else warm.begins[i]
                found = turned(sample(arrays, lengths, settings, seeds[i], begin))
                anew = None if warm is None or warm.again is None else warm.again(found.z)
                if anew is not None:
                    found = turned(sample(arrays, lengths, settings, seeds[i] ^ 1, anew))
            return found

        for i, name in enumerate(names):
            bar.say(name)
            start = perf_counter()
            try:
                parts.append(one(i))
            except RuntimeError as error:
                if warm is None:
                    raise
                failures[i] = str(error)
                parts.append(_nothing(settings, len(warm.begins[i].metric.centre)))
            seconds.append(perf_counter() - start)
            bar.advance(1)
    return NutsDraws(
        unconstrained=np.stack([part.z for part in parts]),
        stats={name: np.stack([part.stats[name] for part in parts]) for name in parts[0].stats},
        seconds=np.array(seconds),
        compile_seconds=compile_seconds,
        failures=failures,
    )


def _angles(model: pm.Model) -> list[int]:
    """Entries of z that are angles."""
    round_ = {
        rv.name for rv, t in model.rvs_to_transforms.items() if isinstance(t, CircularTransform)
    }
    slices = value_slices(model) if round_ else ()
    return [i for v in slices if v.variable in round_ for i in range(v.start, v.start + v.size)]


def _compiled(
    model: pm.Model,
    checked: Checked,
    names: Sequence[str],
    dim: int | None,
    settings: NutsSettings,
    cache: Cache,
) -> Sampler:
    """Compile the rebuilt model, unless the cache has it for datasets of these kinds."""
    kinds = frozenset(_kind(arrays) for arrays in checked.arrays)
    for known in cache:
        if (known.sampler, known.dim) == (settings.sampler, dim) and kinds <= known.kinds:
            return known.sample
    shared = share_data(model, checked.arrays)
    with compiling():
        check_rebuilt(shared, checked, names)
        order = [value.name for value in model.value_vars]
        shared.set(checked.arrays[0], checked.lengths[0])  # the one that compilation sees
        with _explained(f"to compile with dataset {names[0]!r}"):
            if settings.sampler == "nutpie":
                sample = by_nutpie(shared, order, dim)
            else:
                sample = by_pymc(shared, checked, order, settings)
    cache.append(Cached(settings.sampler, dim, kinds, sample))
    return sample


def _kind(arrays: Arrays) -> _Kind:
    return frozenset((name, a.shape) for name, a in arrays.items())


def _nothing(settings: NutsSettings, dim: int) -> Chains:
    """Stand in the place of chains that could not be run."""
    shape = (settings.chains, settings.draws)
    return Chains(
        np.full((*shape, dim), np.nan), {name: np.zeros(shape, dtype) for name, _, dtype in STATS}
    )


def seeds_of(
    random_seed: int | np.random.Generator | Sequence[int] | None, number: int
) -> list[int]:
    """Return a seed for each dataset, which is the same however many follow it."""
    if isinstance(random_seed, Sequence):
        return list(random_seed)
    generators = np.random.default_rng(random_seed).spawn(number)
    return [int(generator.integers(2**31)) for generator in generators]


def check_settings(settings: NutsSettings, warm: Warm | None = None) -> None:
    """Raise a ValueError where an argument is out of range."""
    if settings.sampler not in SAMPLERS:
        raise ValueError(f"sampler: expected one of {SAMPLERS}, got {settings.sampler!r}.")
    if warm is not None and settings.sampler != "nutpie":
        raise ValueError('Expected sampler="nutpie" with chains that begin warm, got "pymc".')
    for name, lowest in (("draws", 1), ("tune", 0), ("chains", 1)):
        if getattr(settings, name) < lowest:
            raise ValueError(f"Expected {name} >= {lowest}, got {getattr(settings, name)}.")
    if settings.cores is not None and settings.cores < 1:
        raise ValueError(f"Expected cores >= 1 or None, got {settings.cores}.")
    if not 0 < settings.target_accept < 1:
        raise ValueError(f"Expected 0 < target_accept < 1, got {settings.target_accept}.")


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Say which dataset a failure within PyMC, PyTensor or a sampler belongs to."""
    try:
        yield
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SamplingError(
            f"NUTS failed {doing}: {said.rstrip('.')}. Where its log density is finite nowhere "
            "near the initial point, give variables an `initval`, or look for values that the "
            "model cannot take."
        ) from None
