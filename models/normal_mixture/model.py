"""Mixture of two normals, for a standardised variable of two groups that nobody labelled."""

import numpy as np
import pymc as pm
import xarray as xr
from sklearn.datasets import load_iris

import pmcl

exchangeable = "obs"


def model(rows: int = 100) -> pm.Model:
    """Build the model; `y` is observed. The means are ordered, so that groups keep their names."""
    ordered = pm.distributions.transforms.ordered
    with pm.Model(coords={"obs": range(rows), "group": ["low", "high"]}) as built:
        weight = pm.Dirichlet("weight", np.full(2, 2.0), dims="group")
        mu = pm.Normal("mu", [-1, 1], 1, dims="group", transform=ordered, initval=[-1.0, 1.0])
        sigma = pm.HalfNormal("sigma", 1, dims="group")
        pm.NormalMixture("y", weight, mu, sigma, observed=np.zeros(rows), dims="obs")
    return built


def network() -> pmcl.Network:
    """Return a deeper flow: what two groups that overlap leave of a posterior is bent."""
    flow = pmcl.CouplingFlow(layers=4, width=64, knots=8, activation="silu")
    return pmcl.Network(pmcl.DeepSet(), flow)


def training() -> dict:
    """More simulations than by default, and time to learn from them."""
    return {"simulations": 16_000, "steps": 8000, "patience": 12}


def example() -> xr.Dataset:
    """Length of irises' petals, of three species: five samples of 100 flowers each."""
    y = load_iris(as_frame=True).frame["petal length (cm)"].to_numpy()
    y = (y - y.mean()) / y.std()
    rows = np.random.default_rng(1).integers(len(y), size=(5, 100))
    return xr.Dataset(
        {"y": (("dataset", "obs"), y[rows])},
        coords={"dataset": [f"flowers {i}" for i in range(5)]},
    )
