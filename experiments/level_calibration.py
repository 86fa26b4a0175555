"""Are posteriors of multilevel models calibrated, on both levels: simulation-based calibration.

Truth and data are drawn by PyMC from the model's prior. `python experiments/level_calibration.py
"schools 8"` runs one model, and without a name all are run; a run goes on where it was interrupted.
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
from arviz_stats.base import array_stats
from level_models import CASES, Case
from scipy import stats

import pmcl
from pmcl.metrics import pit

HERE = Path(__file__).parent
DRAWS, THIN = 1000, 5
LEVEL = 0.01  # of all tests together, by Holm's correction
BINS = 8


class Row(NamedTuple):
    """What is calibrated.

    Attributes
    ----------
    case : Case
    covariates : callable
        Of a generator, to the model's data that are no observations.
    groups : tuple of int, optional
        Numbers of groups that a network is trained for; None: refined without a network.
    """

    case: Case
    covariates: Callable[[np.random.Generator], dict[str, np.ndarray]] = lambda rng: {}
    groups: tuple[int, int] | None = None


def errors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Known errors of eight schools."""
    return {"sigma": rng.uniform(8, 20, 8)}


ROWS = {
    "schools 8": Row(CASES["schools 8"], errors),
    "schools 8, network": Row(CASES["schools 8"], errors, (5, 60)),
    "sleep study 18 x 10": Row(CASES["sleep study 18 x 10"]),
    "Poisson 20 x 5": Row(CASES["Poisson 20 x 5"]),
    "Bernoulli 20 x 4": Row(CASES["Bernoulli 20 x 4"]),
}


