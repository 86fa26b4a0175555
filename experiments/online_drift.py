"""Drifts of online inference on streams that change: weather, gas sensors and forest cover.

    python experiments/online_drift.py                       # mean fields, as in the paper
    python experiments/online_drift.py --family full --data weather    # with covariances
    python experiments/online_drift.py tables                # the tables of what there is

Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data,
section 6.2: every batch is foretold before it is learned from. A run that was cut off goes on after
its last update. The results' JSON keeps the figure of every run, those of other machines too.
"""

import argparse
import json
from functools import cache
from pathlib import Path

import numpy as np
from continual import kept
from online_streams import (
    Stream,
    batches,
    checkpoint,
    last,
    network,
    options,
    said,
    standardised,
    table,
)

import pmcl

shared = cache(network)  # one model, so that its runs share what is compiled


def gas() -> tuple[np.ndarray, np.ndarray]:
    """Sensors as predictors, the gas as response."""
    frame = table("gas_sensor_drift.csv.gz")()
    sensors = [c for c in frame if c not in ("batch", "gas", "concentration_ppmv")]
    return frame[sensors].to_numpy(float), frame["gas"].to_numpy(float) - 1


DRIFT = {
    "weather": Stream(last("noaa_weather.csv.gz"), 2, (16, 16), 1000, 100, 50),
    "gas": Stream(gas, 6, (8, 8), 500, 50, 50),
    # The rows that could be had are a random part in random order: nothing drifts in them but
    # what sampling does. The first 10,000 come in the original order.
    "covertype, shuffled": Stream(
        last("covertype_random116k_8features.csv.gz"), 7, (32, 32), 1000, 1000, 200, updates=40
    ),
    "covertype, first": Stream(last("covertype_first10000.csv.gz", 1), 7, (32, 32), 1000, 500, 200),
}
RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
DRIFTS = {
    "static": [(None, pmcl.Static())],
    "Wiener": [(a, pmcl.Wiener(a)) for a in RATES],
    "Ornstein-Uhlenbeck": [(a, pmcl.OrnsteinUhlenbeck(a)) for a in RATES],
    "forgetting": [(a, pmcl.BayesianForgetting(a)) for a in RATES],
    "forgetting + memory": [(a, pmcl.BayesianForgetting(a)) for a in RATES],
    "Wiener, learned": [
        (None, pmcl.LearnedDrift((pmcl.Static(), *map(pmcl.Wiener, (1e-3, 3e-3, 1e-2, 3e-2)))))
    ],
    "change points": [(0.01, pmcl.ChangePoint(0.01))],
}
# Steps far below a posterior's width are not waited for.
TOLERANCE = 1e-2


