"""What the experiments share: tasks, methods, runs kept in files, the metric and its baseline."""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pmcl

type Start = Callable[[str, int], pmcl.AmortizedPosterior]


@dataclass(frozen=True)
class Task:
    """Datasets of a task by kind, "adapted" ones and perhaps "unadapted"; NUTS draws of each."""

    name: str
    data: dict[str, xr.Dataset]
    reference: dict[str, xr.DataTree]

    @property
    def adapted(self) -> xr.Dataset:
        """What there is to adapt to."""
        return self.data["adapted"]


@dataclass(frozen=True)
class Method:
    """A way to go through the tasks; `strategy` None: a fresh copy of the network for each."""

    name: str
    strategy: Any
    options: dict[str, Any] = field(default_factory=dict)
    refined: bool = False


def reference(model: pm.Model, data: xr.Dataset, path: Path) -> xr.DataTree:
    """NUTS of the same model, once; only the draws on the unconstrained scale are kept."""
    if not path.exists():
        tree = pmcl.sample_reference(model, data, draws=1000, tune=1000, random_seed=0)
        group = tree["unconstrained_posterior"].to_dataset()
        path.parent.mkdir(parents=True, exist_ok=True)
        group.to_zarr(path, mode="w")
    return xr.DataTree.from_dict({"unconstrained_posterior": xr.open_zarr(path).load()})


def measure(
    posterior: pmcl.AmortizedPosterior, task: Task, *, refine: pmcl.Refine | bool = False
) -> dict[str, float]:
    """Mean metric of a posterior over a task's datasets, those adapted to and those not."""
    values: dict[str, float] = {}
    for kind, data in task.data.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the table
            tree = posterior.sample(data, 1000, refine=refine, random_seed=7)
        compared = pmcl.compare(tree, task.reference[kind])
        for name in ("mmd2", "null_mmd2", "bias_mean", "bias_sd"):
            values[f"{kind}_{name}"] = float(compared[f"mean_{name}"])
        stats = tree["dataset_stats"]
        values[f"{kind}_khat_median"] = float(np.median(stats["khat"]))
        values[f"{kind}_efficiency"] = float(stats["efficiency"].mean())
    return values


def ratio(values: Mapping[str, float], base: Mapping[str, float], kind: str) -> float:
    """MMD^2 of a task over the baseline's."""
    return values[f"{kind}_mmd2"] / base[f"{kind}_mmd2"]


def measured_once(
    path: Path, tasks: Iterable[Task], make: Callable[[], pmcl.AmortizedPosterior]
) -> dict[str, dict[str, float]]:
    """Measure the baseline at every task, or read what was measured."""
    if path.exists():
        return json.loads(path.read_text())
    posterior = make()
    table = {t.name: measure(posterior, t) for t in tasks}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=1))
    return table


def kept(runs: Path, name: str, make: Callable[[], dict], summary: Callable[[dict], str]) -> dict:
    """Return a run from its file, or make it and keep it."""
    path = runs / f"{name.replace(' ', '_')}.json"
    if path.exists():
        return json.loads(path.read_text())
    print(f"{name} ...", flush=True)
    begin = time.perf_counter()
    found = {"version": pmcl.__version__, "with": versions(), **make()}
    found |= {"made": f"{datetime.now(UTC):%Y-%m-%d}", "took": time.perf_counter() - begin}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(found, indent=1))
    partial.replace(path)
    print(f"{name}: {summary(found)}", flush=True)
    return found


class Checkpoint:
    """A stream on its way and what was found so far: a run goes on where it was cut off.

    Parameters
    ----------
    stem : Path
        Of the files: the stream's, numbered by its updates, and one that says which is the last.
    every : float
        Seconds between two of them, at least.
    """

    def __init__(self, stem: Path, every: float = 0.0):
        self.stem, self.every, self.written = stem, every, time.monotonic()

    def read(self, model: pm.Model) -> tuple[Any, dict] | None:
        """Return the stream and what was found with it, if there is one."""
        path = self.stem.with_name(f"{self.stem.name}.json")
        if not path.exists():
            return None
        last = json.loads(path.read_text())
        return pmcl.load(path.with_name(last["stream"]), model), last["found"]

    def write(self, stream: Any, found: dict) -> None:
        """Write both, unless the last time was a moment ago."""
        if time.monotonic() - self.written < self.every:
            return
        folder, name = self.stem.parent, self.stem.name
        folder.mkdir(parents=True, exist_ok=True)
        state = folder / f"{name}-{stream.history.sizes['update']}.zarr.zip"
        pmcl.save(stream, state)
        partial = folder / f"{name}.part"
        partial.write_text(json.dumps({"stream": state.name, "found": found}))
        partial.replace(folder / f"{name}.json")
        for older in folder.glob(f"{name}-*.zarr.zip"):
            if older != state:
                older.unlink()
        self.written = time.monotonic()


