"""Calibration of an amortized posterior on simulations: of the prior's, or of those around data."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.compile import CompiledModel
from pmcl.data.reading import as_task
from pmcl.data.simulated import simulated_task
from pmcl.data.stacking import concatenate
from pmcl.data.task import DATASET, Layout, Task, TaskLike
from pmcl.draws.densities import constrain, pick
from pmcl.draws.prediction import predictions
from pmcl.draws.results import flat_z, labelled
from pmcl.metrics import coverage, learned, pit, tarp
from pmcl.refinement.settings import RefineLike
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive, seed_of

if TYPE_CHECKING:
    from distributed import Client


_LEVELS = (0.5, 0.8, 0.9, 0.95)
_SIMULATION = "simulation"


class _Trial(NamedTuple):
    """Truths and posterior draws of simulated datasets.

    Attributes
    ----------
    truth, drawn : dict of arrays of shape (simulation, ...) and (simulation, draw, ...)
    z, truth_z : arrays of shape (simulation, draw, dim) and (simulation, dim)
    stats : xarray.Dataset
        `dataset_stats` of the simulated datasets.
    """

    truth: dict[str, np.ndarray]
    drawn: dict[str, np.ndarray]
    truth_z: np.ndarray
    z: np.ndarray
    stats: xr.Dataset

    def part(self, begin: int, number: int) -> "_Trial":
        """Return some simulations after one another."""
        some = slice(begin, begin + number)
        return _Trial(
            {n: v[some] for n, v in self.truth.items()},
            {n: v[some] for n, v in self.drawn.items()},
            self.truth_z[some],
            self.z[some],
            self.stats.isel({DATASET: some}),
        )


def calibrate(
    posterior: AmortizedPosterior | MultilevelPosterior,
    data: TaskLike | None = None,
    *,
    simulations: int = 500,
    draws: int = 200,
    refine: RefineLike | None = None,
    levels: Sequence[float] = _LEVELS,
    var_names: list[str] | None = None,
    client: "Client | None" = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Is the truth anywhere among the draws with equal probability?

    Without data: simulation-based calibration over the prior. With data: posterior SBC, which asks
    the same where it matters, around each dataset and without fitting anything again. Parameters
    are drawn from the dataset's posterior, new rows from them, and the posterior of the old rows
    and the new ones together has to have the parameters at uniform ranks.

    Parameters
    ----------
    posterior : AmortizedPosterior or MultilevelPosterior
    data : xarray.Dataset, mapping or pandas.DataFrame, optional
        Datasets to calibrate around; their rows must be exchangeable.
    simulations : int
        Datasets drawn from the model's joint, of the lengths and with the gaps of training; or
        around each dataset.
    draws : int
        Posterior draws for each.
    refine : bool, "auto" or Refine, optional
        False: the network as it is; else what `sample` gives with refinement. By default False
        without data, "auto" with them: datasets twice as long are new to the network.
    levels : sequence of float
        Of central intervals, for `coverage`.
    var_names : list of str, optional
        All free variables and deterministics by default, less those that are as long as a dataset
        where these differ in length.
    client : distributed.Client, optional
        A Dask cluster whose workers sample the posteriors of simulations.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        Group `prior_sbc`, or `posterior_sbc` by `dataset`: values in (0, 1), uniform where the
        posterior is calibrated, one `draw` for each simulation (``arviz_plots.plot_ecdf_pit``
        draws them). Group `uniformity`: for each variable the p-value of ArviZ's test of it. Group
        `coverage`: for each variable and `level` the fraction of central intervals that hold the
        truth, and between which `low` and `high` it lies in 99 of 100 runs. Group `tarp`: `value`,
        uniform where the joint posterior of all parameters is calibrated, and its `p_value`. Group
        `dataset_stats`: as in `sample`.
        Without data also, by variable: groups `z_score` and `contraction` (what each `simulation`
        has taught), and `correlation` of posterior means with the truth.

    Raises
    ------
    ValueError
        With data whose rows are not exchangeable.

    References
    ----------
    Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based calibration;
    Saeilynoja et al. (2025), Posterior SBC: simulation-based calibration checking conditional on
    data; Lemos et al. (2023), Sampling-based accuracy testing of posterior estimators.
    """
    seed = seed_of(random_seed, posterior.seed + 1)
    names = pick(posterior.compiled, var_names)
    positive("simulations", simulations)
    asked = {"draws": draws, "var_names": names, "client": client, "progressbar": progressbar}
    if data is None:
        with precision.scope():
            z, task = simulated_task(
                posterior.simulator, posterior.structure.row, simulations, random_seed=seed
            )
        trial = _tried(posterior, z, task, False if refine is None else refine, seed, asked)
        groups = _verdict(posterior, trial, levels, seed)
        groups |= _recovery(posterior, trial)
        groups["prior_sbc"] = groups.pop("sbc")
        groups["dataset_stats"] = trial.stats
        return xr.DataTree.from_dict(groups)
    given = as_task(data, posterior.layout)
    _check_exchangeable(posterior, given)
    refined: RefineLike = "auto" if refine is None else refine
    around = [
        _around(posterior, given.select([i]), simulations, refined, seed + i)
        for i in range(len(given))
    ]
    if given.ragged:  # what is padded for one would be left out for all
        trials = [
            _tried(posterior, z, task, refined, seed + i, asked)
            for i, (z, task) in enumerate(around)
        ]
    else:
        z, task = np.concatenate([z for z, _ in around]), concatenate([t for _, t in around])
        whole = _tried(posterior, z, task, refined, seed, asked)
        trials = [whole.part(i * simulations, simulations) for i in range(len(given))]
    parts, stats = [], []
    for i, trial in enumerate(trials):
        parts.append(_verdict(posterior, trial, levels, seed + i))
        stats.append(trial.stats.rename({DATASET: _SIMULATION}).drop_vars(_SIMULATION))
        stats[-1] = stats[-1].assign_coords({_SIMULATION: np.arange(simulations)})
    dim = xr.DataArray(list(given.names), dims=DATASET, name=DATASET)
    groups = {k: xr.concat([p[k] for p in parts], dim=dim) for k in parts[0]}
    groups["posterior_sbc"] = groups.pop("sbc")
    groups["dataset_stats"] = xr.concat(stats, dim=dim)
    return xr.DataTree.from_dict(groups)


