"""Poisson regression of counts, for predictors that are standardised."""

import numpy as np
import pymc as pm
import xarray as xr

exchangeable = "obs"


def model(rows: int = 100, predictors: int = 3) -> pm.Model:
    """Build the model; `X` is the covariate, `y` (a count) is observed."""
    with pm.Model(coords={"obs": range(rows), "predictor": range(predictors)}) as built:
        X = pm.Data("X", np.zeros((rows, predictors)), dims=("obs", "predictor"))
        alpha = pm.Normal("alpha", 1, 1)
        beta = pm.Normal("beta", 0, 0.5, dims="predictor")
        rate = pm.math.exp(alpha + X @ beta)
        pm.Poisson("y", rate, observed=np.zeros(rows, int), dims="obs")
    return built


def covariates() -> dict:
    """Simulated predictors: independent and standard normal."""
    return {"X": pm.Normal.dist(0, 1)}


def example() -> xr.Dataset:
    """Visits to a physician (RAND Health Insurance Experiment): five samples of 100 persons."""
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    X = table[["lncoins", "physlm", "disea"]].to_numpy(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = np.random.default_rng(1).integers(len(X), size=(5, 100))
    return xr.Dataset(
        {
            "X": (("dataset", "obs", "predictor"), X[rows]),
            "y": (("dataset", "obs"), table["mdvis"].to_numpy(int)[rows]),
        },
        coords={"dataset": [f"persons {i}" for i in range(5)]},
    )
