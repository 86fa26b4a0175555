"""Series in time, and equations that move them."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _ar(n: int = 80, rho: float = 0.7) -> np.ndarray:
    y = np.zeros(n)
    for t in range(1, n):
        y[t] = 0.3 + rho * y[t - 1] + _rng().normal(0, 1, n)[t]
    return y


def autoregression() -> pm.Model:
    with pm.Model(coords={"obs_id": range(80)}) as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        init = pm.Normal.dist(0, 2)
        sigma = pm.HalfNormal("sigma", 2)
        pm.AR("y", rho, sigma=sigma, constant=True, init_dist=init, observed=_ar(), dims="obs_id")
    return model


def regression_on_the_past() -> pm.Model:
    y = _ar()
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 0.5) * y[:-1]
        pm.Normal("y", mu, pm.HalfNormal("s", 1), observed=y[1:])
    return model


def stochastic_volatility() -> pm.Model:
    level = np.cumsum(_rng().normal(0, 0.2, 60))
    y = _rng(1).standard_t(8, 60) * np.exp(level / 2)
    with pm.Model(coords={"time": range(60)}) as model:
        step = pm.Exponential("step_size", 10)
        h = pm.GaussianRandomWalk(
            "volatility", sigma=step, dims="time", init_dist=pm.Normal.dist(0, 1)
        )
        nu = pm.Exponential("nu", 0.1)
        pm.StudentT("returns", nu=nu, lam=pt.exp(-2 * h), observed=y, dims="time")
    return model


def local_level() -> pm.Model:
    level = np.cumsum(_rng().normal(0, 0.5, 50))
    with pm.Model() as model:
        sd = pm.HalfNormal("sd_level", 1)
        start = pm.Normal("start", 0, 2)
        steps = pm.Normal("steps", shape=49)
        mu = pt.concatenate([[start], start + pt.cumsum(sd * steps)])
        y = level + _rng(1).normal(0, 1, 50)
        pm.Normal("y", mu, pm.HalfNormal("sd_obs", 1), observed=y)
    return model


def switch_of_disasters() -> pm.Model:
    y = _rng().poisson(np.r_[np.full(40, 3.0), np.full(60, 1.0)])
    with pm.Model() as model:
        at = pm.DiscreteUniform("switchpoint", 0, 99)
        early, late = pm.Exponential("early_rate", 1), pm.Exponential("late_rate", 1)
        pm.Poisson("disasters", pm.math.switch(at >= np.arange(100), early, late), observed=y)
    return model


def trend_and_season() -> pm.Model:
    t = np.arange(120) / 12
    order = np.arange(1, 4)
    fourier = np.c_[np.sin(2 * np.pi * t[:, None] * order), np.cos(2 * np.pi * t[:, None] * order)]
    y = 1 + 0.3 * t + fourier @ _rng().normal(0, 0.5, 6) + _rng(1).normal(0, 0.3, 120)
    with pm.Model(coords={"fourier": range(6)}) as model:
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        season = pm.Normal("season", 0, 1, dims="fourier")
        mu = pm.Deterministic("mu", alpha + beta * t + fourier @ season)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=y)
    return model


def vector_autoregression() -> pm.Model:
    y = np.zeros((60, 2))
    noise = _rng().normal(0, 1, (60, 2))
    for t in range(1, 60):
        y[t] = y[t - 1] @ [[0.5, 0.1], [0.0, 0.4]] + noise[t]
    with pm.Model() as model:
        A = pm.Normal("A", 0, 0.5, shape=(2, 2))
        sigma = pm.HalfNormal("sigma", 1, shape=2)
        pm.Normal("y", y[:-1] @ A, sigma, observed=y[1:])
    return model


def garch() -> pm.Model:
    with pm.Model() as model:
        omega, alpha = pm.HalfNormal("omega", 1), pm.Uniform("alpha", 0, 1)
        beta = pm.Uniform("beta", 0, 1 - alpha)
        pm.GARCH11(
            "y", omega=omega, alpha_1=alpha, beta_1=beta, initial_vol=1.0,
            observed=_rng().normal(0, 1.2, 100),
        )  # fmt: skip
    return model


def moving_average() -> pm.Model:
    e = _rng().normal(size=81)
    y = 1 + e[1:] + 0.6 * e[:-1]
    with pm.Model() as model:
        mu, theta, sigma = pm.Normal("mu", 0, 2), pm.Normal("theta", 0, 0.5), pm.HalfNormal("s", 2)
        errors = pytensor.scan(
            lambda now, before, mu, theta: now - mu - theta * before,
            sequences=[pt.as_tensor(y)], outputs_info=[pt.constant(0.0, dtype="float64")],
            non_sequences=[mu, theta], return_updates=False,
        )  # fmt: skip
        pm.Potential("likelihood", pm.logp(pm.Normal.dist(0, sigma), errors).sum())
    return model


def interrupted_series() -> pm.Model:
    t = np.arange(50.0)
    y = 10 + 0.1 * t + 3 * (t >= 30) + _rng().normal(0, 1, 50)
    with pm.Model(coords={"obs": t}) as model:
        time = pm.Data("time", t, dims="obs")
        after = pm.Data("after", (t >= 30).astype(float), dims="obs")
        mu = pm.Normal("b0", 0, 10) + pm.Normal("b1", 0, 1) * time
        mu = mu + pm.Normal("effect", 0, 5) * after
        pm.Normal("y", mu, pm.HalfNormal("sigma", 2), observed=y, dims="obs")
    return model


def predator_and_prey() -> pm.Model:
    with pm.Model() as model:
        rates = pm.LogNormal("rates", [-0.6, -3.6, -3.7, -0.2], 0.3, shape=4)
        start = pm.LogNormal("start", np.log([30.0, 4.0]), 0.3, shape=2)

        def step(h: pt.TensorVariable, p: pt.TensorVariable, r: pt.TensorVariable) -> list:
            for _ in range(20):
                h, p = h + 0.05 * (r[0] - r[1] * p) * h, p + 0.05 * (r[2] * h - r[3]) * p
            return [h, p]

        hares, lynx = pytensor.scan(
            step, outputs_info=[start[0], start[1]], non_sequences=[rates], n_steps=15,
            return_updates=False,
        )  # fmt: skip
        both = pt.log(pt.stack([hares, lynx], axis=1))
        y = np.exp(_rng().normal(2.5, 0.6, (15, 2)))
        pm.LogNormal("y", both, pm.HalfNormal("sigma", 0.5), observed=y)
    return model


def falling_body() -> pm.Model:
    from pymc.ode import DifferentialEquation

    t = np.arange(0.5, 5.5, 0.5)
    with pm.Model() as model:
        gamma, sigma = pm.LogNormal("gamma", 0, 0.5), pm.HalfNormal("sigma", 1)
        motion = DifferentialEquation(
            func=lambda y, t, p: 9.8 - p[0] * y[0], times=t, n_states=1, n_theta=1, t0=0
        )
        y = 9.8 / 0.4 * (1 - np.exp(-0.4 * t)) + _rng().normal(0, 0.5, 10)
        speed = motion(y0=[0], theta=[gamma])
        pm.Normal("y", speed[:, 0], sigma, observed=y)
    return model
