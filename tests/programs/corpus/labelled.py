"""Dims instead of axes: models of `pymc.dims`."""

import numpy as np
import pymc as pm
import pymc.dims as pmd


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def penguins_by_dims() -> pm.Model:
    kind, features = _rng().integers(0, 3, 90), _rng(1).normal(size=(90, 2))
    mass = np.array([3.7, 3.8, 5.1])[kind] + features @ [0.4, -0.2] + _rng(2).normal(0, 0.3, 90)
    coords = {
        "penguin": np.arange(90),
        "species": ["Adelie", "Chinstrap", "Gentoo"],
        "feature": ["bill", "flipper"],
    }
    with pm.Model(coords=coords) as model:
        x = pmd.Data("x", features, dims=("penguin", "feature"))
        species = pmd.Data("species_of", kind, dims="penguin")
        y = pmd.Data("y_obs", mass, dims="penguin")
        intercept = pmd.Normal("intercept", 4.0, 1.0)
        offset = pmd.ZeroSumNormal("offset", sigma=1.0, core_dims="species")
        beta = pmd.Normal("beta", 0.0, 1.0, dims="feature")
        sigma = pmd.HalfNormal("sigma", 1.0)
        mu = intercept + offset.isel(species=species) + x.dot(beta, dim="feature")
        pmd.Normal("y", pmd.Deterministic("mu", mu), sigma, observed=y)
    return model


def panel_by_dims() -> pm.Model:
    store = _rng().normal(2.0, 0.5, 12)
    price = _rng(1).normal(size=(12, 15))
    sold = _rng(2).poisson(np.exp(store[:, None] - 0.3 * price))
    with pm.Model(coords={"store": np.arange(12), "week": np.arange(15)}) as model:
        x = pmd.Data("price", price, dims=("store", "week"))
        mu, tau = pmd.Normal("mu", 1.0, 1.0), pmd.HalfNormal("tau", 1.0)
        base = pmd.Deterministic("base", mu + tau * pmd.Normal("z", dims="store"))
        slope = pmd.Normal("slope", 0.0, 1.0)
        rate = pmd.math.exp(base + slope * x)
        pmd.Poisson(
            "sold", rate, observed=pmd.as_xtensor(sold, dims=("store", "week")), dims=(..., "week")
        )
    return model
