"""Streams of models with covariances against NUTS of all rows: what the batches cost.

    python experiments/online_nuts.py

Simulated rows, all at once, in batches of forty, and so with a memory of eighty rows. Means are
compared in standard deviations of NUTS, and standard deviations by their ratio, each the worst of
the parameters; with what `update` and `sample` said of it. Ten minutes on one core.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from continual import kept
from scipy.special import expit

import pmcl

HERE = Path(__file__).parent
ROWS, BATCH, MEMORY, GROUPS = 240, 40, 80, 6
type Data = dict[str, np.ndarray]


def predictors(data: Data) -> tuple[pt.TensorVariable, pt.TensorVariable]:
    """Covariates, and a linear predictor of them."""
    X = pm.Data("X", data["X"], dims=("row", "p"))
    return X, pm.Normal("a", 0, 2) + X @ pm.Normal("w", 0, 1, dims="p")


def groups(data: Data, *, centred: bool) -> None:
    g = pm.Data("g", data["g"], dims="row")
    mu, tau, sd = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1), pm.HalfNormal("sd", 1)
    if centred:
        effect = pm.Normal("effect", mu, tau, dims="group")
    else:
        effect = mu + tau * pm.Normal("raw", 0, 1, dims="group")
    pm.Normal("y", effect[g], sd, observed=data["y"], dims="row")


def student(data: Data) -> None:
    _, eta = predictors(data)
    sd, nu = pm.HalfNormal("sd", 2), pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu=nu, mu=eta, sigma=sd, observed=data["y"], dims="row")


def counts(data: Data) -> None:
    _, eta = predictors(data)
    alpha = pm.HalfNormal("alpha", 3)
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=data["y"], dims="row")


def shape(data: Data) -> None:
    _, eta = predictors(data)
    alpha = pm.HalfNormal("alpha", 3)
    beta = alpha / pm.math.exp(eta)
    pm.Gamma("y", alpha=alpha, beta=beta, observed=data["y"], dims="row")


def share(data: Data) -> None:
    _, eta = predictors(data)
    nu = pm.Gamma("nu", 2, 0.2)
    pm.Beta("y", mu=pm.math.invlogit(eta), nu=nu, observed=data["y"], dims="row")


def flips(data: Data) -> None:
    _, eta = predictors(data)
    n = pm.Data("n", data["n"], dims="row")
    pm.Binomial("y", n=n, logit_p=eta, observed=data["y"], dims="row")


def classes(data: Data) -> None:
    X = pm.Data("X", data["X"], dims=("row", "p"))
    eta = pm.Normal("a", 0, 2, dims="k") + X @ pm.Normal("w", 0, 1, dims=("p", "k"))
    logits = pt.concatenate([pt.zeros((X.shape[0], 1)), eta], axis=1)
    pm.Categorical("y", logit_p=logits, observed=data["y"], dims="row")


def ordered(data: Data) -> None:
    X = pm.Data("X", data["X"], dims=("row", "p"))
    begin = np.array([-1.0, 0.0, 1.0])
    cuts = pm.Normal(
        "cuts", begin, 2, shape=3, initval=begin, transform=pm.distributions.transforms.ordered
    )
    pm.OrderedLogistic(
        "y", eta=X @ pm.Normal("w", 0, 1, dims="p"), cutpoints=cuts, compute_p=False,
        observed=data["y"], dims="row",
    )  # fmt: skip


def bounded(data: Data) -> None:
    x = pm.Data("x", data["x"], dims="row")
    slope = pm.Uniform("slope", -1, 1) + 2 * pm.Beta("part", 2, 2) * x
    pm.Normal("y", slope, pm.HalfCauchy("sd", 1), observed=data["y"], dims="row")


def worlds() -> dict[str, tuple[Callable[[Data], None], Data]]:
    """Models and their rows."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 2)) @ [[1, 0.8], [0, 0.6]]
    eta = 0.5 + X @ [0.8, -0.6]
    g, x, n = rng.integers(0, GROUPS, ROWS), rng.normal(size=ROWS), rng.integers(1, 6, ROWS)
    of_group = {"g": g, "y": rng.normal(1, 0.5, GROUPS)[g] + rng.normal(size=ROWS)}
    logits = np.stack([0 * eta, eta, 0.3 - eta], axis=1)
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    a, b = 8 * expit(eta), 8 * expit(-eta)
    return {
        "groups, centred": (lambda d: groups(d, centred=True), of_group),
        "groups, not centred": (lambda d: groups(d, centred=False), of_group),
        "Student t": (student, {"X": X, "y": eta + 0.7 * rng.standard_t(3, size=ROWS)}),
        "bounds": (bounded, {"x": x, "y": 0.95 + 1.2 * x + 0.8 * rng.normal(size=ROWS)}),
        "ordered logistic": (
            ordered, {"X": X, "y": np.digitize(eta + rng.logistic(size=ROWS), [-1, 0.3, 2])}
        ),
        "negative binomial": (
            counts, {"X": X, "y": rng.negative_binomial(1.5, 1.5 / (1.5 + np.exp(eta)))}
        ),
        "gamma": (shape, {"X": X, "y": rng.gamma(2.5, np.exp(eta) / 2.5)}),
        "beta": (share, {"X": X, "y": np.clip(rng.beta(a, b), 1e-6, 1 - 1e-6)}),
        "binomial": (flips, {"X": X, "n": n, "y": rng.binomial(n, expit(eta))}),
        "categorical": (classes, {"X": X, "y": drawn}),
    }  # fmt: skip


