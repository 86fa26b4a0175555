"""Linear regression with Student's t errors, for standardised columns with outliers."""

import numpy as np
import pymc as pm
import xarray as xr

exchangeable = "obs"


def model(rows: int = 100, predictors: int = 3) -> pm.Model:
    """Build the model; `X` is the covariate, `y` is observed."""
    with pm.Model(coords={"obs": range(rows), "predictor": range(predictors)}) as built:
        X = pm.Data("X", np.zeros((rows, predictors)), dims=("obs", "predictor"))
        alpha = pm.Normal("alpha", 0, 1)
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        sigma = pm.HalfNormal("sigma", 1)
        # more than 2 degrees of freedom: a finite variance
        excess = pm.Gamma("excess", 2, 0.1)
        nu = pm.Deterministic("nu", 2 + excess)
        pm.StudentT("y", nu, mu=alpha + X @ beta, sigma=sigma, observed=np.zeros(rows), dims="obs")
    return built


def covariates() -> dict:
    """Simulated predictors: independent and standard normal."""
    return {"X": pm.Normal.dist(0, 1)}


def example() -> xr.Dataset:
    """Pupils above the national median by district (California, 1998): five samples of 100."""
    from statsmodels.datasets import star98

    table = star98.load_pandas().data
    y = 100 * table["NABOVE"] / (table["NABOVE"] + table["NBELOW"])
    columns = np.column_stack([table[["LOWINC", "PERASIAN", "PERHISP"]].to_numpy(float), y])
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    rows = columns[np.random.default_rng(1).integers(len(columns), size=(5, 100))]
    return xr.Dataset(
        {
            "X": (("dataset", "obs", "predictor"), rows[..., :3]),
            "y": (("dataset", "obs"), rows[..., 3]),
        },
        coords={"dataset": [f"districts {i}" for i in range(5)]},
    )