class Runs:
    """Runs kept as one JSON file each, so that a command that was cut off goes on."""

    def __init__(
        self,
        out: Path,
        tasks: list[Task],
        baseline: Callable[[], pmcl.AmortizedPosterior],
        start: Start,
    ):
        self.out, self.tasks, self.baseline, self.start = out, tasks, baseline, start

    @cached_property
    def base(self) -> dict[str, dict[str, float]]:
        """What the baseline measures at every task; it is trained where nothing is kept of it."""
        return measured_once(self.out / "baseline.json", self.tasks, self.baseline)

    def kept(self, name: str, make: Callable[[], dict]) -> dict:
        """Return a run from its file, or make it and keep it."""
        return kept(self.out / "runs", name, make, summary)

    def judged(self, posterior: pmcl.AmortizedPosterior, task: Task) -> dict[str, float]:
        """Measure a posterior at one task, with ratios to the baseline."""
        found = measure(posterior, task)
        for kind in task.data:
            found[f"{kind}_ratio"] = ratio(found, self.base[task.name], kind)
        return found

    def refined(self, posterior: pmcl.AmortizedPosterior) -> dict[str, float]:
        """Ratios of refined draws."""
        return {
            t.name: ratio(measure(posterior, t, refine=True), self.base[t.name], "adapted")
            for t in self.tasks
        }

    def pretrained(self, settings: str, seed: int) -> dict:
        """Measure the network that was only pretrained."""
        posterior = self.start(settings, seed)
        return {"tasks": {t.name: self.judged(posterior, t) for t in self.tasks}}

    def once(self, settings: str, method: Method, seed: int) -> dict:
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
        if method.refined:
            found["refined"] = self.refined(now)
            pmcl.save(now, self.state(settings, method.name, seed))
        return {**found, "seconds": seconds}

    def state(self, settings: str, method: str, seed: int) -> Path:
        """Where the posterior after the last task is kept, of methods that are also refined."""
        path = self.out / "states" / f"{settings}-{method}-{seed}.zarr.zip".replace(" ", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def continual(
        self,
        methods: Mapping[str, Iterable[Method]],
        seeds: Iterable[int],
        only: Collection[str] | None = None,
    ) -> None:
        """All methods by their settings, or only some; the networks before them, too."""
        for seed in seeds:
            for settings, some in methods.items():
                chosen = [m for m in some if not only or m.name in only]
                if not chosen:
                    continue
                self.kept(f"{settings} SB {seed}", lambda s=settings, k=seed: self.pretrained(s, k))
                for method in chosen:
                    self.kept(
                        f"{settings} {method.name} {seed}",
                        lambda s=settings, m=method, k=seed: self.once(s, m, k),
                    )


def choose_folders(given: argparse.Namespace, name: str) -> None:
    """Fill in `given.out` and `given.results`: a short run has its own, or it would be taken on."""
    root = Path(__file__).parent
    short = getattr(given, "short", False)
    given.out = given.out or root.parent / "out" / (f"{name}-short" if short else name)
    given.results = given.results or (given.out / "results" if short else root / "results")
    given.results.mkdir(parents=True, exist_ok=True)


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {name: version(name) for name in ("pymc", "jax", "flowjax", "numpy")}


def simulated(name: str) -> bool:
    """Whether a task is of simulations, by its name."""
    return name.startswith("simulated")


def summary(found: dict) -> str:
    """Say the ratios of a run in a line."""
    parts = []
    for kind in ("adapted", "unadapted"):
        key = f"{kind}_ratio"
        ratios = {k: v[key] for k, v in found.get("tasks", {}).items() if key in v}
        if ratios:
            real = [r for k, r in ratios.items() if not simulated(k)]
            others = [r for k, r in ratios.items() if simulated(k)]
            parts.append(
                f"{kind}: median {np.median(list(ratios.values())):.3f}, "
                f"worst real {max(real, default=0):.3f}, simulated {max(others, default=0):.3f}"
            )
    return "; ".join(parts)


# The papers' settings: the variance of the log ratio, a few full-batch steps.
def paper_rate(index: int) -> float:
    """Initial rate of a task: it falls with the task's index."""
    return 5e-4 / (index + 1)


def paper_options(*, steps: int, draws: int) -> dict[str, Any]:
    """Options of `adapt` as in the paper."""
    return {
        "objective": pmcl.LogRatioVariance(draws),
        "steps": steps,
        "learning_rate": paper_rate,
        "batch_size": 64,
        "warmup": 0,
        "patience": None,
    }


def paper_consolidation(strength: float) -> pmcl.ElasticWeightConsolidation:
    """Return the paper's consolidation: squared gradients of the variance, the last task only."""
    return pmcl.ElasticWeightConsolidation(
        strength, decay=0.0, importance="self_consistency", simulations=0
    )


def paper_methods(
    replay: pmcl.Replay, options: dict[str, Any], strength: float
) -> tuple[Method, ...]:
    """The five methods of the paper that adapt; SB is the network before them."""
    penalty = paper_consolidation(strength)
    return (
        Method("naive SC", pmcl.Naive(), options),
        Method("SC-ER", replay, options),
        Method("SC-EWC", penalty, options),
        Method("SC-ER-EWC", (replay, penalty), options),
        Method("test-time SC", None, options),
    )


def paper_replay(capacity: int, per_task: int = 1) -> pmcl.Replay:
    """Return the paper's replay: nothing but the stored datasets, each alike."""
    return pmcl.Replay(capacity=capacity, per_task=per_task, weighting="dataset")


def consolidation(strength: float) -> pmcl.ElasticWeightConsolidation:
    """Return ours: the Fisher information of q, summed over tasks, simulations first."""
    return pmcl.ElasticWeightConsolidation(strength, decay=1.0)


def our_methods(replay: pmcl.Replay, steps: int) -> tuple[Method, ...]:
    """Return ours: the defaults, and every strategy with all steps, needed or not."""
    every = {"steps": steps, "patience": None}
    return (
        Method("adapt", replay, refined=True),  # no step where the network is right already
        Method("naive", pmcl.Naive(), every),
        Method("replay", replay, every),
        Method("EWC", consolidation(1e2), every),
        Method("replay + EWC", (replay, consolidation(1e2)), every),
        Method("test-time", None, every),
    )
