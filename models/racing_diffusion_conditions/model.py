"""Racing diffusion with drifts by condition: congruent and incongruent trials of one person."""

import numpy as np
import pymc as pm
import xarray as xr

import pmcl
from pmcl import models

exchangeable = "trial"
_RACE = models.find("racing_diffusion").module


def model(trials: int = 180) -> pm.Model:
    """Build the model; the covariate `incongruent` is 0 or 1, `y` the signed response times."""
    coords = {"trial": range(trials), "condition": ["congruent", "incongruent"]}
    with pm.Model(coords=coords) as built:
        incongruent = pm.Data("incongruent", np.arange(trials) % 2, dims="trial")
        boundary = pm.LogNormal("boundary", np.log(1.2), 0.4)
        # Both conditions share what the person is able to; the difference is the task's effect.
        correct = pm.LogNormal("correct", np.log(3), 0.4)
        effect = pm.Normal("effect", 0, 0.3)
        error = pm.LogNormal("error", np.log(1), 0.6, dims="condition")
        drift = pm.Deterministic(
            "drift", pm.math.stack([correct, correct * pm.math.exp(-effect)]), dims="condition"
        )
        t0 = pm.LogNormal("t0", np.log(0.25), 0.4)
        pm.CustomDist(
            "y",
            *(boundary, drift[incongruent], error[incongruent], t0),
            dist=_RACE.race,
            logp=_RACE.log_density,
            observed=np.ones(trials),
            dims="trial",
        )
    return built


def network() -> pmcl.DeepSet:
    """Return a summary that sees where response times begin: a plain one sees that late."""
    return pmcl.DeepSet(frequencies=8)


def covariates() -> dict:
    """Simulated trials: of either condition with equal probability."""
    return {"incongruent": pm.Bernoulli.dist(0.5)}


def example() -> xr.Dataset:
    """Four made-up persons with 90 trials of each condition; the effect grows."""
    rng = np.random.default_rng(0)
    incongruent = np.arange(180) % 2
    data = []
    for i, effect in enumerate((0.0, 0.1, 0.3, 0.6)):
        drift = np.where(incongruent, 3.0 * np.exp(-effect), 3.0)
        drawn = _RACE.race(1.2, drift, np.ones(180), 0.25, size=(180,))
        data.append(pm.draw(drawn, random_seed=rng.integers(2**31) + i))
    return xr.Dataset(
        {
            "y": (("dataset", "trial"), np.stack(data)),
            "incongruent": (("dataset", "trial"), np.tile(incongruent, (4, 1))),
        },
        coords={"dataset": ["none", "small", "usual", "large"]},
    )
