"""Experiment 1 in full: ten regression tasks, one after another, with every strategy.

    python experiments/linear_regression.py test-time   # a copy of the network for each task
    python experiments/linear_regression.py continual   # all methods, the paper's settings and ours
    python experiments/linear_regression.py strength    # weight consolidation by its strength
    python experiments/linear_regression.py capacity    # replay by the size of its memory
    python experiments/linear_regression.py options     # replay with each of our options
    python experiments/linear_regression.py long        # forty tasks, twenty stored datasets
    python experiments/linear_regression.py tables      # tables and figures of what there is

Real data: set PMCL_DATA to the folder with `regression/`, or let scikit-learn download them. Every
run is kept in `--out`, one file each, so that a command that was cut off goes on where it stopped.
Ratios are relative to one fixed baseline, the network trained on 3,200 batches of 32 simulations
(design: the metric); absolute values stand beside them, for the ten datasets of a task that were
adapted to and for ten more that were not.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import regression
import tables
from regression import RegressionTask

import pmcl

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
STRENGTHS = tuple(10.0**k for k in range(-2, 7))
CAPACITIES = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Method:
    """A way to go through the tasks; `strategy` None: a fresh copy of the network for each."""

    name: str
    strategy: Any
    options: dict[str, Any] = field(default_factory=dict)


def paper_rate(index: int) -> float:
    """Initial rate of a task: it falls with the task's index (design: experiment 1)."""
    return 5e-4 / (index + 1)


# The paper's settings: the variance of the log ratio, 30 full-batch steps, 16 draws.
PAPER = {
    "objective": pmcl.LogRatioVariance(16),
    "steps": 30,
    "learning_rate": paper_rate,
    "batch_size": 64,
    "warmup": 0,
    "patience": None,
}
PAPER_REPLAY = pmcl.Replay(capacity=20, weighting="dataset", pseudo=0, simulations=0)


def paper_consolidation(strength: float) -> pmcl.ElasticWeightConsolidation:
    """Return the paper's consolidation: squared gradients of the variance, the last task only."""
    return pmcl.ElasticWeightConsolidation(
        strength, decay=0.0, importance="self_consistency", simulations=0
    )


def consolidation(strength: float) -> pmcl.ElasticWeightConsolidation:
    """Return ours: the Fisher information of q, summed over tasks, simulations first."""
    return pmcl.ElasticWeightConsolidation(strength, decay=1.0)


# Ours: the defaults, with more pseudo-datasets.
REPLAY = pmcl.Replay(capacity=20, pseudo=2000, simulations=32)
METHODS: dict[str, tuple[Method, ...]] = {
    "paper": (
        Method("naive SC", pmcl.Naive(), PAPER),
        Method("SC-ER", PAPER_REPLAY, PAPER),
        Method("SC-EWC", paper_consolidation(1e2), PAPER),
        Method("SC-ER-EWC", (PAPER_REPLAY, paper_consolidation(1e2)), PAPER),
        Method("test-time SC", None, PAPER),
    ),
    "ours": (
        Method("replay", REPLAY),
        Method("naive", pmcl.Naive(), {"steps": 400}),
        Method("EWC", consolidation(1e0), {"steps": 400}),
        Method("test-time", None),
        Method("plain replay", PAPER_REPLAY, {"steps": 400}),
        Method("synaptic intelligence", pmcl.SynapticIntelligence(1e0), {"steps": 400}),
        Method("online Laplace", pmcl.OnlineLaplace(), {"steps": 400}),
        Method("replay + EWC", (REPLAY, consolidation(1e-2))),
        Method("teacher + replay", REPLAY, {"objective": pmcl.TeacherDistillation()}),
    ),
}


class Runs:
    """Runs kept as one JSON file each."""

    def __init__(self, out: Path, tasks: list[RegressionTask]):
        self.out = out
        self.tasks = tasks
        self.base = regression.baseline_mmd(tasks, out)

    def kept(self, name: str, make: Callable[[], dict]) -> dict:
        """Return a run from its file, or make it and keep it."""
        path = self.out / "runs" / f"{name.replace(' ', '_')}.json"
        if path.exists():
            return json.loads(path.read_text())
        print(f"{name} ...", flush=True)
        found = {"version": pmcl.__version__, **make()}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(found, indent=1))
        partial.replace(path)
        print(f"{name}: {summary(found)}", flush=True)
        return found

    def judged(self, posterior: pmcl.AmortizedPosterior, task: RegressionTask) -> dict[str, float]:
        """Measure a posterior at one task, with ratios to the baseline."""
        found = regression.measure(posterior, task)
        for kind in ("adapted", "unadapted"):
            found[f"{kind}_ratio"] = regression.ratio(found, self.base[task.name], kind)
        return found

    def start(self, settings: str, seed: int) -> pmcl.AmortizedPosterior:
        """Return the pretrained network: the paper's or the default one."""
        if settings == "paper":
            return regression.baseline(self.out, seed=seed, progressbar=False)
        return regression.pretrained(self.out, seed=seed, progressbar=False)[0]

    def once(self, settings: str, method: Method, seed: int, *, refined: bool = False) -> dict:
        """Go through all tasks; measure each after the last."""
        now = self.start(settings, seed)
        seconds = []
        found: dict[str, Any] = {"tasks": {}}
        for i, task in enumerate(self.tasks):
            begin = time.perf_counter()
            chosen = {"progressbar": False, "random_seed": 1000 * seed + i, **method.options}
            if method.strategy is None:
                rate = chosen.pop("learning_rate", 1e-3)
                chosen["learning_rate"] = rate(0) if callable(rate) else rate
                at = now.at_test_time(task.adapted, **chosen)
                found["tasks"][task.name] = self.judged(at, task)
            else:
                now = now.adapt(task.adapted, name=task.name, strategy=method.strategy, **chosen)
            seconds.append(time.perf_counter() - begin)
        if method.strategy is not None:
            for task in self.tasks:
                found["tasks"][task.name] = self.judged(now, task)
            transfer = now.history["transfer"].to_dataset().sel(measure="efficiency")
            found["transfer"] = {k: float(transfer[k]) for k in ("backward", "forward")}
            found["stored"] = len(now.memory)
            found["steps"] = [r.record.steps for r in now.records]
        if refined:
            found["refined"] = {
                t.name: regression.ratio(
                    regression.measure(now, t, refine=True), self.base[t.name], "adapted"
                )
                for t in self.tasks
            }
        return {**found, "seconds": seconds}