def simulated(row: Row, n: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Truth and data of n datasets, which share covariates, by PyMC's own sampler."""
    rng = np.random.default_rng([3, seed])
    model, given = row.case.build(True), row.covariates(rng)
    with model:
        pm.set_data(given)
        drawn = pm.sample_prior_predictive(n, random_seed=int(rng.integers(2**31)))
    truth = {k: drawn["prior"][k].values[0] for k in (*row.case.shared, *row.case.local)}
    covariates = {k: np.broadcast_to(v, (n, *v.shape)) for k, v in given.items()}
    return truth, covariates | {"y": drawn["prior_predictive"]["y"].values[0]}


def part(row: Row, sample: Callable[..., xr.DataTree], n: int, seed: int) -> dict[str, Any]:
    """Ranks of n datasets, and how wide posteriors are."""
    truth, data = simulated(row, n, seed)
    begin = time.process_time()
    tree = sample(data, seed)
    used = time.process_time() - begin
    rng, found = np.random.default_rng([4, seed]), {}
    for name, value in truth.items():
        drawn = tree["posterior"][name].isel(chain=0).transpose("dataset", "draw", ...)
        drawn = drawn.values[:, ::THIN]
        ranks = pit(drawn, value, rng)
        if name.startswith(("tau", "sigma")):
            drawn, value = np.log(drawn), np.log(value)
        found[name] = {
            "pit": ranks.tolist(),
            "sd": drawn.std(axis=1).tolist(),
            "truth": value.tolist(),
        }
    said = tree["dataset_stats"].to_dataset()
    about = {k: said[k].values.tolist() for k in ("khat", "efficiency")}
    return {"variables": found, "n": n, "cpu_s": used, **about}


def sampler(row: Row) -> tuple[Callable[..., xr.DataTree], float]:
    """What draws from posteriors, and the seconds of its training."""
    given: dict[str, Any] = {"draws": DRAWS, "progressbar": False}
    if row.groups is None:
        names = list(row.covariates(np.random.default_rng(0)))
        compiled = pmcl.compile_model(row.case.build(True), covariates=names)
        return lambda data, seed: pmcl.refine(
            compiled, data, random_seed=seed, fallback=None, **given
        ), 0.0
    begin = time.perf_counter()
    sources = {"sigma": pm.Uniform.dist(8, 20)}
    posterior = pmcl.fit_amortized(
        row.case.build(True), covariates=sources, groups=row.groups, random_seed=1,
        simulations=2048, steps=800, progressbar=False,
    )  # fmt: skip
    return lambda data, seed: posterior.sample(
        data, random_seed=seed, refine=False, correct="psis", **given
    ), time.perf_counter() - begin


def pooled(values: np.ndarray) -> float:
    """p-value of the fractions of all groups' ranks in bins, (dataset, ...), by Hotelling's T².

    Groups of a dataset share its global parameters: datasets are what is independent.
    """
    flat = values.reshape(len(values), -1)
    bins = np.minimum((flat * BINS).astype(int), BINS - 1)
    share = np.stack([(bins == b).mean(axis=1) for b in range(BINS - 1)], axis=1) - 1 / BINS
    n, p = share.shape
    mean, covariance = share.mean(axis=0), np.cov(share.T)
    t2 = n * mean @ np.linalg.solve(covariance, mean)
    return float(stats.f.sf(t2 * (n - p) / (p * (n - 1)), p, n - p))


def summed(row: Row, parts: list[dict], fit_s: float) -> dict:
    """What all parts say together."""
    found: dict[str, Any] = {}
    rng = np.random.default_rng(5)
    for name in (*row.case.shared, *row.case.local):
        values, sd, truth = (
            np.concatenate([p["variables"][name][k] for p in parts]) for k in ("pit", "sd", "truth")
        )
        apart = truth.std(axis=0)
        if name in row.case.local:  # with heavy tails, whose variance says nothing
            apart = 1.4826 * np.median(np.abs(truth - np.median(truth)))
        flat = values.reshape(len(values), -1)
        if name in row.case.local:
            some = flat[np.arange(len(flat)), rng.integers(flat.shape[1], size=len(flat))]
            tests = {"one group a dataset": some, "all": None}
        else:
            tests = {"" if flat.shape[1] == 1 else str(j): flat[:, j] for j in range(flat.shape[1])}
        p = {
            k: pooled(values) if v is None else float(array_stats.uniformity_test(v, axis=0)[0])
            for k, v in tests.items()
        }
        inside = np.abs(flat - 0.5) < 0.45
        found[name] = {
            "level": "local" if name in row.case.local else "global",
            "p_values": p,
            "coverage_90": float(inside.mean()),
            "contraction": float(np.median(1 - (sd / apart) ** 2)),
        }
    khat, efficiency = (np.concatenate([p[k] for p in parts]) for k in ("khat", "efficiency"))
    every = sorted(p for v in found.values() for p in v["p_values"].values())
    least = min(1.0, len(every) * every[0])
    return {
        "datasets": sum(p["n"] for p in parts),
        "how": "refine" if row.groups is None else f"network for {row.groups} groups",
        "fit_s": fit_s,
        "tests": len(every),
        "least_p": every[0],
        "least_p_holm": least,
        "uniform": bool(least > LEVEL),
        "khat_above_0.7": float((khat > 0.7).mean()),
        "efficiency": float(np.median(efficiency)),
        "cpu_ms": 1e3 * sum(p["cpu_s"] for p in parts) / sum(p["n"] for p in parts),
        "variables": found,
    }


def markdown(found: dict[str, dict]) -> str:
    """The table."""
    head = (
        "| model | by | datasets | parameter | contraction | within 90 % | p of uniformity |\n"
        "|---|---|---|---|---|---|---|"
    )
    lines = [
        f"| {name} | {row['how']} | {row['datasets']} | {variable} ({v['level']}) | "
        f"{v['contraction']:.2f} | {v['coverage_90']:.3f} | "
        + ", ".join(f"{p:.2f}{' (' + k + ')' if k else ''}" for k, p in v["p_values"].items())
        + " |"
        for name, row in found.items()
        for variable, v in row["variables"].items()
    ]
    below = [
        f"{name}: the least of {row['tests']} p-values is {row['least_p']:.3f}, by Holm "
        f"{row['least_p_holm']:.2f}; k-hat above 0.7 in {100 * row['khat_above_0.7']:.1f} %, "
        f"median efficiency {row['efficiency']:.2f}."
        for name, row in found.items()
    ]
    text = "# Calibration of multilevel models on both levels\n\n"
    return text + "\n".join([head, *lines]) + "\n\n" + "\n\n".join(below) + "\n"


def main() -> None:
    """Run the models, some datasets at a time, and write JSON and a table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all by default")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--together", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("out") / "level_calibration")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    path = given.results / "level_calibration.json"
    kept = json.loads(path.read_text())["models"] if path.exists() else {}
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.names or ROWS:
        row, sample, fit_s, parts = ROWS[name], None, kept.get(name, {}).get("fit_s", 0.0), []
        for i in range(-(-given.datasets // given.together)):
            here = given.out / f"{name.replace(' ', '_')}_{given.together}_{i}.json"
            if not here.exists():
                if sample is None:
                    sample, fit_s = sampler(row)
                here.write_text(json.dumps(part(row, sample, given.together, i)))
            parts.append(json.loads(here.read_text()))
            print(name, i, flush=True)  # noqa: T201
        kept[name] = summed(row, parts, fit_s)
        about = {
            "command": "python experiments/level_calibration.py",
            "version": pmcl.__version__,
            "draws": f"{DRAWS}, of which every {THIN}th is ranked",
            "test": "ArviZ's uniformity_test of global parameters and of one group a dataset, at "
            f"random; Hotelling's T² of {BINS} bins of all groups; level {LEVEL} of a model's "
            "tests together, by Holm",
            "contraction": "median over datasets of 1 - posterior variance / prior variance "
            "(of groups, whose prior has heavy tails, by the median absolute deviation); scales in "
            "logarithms",
            "models": kept,
        }
        path.write_text(json.dumps(about, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(kept))


if __name__ == "__main__":
    main()
