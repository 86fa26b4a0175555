"""Streams of small networks whose weights have covariances, against the mean field's figures.

    python experiments/online_families.py             # six tables of the residual-memory paper
    python experiments/online_families.py nuts        # NUTS of the same networks, all rows at once
    python experiments/online_families.py drift       # full covariances and drifts, one step ahead
    python experiments/online_families.py tables      # the tables of what there is

Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data, Table
1, with the batches and networks of `online_streams.py`. Every run is kept in `--out`, and one that
was cut off goes on after its last update.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from continual import kept
from online_streams import (
    DRIFT,
    HERE,
    MEMORY,
    PUBLISHED,
    Stream,
    batches,
    checkpoint,
    network,
    said,
    split,
    standardised,
)
from scipy import stats
from scipy.special import logsumexp

import pmcl


class Way(NamedTuple):
    """How a stream is followed."""

    family: str = "full"
    components: int = 1
    memory: bool = False
    stiffness: float = 1e-4
    rank: int = 50


NAMES = {
    "four": Way(components=4),
    "four, residual": Way(components=4, memory=True),
    "four, not held": Way(components=4, stiffness=0.0),
    "four, low rank": Way("low_rank", components=4),
    "four, low rank, not held": Way("low_rank", components=4, stiffness=0.0),
    "full": Way(),
    "low rank": Way("low_rank"),
    "low rank, not held": Way("low_rank", stiffness=0.0),
    "rank 200, not held": Way("low_rank", stiffness=0.0, rank=200),
    "rank 200": Way("low_rank", rank=200),
}


def families(stream: Stream, name: str, seed: int, given: argparse.Namespace, label: str) -> dict:
    """Return the mean test log predictive density after every batch, and what components said."""
    parts, whole, inputs = split(stream, seed)
    way = NAMES[name]
    model = network(inputs, stream.hidden, stream.labels)
    online = pmcl.fit_online(
        model, family=way.family, components=way.components,
        memory=pmcl.ResidualMemory(stream.memory) if way.memory else None,
        search=pmcl.GaussNewton(steps=given.steps, stiffness=way.stiffness, rank=way.rank),
        random_seed=seed, progressbar=False,
    )  # fmt: skip
    saved = checkpoint(given, label)
    found: dict = {"log_predictive": [], "each": [], "ahead": [], "last": []}
    online, found = saved.read(model) or (online, found)
    tenth = max(len(parts[: given.updates]) // 10, 1)
    for i, part in list(enumerate(parts[: given.updates]))[len(found["each"]) :]:
        many = online.components if way.components > 1 else (online,)
        if i:  # what each says of the batch before it learns from it
            found["ahead"].append([_told(one, part) for one in many])
        online = online.update(part, progressbar=False)
        many = online.components if way.components > 1 else (online,)
        told = np.array([_told(one, whole) for one in many])
        found["each"].append(told.mean(axis=1).tolist())
        weights = online.weights if way.components > 1 else np.ones(1)
        mixed = logsumexp(told + np.log(weights)[:, None], axis=0)
        found["log_predictive"].append(float(mixed.mean()))
        if i >= len(parts[: given.updates]) - tenth:
            found["last"].append(told.tolist())
        saved.write(online, found)
    history = online.history
    return {
        **found,
        "figure": float(np.mean(found["log_predictive"][-tenth:])),
        "one": np.mean(found["each"][-tenth:], axis=0).tolist(),
        "weights": (online.weights if way.components > 1 else np.ones(1)).tolist(),
        "khat": float(history["khat"].max()),
        "steps": int(history["steps"].sum()),
        "seconds": float(history["seconds"].sum()),
    }


def _told(one: pmcl.OnlinePosterior, rows: dict) -> list[float]:
    return one.log_predictive(rows, draws=200, random_seed=0).values.tolist()


RATES = {
    "Wiener": (pmcl.Wiener, (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    "Ornstein-Uhlenbeck": (pmcl.OrnsteinUhlenbeck, (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    "forgetting": (pmcl.BayesianForgetting, (1e-3, 3e-3, 0.01, 0.03, 0.1)),
}
DRIFTS = {
    "static": pmcl.Static(),
    **{f"{name} {r:g}": kind(r) for name, (kind, rates) in RATES.items() for r in rates},
}


def drifting(stream: Stream, drift: pmcl.AbstractDrift, seed: int, steps: int) -> dict:
    """Return the log predictive density of every batch before it is learned from."""
    X, y = stream.read()
    X = np.clip(standardised(X, X[: stream.first]), -10, 10)
    online = pmcl.fit_online(
        network(X.shape[1], stream.hidden, stream.labels), family="full", drift=drift,
        search=pmcl.GaussNewton(steps=steps), random_seed=seed, progressbar=False,
    )  # fmt: skip
    found = []
    for part in batches(stream, X, y):
        if online.records:
            found.append(float(np.mean(_told(online, part))))
        online = online.update(part, progressbar=False)
    seconds = float(online.history["seconds"].sum())
    figure = float(np.mean(found[len(found) // 2 :]))
    return {"log_predictive": found, "figure": figure, "seconds": seconds}


def ceiling(stream: Stream, seed: int, given: argparse.Namespace) -> dict:
    """Return the test log predictive density of NUTS of the same network on all rows."""
    parts, whole, inputs = split(stream, seed)
    rows = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    begin = time.perf_counter()
    found = pmcl.sample_reference(
        network(inputs, stream.hidden, stream.labels), rows, draws=given.draws, tune=given.draws,
        chains=2, cores=1, random_seed=seed, progressbar=False,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    draws = found["posterior"].to_dataset().squeeze(drop=True).stack(s=("chain", "draw"))
    weights = {k: v.transpose("s", ...).values for k, v in draws.data_vars.items()}
    layer, n = whole["X"], len(stream.hidden)
    for i in range(n + 1):
        layer = layer @ weights[f"W{i}"] + weights[f"b{i}"][:, None]
        layer = np.tanh(layer) if i < n else layer
    y = whole["y"]
    if stream.labels == 0:
        told = stats.norm(layer[..., 0], np.exp(weights["log_sd"])[:, None]).logpdf(y)
    else:
        odds = layer if stream.labels != 2 else np.concatenate([0 * layer, layer], axis=2)
        told = (odds - logsumexp(odds, axis=2, keepdims=True))[:, np.arange(len(y)), y]
    each = logsumexp(told, axis=0) - np.log(len(told))
    rhat = float(found["dataset_stats"]["r_hat"].max())
    return {"figure": float(each.mean()), "r_hat": rhat, "draws": len(told), "seconds": seconds}


def weighted(one: dict) -> dict[str, float]:
    """Figures of a run's components by other weights: equal ones, and Bayes' rule."""
    last = [np.array(v) for v in one["last"]]
    if not last or len(last[0]) < 2:
        return {}
    found: dict[str, list[float]] = {"equal": [], "Bayes": []}
    for i, told in enumerate(last):
        before = [np.sum(v, axis=1) for v in one["ahead"][: len(one["each"]) - len(last) + i]]
        for name, log_w in (("equal", np.zeros(len(told))), ("Bayes", np.sum(before, axis=0))):
            mixed = logsumexp(told + (log_w - logsumexp(log_w))[:, None], axis=0)
            found[name].append(float(mixed.mean()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def written(runs: Path, results: Path) -> None:
    """Write the tables and the figures of what there is."""
    found: dict[str, dict[str, dict[str, list]]] = {}
    ceilings: dict[str, list[float]] = {}
    drifts: dict[str, dict[str, list[float]]] = {}
    for path in sorted(runs.glob("*.json")):
        one = json.loads(path.read_text())
        if path.stem.startswith("nuts_"):
            ceilings.setdefault(one["data"], []).append(one["figure"])
            continue
        if path.stem.startswith("drift_"):
            drifts.setdefault(one["data"], {}).setdefault(one["name"], []).append(one["figure"])
            continue
        here = found.setdefault(one["data"], {}).setdefault(one["name"], {})
        figures = {"as it is": one["figure"], **weighted(one), "one": float(np.mean(one["one"]))}
        figures |= {"seconds": one["seconds"], "steps": one["steps"], "components": one["one"]}
        for key, value in figures.items():
            here.setdefault(key, []).append(value)
    mean_field = json.loads((results / "online_streams.json").read_text())["memory"]
    columns = {
        "one stream": "one", "four": "as it is", "equal weights": "equal",
        "by Bayes' rule": "Bayes",
    }  # fmt: skip
    lines = [
        "# Families", "",
        "Test log predictive density (nats a row), mean over the last tenth of the updates, then "
        "over seeds (± their standard deviation, their number in brackets): "
        "`python experiments/online_families.py`. *One stream*: the mean of four; *four*: their "
        "mixture, with weights by recursive stacking; beside it the same components with equal "
        "weights, and with weights by Bayes' rule (products of rows' densities one step ahead). "
        "Full covariances; low-rank ones for spam and wine.", "",
        "| data | " + " | ".join(columns) + " | the paper's GRS | mean field, residual | NUTS, all "
        "rows | minutes, all four |",
        "|---|" + "---|" * (len(columns) + 4),
    ]  # fmt: skip
    for data in MEMORY:
        here = found.get(data, {}).get("four") or found.get(data, {}).get("four, low rank")
        if here is None:
            continue
        cells = [data, *(shown(here.get(key, [])) for key in columns.values())]
        cells += [str(PUBLISHED[data][0]), shown(mean_field[data]["residual"])]
        cells += [shown(ceilings.get(data, [])), f"{np.mean(here['seconds']) / 60:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "All ways, each weighted as pmcl does:", ""]
    ways = [name for name in NAMES if any(name in here for here in found.values())]
    lines += ["| data | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for data in MEMORY:
        if data in found:
            cells = [shown(found[data].get(name, {}).get("as it is", [])) for name in ways]
            lines.append(f"| {' | '.join([data, *cells])} |")
    if drifts:
        lines += ["", "Drifts: log density of a batch before it is learned from, mean over the "
                  "second half of the stream, full covariances:", ""]  # fmt: skip
        lines += ["| drift | " + " | ".join(drifts) + " |", "|---|" + "---|" * len(drifts)]
    for name in DRIFTS if drifts else ():
        cells = [shown(values.get(name, [])) for values in drifts.values()]
        lines.append(f"| {' | '.join([name, *cells])} |")
    (results / "online_families.md").write_text("\n".join([*lines, ""]))
    everything = {"streams": found, "nuts": ceilings, "drift": drifts}
    (results / "online_families.json").write_text(json.dumps(everything, indent=1) + "\n")


def shown(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread} ({len(values)})" if values else ""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["nuts", "drift", "tables"])
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "online_families")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--names", nargs="+", default=["four"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=50, help="of each search but the first")
    parser.add_argument("--updates", type=int, help="at most")
    parser.add_argument("--draws", type=int, default=500, help="of each of NUTS's two chains")
    parser.add_argument("--every", type=float, default=60, help="seconds between checkpoints")
    given = parser.parse_args()
    given.data = given.data or (["weather"] if given.part == "drift" else list(MEMORY)[:6])
    runs = given.out / "runs"
    if given.part == "tables":
        written(runs, given.results)
        return
    for seed in given.seeds if given.part == "drift" else ():
        for data in given.data:
            for name, drift in DRIFTS.items():
                kept(
                    runs, f"drift {data} {name} {seed}",
                    lambda d=data, n=name, w=drift, s=seed: {
                        "data": d, "name": n, **drifting(DRIFT[d], w, s, given.steps)
                    },
                    said,
                )  # fmt: skip
    for seed in given.seeds if given.part != "drift" else ():
        for data in given.data:
            if given.part == "nuts":
                kept(
                    runs, f"nuts {data} {seed}",
                    lambda d=data, s=seed: {"data": d, **ceiling(MEMORY[d], s, given)}, said,
                )  # fmt: skip
                continue
            for name in given.names:
                label = f"families {data} {name} {seed}"
                kept(
                    runs, label,
                    lambda d=data, n=name, s=seed, b=label: {
                        "data": d, "name": n, **families(MEMORY[d], n, s, given, b)
                    },
                    said,
                )  # fmt: skip


if __name__ == "__main__":
    main()
