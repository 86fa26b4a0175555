"""A hundred tasks: is the last one as fast and as small as the first, with nothing compiled anew?

Replay with its defaults and a memory of twenty datasets, on the linear regression; few steps a
task, since what is asked is what a task costs, not what it learns.
"""

import gc
import os
import time

import jax
import numpy as np
import pymc as pm
from results import Table, parser, write

import pmcl
from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import simulated_datasets


def resident_gib() -> float:
    """Memory of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30


def main() -> None:
    """Adapt to task after task; note time, memory and compilations of each."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--tasks", type=int, default=100)
    arguments.add_argument("--steps", type=int, default=50)
    given = arguments.parse_args()
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **__: compiled.append(name) if "backend_compile" in name else None
    )
    posterior = pmcl.fit_amortized(
        linear_regression_model(), covariates={"X": pm.Normal.dist(0, 1)}, exchangeable="obs",
        steps=500, random_seed=0, progressbar=False,
    )  # fmt: skip
    rows = []
    for i in range(given.tasks):
        data = simulated_datasets(datasets=10, rows=100, random_seed=i)[0]
        before, begin = len(compiled), time.perf_counter()
        posterior = posterior.adapt(
            data, name=f"task {i}", strategy=pmcl.Replay(capacity=20), steps=given.steps,
            patience=None, progressbar=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        gc.collect()
        rows.append(
            {"task": i, "seconds": seconds, "gib": resident_gib(),
             "compilations": len(compiled) - before}
        )  # fmt: skip
        if i % 10 == 9:
            print(rows[-1], flush=True)
    first, last = rows[2:12], rows[-10:]

    def middle(some: list[dict], key: str) -> float:
        return float(np.median([r[key] for r in some]))

    found = {
        "seconds_ratio": middle(last, "seconds") / middle(first, "seconds"),
        "memory_ratio": middle(last, "gib") / middle(first, "gib"),
        "compilations_after_the_second": sum(r["compilations"] for r in rows[2:]),
    }
    table = Table(
        f"{given.tasks} tasks of {given.steps} steps",
        ["what", "tasks 3 to 12", "the last ten", "ratio"],
        [
            ["seconds a task", middle(first, "seconds"), middle(last, "seconds"),
             found["seconds_ratio"]],
            ["memory, GiB", middle(first, "gib"), middle(last, "gib"), found["memory_ratio"]],
            ["compilations after the second task", "", found["compilations_after_the_second"], ""],
        ],
    )  # fmt: skip
    write("hundred_tasks", given.out, {**found, "tasks": rows}, table)


if __name__ == "__main__":
    main()
