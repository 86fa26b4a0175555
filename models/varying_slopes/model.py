"""Regression with an intercept and a slope for each group, whatever their number."""

import numpy as np
import pymc as pm
import xarray as xr


def model(groups: int = 10, rows: int = 100) -> pm.Model:
    """Build the model; `x` and `who` (the group of each row) are covariates, `y` is observed."""
    with pm.Model(coords={"group": range(groups), "row": range(rows)}) as built:
        who = pm.Data("who", np.arange(rows) % groups, dims="row")
        x = pm.Data("x", np.zeros(rows), dims="row")
        intercept, slope = pm.Normal("intercept", 0, 1), pm.Normal("slope", 0, 1)
        sd_intercept, sd_slope = pm.HalfNormal("sd_intercept", 1), pm.HalfNormal("sd_slope", 0.5)
        sigma = pm.HalfNormal("sigma", 1)
        a = pm.Normal("a", intercept, sd_intercept, dims="group")
        b = pm.Normal("b", slope, sd_slope, dims="group")
        pm.Normal("y", a[who] + b[who] * x, sigma, observed=np.zeros(rows), dims="row")
    return built


def covariates() -> dict:
    """Simulated predictors: standard normal."""
    return {"x": pm.Normal.dist(0, 1)}


def training() -> dict:
    """For 5 to 24 groups, of 2 to 20 rows each about."""
    return {"groups": (5, 24), "lengths": (20, 240), "simulations": 2048}


def example() -> xr.Dataset:
    """Investment of ten firms over twenty years by their value, in logs (Grunfeld 1958)."""
    from statsmodels.datasets import grunfeld

    table = grunfeld.load_pandas().data
    firms = list(dict.fromkeys(table["firm"]))[:10]
    table = table[table["firm"].isin(firms)].iloc[::2]
    x, y = (np.log(table[name].to_numpy(float)) for name in ("value", "invest"))
    scaled = ((v - v.mean()) / v.std() for v in (x, y))
    who = np.array([firms.index(f) for f in table["firm"]])
    found = dict(zip(("x", "y"), scaled, strict=True)) | {"who": who}
    return xr.Dataset(
        {name: (("dataset", "row"), value[None]) for name, value in found.items()},
        coords={"dataset": ["firms"]},
    )
