"""One network for any number of groups, against NUTS of the non-centred form.

Simulated data. A network is trained over 5 to 60 groups of each model and sampled at several
numbers; `python experiments/level_networks.py schools` runs one model, and without a name all are
run. `--many` trains over 100 to 200 groups and samples at 200.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import level_models
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from level_models import Data, effect
from levels import mmd2
from rich.console import Console
from rich.table import Table

import pmcl

HERE = Path(__file__).parent
DRAWS = 1000


class Case(NamedTuple):
    """A model with any number of groups.

    Attributes
    ----------
    build : callable
        Of the numbers of groups and of rows, and `centred`, to the model.
    simulate : callable
        Of a generator and a number of groups, to one dataset.
    shared, local : tuple of str
        Names of global parameters and of the groups'.
    covariates : dict
        Sources of those that are no index.
    lengths : tuple of int, optional
        Of training.
    groups : tuple of int
        What is sampled.
    """

    build: Callable[[int, int, bool], pm.Model]
    simulate: Callable[[np.random.Generator, int], Data]
    shared: tuple[str, ...]
    local: tuple[str, ...]
    covariates: dict[str, Any]
    lengths: tuple[int, int] | None
    groups: tuple[int, ...]


def schools() -> Case:
    """Eight schools: known errors, one row a group."""

    def build(groups: int, _: int, centred: bool) -> pm.Model:
        with pm.Model(coords={"school": range(groups)}) as model:
            sigma = pm.Data("sigma", np.ones(groups), dims="school")
            mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
            theta = effect("theta", mu, tau, "school", centred=centred)
            pm.Normal("y", theta, sigma, observed=np.zeros(groups), dims="school")
        return model

    def simulate(rng: np.random.Generator, groups: int) -> Data:
        mu, tau = rng.normal(0, 5), 5 * abs(np.tan(np.pi / 2 * rng.uniform(0, 0.8)))
        sigma = rng.uniform(8, 20, groups)
        return {"sigma": sigma, "y": rng.normal(mu + tau * rng.normal(size=groups), sigma)}

    source = {"sigma": pm.Uniform.dist(8, 20)}
    return Case(build, simulate, ("mu", "tau"), ("theta",), source, None, (5, 8, 40))


def members(rng: np.random.Generator, groups: int, low: int, high: int) -> np.ndarray:
    """Group of every row: between `low` and `high` of each."""
    return np.repeat(np.arange(groups), rng.integers(low, high + 1, groups))


def counts(kind: str = "poisson") -> Case:
    """Poisson counts, or coin flips, by site, of 1 to 9 rows."""

    def build(groups: int, rows: int, centred: bool) -> pm.Model:
        with pm.Model(coords={"site": range(groups), "row": range(rows)}) as model:
            at = pm.Data("at", np.arange(rows) % groups, dims="row")
            mean, tau = pm.Normal("mean", 0, 1), pm.HalfNormal("tau", 1)
            eta = effect("u", mean, tau, "site", centred=centred)[at]  # type: ignore[index]
            zeros = np.zeros(rows, int)
            if kind == "poisson":
                pm.Poisson("y", pt.exp(eta), observed=zeros, dims="row")
            else:
                pm.Bernoulli("y", logit_p=eta, observed=zeros, dims="row")
        return model

    def simulate(rng: np.random.Generator, groups: int) -> Data:
        at = members(rng, groups, 1, 9)
        u = rng.normal(rng.normal(), abs(rng.normal()), groups)
        if kind == "poisson":
            return {"at": at, "y": rng.poisson(np.exp(np.minimum(u[at], 8)))}
        return {"at": at, "y": (rng.random(len(at)) < 1 / (1 + np.exp(-u[at]))).astype(int)}

    return Case(build, simulate, ("mean", "tau"), ("u",), {}, (10, 320), (5, 20, 60))


def sleep() -> Case:
    """Intercepts and slopes of subjects with 3 to 17 days, on two of the sleep study's scales."""

    def build(groups: int, rows: int, centred: bool) -> pm.Model:
        with pm.Model(coords={"subject": range(groups), "row": range(rows)}) as model:
            who = pm.Data("who", np.arange(rows) % groups, dims="row")
            days = pm.Data("days", np.zeros(rows), dims="row")
            mean_a, mean_b = pm.Normal("mean_a", 2, 2), pm.Normal("mean_b", 0, 2)
            tau_a, tau_b = pm.HalfNormal("tau_a", 1), pm.HalfNormal("tau_b", 1)
            sigma = pm.HalfNormal("sigma", 1)
            a = effect("a", mean_a, tau_a, "subject", centred=centred)
            b = effect("b", mean_b, tau_b, "subject", centred=centred)
            eta = a[who] + b[who] * days  # type: ignore[index]
            pm.Normal("y", eta, sigma, observed=np.zeros(rows), dims="row")
        return model

    def simulate(rng: np.random.Generator, groups: int) -> Data:
        who = members(rng, groups, 3, 17)
        days = rng.integers(0, 10, len(who)) / 10
        tau_a, tau_b, sigma = np.abs(rng.normal(size=3))
        a = rng.normal(2 + 2 * rng.normal(), tau_a, groups)
        b = rng.normal(2 * rng.normal(), tau_b, groups)
        return {"who": who, "days": days, "y": rng.normal(a[who] + b[who] * days, sigma)}

    shared = ("mean_a", "mean_b", "tau_a", "tau_b", "sigma")
    source = {"days": pm.Uniform.dist(0, 0.9)}
    return Case(build, simulate, shared, ("a", "b"), source, (20, 640), (5, 18, 60))


