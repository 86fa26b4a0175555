"""Memories of online inference: small Bayesian neural networks on streams of data.

    python experiments/online_streams.py memory     # residual memory, k-center and random coresets
    python experiments/online_streams.py rotating   # a logistic regression whose boundary rotates
    python experiments/online_streams.py tables     # tables and figures of what there is

Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data,
section 6. Every run is kept in `--out`, so that a command that was cut off goes on.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from continual import Checkpoint, kept
from online_networks import classifier, mnist

import pmcl

HERE = Path(__file__).parent
Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class Stream:
    """One data set as a stream.

    Attributes
    ----------
    read : callable
        Gives its predictors and its response, as they come.
    labels : int
        Of a classification; 0 for a regression.
    hidden : tuple of int
    first, each : int
        Rows of the first batch, and of every later one.
    memory : int
        Stored rows.
    updates : int, optional
        At most.
    batch_size : int, optional
        Of a search's steps; whole batches by default.
    draws : int
        Of a search's steps.
    first_steps : int, optional
        Of the first search; five times those of a later one by default.
    images : bool
        Predictors are pixels between 0 and 1, which stay as they are, and units are rectified.
    power : float
        Of the likelihood, for mean fields.
    """

    read: Callable[[], tuple[np.ndarray, np.ndarray]]
    labels: int
    hidden: tuple[int, int]
    first: int
    each: int
    memory: int
    updates: int | None = None
    batch_size: int | None = None
    draws: int = 10
    first_steps: int | None = None
    images: bool = False
    power: float = 1.0

    def search(self, steps: int) -> pmcl.Search:
        return pmcl.Search(
            steps=steps, first_steps=self.first_steps or 5 * steps, batch_size=self.batch_size,
            draws=self.draws, learning_rate=2e-2,
        )  # fmt: skip

    def model(self, inputs: int) -> pm.Model:
        """Return its network, for whatever rows come."""
        if self.images:
            return classifier(inputs, self.hidden, self.labels, prior=2.0)
        return network(inputs, self.hidden, self.labels)


def table(name: str, **options: object) -> Callable[[], pd.DataFrame]:
    """Read a table of the folder `streams` in PMCL_DATA."""

    def read() -> pd.DataFrame:
        folder = os.environ.get("PMCL_DATA")
        path = Path(folder or "") / "streams" / name
        if not folder or not path.is_file():
            raise FileNotFoundError(
                f"{name}: set PMCL_DATA to a folder that holds streams/{name}, the UCI table of "
                "that name with a header and the response in the last column"
            )
        return pd.read_csv(path, **options)  # type: ignore[call-overload]

    return read


def last(name: str, lowest: int = 0) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """All columns but the last as predictors; labels from 0 on."""

    def read() -> tuple[np.ndarray, np.ndarray]:
        values = table(name)().to_numpy(float)
        return values[:, :-1], values[:, -1] - lowest

    return read


def digits() -> tuple[np.ndarray, np.ndarray]:
    train, _ = mnist()
    return train.X.astype(float), train.y.astype(float)


SMALL = {"hidden": (16, 16), "first": 100, "each": 10, "memory": 15}
MIDDLE = {"hidden": (32, 32), "first": 250, "each": 25, "memory": 25}
MEMORY = {
    "concrete": Stream(last("concrete_full.csv"), 0, **SMALL),
    "boston": Stream(last("boston_full.csv"), 0, **SMALL),
    "energy": Stream(last("energy_full.csv"), 0, **SMALL),
    "yacht": Stream(last("yacht.csv"), 0, **SMALL),
    "spam": Stream(last("spambase.csv.gz"), 2, **MIDDLE),
    "wine": Stream(last("wine_quality_red.csv", 3), 6, **MIDDLE),
    "mnist": Stream(
        digits, 10, (64, 64), 2500, 250, 150, batch_size=256, draws=1, first_steps=5000,
        images=True, power=3.0,
    ),
}  # fmt: skip
MEMORIES = {
    "residual": lambda m: pmcl.ResidualMemory(m),
    "residual, eq. 8": lambda m: pmcl.ResidualMemory(m, score="gain"),
    "k-center": lambda m: pmcl.KCenterCoreset(m),
    "random": lambda m: pmcl.RandomCoreset(m),
}


def network(
    inputs: int, hidden: tuple[int, ...], labels: int, rows: Rows | None = None
) -> pm.Model:
    """Network with tanh units, with prior scales that give every layer's outputs unit variance."""
    if rows is None:  # whatever comes
        rows = {"X": np.zeros((1, inputs)), "y": np.zeros(1, int if labels else float)}
    coords = {"row": range(len(rows["y"])), "input": range(inputs)}
    with pm.Model(coords=coords) as model:
        X = pm.Data("X", rows["X"], dims=("row", "input"))
        layer, n, before = X, inputs, "linear"
        for i, units in enumerate((*hidden, max(labels, 1) if labels != 2 else 1)):
            scale = pmcl.prior_scale(n, before)
            W = pm.Normal(f"W{i}", 0, scale, shape=(n, units))
            b = pm.Normal(f"b{i}", 0, scale, shape=units)
            layer, n, before = layer @ W + b, units, "tanh"
            if i < len(hidden):
                layer = pt.tanh(layer)
        if labels == 0:
            sd = pm.math.exp(pm.Normal("log_sd", -1, 1))
            pm.Normal("y", layer[:, 0], sd, observed=rows["y"], dims="row")
        elif labels == 2:
            pm.Bernoulli("y", logit_p=layer[:, 0], observed=rows["y"], dims="row")
        else:
            pm.Categorical("y", logit_p=layer, observed=rows["y"], dims="row")
    return model


