"""Experiment 1 (linear regression, ten tasks): tasks, references and the fixed baseline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymc as pm
import xarray as xr
from continual import Runs, Task, reference
from paper_tables import paper_tables

import pmcl
from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import draw_datasets, simulated_datasets

BASELINE = pmcl.Network(
    pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128), whiten=False
)
COVARIATES = {"X": pm.Normal.dist(0, 1)}


def tasks(out: Path, *, datasets: int = 10, rows: int = 100) -> list[Task]:
    """Build the ten tasks of the paper; references are sampled once and kept in `out`."""
    model = linear_regression_model(rows=rows)
    tables = sources()
    found = []
    for name in tables:
        data, references = {}, {}
        for kind, seed in (("adapted", 1), ("unadapted", 2)):
            drawn = subsets(tables, name, random_seed=seed, datasets=datasets, rows=rows)
            path = out / "references" / f"{name}-{kind}-{datasets}x{rows}.zarr"
            data[kind], references[kind] = drawn, reference(model, drawn, path)
        found.append(Task(name, data, references))
    return found


def sources() -> dict[str, Any]:
    """Return the tables of the paper; None for the task that is simulated."""
    return {"simulated": None, **paper_tables()}


def subsets(
    tables: Mapping[str, Any], name: str, *, random_seed: int, datasets: int = 10, rows: int = 100
) -> xr.Dataset:
    """Draw the datasets of a task: rows of its table with replacement, or simulations."""
    if tables[name] is None:
        return simulated_datasets(datasets=datasets, rows=rows, random_seed=random_seed)[0]
    return draw_datasets(tables[name], datasets=datasets, rows=rows, random_seed=random_seed)


def baseline(out: Path, *, seed: int = 0, progressbar: bool = True) -> pmcl.AmortizedPosterior:
    """The paper's network, 3,200 steps of 32 simulations; with seed 0 ratios are relative to it."""
    out.mkdir(parents=True, exist_ok=True)
    return pmcl.fit_amortized(
        linear_regression_model(),
        covariates=COVARIATES,
        exchangeable="obs",
        network=BASELINE,
        steps=3200,
        batch_size=32,
        learning_rate=5e-4,
        random_seed=seed,
        checkpoint=out / ("baseline.checkpoint" if seed == 0 else f"baseline-{seed}.checkpoint"),
        progressbar=progressbar,
    )


def pretrained(out: Path, *, seed: int = 0, progressbar: bool = True) -> pmcl.AmortizedPosterior:
    """The default network, pretrained once and kept in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    return pmcl.fit_amortized(
        linear_regression_model(),
        covariates=COVARIATES,
        random_seed=seed,
        checkpoint=out / f"pretrained-{seed}.checkpoint",
        progressbar=progressbar,
    )


def runs(out: Path) -> Runs:
    """All tasks, judged relative to the baseline network of seed 0."""
    found = tasks(out)
    return Runs(
        out, found, lambda: baseline(out), lambda settings, seed: start(out, settings, seed)
    )


def start(out: Path, settings: str, seed: int) -> pmcl.AmortizedPosterior:
    """Return the pretrained network: the paper's or the default one."""
    if settings == "paper":
        return baseline(out, seed=seed, progressbar=False)
    return pretrained(out, seed=seed, progressbar=False)
