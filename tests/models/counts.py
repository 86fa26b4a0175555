"""Counts and proportions."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

ROWS = 20
RADIUS = (4.25 - 1.68) / 2 / 12  # of the hole less the ball's, in feet


def rat_tumours() -> pm.Model:
    """Gelman et al. (2013), chapter 5: tumours in groups of rats, the groups' rates summed out."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        rats = pm.Data("rats", np.full(ROWS, 20), dims="obs")
        mean = pm.Beta("mean", 2, 8)
        strength = pm.LogNormal("strength", 2, 1)
        pm.BetaBinomial(
            "tumours", n=rats, alpha=mean * strength, beta=(1 - mean) * strength,
            observed=np.zeros(ROWS, int), dims="obs",
        )  # fmt: skip
    return model


def litters() -> dict[str, Any]:
    return {"rats": pm.DiscreteUniform.dist(10, 50)}


def golf_putting() -> pm.Model:
    """Gelman & Nolan (2002): a putt succeeds where the angle is small enough."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        feet = pm.Data("feet", np.full(ROWS, 5.0), dims="obs")
        tries = pm.Data("tries", np.full(ROWS, 100), dims="obs")
        sigma = pm.HalfNormal("sigma", 0.1)
        p = 2 * pm.math.invprobit(pt.arcsin(RADIUS / feet) / sigma) - 1
        pm.Binomial("made", tries, p, observed=np.zeros(ROWS, int), dims="obs")
    return model


def putts() -> dict[str, Any]:
    return {"feet": pm.Uniform.dist(2, 20), "tries": pm.DiscreteUniform.dist(50, 300)}


def fish() -> pm.Model:
    """Fish caught by visitors of a park, some of whom did not fish: a zero-inflated regression."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        people = pm.Data("people", np.ones(ROWS), dims="obs")
        psi = pm.Beta("psi", 2, 2)
        intercept = pm.Normal("intercept", 0, 0.7)
        slope = pm.Normal("slope", 0, 0.3)
        rate = pm.math.exp(intercept + slope * people)
        pm.ZeroInflatedPoisson("fish", psi, rate, observed=np.zeros(ROWS, int), dims="obs")
    return model


def visits() -> dict[str, Any]:
    return {"people": pm.DiscreteUniform.dist(1, 4)}


def multinomial() -> pm.Model:
    """Votes for three parties in several places."""
    with pm.Model(coords={"obs": range(ROWS), "party": ["a", "b", "c"]}) as model:
        share = pm.Dirichlet("share", np.ones(3), dims="party")
        votes = np.tile([10, 5, 5], (ROWS, 1))
        pm.Multinomial("votes", n=20, p=share, observed=votes, dims=("obs", "party"))
    return model


def dose_response() -> pm.Model:
    """Racine et al. (1986): deaths of animals by dose, with a lower asymptote."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        dose = pm.Data("dose", np.zeros(ROWS), dims="obs")
        middle = pm.Normal("middle")
        slope = pm.LogNormal("slope", 1, 0.5)
        base = pm.Beta("base", 1, 9)
        p = base + (1 - base) * pm.math.sigmoid(slope * (dose - middle))
        pm.Binomial("deaths", 10, p, observed=np.zeros(ROWS, int), dims="obs")
    return model


def doses() -> dict[str, Any]:
    return {"dose": pm.Normal.dist(0, 1)}


def capture_recapture() -> pm.Model:
    """Captures of a closed population in five nights; animals never there are summed out."""
    with pm.Model(coords={"obs": range(60)}) as model:
        there = pm.Beta("there", 1, 1)
        caught = pm.Beta("caught", 2, 3)
        zeros = np.zeros(60, int)
        pm.ZeroInflatedBinomial("captures", there, 5, caught, observed=zeros, dims="obs")
    return model


def exposure() -> pm.Model:
    """Accidents by kilometres driven."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        x = pm.Data("x", np.zeros(ROWS), dims="obs")
        log_km = pm.Data("log_km", np.zeros(ROWS), dims="obs")
        intercept = pm.Normal("intercept", 0, 0.7)
        slope = pm.Normal("slope", 0, 0.5)
        rate = pm.math.exp(intercept + slope * x + log_km)
        pm.Poisson("accidents", rate, observed=np.zeros(ROWS, int), dims="obs")
    return model


def exposures() -> dict[str, Any]:
    return {"x": pm.Normal.dist(0, 1), "log_km": pm.Normal.dist(1, 0.5)}
