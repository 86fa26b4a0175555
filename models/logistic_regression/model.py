"""Logistic regression of a yes or no, for predictors that are standardised."""

import numpy as np
import pymc as pm
import xarray as xr
from sklearn.datasets import load_breast_cancer

exchangeable = "obs"


def model(rows: int = 100, predictors: int = 5) -> pm.Model:
    """Build the model; `X` is the covariate, `y` (0 or 1) is observed."""
    with pm.Model(coords={"obs": range(rows), "predictor": range(predictors)}) as built:
        X = pm.Data("X", np.zeros((rows, predictors)), dims=("obs", "predictor"))
        alpha = pm.Normal("alpha", 0, 1.5)
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        pm.Bernoulli("y", logit_p=alpha + X @ beta, observed=np.zeros(rows, int), dims="obs")
    return built


def covariates() -> dict:
    """Simulated predictors: independent and standard normal."""
    return {"X": pm.Normal.dist(0, 1)}


def example() -> xr.Dataset:
    """Is a tumour benign? Five measures of its cells: five samples of 100 patients each."""
    table = load_breast_cancer(as_frame=True).frame
    names = [
        "mean texture",
        "mean smoothness",
        "mean symmetry",
        "mean fractal dimension",
        "texture error",
    ]
    X = table[names].to_numpy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = np.random.default_rng(1).integers(len(X), size=(5, 100))
    return xr.Dataset(
        {
            "X": (("dataset", "obs", "predictor"), X[rows]),
            "y": (("dataset", "obs"), table["target"].to_numpy()[rows]),
        },
        coords={"dataset": [f"patients {i}" for i in range(5)]},
    )
