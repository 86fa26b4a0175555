"""The six models of the refinement benchmark, each with datasets drawn from its own prior."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import simulated_datasets


class Case(NamedTuple):
    """A model, and its datasets as arrays with a leading dim."""

    model: pm.Model
    data: dict[str, np.ndarray]


def linear_regression(n: int) -> Case:
    """Experiment 1: 100 rows, 7 parameters."""
    data = simulated_datasets(datasets=n, rows=100, random_seed=3)[0]
    return Case(linear_regression_model(), {k: data[k].to_numpy() for k in ("X", "y")})


def logistic_regression(n: int) -> Case:
    """100 rows, 10 coefficients."""
    rng = np.random.default_rng(0)
    with pm.Model(coords={"obs": range(100), "predictor": range(10)}) as model:
        X = pm.Data("X", np.zeros((100, 10)), dims=("obs", "predictor"))
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        pm.Bernoulli("y", logit_p=X @ beta, observed=np.zeros(100, int), dims="obs")
    X = rng.normal(size=(n, 100, 10))
    p = 1 / (1 + np.exp(-np.einsum("dij,dj->di", X, rng.normal(size=(n, 10)))))
    return Case(model, {"X": X, "y": rng.binomial(1, p)})


def poisson_random_effect(n: int) -> Case:
    """Counts in 10 groups of 6, one slope: 13 parameters, not centred."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(10), 6)
    with pm.Model(coords={"obs": range(60), "group": range(10)}) as model:
        x = pm.Data("x", np.zeros(60), dims="obs")
        intercept = pm.Normal("intercept", 1, 1)
        slope = pm.Normal("slope", 0, 0.5)
        sd = pm.HalfNormal("sd", 0.5)
        effect = pm.Normal("effect", 0, 1, dims="group")
        rate = pm.math.exp(intercept + slope * x + sd * effect[group])
        pm.Poisson("y", rate, observed=np.zeros(60, int), dims="obs")
    x = rng.normal(size=(n, 60))
    sd = np.abs(rng.normal(0, 0.5, (n, 1)))
    effect = rng.normal(size=(n, 10))[:, group]
    log_rate = rng.normal(1, 1, (n, 1)) + rng.normal(0, 0.5, (n, 1)) * x + sd * effect
    return Case(model, {"x": x, "y": rng.poisson(np.exp(log_rate))})


def eight_schools(n: int) -> Case:
    """Hierarchical, not centred: 10 parameters; the standard errors of Rubin (1981)."""
    rng = np.random.default_rng(2)
    error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model(coords={"school": range(8)}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        eta = pm.Normal("eta", 0, 1, shape=8)
        pm.Normal("y", mu + tau * eta, error, observed=np.zeros(8), dims="school")
    mu, tau = rng.normal(0, 5, (n, 1)), np.minimum(np.abs(5 * rng.standard_cauchy((n, 1))), 50)
    y = rng.normal(mu + tau * rng.normal(size=(n, 8)), error)
    y[0] = [28, 8, -3, 7, -1, 1, 18, 12]
    return Case(model, {"y": y})


def _predators(rates: list, steps: int, state: list, exp: Callable) -> list:
    """One day of Lotka-Volterra in logs, by the classical Runge-Kutta method."""
    alpha, beta, gamma, delta = rates

    def slope(u: list) -> list:
        return [alpha - beta * exp(u[1]), -gamma + delta * exp(u[0])]

    h = 1.0 / steps
    for _ in range(steps):
        k1 = slope(state)
        k2 = slope([u + h / 2 * k for u, k in zip(state, k1, strict=True)])
        k3 = slope([u + h / 2 * k for u, k in zip(state, k2, strict=True)])
        k4 = slope([u + h * k for u, k in zip(state, k3, strict=True)])
        state = [
            u + h / 6 * (a + 2 * b + 2 * c + d)
            for u, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)
        ]
    return state


