"""Groups and their spread; item response."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


_EFFECTS = np.array([26.0, 9.0, -2.0, 8.0, -1.0, 2.0, 17.0, 11.0])
_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools_not_centred() -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, sigma=5), pm.HalfCauchy("tau", beta=5)
        theta = pm.Deterministic("theta", mu + tau * pm.Normal("eta", 0, 1, shape=8))
        pm.Normal("obs", theta, sigma=_ERRORS, observed=_EFFECTS)
    return model


def schools_centred() -> pm.Model:
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, sigma=5), pm.HalfCauchy("tau", beta=5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("obs", theta, sigma=_ERRORS, observed=_EFFECTS, dims="school")
    return model


def radon() -> pm.Model:
    county, floor = _rng().integers(0, 15, 150), _rng(1).binomial(1, 0.2, 150)
    y = _rng(2).normal(1.5, 0.4, 15)[county] - 0.7 * floor + _rng(3).normal(0, 0.7, 150)
    coords = {"county": [f"c{i}" for i in range(15)], "obs_id": np.arange(150)}
    with pm.Model(coords=coords) as model:
        floor_idx = pm.Data("floor_idx", floor, dims="obs_id")
        county_idx = pm.Data("county_idx", county, dims="obs_id")
        mu_a, sigma_a = pm.Normal("mu_a", 0, 10), pm.Exponential("sigma_a", 1)
        alpha = pm.Normal("alpha", mu=mu_a, sigma=sigma_a, dims="county")
        beta = pm.Normal("beta", 0, 10)
        mu = alpha[county_idx] + beta * floor_idx
        pm.Normal("y", mu=mu, sigma=pm.Exponential("sigma", 1), observed=y, dims="obs_id")
    return model


def rats() -> pm.Model:
    age = np.array([8.0, 15, 22, 29, 36])
    y = 240 + _rng().normal(0, 12, (30, 1)) + 6 * (age - 22) + _rng(1).normal(0, 6, (30, 5))
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 240, 50), pm.Normal("mu_b", 6, 5)
        s_a, s_b = pm.HalfNormal("s_a", 20), pm.HalfNormal("s_b", 2)
        a = pm.Normal("a", mu_a, s_a, shape=(30, 1))
        b = pm.Normal("b", mu_b, s_b, shape=(30, 1))
        pm.Normal("y", a + b * (age - 22), pm.HalfNormal("s", 10), observed=y)
    return model


def rat_tumours() -> pm.Model:
    n = _rng().integers(10, 50, 40)
    y = _rng(1).binomial(n, _rng(2).beta(2, 12, 40))

    def logp_ab(value: pt.TensorVariable) -> pt.TensorVariable:
        return pt.log(pt.pow(pt.sum(value), -5 / 2))

    with pm.Model() as model:
        ab = pm.HalfNormal("ab", sigma=10, shape=2)
        pm.Potential("p(a, b)", logp_ab(ab))
        theta = pm.Beta("theta", alpha=ab[0], beta=ab[1], shape=40)
        pm.Binomial("p", p=theta, n=n, observed=y)
    return model


def batting_averages() -> pm.Model:
    at_bats = np.full(18, 45)
    hits = _rng().binomial(at_bats, _rng(1).beta(27, 73, 18))
    with pm.Model(coords={"player": range(18)}) as model:
        phi = pm.Uniform("phi", lower=0.0, upper=1.0)
        kappa_log = pm.Exponential("kappa_log", lam=1.5)
        kappa = pm.Deterministic("kappa", pt.exp(kappa_log))
        theta = pm.Beta("theta", alpha=phi * kappa, beta=(1.0 - phi) * kappa, dims="player")
        pm.Binomial("y", n=at_bats, p=theta, dims="player", observed=hits)
    return model


def rasch() -> pm.Model:
    ability, difficulty = _rng().normal(size=25), _rng(1).normal(size=8)
    y = _rng(2).binomial(1, 1 / (1 + np.exp(difficulty - ability[:, None])))
    with pm.Model(coords={"person": range(25), "item": range(8)}) as model:
        theta = pm.Normal("theta", dims="person")
        b = pm.Normal("b", 0, 2, dims="item")
        eta = theta[:, None] - b
        pm.Bernoulli("y", logit_p=eta, observed=y, dims=("person", "item"))
    return model


def two_parameter_items() -> pm.Model:
    person, item = np.repeat(np.arange(20), 6), np.tile(np.arange(6), 20)
    ability, difficulty = _rng().normal(size=20), _rng(1).normal(size=6)
    y = _rng(2).binomial(1, 1 / (1 + np.exp(difficulty[item] - ability[person])))
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=20)
        a, b = pm.LogNormal("a", 0, 0.3, shape=6), pm.Normal("b", shape=6)
        pm.Bernoulli("y", logit_p=a[item] * (theta[person] - b[item]), observed=y)
    return model


def ab_test() -> pm.Model:
    with pm.Model() as model:
        p = pm.Beta("p", 10, 90, shape=2)
        pm.Binomial("y", n=np.array([1000, 1000]), p=p, observed=np.array([110, 131]))
        pm.Deterministic("uplift", p[1] / p[0] - 1)
    return model


def two_groups() -> pm.Model:
    one, two = _rng().normal(101, 6, 40), _rng(1).normal(100, 2, 35)
    both = np.concatenate([one, two])
    with pm.Model() as model:
        mean = pm.Normal("mean", both.mean(), both.std() * 2, shape=2)
        std = pm.Uniform("std", 1, 10, shape=2)
        nu = pm.Deterministic("nu", pm.Exponential("nu_minus_one", 1 / 29.0) + 1)
        for i, y in enumerate((one, two)):
            pm.StudentT(f"group{i}", nu=nu, mu=mean[i], lam=std[i] ** -2, observed=y)
    return model
