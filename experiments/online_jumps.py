"""A level that jumps: change points, forgetting, diffusion and learned rates, against the truth.

    python experiments/online_jumps.py

The mean of normal rows stands still, jumps, or wanders. Each drift is judged by the density of each
batch before it is learned from. The best that can be done where the level jumps is known in closed
form: all run lengths weighed by Bayes' rule (Adams & MacKay, 2007). Seconds, on one core.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pymc as pm
from scipy import stats
from scipy.special import logsumexp

import pmcl

HERE = Path(__file__).parent
PRIOR, SIGMA, ROWS, BATCHES = 2.0, 1.0, 5, 120
HAZARD = 1 / 30
RATES = (1e-3, 1e-2, 0.1)
FORGOTTEN = (0.03, 0.1, 0.3)
DRIFTS = {
    "static": pmcl.Static(),
    **{f"Wiener {r}": pmcl.Wiener(r) for r in RATES},
    **{f"forgetting {r}": pmcl.BayesianForgetting(r) for r in FORGOTTEN},
    "Wiener, learned": pmcl.LearnedDrift((pmcl.Static(), *map(pmcl.Wiener, RATES))),
    "forgetting, learned": pmcl.LearnedDrift(
        (pmcl.Static(), *map(pmcl.BayesianForgetting, FORGOTTEN))
    ),
    "change points": pmcl.ChangePoint(HAZARD),
}


def level_model() -> pm.Model:
    with pm.Model(coords={"row": range(1)}) as model:
        mean = pm.Normal("mean", 0, PRIOR)
        pm.Normal("y", mean, SIGMA, observed=np.zeros(1), dims="row")
    return model


def levels(world: str, rng: np.random.Generator) -> np.ndarray:
    """Return the true mean of every batch."""
    if world == "still":
        return np.full(BATCHES, PRIOR * rng.normal())
    if world == "wanders":
        return np.cumsum(np.r_[PRIOR * rng.normal(), 0.2 * rng.normal(size=BATCHES - 1)])
    new = rng.random(BATCHES) < HAZARD
    new[0] = True
    fresh = PRIOR * rng.normal(size=BATCHES)
    return fresh[np.maximum.accumulate(np.where(new, np.arange(BATCHES), 0))]


def rows_density(y: np.ndarray, mean: float, variance: float) -> float:
    """Log density of rows that share a normal mean."""
    covariance = variance * np.ones((len(y), len(y))) + SIGMA**2 * np.eye(len(y))
    return float(stats.multivariate_normal(np.full(len(y), mean), covariance).logpdf(y))


def run_lengths(batches: np.ndarray) -> list[float]:
    """Density of every batch given those before it, exactly, where the level jumps."""
    logs, means, precisions = np.zeros(1), np.zeros(1), np.full(1, PRIOR**-2)
    found = []
    for i, y in enumerate(batches):
        if i:  # the level may have jumped before this batch
            begun = logsumexp(logs) + np.log(HAZARD)
            logs = np.r_[begun, logs + np.log1p(-HAZARD)]
            means, precisions = np.r_[0.0, means], np.r_[PRIOR**-2, precisions]
        told = [rows_density(y, m, 1 / p) for m, p in zip(means, precisions, strict=True)]
        logs = logs + told
        found.append(float(logsumexp(logs)))
        logs = logs - found[-1]
        after = precisions + len(y) / SIGMA**2
        means = (precisions * means + y.sum() / SIGMA**2) / after
        precisions = after
    return found


def followed(stream: pmcl.OnlinePosterior, drift: pmcl.AbstractDrift, batches: np.ndarray) -> dict:
    """Follow a world: one-step-ahead densities, and how far the mean is from the truth."""
    stream = replace(stream, settings=stream.settings._replace(drift=drift))
    densities, means = [], []
    for y in batches:
        if stream.state.updates:
            q = stream.approximation(time=stream.state.time + 1)
            densities.append(ahead(drift, y, float(q.mean[0]), float(q.variance[0])))
        stream = stream.update({"y": y}, progressbar=False)
        means.append(float(stream.approximation().mean[0]))
    return {"densities": densities, "means": means,
            "starts": int(stream.history["drift"].sum())}  # fmt: skip


def ahead(drift: pmcl.AbstractDrift, y: np.ndarray, mean: float, variance: float) -> float:
    """Density of a batch that is to come, with a level that may have jumped where that is said."""
    stay = rows_density(y, mean, variance)
    if not isinstance(drift, pmcl.ChangePoint):
        return stay
    jumped = rows_density(y, 0.0, PRIOR**2)
    return float(np.logaddexp(np.log1p(-HAZARD) + stay, np.log(HAZARD) + jumped))


def main() -> None:
    """Run all worlds, and write a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    begun = pmcl.fit_online(level_model(), family="full", random_seed=0, progressbar=False)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for world in ("still", "jumps", "wanders"):
        runs: dict[str, list[tuple[float, float, int]]] = {}
        for seed in given.seeds:
            rng = np.random.default_rng([seed, len(world)])
            truth = levels(world, rng)
            batches = truth[:, None] + SIGMA * rng.normal(size=(BATCHES, ROWS))
            exact = run_lengths(batches)[1:]
            runs.setdefault("all run lengths, exactly", []).append((np.mean(exact), np.nan, 0))
            for name, drift in DRIFTS.items():
                one = followed(begun, drift, batches)
                error = float(np.sqrt(np.mean((np.array(one["means"]) - truth) ** 2)))
                runs.setdefault(name, []).append((np.mean(one["densities"]), error, one["starts"]))
        table[world] = {
            name: {"ahead": float(np.mean([v[0] for v in values])),
                   "error": float(np.mean([v[1] for v in values]))}
            for name, values in runs.items()
        }  # fmt: skip
        for name, values in table[world].items():
            print(f"{world:8} {name:26} {values['ahead']:8.3f} {values['error']:6.3f}", flush=True)
    found = {"seeds": len(given.seeds), "worlds": table}
    (given.results / "online_jumps.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
