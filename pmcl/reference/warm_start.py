"""Where a sampler of one's own begins for a dataset, and in which metric."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr

from pmcl.compile import CompiledModel, compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.compile.variables import holders
from pmcl.data.reading import as_task, layout_of
from pmcl.data.task import DATASET, Task
from pmcl.draws.densities import constrain
from pmcl.draws.handed import (
    GROUPS,
    by_dataset,
    data_of,
    log_weights_of,
    names_of,
    some_of,
    z_of,
)
from pmcl.draws.results import labelled
from pmcl.metrics import resample
from pmcl.reference.checks import check_datasets
from pmcl.reference.shared_model import share_data
from pmcl.reference.whitened import WHITE, Metric, whitened
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive

type MetricLike = Literal["auto", "dense", "low-rank", "diagonal"]
_MOST_DENSE, _MOST = 50, 500  # parameters up to which a metric is dense, or has correlations at all
_TELLING = 1.5  # variance along a direction, relative to the rest's, that a low-rank metric keeps
_PASSES = 3  # until it is known what the rest is
_WHOLE = 200  # parameters up to which a whitened model has a matrix
_READ = 256  # datasets whose draws are read together
_SHRUNK = 0.01  # of a correlation: resampled draws may lie in fewer dimensions than z has
# transforms that Stan has, too: there the metric is the same
_STANS = ("", "log", "logodds", "interval", "lowerbound", "upperbound", "ordered", "logexpm1")


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Starting points and metric for one dataset; made by :func:`pmcl.warm_start`.

    The order of unconstrained values is that of `model.value_vars`, as PyMC and nutpie have it.

    Attributes
    ----------
    dataset : str
    positions : array of shape (chain, dim)
        Unconstrained starting points, one a chain.
    initvals : list of dict
        The same on the scale of the model, by variable: ``pm.sample(initvals=...)``.
    mean : array of shape (dim,)
    inverse_mass_matrix : array of shape (dim, dim), or (dim,)
        Covariance of the posterior, or variances, under the name that blackjax has for it.
    warning : str
        Why the posterior that these are of should not be trusted; empty where it may.
    """

    dataset: str
    positions: np.ndarray = field(repr=False)
    initvals: list[dict[str, np.ndarray]] = field(repr=False)
    mean: np.ndarray = field(repr=False)
    inverse_mass_matrix: np.ndarray = field(repr=False)
    warning: str
    _compiled: CompiledModel = field(repr=False)
    _task: Task = field(repr=False)

    def step(self, model: pm.Model | None = None, **options: Any) -> pm.NUTS:
        """Return PyMC's NUTS with this metric: ``pm.sample(step=..., initvals=..., tune=100)``.

        Parameters
        ----------
        model : pymc.Model, optional
            That is sampled, with this dataset as its data; the one in the context by default.
        **options
            To :class:`pymc.NUTS`, `target_accept` for one.
        """
        return pm.NUTS(model=model, scaling=self.inverse_mass_matrix, is_cov=True, **options)

    def nutpie(self) -> Any:
        """Return this dataset's posterior for nutpie: ``nutpie.sample(..., tune=100)``.

        nutpie takes no metric, so the model is written in coordinates in which this one is the
        identity, as a vector `u`; chains begin at `positions`. Compiled once for all datasets of
        the same shapes. :meth:`posterior` turns the draws into the model's variables.
        """
        import nutpie

        compiled, data = self._compiled, self._task.dataset(0)
        checked = check_datasets(compiled.model, [data], [self.dataset])
        arrays, lengths = checked.arrays[0], checked.lengths[0]
        shapes = tuple((k, v.shape) for k, v in arrays.items())

        def make() -> tuple:
            shared = share_data(compiled.model, checked.arrays)
            order = [value.name for value in compiled.values]
            shared.set(arrays, lengths)
            white = whitened(shared.model, order, compiled.dim)
            return shared, white, nutpie.compile_pymc_model(white.model, var_names=[WHITE])

        shared, white, ready = compiled.keep(("nutpie", shapes), make)
        values = shared.updates(arrays, lengths) | white.updates(self._metric)
        read = {variable.name for variable in ready.shared_var_keys}
        ready = ready.with_data(**{v.name: x for v, x in values.items() if v.name in read})
        return replace(ready, initial_point_func=self._begin)

    def posterior(self, trace: xr.DataTree) -> xr.DataTree:
        """Turn what nutpie drew of :meth:`nutpie` into draws of the model's variables.

        Parameters
        ----------
        trace : xarray.DataTree
            From ``nutpie.sample``.

        Returns
        -------
        xarray.DataTree
            With the model's variables in `posterior`, and nutpie's other groups as they are.
        """
        u = trace["posterior"].to_dataset()[WHITE].transpose("chain", "draw", ...)
        z = self._metric.back(u.values)
        names = tuple(i.name for i in (*self._compiled.free, *self._compiled.deterministics))
        infos = {i.name: i for i in (*self._compiled.free, *self._compiled.deterministics)}
        flat = z.reshape(1, -1, z.shape[-1])
        with precision.scope():
            found = constrain(self._compiled, flat, self._task, names)
        values = {n: v.reshape(1, *z.shape[:2], *v.shape[2:]) for n, v in found.items()}
        group = labelled(self._compiled, self._task, infos, values, (DATASET, "chain", "draw"))
        group = group.isel({DATASET: 0}, drop=True).assign_coords(chain=u["chain"], draw=u["draw"])
        rest = {k: v.to_dataset() for k, v in trace.children.items() if k != "posterior"}
        return xr.DataTree.from_dict({"posterior": group, **rest})

    def cmdstan(self, folder: str | Path) -> tuple[list[Path], Path]:
        """Write CmdStan's JSON files: an `init` for each chain, and the `metric_file` of all.

        A Stan program whose parameters have the model's names, order and bounds reads them, with
        ``metric=dense_e`` or, for a diagonal one, ``diag_e``.

        Parameters
        ----------
        folder : path
            Made where there is none.

        Returns
        -------
        inits : list of Path
        metric : Path

        Raises
        ------
        ValueError
            Naming variables whose unconstrained scale is another one in Stan (a simplex, say).
        """
        other = {
            v.variable: v.name for v in self._compiled.values if _transform(v.name) not in _STANS
        }
        if other:
            raise ValueError(
                f"cmdstan: expected variables whose unconstrained scale Stan has, too; {[*other]} "
                "have another one. `initvals` can be written without a metric."
            )
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        inits = []
        for i, point in enumerate(self.initvals, start=1):
            inits.append(place / f"init_{i}.json")
            inits[-1].write_text(json.dumps({k: np.asarray(v).tolist() for k, v in point.items()}))
        metric = place / "metric.json"
        metric.write_text(json.dumps({"inv_metric": self.inverse_mass_matrix.tolist()}))
        return inits, metric

    @property
    def _metric(self) -> Metric:
        matrix = self.inverse_mass_matrix
        dense = np.diag(matrix) if matrix.ndim == 1 and len(matrix) <= _WHOLE else matrix
        return Metric(self.mean, np.sqrt(dense) if dense.ndim == 1 else np.linalg.cholesky(dense))

    def _begin(self, seed: int) -> np.ndarray:
        """Where one of nutpie's chains begins: it hands each another seed."""
        return self._metric.to(self.positions[int(seed) % len(self.positions)])


