"""What a posterior would be with other hyperparameters: a grid of them, and the change."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.amortized.level_sampler import MODEL_INSTEAD, refuse
from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.compile import CompiledModel, compile_model
from pmcl.compile.variables import own_value
from pmcl.data.covariates import covariates_among
from pmcl.data.own import own_data
from pmcl.data.reading import as_task, layout_of
from pmcl.data.task import DATASET, Layout, Task, TaskLike
from pmcl.diagnostics.grid import Grid, grid_of
from pmcl.draws.densities import pick
from pmcl.draws.handed import some_of
from pmcl.refinement.settings import Refine, RefineLike
from pmcl.refinement.standalone import refine as refine_alone

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.axes import Axes

_READ = 64  # datasets whose draws are read together

type Quantity = Callable[[xr.Dataset], xr.DataArray]


def sensitivity(
    posterior: AmortizedPosterior | pm.Model,
    data: TaskLike | None,
    settings: Mapping[str, Sequence[ArrayLike]],
    *,
    var_names: Sequence[str] | None = None,
    quantities: Mapping[str, Quantity] | None = None,
    draws: int = 1000,
    refine: Refine | None = None,
    store: str | os.PathLike | None = None,
    client: "Client | None" = None,
    random_seed: int = 0,
    progressbar: bool = False,
) -> xr.DataTree:
    """Change hyperparameters of a model, and see what becomes of the posterior of every dataset.

    Nothing is trained again. All settings and datasets are sampled in one call, by one compiled
    density, in which the hyperparameters are data.

    Parameters
    ----------
    posterior : AmortizedPosterior or pymc.Model
        A posterior is sampled with its network, which may have been trained over a hyperparameter
        or not know it; a model is refined without one.
    data : xarray.Dataset, mapping or pandas.DataFrame, optional
        The datasets; the model's own where None.
    settings : mapping of str to sequence
        By the name of a `pm.Data` of the model, its values; of several all combinations.
    var_names : sequence of str, optional
        All free variables and deterministics by default.
    quantities : mapping of str to callable, optional
        Functions of the posterior's draws (an `xarray.Dataset` of dims chain, draw, dataset and the
        variables' own) to an array of them, of which mean and sd are reported: ``lambda p:
        p["beta"] > 0`` for a probability.
    draws : int
        Of each dataset and setting.
    refine : Refine, optional
        Hyper-parameters of refinement.
    store : path, optional
        A new folder for the draws of all datasets and settings, as in `sample`: memory does not
        grow with their number. The result is in memory, and small.
    client : distributed.Client, optional
        A Dask cluster whose workers sample the posteriors; without `store` the draws go to a
        folder that is removed.
    random_seed : int
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        Groups with a dim for each setting, `dataset` and the variables' own: `mean`, `sd`;
        `change`, of the mean from that with the hyperparameters as they are (in the data, or else
        in the model), in sds of that posterior; `sd_ratio`, to that posterior's sd; their Monte
        Carlo errors `mean_error`, `sd_error`, `change_error` and `sd_ratio_error`; and
        `dataset_stats`, whose `log_evidence` says which setting the data favour. `baseline_mean`
        and `baseline_sd` have no settings.

    Raises
    ------
    ValueError
        Where a setting is no `pm.Data` of the model, naming those that there are.
    NotImplementedError
        Of a posterior with levels: its PyMC model will do.

    Warns
    -----
    UserWarning
        Naming the datasets and settings whose posterior does not stand.

    See Also
    --------
    psense : sensitivity to a power of the prior and of the likelihood, from draws at hand.
    """
    if isinstance(posterior, MultilevelPosterior):
        refuse("sensitivity", MODEL_INSTEAD)
    known = isinstance(posterior, AmortizedPosterior)
    model = posterior.compiled.model if isinstance(posterior, AmortizedPosterior) else posterior
    grid = grid_of(model, settings)
    own = [i.name for i in posterior.compiled.covariates] if known else []
    if data is None:
        data = own_data(model, [n for n in own if n not in settings], say=progressbar)
    came = {*own, *covariates_among(model, data)}
    names = [v.name for v in model.data_vars if v.name in came | {*settings}]
    compiled = compile_model(model, covariates=names)
    layout = posterior.layout if known else layout_of(compiled)
    base = _read(compiled, Layout.of(compiled, layout.row), data, settings)
    whole = _crossed(base, grid)
    asked: dict[str, Any] = {
        "draws": draws,
        "correct": None,  # weights have a known error, and draws that are made alike do not
        "var_names": list(pick(compiled, None if var_names is None else list(var_names))),
        "client": client,
        "random_seed": random_seed,
        "progressbar": progressbar,
    }
    with tempfile.TemporaryDirectory() as folder:
        asked["store"] = Path(folder) / "draws.zarr" if store is None and client else store
        if isinstance(posterior, AmortizedPosterior):
            other = None if {*names} == {*own} else compiled
            how: RefineLike = "auto" if refine is None else refine
            tree = posterior.sample(whole, model=other, refine=how, **asked)
        else:
            tree = refine_alone(compiled, whole, refine=refine, **asked)
        return _whole(tree, base, grid, quantities or {})


def _read(
    compiled: CompiledModel, layout: Layout, data: TaskLike, settings: Mapping[str, Any]
) -> Task:
    """Read the datasets; hyperparameters that do not come with them are the model's own."""
    came = covariates_among(compiled.model, data)
    missing = [n for n in settings if n not in came]
    some = tuple(i for i in layout.variables if i.name not in missing)
    task = as_task(data, replace(layout, variables=some))
    values = dict(task.values)
    for name in missing:
        value = own_value(compiled.model, name)
        values[name] = np.broadcast_to(value, (len(task), *value.shape))
    return replace(task, layout=layout, values=values)


