"""Counts by site with what is expected of each, at any number of sites."""

import numpy as np
import pymc as pm
import xarray as xr


def model(sites: int = 20, rows: int = 40) -> pm.Model:
    """Build the model; `expected` and `at` (the site of each row) are covariates, `y` observed."""
    with pm.Model(coords={"site": range(sites), "row": range(rows)}) as built:
        at = pm.Data("at", np.arange(rows) % sites, dims="row")
        expected = pm.Data("expected", np.ones(rows), dims="row")
        mean, sd = pm.Normal("mean", 0, 1), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", mean, sd, dims="site")
        pm.Poisson("y", expected * pm.math.exp(u[at]), observed=np.zeros(rows, int), dims="row")
    return built


def covariates() -> dict:
    """Simulated expected counts: log-normal, from 0.3 to 100 mostly."""
    return {"expected": pm.LogNormal.dist(1.7, 1.3)}


def training() -> dict:
    """For 5 to 48 sites, with any number of counts each."""
    return {"groups": (5, 48), "lengths": (10, 128), "simulations": 1536}


def example() -> xr.Dataset:
    """Deaths of breast cancer in 20 counties of the southern USA, by those of the same rate."""
    from statsmodels.datasets import cancer

    table = cancer.load_pandas().data.sample(40, random_state=1)
    deaths, people = (table[name].to_numpy(float) for name in ("cancer", "population"))
    at = np.arange(40) // 2  # two neighbours in the table are a site
    found = {"y": deaths.astype(int), "expected": people * deaths.sum() / people.sum(), "at": at}
    return xr.Dataset(
        {name: (("dataset", "row"), value[None]) for name, value in found.items()},
        coords={"dataset": ["counties"]},
    )
