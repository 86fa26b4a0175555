"""Updates a second: streams by `fit_online` beside scikit-learn's and River's online linear models.

    .venv-benchmarks/bin/python benchmarks/online.py     # after `make bench-env`

A logistic regression with 100 predictors, some of them correlated, whose rows come in batches: one
pass, each batch is foretold before it is learned from. Log loss and calibration (expected error of
the probabilities, ten bins) are of the second half, time is of the updates alone, compiled. The
rates of the others are swept, and the best is picked with hindsight. And the four small networks of
the regression tables, with simulated rows of the same number and width.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from river import optim
from river.linear_model import LogisticRegression
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

    def foretell(X: np.ndarray) -> np.ndarray:
        ones = {"X": X, "y": np.ones(BATCH, int)}
        return np.exp(stream.log_predictive(ones, draws=500, random_seed=0).values)

    def learn(X: np.ndarray, y: np.ndarray) -> None:
        nonlocal stream
        stream = stream.update({"X": X, "y": y}, progressbar=False)

    return followed(batches, foretell, learn)


def followed(batches: list[dict], foretell: Callable, learn: Callable) -> dict[str, float]:
    """Foretell every batch, then learn from it."""
    odds, ys, seconds = [], [], []
    for batch in batches:
        odds.append(foretell(batch["X"]) if odds else np.full(BATCH, 0.5))
        ys.append(batch["y"])
        begin = time.perf_counter()
        learn(batch["X"], batch["y"])
        seconds.append(time.perf_counter() - begin)
    return judged(odds, ys, seconds)


def scikit(batches: list[dict], **settings: Any) -> dict[str, float]:
    model = SGDClassifier(loss="log_loss", random_state=0, **settings)
    return followed(
        batches,
        lambda X: model.predict_proba(X)[:, 1],
        lambda X, y: model.partial_fit(X, y, classes=[0, 1]),
    )


def river(batches: list[dict], optimizer: optim.base.Optimizer) -> dict[str, float]:
    model = LogisticRegression(optimizer)

    def learn(X: np.ndarray, y: np.ndarray) -> None:
        for row, one in zip(X.tolist(), y.tolist(), strict=True):
            model.learn_one(dict(enumerate(row)), bool(one))

    return followed(
        batches,
        lambda X: np.array([model.predict_proba_one(dict(enumerate(r)))[True] for r in X.tolist()]),
        learn,
    )


RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)


def peers(batches: list[dict]) -> dict[str, dict[str, float]]:
    """As they come, and for each way of descending the best of the rates, picked with hindsight."""
    table = {
        "SGDClassifier, as it comes": scikit(batches),
        "LogisticRegression of River, as it comes": river(batches, optim.SGD()),
    }
    ways = {
        "SGDClassifier": lambda r: scikit(batches, learning_rate="constant", eta0=r),
        "SGDClassifier, averaged": lambda r: scikit(
            batches, learning_rate="constant", eta0=r, average=True
        ),
        "SGDClassifier, falling": lambda r: scikit(batches, learning_rate="invscaling", eta0=r),
        "LogisticRegression of River, SGD": lambda r: river(batches, optim.SGD(r)),
        "LogisticRegression of River, Adam": lambda r: river(batches, optim.Adam(r)),
        "LogisticRegression of River, AdaGrad": lambda r: river(batches, optim.AdaGrad(r)),
    }
    for name, way in ways.items():
        found = {rate: way(rate) for rate in RATES}
        rate = min(found, key=lambda r: found[r]["log_loss"])
        worst = max(v["log_loss"] for v in found.values())
        table[f"{name}, best rate"] = {**found[rate], "rate": rate, "log_loss_of_worst": worst}
    return table


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
    table |= peers(batches)
    for name, values in table.items():
        print(f"{name:48}", *(f"{k} {v:.4g}" for k, v in values.items()), flush=True)
    small = {f: networks(f, given.updates) for f in ("full", "low_rank", "mean_field")}
    for name, values in small.items():
        print(f"{name:32}", *(f"{k} {v:.3g}" for k, v in values.items()), flush=True)
    found = {"rows_a_batch": BATCH, "predictors": PREDICTORS, "glm": table, "networks": small}
    (given.results / "online.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