def _crossed(base: Task, grid: Grid) -> Task:
    """The datasets as they are, and then with each combination of settings."""
    combinations = grid.combinations()
    every = base.select(np.tile(np.arange(len(base)), 1 + len(combinations)))
    values = dict(every.values)
    for name, options in grid.items():
        value = np.array(values[name])
        for i, which in enumerate(combinations, start=1):
            value[i * len(base) : (i + 1) * len(base)] = options[which[[*grid].index(name)]]
        values[name] = value
    said = [
        ", ".join(f"{n}={v[w].tolist()}" for (n, v), w in zip(grid.items(), which, strict=True))
        for which in combinations
    ]
    names = (*base.names, *(f"{n} ({s})" for s in said for n in base.names))
    return replace(every, values=values, names=names)


def _whole(
    tree: xr.DataTree, base: Task, grid: Grid, quantities: Mapping[str, Quantity]
) -> xr.DataTree:
    """Summaries of all datasets, of which no more than a part's draws are read together."""
    n, settings = len(base), 1 + len(grid.combinations())
    parts = []
    for begin in range(0, n, _READ):
        rows = np.arange(begin, min(begin + _READ, n))
        which = (np.arange(settings)[:, None] * n + rows).ravel()
        some = some_of(tree, which, ("posterior", "sample_stats", "dataset_stats")).load()
        parts.append(_result(some, base.select(rows), grid, quantities))
    groups = [{k: v.to_dataset() for k, v in part.children.items()} for part in parts]
    return xr.DataTree.from_dict(
        {k: xr.concat([g[k] for g in groups], dim=DATASET) for k in groups[0]}
    )