def built(say: Callable[[Data], None], data: Data) -> pm.Model:
    coords = {"row": range(len(data["y"])), "p": range(2), "k": range(2), "group": range(GROUPS)}
    with pm.Model(coords=coords) as model:
        say(data)
    return model


def reference(model: pm.Model) -> dict[str, list]:
    """Means and standard deviations by NUTS."""
    with model:
        draws = pm.sample(draws=1500, chains=2, cores=1, random_seed=1, progressbar=False)
    names = [v.name for v in model.free_RVs]
    flat = {v: draws.posterior[v].values.reshape(3000, -1) for v in names}
    return {v: [d.mean(axis=0).tolist(), d.std(axis=0).tolist()] for v, d in flat.items()}


def followed(start: pmcl.OnlinePosterior, data: Data, batch: int, truth: dict) -> dict:
    """Follow the rows; how far what is known in the end is from NUTS, and what was said of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stream = start
        for i in range(0, ROWS, batch):
            part = {k: v[i : i + batch] for k, v in data.items()}
            stream = stream.update(part, progressbar=False)
        posterior = stream.sample(draws=4000, random_seed=0).posterior
    far, ratios = [], []
    for name, (means, sds) in truth.items():
        drawn = posterior[name].values.reshape(4000, -1)
        far += list((drawn.mean(axis=0) - means) / sds)
        ratios += list(drawn.std(axis=0) / sds)
    text = " ".join(str(w.message) for w in caught)
    return {
        "mean": float(np.abs(far).max()), "sd": [float(min(ratios)), float(max(ratios))],
        "divergence": plain(stream.history["divergence"].values),
        "khat": plain(stream.history["khat"].values),
        "said": ("nats from the normal" in text) * ["divergence"] + ("k-hat" in text) * ["k-hat"],
    }  # fmt: skip


def plain(values: np.ndarray) -> list[float | None]:
    """Values as JSON has them."""
    return [float(v) if np.isfinite(v) else None for v in values]


def compared(name: str) -> dict:
    """One model: NUTS, and its streams."""
    say, data = worlds()[name]
    truth = reference(built(say, data))
    model = built(say, {k: v[:2] for k, v in data.items()})
    found = {}
    for how, batch, memory in (
        ("at once", ROWS, None),
        ("in batches", BATCH, None),
        ("with a memory", BATCH, pmcl.ResidualMemory(MEMORY)),
    ):
        start = pmcl.fit_online(
            model, family="full", memory=memory, random_seed=1, progressbar=False
        )
        found[how] = followed(start, data, batch, truth)
    return {"name": name, "streams": found}


def said(found: dict) -> str:
    """One line of a run."""
    return ", ".join(f"{how} {one['mean']:.2f}" for how, one in found["streams"].items())


def written(runs: Path, results: Path) -> None:
    """Write what there is."""
    found = [json.loads(p.read_text()) for p in runs.glob("*.json")]
    found.sort(key=lambda r: list(worlds()).index(r["name"]))
    if not found:
        return
    results.mkdir(parents=True, exist_ok=True)
    (results / "online_nuts.json").write_text(json.dumps(found, indent=1) + "\n")
    hows = list(found[0]["streams"])
    lines = [
        "# Streams with covariances against NUTS", "",
        "`python experiments/online_nuts.py`: the worst mean, in standard deviations of NUTS, the "
        "ratios of standard deviations, and in brackets what was warned of (d: divergence, k: "
        f"k-hat); of {ROWS} rows, batches of {BATCH}, a residual memory of {MEMORY}. Divergence: "
        "of the first batch, without a memory (nats).", "",
        f"| model | {' | '.join(hows)} | divergence |", "|---|" + "---|" * (len(hows) + 1),
    ]  # fmt: skip
    for run in found:
        cells = [run["name"]]
        for how in hows:
            one = run["streams"][how]
            warned = ", ".join(w[0] for w in one["said"])
            cells.append(
                f"{one['mean']:.2f}, {one['sd'][0]:.2f} to {one['sd'][1]:.2f}"
                + (f" ({warned})" if warned else "")
            )
        cells.append(f"{run['streams']['in batches']['divergence'][0]:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    (results / "online_nuts.md").write_text("\n".join([*lines, ""]))


def main() -> None:
    """Run all models, and write a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(worlds()))
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "online_nuts")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    for name in given.models:
        kept(given.out / "runs", name, lambda n=name: compared(n), said)
    written(given.out / "runs", given.results)


if __name__ == "__main__":
    main()
