"""Plots of what happened to a posterior, and of how good its draws are, on arviz-plots."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pmcl.amortized.adapting import Adapting
from pmcl.data.task import DATASET
from pmcl.diagnostics.canvas import CELLS, COLUMNS, XY, backend_of, drawn, labels, shortened
from pmcl.draws.results import one
from pmcl.metrics import khat_threshold
from pmcl.runtime import precision

if TYPE_CHECKING:
    from arviz_plots import PlotCollection
    from matplotlib.axes import Axes


_MANY = 25  # labels that fit beside each other
_LETTER, _CELL = 0.09, 0.8  # inches that a letter, and a column of a matrix, take
# told apart by the colour-blind (Okabe and Ito)
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#888888"
_MEASURES = {"efficiency": (0.0, 1.0), "khat": (1.0, 0.0), "sc_variance": (10.0, 0.0)}


def plot_retention(
    posterior: Adapting | xr.Dataset,
    *,
    measure: str = "efficiency",
    ax: "Axes | None" = None,
) -> "Axes":
    """Matrix of moments by tasks: what the network knew of each task, and when.

    Parameters
    ----------
    posterior : AmortizedPosterior or xarray.Dataset
        Adapted; or what :func:`pmcl.retention` returned.
    measure : str
        A variable of it: "efficiency", "khat", "sc_variance"; with references "mmd2" and others.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        Before any adaptation, or for an unknown measure.
    """
    import matplotlib.pyplot as plt

    if isinstance(posterior, Adapting):
        _need_tasks(posterior, "plot_retention")
        table = posterior.history["retention"].to_dataset()
    else:
        table = posterior
    if measure not in table:
        known = [str(v) for v in table.data_vars if table[v].dims == ("after", "task")]
        raise ValueError(f"measure: expected one of {known}, got {measure!r}.")
    matrix = table[measure].transpose("after", "task")
    values = np.ma.masked_invalid(matrix.values.astype(float))
    # measures of distance: the largest is the worst
    worst, best = _MEASURES.get(measure, (float(values.max()) if values.count() else 1.0, 0.0))
    share = np.clip((values - worst) / (best - worst or 1.0), 0, 1)
    tasks, moments = map(labels, (matrix["task"], matrix["after"]))
    room = _LETTER * max(map(len, moments))
    upright = room + 0.1 > _CELL
    if ax is None:
        width, height = 2.0 + room + _CELL * len(tasks), 1.2 + upright * room + 0.45 * len(moments)
        size = (np.clip(width, 5, 16), np.clip(height, 3, 16))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    # from bad to good, readable in print and by the colour-blind
    ax.imshow(share, cmap="cividis_r", vmin=0, vmax=1, aspect="auto")
    if len(tasks) <= CELLS:
        for (i, j), value in np.ndenumerate(matrix.values):
            if np.isfinite(value):
                ink = "white" if share[i, j] > 0.5 else "black"
                ax.text(j, i, f"{value:.2g}", color=ink, ha="center", va="center")
    ax.set_xticks(range(len(tasks)), tasks, rotation=90 if upright else 0)
    ax.set_yticks(range(len(moments)), moments)
    ax.set(xlabel="task", ylabel="after", title=measure)
    return ax


def plot_losses(
    posterior: Adapting,
    *,
    measure: str = "loss",
    tasks: Sequence[str] | None = None,
    backend: str | None = None,
    figure_kwargs: Mapping[str, Any] | None = None,
) -> "PlotCollection":
    """Objective (nats per dataset), or efficiency, by step of every adaptation.

    Of the objective the thin line is of the draws that were trained on, the thick one of draws held
    back from training. Efficiency is of these, a mean over the datasets that are trained on: new,
    and stored ones; a teacher's draws have none.

    Parameters
    ----------
    posterior : AmortizedPosterior
    measure : "loss" or "efficiency"
    tasks : sequence of str, optional
        Names in `history`; all by default.
    backend : str, optional
        "matplotlib" (arviz-plots' default), "plotly", "bokeh" or "none".
    figure_kwargs : mapping, optional
        To arviz-plots.

    Raises
    ------
    ValueError
        Before any adaptation; for another measure, or a task that there is not.
    """
    _need_tasks(posterior, "plot_losses")
    if measure not in ("loss", "efficiency"):
        raise ValueError(f"measure: expected 'loss' or 'efficiency', got {measure!r}.")
    losses = posterior.history["losses"].to_dataset()
    records = dict(zip([str(t) for t in losses["task"].values], posterior.records, strict=True))
    if tasks is not None:
        if unknown := [t for t in tasks if t not in records]:
            raise ValueError(f"tasks: expected some of {list(records)}, got {unknown}.")
        losses = losses.sel(task=list(tasks))

    def lines(da: xr.DataArray, target: Any, **kwargs: Any) -> None:
        plot = backend_of(target)
        record = records[str(da["task"].values)].record
        held = record.held_back if measure == "loss" else record.efficiency
        # looked at after every block of steps
        at = np.linspace(0, record.steps, len(held) + 1)[1:]
        there = np.isfinite(held)
        plot.title(shortened(da["task"].values), target)
        plot.line(at[there], held[there], target, color=_ORANGE, width=1.5)
        if measure == "efficiency":
            plot.ylim((0.0, 1.0), target)
            return
        held, loss = held[there], record.losses
        steps = np.flatnonzero(np.isfinite(loss))
        plot.line(steps, loss[steps], target, color=_BLUE, alpha=0.4, width=0.7)
        # The first steps may be many times as large as all others.
        typical = [np.quantile(v, [0.01, 0.98]) for v in (loss[steps], held) if len(v)] or [[0, 1]]
        low, high = min(t[0] for t in typical), max(t[1] for t in typical)
        room = 0.05 * (high - low) or 1.0
        plot.ylim((low - room, high + room), target)

    n = losses.sizes["task"]
    size = (3.8 * min(n, COLUMNS), 3.0 * -(-n // COLUMNS))
    return drawn(losses[["loss"]], lines, size, backend, figure_kwargs, cols="task")


def plot_khat_by_dataset(
    idata: xr.DataTree,
    *,
    backend: str | None = None,
    figure_kwargs: Mapping[str, Any] | None = None,
) -> "PlotCollection":
    """Pareto k-hat of every dataset, before refinement and after, with its threshold.

    Parameters
    ----------
    idata : xarray.DataTree
        From `sample` or `pmcl.refine`.
    backend, figure_kwargs
        As in `plot_losses`.
    """
    stats = idata["dataset_stats"].to_dataset()
    names = labels(stats[DATASET])
    draws = idata["sample_stats"].to_dataset().sizes["draw"]

    def points(da: xr.DataArray, target: Any, **kwargs: Any) -> None:
        plot = backend_of(target)
        x = np.arange(len(names))
        fallen = stats["engine"].values == "nuts"
        series = [("khat", ~fallen, _BLUE, "blue: as returned")]
        if fallen.any():  # NUTS has no k-hat of its own
            series.insert(0, ("khat", fallen, _GREY, "grey: before NUTS"))
        if "khat_amortized" in stats:
            every = np.ones(len(names), bool)
            series.insert(0, ("khat_amortized", every, _ORANGE, "orange: of the network"))
        for name, which, colour, _ in series:
            # an exact posterior has no tail at all: -inf
            value = np.clip(stats[name].values, -0.5, 2.0)[which]
            plot.scatter(x[which], value, target, color=colour, alpha=0.8)
        plot.hline(khat_threshold(max(draws, 2)), target, color="black", linestyle="C1")
        if len(names) <= _MANY:
            plot.xticks(x, names, target, rotation=90 if len(names) > 5 else 0)
        plot.ylabel("k-hat (from -0.5 to 2)", target)
        plot.xlabel(DATASET, target)
        plot.title(", ".join(text for *_, text in series), target)

    longest = max(map(len, names)) if 5 < len(names) <= _MANY else 0
    size = (8.0, 4.0 + _LETTER * longest)
    return drawn(stats[["khat"]], points, size, backend, figure_kwargs)


def plot_ratio(
    ratios: Mapping[str, Mapping[str, float]],
    *,
    backend: str | None = None,
    figure_kwargs: Mapping[str, Any] | None = None,
) -> "PlotCollection":
    """Plot a measure of each task for several methods, such as MMD ratios, on a log scale.

    Parameters
    ----------
    ratios : mapping of str to mapping of str to float
        By method and task; tasks in their order.
    backend, figure_kwargs
        As in `plot_losses`.
    """
    tasks = list(dict.fromkeys(t for row in ratios.values() for t in row))
    values = [[row.get(t, np.nan) for t in tasks] for row in ratios.values()]
    table = xr.Dataset(
        {"ratio": (("method", "task"), np.asarray(values, float))},
        coords={"method": list(ratios), "task": tasks},
    )

    def line(da: xr.DataArray, target: Any, color: Any = None, marker: Any = None) -> None:
        plot = backend_of(target)
        x = np.arange(len(tasks))
        plot.line(x, da.values, target, color=color)
        plot.scatter(x, da.values, target, color=color, marker=marker)

    def frame(da: xr.DataArray, target: Any, **kwargs: Any) -> None:
        plot = backend_of(target)
        plot.hline(1.0, target, color="gray")
        plot.yscale(target, "log")
        plot.xticks(np.arange(len(tasks)), [shortened(t) for t in tasks], target, rotation=90)
        plot.ylabel("ratio", target)

    size = (4.0 + 0.6 * len(tasks), 5.0)
    return drawn(table, frame, size, backend, figure_kwargs, by="method", each=line)


def plot_agreement(
    idata: xr.DataTree,
    reference: xr.DataTree,
    dataset: str | int = 0,
    *,
    var_names: Sequence[str] | None = None,
    pairs: bool = False,
    backend: str | None = None,
    **kwargs: Any,
) -> Any:
    """Draws of one dataset beside those of a reference: marginals, or all pairs.

    Parameters
    ----------
    idata, reference : xarray.DataTree
        From `sample` and :func:`pmcl.sample_reference`, of the same datasets.
    dataset : str or int
    var_names : sequence of str, optional
    pairs : bool
        Scatters of all pairs instead of marginals: blue pmcl, orange the reference.
    backend : str, optional
    **kwargs
        To :func:`arviz_plots.plot_dist`, or :func:`arviz_plots.plot_pair`.
    """
    import arviz_plots

    both = {"pmcl": one(idata, dataset), "reference": one(reference, dataset)}
    names = None if var_names is None else list(var_names)
    if not pairs:
        plot: Any = arviz_plots.plot_dist
        found = plot(both, var_names=names, backend=backend, **kwargs)
        found.add_legend("model")
        return found
    matrix = None
    for name, colour in (("reference", _ORANGE), ("pmcl", _BLUE)):
        look = {
            "scatter": {"color": colour, "alpha": 0.3},
            "dist": {"color": colour},
            "divergence": False,
        }
        own = {"plot_matrix": matrix} if matrix is not None else {"backend": backend}
        pair: Any = arviz_plots.plot_pair
        matrix = pair(both[name], var_names=names, visuals=look, **own, **kwargs)
    return matrix


def plot_memory(
    posterior: Adapting,
    *,
    backend: str | None = None,
    figure_kwargs: Mapping[str, Any] | None = None,
) -> "PlotCollection":
    """Plot stored datasets where the network sees them: two principal components of summaries.

    Parameters
    ----------
    posterior : AmortizedPosterior
    backend, figure_kwargs
        As in `plot_losses`.

    Raises
    ------
    ValueError
        Where fewer than three datasets are stored.
    """
    memory = posterior.memory
    if len(memory) < 3:
        raise ValueError(
            f"plot_memory: expected at least three stored datasets, got {len(memory)}. Adapt with "
            "a strategy that stores some, such as pmcl.Replay."
        )
    with precision.scope():
        summary = np.asarray(posterior.embedded(memory.stored()), float)
    spread = summary.std(axis=0)
    white = (summary - summary.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    left, scale, _ = np.linalg.svd(white, full_matrices=False)
    xy = left[:, :2] * scale[:2]
    share = scale[:2] ** 2 / np.sum(scale**2)
    tasks = list(dict.fromkeys(memory.tasks))
    labels = [shortened(t) for t in tasks]
    if len(set(labels)) < len(labels):
        labels = tasks
    table = xr.Dataset(
        {"stored": (("task", "entry", XY), np.full((len(tasks), len(memory), 2), np.nan))},
        coords={"task": labels, XY: ["x", "y"]},
    )
    for i, task in enumerate(memory.tasks):
        table["stored"][tasks.index(task), i] = xy[i]

    def points(da: xr.DataArray, target: Any, color: Any = None, marker: Any = None) -> None:
        there = np.isfinite(da.values[:, 0])
        backend_of(target).scatter(
            da.values[there, 0], da.values[there, 1], target, color=color, marker=marker
        )

    def frame(da: xr.DataArray, target: Any, **kwargs: Any) -> None:
        plot = backend_of(target)
        plot.xlabel(f"first component ({share[0]:.0%})", target)
        plot.ylabel(f"second component ({share[1]:.0%})", target)
        plot.title("stored datasets", target)

    size = (6.5 + _LETTER * max(map(len, labels)), 5.0)  # with a legend beside
    return drawn(table, frame, size, backend, figure_kwargs, by="task", each=points)


def _need_tasks(posterior: Adapting, name: str) -> None:
    if not posterior.records:
        raise ValueError(f"{name}: expected a posterior that was adapted to a task, got none.")