def drifting(
    stream: Stream, drift: pmcl.AbstractDrift, remembers: bool, seed: int,
    given: argparse.Namespace, label: str,
) -> dict:  # fmt: skip
    """Return the mean log predictive density of every batch before it is learned from."""
    X, y = stream.read()
    # by the first batch: nothing of the future is known
    X = np.clip(standardised(X, X[: stream.first]), -10, 10)
    model = shared(X.shape[1], stream.hidden, stream.labels)
    how: dict = {"search": stream.search(given.steps), "precision": "single"}
    if given.family != "mean_field":
        how = {"search": pmcl.GaussNewton(tolerance=TOLERANCE), "family": given.family}
    online = pmcl.fit_online(
        model, memory=pmcl.ResidualMemory(stream.memory) if remembers else None, drift=drift,
        random_seed=seed, progressbar=False, **how,
    )  # fmt: skip
    saved = checkpoint(given, label)
    online, before = saved.read(model) or (online, {"log_predictive": []})
    found = before["log_predictive"]
    for part in batches(stream, X, y)[online.state.updates : given.updates]:
        if online.state.updates:
            found.append(float(online.log_predictive(part, draws=500, random_seed=0).mean()))
        online = online.update(part, progressbar=False)
        saved.write(online, {"log_predictive": found})
    later = found[len(found) // 2 :]
    return {"log_predictive": found, "figure": float(np.mean(later))}


def manner(given: argparse.Namespace) -> str:
    """Say how streams are followed."""
    if given.family == "mean_field":
        return f"mean field, {given.steps} steps"
    return given.family.replace("_", " ")


def together(runs: Path, results: Path) -> dict:
    """Return the figure of every run: what the results hold, and what has run here."""
    path = results / "online_drift.json"
    found = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for one in (json.loads(p.read_text()) for p in sorted(runs.glob("*.json"))):
        place = found["runs"]
        for name in (one["manner"], one["data"], one["drift"], str(one["rate"])):
            place = place.setdefault(name, {})
        place[str(one["seed"])] = one["figure"]
        if one["made"] >= found.get("made", ""):
            found |= {"made": one["made"], "with": one["with"]}
    return {**found, "command": "python experiments/online_drift.py"}


def written(runs: Path, results: Path) -> None:
    """Write the tables and the figures of what there is."""
    results.mkdir(parents=True, exist_ok=True)
    found = together(runs, results)
    if not found["runs"]:
        return
    lines = [
        "# Drift", "",
        "One-step-ahead log predictive density (nats a row), mean over the second half of the "
        "stream: of no drift, and by how much each drift is ahead of it, seed by seed: mean ± "
        "standard error and how many seeds there are, at the best of its rates (that of the "
        f"highest mean among those with the most seeds). `{found['command']}`, {found['made']}.",
        "",
    ]  # fmt: skip
    for how, by_data in found["runs"].items():
        there = [n for n in DRIFTS if any(n in d for d in by_data.values()) and n != "static"]
        lines += [
            f"## {how}", "",
            "| data | static | " + " | ".join(there) + " |", "|---|" + "---|" * (len(there) + 1),
        ]  # fmt: skip
        for data, by_drift in by_data.items():
            static = by_drift["static"]["None"]
            cells = [data, f"{np.mean(list(static.values())):.3f} ({len(static)})"]
            cells += [best(by_drift.get(name, {}), static) for name in there]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
        every = [of for by_drift in by_data.values() for of in by_drift.values()]
        rates = sorted({float(r) for of in every for r in of if r != "None"})
        lines += ["By rate:", "", "| data | drift | " + " | ".join(map(str, rates)) + " |"]
        lines.append("|---|---|" + "---|" * len(rates))
        for data, by_drift in by_data.items():
            static = by_drift["static"]["None"]
            for name in there:
                gains = [ahead(by_drift.get(name, {}).get(str(r), {}), static) for r in rates]
                if any(map(len, gains)):
                    cells = [f"{np.mean(g):+.3f}" if len(g) else "" for g in gains]
                    lines.append(f"| {data} | {name} | {' | '.join(cells)} |")
        lines.append("")
    (results / "online_drift.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / "online_drift.md").write_text("\n".join(lines))


def ahead(these: dict[str, float], static: dict[str, float]) -> np.ndarray:
    """How far runs are ahead of those of the same seeds without drift."""
    return np.array([v - static[seed] for seed, v in these.items() if seed in static])


def best(by_rate: dict[str, dict[str, float]], static: dict[str, float]) -> str:
    """Say how far the best rate is ahead of no drift."""
    gains = {rate: ahead(these, static) for rate, these in by_rate.items()}
    most = max(map(len, gains.values()), default=0)
    if not most:
        return ""
    rate = max((r for r, g in gains.items() if len(g) == most), key=lambda r: gains[r].mean())
    gain = gains[rate]
    error = f" ± {gain.std(ddof=1) / np.sqrt(most):.4f}" if most > 1 else ""
    at = "" if rate == "None" else f" at {rate}"
    return f"{gain.mean():+.4f}{error} ({most}){at}"


def main() -> None:
    """Run what was asked for."""
    parser = options(__doc__, "online_drift")
    parser.add_argument("part", nargs="?", choices=["tables"])
    parser.add_argument("--data", nargs="+", default=list(DRIFT), help="names of some")
    parser.add_argument("--drifts", nargs="+", default=list(DRIFTS)[:5], help="names of some")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--family", default="mean_field", help="of normals: full, low_rank")
    parser.add_argument("--steps", type=int, default=500, help="of each search of a mean field")
    given = parser.parse_args()
    runs = given.out / "runs"
    if given.part == "tables":
        written(runs, given.results)
        return
    how = manner(given)
    for seed in given.seeds:
        for data in given.data:
            for name in given.drifts:
                for rate, drift in DRIFTS[name]:
                    if rate is not None and rate not in given.rates:
                        continue
                    label = f"{how} {data} {name} {rate} {seed}"
                    what = {"manner": how, "data": data, "drift": name, "rate": rate, "seed": seed}
                    kept(
                        runs, label,
                        lambda d=data, n=name, w=drift, s=seed, k=label, a=what: {
                            **a, **drifting(DRIFT[d], w, "memory" in n, s, given, k)
                        },
                        said,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
