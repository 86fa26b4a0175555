"""Hierarchical normal means with known standard errors: a meta-analysis of eight studies."""

import numpy as np
import pymc as pm
import xarray as xr


def model(studies: int = 8) -> pm.Model:
    """Build the model; `error` (standard errors) is the covariate, `y` (effects) is observed."""
    with pm.Model(coords={"study": range(studies)}) as built:
        error = pm.Data("error", np.full(studies, 10.0), dims="study")
        mu = pm.Normal("mu", 0, 10)
        tau = pm.HalfNormal("tau", 10)
        eta = pm.Normal("eta", 0, 1, dims="study")
        theta = pm.Deterministic("theta", mu + tau * eta, dims="study")
        pm.Normal("y", theta, error, observed=np.zeros(studies), dims="study")
    return built


def covariates() -> dict:
    """Simulated standard errors: from 5 to 20."""
    return {"error": pm.Uniform.dist(5, 20)}


def training() -> dict:
    """The studies' effects are integrated out: the network learns the two parameters they share."""
    return {"levels": True}


def example() -> xr.Dataset:
    """Coaching in eight schools (Rubin 1981)."""
    return xr.Dataset(
        {
            "y": (("dataset", "study"), [[28.0, 8, -3, 7, -1, 1, 18, 12]]),
            "error": (("dataset", "study"), [[15.0, 10, 16, 11, 9, 11, 10, 18]]),
        },
        coords={"dataset": ["eight schools"]},
    )
