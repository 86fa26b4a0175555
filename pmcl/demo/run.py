"""The demo: train once, draw for real tables, adapt, compare all of it with NUTS."""

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from rich.console import Console

from pmcl.amortized.fit import fit_amortized
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive.files import save
from pmcl.continual import Replay
from pmcl.data.task import DATASET
from pmcl.demo.model import linear_regression_model
from pmcl.demo.show import DemoResult, TaskScore, draw_figure, make_table, write_results
from pmcl.demo.tables import bundled_tables, draw_datasets, simulated_datasets
from pmcl.diagnostics import compare, report
from pmcl.networks import CouplingFlow, DeepSet, Network
from pmcl.reference import sample_reference
from pmcl.runtime.extras import need

# of the bundled tables: a clinical measure, collinear time series, skewed counts with a heavy tail,
# and a designed experiment with little noise
BUNDLED = ("diabetes", "macrodata", "randhie", "modechoice")


@dataclass(frozen=True)
class DemoSettings:
    """How much the demo does.

    Attributes
    ----------
    network : Network or None
        None is the default one.
    tasks : int or None
        How many of the tasks; None is all of them.
    datasets, rows : int
        Datasets a task, and rows in each.
    steps : int
        Most steps of training, and of each adaptation.
    draws : int
        Draws of either side in a comparison.
    chains, tune, reference_draws : int
        Of NUTS, per dataset.
    """

    network: Network | None = None
    tasks: int | None = None
    datasets: int = 5
    rows: int = 100
    steps: int = 1500
    draws: int = 1000
    chains: int = 4
    tune: int = 400
    reference_draws: int = 250


QUICK = DemoSettings(
    network=Network(
        DeepSet(outputs=8, width=16, depth=1, pooled=16, head_width=16, head_depth=1),
        CouplingFlow(layers=1, width=16, depth=1, knots=4, affine_width=16),
    ),
    tasks=2,
    datasets=2,
    rows=50,
    steps=100,
    draws=100,
    chains=2,
    tune=100,
    reference_draws=100,
)


def run_demo(
    out: Path | str,
    *,
    settings: DemoSettings | None = None,
    random_seed: int = 1,
    console: Console | None = None,
) -> DemoResult:
    """Run the demo and write its table, figure, page, state and draws.

    Parameters
    ----------
    out : path
        Folder for ``table.json``, ``figure.png``, ``report.html``, ``posterior.zarr.zip`` and
        ``results.zarr``; made where it is missing.
    settings : DemoSettings, optional
    random_seed : int
    console : rich.console.Console, optional
        Where the table and the headings go; standard output by default.

    Returns
    -------
    DemoResult

    Raises
    ------
    MissingExtraError
        If matplotlib, statsmodels or jinja2 is not installed.
    """
    settings = DemoSettings() if settings is None else settings
    console = Console() if console is None else console
    begin = time.perf_counter()

    def heading(text: str) -> None:
        console.print(f"[bold]{text}[/bold]  [dim]({time.perf_counter() - begin:.0f} s)[/dim]")

    need("demo", "the demo", "matplotlib", "statsmodels", "jinja2")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tasks = demo_tasks(settings, random_seed=random_seed)
    every = xr.concat(tasks.values(), DATASET, combine_attrs="drop")
    n = every.sizes[DATASET]

    heading("A linear regression: its simulator, its density, a network")
    model = linear_regression_model(rows=settings.rows)
    posterior = fit_amortized(
        model,
        covariates={"X": pm.Normal.dist(0, 1)},
        exchangeable="obs",
        network=settings.network,
        steps=settings.steps,
        random_seed=random_seed,
    )
    assert isinstance(posterior, AmortizedPosterior)  # there are no groups
    heading(f"{n} datasets of {len(tasks)} tasks, {', '.join(tasks)}: {settings.draws} draws each")
    trees = {"network": _drawn(posterior, every, settings.draws)}
    drawn = time.perf_counter()
    _drawn(posterior, every, settings.draws)  # the same once more: nothing is compiled
    each = (time.perf_counter() - drawn) / n

    heading("Adapting to one task after another")
    for name, task in tasks.items():
        strategy = Replay(capacity=len(tasks))
        posterior = posterior.adapt(
            task, name=name, strategy=strategy, steps=settings.steps, progressbar=False
        )
        taken = posterior.records[-1].record.steps
        console.print(f"  {name}: {taken} steps" if taken else f"  {name}: right already, no step")
    trees["adapted"] = _drawn(posterior, every, settings.draws)

    heading("NUTS on every dataset")
    trees["nuts"] = sample_reference(
        model,
        every,
        draws=settings.reference_draws,
        tune=settings.tune,
        chains=settings.chains,
        random_seed=random_seed,
    )
    result = judge(tasks, trees, draws=settings.draws, seconds=each)
    console.print(make_table(result))
    save(posterior, out / "posterior.zarr.zip")
    page = report(
        posterior, out / "report.html", trees["adapted"], reference=trees["nuts"],
        calibration=False, title="The demo", progressbar=False,
    )  # fmt: skip
    files = (draw_figure(result, out / "figure.png"), page, out / "posterior.zarr.zip")
    heading("Written")
    for file in (*files, *write_results(result, out)):
        console.print(f"  {file}", highlight=False, soft_wrap=True)
    console.print(
        "Next, with a table of yours (columns dataset, y, X[0] ... X[4], standardised):\n"
        f"  pmcl sample {out / 'posterior.zarr.zip'} yours.csv --model linear_regression "
        "--out draws.zarr",
        highlight=False,
        soft_wrap=True,
    )
    return result


