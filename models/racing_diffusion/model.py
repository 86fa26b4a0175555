"""Racing diffusion: response times and errors of one person in a two-choice task."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.tensor import TensorVariable

import pmcl

exchangeable = "trial"

LAPSE = 0.02  # of the trials
LONGEST = 5.0  # seconds: a lapse's time is uniform up to here, with either answer
SHORTEST = 1e-4  # seconds: nothing is decided in less
LEAST = 1e-37  # what single precision can still tell from nothing


def first_passage(
    t: TensorVariable, b: TensorVariable, v: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Density of the time at which a Wiener process with drift `v` first reaches `b`.

    As a factor and an exponent, factor * exp(exponent): a trial's are multiplied before any
    logarithm is taken, which is what takes time.
    """
    return b / (np.sqrt(2 * np.pi) * t * pt.sqrt(t)), -((b - v * t) ** 2) / (2 * t)


def survival(
    t: TensorVariable, b: TensorVariable, v: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Probability that it has not reached `b` by `t`, as a factor and an exponent.

    Both terms of the textbook's 1 - F(t) vanish at long times and one overflows at short ones: what
    they share, exp(-a^2 / 2), is taken out.
    """
    a = (b - v * t) / pt.sqrt(t)
    early = a > 0
    side = pt.erfcx(pt.switch(early, a, -a) / np.sqrt(2))
    near = pt.erfcx((b + v * t) / pt.sqrt(2 * t))
    exponent = -(a**2) / 2
    factor = pt.switch(early, 1 - pt.exp(exponent) * (side + near) / 2, (side - near) / 2)
    return factor, pt.switch(early, 0.0, exponent)


def log_density(
    value: TensorVariable,
    boundary: TensorVariable,
    correct: TensorVariable,
    error: TensorVariable,
    t0: TensorVariable,
) -> TensorVariable:
    """Log density of signed response times: negative ones are of incorrect answers."""
    t = pt.abs(value) - t0
    decided = t > SHORTEST
    # A branch that is not taken sees a harmless value, so that its gradient is finite.
    t = pt.switch(decided, t, 1.0)
    right = value > 0
    winner, loser = pt.switch(right, correct, error), pt.switch(right, error, correct)
    density, fast = first_passage(t, boundary, winner)
    other, slow = survival(t, boundary, loser)
    race = pt.switch(decided, (1 - LAPSE) * density * other, 0.0)
    # Where there may be a lapse, it is enough that the race's density may vanish.
    inside = pt.abs(value) < LONGEST
    shared = pt.switch(inside, 0.0, fast + slow)
    lapse = pt.switch(inside, LAPSE / (2 * LONGEST), 0.0)
    possible = decided | inside
    total = pt.switch(possible, race * pt.exp(fast + slow - shared) + lapse, 1.0)
    return pt.switch(possible, shared + pt.log(pt.maximum(total, LEAST)), -np.inf)


def race(
    boundary: TensorVariable,
    correct: TensorVariable,
    error: TensorVariable,
    t0: TensorVariable,
    size: TensorVariable,
) -> TensorVariable:
    """Simulate signed response times: of the first of two accumulators, or of a lapse."""
    times = [pm.Wald.dist(mu=boundary / v, lam=boundary**2, size=size) for v in (correct, error)]
    answer = pt.switch(times[0] < times[1], 1.0, -1.0)
    lapsed = pm.Bernoulli.dist(LAPSE, size=size)
    anything = pm.Uniform.dist(-LONGEST, LONGEST, size=size)
    return pt.switch(lapsed, anything, answer * (t0 + pt.minimum(*times)))


def model(trials: int = 180) -> pm.Model:
    """Build the model; `y` is observed, response times in seconds, negative where incorrect."""
    with pm.Model(coords={"trial": range(trials)}) as built:
        boundary = pm.LogNormal("boundary", np.log(1.2), 0.4)
        correct = pm.LogNormal("correct", np.log(3), 0.4)
        error = pm.LogNormal("error", np.log(1), 0.6)
        t0 = pm.LogNormal("t0", np.log(0.25), 0.4)
        pm.CustomDist(
            "y",
            *(boundary, correct, error, t0),
            dist=race,
            logp=log_density,
            observed=np.ones(trials),
            dims="trial",
        )
    return built


def network() -> pmcl.DeepSet:
    """Return a summary that sees where response times begin: a plain one sees that late."""
    return pmcl.DeepSet(frequencies=8)


def example() -> xr.Dataset:
    """Four made-up persons: slow and careful, fast and careless, able, and hardly able."""
    persons = {
        "careful": (2.0, 3.0, 0.6, 0.3),
        "careless": (0.7, 3.0, 1.5, 0.2),
        "able": (1.2, 5.0, 0.8, 0.25),
        "hardly able": (1.2, 2.0, 1.4, 0.3),
    }
    draws = [
        pm.draw(race(*map(pt.as_tensor, p), size=pt.as_tensor([180])), random_seed=i)
        for i, p in enumerate(persons.values())
    ]
    return xr.Dataset(
        {"y": (("dataset", "trial"), np.stack(draws))}, coords={"dataset": list(persons)}
    )
