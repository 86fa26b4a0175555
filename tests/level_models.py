"""Multilevel models of many kinds, and data for them."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

SIX = np.repeat(np.arange(6), 4)  # rows of six groups
SCHOOLS = np.array([0, 0, 1, 1, 1, 2, 2, 3])  # of eight classes
PUPILS = np.repeat(np.arange(8), 3)


def eight_schools(groups: int = 8, *, centred: bool = True) -> pm.Model:
    with pm.Model(coords={"school": range(groups)}) as model:
        sigma = pm.Data("sigma", np.ones(groups), dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        if centred:
            theta = pm.Normal("theta", mu, tau, dims="school")
        else:
            raw = pm.Normal("raw", dims="school")
            theta = pm.Deterministic("theta", mu + tau * raw, dims="school")
        pm.Normal("y", theta, sigma, observed=np.zeros(groups), dims="school")
    return model


def slopes(*, correlated: bool = False) -> pm.Model:
    x = np.tile([-1.0, 0.0, 1.0, 2.0], 6)
    with pm.Model(coords={"subject": range(6), "effect": ["a", "b"], "row": range(24)}) as model:
        mean, sigma = pm.Normal("mean", 0, 2, dims="effect"), pm.HalfNormal("sigma", 1)
        if correlated:
            sd = pm.HalfNormal.dist(1.0, shape=2)
            chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
            both = pm.MvNormal("both", mean, chol=chol, dims=("subject", "effect"))
            eta = both[SIX, 0] + both[SIX, 1] * x
        else:
            tau = pm.HalfNormal("tau", 1, dims="effect")
            a = pm.Normal("a", mean[0], tau[0], dims="subject")
            raw = pm.Normal("raw", dims="subject")
            eta = a[SIX] + (mean[1] + tau[1] * raw[SIX]) * x
        pm.Normal("y", eta, sigma, observed=np.zeros(24), dims="row")
    return model


def counties() -> pm.Model:
    """Six counties with a covariate; the rows' counties come with the data."""
    with pm.Model(coords={"county": range(6), "row": range(10)}) as model:
        county = pm.Data("in_county", np.zeros(10, int), dims="row")
        uranium = pm.Data("uranium", np.zeros(6), dims="county")
        at, slope = pm.Normal("at", 0, 2), pm.Normal("slope", 0, 2)
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
        a = pm.Normal("a", at + slope * uranium, tau, dims="county")
        pm.Normal("y", a[county], sigma, observed=np.zeros(10), dims="row")
    return model


def counts(kind: str = "poisson") -> pm.Model:
    with pm.Model(coords={"site": range(6), "row": range(24)}) as model:
        mean, tau = pm.Normal("mean", 0, 1), pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, tau, dims="site")
        if kind == "poisson":
            pm.Poisson("y", pt.exp(mean + u[SIX]), observed=np.zeros(24, int), dims="row")
        else:
            p = pm.math.sigmoid(mean + u[SIX])
            pm.Bernoulli("y", p, observed=np.zeros(24, int), dims="row")
    return model


def nested() -> pm.Model:
    """Classes of schools: a school with its classes is a group."""
    coords = {"school": range(4), "class": range(8), "pupil": range(24)}
    with pm.Model(coords=coords) as model:
        mu = pm.Normal("mu", 0, 3)
        taus = pm.HalfNormal("of_schools", 1), pm.HalfNormal("of_classes", 1)
        school = pm.Normal("school_mean", mu, taus[0], dims="school")
        group = pm.Normal("class_mean", school[SCHOOLS], taus[1], dims="class")
        pm.Normal("y", group[PUPILS], 1, observed=np.zeros(24), dims="pupil")
    return model


def items(number: int = 4, persons: int = 40) -> pm.Model:
    """Every person meets every item: crossed."""
    coords = {"person": range(persons), "item": range(number)}
    with pm.Model(coords=coords) as model:
        tau = pm.HalfNormal("tau", 1)
        ability = pm.Normal("ability", 0, tau, dims="person")
        difficulty = pm.Normal("difficulty", 0, 1, dims="item")
        logit = ability[:, None] - difficulty
        zeros = np.zeros((persons, number), int)
        pm.Bernoulli("y", logit_p=logit, observed=zeros, dims=("person", "item"))
    return model


def walk() -> pm.Model:
    """A chain: no groups."""
    with pm.Model(coords={"time": range(30)}) as model:
        sigma = pm.HalfNormal("sigma", 1)
        level = pm.GaussianRandomWalk(
            "level", sigma=sigma, init_dist=pm.Normal.dist(0, 1), dims="time"
        )
        pm.Normal("y", level, 1, observed=np.zeros(30), dims="time")
    return model


def regression() -> pm.Model:
    x = np.random.default_rng(0).normal(size=(20, 3))
    with pm.Model(coords={"row": range(20), "predictor": range(3)}) as model:
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        pm.Normal("y", x @ beta, pm.HalfNormal("s", 1), observed=np.zeros(20), dims="row")
    return model


def capped(schools: int) -> pm.Model:
    """Scores above 100 count half: groups are normal near the initial point, and not far away."""
    with pm.Model(coords={"school": range(schools)}) as model:
        mu, tau = pm.Normal("mu", 0, 60), pm.HalfNormal("tau", 20)
        a = pm.Normal("a", mu, tau, dims="school")
        score = pm.math.minimum(a, 50 + a / 2)
        pm.Normal("y", score, 5, observed=np.zeros(schools), dims="school")
    return model