def _tried(
    posterior: AmortizedPosterior | MultilevelPosterior,
    z: np.ndarray,
    task: Task,
    refine: RefineLike,
    seed: int,
    asked: dict[str, Any],
) -> _Trial:
    """Sample the posterior of simulated datasets whose parameters are known.

    `asked`: arguments of :meth:`AmortizedPosterior.sample`.
    """
    names = asked["var_names"]
    with precision.scope():
        truth = constrain(posterior.compiled, z[:, None], task, names)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", UserWarning)  # each k-hat is in the result
        tree = posterior.sample(
            task,
            refine=refine,
            fallback=None,
            random_seed=seed + 1,
            store=None if asked["client"] is None else Path(folder) / "draws.zarr",
            **asked,
        ).load()
    drawn = tree["posterior"].to_dataset()
    # Along padding there is nothing to be right about.
    padded = [n for n in names if task.ragged and posterior.structure.row in drawn[n].dims]
    if len(padded) == len(names):
        raise ValueError(
            f"calibrate: expected a variable without padding, got {padded}, as long as a dataset. "
            "Name another one in `var_names`."
        )
    names = tuple(n for n in names if n not in padded)
    truth = {n: truth[n] for n in names}
    return _Trial(
        {n: v[:, 0] for n, v in truth.items()},
        {n: np.moveaxis(drawn[n].values[0], 1, 0) for n in names},
        np.asarray(z),
        np.moveaxis(flat_z(posterior.compiled, tree)[0], 1, 0),
        tree["dataset_stats"].to_dataset(),
    )