def lotka_volterra(n: int) -> Case:
    """The ODE of sbibm's task: 4 parameters, 20 days, prey and predators every second day."""
    rng = np.random.default_rng(3)
    days, steps = 20, 5
    centre = np.array([-0.125, -3.0, -0.125, -3.0])
    start = [np.log(30.0), np.log(1.0)]
    with pm.Model(coords={"obs": range(20)}) as model:
        rates = pm.LogNormal("rates", centre, 0.5, shape=4)

        def day(a, b, *r):  # noqa: ANN001, ANN002, ANN202
            return _predators(list(r), steps, [a, b], pt.exp)

        (prey, predators), _ = pytensor.scan(
            day,
            outputs_info=[pt.as_tensor(s) for s in start],
            non_sequences=[rates[i] for i in range(4)],
            n_steps=days,
        )
        log_u = pt.concatenate([prey[1::2], predators[1::2]])
        pm.LogNormal("y", log_u, 0.1, observed=np.ones(20), dims="obs")
    y = np.empty((n, 20))
    for i in range(n):
        r = list(np.exp(rng.normal(centre, 0.5)))
        state, path = [np.float64(s) for s in start], []
        for _ in range(days):
            state = _predators(r, steps, state, np.exp)
            path.append(state)
        y[i] = np.exp(rng.normal(np.array(path)[1::2].T.ravel(), 0.1))
    return Case(model, {"y": y})


def wald_race(n: int) -> Case:
    """Racing diffusion of experiment 3 in short: 180 trials, 4 parameters, 2 % lapses."""
    rng = np.random.default_rng(4)
    trials = 180

    def log_phi(x):  # noqa: ANN001, ANN202
        return pt.log(0.5 * pt.erfc(-x / np.sqrt(2.0)))

    def logp(value, b, good, bad, t0):  # noqa: ANN001, ANN202
        t = pt.abs(value)
        later = t > t0
        u = pt.switch(later, t - t0, 1.0)
        winner = pt.switch(value > 0, good, bad)
        loser = pt.switch(value > 0, bad, good)
        root = pt.sqrt(u)
        density = pt.log(b) - 0.5 * pt.log(2 * np.pi * u**3) - (b - winner * u) ** 2 / (2 * u)
        first = 0.5 * pt.erfc(-(b - loser * u) / root / np.sqrt(2.0))
        second = pt.exp(2 * loser * b + log_phi(-(b + loser * u) / root))
        survival = pt.log(pt.maximum(first - second, 1e-12))
        race = pt.switch(later, density + survival, -50.0)
        return pt.logaddexp(np.log(0.98) + race, np.log(0.02 * 0.5 / 5.0))

    def random(b, good, bad, t0, rng=None, size=None):  # noqa: ANN001, ANN202
        times = [t0 + rng.wald(b / v, b**2, size=size) for v in (good, bad)]
        race = np.where(times[0] < times[1], times[0], -times[1])
        lapse = rng.uniform(-5, 5, size=size)
        return np.where(rng.random(size) < 0.02, lapse, race)

    with pm.Model(coords={"obs": range(trials)}) as model:
        b = pm.LogNormal("b", np.log(1.2), 0.3)
        good = pm.LogNormal("v_correct", np.log(3.0), 0.3)
        bad = pm.LogNormal("v_error", np.log(1.0), 0.4)
        t0 = pm.Uniform("t0", 0.05, 0.5)
        pm.CustomDist(
            "y", b, good, bad, t0, logp=logp, random=random, observed=np.ones(trials), dims="obs"
        )
    y = np.empty((n, trials))
    for i in range(n):
        drawn = [np.exp(rng.normal(np.log(m), s)) for m, s in ((1.2, 0.3), (3.0, 0.3), (1.0, 0.4))]
        y[i] = random(*drawn, rng.uniform(0.05, 0.5), rng=rng, size=trials)
    return Case(model, {"y": y})


CASES: dict[str, Callable[[int], Case]] = {
    "linear regression": linear_regression,
    "logistic regression": logistic_regression,
    "Poisson, random effect": poisson_random_effect,
    "eight schools": eight_schools,
    "Lotka-Volterra": lotka_volterra,
    "Wald race": wald_race,
}
