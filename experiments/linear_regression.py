"""Experiment 1, test-time adaptation: a copy of the pretrained network adapted to each task.

Real data: set PMCL_DATA to the folder with `regression/`, or let scikit-learn download them.
Tables and figures are relative to one fixed baseline, the network trained on 3,200 batches of 32
simulations (design: the metric); absolute values stand beside them, for the ten datasets of a task
that were adapted to and for ten more that were not.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import regression
from rich.console import Console
from rich.table import Table

import pmcl

HERE = Path(__file__).parent


def main() -> None:
    """Pretrain with the defaults, adapt to each task, compare with NUTS, write table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "regression")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tasks = regression.tasks(given.out)
    base = regression.baseline_mmd(tasks, given.out)
    posterior, fitted = regression.pretrained(given.out, seed=given.seed)
    # One adaptation is thrown away: times below are without compilation.
    posterior.adapt(tasks[0].adapted, name="compilation", progressbar=False)
    rows = {}
    for task in tasks:
        before = regression.measure(posterior, task)
        begin = time.perf_counter()
        adapted = posterior.adapt(task.adapted, name=task.name)
        seconds = time.perf_counter() - begin
        after = regression.measure(adapted, task)
        rows[task.name] = {
            "ratio": regression.ratio(after, base[task.name], "adapted"),
            "ratio_unadapted": regression.ratio(after, base[task.name], "unadapted"),
            "ratio_pretrained": regression.ratio(before, base[task.name], "adapted"),
            "seconds": seconds,
            "skipped": adapted.records[-1].record.skipped,
            "baseline_mmd2": base[task.name]["adapted_mmd2"],
            **after,
        }
    columns = (
        "baseline_mmd2",
        "ratio_pretrained",
        "ratio",
        "ratio_unadapted",
        "adapted_mmd2",
        "adapted_null_mmd2",
        "adapted_khat_median",
        "adapted_efficiency",
        "seconds",
    )
    table = Table("task", *columns, title="Test-time adaptation, experiment 1")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[c]:.3g}" for c in columns))
    Console(width=160).print(table)
    ratios = [row["ratio"] for row in rows.values()]
    summary = {
        "median_ratio": float(np.median(ratios)),
        "worst_ratio": float(np.max(ratios)),
        "median_ratio_unadapted": float(np.median([r["ratio_unadapted"] for r in rows.values()])),
        "longest_seconds": max(r["seconds"] for r in rows.values()),
        "pretraining_seconds": fitted,
    }
    print(summary)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "test_time.json").write_text(
        json.dumps(
            {
                "command": f"python experiments/linear_regression.py --seed {given.seed}",
                "version": pmcl.__version__,
                "summary": summary,
                "tasks": rows,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
