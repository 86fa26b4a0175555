"""Linear regression with a normal error, for columns that are standardised."""

import numpy as np
import pymc as pm
import xarray as xr
from sklearn.datasets import load_diabetes

exchangeable = "obs"


def model(rows: int = 100, predictors: int = 5) -> pm.Model:
    """Build the model; `X` is the covariate, `y` is observed."""
    with pm.Model(coords={"obs": range(rows), "predictor": range(predictors)}) as built:
        X = pm.Data("X", np.zeros((rows, predictors)), dims=("obs", "predictor"))
        alpha = pm.Normal("alpha", 0, 1)
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", alpha + X @ beta, sigma, observed=np.zeros(rows), dims="obs")
    return built


def covariates() -> dict:
    """Simulated predictors: independent and standard normal."""
    return {"X": pm.Normal.dist(0, 1)}


def example() -> xr.Dataset:
    """Progression of diabetes by five clinical measures: five samples of 100 patients each."""
    table = load_diabetes(as_frame=True).frame
    columns = table[["bmi", "bp", "s1", "s5", "age", "target"]].to_numpy()
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    rows = columns[np.random.default_rng(1).integers(len(columns), size=(5, 100))]
    return xr.Dataset(
        {
            "X": (("dataset", "obs", "predictor"), rows[..., :5]),
            "y": (("dataset", "obs"), rows[..., 5]),
        },
        coords={"dataset": [f"patients {i}" for i in range(5)]},
    )
