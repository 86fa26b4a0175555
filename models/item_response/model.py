"""Item response: five questions, answered by any number of persons."""

import numpy as np
import pymc as pm
import xarray as xr


def model(persons: int = 40, items: int = 5) -> pm.Model:
    """Build the model; `y`, observed, says who answered which item rightly."""
    coords = {"person": range(persons), "item": range(items)}
    with pm.Model(coords=coords) as built:
        sd = pm.HalfNormal("sd", 1.5)
        difficulty = pm.Normal("difficulty", 0, 2, dims="item")
        ability = pm.Normal("ability", 0, sd, dims="person")
        logit = ability[:, None] - difficulty
        zeros = np.zeros((persons, items), int)
        pm.Bernoulli("y", logit_p=logit, observed=zeros, dims=("person", "item"))
    return built


def training() -> dict:
    """For 10 to 64 persons."""
    return {"groups": (10, 64), "simulations": 1024}


def example() -> xr.Dataset:
    """Forty persons who took section 6 of the Law School Admission Test (Bock & Lieberman 1970)."""
    # how many of a thousand persons gave each pattern of answers, from 00000 to 11111
    counts = [3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15]
    counts += [10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298]
    patterns = np.repeat(np.arange(32), counts)
    some = np.random.default_rng(1).choice(patterns, 40, replace=False)
    y = some[:, None] >> np.arange(4, -1, -1) & 1
    return xr.Dataset(
        {"y": (("dataset", "person", "item"), y[None])}, coords={"dataset": ["persons"]}
    )