def demo_tasks(settings: DemoSettings, *, random_seed: int) -> dict[str, xr.Dataset]:
    """Make the tasks: datasets simulated from the prior, then datasets drawn from real tables.

    Parameters
    ----------
    settings : DemoSettings
    random_seed : int

    Returns
    -------
    dict of str to xarray.Dataset
        The tables are four that installed packages carry.
    """
    bundled = bundled_tables()
    tables = [bundled[name] for name in BUNDLED]
    datasets, rows = settings.datasets, settings.rows
    simulated, _ = simulated_datasets(datasets=datasets, rows=rows, random_seed=random_seed)
    tasks = {"simulated": simulated}
    for table in tables[: None if settings.tasks is None else settings.tasks - 1]:
        tasks[table.name] = draw_datasets(
            table, datasets=datasets, rows=rows, random_seed=random_seed + len(tasks)
        )
    return tasks


def _drawn(posterior: AmortizedPosterior, every: xr.Dataset, draws: int) -> xr.DataTree:
    """Draw from the network alone; how good that is, is in the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return posterior.sample(every, draws, refine=False, random_seed=0)


def judge(
    tasks: dict[str, xr.Dataset], trees: dict[str, xr.DataTree], *, draws: int, seconds: float
) -> DemoResult:
    """Compare the draws of the network, before and after adaptation, with those of NUTS.

    Parameters
    ----------
    tasks : dict of str to xarray.Dataset
    trees : dict of str to xarray.DataTree
        ``network``, ``adapted`` and ``nuts``, of the datasets of all tasks.
    draws : int
        Draws of either side in a comparison.
    seconds : float
        A dataset's draws took, warm.

    Returns
    -------
    DemoResult
    """
    found = {
        name: compare(trees[name], trees["nuts"], draws=draws) for name in ("network", "adapted")
    }
    stats = {name: trees[name]["dataset_stats"].to_dataset() for name in found}
    scores = []
    for task, data in tasks.items():
        these = {DATASET: list(data[DATASET].values)}
        efficiency = {k: float(v.sel(these)["efficiency"].mean()) for k, v in stats.items()}
        mmd2 = {k: float(v.sel(these)["mmd2"].mean()) for k, v in found.items()}
        scores.append(
            TaskScore(
                task,
                efficiency=efficiency["network"],
                efficiency_adapted=efficiency["adapted"],
                mmd2=mmd2["network"],
                mmd2_adapted=mmd2["adapted"],
                null=float(found["network"].sel(these)["null_mmd2"].mean()),
                doubtful=int((stats["network"].sel(these)["warning"] != "").sum()),
            )
        )
    worst = int(np.argmax(found["network"]["mmd2"].values))
    return DemoResult(
        scores=tuple(scores),
        null_threshold=float(found["network"].attrs["null_threshold"]),
        shown=str(found["network"][DATASET].values[worst]),
        seconds=seconds,
        results=xr.DataTree.from_dict(trees),
    )
