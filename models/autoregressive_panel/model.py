"""Autoregression of yearly growth with two covariates, for a panel of short series."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.tensor import TensorVariable

sequence = "year"
lengths = (8, 40)


def growth(
    first: TensorVariable,
    u: TensorVariable,
    w: TensorVariable,
    alpha: TensorVariable,
    beta: TensorVariable,
    gamma: TensorVariable,
    delta: TensorVariable,
    sigma: TensorVariable,
    size: object = None,
) -> TensorVariable:
    """Simulate year after year; `u` and `w` are those of the year before."""
    shock = pm.Normal.dist(alpha + gamma * u + delta * w, sigma, shape=u.shape)
    return pytensor.scan(
        lambda shock, before, beta: beta * before + shock,
        sequences=[shock],
        outputs_info=[first],
        non_sequences=[beta],
        strict=True,
        return_updates=False,
    )


def log_density(
    value: TensorVariable,
    first: TensorVariable,
    u: TensorVariable,
    w: TensorVariable,
    alpha: TensorVariable,
    beta: TensorVariable,
    gamma: TensorVariable,
    delta: TensorVariable,
    sigma: TensorVariable,
) -> TensorVariable:
    """Log density of every year given the year before."""
    before = pt.concatenate([first[None], value[:-1]])
    return pm.logp(pm.Normal.dist(alpha + beta * before + gamma * u + delta * w, sigma), value)


def model(years: int = 18) -> pm.Model:
    """Build the model: of one country, or firm.

    `first` is the growth before the first year, `u` and `w` are standardised covariates of the year
    before each; all three are covariates, and the growth `y` is observed.
    """
    with pm.Model(coords={"year": range(years)}) as built:
        first = pm.Data("first", 0.0)
        u = pm.Data("u", np.zeros(years), dims="year")
        w = pm.Data("w", np.zeros(years), dims="year")
        alpha = pm.Normal("alpha", 0, 0.5)
        beta = pm.Normal("beta", 0, 0.2)
        gamma = pm.Normal("gamma", 0, 0.5)
        delta = pm.Normal("delta", 0, 0.5)
        sigma = pm.LogNormal("sigma", -1, 0.5)
        pm.CustomDist(
            "y",
            *(first, u, w, alpha, beta, gamma, delta, sigma),
            dist=growth,
            logp=log_density,
            signature="(),(t),(t),(),(),(),(),()->(t)",
            observed=np.zeros(years),
            dims="year",
        )
    return built


def covariates() -> dict:
    """Simulated covariates: independent from year to year, which real ones are not."""
    standard = pm.Normal.dist(0, 1)
    return {"first": pm.Normal.dist(0, 0.5), "u": standard, "w": standard}


def example() -> xr.Dataset:
    """Investment of eleven firms, 1935 to 1954 (Grunfeld), with their market value and capital."""
    from statsmodels.datasets import grunfeld

    table = grunfeld.load_pandas().data.sort_values(["firm", "year"])
    firms = {
        name: panel(g["invest"], g["value"], g["capital"]) for name, g in table.groupby("firm")
    }
    return xr.concat(firms.values(), "dataset").assign_coords(dataset=list(firms))


def panel(levels: np.ndarray, u: np.ndarray, w: np.ndarray) -> xr.Dataset:
    """Make one dataset of yearly levels: log differences, and standardised logs a year before."""
    level, *covariates = (np.log(np.asarray(v, float)) for v in (levels, u, w))
    change = np.diff(level)
    before = [((v - v.mean()) / v.std())[1:-1] for v in covariates]
    return xr.Dataset(
        {
            "first": ((), change[0]),
            "u": ("year", before[0]),
            "w": ("year", before[1]),
            "y": ("year", change[1:]),
        }
    )