def standardised(X: np.ndarray, by: np.ndarray) -> np.ndarray:
    sd = by.std(axis=0)
    return (X - by.mean(axis=0)) / np.where(sd > 0, sd, 1.0)


def batches(stream: Stream, X: np.ndarray, y: np.ndarray) -> list[Rows]:
    """Cut rows into the batches of a stream; what is left over at the end does not come."""
    edges = range(stream.first, len(X) + 1, stream.each)
    parts = [slice(0, stream.first), *(slice(e, e + stream.each) for e in edges)]
    found = [
        {"X": X[p], "y": y[p] if stream.labels == 0 else y[p].astype(int)}
        for p in parts
        if p.stop <= len(X)
    ]
    return found if stream.updates is None else found[: stream.updates]


def checkpoint(given: argparse.Namespace, label: str) -> Checkpoint:
    return Checkpoint(given.out / "states" / label.replace(" ", "_"), given.every)


def split(stream: Stream, seed: int) -> tuple[list[Rows], Rows, int]:
    """Batches of four fifths of a table in random order, the rest as a test, and its width."""
    X, y = stream.read()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    cut = len(X) // 5
    X = X if stream.images else standardised(X, X)
    y = standardised(y, y) if stream.labels == 0 else y
    test, train = order[:cut][:2000], order[cut:]
    parts = batches(stream, X[train], y[train])
    whole = {"X": X[test], "y": y[test] if stream.labels == 0 else y[test].astype(int)}
    return parts, whole, X.shape[1]


