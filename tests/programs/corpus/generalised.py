"""Linear models and generalised ones, of many families."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _x(n: int = 60) -> np.ndarray:
    return np.random.default_rng(1).normal(size=n)


def linear_regression() -> pm.Model:
    x = np.linspace(0, 1, 100)
    y = 1 + 2 * x + _rng().normal(0, 0.5, 100)
    with pm.Model() as model:
        sigma = pm.HalfCauchy("sigma", beta=10)
        intercept = pm.Normal("Intercept", 0, sigma=20)
        slope = pm.Normal("slope", 0, sigma=20)
        pm.Normal("y", mu=intercept + slope * x, sigma=sigma, observed=y)
    return model


def out_of_sample_predictions() -> pm.Model:
    x1, x2 = _rng().normal(size=(2, 80))
    p = 1 / (1 + np.exp(0.5 - x1 + 0.7 * x2))
    with pm.Model(coords={"coeffs": ["Intercept", "x1", "x2", "x1:x2"]}) as model:
        X = pm.Data("X", np.c_[np.ones(80), x1, x2, x1 * x2])
        y = pm.Data("y", _rng(1).binomial(1, p))
        b = pm.Normal("b", mu=0, sigma=1, dims="coeffs")
        chance = pm.Deterministic("p", pm.math.sigmoid(pm.math.dot(X, b)))
        pm.Bernoulli("obs", p=chance, observed=y)
    return model


def robust_regression() -> pm.Model:
    x = np.linspace(0, 1, 60)
    y = 1 + 2 * x + _rng().normal(0, 0.3, 60)
    y[[5, 20]] += 6
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=a + b * x, sigma=pm.HalfNormal("s", 2), observed=y)
    return model


def logistic_regression() -> pm.Model:
    x = _x(100)
    y = _rng().binomial(1, 1 / (1 + np.exp(-(0.3 + x))))
    with pm.Model(coords={"obs_id": range(100)}) as model:
        data = pm.Data("x", x, dims="obs_id")
        eta = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * data
        pm.Bernoulli("y", logit_p=eta, observed=y, dims="obs_id")
    return model


def binomial_regression() -> pm.Model:
    x, n = np.linspace(-1, 1, 30), np.full(30, 20)
    y = _rng().binomial(n, 1 / (1 + np.exp(-(0.7 + 0.3 * x))))
    with pm.Model(coords={"observation": range(30)}) as model:
        x_ = pm.Data("x", x, dims="observation")
        n_ = pm.Data("n", n, dims="observation")
        mu = pm.Normal("beta0", 0, 1) + pm.Normal("beta1", 0, 1) * x_
        p = pm.Deterministic("p", pm.math.invlogit(mu), dims="observation")
        pm.Binomial("y", n=n_, p=p, observed=y, dims="observation")
    return model


def poisson_regression_with_interaction() -> pm.Model:
    alcohol, meds = np.repeat([0, 1, 0, 1], 25), np.repeat([0, 0, 1, 1], 25)
    y = _rng().poisson(np.exp(0.2 + 1.5 * alcohol - 0.5 * meds + 0.4 * alcohol * meds))
    with pm.Model() as model:
        b = [pm.Normal(f"b{i}", 0, sigma=10) for i in range(4)]
        theta = b[0] + b[1] * alcohol + b[2] * meds + b[3] * alcohol * meds
        pm.Poisson("y", mu=pt.exp(theta), observed=y)
    return model


def negative_binomial_regression() -> pm.Model:
    x = _x(100)
    y = _rng().negative_binomial(3, 3 / (3 + np.exp(1 + 0.5 * x)))
    with pm.Model() as model:
        mu = pt.exp(pm.Normal("a", 0, 2) + pm.Normal("b", 0, 1) * x)
        pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 0.5), observed=y)
    return model


def gamma_regression() -> pm.Model:
    x = _x(80)
    y = _rng().gamma(3, np.exp(0.5 + 0.4 * x) / 3)
    with pm.Model() as model:
        mu = pt.exp(pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x)
        alpha = pm.HalfNormal("alpha", 5)
        pm.Gamma("y", alpha=alpha, beta=alpha / mu, observed=y)
    return model


def beta_regression() -> pm.Model:
    x = _x(80)
    m = 1 / (1 + np.exp(-(0.2 + 0.6 * x)))
    with pm.Model() as model:
        mu = pm.math.invlogit(pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x)
        kappa = pm.HalfNormal("kappa", 20)
        y = _rng().beta(m * 15, (1 - m) * 15)
        pm.Beta("y", alpha=mu * kappa, beta=(1 - mu) * kappa, observed=y)
    return model


def softmax_regression() -> pm.Model:
    rng = _rng()
    x = rng.normal(size=(90, 2))
    w = np.array([[0, 1, -1], [0, -0.5, 1.0]])
    p = np.exp(x @ w)
    y = np.array([rng.choice(3, p=row / row.sum()) for row in p])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, sigma=2, shape=(2, 2))
        mu = pt.concatenate([pt.zeros((90, 1)), x @ beta], axis=1)
        pm.Categorical("y", p=pm.math.softmax(mu, axis=1), observed=y)
    return model


def variable_variance() -> pm.Model:
    x = np.linspace(0, 2, 100)
    y = 1 + x + _rng().normal(0, np.exp(-1 + 0.8 * x))
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 5) + pm.Normal("b", 0, 5) * x
        sigma = pt.exp(pm.Normal("c", 0, 2) + pm.Normal("d", 0, 2) * x)
        pm.Normal("y", mu, sigma, observed=y)
    return model


def quantile_regression() -> pm.Model:
    x = np.linspace(0, 1, 80)
    y = 1 + x + _rng().exponential(0.5, 80)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 5) + pm.Normal("b", 0, 5) * x
        b = 1 / pm.HalfNormal("scale", 1)
        pm.AsymmetricLaplace("y", mu=mu, b=b, q=0.8, observed=y)
    return model


def horseshoe_regression() -> pm.Model:
    X = _rng().normal(size=(60, 10))
    y = X[:, 0] * 2 - X[:, 3] + _rng(1).normal(size=60)
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 0.1)
        lam = pm.HalfCauchy("lam", 1, shape=10)
        raw = pm.Normal("raw", shape=10)
        beta = pm.Deterministic("beta", raw * lam * tau)
        pm.Normal("y", X @ beta, pm.HalfNormal("sigma", 2), observed=y)
    return model


def zero_inflated_negative_binomial() -> pm.Model:
    n = _rng().negative_binomial(2, 0.3, 150) * _rng(1).binomial(1, 0.7, 150)
    with pm.Model() as model:
        psi, mu = pm.Beta("psi", 2, 2), pm.Gamma("mu", 2, 0.5)
        alpha = pm.Exponential("alpha", 0.5)
        pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=n)
    return model


def truncated_regression() -> pm.Model:
    x = _x(200)
    y = 1 + x + _rng().normal(size=200)
    keep = (y > -1) & (y < 3)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x[keep]
        dist = pm.Normal.dist(mu, pm.HalfNormal("s", 2))
        pm.Truncated("y", dist, lower=-1, upper=3, observed=y[keep])
    return model


def censored_regression() -> pm.Model:
    x = _x(100)
    y = np.clip(1 + x + _rng().normal(size=100), -1, 2)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x
        pm.Censored("y", pm.Normal.dist(mu, pm.HalfNormal("s", 2)), lower=-1, upper=2, observed=y)
    return model


def ordered_probit() -> pm.Model:
    y = _rng().choice(5, 200, p=[0.1, 0.2, 0.4, 0.2, 0.1])
    with pm.Model() as model:
        cuts = pm.Normal(
            "cuts", mu=np.linspace(-1, 1, 4), sigma=1, shape=4,
            transform=pm.distributions.transforms.ordered,
        )  # fmt: skip
        pm.OrderedProbit("y", eta=0.0, sigma=1.0, cutpoints=cuts, observed=y)
    return model


def errors_in_variables() -> pm.Model:
    true = _rng().normal(size=40)
    seen = true + _rng(1).normal(0, 0.3, 40)
    y = 1 + 2 * true + _rng(2).normal(0, 0.5, 40)
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=40)
        pm.Normal("seen", x, 0.3, observed=seen)
        mu = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x
        pm.Normal("y", mu, pm.HalfNormal("s", 1), observed=y)
    return model


def flat_priors() -> pm.Model:
    x = _x(40)
    y = 2 + x + _rng().normal(size=40)
    with pm.Model() as model:
        mu = pm.Flat("a") + pm.Flat("b") * x
        pm.Normal("y", mu, pm.HalfFlat("s"), observed=y)
    return model
