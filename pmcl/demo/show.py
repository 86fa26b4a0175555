"""What the demo leaves behind: a table, a figure, and the draws."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr
from rich.table import Table

from pmcl.draws.results import one
from pmcl.runtime.files import to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colours that the colour-blind tell apart (Okabe and Ito)
_STYLES = {
    "network": ("the network", "#D55E00", "--"),
    "adapted": ("the network, adapted", "#0072B2", "-"),
    "nuts": ("NUTS", "grey", "-"),
}


class TaskScore(NamedTuple):
    """One task: means over its datasets, of the network before adaptation and after all tasks.

    Attributes
    ----------
    task : str
    efficiency, efficiency_adapted : float
        Of the draws' importance weights: 1 where they are those of the posterior.
    mmd2, mmd2_adapted : float
        Squared maximum mean discrepancy to NUTS.
    null : float
        Of NUTS against itself: zero but for noise.
    doubtful : int
        Datasets that come with a warning.
    """

    task: str
    efficiency: float
    efficiency_adapted: float
    mmd2: float
    mmd2_adapted: float
    null: float
    doubtful: int


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo found.

    Attributes
    ----------
    scores : tuple of TaskScore
    null_threshold : float
        MMD^2 below which 99 % of NUTS against itself lies.
    shown : str
        The dataset on which the network is furthest from NUTS: the figure shows its posterior.
    seconds : float
        That the draws of one dataset took, warm.
    results : xarray.DataTree
        One child for each of ``network``, ``adapted`` and ``nuts``, with the groups that `sample`
        gives.
    """

    scores: tuple[TaskScore, ...]
    null_threshold: float
    shown: str
    seconds: float
    results: xr.DataTree


def make_table(result: DemoResult) -> Table:
    """Make the table: one row a task, in 80 columns.

    Parameters
    ----------
    result : DemoResult

    Returns
    -------
    rich.table.Table
    """
    table = Table(
        title="The network alone, against NUTS",
        caption=(
            f"{1000 * result.seconds:.2g} ms a dataset, warm. MMD² to NUTS: 99 % of NUTS against "
            f"itself are below {result.null_threshold:.2g}. Efficiency: 1 where all draws count."
        ),
    )
    table.add_column("task")
    for name in ("efficiency", "adapted", "MMD²", "adapted", "doubtful"):
        table.add_column(name, justify="right")
    for score in result.scores:
        table.add_row(
            score.task,
            f"{score.efficiency:.2f}",
            f"{score.efficiency_adapted:.2f}",
            f"{score.mmd2:.4f}",
            f"{score.mmd2_adapted:.4f}",
            str(score.doubtful or ""),
        )
    return table


def write_results(result: DemoResult, out: Path) -> tuple[Path, Path]:
    """Write the table as JSON and all draws as Zarr, in place of what an earlier run left.

    Parameters
    ----------
    result : DemoResult
    out : pathlib.Path
        A folder that exists.

    Returns
    -------
    tuple of pathlib.Path
        ``table.json`` and ``results.zarr``; the latter opens with ``xarray.open_datatree``.
    """
    table = out / "table.json"
    content = {
        "null_threshold": result.null_threshold,
        "seconds": result.seconds,
        "scores": [score._asdict() for score in result.scores],
    }
    table.write_text(to_json(content, indent=1) + "\n")
    draws = out / "results.zarr"
    if draws.exists():
        shutil.rmtree(draws)
    # format 3 has no standard yet for strings or for consolidated metadata, and warns of both
    result.results.to_zarr(draws, mode="w", zarr_format=2)
    return table, draws


def draw_figure(result: DemoResult, path: Path) -> Path:
    """Draw the distance to NUTS of all tasks, and the posterior that is furthest from it.

    Parameters
    ----------
    result : DemoResult
    path : pathlib.Path
        Of the image to write.

    Returns
    -------
    pathlib.Path
    """
    from matplotlib.figure import Figure

    # no pyplot: it would choose a backend, and keep the figure alive
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_distances(left, result)
    _draw_posterior(right, result)
    figure.savefig(path, dpi=150)
    return path


def _draw_distances(axes: "Axes", result: DemoResult) -> None:
    """Draw the MMD² of each task, before adaptation and after it."""
    x = np.arange(len(result.scores))
    for shift, name, values in (
        (-0.1, "network", [s.mmd2 for s in result.scores]),
        (0.1, "adapted", [s.mmd2_adapted for s in result.scores]),
    ):
        label, colour, _ = _STYLES[name]
        axes.plot(x + shift, values, "o", color=colour, label=label)
    axes.axhline(result.null_threshold, color="grey", linestyle=":", label="99 % of NUTS to itself")
    axes.set_xticks(x, [s.task for s in result.scores], rotation=20)
    axes.set_ylabel("MMD² to NUTS")
    axes.legend(fontsize="small", frameon=False)


def _draw_posterior(axes: "Axes", result: DemoResult) -> None:
    """Draw the coefficient whose mean is most off, in the dataset that is most off."""
    from scipy.stats import gaussian_kde

    draws = {
        name: one(tree, result.shown)["posterior"]["beta"]
        .stack(sample=("chain", "draw"))
        .transpose("sample", ...)
        .values
        for name, tree in result.results.children.items()
    }
    nuts = draws["nuts"]
    shift = np.abs(draws["network"].mean(axis=0) - nuts.mean(axis=0)) / nuts.std(axis=0)
    j = int(np.argmax(shift))
    edges = [np.quantile(d[:, j], (0.002, 0.998)) for d in draws.values()]
    grid = np.linspace(min(e[0] for e in edges), max(e[1] for e in edges), 400)
    for name, (label, colour, line) in _STYLES.items():
        density = gaussian_kde(draws[name][:, j])(grid)
        axes.plot(grid, density, line, color=colour, label=label)
        if name == "nuts":
            axes.fill_between(grid, density, color=colour, alpha=0.3)
    axes.set_xlabel(f"beta[{j}]")
    axes.set_yticks([])
    axes.set_title(f"Furthest from NUTS: {result.shown!r}")
    axes.legend(fontsize="small", frameon=False)