def _verdict(
    posterior: AmortizedPosterior | MultilevelPosterior,
    trial: _Trial,
    levels: Sequence[float],
    seed: int,
) -> dict[str, xr.Dataset]:
    """Return the groups sbc, uniformity, coverage and tarp."""
    from arviz_stats.base import array_stats

    compiled, layout = posterior.compiled, posterior.layout
    rng = np.random.default_rng(seed)
    values = {n: pit(trial.drawn[n], trial.truth[n], rng) for n in trial.truth}
    tests = {n: np.asarray(array_stats.uniformity_test(v, axis=0)[0]) for n, v in values.items()}
    held = {n: coverage(v, levels) for n, v in values.items()}
    one = next(iter(held.values()))
    sbc = _labelled(compiled, layout, {k: v[None] for k, v in values.items()}, ("chain", "draw"))
    covered = _labelled(compiled, layout, {n: c.observed for n, c in held.items()}, ("level",))
    scale = np.where((sd := trial.truth_z.std(axis=0)) > 0, sd, 1.0)
    ball = tarp(trial.z / scale, trial.truth_z / scale, rng)
    return {
        "sbc": sbc.assign_coords(chain=[0], draw=np.arange(len(ball))),
        "uniformity": _labelled(compiled, layout, tests, ()),
        "coverage": covered.assign_coords(
            level=one.levels, low=("level", one.low), high=("level", one.high)
        ),
        "tarp": xr.Dataset(
            {
                "value": (_SIMULATION, ball),
                "p_value": float(array_stats.uniformity_test(ball, axis=0)[0]),
            }
        ),
    }


def _recovery(
    posterior: AmortizedPosterior | MultilevelPosterior, trial: _Trial
) -> dict[str, xr.Dataset]:
    """Return the groups z_score, contraction and correlation."""
    found: dict[str, dict[str, np.ndarray]] = {"z_score": {}, "contraction": {}, "correlation": {}}
    for name, truth in trial.truth.items():
        result = learned(trial.drawn[name], truth)
        found["z_score"][name], found["contraction"][name] = result
        a, b = (v - v.mean(axis=0) for v in (trial.drawn[name].mean(axis=1), truth))
        with np.errstate(divide="ignore", invalid="ignore"):
            found["correlation"][name] = np.asarray(
                (a * b).sum(axis=0) / np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
            )
    return {
        measure: _labelled(
            posterior.compiled,
            posterior.layout,
            arrays,
            () if measure == "correlation" else (_SIMULATION,),
        )
        for measure, arrays in found.items()
    }


def _labelled(
    compiled: CompiledModel,
    layout: Layout,
    arrays: Mapping[str, np.ndarray],
    leading: tuple[str, ...],
) -> xr.Dataset:
    infos = {i.name: i for i in (*compiled.free, *compiled.deterministics)}
    like = Task(layout, {}, (_SIMULATION,), None)
    found = labelled(compiled, like, infos, arrays, leading).drop_vars(DATASET, errors="ignore")
    # arviz-plots selects by coordinates: dims without names are numbered
    return found.assign_coords(
        {d: np.arange(n) for d, n in found.sizes.items() if d not in found.coords}
    )


def _check_exchangeable(posterior: AmortizedPosterior | MultilevelPosterior, task: Task) -> None:
    """Posterior SBC puts new rows beside the old ones: that needs rows, and no order among them."""
    row = posterior.structure.row
    exchangeable = posterior.structure.kind == "exchangeable"
    fixed = [i.name for i in task.layout.variables if row not in i.dims]
    if row is None or not exchangeable or fixed or task.ragged or task.there:
        because = (
            "its rows are not exchangeable"
            if row is None or not exchangeable
            else f"{fixed} have none"
            if fixed
            else "the datasets have gaps, or different lengths"
        )
        raise ValueError(
            "calibrate: expected data whose rows are exchangeable, all there and of one number, "
            f"since new ones are put beside them; {because}. Calibrate without data instead."
        )


def _around(
    posterior: AmortizedPosterior | MultilevelPosterior,
    alone: Task,
    n: int,
    refine: RefineLike,
    seed: int,
) -> tuple[np.ndarray, Task]:
    """Parameters from the posterior of one dataset, and the dataset with as many new rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = posterior.sample(alone, n, refine=refine, fallback=None, random_seed=seed)
    z = flat_z(posterior.compiled, tree)[0, :, 0]
    old = alone.dataset(0)
    with precision.scope():
        new = predictions(posterior.compiled, z[None], [old], seed=seed)
    row = posterior.structure.row
    values = {}
    for info in alone.layout.variables:
        first = np.broadcast_to(old[info.name], (n, *np.shape(old[info.name])))
        second = new[info.name][0, :, 0] if info.name in new else first
        axis = 1 + info.dims.index(str(row))
        values[info.name] = np.concatenate([first, second.astype(first.dtype)], axis=axis)
    names = tuple(f"simulated {i} around {alone.names[0]}" for i in range(n))
    assert alone.lengths is not None
    return z, Task(alone.layout, values, names, np.repeat(2 * alone.lengths, n))
