"""A known prior and a likelihood that nobody knows: a network, and nothing by weight."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pmcl
from pmcl.compile import compile_model

N = 12
Y = np.random.default_rng(0).normal(1, 1, N)
NETWORK = pmcl.Network(pmcl.DeepSet(outputs=4, width=8), pmcl.CouplingFlow(layers=1, width=8))


def by_simulator(scale: float = 1.0) -> pm.Model:
    with pm.Model(coords={"row": range(N)}) as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Simulator(
            "y", lambda rng, mu, size: rng.normal(mu, scale, size), mu,
            observed=np.zeros(N), dims="row",
        )  # fmt: skip
    return model


def by_custom_dist() -> pm.Model:
    def random(mu, rng=None, size=None):  # noqa: ANN001, ANN202
        return rng.normal(mu, 1, size)

    with pm.Model(coords={"row": range(N)}) as model:
        mu = pm.Normal("mu", 0, 2)
        pm.CustomDist("y", mu, random=random, observed=np.zeros(N), dims="row")
    return model


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(
        by_simulator(), exchangeable="row", network=NETWORK, steps=600, validation=128,
        random_seed=1, progressbar=False,
    )  # fmt: skip


def test_the_network_is_raw_and_about_right(posterior: pmcl.AmortizedPosterior) -> None:
    assert posterior.amortizer.search is None and not posterior.network.whiten
    tree = posterior.sample({"y": Y}, 4000, random_seed=1)
    mu = tree["posterior"]["mu"].values.ravel()
    sd = (N + 0.25) ** -0.5
    assert mu.mean() == pytest.approx(Y.sum() / (N + 0.25), abs=0.5 * sd)
    assert mu.std() == pytest.approx(sd, rel=0.5)
    said = tree["dataset_stats"].to_dataset()
    assert np.isnan([said["khat"].item(), said["log_evidence"].item()]).all()
    assert said["note"].item() == "no likelihood of y: draws of the network"
    assert np.isnan(tree["sample_stats"]["log_likelihood"]).all()
    expected = stats.norm.logpdf(mu, 0, 2)
    np.testing.assert_allclose(tree["sample_stats"]["log_prior"].values.ravel(), expected)


def test_calibration_and_checks_need_no_density(posterior: pmcl.AmortizedPosterior) -> None:
    found = pmcl.calibrate(posterior, simulations=60, draws=60, random_seed=1, progressbar=False)
    assert found["uniformity"]["mu"].item() > 1e-3
    checked = pmcl.check_data(posterior, {"near": {"y": Y}, "far": {"y": Y + 40}})
    assert checked["far"].values.tolist() == [False, True]


CALLS: dict[str, Callable] = {
    "sample": lambda p: p.sample({"y": Y}, refine=True),
    "sample: expected": lambda p: p.sample({"y": Y}, fallback="nuts"),
    "sample: refinement": lambda p: p.sample({"y": Y}, refine=False, correct="psis"),
    "adapt": lambda p: p.adapt({"y": Y}, name="one"),
    "refine": lambda p: pmcl.refine(p.compiled.model, {"y": Y}),
    "sample_reference": lambda p: pmcl.sample_reference(p.compiled.model, {"y": Y}),
    "fit_online": lambda p: pmcl.fit_online(p.compiled.model),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_needs_a_density_is_refused(posterior: pmcl.AmortizedPosterior, name: str) -> None:
    said = f"{name.split(':')[0]}.*expected a likelihood, but 'y' can only be simulated"
    with pytest.raises(pmcl.UnsupportedModelError, match=said):
        CALLS[name](posterior)


def test_a_state_is_told_by_prior_and_simulations(
    posterior: pmcl.AmortizedPosterior, tmp_path: Path
) -> None:
    path = tmp_path / "p.zarr.zip"
    pmcl.save(posterior, path)
    again = pmcl.load(path, by_simulator())
    one, two = (p.sample({"y": Y}, 50, random_seed=1) for p in (posterior, again))
    np.testing.assert_array_equal(one["posterior"]["mu"], two["posterior"]["mu"])
    with pytest.raises(
        pmcl.StateError, match="another simulator: the mean of 8 simulations of 'y'"
    ):
        pmcl.load(path, by_simulator(3.0))


def test_a_custom_dist_with_random_alone() -> None:
    compiled = compile_model(by_custom_dist())
    assert compiled.implicit == ("y",)
    simulator = pmcl.amortized.fit.simulator_of(by_custom_dist(), None)
    z, data = simulator.simulate(500, random_seed=0)
    assert (data["y"] - z).std() == pytest.approx(1, rel=0.05)
