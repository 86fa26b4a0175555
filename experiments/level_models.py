"""Multilevel models and simulated data, each with its non-centred form for NUTS."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

type Data = dict[str, np.ndarray]


class Case(NamedTuple):
    """A model with groups.

    Attributes
    ----------
    build : callable
        Of `centred`, to the model; both forms have the same posterior and the same names.
    simulate : callable
        Of a generator, to one dataset.
    shared, local : tuple of str
        Names of global parameters and of the groups'.
    """

    build: Callable[[bool], pm.Model]
    simulate: Callable[[np.random.Generator], Data]
    shared: tuple[str, ...]
    local: tuple[str, ...]


def effect(name: str, mean: pt.TensorLike, sd: pt.TensorLike, dim: str, *, centred: bool) -> object:
    """Normal parameters of groups in either form."""
    if centred:
        return pm.Normal(name, mean, sd, dims=dim)
    raw = pm.Normal(f"{name}_raw", dims=dim)
    return pm.Deterministic(name, mean + sd * raw, dims=dim)


def schools(groups: int) -> Case:
    """Eight schools, and more of them: known errors, one row a group."""

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"school": range(groups)}) as model:
            sigma = pm.Data("sigma", np.ones(groups), dims="school")
            mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
            theta = effect("theta", mu, tau, "school", centred=centred)
            pm.Normal("y", theta, sigma, observed=np.zeros(groups), dims="school")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        mu, tau = rng.normal(0, 5), 5 * abs(np.tan(np.pi / 2 * rng.uniform(0, 0.8)))
        sigma = rng.uniform(8, 20, groups)
        return {"sigma": sigma, "y": rng.normal(mu + tau * rng.normal(size=groups), sigma)}

    return Case(build, simulate, ("mu", "tau"), ("theta",))


def sleep(groups: int, rows: int = 10) -> Case:
    """Intercepts and slopes of subjects, as in the sleep study; two of the data's scales."""
    subject = np.repeat(np.arange(groups), rows)
    days = np.tile(np.arange(rows) / 10, groups)

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"subject": range(groups), "row": range(groups * rows)}) as model:
            mean_a, mean_b = pm.Normal("mean_a", 2, 2), pm.Normal("mean_b", 0, 2)
            tau_a, tau_b = pm.HalfNormal("tau_a", 1), pm.HalfNormal("tau_b", 1)
            sigma = pm.HalfNormal("sigma", 1)
            a = effect("a", mean_a, tau_a, "subject", centred=centred)
            b = effect("b", mean_b, tau_b, "subject", centred=centred)
            eta = a[subject] + b[subject] * days
            pm.Normal("y", eta, sigma, observed=np.zeros(len(days)), dims="row")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        tau_a, tau_b, sigma = np.abs(rng.normal(size=3))
        a = rng.normal(2 + 2 * rng.normal(), tau_a, groups)
        b = rng.normal(2 * rng.normal(), tau_b, groups)
        return {"y": rng.normal(a[subject] + b[subject] * days, sigma)}

    return Case(build, simulate, ("mean_a", "mean_b", "tau_a", "tau_b", "sigma"), ("a", "b"))


def radon(groups: int = 85) -> Case:
    """Counties of 1 to 100 rows with a covariate of their own; which county comes with the data."""
    sizes = np.random.default_rng(3).geometric(0.09, groups).clip(1, 100)
    rows = int(sizes.sum())

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"county": range(groups), "row": range(rows)}) as model:
            county = pm.Data("in_county", np.zeros(rows, int), dims="row")
            floor = pm.Data("floor", np.zeros(rows), dims="row")
            uranium = pm.Data("uranium", np.zeros(groups), dims="county")
            at, slope = pm.Normal("at", 0, 2), pm.Normal("slope", 0, 2)
            beta = pm.Normal("beta", 0, 2)
            tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
            a = effect("a", at + slope * uranium, tau, "county", centred=centred)
            eta = a[county] + beta * floor
            pm.Normal("y", eta, sigma, observed=np.zeros(rows), dims="row")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        county = rng.permutation(np.repeat(np.arange(groups), sizes))
        uranium, floor = rng.normal(size=groups), rng.integers(0, 2, rows).astype(float)
        a = rng.normal(1.5 + 0.7 * uranium, abs(rng.normal(0, 0.5)))
        y = rng.normal(a[county] - 0.6 * floor, 0.8)
        return {"in_county": county, "floor": floor, "uranium": uranium, "y": y}

    return Case(build, simulate, ("at", "slope", "beta", "tau", "sigma"), ("a",))


