"""Streams of small networks whose weights have covariances, against the mean field's figures.

    python experiments/online_families.py             # four tables of the residual-memory paper
    python experiments/online_families.py ceiling     # NUTS of the same networks, all rows at once
    python experiments/online_families.py tables      # the tables of what there is

Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data, Table
1, with the batches and networks of `online_streams.py`. Every run is kept in `--out`, and one that
was cut off goes on after its last update.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
from continual import kept
from online_streams import (
    MEMORY,
    PUBLISHED,
    Stream,
    checkpoint,
    network,
    options,
    said,
    split,
)
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm
from tables import of_more_seeds

import pmcl

OF_NUTS = ("figure", "each", "log_sd", "chains", "draws", "divergences", "took")


class Way(NamedTuple):
    """How a stream is followed."""

    family: str = "full"
    components: int = 1
    memory: str = ""  # "the paper's", or "first": as many rows as the first batch has
    rank: int = 50
    at_once: bool = False


NAMES = {
    "four": Way(components=4),
    "four, residual": Way(components=4, memory="the paper's"),
    "four, first rows": Way(components=4, memory="first"),
    "four, low rank": Way("low_rank", components=4),
    "four, mean field": Way("mean_field", components=4),
    "mean field": Way("mean_field"),
    "full": Way(),
    "low rank": Way("low_rank"),
    "rank 200": Way("low_rank", rank=200),
    "full, at once": Way(at_once=True),
    "four, at once": Way(components=4, at_once=True),
}


def families(stream: Stream, name: str, seed: int, given: argparse.Namespace, label: str) -> dict:
    """Return the mean test log predictive density after every batch, and what components said."""
    parts, whole, inputs = split(stream, seed)
    way = NAMES[name]
    if way.at_once:  # no stream: what the family could have at most
        parts = [whole_of(parts)]
    model = stream.model(inputs)
    capacity = {"the paper's": stream.memory, "first": stream.first}.get(way.memory)
    how: dict = {"search": pmcl.GaussNewton(steps=given.steps or 50, rank=way.rank)}
    if way.family == "mean_field":
        how = {"search": stream.search(given.steps or 100), "precision": "single"}
        how["power"] = stream.power
    online = pmcl.fit_online(
        model, family=way.family, components=way.components,
        memory=pmcl.ResidualMemory(capacity) if capacity else None,
        random_seed=seed, progressbar=False, **how,
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


def whole_of(parts: list[dict]) -> dict:
    """All rows of a stream as one batch."""
    return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}


def ceiling(stream: Stream, seed: int, chains: int, draws: int) -> dict:
    """Return the mean test log predictive density of NUTS draws given all rows of a stream."""
    if stream.images:
        raise SystemExit("ceiling: NUTS of the 55,000 weights of a network of images is not run")
    parts, whole, inputs = split(stream, seed)
    model = network(inputs, stream.hidden, stream.labels, whole_of(parts))
    tree = pm.sample(
        draws, tune=draws, chains=chains, cores=chains, model=model, nuts_sampler="nutpie",
        random_seed=seed, target_accept=0.9, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    told = []
    for chain in range(chains):
        of_chain = tree.posterior.isel(chain=chain)
        z = {k: v.values for k, v in of_chain.data_vars.items()}
        log_p = np.array([_log_density(z, s, whole, stream) for s in range(draws)])
        told.append(logsumexp(log_p, axis=0) - np.log(draws))
    each = np.array(told)
    log_sd = float(tree.posterior["log_sd"].mean()) if "log_sd" in tree.posterior else None
    return {
        "figure": float((logsumexp(each, axis=0) - np.log(chains)).mean()),
        "each": each.mean(axis=1).tolist(),
        "log_sd": log_sd,
        "chains": chains,
        "draws": draws,
        "divergences": int(tree.sample_stats["diverging"].sum()),
    }


def _log_density(z: dict[str, np.ndarray], s: int, rows: dict, stream: Stream) -> np.ndarray:
    """Log density of every row given draw `s` of the weights."""
    layer = rows["X"]
    for i in range(len(stream.hidden) + 1):
        layer = layer @ z[f"W{i}"][s] + z[f"b{i}"][s]
        layer = np.tanh(layer) if i < len(stream.hidden) else layer
    y = rows["y"]
    if stream.labels == 0:
        return norm.logpdf(y, layer[:, 0], np.exp(z["log_sd"][s]))
    if stream.labels == 2:
        layer = np.column_stack([np.zeros(len(layer)), layer[:, 0]])
    return log_softmax(layer, axis=1)[np.arange(len(y)), y]


def _told(one: pmcl.OnlinePosterior, rows: dict) -> list[float]:
    return one.log_predictive(rows, draws=200, random_seed=0).values.tolist()


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
    for path in sorted(runs.glob("families_*.json")):
        one = json.loads(path.read_text())
        here = found.setdefault(one["data"], {}).setdefault(one["name"], {})
        figures = {"as it is": one["figure"], **weighted(one), "one": float(np.mean(one["one"]))}
        figures |= {"seconds": one["seconds"], "steps": one["steps"], "components": one["one"]}
        for key, value in figures.items():
            here.setdefault(key, []).append(value)
    path = results / "online_families.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    found = of_more_seeds(before.get("streams", {}), found, lambda row: len(row["one"]))
    ceilings = before.get("ceilings", {})
    for one in (json.loads(p.read_text()) for p in sorted(runs.glob("ceiling_*.json"))):
        ceilings.setdefault(one["data"], {})[str(one["seed"])] = {k: one[k] for k in OF_NUTS}
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
        "Full covariances; low-rank ones for spam, and for MNIST mean fields with a likelihood to "
        "the power of 3.", "",
        "| data | " + " | ".join(columns) + " | the paper's GRS | mean field, residual | "
        "NUTS, all rows at once | minutes, all four |",
        "|---|" + "---|" * (len(columns) + 4),
    ]  # fmt: skip
    for data in MEMORY:
        of_four = ("four", "four, low rank", "four, mean field")
        here = next((found[data][w] for w in of_four if w in found.get(data, {})), None)
        if here is None:
            continue
        cells = [data, *(shown(here.get(key, [])) for key in columns.values())]
        cells += [str(PUBLISHED[data][0]), shown(mean_field.get(data, {}).get("residual", []))]
        cells.append(shown([one["figure"] for one in ceilings.get(data, {}).values()]))
        cells.append(f"{np.mean(here['seconds']) / 60:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "All ways, each weighted as pmcl does:", ""]
    ways = [name for name in NAMES if any(name in here for here in found.values())]
    lines += ["| data | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for data in MEMORY:
        if data in found:
            cells = [shown(found[data].get(name, {}).get("as it is", [])) for name in ways]
            lines.append(f"| {' | '.join([data, *cells])} |")
    (results / "online_families.md").write_text("\n".join([*lines, ""]))
    path.write_text(json.dumps({"streams": found, "ceilings": ceilings}, indent=1) + "\n")


def shown(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread} ({len(values)})" if values else ""


def main() -> None:
    """Run what was asked for."""
    parser = options(__doc__, "online_families")
    parser.add_argument("part", nargs="?", choices=["ceiling", "tables"])
    parser.add_argument("--data", nargs="+", default=list(MEMORY)[:4])
    parser.add_argument("--names", nargs="+", default=["four"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="of each search but the first")
    parser.add_argument("--chains", type=int, default=4, help="of NUTS")
    parser.add_argument("--draws", type=int, default=500, help="of each chain, after as many")
    given = parser.parse_args()
    runs = given.out / "runs"
    if given.part == "tables":
        written(runs, given.results)
        return
    if given.part == "ceiling":
        for seed in given.seeds:
            for data in given.data:
                kept(
                    runs, f"ceiling {data} {seed}",
                    lambda d=data, s=seed: {
                        "data": d, "seed": s, **ceiling(MEMORY[d], s, given.chains, given.draws)
                    },
                    said,
                )  # fmt: skip
        return
    for seed in given.seeds:
        for data in given.data:
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
