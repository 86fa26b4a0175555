"""Evidences and probabilities of nested regressions against the truth.

    python experiments/model_choice.py    # 200 datasets for evidences, 1,000 for calibration

Linear regressions whose noise is known have closed evidences; those of logistic regressions on one
predictor are found by quadrature. Datasets are simulated from the models in equal numbers.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats
from scipy.special import expit, logsumexp

import pmcl
from pmcl.compile import compile_model, make_simulator, read_covariates

HERE = Path(__file__).parent
ROWS, NOISE = 20, 0.8
X = np.random.default_rng(0).normal(size=(ROWS, 3))


class Family(NamedTuple):
    """Nested models by name, and the log evidence of each for a dataset."""

    models: dict[str, pm.Model]
    truth: Callable[[str, np.ndarray], float]


def linear() -> Family:
    """Regressions on one, two and three predictors, all parameters normal."""
    slopes = {"one": 1, "two": 2, "three": 3}

    def model(number: int) -> pm.Model:
        with pm.Model(coords={"obs": range(ROWS)}) as found:
            alpha = pm.Normal("alpha", 0, 2)
            beta = pm.Normal("beta", 0, 1, shape=number)
            mean = alpha + X[:, :number] @ beta
            pm.Normal("y", mean, NOISE, observed=np.zeros(ROWS), dims="obs")
        return found

    def truth(name: str, y: np.ndarray) -> float:
        x = X[:, : slopes[name]]
        scale = NOISE**2 * np.eye(ROWS) + 2.0**2 + x @ x.T
        return float(stats.multivariate_normal(np.zeros(ROWS), scale).logpdf(y))

    return Family({k: model(n) for k, n in slopes.items()}, truth)


def logistic() -> Family:
    """Regressions with and without a slope."""
    nodes, weights = hermegauss(80)
    weights = np.log(weights / np.sqrt(2 * np.pi))

    def model(slope: bool) -> pm.Model:
        with pm.Model(coords={"obs": range(ROWS)}) as found:
            logit = pm.Normal("alpha", 0, 1.5)
            if slope:
                logit = logit + X[:, 0] * pm.Normal("beta", 0, 1.5)
            logit = logit + np.zeros(ROWS)
            pm.Bernoulli("y", logit_p=logit, observed=np.zeros(ROWS, int), dims="obs")
        return found

    def truth(name: str, y: np.ndarray) -> float:
        slopes, extra = (nodes, weights) if name == "slope" else (np.zeros(1), np.zeros(1))
        logit = 1.5 * (nodes[:, None, None] + slopes[None, :, None] * X[:, 0])
        like = np.log(np.where(y > 0, expit(logit), expit(-logit))).sum(axis=-1)
        return float(logsumexp(like + weights[:, None] + extra))

    return Family({"none": model(False), "slope": model(True)}, truth)


FAMILIES = {"linear, closed": linear, "logistic, quadrature": logistic}


def evidences(family: Family, datasets: int, draws: int) -> dict[str, float]:
    """Share of the estimates within one, two and three of their errors."""
    y = np.concatenate(
        [
            make_simulator(c := compile_model(model), read_covariates({}, c.covariates)).simulate(
                datasets // len(family.models) + 1, random_seed=i
            )[1]["y"]
            for i, model in enumerate(family.models.values())
        ]
    )[:datasets]
    trees = {
        name: pmcl.refine(model, {"y": y}, draws=draws, random_seed=1, progressbar=False)
        for name, model in family.models.items()
    }
    compared = pmcl.compare_models(trees)
    truth = np.array([[family.truth(n, one) for n in family.models] for one in y])
    apart = np.abs(compared["log_evidence"].values - truth)
    error = np.maximum(compared["log_evidence_error"].values, 1e-6)  # of a normal posterior: none
    weight = np.exp(truth - logsumexp(truth, axis=1, keepdims=True))
    off = np.abs(compared["probability"].values - weight)
    wide = np.maximum(compared["probability_error"].values, 1e-6)
    return {
        "datasets": len(y),
        **{f"within {k}": float((apart <= k * error).mean()) for k in (1, 2, 3)},
        "median error": float(np.median(error)),
        "largest difference": float(apart.max()),
        "probability within 3": float((off <= 3 * wide).mean()),
        "largest difference of a probability": float(off.max()),
    }


def calibration(family: Family, datasets: int, draws: int) -> dict[str, object]:
    """Stated probabilities against how often they were right."""
    found = pmcl.model_recovery(
        family.models, datasets, draws=draws, random_seed=2, progressbar=False
    )
    columns = ("stated", "found", "low", "high", "number")
    return {
        "p value": float(found["p_value"]),
        "left out": int(found["left_out"]),
        "bins": [[float(found[c][i]) for c in columns] for i in range(found.sizes["bin"])],
        "confusion": found["confusion"].values.tolist(),
    }


def main() -> None:
    """Compare, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--datasets", type=int, nargs=2, default=(200, 1000))
    parser.add_argument("--draws", type=int, default=1000)
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # what does not stand is counted as left out
    few, many = given.datasets
    rows = {}
    for name, make in FAMILIES.items():
        family = make()
        rows[name] = {
            **evidences(family, few, given.draws),
            **calibration(family, many, given.draws),
        }
    lines = [
        "# Evidences and probabilities of models", "",
        f"`python experiments/model_choice.py`: evidences of {few} datasets under each of the "
        f"nested models, {given.draws:,} draws, against the truth.", "",
        "| models | within 1, 2, 3 errors | median error | largest difference | "
        "probabilities within 3 errors | largest difference |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        shares = ", ".join(f"{row[f'within {k}']:.1%}" for k in (1, 2, 3))
        lines.append(
            f"| {name} | {shares} | {row['median error']:.2g} | {row['largest difference']:.2g} | "
            f"{row['probability within 3']:.1%} | "
            f"{row['largest difference of a probability']:.2g} |"
        )
    lines += [
        "", f"Calibration on {many:,} datasets: by the stated probability, how often it was right, "
        "and between which bounds it should be in 99 of 100 runs.", "",
        f"| stated | {' | '.join(rows)} |", "|---" * (1 + len(rows)) + "|",
    ]  # fmt: skip
    for i in range(10):
        cells = []
        for row in rows.values():
            _, right, low, high, number = row["bins"][i]
            cells.append(f"{right:.2f} ({low:.2f} to {high:.2f}; {number:.0f})" if number else "")
        lines.append(f"| {i / 10:.1f} to {(i + 1) / 10:.1f} | {' | '.join(cells)} |")
    tests = ", ".join(f"{row['p value']:.2g} ({name})" for name, row in rows.items())
    lines += ["", f"p-value of Spiegelhalter's test: {tests}."]
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "model_choice.md").write_text("\n".join(lines) + "\n")
    (given.results / "model_choice.json").write_text(json.dumps(rows) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
