"""Series: a change point, two systems of differential equations, volatility."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

YEARS, STEPS = 30, 20


def disasters() -> pm.Model:
    """Jarrett (1979): the rate of accidents changes once, in a year that is summed out."""

    def draw(early, late, years, rng, size):  # noqa: ANN001, ANN202
        change = rng.integers(1, YEARS)
        return rng.poisson(np.where(years < change, early, late))

    def logp(value, early, late, years):  # noqa: ANN001, ANN202
        before = pt.cumsum(pm.logp(pm.Poisson.dist(early), value))
        after = pt.cumsum(pm.logp(pm.Poisson.dist(late), value)[::-1])[::-1]
        return pm.math.logsumexp(before[:-1] + after[1:]) - np.log(YEARS - 1)

    with pm.Model(coords={"year": range(YEARS)}) as model:
        early = pm.Gamma("early", 3, 1)
        late = pm.Gamma("late", 1, 1)
        pm.CustomDist(
            "accidents", early, late, np.arange(YEARS), random=draw, logp=logp,
            signature="(),(),(n)->(n)", dtype="int64", observed=np.zeros(YEARS, int), dims="year",
        )  # fmt: skip
    return model


def lotka_volterra() -> pm.Model:
    """Hares and lynxes by the classical Runge-Kutta method, observed with lognormal error."""

    def change(state, a, b, c, d):  # noqa: ANN001, ANN202
        hare, lynx = state[0], state[1]
        return pt.stack([a * hare - b * hare * lynx, c * hare * lynx - d * lynx])

    def step(state, a, b, c, d):  # noqa: ANN001, ANN202
        h = 0.5
        k1 = change(state, a, b, c, d)
        k2 = change(state + h / 2 * k1, a, b, c, d)
        k3 = change(state + h / 2 * k2, a, b, c, d)
        k4 = change(state + h * k3, a, b, c, d)
        return state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    with pm.Model(coords={"year": range(STEPS), "species": ["hare", "lynx"]}) as model:
        rate = pm.LogNormal("rate", np.log([0.6, 0.3, 0.3, 0.6]), 0.2, shape=4)
        sigma = pm.HalfNormal("sigma", 0.3)
        path = pytensor.scan(
            step, outputs_info=[pt.ones(2)], non_sequences=[rate[i] for i in range(4)],
            n_steps=STEPS, return_updates=False,
        )  # fmt: skip
        pm.LogNormal(
            "pelts", pt.log(path), sigma, observed=np.ones((STEPS, 2)), dims=("year", "species")
        )
    return model


def epidemic() -> pm.Model:
    """Susceptible, infected and recovered in steps of a day; cases with overdispersion."""

    def step(s, i, contact, recovery):  # noqa: ANN001, ANN202
        new = s * (1 - pt.exp(-contact * i))
        return s - new, i + new - recovery * i, new

    with pm.Model(coords={"day": range(STEPS)}) as model:
        contact = pm.LogNormal("contact", -0.5, 0.3)
        recovery = pm.Beta("recovery", 4, 12)
        spread = pm.Exponential("spread", 0.1)
        _, _, new = pytensor.scan(
            step,
            outputs_info=[pt.constant(0.99), pt.constant(0.01), None],
            non_sequences=[contact, recovery],
            n_steps=STEPS,
            return_updates=False,
        )
        pm.NegativeBinomial(
            "cases", mu=1000 * new, alpha=1 + spread, observed=np.zeros(STEPS, int), dims="day"
        )
    return model


def garch() -> pm.Model:
    """Bollerslev (1986): returns whose volatility follows the past."""
    with pm.Model(coords={"day": range(40)}) as model:
        omega = pm.HalfNormal("omega", 0.5)
        reaction = pm.Beta("reaction", 2, 8)
        persistence = pm.Beta("persistence", 6, 4)
        pm.GARCH11(
            "returns", omega=omega + 0.01, alpha_1=reaction, beta_1=persistence, initial_vol=0.5,
            observed=np.zeros(40), dims="day",
        )  # fmt: skip
    return model
