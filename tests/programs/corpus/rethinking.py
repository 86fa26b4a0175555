"""Models of a course in statistics that is widely taught: index variables, multilevel models."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def globe_tossing() -> pm.Model:
    with pm.Model() as model:
        pm.Binomial("w", n=9, p=pm.Uniform("p", 0, 1), observed=6)
    return model


def heights_by_weight() -> pm.Model:
    weight = _rng().normal(45, 6.5, 120)
    height = 113 + 0.9 * weight + _rng(1).normal(0, 5, 120)
    with pm.Model() as model:
        a = pm.Normal("a", mu=178, sigma=20)
        b = pm.LogNormal("b", mu=0, sigma=1)
        sigma = pm.Uniform("sigma", 0, 50)
        mu = pm.Deterministic("mu", a + b * (weight - weight.mean()))
        pm.Normal("height", mu=mu, sigma=sigma, observed=height)
    return model


def divorce_rate() -> pm.Model:
    age = _rng().normal(size=50)
    marriage = -0.7 * age + _rng(1).normal(0, 0.7, 50)
    d = -0.6 * age + _rng(2).normal(0, 0.8, 50)
    with pm.Model() as model:
        a, bM, bA = pm.Normal("a", 0, 0.2), pm.Normal("bM", 0, 0.5), pm.Normal("bA", 0, 0.5)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("divorce", a + bM * marriage + bA * age, sigma, observed=d)
    return model


def admissions() -> pm.Model:
    gender, dept = np.tile([0, 1], 6), np.repeat(np.arange(6), 2)
    n = _rng().integers(50, 500, 12)
    y = _rng(1).binomial(n, 1 / (1 + np.exp(-np.linspace(1, -2, 6)[dept])))
    with pm.Model() as model:
        a, delta = pm.Normal("a", 0, 1.5, shape=2), pm.Normal("delta", 0, 1.5, shape=6)
        p = pm.math.invlogit(a[gender] + delta[dept])
        pm.Binomial("admit", p=p, n=n, observed=y)
    return model


def chimpanzees() -> pm.Model:
    actor, treatment = np.repeat(np.arange(7), 24), np.tile(np.arange(4), 42)
    p = 1 / (1 + np.exp(-_rng().normal(0.5, 1, 7)[actor]))
    with pm.Model() as model:
        a_bar, sigma = pm.Normal("a_bar", 0, 1.5), pm.Exponential("sigma_a", 1)
        z = pm.Normal("z", 0, 1, shape=7)
        b = pm.Normal("b", 0, 0.5, shape=4)
        eta = (a_bar + z * sigma)[actor] + b[treatment]
        pm.Bernoulli("pulled_left", logit_p=eta, observed=_rng(1).binomial(1, p))
    return model


def oceanic_tools() -> pm.Model:
    population = np.exp(_rng().uniform(7, 12, 10))
    contact = _rng(1).integers(0, 2, 10)
    y = _rng(2).poisson(np.exp(0.9) * population**0.35)
    with pm.Model() as model:
        a = pm.Normal("a", 1, 1, shape=2)
        b = pm.Exponential("b", 1, shape=2)
        g = pm.Exponential("g", 1)
        lam = pt.exp(a[contact]) * population ** b[contact] / g
        pm.Poisson("tools", lam, observed=y)
    return model


def reed_frogs() -> pm.Model:
    n = np.repeat([10, 25, 35], 16)
    y = _rng().binomial(n, 1 / (1 + np.exp(-_rng(1).normal(1.3, 1.6, 48))))
    with pm.Model() as model:
        a_bar, sigma = pm.Normal("a_bar", 0, 1.5), pm.Exponential("sigma", 1)
        a = pm.Normal("a", a_bar, sigma, shape=48)
        pm.Binomial("survived", n=n, logit_p=a, observed=y)
    return model


def trolley() -> pm.Model:
    action = _rng().integers(0, 2, 200)
    latent = -0.7 * action + _rng(1).logistic(size=200)
    y = np.digitize(latent, [-2, -1, 0, 0.7, 1.5, 2.2])
    with pm.Model() as model:
        cutpoints = pm.Normal(
            "cutpoints", 0, 1.5, transform=pm.distributions.transforms.ordered, shape=6,
            initval=np.arange(6) - 2.5,
        )  # fmt: skip
        phi = pm.Normal("bA", 0, 0.5) * action
        pm.OrderedLogistic("R", phi, cutpoints, observed=y)
    return model


def monks() -> pm.Model:
    y = _rng().poisson(1.0, 365) * _rng(1).binomial(1, 0.8, 365)
    with pm.Model() as model:
        ap, al = pm.Normal("ap", -1.5, 1), pm.Normal("al", 1, 0.5)
        p, lam = pm.math.invlogit(ap), pm.math.exp(al)
        pm.ZeroInflatedPoisson("y", psi=1 - p, mu=lam, observed=y)
    return model


def cafes() -> pm.Model:
    cafe, afternoon = np.repeat(np.arange(20), 10), np.tile([0, 1], 100)
    effect = _rng().multivariate_normal([3.5, -1], [[1, -0.35], [-0.35, 0.25]], 20)
    wait = effect[cafe, 0] + effect[cafe, 1] * afternoon + _rng(1).normal(0, 0.5, 200)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol_cov", n=2, eta=2, sd_dist=pm.Exponential.dist(1), compute_corr=True
        )
        a, b = pm.Normal("a", 5, 2), pm.Normal("b", -1, 0.5)
        z = pm.Normal("z", shape=(20, 2))
        both = pt.stack([a, b]) + z @ chol.T
        mu = both[cafe, 0] + both[cafe, 1] * afternoon
        pm.Normal("wait", mu, pm.Exponential("sigma", 1), observed=wait)
    return model


def islands_in_space() -> pm.Model:
    place = _rng().uniform(0, 4, (10, 2))
    distance = np.linalg.norm(place[:, None] - place, axis=-1)
    y = _rng(1).poisson(np.exp(3 + 0.3 * _rng(2).normal(size=10)))
    with pm.Model() as model:
        a = pm.Exponential("a", 0.1)
        etasq, rhosq = pm.Exponential("etasq", 2), pm.Exponential("rhosq", 0.5)
        K = etasq * pt.exp(-rhosq * distance**2) + np.eye(10) * 0.01
        k = pm.MvNormal("k", np.zeros(10), cov=K)
        pm.Poisson("tools", a * pt.exp(k), observed=y)
    return model


def ruggedness() -> pm.Model:
    africa, rugged = _rng().integers(0, 2, 170), _rng(1).uniform(0, 1, 170)
    gdp = 1 + np.where(africa, 0.1, -0.15) * (rugged - 0.2) + _rng(2).normal(0, 0.1, 170)
    with pm.Model(coords={"cid": ["other", "africa"]}) as model:
        a, b = pm.Normal("a", 1, 0.1, dims="cid"), pm.Normal("b", 0, 0.3, dims="cid")
        mu = a[africa] + b[africa] * (rugged - 0.215)
        pm.Normal("log_gdp", mu, pm.Exponential("sigma", 1), observed=gdp)
    return model


def imputed_brains() -> pm.Model:
    brain = _rng().normal(size=29)
    brain[[2, 5, 11]] = np.nan
    mass = _rng(1).normal(size=29)
    with pm.Model() as model:
        B = pm.Normal("B", pm.Normal("nu", 0, 0.5), 1, observed=brain)
        mu = pm.Normal("a", 0, 0.5) + pm.Normal("bB", 0, 0.5) * B
        pm.Normal("K", mu, pm.Exponential("sigma", 1), observed=mass)
    return model


def splines() -> pm.Model:
    t = np.linspace(0, 1, 150)
    knots = np.linspace(0, 1, 8)
    basis = np.maximum(0, 1 - np.abs(t[:, None] - knots) * 7)
    y = 100 + np.sin(6 * t) * 3 + _rng().normal(0, 1, 150)
    with pm.Model(coords={"splines": range(8)}) as model:
        a = pm.Normal("a", 100, 5)
        w = pm.Normal("w", mu=0, sigma=3, dims="splines")
        mu = pm.Deterministic("mu", a + pm.math.dot(basis, w.T))
        pm.Normal("D", mu=mu, sigma=pm.Exponential("sigma", 1), observed=y)
    return model