def summary(found: dict) -> str:
    """Say the ratios of a run in a line."""
    parts = []
    for kind in ("adapted", "unadapted"):
        ratios = {k: v[f"{kind}_ratio"] for k, v in found.get("tasks", {}).items()}
        if ratios:
            real = [r for k, r in ratios.items() if k != "simulated"]
            middle = np.median(list(ratios.values()))
            parts.append(
                f"{kind}: median {middle:.3f}, worst real {max(real):.3f}, "
                f"simulated {ratios['simulated']:.3f}"
            )
    return "; ".join(parts)


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


def continual(runs: Runs, seeds: tuple[int, ...]) -> None:
    """All methods with both settings; the networks that were only pretrained beside them."""
    for seed in seeds:
        for settings, methods in METHODS.items():
            before = Method("SB", pmcl.Naive())

            def pretrained(settings: str = settings, seed: int = seed) -> dict:
                posterior = runs.start(settings, seed)
                return {"tasks": {t.name: runs.judged(posterior, t) for t in runs.tasks}}

            runs.kept(f"{settings} {before.name} {seed}", pretrained)
            for method in methods:

                def make(m: Method = method, settings: str = settings, seed: int = seed) -> dict:
                    return runs.once(settings, m, seed, refined=m.name == "replay")

                runs.kept(f"{settings} {method.name} {seed}", make)


def strength(runs: Runs) -> None:
    """Weight consolidation, alone and with replay, over the paper's range of strengths."""
    for value in STRENGTHS:
        mine, theirs = consolidation(value), paper_consolidation(value)
        for settings, method in (
            ("paper", Method("SC-EWC", theirs, PAPER)),
            ("paper", Method("SC-ER-EWC", (PAPER_REPLAY, theirs), PAPER)),
            ("ours", Method("EWC", mine, {"steps": 400})),
        ):

            def make(m: Method = method, settings: str = settings) -> dict:
                return runs.once(settings, m, 0)

            runs.kept(f"strength {method.name} {value:g}", make)


def capacity(runs: Runs) -> None:
    """Replay by the number of datasets that it may store."""
    for value in CAPACITIES:
        method = Method("replay", pmcl.Replay(capacity=value, pseudo=2000, simulations=32))
        runs.kept(f"capacity {value}", lambda m=method: runs.once("ours", m, 0))


def rounds(tasks: list[RegressionTask], number: int) -> Iterator[tuple[str, Any]]:
    """Go through the tasks several times, with new subsets and in another order each time."""
    tables_ = regression.sources()
    rng = np.random.default_rng(0)
    for again in range(number):
        for i in rng.permutation(len(tasks)):
            name = tasks[i].name
            data = regression.subsets(tables_, name, random_seed=1 + 2 * again)
            yield f"{name} {again + 1}", data


PLAIN = {"weighting": "dataset", "pseudo": 0, "simulations": 0}
OPTIONS = {
    "none": PLAIN,
    "weighting": {**PLAIN, "weighting": "task"},
    "bootstrap": {**PLAIN, "pseudo": 2000, "predictive": 0.0},
    "predictive": {**PLAIN, "pseudo": 2000, "predictive": 1.0, "bootstrap": False},
    "simulations": {**PLAIN, "simulations": 32},
    "without simulations": {"pseudo": 2000, "simulations": 0},
    "all": {"pseudo": 2000, "simulations": 32},
}


def options(runs: Runs) -> None:
    """Replay with each of our own options alone, and together; as many steps for all."""
    for name, fields in OPTIONS.items():
        method = Method(name, pmcl.Replay(capacity=20, **fields))
        runs.kept(f"option {name}", lambda m=method: runs.once("ours", m, 0))


def long(runs: Runs) -> None:
    """Forty tasks, at most twenty stored datasets: accuracy, time and memory task by task."""

    def make() -> dict:
        now = runs.start("ours", 0)
        found: dict[str, Any] = {
            "median_ratio": [],
            "seconds": [],
            "cpu_seconds": [],
            "peak_gib": [],
            "steps": [],
        }
        for i, (name, data) in enumerate(rounds(runs.tasks, 4)):
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
        return found

    runs.kept("long", make)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "part",
        choices=["test-time", "continual", "strength", "capacity", "options", "long", "tables"],
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "regression")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    if given.part != "tables":
        runs = Runs(given.out, regression.tasks(given.out))
        if given.part == "continual":
            continual(runs, tuple(given.seeds))
        else:
            parts = {
                "test-time": test_time,
                "strength": strength,
                "capacity": capacity,
                "options": options,
                "long": long,
            }
            parts[given.part](runs)
    tables.write(given.out / "runs", given.results)


if __name__ == "__main__":
    main()
