"""Updates a second: streams by `fit_online` beside scikit-learn's online linear models.

    python benchmarks/online.py

A logistic regression with 100 predictors, some of them correlated, whose rows come in batches: one
pass, each batch is foretold before it is learned from. Log loss and calibration (expected error of
the probabilities, ten bins) are of the second half, time is of the updates alone, compiled. And the
four small networks of the regression tables, with simulated rows of the same number and width.
River, which has online linear models too, is not installed here and was not run.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from sklearn.linear_model import SGDClassifier

import pmcl

HERE = Path(__file__).parent
PREDICTORS, BATCH = 100, 50
NETWORKS = {"concrete": 8, "boston": 13, "energy": 8, "yacht": 6}


def glm(predictors: int = PREDICTORS) -> pm.Model:
    with pm.Model(coords={"row": range(1), "predictor": range(predictors)}) as model:
        X = pm.Data("X", np.zeros((1, predictors)), dims=("row", "predictor"))
        w = pm.Normal("w", 0, 0.3, dims="predictor")
        pm.Bernoulli("y", logit_p=X @ w, observed=np.zeros(1, int), dims="row")
    return model


def network(inputs: int) -> pm.Model:
    with pm.Model(coords={"row": range(1), "input": range(inputs)}) as model:
        X = pm.Data("X", np.zeros((1, inputs)), dims=("row", "input"))
        layer, n, before = X, inputs, "linear"
        for i, units in enumerate((16, 16, 1)):
            scale = pmcl.prior_scale(n, before)
            W = pm.Normal(f"W{i}", 0, scale, shape=(n, units))
            b = pm.Normal(f"b{i}", 0, scale, shape=units)
            layer, n, before = layer @ W + b, units, "tanh"
            layer = pt.tanh(layer) if i < 2 else layer
        pm.Normal("y", layer[:, 0], pm.math.exp(pm.Normal("log_sd", -1, 1)),
                  observed=np.zeros(1), dims="row")  # fmt: skip
    return model


def rows(batches: int, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Batches of a logistic regression with groups of correlated predictors."""
    w = 0.3 * rng.normal(size=PREDICTORS)
    mix = np.kron(np.eye(PREDICTORS // 5), 0.6 * np.ones((5, 5)) + 0.4 * np.eye(5))
    found = []
    for _ in range(batches):
        X = rng.normal(size=(BATCH, PREDICTORS)) @ mix
        found.append({"X": X, "y": rng.binomial(1, 1 / (1 + np.exp(-X @ w)))})
    return found


def judged(odds: list[np.ndarray], ys: list[np.ndarray], seconds: list[float]) -> dict[str, float]:
    """Log loss and calibration of the second half, and updates a second."""
    half = len(odds) // 2
    p = np.clip(np.concatenate(odds[half:]), 1e-12, 1 - 1e-12)
    y = np.concatenate(ys[half:])
    where = np.clip((p * 10).astype(int), 0, 9)
    error = sum(
        abs((p - y)[where == b].mean()) * (where == b).mean()
        for b in range(10)
        if (where == b).any()
    )
    return {
        "updates_a_second": float(1 / np.median(seconds[2:])),
        "log_loss": float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p))),
        "calibration_error": float(error),
    }


def ours(batches: list[dict], family: str) -> dict[str, float]:
    search = pmcl.Search(steps=300) if family == "mean_field" else None
    stream = pmcl.fit_online(glm(), family=family, search=search, random_seed=0, progressbar=False)
    odds, ys, seconds = [], [], []
    for batch in batches:
        ones = {"X": batch["X"], "y": np.ones(BATCH, int)}
        odds.append(np.exp(stream.log_predictive(ones, draws=500, random_seed=0).values))
        ys.append(batch["y"])
        begin = time.perf_counter()
        stream = stream.update(batch, progressbar=False)
        seconds.append(time.perf_counter() - begin)
    return judged(odds, ys, seconds)


def theirs(batches: list[dict], alpha: float, averaged: bool) -> dict[str, float]:
    model = SGDClassifier(loss="log_loss", alpha=alpha, average=averaged, random_state=0)
    odds, ys, seconds = [], [], []
    for i, batch in enumerate(batches):
        known = model.predict_proba(batch["X"])[:, 1] if i else np.full(BATCH, 0.5)
        odds.append(known)
        ys.append(batch["y"])
        begin = time.perf_counter()
        model.partial_fit(batch["X"], batch["y"], classes=[0, 1])
        seconds.append(time.perf_counter() - begin)
    return judged(odds, ys, seconds)


def networks(family: str, updates: int) -> dict[str, float]:
    """Updates a second of the four networks, ten rows each after a hundred."""
    found = {}
    for name, inputs in NETWORKS.items():
        rng = np.random.default_rng(0)
        search = pmcl.Search(steps=300) if family == "mean_field" else pmcl.GaussNewton()
        stream = pmcl.fit_online(
            network(inputs), family=family, search=search, random_seed=0, progressbar=False
        )
        seconds = []
        for i in range(updates):
            X = rng.normal(size=(10 if i else 100, inputs))
            y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] / 2 + 0.1 * rng.normal(size=len(X))
            begin = time.perf_counter()
            stream = stream.update({"X": X, "y": y}, progressbar=False)
            seconds.append(time.perf_counter() - begin)
        found[name] = float(1 / np.median(seconds[2:]))
    return found


def main() -> None:
    """Run all, and keep what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--updates", type=int, default=8, help="of networks")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    batches = rows(given.batches, np.random.default_rng(0))
    table = {f"pmcl, {f}": ours(batches, f) for f in ("full", "low_rank", "mean_field")}
    for alpha in (1e-4, 1e-3, 1e-2):
        table[f"SGDClassifier, alpha {alpha:g}"] = theirs(batches, alpha, False)
    table["SGDClassifier, averaged"] = theirs(batches, 1e-4, True)
    for name, values in table.items():
        print(f"{name:32}", *(f"{k} {v:.4g}" for k, v in values.items()), flush=True)
    small = {f: networks(f, given.updates) for f in ("full", "low_rank", "mean_field")}
    for name, values in small.items():
        print(f"{name:32}", *(f"{k} {v:.3g}" for k, v in values.items()), flush=True)
    found = {"rows_a_batch": BATCH, "predictors": PREDICTORS, "glm": table, "networks": small}
    (given.results / "online.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