def counts(kind: str, groups: int, rows: int) -> Case:
    """Poisson counts, or coin flips, with an intercept a site."""
    site = np.repeat(np.arange(groups), rows)

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"site": range(groups), "row": range(groups * rows)}) as model:
            mean, tau = pm.Normal("mean", 0, 1), pm.HalfNormal("tau", 1)
            eta = effect("u", mean, tau, "site", centred=centred)[site]  # type: ignore[index]
            zeros = np.zeros(len(site), int)
            if kind == "poisson":
                pm.Poisson("y", pt.exp(eta), observed=zeros, dims="row")
            else:
                pm.Bernoulli("y", logit_p=eta, observed=zeros, dims="row")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        eta = rng.normal(rng.normal(), abs(rng.normal()), groups)[site]
        if kind == "poisson":
            return {"y": rng.poisson(np.exp(np.minimum(eta, 8)))}
        return {"y": (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int)}

    return Case(build, simulate, ("mean", "tau"), ("u",))


def pupils(schools: int = 12, classes: int = 4, rows: int = 6) -> Case:
    """Pupils in classes in schools: a block a school."""
    of_class = np.repeat(np.arange(schools), classes)
    of_pupil = np.repeat(np.arange(schools * classes), rows)

    def build(centred: bool) -> pm.Model:
        sizes = {"school": schools, "class": schools * classes, "pupil": len(of_pupil)}
        with pm.Model(coords={k: range(n) for k, n in sizes.items()}) as model:
            mu, sigma = pm.Normal("mu", 0, 3), pm.HalfNormal("sigma", 1)
            tau_s, tau_c = pm.HalfNormal("tau_s", 1), pm.HalfNormal("tau_c", 1)
            school = effect("of_school", mu, tau_s, "school", centred=centred)
            mean = school[of_class]  # type: ignore[index]
            group = effect("of_class", mean, tau_c, "class", centred=centred)
            eta = group[of_pupil]  # type: ignore[index]
            pm.Normal("y", eta, sigma, observed=np.zeros(len(of_pupil)), dims="pupil")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        tau_s, tau_c, sigma = np.abs(rng.normal(size=3))
        group = rng.normal(rng.normal(rng.normal(), tau_s, schools)[of_class], tau_c)
        return {"y": rng.normal(group[of_pupil], sigma)}

    return Case(build, simulate, ("mu", "tau_s", "tau_c", "sigma"), ("of_school", "of_class"))


def vague(*names: str) -> list:
    """BUGS' vague normals, and gammas of precisions (names that begin with `tau`)."""
    return [pm.Gamma(n, 1e-3, 1e-3) if n.startswith("tau") else pm.Normal(n, 0, 1e3) for n in names]


def surgical() -> Case:
    """BUGS: deaths in twelve hospitals that differ in size, vague priors."""
    number = np.array([47, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360])

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"hospital": range(12)}) as model:
            mu, tau = vague("mu", "tau")
            b = effect("b", mu, tau**-0.5, "hospital", centred=centred)
            pm.Binomial("y", number, logit_p=b, observed=np.zeros(12, int), dims="hospital")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        return {"y": rng.binomial(number, 1 / (1 + np.exp(-rng.normal(-2.5, 0.4, 12))))}

    return Case(build, simulate, ("mu", "tau"), ("b",))