def memory(stream: Stream, name: str, seed: int, given: argparse.Namespace, label: str) -> dict:
    """Return the mean test log predictive density after every batch."""
    parts, whole, inputs = split(stream, seed)
    model = stream.model(inputs)
    online = pmcl.fit_online(
        model, memory=MEMORIES[name](stream.memory), search=stream.search(given.steps),
        power=stream.power, precision="single", random_seed=seed, progressbar=False,
    )  # fmt: skip
    saved = checkpoint(given, label)
    online, before = saved.read(model) or (online, {"log_predictive": []})
    found = before["log_predictive"]
    for part in parts[len(found) : given.updates]:
        online = online.update(part, progressbar=False)
        found.append(float(online.log_predictive(whole, draws=200, random_seed=0).mean()))
        saved.write(online, {"log_predictive": found})
    tenth = max(len(found) // 10, 1)
    return {
        "log_predictive": found,
        "figure": float(np.mean(found[-tenth:])),
        "steps": given.steps,
        "khat": online.history["khat"].values.tolist(),
        "clamped": online.history["clamped"].values.tolist(),
    }


def rotating(drift: pmcl.AbstractDrift, given: argparse.Namespace) -> dict:
    """Follow two weights that rotate, by 5 degrees between batches of 15 rows."""
    rng = np.random.default_rng(0)
    with pm.Model(coords={"row": range(1), "input": range(2)}) as model:
        X = pm.Data("X", np.zeros((1, 2)), dims=("row", "input"))
        w = pm.Normal("w", 0, 10, dims="input")
        pm.Bernoulli("y", logit_p=X @ w, observed=np.zeros(1, int), dims="row")
    online = pmcl.fit_online(
        model, drift=drift, search=pmcl.Search(steps=200, learning_rate=5e-2),
        random_seed=0, progressbar=False,
    )  # fmt: skip
    found: dict[str, list] = {"mean": [], "sd": [], "true": []}
    for t in range(721)[: given.updates]:
        angle = np.deg2rad(5.0 * t)
        true = 10 * np.array([np.sin(angle), np.cos(angle)])
        X_t = rng.uniform(-3, 3, size=(15, 2))
        y_t = rng.binomial(1, 1 / (1 + np.exp(-X_t @ true)))
        online = online.update({"X": X_t, "y": y_t}, time=float(t), progressbar=False)
        q = online.approximation()
        found["mean"].append(np.asarray(q.mean).tolist())
        found["sd"].append(np.exp(np.asarray(q.log_sd)).tolist())
        found["true"].append(true.tolist())
    error = np.asarray(found["mean"]) - np.asarray(found["true"])
    return {**found, "figure": float(np.sqrt((error[len(error) // 2 :] ** 2).mean()))}


# Table 1 of the paper: means over 16 runs.
PUBLISHED = {
    "concrete": (-0.779, -0.798, -0.800), "boston": (-0.619, -0.638, -0.664),
    "energy": (0.365, -0.119, -0.078), "yacht": (1.925, 1.658, 1.648),
    "spam": (-0.216, -0.219, -0.217), "wine": (-1.165, -1.212, -1.194),
    "mnist": (-0.148, -0.158, -0.153),
}  # fmt: skip


def written(runs: Path, results: Path) -> None:
    """Write what there is: the table, and the figure of the rotating boundary."""
    found = {p.stem: json.loads(p.read_text()) for p in sorted(runs.glob("*.json"))}
    if not found:
        return
    results.mkdir(parents=True, exist_ok=True)
    compact: dict = {
        "made": max(r["made"] for r in found.values()),
        "with": next(iter(found.values()))["with"],
    }
    lines = ["# Memories, and a boundary that rotates", ""]

    def figures(stem: str) -> list[float]:
        stem = stem.replace(" ", "_")
        return [v["figure"] for k, v in found.items() if k.rpartition("_")[0] == stem]

    def steps(stem: str) -> str:
        stem = stem.replace(" ", "_")
        taken = {v["steps"] for k, v in found.items() if k.startswith(f"{stem}_")}
        return ", ".join(map(str, sorted(taken)))

    def shown(values: list[float]) -> str:
        spread = f" ± {np.std(values):.3f}" if len(values) > 1 else ""
        return f"{np.mean(values):.3f}{spread} ({len(values)})" if values else ""

    memories = {d: {n: figures(f"memory {d} {n}") for n in MEMORIES} for d in MEMORY}
    memories = {d: r for d, r in memories.items() if any(r.values())}
    if memories:
        lines += [
            "Test log predictive density (nats a row), mean over the last tenth of the updates, "
            "then over seeds (in brackets): `python experiments/online_streams.py memory`. "
            "The paper's are of 16 seeds and 10,000 steps.", "",
            "| data | steps | " + " | ".join(MEMORIES) + " | the paper's GRS, k-center, random |",
            "|---|" + "---|" * (len(MEMORIES) + 2),
        ]  # fmt: skip
        for data, row in memories.items():
            paper = ", ".join(map(str, PUBLISHED[data]))
            cells = [data, steps(f"memory {data}"), *map(shown, row.values()), paper]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    turning = {k: v for k, v in found.items() if k.startswith("rotating")}
    if turning:
        _rotating_figure(turning, results)
        lines += [
            "A boundary that rotates by 5 degrees between batches of 15 rows "
            "(`python experiments/online_streams.py rotating`, figure `online_rotating.png`): root "
            "mean squared error of the weights (of length 10) over the second half.", "",
            "| drift | error |", "|---|---|",
            *(f"| {k.removeprefix('rotating_')} | {v['figure']:.2f} |" for k, v in turning.items()),
            "",
        ]  # fmt: skip
    compact["memory"] = memories
    compact["rotating"] = {k.removeprefix("rotating_"): v["figure"] for k, v in turning.items()}
    (results / "online_streams.json").write_text(json.dumps(compact, indent=1) + "\n")
    (results / "online_streams.md").write_text("\n".join(lines))


def _rotating_figure(runs: dict[str, dict], results: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1,
        len(runs),
        figsize=(4.5 * len(runs), 3.5),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axis, (name, run) in zip(axes[0], runs.items(), strict=True):
        mean, sd, true = (np.asarray(run[k]) for k in ("mean", "sd", "true"))
        t = np.arange(len(mean))
        for i in range(2):
            axis.plot(t, mean[:, i], color=f"C{i}", label=f"w[{i}]")
            axis.fill_between(
                t, mean[:, i] - sd[:, i], mean[:, i] + sd[:, i], color=f"C{i}", alpha=0.3
            )
            axis.plot(t, true[:, i], color="black", linewidth=0.5)
        axis.set(title=name.removeprefix("rotating_"), xlabel="batch", ylim=(-22, 22))
    axes[0, 0].legend()
    figure.savefig(results / "online_rotating.png", dpi=100)


def said(found: dict) -> str:
    """One line of a run."""
    return f"{found['figure']:.4f}"


def options(about: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser of what all scripts with streams are told."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / name)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--updates", type=int, help="at most")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    return parser


def main() -> None:
    """Run what was asked for."""
    parser = options(__doc__, "online_streams")
    parser.add_argument("part", choices=["memory", "rotating", "tables"])
    parser.add_argument("--data", nargs="+", help="names of some; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=2000, help="of each search but the first")
    given = parser.parse_args()
    runs = given.out / "runs"
    if given.part == "memory":
        for seed in given.seeds:
            for data in given.data or MEMORY:
                for name in MEMORIES:
                    label = f"memory {data} {name} {seed}"
                    kept(
                        runs, label,
                        lambda d=data, n=name, s=seed, k=label: memory(MEMORY[d], n, s, given, k),
                        said,
                    )  # fmt: skip
    elif given.part == "tables":
        written(runs, given.results)
    else:
        for name, drift in (
            ("static", pmcl.Static()),
            ("Ornstein-Uhlenbeck", pmcl.OrnsteinUhlenbeck(0.05)),
            ("forgetting", pmcl.BayesianForgetting(0.5)),
        ):
            kept(runs, f"rotating {name}", lambda w=drift: rotating(w, given), said)


if __name__ == "__main__":
    main()
