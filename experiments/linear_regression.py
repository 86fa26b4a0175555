"""Experiment 1 in full: ten regression tasks, one after another, with every strategy.

    python experiments/linear_regression.py test-time   # a copy of the network for each task
    python experiments/linear_regression.py continual   # all methods, the paper's settings and ours
    python experiments/linear_regression.py strength    # the paper's consolidation by its strength
    python experiments/linear_regression.py long        # forty tasks, twenty stored datasets
    python experiments/linear_regression.py tables      # tables and figures of what there is

Real data: set PMCL_DATA to the folder with `regression/`, or let scikit-learn download them. Every
run is kept in `--out`, one file each, so that a command that was cut off goes on where it stopped.
Ratios are relative to one fixed baseline, the network trained on 3,200 batches of 32 simulations.
Absolute values stand beside them, for the ten datasets of a task that were
adapted to and for ten more that were not.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import regression
import tables
from continual import (
    Method,
    Runs,
    Task,
    our_methods,
    paper_consolidation,
    paper_methods,
    paper_options,
    paper_replay,
    summary,
)

import pmcl
from pmcl.demo.model import linear_regression_model

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
STRENGTHS = tuple(10.0**k for k in range(-2, 7))


PAPER = paper_options(steps=30, draws=16)
PAPER_REPLAY = paper_replay(capacity=20)
# Ours: the defaults.
REPLAY = pmcl.Replay(capacity=20)
METHODS: dict[str, tuple[Method, ...]] = {
    "paper": paper_methods(PAPER_REPLAY, PAPER, 1e2),
    "ours": our_methods(REPLAY, 300),
}


def test_time(runs: Runs) -> None:
    """Adapt a copy of the default network to each task, with the defaults."""

    def make() -> dict:
        posterior = runs.start("ours", 0)
        # One adaptation is thrown away: times below are without compilation.
        posterior.at_test_time(runs.tasks[0].adapted, progressbar=False)
        found: dict[str, Any] = {"tasks": {}}
        for task in runs.tasks:
            before = runs.judged(posterior, task)
            begin = time.perf_counter()
            adapted = posterior.at_test_time(task.adapted, progressbar=False)
            seconds = time.perf_counter() - begin
            found["tasks"][task.name] = {
                **runs.judged(adapted, task),
                "ratio_pretrained": before["adapted_ratio"],
                "seconds": seconds,
                "skipped": adapted.records[-1].record.skipped,
            }
        return found

    runs.kept("test-time", make)


def strength(runs: Runs) -> None:
    """Weight consolidation, alone and with replay, over the paper's range of strengths."""
    for value in STRENGTHS:
        theirs = paper_consolidation(value)
        for method in (
            Method("SC-EWC", theirs, PAPER),
            Method("SC-ER-EWC", (PAPER_REPLAY, theirs), PAPER),
        ):
            name = f"strength {method.name} {value:g}"
            runs.kept(name, lambda m=method: runs.once("paper", m, 0))


def rounds(tasks: list[Task], number: int) -> Iterator[tuple[str, Any]]:
    """Go through the tasks several times, with new subsets and in another order each time."""
    tables_ = regression.sources()
    rng = np.random.default_rng(0)
    for again in range(number):
        for i in rng.permutation(len(tasks)):
            name = tasks[i].name
            data = regression.subsets(tables_, name, random_seed=1 + 2 * again)
            yield f"{name} {again + 1}", data


def long(runs: Runs) -> None:
    """Forty tasks, at most twenty stored datasets: accuracy, time and memory task by task.

    The state is saved after every task, so that a command that was cut off goes on.
    """
    state = runs.state("ours", "long", 0)
    partial = runs.out / "long.json"

    def make() -> dict:
        if partial.exists():
            found = json.loads(partial.read_text())
            now = pmcl.load(state, linear_regression_model(), covariates=regression.COVARIATES)
        else:
            now = runs.start("ours", 0)
            each = ("median_ratio", "seconds", "cpu_seconds", "peak_gib", "steps", "starts")
            found = {name: [] for name in each}
        found["starts"].append(len(found["seconds"]))  # the next task's time is compilation, too
        for i, (name, data) in enumerate(rounds(runs.tasks, 4)):
            if i < len(found["seconds"]):
                continue
            begin, busy = time.perf_counter(), time.process_time()
            now = now.adapt(data, name=name, strategy=REPLAY, progressbar=False)
            found["seconds"].append(time.perf_counter() - begin)
            found["cpu_seconds"].append(time.process_time() - busy)
            found["steps"].append(now.records[-1].record.steps)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            found["peak_gib"].append(peak)
            if (i + 1) % 10 == 0:
                judged = {t.name: runs.judged(now, t) for t in runs.tasks}
                found["tasks"] = judged
                found["median_ratio"].append(
                    float(np.median([v["unadapted_ratio"] for v in judged.values()]))
                )
                print(f"{name}: {summary(found)}", flush=True)
            pmcl.save(now, state)
            partial.write_text(json.dumps(found))
        return found

    runs.kept("long", make)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "part",
        choices=[
            "test-time",
            "continual",
            "strength",
            "long",
            "tables",
        ],  # fmt: skip
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "regression")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--methods", nargs="+", help="names of some; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    if given.part != "tables":
        runs = regression.runs(given.out)
        if given.part == "continual":
            runs.continual(METHODS, given.seeds, given.methods)
        else:
            parts = {
                "test-time": test_time,
                "strength": strength,
                "long": long,
            }
            parts[given.part](runs)
    tables.write(
        given.out / "runs",
        given.results,
        "linear_regression",
        "python experiments/linear_regression.py continual (test-time, strength, long)",
    )


if __name__ == "__main__":
    main()