def seeds() -> Case:
    """BUGS: germinated seeds on 21 plates, two factors of two, vague priors."""
    number = np.array(
        [39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51]
    )
    number = np.append(number, 7)
    kind = np.repeat([0.0, 1], [11, 10])
    root = np.repeat([0.0, 1, 0, 1], [5, 6, 5, 5])
    names = ("a0", "a1", "a2", "a12", "tau")

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"plate": range(21)}) as model:
            a0, a1, a2, a12, tau = vague(*names)
            mean = a0 + a1 * kind + a2 * root + a12 * kind * root
            b = effect("b", 0, tau**-0.5, "plate", centred=centred)
            zeros = np.zeros(21, int)
            pm.Binomial("y", number, logit_p=mean + b, observed=zeros, dims="plate")
        return model

    def simulate(rng: np.random.Generator) -> Data:
        mean = -0.55 + 0.08 * kind + 1.35 * root - 0.8 * kind * root
        return {"y": rng.binomial(number, 1 / (1 + np.exp(-mean - rng.normal(0, 0.3, 21))))}

    return Case(build, simulate, names, ("b",))


def rats() -> Case:
    """BUGS: weights of 30 rats on five days, vague priors."""
    days = np.array([8.0, 15, 22, 29, 36]) - 22
    names = ("mean_a", "mean_b", "tau_a", "tau_b", "tau")

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"rat": range(30), "day": range(5)}) as model:
            mean_a, mean_b, tau_a, tau_b, tau = vague(*names)
            a = effect("a", mean_a, tau_a**-0.5, "rat", centred=centred)
            b = effect("b", mean_b, tau_b**-0.5, "rat", centred=centred)
            eta = a[:, None] + b[:, None] * days  # type: ignore[index]
            pm.Normal("y", eta, tau=tau, observed=np.zeros((30, 5)), dims=("rat", "day"))
        return model

    def simulate(rng: np.random.Generator) -> Data:
        a, b = rng.normal(242, 15, 30), rng.normal(6.2, 0.5, 30)
        return {"y": rng.normal(a[:, None] + b[:, None] * days, 6)}

    return Case(build, simulate, names, ("a", "b"))


def items(number: int = 20, persons: int = 60) -> Case:
    """Item response: persons are groups, items global."""

    def build(centred: bool) -> pm.Model:
        with pm.Model(coords={"person": range(persons), "item": range(number)}) as model:
            tau = pm.HalfNormal("tau", 1.5)
            difficulty = pm.Normal("difficulty", 0, 2, dims="item")
            ability = effect("ability", 0, tau, "person", centred=centred)
            logit = ability[:, None] - difficulty  # type: ignore[index]
            zeros = np.zeros((persons, number), int)
            pm.Bernoulli("y", logit_p=logit, observed=zeros, dims=("person", "item"))
        return model

    def simulate(rng: np.random.Generator) -> Data:
        logit = rng.normal(0, rng.uniform(0.5, 2), persons)[:, None] - rng.normal(0, 1.5, number)
        return {"y": (rng.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(int)}

    return Case(build, simulate, ("tau", "difficulty"), ("ability",))


CASES: dict[str, Case] = {
    "schools 5": schools(5),
    "schools 8": schools(8),
    "schools 40": schools(40),
    "sleep study 18 x 10": sleep(18),
    "sleep study 200 x 10": sleep(200),
    "radon 85": radon(),
    "rats 30 x 5, vague priors": rats(),
    "seeds, 21 plates, vague priors": seeds(),
    "surgical, 12 hospitals, vague priors": surgical(),
    "pupils in 48 classes in 12 schools": pupils(),
    "Poisson 20 x 5": counts("poisson", 20, 5),
    "Poisson 200 x 5": counts("poisson", 200, 5),
    "Bernoulli 40 x 4": counts("bernoulli", 40, 4),
    "Bernoulli 20 x 4": counts("bernoulli", 20, 4),
    "Bernoulli 200 x 4": counts("bernoulli", 200, 4),
    "60 persons x 20 items": items(),
}