def warm_start(
    idata: xr.DataTree,
    model: pm.Model | CompiledModel | None = None,
    *,
    chains: int = 4,
    metric: MetricLike = "auto",
    random_seed: int = 0,
) -> dict[str, WarmStart]:
    """Give starting points and a metric to a sampler of one's own, from draws at hand.

    Parameters
    ----------
    idata : xarray.DataTree
        Draws of `sample` or `refine`, of many datasets or of one, in memory or in a `store` (from
        which they are read part by part); or PyMC's own, of a pilot run for one.
    model : pymc.Model or CompiledModel, optional
        Whose parameters these are; None takes it from the context. Data are read from `idata`.
    chains : int
        Starting points of each dataset, taken from its draws.
    metric : "auto", "dense", "low-rank" or "diagonal"
        Covariance of the draws; of it what draws can tell from none; or variances alone.
        "auto": dense up to 50 parameters, low-rank up to 500.
    random_seed : int

    Returns
    -------
    dict of str to WarmStart
        By the dataset's name ("0" of results without a dim `dataset`): for nutpie, `pm.sample`,
        blackjax and CmdStan.

    Raises
    ------
    ValueError
        Naming variables or data that `idata` lacks, or a dataset without two usable draws.
    """
    tree = by_dataset(idata)
    if isinstance(model, CompiledModel):
        compiled = model
    else:
        given = model_or_context(model)
        group = tree["constant_data"].data_vars if "constant_data" in tree.children else ()
        came = {*map(str, group)} - {*holders(given)}
        names = [v.name for v in given.data_vars if v.name in came]
        compiled = compile_model(given, covariates=names)
    wanted = [i.name for i in compiled.data]
    found: dict[str, WarmStart] = {}
    for begin in range(0, len(names_of(tree)), _READ):
        some = some_of(tree, slice(begin, begin + _READ), (*GROUPS, "dataset_stats"))
        _check_whole(compiled, some)
        data = data_of(some, wanted, "warm_start")
        task = replace(as_task(data, layout_of(compiled)), first=begin)
        found |= warm_starts(compiled, task, some, chains=chains, metric=metric, seed=random_seed)
    return found


