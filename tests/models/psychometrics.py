"""Tests, ratings and reaction times."""

import numpy as np
import pymc as pm

PERSONS, ITEMS, ROWS = 10, 6, 40


def rasch() -> pm.Model:
    """Rasch (1960): abilities of persons and difficulties of items."""
    with pm.Model(coords={"person": range(PERSONS), "item": range(ITEMS)}) as model:
        ability = pm.Normal("ability", dims="person")
        difficulty = pm.Normal("difficulty", dims="item")
        pm.Bernoulli(
            "correct", logit_p=ability[:, None] - difficulty,
            observed=np.zeros((PERSONS, ITEMS), int), dims=("person", "item"),
        )  # fmt: skip
    return model


def item_response() -> pm.Model:
    """Birnbaum (1968): items differ in discrimination too."""
    with pm.Model(coords={"person": range(PERSONS), "item": range(ITEMS)}) as model:
        ability = pm.Normal("ability", dims="person")
        difficulty = pm.Normal("difficulty", dims="item")
        discrimination = pm.LogNormal("discrimination", 0, 0.3, dims="item")
        pm.Bernoulli(
            "correct", logit_p=discrimination * (ability[:, None] - difficulty),
            observed=np.zeros((PERSONS, ITEMS), int), dims=("person", "item"),
        )  # fmt: skip
    return model


def ordered_logit() -> pm.Model:
    """Ratings on a scale of four."""
    with pm.Model(coords={"obs": range(ROWS), "step": range(3)}) as model:
        x = pm.Data("x", np.zeros(ROWS), dims="obs")
        slope = pm.Normal("slope")
        first = pm.Normal("first", -1, 1)
        gaps = pm.Gamma("gaps", 3, 3, shape=2)
        cuts = pm.math.concatenate([[first], first + pm.math.cumsum(gaps)])
        pm.OrderedLogistic(
            "rating", eta=slope * x, cutpoints=cuts, compute_p=False,
            observed=np.zeros(ROWS, int), dims="obs",
        )  # fmt: skip
    return model


def drift_diffusion() -> pm.Model:
    """Reaction times of one barrier: a shifted Wald distribution (Anders et al. 2016)."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        drift = pm.TruncatedNormal("drift", 2.5, 1, lower=0.3)
        barrier = pm.LogNormal("barrier", 0, 0.3)
        start = pm.Uniform("start", 0, 0.3)
        pm.Wald(
            "t", mu=barrier / drift, lam=barrier**2, alpha=start,
            observed=np.full(ROWS, 0.8), dims="obs",
        )  # fmt: skip
    return model
