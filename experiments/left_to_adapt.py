"""What is left to adapt to where simulations are few: one case where adapting wins, and another.

    python experiments/left_to_adapt.py logistic   # vague priors, one mode
    python experiments/left_to_adapt.py mixture    # several modes

A whitened network is trained on a few simulations, as where each of them is dear, and then sees
tasks of real data one after another. Judged are other datasets of the tasks, drawn alike, and
simulated ones: the mean efficiency of the network's own draws and the share with a k-hat above 0.7.
Nothing is refined. Beside them stands a network that saw many simulations, as far as they can be
had.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

import pmcl
from pmcl.data.simulated import simulated_task

HERE = Path(__file__).parent
SIMULATED = 30  # datasets of the model's own


class Case(NamedTuple):
    """A model whose network saw few simulations, and tables.

    Attributes
    ----------
    fit : callable
        Of the options of `fit_amortized`, to a posterior.
    tables : dict
        Of each task, arrays by variable, whose first dim is rows to draw from.
    dims : dict
        Of each variable, after the dataset's.
    few, many : int
        Simulations to train on.
    rows, datasets : int
        Of a dataset, and of a task to adapt to.
    """

    fit: Callable[..., Any]
    tables: dict[str, dict[str, np.ndarray]]
    dims: dict[str, tuple[str, ...]]
    few: int
    many: int
    rows: int
    datasets: int


def logistic() -> Case:
    """Three predictors and vague priors: most simulated data are separated, real ones are not."""
    rows, predictors = 60, 3

    def fit(**options: Any) -> Any:
        start = np.zeros((rows, predictors))
        with pm.Model(coords={"obs": range(rows), "predictor": range(predictors)}) as model:
            X = pm.Data("X", start, dims=("obs", "predictor"))
            intercept = pm.Normal("intercept", 0, 10)
            beta = pm.Normal("beta", 0, 10, dims="predictor")
            p = intercept + X @ beta
            pm.Bernoulli("y", logit_p=p, observed=np.arange(rows) % 2, dims="obs")
        return pmcl.fit_amortized(
            model, covariates={"X": pm.Normal.dist(0, 1)}, exchangeable="obs", **options
        )

    def table(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        return {"X": (x - x.mean(axis=0)) / x.std(axis=0), "y": y.astype(int)}

    cells, wines, people = load_breast_cancer(), load_wine(), load_diabetes()
    tables = {
        "cells": table(cells.data[:, [1, 4, 8]], cells.target),
        "wines": table(wines.data[:, [1, 2, 10]], wines.target == 1),
        "people": table(people.data[:, [2, 3, 8]], people.target > np.median(people.target)),
    }
    return Case(fit, tables, {"X": ("obs", "predictor"), "y": ("obs",)}, 128, 4096, rows, 10)


def mixture() -> Case:
    """The published mixture; measurements with two groups that nobody labelled."""
    flowers, wines = load_iris(as_frame=True).frame, load_wine(as_frame=True).frame
    cells = load_breast_cancer(as_frame=True).frame
    found = {
        "petals": flowers["petal width (cm)"],
        "wines": wines["flavanoids"],
        "cells": np.log(cells["mean area"]),
    }
    tables = {k: {"y": ((v - v.mean()) / v.std()).to_numpy()} for k, v in found.items()}
    fit = pmcl.models.find("normal_mixture").fit
    return Case(fit, tables, {"y": ("obs",)}, 512, 16_000, 100, 10)


CASES = {"logistic": logistic, "mixture": mixture}


def task(case: Case, name: str, seed: int) -> xr.Dataset:
    """Datasets of rows drawn with replacement."""
    table = case.tables[name]
    number = len(next(iter(table.values())))
    which = np.random.default_rng(seed).integers(number, size=(case.datasets, case.rows))
    return xr.Dataset({k: (("dataset", *case.dims[k]), v[which]) for k, v in table.items()})


def judged(posterior: Any, tests: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Efficiency and share of k-hat above 0.7 of the network's own draws, by task."""
    found = {}
    for name, data in tests.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the table
            stats = posterior.sample(
                data, 1000, refine=False, fallback=None, random_seed=7, progressbar=False
            )["dataset_stats"]
        found[name] = {
            "efficiency": float(stats["efficiency"].mean()),
            "khat_above": float((stats["khat"] > 0.7).mean()),
        }
    return found


