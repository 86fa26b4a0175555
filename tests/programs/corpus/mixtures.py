"""Mixtures, and densities that somebody wrote."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def gaussian_mixture() -> pm.Model:
    y = np.concatenate([_rng().normal(-3, 0.5, 60), _rng(1).normal(2, 1, 90)])
    with pm.Model(coords={"cluster": range(2)}) as model:
        mu = pm.Normal(
            "mu", 0, 5, dims="cluster", initval=[-4, 4],
            transform=pm.distributions.transforms.ordered,
        )  # fmt: skip
        sigma = pm.HalfNormal("sigma", 2, dims="cluster")
        w = pm.Dirichlet("w", np.ones(2), dims="cluster")
        pm.NormalMixture("x", w=w, mu=mu, sigma=sigma, observed=y)
    return model


def mixture_by_indicators() -> pm.Model:
    y = np.concatenate([_rng().normal(-2, 1, 30), _rng(1).normal(2, 1, 30)])
    with pm.Model() as model:
        p = pm.Dirichlet("p", a=np.ones(2))
        means = pm.Normal("means", mu=[-1, 1], sigma=2, shape=2)
        category = pm.Categorical("category", p=p, shape=60)
        pm.Normal("points", mu=means[category], sigma=1, observed=y)
    return model


def dirichlet_process() -> pm.Model:
    y = np.concatenate([_rng().normal(-2, 0.5, 50), _rng(1).normal(1.5, 0.5, 50)])
    k = 5
    with pm.Model() as model:
        beta = pm.Beta("beta", 1, pm.Gamma("alpha", 1, 1), shape=k)
        rest = pt.concatenate([[1.0], pt.extra_ops.cumprod(1 - beta)[:-1]])
        w = pm.Deterministic("w", beta * rest)
        tau = pm.Gamma("tau", 1, 1, shape=k)
        mu = pm.Normal("mu", 0, 2, shape=k)
        pm.NormalMixture("obs", w / w.sum(), mu, tau=tau, observed=y)
    return model


def poisson_mixture() -> pm.Model:
    y = np.concatenate([_rng().poisson(2, 60), _rng(1).poisson(12, 60)])
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 0.3, shape=2)
        pm.Potential("order", pt.switch(rate[0] < rate[1], 0.0, -np.inf))
        w = pm.Dirichlet("w", np.ones(2))
        pm.Mixture("y", w=w, comp_dists=pm.Poisson.dist(rate, shape=2), observed=y)
    return model


def density_only_likelihood() -> pm.Model:
    y = _rng().gumbel(1, 2, 80)

    def logp(value, mu, beta):  # noqa: ANN001, ANN202
        z = (value - mu) / beta
        return -z - pt.exp(-z) - pt.log(beta)

    with pm.Model() as model:
        mu, beta = pm.Normal("mu", 0, 5), pm.HalfNormal("beta", 5)
        pm.CustomDist("y", mu, beta, logp=logp, observed=y)
    return model


def likelihood_as_potential() -> pm.Model:
    x = _rng().normal(size=50)
    y = _rng(1).binomial(1, 1 / (1 + np.exp(-x)))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        p = pm.math.invlogit(a + b * x)
        pm.Potential("likelihood", (y * pt.log(p) + (1 - y) * pt.log(1 - p)).sum())
    return model


def mean_by_simulation() -> pm.Model:
    y = _rng().normal(1, 2, 100)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.HalfNormal("b", 1)
        pm.Simulator(
            "s", lambda rng, a, b, size: rng.normal(a, b, size), a, b, sum_stat="sort",
            epsilon=1, observed=y,
        )  # fmt: skip
    return model
