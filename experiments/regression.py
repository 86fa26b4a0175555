"""Experiment 1 (linear regression, ten tasks): tasks, references and the fixed baseline."""

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pmcl
from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import draw_datasets, paper_tables, simulated_datasets

BASELINE = pmcl.Network(pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128))
COVARIATES = {"X": pm.Normal.dist(0, 1)}


@dataclass(frozen=True)
class RegressionTask:
    """Ten datasets to adapt to, and ten more, drawn alike, only to be tested on."""

    name: str
    adapted: xr.Dataset
    unadapted: xr.Dataset
    reference: xr.DataTree
    reference_unadapted: xr.DataTree


def tasks(out: Path, *, datasets: int = 10, rows: int = 100) -> list[RegressionTask]:
    """Build the ten tasks of the paper; references are sampled once and kept in `out`."""
    model = linear_regression_model(rows=rows)
    tables = sources()
    found = []
    for name in tables:
        adapted, unadapted = (
            subsets(tables, name, random_seed=s, datasets=datasets, rows=rows) for s in (1, 2)
        )
        references = [
            _reference(model, data, out / "references" / f"{name}-{kind}-{datasets}x{rows}.zarr")
            for kind, data in (("adapted", adapted), ("unadapted", unadapted))
        ]
        found.append(RegressionTask(name, adapted, unadapted, *references))
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


def _reference(model: pm.Model, data: xr.Dataset, path: Path) -> xr.DataTree:
    """NUTS of the same model; only the draws on the unconstrained scale are kept."""
    if not path.exists():
        tree = pmcl.sample_reference(model, data, draws=1000, tune=1000, random_seed=0)
        group = tree["unconstrained_posterior"].to_dataset()
        path.parent.mkdir(parents=True, exist_ok=True)
        group.to_zarr(path, mode="w")
    return xr.DataTree.from_dict({"unconstrained_posterior": xr.open_zarr(path).load()})


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


def pretrained(
    out: Path, *, seed: int = 0, progressbar: bool = True
) -> tuple[pmcl.AmortizedPosterior, float]:
    """The default network, pretrained once and kept in `out`; and the seconds that it took now.

    On more simulations than by default: what pretraining learns well need not be learned again.
    """
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    posterior = pmcl.fit_amortized(
        linear_regression_model(),
        covariates=COVARIATES,
        steps=10_000,
        random_seed=seed,
        checkpoint=out / f"pretrained-{seed}.checkpoint",
        progressbar=progressbar,
    )
    return posterior, time.perf_counter() - begin


def baseline_mmd(found: list[RegressionTask], out: Path) -> dict[str, dict[str, float]]:
    """Mean MMD^2 of the baseline for each task, computed once and kept in `out`."""
    path = out / "baseline.json"
    if path.exists():
        return json.loads(path.read_text())
    posterior = baseline(out)
    table = {t.name: measure(posterior, t) for t in found}
    path.write_text(json.dumps(table, indent=1))
    return table


def measure(
    posterior: pmcl.AmortizedPosterior, task: RegressionTask, *, refine: pmcl.Refine | bool = False
) -> dict[str, float]:
    """Mean metric of a posterior over a task's datasets, those adapted to and those not."""
    values: dict[str, float] = {}
    for kind, data, reference in (
        ("adapted", task.adapted, task.reference),
        ("unadapted", task.unadapted, task.reference_unadapted),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the table
            tree = posterior.sample(data, 1000, refine=refine, random_seed=7)
        compared = pmcl.compare(tree, reference)
        for name in ("mmd2", "null_mmd2", "bias_mean", "bias_sd"):
            values[f"{kind}_{name}"] = float(compared[f"mean_{name}"])
        stats = tree["dataset_stats"]
        values[f"{kind}_khat_median"] = float(np.median(stats["khat"]))
        values[f"{kind}_efficiency"] = float(stats["efficiency"].mean())
    return values


def ratio(values: Mapping[str, float], base: Mapping[str, float], kind: str) -> float:
    """MMD^2 of a task over the baseline's."""
    return values[f"{kind}_mmd2"] / base[f"{kind}_mmd2"]
