"""Updates a second: streams by `fit_online` beside scikit-learn's online linear models.

    python benchmarks/online.py

A logistic and a linear regression with 100 predictors, some of them correlated, whose rows come in
batches: one pass, each batch is foretold before it is learned from. Log loss and calibration
(expected error of the probabilities, ten bins), and root mean squared error, log density and how
often an interval of 90 % holds the value, are of the second half; time is of the updates alone,
compiled. Of scikit-learn's models every one of some settings is run: which is best is known
afterwards only. And the four small networks of the regression tables, with simulated rows of the
same number and width. River, which has online linear models too, is not installed here.
"""

import time

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from results import Table, parser, write
from scipy import stats
from sklearn.linear_model import SGDClassifier, SGDRegressor

import pmcl

PREDICTORS, BATCH = 100, 50
NETWORKS = {"concrete": 8, "boston": 13, "energy": 8, "yacht": 6}


FAMILIES = ("full", "low_rank", "mean_field")
SGD = {
    "defaults": {},
    "averaged": {"average": True},
    **{f"alpha {a:g}": {"alpha": a} for a in (1e-3, 1e-2)},
    **{f"rate {r:g}": {"learning_rate": "constant", "eta0": r} for r in (1e-3, 1e-2, 1e-1)},
    "rate 0.01, averaged": {"learning_rate": "constant", "eta0": 0.01, "average": True},
}
NOISE = 2.0


def glm(kind: str, predictors: int = PREDICTORS) -> pm.Model:
    """Logistic or linear regression."""
    with pm.Model(coords={"row": range(1), "predictor": range(predictors)}) as model:
        X = pm.Data("X", np.zeros((1, predictors)), dims=("row", "predictor"))
        w = pm.Normal("w", 0, 0.3, dims="predictor")
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=X @ w, observed=np.zeros(1, int), dims="row")
        else:
            sd = pm.math.exp(pm.Normal("log_sd", 0, 1))
            pm.Normal("y", X @ w, sd, observed=np.zeros(1), dims="row")
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


def rows(kind: str, batches: int, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Batches of a regression with groups of correlated predictors."""
    w = 0.3 * rng.normal(size=PREDICTORS)
    mix = np.kron(np.eye(PREDICTORS // 5), 0.6 * np.ones((5, 5)) + 0.4 * np.eye(5))
    found = []
    for _ in range(batches):
        X = rng.normal(size=(BATCH, PREDICTORS)) @ mix
        eta = X @ w
        y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
        found.append(
            {"X": X, "y": y if kind == "logistic" else eta + NOISE * rng.normal(size=BATCH)}
        )
    return found


def judged(told: list[np.ndarray], batches: list[dict], seconds: list[float]) -> dict[str, float]:
    """Log loss and calibration of the second half, and updates a second."""
    half = len(told) // 2
    p = np.clip(np.concatenate(told[half:]), 1e-12, 1 - 1e-12)
    y = np.concatenate([batch["y"] for batch in batches[half:]])
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


def judged_values(
    told: list[np.ndarray], batches: list[dict], seconds: list[float]
) -> dict[str, float]:
    """Errors of the second half, by means and standard deviations, and updates a second."""
    half = len(told) // 2
    mean, sd = np.concatenate(told[half:], axis=1)
    y = np.concatenate([batch["y"] for batch in batches[half:]])
    found = {
        "updates_a_second": float(1 / np.median(seconds[2:])),
        "error": float(np.sqrt(np.mean((mean - y) ** 2))),
    }
    if np.isfinite(sd).all():
        found["log_density"] = float(stats.norm(mean, sd).logpdf(y).mean())
        held = np.abs(y - mean) < stats.norm.ppf(0.95) * sd
        found["held_by_90"] = float(held.mean())
    return found


def ours(kind: str, batches: list[dict], family: str) -> dict[str, float]:
    search = pmcl.Search(steps=300) if family == "mean_field" else None
    stream = pmcl.fit_online(
        glm(kind), family=family, search=search, random_seed=0, progressbar=False
    )
    told, seconds = [], []
    for batch in batches:
        if kind == "logistic":
            ones = {"X": batch["X"], "y": np.ones(BATCH, int)}
            found = stream.log_predictive(ones, draws=500, random_seed=0)
            told.append(np.exp(found.values))
        else:
            drawn = stream.sample(500, random_seed=0).posterior
            means = drawn["w"].values[0] @ batch["X"].T
            noise = np.exp(2 * drawn["log_sd"].values[0]).mean()
            told.append(np.stack([means.mean(axis=0), np.sqrt(means.var(axis=0) + noise)]))
        begin = time.perf_counter()
        stream = stream.update(batch, progressbar=False)
        seconds.append(time.perf_counter() - begin)
    return (judged if kind == "logistic" else judged_values)(told, batches, seconds)


def theirs(kind: str, batches: list[dict], settings: dict) -> dict[str, float]:
    told, seconds = [], []
    if kind == "logistic":
        model = SGDClassifier(loss="log_loss", random_state=0, **settings)
    else:
        model = SGDRegressor(random_state=0, **settings)
    for i, batch in enumerate(batches):
        if kind == "logistic":
            told.append(model.predict_proba(batch["X"])[:, 1] if i else np.full(BATCH, 0.5))
        else:  # there is no standard deviation
            mean = model.predict(batch["X"]) if i else np.zeros(BATCH)
            told.append(np.stack([mean, np.full(BATCH, np.nan)]))
        more = {"classes": [0, 1]} if kind == "logistic" else {}
        begin = time.perf_counter()
        model.partial_fit(batch["X"], batch["y"], **more)
        seconds.append(time.perf_counter() - begin)
    return (judged if kind == "logistic" else judged_values)(told, batches, seconds)


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
    given = parser("Updates a second, beside scikit-learn's online linear models.")
    given.add_argument("--batches", type=int, default=60)
    given.add_argument("--updates", type=int, default=8, help="of networks")
    asked = given.parse_args()
    found: dict = {"rows_a_batch": BATCH, "predictors": PREDICTORS}
    tables = []
    for kind in ("logistic", "linear"):
        batches = rows(kind, asked.batches, np.random.default_rng(0))
        ways = {f"pmcl, {f}": ours(kind, batches, f) for f in FAMILIES}
        ways |= {f"scikit-learn, {k}": theirs(kind, batches, v) for k, v in SGD.items()}
        found[kind] = ways
        names = list(next(iter(ways.values())))
        cells = [[way, *(values.get(n, "") for n in names)] for way, values in ways.items()]
        title = f"A {kind} regression, {PREDICTORS} predictors, {BATCH} rows a batch, foretold"
        tables.append(Table(title, ["", *(n.replace("_", " ") for n in names)], cells))
    found["networks"] = {f: networks(f, asked.updates) for f in FAMILIES}
    cells = [[f"pmcl, {f}", *values.values()] for f, values in found["networks"].items()]
    title = "Updates a second of networks with two layers of 16 units, ten rows a batch"
    tables.append(Table(title, ["", *NETWORKS], cells))
    write("online", asked.out, found, *tables)


if __name__ == "__main__":
    main()