def run(case: Case, seed: int) -> dict[str, dict]:
    """All methods with one seed: measures by task, seconds, and why each adaptation stopped."""
    options = {"random_seed": seed, "progressbar": False}
    tasks = {k: task(case, k, 100 + seed) for k in case.tables}
    tests: dict[str, Any] = {k: task(case, k, 200 + seed) for k in case.tables}
    every = case.datasets
    strategies = {
        "naive": pmcl.Naive(),
        "replay, one dataset a task": pmcl.Replay(per_task=1),
        "replay, all": pmcl.Replay(per_task=every),
        "EWC": pmcl.ElasticWeightConsolidation(),
        "replay + EWC": (pmcl.Replay(per_task=1), pmcl.ElasticWeightConsolidation(strength=100.0)),
        "replay, all, and simulations": pmcl.Replay(per_task=every, simulations=16),
    }
    found: dict[str, dict] = {}

    def note(name: str, posterior: Any, begin: float) -> None:
        seconds = time.perf_counter() - begin
        stopped = [r.record.stopped for r in posterior.records]
        objectives = [type(r.objective).__name__ for r in posterior.records]
        found[name] = {"tasks": judged(posterior, tests), "seconds": seconds}
        found[name] |= {"stopped": stopped, "objectives": objectives}
        shown = {k: round(v["efficiency"], 2) for k, v in found[name]["tasks"].items()}
        print(seed, name, shown, stopped, objectives, flush=True)

    begin = time.perf_counter()
    start = case.fit(simulations=case.few, **options)
    row = start.structure.row
    tests["simulations"] = simulated_task(start.simulator, row, SIMULATED, random_seed=300 + seed)[
        1
    ]
    note("not adapted", start, begin)
    for name, strategy in strategies.items():
        now, begin = start, time.perf_counter()
        for label, data in tasks.items():
            now = now.adapt(data, name=label, strategy=strategy, steps=600, **options)
        note(name, now, begin)
    begin = time.perf_counter()
    note(
        f"{case.many:,} simulations, not adapted", case.fit(simulations=case.many, **options), begin
    )
    return found


def averaged(runs: list[dict[str, dict]]) -> dict[str, dict]:
    """Means over seeds."""
    table = {}
    for name, one in runs[0].items():
        table[name] = {
            measure: {
                k: float(np.mean([r[name]["tasks"][k][measure] for r in runs]))
                for k in one["tasks"]
            }
            for measure in ("efficiency", "khat_above")
        }
        table[name]["seconds"] = float(np.mean([r[name]["seconds"] for r in runs]))
    return table


def main() -> None:
    """Run a case with all seeds, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "left_to_adapt.json")
    given = parser.parse_args()
    case = CASES[given.case]()
    runs = [run(case, seed) for seed in range(given.seeds)]
    table = averaged(runs)
    whole = json.loads(given.out.read_text()) if given.out.exists() else {}
    whole[given.case] = {"seeds": given.seeds, "methods": table, "runs": runs}
    given.out.write_text(json.dumps(whole, indent=1) + "\n")
    print("| | " + " | ".join(next(iter(table.values()))["efficiency"]) + " | seconds |")
    for name, found in table.items():
        cells = [
            f"{found['efficiency'][k]:.2f} ({found['khat_above'][k]:.0%})"
            for k in found["efficiency"]
        ]
        print(f"| {name} | " + " | ".join(cells) + f" | {found['seconds']:.0f} |")


if __name__ == "__main__":
    main()