def items(number: int = 5) -> Case:
    """Item response: persons are groups, items global."""

    def build(groups: int, _: int, centred: bool) -> pm.Model:
        return level_models.items(number, groups).build(centred)

    def simulate(rng: np.random.Generator, groups: int) -> Data:
        return level_models.items(number, groups).simulate(rng)

    shared = ("tau", "difficulty")
    return Case(build, simulate, shared, ("ability",), {}, None, (5, 20, 60))


CASES = {
    "schools": schools(),
    "Poisson counts": counts(),
    "Bernoulli": counts("bernoulli"),
    "sleep study": sleep(),
    "persons and 5 items": items(),
}


class Clock:
    """Wall and CPU milliseconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def __call__(self) -> tuple[float, float]:
        return 1e3 * (time.perf_counter() - self.wall), 1e3 * (time.process_time() - self.cpu)


def at_size(case: Case, posterior: pmcl.MultilevelPosterior, groups: int, datasets: int) -> dict:
    """Sample datasets of one number of groups, and compare."""
    rng = np.random.default_rng([7, groups])
    each = {str(i): case.simulate(rng, groups) for i in range(datasets)}
    posterior.sample(each, DRAWS, refine=False, random_seed=0)
    clock = Clock()
    alone = posterior.sample(each, DRAWS, refine=False, correct="psis", random_seed=1)
    row = dict(zip(("ms", "cpu_ms"), (v / datasets for v in clock()), strict=True))
    tree = posterior.sample(each, DRAWS, random_seed=1)
    stats = alone["dataset_stats"].to_dataset()
    row |= {
        "efficiency": float(stats["efficiency"].median()),
        "least_efficiency": float(stats["efficiency"].min()),
        "khat_above_0.7": int((stats["khat"] > 0.7).sum()),
        "group_noise": float(stats["group_noise"].max()),
        "refined": int((tree["dataset_stats"]["engine"] != "amortized").sum()),
    }
    found: dict[str, list[float]] = {"global": [], "local": [], "refined_global": []}
    times: dict[str, list[float]] = {"refine_cpu_ms": [], "nuts_1000_cpu_ms": []}
    for i, (name, one) in enumerate(each.items()):
        rows = len(one["y"])
        names = [k for k in one if k != "y"]
        compiled = pmcl.compile_model(case.build(groups, rows, True), covariates=names)
        reference = case.build(groups, rows, False)
        given = {"draws": 1000, "target_accept": 0.95, "random_seed": 1, "progressbar": False}
        truth = pmcl.sample_reference(reference, one, **given)
        for t, kind in ((alone, "global"), (tree, "refined_global")):
            found[kind] += mmd2(_alone(t, name), truth, case.shared, 1)
        found["local"] += mmd2(_alone(tree, name), truth, case.local, 1)
        if i == 0:
            pmcl.refine(compiled, one, random_seed=99, progressbar=False)
            clock = Clock()
            pmcl.refine(compiled, one, draws=DRAWS, random_seed=1, progressbar=False)
            times["refine_cpu_ms"].append(clock()[1])
            clock = Clock()
            pmcl.sample_reference(reference, one, draws=250, random_seed=2, progressbar=False)
            times["nuts_1000_cpu_ms"].append(clock()[1])
    row |= {f"mmd2_{k}": float(np.median(v)) for k, v in found.items()}
    row |= {f"worst_mmd2_{k}": float(np.max(v)) for k, v in found.items()}
    return row | {k: float(np.median(v)) for k, v in times.items()}


def _alone(tree: Any, name: str) -> Any:
    """One dataset, without padding, with its dim."""
    one = pmcl.one(tree, name)
    posterior = one["posterior"].to_dataset().expand_dims(dataset=[name])
    return {"posterior": _Tree(posterior)}


class _Tree(NamedTuple):
    """What `levels.flat` asks of a tree's group."""

    data: Any

    def to_dataset(self) -> Any:
        return self.data


