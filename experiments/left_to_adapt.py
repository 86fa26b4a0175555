"""Is anything left to adapt to? A mixture whose network saw few simulations, three real tasks.

A whitened network of the published mixture is trained on `--simulations` datasets, as where each
of them is dear, and then sees tasks of real, bimodal measurements one after another. Judged are
other datasets of the tasks, drawn alike, and simulated ones: the mean efficiency of the network's
own draws and the share with a k-hat above 0.7. Nothing is refined.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

import pmcl

HERE = Path(__file__).parent
ROWS, DATASETS = 100, 10


def columns() -> dict[str, np.ndarray]:
    """Measurements with two groups that nobody labelled, standardised."""
    flowers, wines = load_iris(as_frame=True).frame, load_wine(as_frame=True).frame
    cells = load_breast_cancer(as_frame=True).frame
    found = {
        "petals": flowers["petal width (cm)"],
        "wines": wines["flavanoids"],
        "cells": np.log(cells["mean area"]),
    }
    return {k: ((v - v.mean()) / v.std()).to_numpy() for k, v in found.items()}


def task(values: np.ndarray, seed: int) -> xr.Dataset:
    """Datasets of rows drawn with replacement."""
    which = np.random.default_rng(seed).integers(len(values), size=(DATASETS, ROWS))
    return xr.Dataset({"y": (("dataset", "obs"), values[which])})


def judged(posterior: pmcl.AmortizedPosterior, tests: dict[str, xr.Dataset]) -> dict:
    """Efficiency and share of k-hat above 0.7 of the network's own draws, by task."""
    found = {}
    for name, data in tests.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the table
            stats = posterior.sample(data, 1000, refine=False, random_seed=7)["dataset_stats"]
        found[name] = {
            "efficiency": float(stats["efficiency"].mean()),
            "khat_above": float((stats["khat"] > 0.7).mean()),
        }
    return found


def main() -> None:
    """Run all strategies for the seeds, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "left_to_adapt.json")
    given = parser.parse_args()

    definition = pmcl.models.find("normal_mixture")
    strategies = {
        "naive": pmcl.Naive(),
        "replay, one dataset a task": pmcl.Replay(per_task=1),
        "replay, all": pmcl.Replay(per_task=DATASETS),
        "EWC": pmcl.ElasticWeightConsolidation(),
        "replay + EWC": (pmcl.Replay(per_task=1), pmcl.ElasticWeightConsolidation(strength=100.0)),
    }
    rows: dict[str, list[dict]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        begin = time.perf_counter()
        start = definition.fit(
            simulations=given.simulations, steps=1500, random_seed=seed, progressbar=False
        )
        trained = time.perf_counter() - begin
        tasks = {k: task(v, 100 + seed) for k, v in columns().items()}
        tests = {k: task(v, 200 + seed) for k, v in columns().items()}
        model = definition.model()
        tests["simulations"] = simulated(model, 300 + seed)
        rows.setdefault("not adapted", []).append(judged(start, tests))
        seconds.setdefault("not adapted", []).append(trained)
        for name, strategy in strategies.items():
            now, begin = start, time.perf_counter()
            for label, data in tasks.items():
                now = now.adapt(
                    data, name=label, strategy=strategy, steps=600, random_seed=seed,
                    progressbar=False,
                )  # fmt: skip
            seconds.setdefault(name, []).append(time.perf_counter() - begin)
            rows.setdefault(name, []).append(judged(now, tests))
            print(seed, name, {k: round(v["efficiency"], 2) for k, v in rows[name][-1].items()},
                  flush=True)  # fmt: skip
    table = {
        name: {
            **{
                measure: {k: float(np.mean([one[k][measure] for one in found])) for k in found[0]}
                for measure in ("efficiency", "khat_above")
            },
            "seconds": float(np.mean(seconds[name])),
        }
        for name, found in rows.items()
    }
    given.out.write_text(json.dumps({"seeds": given.seeds, "simulations": given.simulations,
                                     "methods": table}, indent=1))  # fmt: skip
    print("| | " + " | ".join(rows["not adapted"][0]) + " | seconds |")
    for name, found in table.items():
        cells = [
            f"{found['efficiency'][k]:.2f} ({found['khat_above'][k]:.0%})"
            for k in found["efficiency"]
        ]
        print(f"| {name} | " + " | ".join(cells) + f" | {found['seconds']:.0f} |")


def simulated(model, seed: int) -> xr.Dataset:  # noqa: ANN001
    """Datasets from the model's own prior predictive distribution."""
    import pymc as pm

    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = pm.sample_prior_predictive(3 * DATASETS, random_seed=seed)["prior_predictive"]
    return xr.Dataset({"y": (("dataset", "obs"), drawn["y"].values.reshape(-1, ROWS))})


if __name__ == "__main__":
    main()