def _result(
    tree: xr.DataTree, base: Task, grid: Grid, quantities: Mapping[str, Quantity]
) -> xr.DataTree:
    posterior = tree["posterior"].to_dataset()
    posterior = posterior.assign({n: f(posterior) for n, f in quantities.items()})
    stats = tree["dataset_stats"].to_dataset()
    log_weight = tree["sample_stats"].to_dataset()["log_weight"]
    weight = log_weight.copy(data=np.exp(log_weight.values))
    weight = weight / weight.sum(("chain", "draw"))
    over = ("chain", "draw")
    # draws of chains say less than their number
    blurred: Any = 1.0
    if "ess" in stats:
        ess = stats["ess"].fillna(posterior.sizes["draw"])
        blurred = np.sqrt(posterior.sizes["draw"] / ess.clip(1))
    values = posterior.astype(float)
    mean = (weight * values).sum(over, skipna=False)
    square = (values - mean) ** 2
    sd = np.sqrt((weight * square).sum(over, skipna=False))
    mean_error = blurred * np.sqrt((weight**2 * square).sum(over, skipna=False))
    spread = np.sqrt((weight**2 * (square - sd**2) ** 2).sum(over, skipna=False))
    with np.errstate(invalid="ignore", divide="ignore"):
        sd_error = blurred * spread / (2 * sd)
    found = {"mean": mean, "mean_error": mean_error, "sd": sd, "sd_error": sd_error}
    n = len(base)
    before = {k: v.isel({DATASET: slice(n)}) for k, v in found.items()}
    after = {k: _folded(v.isel({DATASET: slice(n, None)}), base, grid) for k, v in found.items()}
    shift = (after["mean"] - before["mean"]) / before["sd"]
    error = xr.Dataset(
        {
            v: np.sqrt(
                after["mean_error"][v] ** 2
                + before["mean_error"][v] ** 2
                + (shift[v] * before["sd_error"][v]) ** 2
            )
            / before["sd"][v]
            for v in shift.data_vars
        }
    )
    ratio = after["sd"] / before["sd"]
    relative = (after["sd_error"] / after["sd"]) ** 2 + (before["sd_error"] / before["sd"]) ** 2
    groups = {
        **after,
        "change": shift,
        "change_error": error,
        "sd_ratio": ratio,
        "sd_ratio_error": ratio * np.sqrt(relative),
        "baseline_mean": before["mean"],
        "baseline_sd": before["sd"],
        "dataset_stats": _folded(stats.isel({DATASET: slice(n, None)}), base, grid),
    }
    order = (*grid, DATASET)
    return xr.DataTree.from_dict(
        {k: v.transpose(*(d for d in order if d in v.dims), ...) for k, v in groups.items()}
    )


def _folded(table: xr.Dataset, base: Task, grid: Grid) -> xr.Dataset:
    """Give each setting a dim of its own."""
    found = {}
    for name, value in table.data_vars.items():
        value = value.transpose(DATASET, ...)
        shape = (*grid.lengths, len(base), *value.shape[1:])
        found[name] = ((*grid, DATASET, *value.dims[1:]), value.values.reshape(shape))
    coords = {k: v for k, v in table.coords.items() if k != DATASET}
    return xr.Dataset(found, coords={**coords, **grid.coords(), DATASET: list(base.names)})


def plot_sensitivity(
    result: xr.DataTree,
    dataset: str | int = 0,
    *,
    var_names: Sequence[str] | None = None,
    setting: str | None = None,
    axes: "Sequence[Axes] | None" = None,
) -> "list[Axes]":
    """Plot mean and sd of one dataset's posterior by a hyperparameter.

    Parameters
    ----------
    result : xarray.DataTree
        From :func:`sensitivity`.
    dataset : str or int
    var_names : sequence of str, optional
        One plot for each; every element of a variable has a line in it. All by default.
    setting : str, optional
        The hyperparameter along the axis; the first by default. The others have their first value.
    axes : sequence of matplotlib.axes.Axes, optional

    Returns
    -------
    list of matplotlib.axes.Axes

    Raises
    ------
    ValueError
        Where the result has no hyperparameter called `setting`.
    """
    import matplotlib.pyplot as plt

    mean, sd = (result[k].to_dataset() for k in ("mean", "sd"))
    names = list(map(str, mean.data_vars)) if var_names is None else list(var_names)
    dims = list(next(iter(mean.data_vars.values())).dims)
    grid = dims[: dims.index(DATASET)]
    along = grid[0] if setting is None else setting
    if along not in grid:
        raise ValueError(f"setting: expected one of {grid}, got {setting!r}.")
    at = {d: 0 for d in grid if d != along}
    which = {DATASET: dataset} if isinstance(dataset, str) else {}
    if not which:
        at[DATASET] = int(dataset)
    if axes is None:
        size = (3.6 * len(names), 3.2)
        axes = list(
            plt.subplots(1, len(names), figsize=size, layout="constrained", squeeze=False)[1][0]
        )
    x = mean[along].values
    for name, ax in zip(names, axes, strict=True):
        m, s = (t[name].isel(at).sel(which).transpose(along, ...).values for t in (mean, sd))
        for line, width in zip(m.reshape(len(x), -1).T, s.reshape(len(x), -1).T, strict=True):
            drawn = ax.plot(x, line, marker="o", markersize=3)
            ax.fill_between(x, line - width, line + width, alpha=0.15, color=drawn[0].get_color())
        ax.set(xlabel=along, title=name)
    axes[0].set_ylabel("mean, and one sd to either side")
    return list(axes)
