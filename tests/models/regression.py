"""Continuous outcomes: pooling, robustness, censoring, a Gaussian process."""

from typing import Any

import numpy as np
import pymc as pm

ROWS, COUNTIES = 30, 5


def eight_schools() -> pm.Model:
    """Rubin (1981): effects of coaching in eight schools, partially pooled, non-centred."""
    with pm.Model(coords={"school": range(8)}) as model:
        error = pm.Data("error", np.full(8, 10.0), dims="school")
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        raw = pm.Normal("raw", dims="school")
        theta = pm.Deterministic("theta", mu + tau * raw, dims="school")
        pm.Normal("y", theta, error, observed=np.zeros(8), dims="school")
    return model


def school_errors() -> dict[str, Any]:
    return {"error": pm.Uniform.dist(8, 20)}


def radon() -> pm.Model:
    """Gelman & Hill (2007), chapter 12: radon by floor, with an intercept for each county."""
    with pm.Model(coords={"county": range(COUNTIES), "obs": range(ROWS)}) as model:
        floor = pm.Data("floor", np.zeros(ROWS), dims="obs")
        county = pm.Data("county_of", np.zeros(ROWS, int), dims="obs")
        mean = pm.Normal("mean", 1, 1)
        spread = pm.HalfNormal("spread", 0.5)
        intercept = pm.Normal("intercept", mean, spread, dims="county")
        slope = pm.Normal("slope", -0.5, 0.5)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal(
            "y", intercept[county] + slope * floor, sigma, observed=np.zeros(ROWS), dims="obs"
        )
    return model


def houses() -> dict[str, Any]:
    return {"floor": pm.Bernoulli.dist(0.2), "county_of": pm.DiscreteUniform.dist(0, COUNTIES - 1)}


def survival() -> pm.Model:
    """Times to an event, observed for five years at most: a Weibull regression."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        treated = pm.Data("treated", np.zeros(ROWS), dims="obs")
        shape = pm.LogNormal("shape", 0.2, 0.3)
        intercept = pm.Normal("intercept", 1, 0.5)
        effect = pm.Normal("effect", 0, 0.5)
        scale = pm.math.exp(intercept + effect * treated)
        time = pm.Weibull.dist(alpha=shape, beta=scale)
        pm.Censored("t", time, lower=None, upper=5.0, observed=np.full(ROWS, 2.0), dims="obs")
    return model


def arms() -> dict[str, Any]:
    return {"treated": pm.Bernoulli.dist(0.5)}


def gaussian_process() -> pm.Model:
    """A smooth curve with noise, its covariance's parameters unknown."""
    x = np.linspace(0, 1, 15)
    with pm.Model(coords={"obs": x}) as model:
        length = pm.InverseGamma("length", 5, 1)
        scale = pm.HalfNormal("scale", 1)
        sigma = pm.HalfNormal("sigma", 0.3)
        process = pm.gp.Marginal(cov_func=scale**2 * pm.gp.cov.Matern52(1, length))
        process.marginal_likelihood("y", X=x[:, None], y=np.zeros(15), sigma=sigma)
    return model


def robust() -> pm.Model:
    """A line through points of which some are outliers."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        x = pm.Data("x", np.zeros(ROWS), dims="obs")
        intercept = pm.Normal("intercept")
        slope = pm.Normal("slope")
        sigma = pm.HalfNormal("sigma", 1)
        nu = pm.Gamma("nu", 2, 0.1)
        mu = intercept + slope * x
        pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=np.zeros(ROWS), dims="obs")
    return model


def one_predictor() -> dict[str, Any]:
    return {"x": pm.Normal.dist(0, 1)}