def thousand(case: Case, posterior: pmcl.MultilevelPosterior, groups: int) -> dict[str, float]:
    """Seconds for 1,000 draws of each of a thousand datasets, warm."""
    rng = np.random.default_rng([8, groups])
    each = {str(i): case.simulate(rng, groups) for i in range(1000)}
    posterior.sample(each, DRAWS, refine=False, random_seed=0)
    clock = Clock()
    posterior.sample(each, DRAWS, refine=False, correct="psis", random_seed=1)
    alone = clock()
    clock = Clock()
    tree = posterior.sample(each, DRAWS, fallback=None, random_seed=1)
    both, stats = clock(), tree["dataset_stats"].to_dataset()
    return {
        "network_s": alone[0] / 1e3,
        "network_cpu_s": alone[1] / 1e3,
        "refined_s": both[0] / 1e3,
        "refined_cpu_s": both[1] / 1e3,
        "refined": int((stats["engine"] != "amortized").sum()),
        "khat_above_0.7": int((stats["khat"] > 0.7).sum()),
    }


def run(case: Case, options: argparse.Namespace) -> dict:
    """Train a network, and sample."""
    begin = time.perf_counter()
    trained, lengths, sampled = (5, 60), case.lengths, case.groups
    if options.many:  # rows for as many a group
        trained, sampled = (100, 200), (200,)
        lengths = lengths and (20 * lengths[0], 10 * lengths[1] // 3)
    posterior = pmcl.fit_amortized(
        case.build(5, 10 if lengths is None else lengths[0], True),
        covariates=case.covariates,
        groups=trained,
        lengths=lengths,
        steps=options.steps,
        simulations=options.simulations,
        random_seed=1,
    )
    assert isinstance(posterior, pmcl.MultilevelPosterior)
    record = posterior.pretraining[0]
    found: dict = {"fit_s": time.perf_counter() - begin, "steps": record.steps}
    found["groups"] = {}
    for groups in sampled:
        found["groups"][groups] = at_size(case, posterior, groups, options.datasets)
        print(groups, found["groups"][groups], flush=True)  # noqa: T201
    if options.thousand:
        found["thousand"] = thousand(case, posterior, options.thousand)
        print(found["thousand"], flush=True)  # noqa: T201
    return found


def main() -> None:
    """Run the models, print a table and write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all by default")
    parser.add_argument("--datasets", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--simulations", type=int, default=4096)
    parser.add_argument("--many", action="store_true", help="groups, 200 of them")
    parser.add_argument("--thousand", type=int, help="also a thousand datasets of so many groups")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    path = given.results / "level_networks.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, dict] = kept.get("models", {})
    for name in given.names or CASES:
        found[f"{name}, many" if given.many else name] = run(CASES[name], given)
        about = {
            "command": "python experiments/level_networks.py",
            "datasets": given.datasets,
            "version": pmcl.__version__,
            "models": found,
        }
        path.write_text(json.dumps(about, indent=1) + "\n")
    columns = [
        *("efficiency", "least_efficiency", "khat_above_0.7", "refined", "mmd2_global"),
        *("mmd2_refined_global", "mmd2_local", "ms", "cpu_ms", "refine_cpu_ms"),
        "nuts_1000_cpu_ms",
    ]
    table = Table("model", "groups", *columns, title="Levels, by one network; 1,000 draws")
    for name, model in found.items():
        for groups, row in model["groups"].items():
            table.add_row(name, str(groups), *(f"{row[c]:.3g}" for c in columns))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