def _check_whole(compiled: CompiledModel, tree: xr.DataTree) -> None:
    """Refuse draws of a dataset with fewer groups than the model: the others are padding."""
    z = z_of(compiled, tree, "idata")
    lacking = ~np.isfinite(z).any(axis=(0, 1))
    for name, none in zip(names_of(tree), lacking, strict=True):
        at = [slice(v.start, v.start + v.size) for v in compiled.values]
        pairs = zip(compiled.values, at, strict=True)
        some = {v.variable for v, where in pairs if none[where].any()}
        if some and not none.all():
            raise ValueError(
                f"idata: expected draws of all entries of {sorted(some)} for dataset {name!r}, "
                "some have none: it has fewer groups than the model. Pass `pmcl.one(idata, "
                f"{name!r})` with a model of its number of groups, or call the posterior's own "
                "`warm_start`."
            )


def warm_starts(
    compiled: CompiledModel,
    task: Task,
    tree: xr.DataTree,
    *,
    chains: int,
    metric: MetricLike,
    seed: int,
) -> dict[str, WarmStart]:
    """Starting points and metrics of the datasets of a task, whose draws these are."""
    z, weights = z_of(compiled, tree, "idata"), log_weights_of(tree)
    warnings = [""] * len(task)
    if "dataset_stats" in tree.children:
        warnings = [str(v) for v in tree["dataset_stats"].to_dataset()["warning"].values]
    names = tuple(i.name for i in compiled.free)
    chains = positive("chains", chains)
    found = {}
    for i, name in enumerate(task.names):
        alone = replace(task.select([i]), place=None)
        draws = z[:, :, i].reshape(-1, compiled.dim)
        rng = np.random.default_rng([seed, task.position[i]])
        if weights is not None and np.ptp(weights[:, :, i]) > 0:
            draws = draws[resample(weights[:, :, i].ravel(), len(draws), rng)]
        draws = draws[np.isfinite(draws).all(axis=1)]
        if len(draws) < 2:
            raise ValueError(
                f"idata: expected draws within the model's support of dataset {name!r}, got "
                f"{len(draws)} of {z.shape[0] * z.shape[1]}."
            )
        positions = draws[rng.choice(len(draws), chains, replace=len(draws) < chains)]
        with precision.scope():
            values = constrain(compiled, positions[None], alone, names)
        found[name] = WarmStart(
            dataset=name,
            positions=positions,
            initvals=[{n: v[0, c] for n, v in values.items()} for c in range(chains)],
            mean=draws.mean(axis=0),
            inverse_mass_matrix=covariance_of(draws, metric),
            warning=warnings[i],
            _compiled=compiled,
            _task=alone,
        )
    return found


def covariance_of(draws: np.ndarray, metric: MetricLike) -> np.ndarray:
    """Covariance of draws (draw, dim), with few or no correlations where asked for."""
    if metric not in ("auto", "dense", "low-rank", "diagonal"):
        raise ValueError(
            f"metric: expected 'auto', 'dense', 'low-rank' or 'diagonal', got {metric!r}."
        )
    dim = draws.shape[1]
    if metric == "auto":
        metric = "dense" if dim <= _MOST_DENSE else "low-rank" if dim <= _MOST else "diagonal"
    sd = draws.std(axis=0)
    sd = np.where(sd > 1e-8, sd, 1.0)
    if metric == "diagonal":
        return sd**2
    standard = (draws - draws.mean(axis=0)) / sd
    if metric == "dense":
        correlation = standard.T @ standard / len(draws)
        correlation = (1 - _SHRUNK) * correlation + _SHRUNK * np.eye(dim)
        return correlation * np.outer(sd, sd)
    _, singular, directions = np.linalg.svd(standard, full_matrices=False)
    variance = singular**2 / len(draws)
    rest = float(np.median(variance))
    room = np.sqrt(dim / len(draws))
    for _ in range(_PASSES):
        # what draws of no correlation would have (Marchenko and Pastur), and a little more
        high = rest * max(_TELLING, (1 + room) ** 2)
        low = rest * min(1 / _TELLING, max(1 - room, 0.0) ** 2)
        keep = (variance > high) | (variance < low)
        rest = max((dim - variance[keep].sum()) / max(dim - keep.sum(), 1), _SHRUNK)
    kept = directions[keep]
    apart = np.maximum(variance[keep], _SHRUNK * rest) - rest
    correlation = rest * np.eye(dim) + kept.T @ (apart[:, None] * kept)
    return correlation * np.outer(sd, sd)


def _transform(value: str) -> str:
    """Name of a value variable's transform; empty where it has none."""
    return value.rsplit("_", 3)[-3] if value.endswith("__") else ""
