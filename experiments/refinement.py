"""Experiment 1 with refinement: networks that were only pretrained, corrected dataset by dataset.

The fixed baseline network and the default one, neither adapted to anything; all ten tasks.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import regression
from rich.console import Console
from rich.table import Table

import pmcl
from pmcl.metrics import agreement

HERE = Path(__file__).parent
SETTINGS = {
    "aligned": pmcl.Refine(steps=0),
    "default": pmcl.Refine(),
    "all stages": pmcl.Refine(enough=2.0),
}


def write(folder: Path, rows: dict[str, dict]) -> None:
    """Write what there is."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"command": "python experiments/refinement.py", "version": pmcl.__version__, **rows}
    (folder / "refinement.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Refine every dataset of every task, compare with NUTS, write table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "regression")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    runs = regression.runs(given.out)
    networks = {
        "baseline": regression.baseline(given.out, progressbar=False),
        "default": regression.pretrained(given.out, progressbar=False),
    }
    rows: dict[str, dict] = {}
    for network, posterior in networks.items():
        for label, settings in SETTINGS.items():
            if network == "baseline" and label != "default":
                continue
            found = {}
            for task in runs.tasks:
                tree = posterior.sample(task.adapted, 1000, refine=settings, random_seed=7)
                compared = pmcl.compare(tree, task.reference["adapted"])
                stats = tree["dataset_stats"].to_dataset()
                found[task.name] = {
                    "ratio": float(compared["mean_mmd2"]) / runs.base[task.name]["adapted_mmd2"],
                    "mmd2": float(compared["mean_mmd2"]),
                    "null_mmd2": float(compared["mean_null_mmd2"]),
                    "mmd2_of_datasets": [float(v) for v in compared["mmd2"]],
                    "null_of_datasets": [float(v) for v in compared["null_mmd2"]],
                    "khat": [float(k) for k in stats["khat"]],
                    "efficiency": [float(e) for e in stats["efficiency"]],
                    "engines": [str(e) for e in stats["engine"].values],
                }
            khat = np.concatenate([r["khat"] for r in found.values()])
            efficiency = np.concatenate([r["efficiency"] for r in found.values()])
            # One verdict over all datasets: the 99 % quantile of ten null values says little.
            verdict = agreement(
                np.concatenate([r["mmd2_of_datasets"] for r in found.values()]),
                np.concatenate([r["null_of_datasets"] for r in found.values()]),
            )
            rows[f"{network} network, {label}"] = {
                "median_ratio": float(np.median([r["ratio"] for r in found.values()])),
                "worst_ratio": float(max(r["ratio"] for r in found.values())),
                "khat_below_0.7": float(np.mean(khat < 0.7)),
                "mean_efficiency": float(efficiency.mean()),
                "worst_efficiency": float(efficiency.min()),
                "above_99_percent_of_null": verdict.exceptions,
                "allowed_above": verdict.allowed,
                "agrees_with_reference": verdict.agrees,
                "datasets": len(khat),
                "tasks": found,
            }
            write(given.results, rows)  # after each: the rest takes minutes
    columns = [k for k in next(iter(rows.values())) if k != "tasks"]
    table = Table("run", *columns, title="Refinement, experiment 1, no adaptation")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[c]:.3g}" for c in columns))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
