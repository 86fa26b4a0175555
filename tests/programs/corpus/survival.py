"""Times to an event."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _times(n: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group = np.arange(n) % 2
    time = 3 * np.exp(0.5 * group) * _rng().weibull(1.5, n)
    return group, np.minimum(time, 5), time < 5


def weibull_by_potential() -> pm.Model:
    group, t, event = _times()
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 1)
        shape = pt.exp(alpha)
        scale = pt.exp(pm.Normal("mu", 0, 3) + pm.Normal("b", 0, 1) * group)
        pm.Weibull("y_obs", shape, scale[event], observed=t[event])
        pm.Potential("y_cens", -((t[~event] / scale[~event]) ** shape))
    return model


def weibull_censored() -> pm.Model:
    group, t, _ = _times()
    with pm.Model() as model:
        shape = pm.LogNormal("shape", 0, 0.5)
        scale = pt.exp(pm.Normal("mu", 0, 3) + pm.Normal("b", 0, 1) * group)
        pm.Censored("t", pm.Weibull.dist(shape, scale), lower=None, upper=5.0, observed=t)
    return model


def cats() -> pm.Model:
    black = _rng().binomial(1, 0.3, 150)
    days = _rng(1).exponential(np.where(black, 60, 45))
    adopted = days < 90
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2, shape=2)
        lam = 1 / pt.exp(4 + a[black])
        pm.Exponential("adopted", lam[adopted], observed=days[adopted])
        pm.Potential("not", -lam[~adopted] * 90)
    return model


def piecewise_hazards() -> pm.Model:
    group, t, event = _times()
    edges = np.arange(0, 6)
    exposure = np.clip(t[:, None] - edges[:-1], 0, 1)
    death = event[:, None] & (t[:, None] >= edges[:-1]) & (t[:, None] < edges[1:])
    with pm.Model(coords={"interval": range(5)}) as model:
        base = pm.Gamma("base", 0.5, 0.5, dims="interval")
        risk = pt.exp(pm.Normal("beta", 0, 2) * group)
        pm.Poisson("obs", exposure * pt.outer(risk, base) + 1e-12, observed=death.astype(int))
    return model


def interval_censored() -> pm.Model:
    days = _rng().weibull(1.5, 60) * 10
    low, high = np.floor(days), np.floor(days) + 1
    with pm.Model() as model:
        shape, scale = pm.LogNormal("shape", 0, 0.5), pm.LogNormal("scale", 2, 1)
        inside = pt.exp(-((low / scale) ** shape)) - pt.exp(-((high / scale) ** shape))
        pm.Potential("between", pt.log(inside).sum())
    return model


def binned() -> pm.Model:
    y = _rng().normal(1, 2, 500)
    edges = np.array([-2.0, 0.0, 1.0, 2.5, 4.0])
    counts = np.bincount(np.digitize(y, edges), minlength=6)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("sigma", 5)
        below = pm.math.exp(pm.logcdf(pm.Normal.dist(mu=mu, sigma=sigma), edges))
        p = pt.extra_ops.diff(pt.concatenate([[0.0], below, [1.0]]))
        pm.Multinomial("counts", p=p, n=counts.sum(), observed=counts)
    return model
