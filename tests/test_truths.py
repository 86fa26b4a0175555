"""Posteriors whose truth is known: none of them is wrong without a word."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from truth_models import TRUTHS, on_a_grid
from truths import SEEDS, counts, is_wrong, judged, table

RESULTS = Path(__file__).parents[1] / "experiments" / "results" / "truths.json"
# a mode of one part in fifty, a symmetric pair, groups, a vague precision, heavy tails twice
QUICK = (
    "two camps",
    "square",
    "schools, centred",
    "vague precision",
    "one student",
    "wide uniform",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_posterior_is_right_or_warned_of(name: str) -> None:
    for run in judged(TRUTHS[name], range(2)):
        assert run["warning"] or not run["wrong"], run


def test_a_grid_gives_the_posterior() -> None:
    """A normal mean with a normal prior, in closed form."""
    import pymc as pm

    with pm.Model() as model:
        mu = pm.Normal("mu", 1, 2)
        pm.Normal("y", mu, 0.5, observed=[0.2, 0.8, 0.5])
    draws = on_a_grid((-30, 30))(model, np.random.default_rng(1))[:, 0]
    precision = 1 / 4 + 3 / 0.25
    exact = stats.norm((1 / 4 + 1.5 / 0.25) / precision, precision**-0.5)
    assert stats.kstest(draws, exact.cdf).pvalue > 0.01


def test_groups_are_drawn_as_pymc_has_them() -> None:
    """Draws of the closed form have the density that PyMC compiles, up to a constant."""
    truth = TRUTHS["three groups, centred"]
    model = truth.model()
    z = truth.reference(model, np.random.default_rng(2))
    # the logarithmic scale given the rest: a slice of the density through the draws' middle
    density, middle = model.compile_logp(), np.median(z, axis=0)
    point = {"mu": middle[0], "theta": middle[2:]}
    grid = np.linspace(-4, 5, 400)
    log_p = np.array([density({**point, "tau_log__": v}) for v in grid])
    near = np.abs(z[:, [0, 2, 3, 4]] - middle[[0, 2, 3, 4]]).max(axis=1) < 0.8
    chance = np.exp(log_p - log_p.max())
    mean = (grid * chance).sum() / chance.sum()
    assert near.sum() > 30 and abs(np.median(z[near, 1]) - mean) < 0.35


def test_the_table_of_the_docs_is_of_these_posteriors() -> None:
    found = json.loads(RESULTS.read_text())["posteriors"]
    assert list(found) == list(TRUTHS) and len(TRUTHS) >= 40
    assert all(len(rows) == SEEDS for rows in found.values())
    rows = [row for name in found for row in found[name]]
    for row in rows:
        assert row["wrong"] == is_wrong(row["off"], row["noise"], row["mmd2"])
    told = counts(rows)
    assert not told["wrong without a word"]
    assert told["right and warned of"] <= 0.03 * len(rows)
    assert told["by NUTS"] <= 0.1 * len(rows)
    assert RESULTS.with_suffix(".md").read_text().endswith(table(found))
    kinds = [truth.kind for truth in TRUTHS.values()]
    assert kinds.count("several modes") >= 10 and kinds.count("groups") >= 10
    assert sum("centred" in name and "not" not in name for name in TRUTHS) >= 5
