"""The demo: pretrain, adapt to one task after another, compare with NUTS of the same model."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from rich.console import Console

from pmcl.amortized.fit import fit_amortized
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.continual import AbstractStrategy, Naive, Replay
from pmcl.data.task import DATASET
from pmcl.demo.model import linear_regression_model
from pmcl.demo.show import DemoResult, TaskScore, draw_figure, make_table, write_results
from pmcl.demo.tables import bundled_tables, draw_datasets, simulated_datasets
from pmcl.diagnostics import compare
from pmcl.networks import CouplingFlow, DeepSet, Network
from pmcl.reference import sample_reference
from pmcl.runtime.extras import need
from pmcl.runtime.progress import progress_bar

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
    pretraining_steps, adaptation_steps : int
    draws : int
        Draws of either side in a comparison.
    chains, tune, reference_draws : int
        Of NUTS, per dataset.
    """

    network: Network | None = None
    tasks: int | None = None
    datasets: int = 10
    rows: int = 100
    pretraining_steps: int = 3000
    adaptation_steps: int = 200
    draws: int = 500
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
    pretraining_steps=100,
    adaptation_steps=25,
    draws=100,
    chains=2,
    tune=100,
    reference_draws=100,
)


class Method(NamedTuple):
    """A way to adapt to one task after another, and the posterior after each."""

    name: str
    strategy: AbstractStrategy
    posteriors: Sequence[AmortizedPosterior]


def run_demo(
    out: Path | str,
    *,
    settings: DemoSettings | None = None,
    random_seed: int = 1,
    console: Console | None = None,
) -> DemoResult:
    """Run the demo and write its table, figure and draws.

    Parameters
    ----------
    out : path
        Folder for ``table.json``, ``figure.png`` and ``results.zarr``; made where it is missing.
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
        If matplotlib or statsmodels is not installed.
    """
    settings = DemoSettings() if settings is None else settings
    console = Console() if console is None else console
    begin = time.perf_counter()

    def heading(text: str) -> None:
        console.print(f"\n[bold]{text}[/bold]  [dim]({time.perf_counter() - begin:.0f} s)[/dim]")

    need("demo", "the demo", "matplotlib", "statsmodels")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)

    heading("Tasks")
    tasks = demo_tasks(settings, random_seed=random_seed)
    for name, task in tasks.items():
        source = task.attrs.get("source", "the prior, and X ~ Normal(0, 1)")
        console.print(f"  {name}: {task.sizes[DATASET]} datasets from {source}", highlight=False)

    heading("Pretraining on simulations from the model")
    model = linear_regression_model(rows=settings.rows)
    pretrained = fit_amortized(
        model,
        covariates={"X": pm.Normal.dist(0, 1)},
        exchangeable="obs",
        network=settings.network,
        levels=False,
        steps=settings.pretraining_steps,
        random_seed=random_seed,
    )
    assert isinstance(pretrained, AmortizedPosterior)

    methods = []
    for label, strategy in (("naive", Naive()), ("replay", Replay(capacity=len(tasks)))):
        heading(f"Adapting to one task after another: {label}")
        posteriors = adapt_in_turn(pretrained, tasks, strategy, steps=settings.adaptation_steps)
        methods.append(Method(label, strategy, posteriors))

    heading("NUTS on every dataset")
    every = xr.concat(tasks.values(), DATASET, combine_attrs="drop")
    reference = sample_reference(
        model,
        every,
        draws=settings.reference_draws,
        tune=settings.tune,
        chains=settings.chains,
        random_seed=random_seed,
    )

    heading("Comparing with NUTS")
    result = judge(pretrained, methods, tasks, every, reference, draws=settings.draws)

    console.print()
    console.print(make_table(result))
    files = (*write_results(result, out), draw_figure(result, out / "figure.png"))
    heading("Done")
    for file in files:
        console.print(f"  {file}", highlight=False, soft_wrap=True)
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


def adapt_in_turn(
    posterior: AmortizedPosterior,
    tasks: Mapping[str, xr.Dataset],
    strategy: AbstractStrategy,
    *,
    steps: int,
) -> list[AmortizedPosterior]:
    """Adapt to the tasks in their order; give the posterior after each."""
    found = []
    for name, task in tasks.items():
        posterior = posterior.adapt(task, name=name, strategy=strategy, steps=steps)
        found.append(posterior)
    return found


def judge(
    pretrained: AmortizedPosterior,
    methods: Sequence[Method],
    tasks: Mapping[str, xr.Dataset],
    every: xr.Dataset,
    reference: xr.DataTree,
    *,
    draws: int,
) -> DemoResult:
    """Compare with NUTS: before any adaptation, right after each task, and after all tasks.

    Parameters
    ----------
    pretrained : AmortizedPosterior
    methods : sequence of Method
    tasks : mapping of str to xarray.Dataset
    every : xarray.Dataset
        The datasets of all tasks.
    reference : xarray.DataTree
        NUTS on `every`.
    draws : int
        Draws of either side in a comparison.

    Returns
    -------
    DemoResult
    """
    chosen = {task: {DATASET: list(data[DATASET].values)} for task, data in tasks.items()}
    rounds = 1 + len(methods) * len(tasks)

    def sampled(posterior: AmortizedPosterior) -> xr.DataTree:
        with warnings.catch_warnings():
            # that the pretrained network is wrong on real data is what the demo shows
            warnings.filterwarnings("ignore", message=".*k-hat", category=UserWarning)
            return posterior.sample(every, draws, refine=False, random_seed=0)

    def distance(tree: xr.DataTree, task: str) -> float:
        found = compare(tree.sel(chosen[task]), reference.sel(chosen[task]), draws=draws, nulls=1)
        return float(found["mean_mmd2"])

    with progress_bar("Comparing", rounds, enabled=True) as bar:
        tree = sampled(pretrained)
        baseline = compare(tree, reference, draws=draws)
        trees = {"pretrained": tree}
        bar.advance(1)
        scores = []
        for method in methods:
            right_after = []
            for task, posterior in zip(tasks, method.posteriors, strict=True):
                tree = sampled(posterior)
                right_after.append(distance(tree, task))
                bar.advance(1)
            trees[method.name] = tree  # of the last posterior, which has seen all tasks
            for task, early in zip(tasks, right_after, strict=True):
                before = baseline.sel(chosen[task])
                scores.append(
                    TaskScore(
                        task=task,
                        method=method.name,
                        pretrained=float(before["mmd2"].mean()),
                        null=float(before["null_mmd2"].mean()),
                        right_after=early,
                        after_all=distance(tree, task),
                    )
                )
    worst = int(np.argmax(baseline["mmd2"].values))
    return DemoResult(
        scores=tuple(scores),
        null_threshold=float(baseline.attrs["null_threshold"]),
        worst_dataset=str(baseline[DATASET].values[worst]),
        results=xr.DataTree.from_dict({**trees, "nuts": reference}),
    )
