"""Starting points and metrics: the closed posterior of a regression, and samplers that use them."""

import json

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.compile import compile_model
from pmcl.reference.warm_start import covariance_of

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)) @ np.array([[1.0, 0.9], [0.0, 0.3]])
Y = RNG.normal(size=(2, N)) + X @ [1.0, -0.5]
TINY = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)


def regression(y: np.ndarray) -> pm.Model:
    with pm.Model(coords={"obs": range(N), "x": range(2)}) as model:
        beta = pm.Normal("beta", 0, 2, dims="x")
        sigma = pm.LogNormal("sigma", 0, 0.05)
        pm.Normal("y", pm.math.dot(X, beta), sigma, observed=y, dims="obs")
    return model


def closed(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of beta at sigma = 1, which is nearly known."""
    covariance = np.linalg.inv(X.T @ X + np.eye(2) / 4)
    return covariance @ X.T @ y, covariance


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(
        regression(np.zeros(N)), network=TINY, simulations=256, steps=50, random_seed=1,
        progressbar=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def warm(posterior) -> dict[str, pmcl.WarmStart]:
    return posterior.warm_start({"y": Y}, chains=3, random_seed=2)


def test_metric_and_centre_are_those_of_the_posterior(warm):
    assert [*warm] == ["0", "1"]
    for i, start in enumerate(warm.values()):
        mean, covariance = closed(Y[i])
        sd = np.sqrt(np.diag(covariance))
        assert (np.abs(start.mean[:2] - mean) < 0.2 * sd).all()
        np.testing.assert_allclose(
            start.inverse_mass_matrix[:2, :2] / np.outer(sd, sd),
            covariance / np.outer(sd, sd),
            atol=0.15,
        )
        assert start.positions.shape == (3, 3) and start.warning == ""
        for position, values in zip(start.positions, start.initvals, strict=True):
            np.testing.assert_allclose(position[:2], values["beta"])
            np.testing.assert_allclose(position[2], np.log(values["sigma"]))


def same(found: pmcl.WarmStart, other: pmcl.WarmStart) -> None:
    np.testing.assert_allclose(found.positions, other.positions)
    np.testing.assert_allclose(found.inverse_mass_matrix, other.inverse_mass_matrix)
    assert found.dataset == other.dataset and found.warning == other.warning


def test_draws_at_hand_give_the_same_start(posterior, warm, tmp_path):
    """In memory, or in a store, from which they are read part by part."""
    asked = {"fallback": None, "random_seed": 2}
    model = posterior.compiled.model
    tree = posterior.sample({"y": Y}, **asked)
    stored = posterior.sample({"y": Y}, correct="psis", store=tmp_path / "draws.zarr", **asked)
    for draws in (tree, stored):
        found = pmcl.warm_start(draws, model, chains=3, random_seed=2)
        assert [*found] == ["0", "1"]
        for name, start in found.items():
            same(start, warm[name])
            np.testing.assert_allclose(start._task.dataset(0)["y"], Y[int(name)])


def test_weighted_draws_and_those_of_another_sampler_are_a_start():
    """Of one dataset, as `pm.sample` gives them: a group `posterior` and the data."""
    mean, covariance = closed(Y[0])
    beta = RNG.multivariate_normal(mean, 4 * covariance, size=(2, 4000))
    apart = np.einsum("cdi,ij,cdj->cd", beta - mean, np.linalg.inv(covariance), beta - mean)
    posterior = {
        "beta": (("chain", "draw", "x"), beta),
        "sigma": (("chain", "draw"), np.exp(RNG.normal(0, 0.05, (2, 4000)))),
    }
    weight = {"log_weight": (("chain", "draw"), -0.375 * apart)}  # of a normal half as wide
    groups = {
        "posterior": xr.Dataset(posterior),
        "sample_stats": xr.Dataset(weight),
        "observed_data": xr.Dataset({"y": ("obs", Y[0])}),
    }
    start = pmcl.warm_start(xr.DataTree.from_dict(groups), regression(Y[0]))["0"]
    sd = np.sqrt(np.diag(covariance))
    found = start.inverse_mass_matrix[:2, :2]
    np.testing.assert_allclose(found / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.12)
    assert start.warning == "" and [*start.initvals[0]] == ["beta", "sigma"]
    del groups["observed_data"]
    with pytest.raises(ValueError, match=r"warm_start: expected the data \['y'\]"):
        pmcl.warm_start(xr.DataTree.from_dict(groups), regression(Y[0]))


GROUPS = 5


def levels() -> pm.Model:
    with pm.Model(coords={"group": range(GROUPS)}) as model:
        mu = pm.Normal("mu", 0, 2)
        theta = pm.Normal("theta", mu, 1, dims="group")
        pm.Normal("y", theta, 0.8, observed=np.zeros(GROUPS), dims="group")
    return model


def check_levels(start: pmcl.WarmStart, y: np.ndarray) -> None:
    prior = np.block(
        [
            [np.full((1, 1), 4.0), np.full((1, GROUPS), 4.0)],
            [np.full((GROUPS, 1), 4.0), np.full((GROUPS, GROUPS), 4.0) + np.eye(GROUPS)],
        ]
    )
    gain = prior[:, 1:] @ np.linalg.inv(prior[1:, 1:] + 0.64 * np.eye(GROUPS))
    covariance = prior - gain @ prior[1:]
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(start.mean - gain @ y) < 0.2 * sd).all()
    size = np.outer(sd, sd)
    np.testing.assert_allclose(start.inverse_mass_matrix / size, covariance / size, atol=0.12)


def test_levels_give_the_metric_of_all_parameters():
    model, y = levels(), RNG.normal(1, 1.5, size=(2, GROUPS))
    tree = pmcl.refine(model, {"y": y}, levels=True, random_seed=1, progressbar=False)
    for start, own in zip(pmcl.warm_start(tree, model).values(), y, strict=True):
        check_levels(start, own)


@pytest.mark.slow
def test_a_network_with_levels_gives_a_warm_start():
    y = RNG.normal(1, 1.5, size=(2, GROUPS))
    posterior = pmcl.fit_amortized(
        levels(), simulations=128, steps=20, random_seed=1, progressbar=False
    )
    assert isinstance(posterior, pmcl.MultilevelPosterior)
    for start, own in zip(posterior.warm_start({"y": y}, chains=2).values(), y, strict=True):
        check_levels(start, own)
        assert start.positions.shape == (2, 1 + GROUPS)


def test_draws_of_no_correlation_give_a_diagonal_and_others_a_low_rank():
    draws = RNG.normal(size=(400, 100)) * np.linspace(1, 3, 100)
    diagonal = covariance_of(draws, "diagonal")
    np.testing.assert_allclose(diagonal, np.linspace(1, 3, 100) ** 2, rtol=0.35)
    near = covariance_of(draws, "low-rank")
    np.testing.assert_allclose(near, np.diag(diagonal), atol=1e-9)
    shared = RNG.normal(size=(400, 1))
    found = covariance_of(RNG.normal(size=(400, 100)) + 3 * shared, "low-rank")
    truth = np.eye(100) + 9
    correlation = found / np.sqrt(np.outer(np.diag(found), np.diag(found)))
    np.testing.assert_allclose(correlation, truth / 10, atol=0.1)
    # what is left of it is as well conditioned as the truth: one direction is far from the rest
    left = np.linalg.eigvals(np.linalg.solve(truth, found)).real
    assert left.min() > 0.5 and left.max() < 2
    assert covariance_of(draws[:, :50], "auto").shape == (50, 50)
    with pytest.raises(ValueError, match="metric: expected 'auto'"):
        covariance_of(draws, "flat")


@pytest.mark.slow
def test_pymc_samples_from_a_warm_start(warm):
    """With a tuning that finds no metric."""
    mean, covariance = closed(Y[0])
    with regression(Y[0]) as model:
        tree = pm.sample(
            400, tune=40, chains=2, cores=1, step=warm["0"].step(model), random_seed=1,
            initvals=warm["0"].initvals[:2], progressbar=False, compute_convergence_checks=False,
            compile_kwargs={"mode": "FAST_COMPILE"},
        )  # fmt: skip
    draws = tree["posterior"]["beta"].values.reshape(-1, 2)
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 0.25 * sd).all()
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.2)


@pytest.mark.slow  # nutpie's compilation
def test_nutpie_samples_from_a_warm_start(warm):
    import nutpie

    for i, start in enumerate(warm.values()):
        compiled = start.nutpie()
        trace = nutpie.sample(compiled, draws=400, tune=60, chains=2, seed=1, progress_bar=False)
        tree = start.posterior(trace)
        assert tree["posterior"]["beta"].dims == ("chain", "draw", "x")
        draws = tree["posterior"]["beta"].values.reshape(-1, 2)
        mean, covariance = closed(Y[i])
        sd = np.sqrt(np.diag(covariance))
        assert (np.abs(draws.mean(axis=0) - mean) < 0.25 * sd).all()
        np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.2)
        assert (tree["posterior"]["sigma"].values > 0).all()


def test_the_compiled_density_takes_the_positions(warm):
    """As blackjax does, whose log density is a function of the flat vector."""
    compiled = compile_model(regression(Y[0]))
    data = {"y": Y[0]}
    best = float(compiled.log_joint(warm["0"].mean, data))
    for position in warm["0"].positions:
        assert best - 12 < float(compiled.log_joint(position, data)) <= best + 2


def test_cmdstan_reads_json(warm, tmp_path):
    inits, metric = warm["1"].cmdstan(tmp_path / "stan")
    assert [p.name for p in inits] == ["init_1.json", "init_2.json", "init_3.json"]
    values = json.loads(inits[1].read_text())
    np.testing.assert_allclose(values["beta"], warm["1"].initvals[1]["beta"])
    assert isinstance(values["sigma"], float)
    found = json.loads(metric.read_text())["inv_metric"]
    np.testing.assert_allclose(found, warm["1"].inverse_mass_matrix)


def test_a_scale_that_stan_does_not_have_is_refused(tmp_path):
    from dataclasses import replace

    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        pm.Multinomial("y", 5, p, observed=[1, 2, 2])
    start = pmcl.WarmStart(
        "0", np.zeros((1, 2)), [{"p": np.ones(3) / 3}], np.zeros(2), np.eye(2), "",
        compile_model(model), None,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"\['p'\] have another one"):
        start.cmdstan(tmp_path)
    assert "positions" not in repr(replace(start, warning="k-hat"))
