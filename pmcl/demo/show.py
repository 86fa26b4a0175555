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
COLOURS = {"naive": "#D55E00", "replay": "#0072B2"}


class TaskScore(NamedTuple):
    """One task under one method: mean MMD^2 to NUTS over the task's datasets.

    Attributes
    ----------
    task, method : str
    pretrained : float
        Of the network before any adaptation.
    null : float
        Of NUTS against itself: zero but for noise.
    right_after : float
        When the task had just been adapted to.
    after_all : float
        When all tasks had been adapted to: what was forgotten since shows here.
    """

    task: str
    method: str
    pretrained: float
    null: float
    right_after: float
    after_all: float

    @property
    def ratio_right_after(self) -> float:
        """MMD^2 right after the task, relative to the pretrained network's."""
        return self.right_after / self.pretrained

    @property
    def ratio_after_all(self) -> float:
        """MMD^2 after all tasks, relative to the pretrained network's."""
        return self.after_all / self.pretrained


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo found.

    Attributes
    ----------
    scores : tuple of TaskScore
        One for each method and task.
    null_threshold : float
        MMD^2 below which 99 % of NUTS against itself lies.
    worst_dataset : str
        The dataset on which the pretrained network is furthest from NUTS.
    results : xarray.DataTree
        One child for each of ``pretrained``, ``naive``, ``replay`` and ``nuts``, with the groups
        that `sample` gives.
    """

    scores: tuple[TaskScore, ...]
    null_threshold: float
    worst_dataset: str
    results: xr.DataTree

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order they were run."""
        return list(dict.fromkeys(score.method for score in self.scores))

    def of(self, method: str) -> list[TaskScore]:
        """Scores of one method, in the tasks' order."""
        return [score for score in self.scores if score.method == method]


def make_table(result: DemoResult) -> Table:
    """Make the table: one row a task, and how far each method is from NUTS.

    Parameters
    ----------
    result : DemoResult

    Returns
    -------
    rich.table.Table
    """
    table = Table(
        title="Distance to NUTS, relative to the pretrained network (below 1 is better)",
        caption=(
            "MMD²: of the pretrained network to NUTS. null: of NUTS to itself (99 % of datasets "
            f"below {result.null_threshold:.2g}). Ratios of MMD²: when the task had just been "
            "adapted to, and after all tasks, when what was forgotten shows."
        ),
    )
    # lines of at most eight characters: all columns fit into a terminal of 80
    table.add_column("task")
    table.add_column("MMD²", justify="right")
    table.add_column("null", justify="right")
    for method in result.methods:
        table.add_column(f"{method}:\nright\nafter", justify="right")
        table.add_column(f"{method}:\nafter\nall", justify="right")
    by_method = [result.of(method) for method in result.methods]
    for row in zip(*by_method, strict=True):
        cells = [row[0].task, f"{row[0].pretrained:.3g}", f"{row[0].null:.1g}"]
        for score in row:
            cells += [_cell(score.ratio_right_after), _cell(score.ratio_after_all)]
        table.add_row(*cells)
    table.add_section()
    medians = ["median", "", ""]
    for scores in by_method:
        medians.append(_cell(float(np.median([s.ratio_right_after for s in scores]))))
        medians.append(_cell(float(np.median([s.ratio_after_all for s in scores]))))
    table.add_row(*medians)
    return table


def _cell(ratio: float) -> str:
    text = f"{ratio:.2g}" if abs(ratio) < 100 else f"{ratio:.0f}"
    return f"[red]{text}[/red]" if ratio > 1 else text


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
    rows = [
        {
            **score._asdict(),
            "ratio_right_after": score.ratio_right_after,
            "ratio_after_all": score.ratio_after_all,
        }
        for score in result.scores
    ]
    content = {"null_threshold": result.null_threshold, "scores": rows}
    table.write_text(to_json(content, indent=1) + "\n")
    draws = out / "results.zarr"
    if draws.exists():
        shutil.rmtree(draws)
    # format 3 has no standard yet for strings or for consolidated metadata, and warns of both
    result.results.to_zarr(draws, mode="w", zarr_format=2)
    return table, draws


def draw_figure(result: DemoResult, path: Path) -> Path:
    """Draw the ratios of all tasks, and one posterior before and after adaptation.

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
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_ratios(left, result)
    _draw_posterior(right, result)
    figure.savefig(path, dpi=150)
    return path


def _draw_ratios(axes: "Axes", result: DemoResult) -> None:
    """Draw one column a task: open markers right after it, filled ones after all tasks."""
    tasks = [score.task for score in result.of(result.methods[0])]
    null = np.array(
        [result.null_threshold / s.pretrained for s in result.of(result.methods[0])], float
    )
    ratios = np.array(
        [[(s.ratio_right_after, s.ratio_after_all) for s in result.of(m)] for m in result.methods]
    )
    # far below the null there is only noise, and an unbiased MMD² may be negative, which a log axis
    # cannot show: all that is drawn at the lower end
    floor = min(1.0, *null[null > 0]) / 3
    x = np.arange(len(tasks))
    axes.axhline(1, color="black", linewidth=0.8, label="pretrained, not adapted")
    axes.hlines(
        np.maximum(null, floor), x - 0.35, x + 0.35, color="grey", linestyle=":",
        label="99 % of NUTS against itself",
    )  # fmt: skip
    for i, method in enumerate(result.methods):
        colour = COLOURS[method]
        at = x + 0.24 * (i - (len(result.methods) - 1) / 2)
        first, last = np.maximum(ratios[i], floor).T
        axes.vlines(at, first, last, color=colour, linewidth=1, alpha=0.5)
        axes.plot(at, first, "o", color=colour, markerfacecolor="white",
                  label=f"{method}, right after the task")  # fmt: skip
        axes.plot(at, last, "o", color=colour, label=f"{method}, after all tasks")
    axes.set_yscale("log")
    axes.set_xticks(x, tasks, rotation=30, ha="right")
    axes.set_ylabel("MMD² to NUTS, relative to pretrained")
    axes.set_title("Tasks in the order they were adapted to")
    axes.legend(
        fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3
    )


def _draw_posterior(axes: "Axes", result: DemoResult) -> None:
    """Draw the coefficient that pretraining gets most wrong, in the dataset it gets most wrong."""
    from scipy.stats import gaussian_kde

    draws = {
        name: one(tree, result.worst_dataset)["posterior"]["beta"]
        .stack(sample=("chain", "draw"))
        .transpose("sample", ...)
        .values
        for name, tree in result.results.children.items()
    }
    nuts = draws["nuts"]
    shift = np.abs(draws["pretrained"].mean(axis=0) - nuts.mean(axis=0)) / nuts.std(axis=0)
    j = int(np.argmax(shift))
    styles = (
        ("pretrained", "pretrained", "black", "--"),
        ("replay", "adapted, with replay", COLOURS["replay"], "-"),
        ("nuts", "NUTS", "grey", "-"),
    )
    edges = [np.quantile(draws[name][:, j], (0.002, 0.998)) for name, *_ in styles]
    grid = np.linspace(min(e[0] for e in edges), max(e[1] for e in edges), 400)
    for name, label, colour, line in styles:
        density = gaussian_kde(draws[name][:, j])(grid)
        axes.plot(grid, density, line, color=colour, label=label)
        if name == "nuts":
            axes.fill_between(grid, density, color=colour, alpha=0.3)
    axes.set_xlabel(f"beta[{j}]")
    axes.set_yticks([])
    axes.set_title(f"Posterior of one coefficient, dataset {result.worst_dataset!r}")
    axes.legend(fontsize="small", frameon=False)
