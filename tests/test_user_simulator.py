"""Data made by a user's function, for models whose density is known and that cannot be drawn."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pmcl
from pmcl.amortized.simulating import simulator_of

N = 12
Y = np.random.default_rng(0).normal(1, 1, N)
SMALL = pmcl.Network(pmcl.DeepSet(outputs=4, width=8), pmcl.CouplingFlow(layers=1, width=8))
FIT = {"steps": 100, "simulations": 512, "validation": 64, "random_seed": 1, "progressbar": False}


def density_only() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        logp = lambda v, mu: pm.logp(pm.Normal.dist(mu, 1), v)  # noqa: E731
        pm.CustomDist("y", mu, logp=logp, observed=np.zeros(N))
    return model


def potential() -> pm.Model:
    with pm.Model() as model:
        values = pm.Data("values", np.zeros(N))
        mu = pm.Normal("mu", 0, 2)
        pm.Potential("likelihood", pm.logp(pm.Normal.dist(mu, 1), values).sum())
    return model


def observations(parameters: Mapping, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"y": rng.normal(parameters["mu"], 1, N)}


def values(parameters: Mapping, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"values": rng.normal(parameters["mu"], 1, N)}


MEAN, SD = Y.sum() / (N + 0.25), (N + 0.25) ** -0.5


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(density_only(), simulator=observations, network=SMALL, **FIT)


def test_it_trains_and_is_weighed_by_the_density(posterior: pmcl.AmortizedPosterior) -> None:
    assert "a function makes the data" in repr(posterior)
    assert posterior.structure.kind == "exchangeable"
    tree = posterior.sample({"y": Y}, 4000, random_seed=1)
    mu = tree["posterior"]["mu"].values.ravel()
    assert mu.mean() == pytest.approx(MEAN, abs=0.03) and mu.std() == pytest.approx(SD, rel=0.05)
    evidence = stats.multivariate_normal.logpdf(Y, np.zeros(N), np.eye(N) + 4)
    assert tree["dataset_stats"]["log_evidence"].item() == pytest.approx(evidence, abs=0.02)


def test_load_gives_the_function_back(posterior: pmcl.AmortizedPosterior, tmp_path: Path) -> None:
    path = tmp_path / "p.zarr.zip"
    pmcl.save(posterior, path)
    with pytest.raises(pmcl.StateError, match="expected the function that made the data"):
        pmcl.load(path, density_only())
    again = pmcl.load(path, density_only(), simulator=observations)
    one, two = (p.sample({"y": Y}, 50, random_seed=1) for p in (posterior, again))
    np.testing.assert_array_equal(one["posterior"]["mu"], two["posterior"]["mu"])
    z, _ = posterior.simulator.simulate(5, random_seed=2)
    np.testing.assert_array_equal(z, again.simulator.simulate(5, random_seed=2)[0])


def test_a_potential_of_data_that_the_function_makes() -> None:
    posterior = pmcl.fit_amortized(
        potential(), simulator=values,
        network=pmcl.Network(pmcl.Flatten(), pmcl.CouplingFlow(layers=1, width=8)), **FIT,
    )  # fmt: skip
    tree = posterior.sample({"values": Y}, 4000, random_seed=1)
    mu = tree["posterior"]["mu"].values.ravel()
    assert mu.mean() == pytest.approx(MEAN, abs=0.03) and mu.std() == pytest.approx(SD, rel=0.05)


def test_potentials_weigh_simulations() -> None:
    """Two normals in order: simulations are of the half-plane, with its mean."""
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        pm.Potential("in_order", pt.switch(mu[0] < mu[1], 0.0, -np.inf))
        pm.Normal("y", mu, 1, observed=np.zeros(2))
    simulator = simulator_of(model, None, function=lambda p, rng: {"y": rng.normal(p["mu"], 1)})
    z, data = simulator.simulate(2000, random_seed=0)
    assert (z[:, 0] < z[:, 1]).all()
    # means of the smaller and the larger of two standard normals
    np.testing.assert_allclose(z.mean(axis=0), [-(np.pi**-0.5), np.pi**-0.5], atol=0.08)
    np.testing.assert_allclose(data["y"].mean(axis=0), z.mean(axis=0), atol=0.1)


def test_covariates_are_drawn_and_given_to_the_function() -> None:
    with pm.Model() as model:
        x = pm.Data("x", np.zeros(N))
        b = pm.Normal("b")
        pm.Normal("y", b * x, 1, observed=np.zeros(N))
    simulator = simulator_of(
        model, {"x": pm.Normal.dist(5, 0.1)}, function=lambda p, rng: {"y": p["b"] * p["x"]}
    )
    z, data = simulator.simulate(3, random_seed=0)
    np.testing.assert_allclose(data["y"], z * data["x"], rtol=1e-12)
    assert data["x"].mean() == pytest.approx(5, abs=0.1)


def test_what_a_function_has_to_give() -> None:
    with pytest.raises(TypeError, match="got str. Where simulations are made is `backend`"):
        pmcl.fit_amortized(density_only(), simulator="jax", progressbar=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\['y'\] did not come, \['z'\] are neither"):
        pmcl.fit_amortized(density_only(), simulator=lambda p, rng: {"z": 1}, progressbar=False)
    with pytest.raises(ValueError, match=r"expected 'y' of shape \(12,\), got \(3,\)"):
        pmcl.fit_amortized(
            density_only(), simulator=lambda p, rng: {"y": np.zeros(3)}, progressbar=False
        )
    with pm.Model() as flat:
        pm.Normal("y", pm.Flat("mu"), 1, observed=np.zeros(N))
    with pytest.raises(pmcl.UnsupportedModelError, match="'mu' has an improper prior"):
        pmcl.fit_amortized(flat, simulator=observations, progressbar=False)
