"""The PyMC model of the paper's first experiment."""

import numpy as np
import pymc as pm


def linear_regression_model(rows: int = 100, predictors: int = 5) -> pm.Model:
    """Build the linear regression of the paper's first experiment.

    Parameters
    ----------
    rows : int
        Length of the placeholder data along ``obs``.
    predictors : int
        Number of predictors.

    Returns
    -------
    pymc.Model
        Free variables ``alpha`` ``()``, ``beta`` ``(predictor,)`` and ``sigma`` ``()``, the
        covariate ``X`` ``(obs, predictor)`` and the observed ``y`` ``(obs,)``, both zeros.

    Raises
    ------
    ValueError
        If `rows` or `predictors` is less than one.
    """
    for name, value in (("rows", rows), ("predictors", predictors)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    with pm.Model(coords={"obs": range(rows), "predictor": range(predictors)}) as model:
        X = pm.Data("X", np.zeros((rows, predictors)), dims=("obs", "predictor"))
        alpha = pm.Normal("alpha")
        beta = pm.Normal("beta", dims="predictor")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", alpha + X @ beta, sigma, observed=np.zeros(rows), dims="obs")
    return model
