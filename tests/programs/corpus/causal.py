"""Effects of treatments and of media; choices that are learned."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def difference_in_differences() -> pm.Model:
    t, group = np.tile(np.arange(10), 8), np.repeat(np.arange(8) % 2, 10)
    treated = group * (t >= 5)
    y = 1 + 0.5 * group + 0.2 * t + 1.5 * treated + _rng().normal(0, 0.4, 80)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=3)
        effect = pm.Normal("effect", 0, 2)
        mu = b[0] + b[1] * group + b[2] * t + effect * treated
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=y)
    return model


def regression_discontinuity() -> pm.Model:
    x = _rng().uniform(-1, 1, 100)
    y = 1 + x + 0.8 * (x > 0) + _rng(1).normal(0, 0.3, 100)
    with pm.Model() as model:
        x_ = pm.Data("x", x, dims="obs_id")
        treated = pm.Data("treated", (x > 0).astype(float), dims="obs_id")
        mu = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x_ + pm.Normal("d", 0, 1) * treated
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=y, dims="obs_id")
    return model


def synthetic_control() -> pm.Model:
    X = np.cumsum(_rng().normal(size=(40, 4)), axis=0)
    y = X @ [0.5, 0.3, 0.2, 0.0] + _rng(1).normal(0, 0.3, 40)
    coords = {"obs_ind": range(40), "coeffs": list("abcd"), "treated_units": ["u"]}
    with pm.Model(coords=coords) as model:
        X_ = pm.Data("X", X, dims=["obs_ind", "coeffs"])
        y_ = pm.Data("y", y[:, None], dims=["obs_ind", "treated_units"])
        beta = pm.Dirichlet("beta", a=np.ones((1, 4)), dims=["treated_units", "coeffs"])
        sigma = pm.HalfNormal("sigma", 1, dims="treated_units")
        mu = pm.Deterministic("mu", pt.dot(X_, beta.T), dims=["obs_ind", "treated_units"])
        pm.Normal("y_hat", mu, sigma, observed=y_, dims=["obs_ind", "treated_units"])
    return model


def instrument() -> pm.Model:
    q, u = _rng().normal(size=80), np.random.default_rng(1).normal(size=80)
    e = 0.8 * q + u + 0.5 * np.random.default_rng(2).normal(size=80)
    w = 0.3 * e + u + 0.5 * np.random.default_rng(3).normal(size=80)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 0.2, shape=2)
        bEW, bQE = pm.Normal("bEW", 0, 0.5), pm.Normal("bQE", 0, 0.5)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
        mu = pt.stack([a[0] + bEW * e, a[1] + bQE * q], axis=1)
        pm.MvNormal("WE", mu, chol=chol, observed=np.c_[w, e])
    return model


def media_mix() -> pm.Model:
    spend = _rng().gamma(2, 0.5, (80, 2))
    y = 2 + 1.5 * np.tanh(spend[:, 0]) + 0.5 * np.tanh(spend[:, 1]) + _rng(1).normal(0, 0.2, 80)
    with pm.Model(coords={"channel": ["tv", "web"]}) as model:
        alpha = pm.Beta("adstock", 1, 3, dims="channel")
        lam = pm.Gamma("lam", 3, 1, dims="channel")
        beta = pm.HalfNormal("beta", 2, dims="channel")
        weights = alpha ** np.arange(4)[:, None]
        weights = weights / weights.sum(axis=0)
        padded = np.concatenate([np.zeros((3, 2)), spend])
        adstock = sum(weights[k] * padded[3 - k : 83 - k] for k in range(4))
        saturated = (1 - pt.exp(-lam * adstock)) / (1 + pt.exp(-lam * adstock))
        mu = pm.Normal("intercept", 0, 2) + (beta * saturated).sum(axis=1)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=y)
    return model


def customers_who_leave() -> pm.Model:
    rate, gone = _rng().gamma(2, 0.5, 60), _rng(1).exponential(10, 60)
    age = np.full(60, 20.0)
    x = _rng(2).poisson(rate * np.minimum(gone, age))
    recency = np.where(x > 0, np.minimum(gone, age) * 0.9, 0.0)

    def logp(value, r, alpha, s, beta):  # noqa: ANN001, ANN202
        # gamma rates of buying and of leaving, those of one customer integrated by the mean
        lam, mu = r / alpha, s / beta
        alive = value * pt.log(lam) - (lam + mu) * age
        left = value * pt.log(lam) + pt.log(mu / (lam + mu)) - (lam + mu) * recency
        return pt.logaddexp(alive, left)

    with pm.Model() as model:
        r, alpha = pm.HalfNormal("r", 2), pm.HalfNormal("alpha", 2)
        s, beta = pm.HalfNormal("s", 2), pm.HalfNormal("beta", 10)
        pm.CustomDist("purchases", r, alpha, s, beta, logp=logp, observed=x.astype(float))
    return model


def bandit() -> pm.Model:
    action = _rng().integers(0, 2, 100)
    reward = _rng(1).binomial(1, np.where(action, 0.7, 0.3))

    def update(a: pt.TensorVariable, r: pt.TensorVariable, q: pt.TensorVariable, alpha):  # noqa: ANN001, ANN202
        return pt.set_subtensor(q[a], q[a] + alpha * (r - q[a]))

    with pm.Model() as model:
        alpha, beta = pm.Beta("alpha", 1, 1), pm.HalfNormal("beta", 10)
        q = pytensor.scan(
            update, sequences=[pt.as_tensor(action), pt.as_tensor(reward.astype(float))],
            outputs_info=[0.5 * pt.ones(2)], non_sequences=[alpha], return_updates=False,
        )  # fmt: skip
        before = pt.concatenate([[[0.5, 0.5]], q[:-1]])
        logit = beta * (before[:, 1] - before[:, 0])
        pm.Potential("like", pm.logp(pm.Bernoulli.dist(logit_p=logit), action).sum())
    return model


def reaction_times() -> pm.Model:
    t = 0.2 + _rng().wald(0.5, 1.0, 100)
    with pm.Model() as model:
        mu, lam = pm.Gamma("mu", 2, 2), pm.Gamma("lam", 2, 1)
        shift = pm.Uniform("shift", 0, t.min())
        pm.Wald("rt", mu=mu, lam=lam, alpha=shift, observed=t)
    return model
