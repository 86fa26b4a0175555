"""Other priors, known parameters: what a density gives without training, against closed forms."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pmcl

N = 10
TINY = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)
Y = np.random.default_rng(3).normal(1.5, 1.0, size=(3, N))


def normal(mean: float = 0.0, sd: float = 1.0, *, wide: bool = False) -> pm.Model:
    """Two numbers whose sum is observed: all is normal, and they are correlated."""
    with pm.Model(coords={"obs": range(N)}) as model:
        a = pm.Normal("a", mean, pm.Data("prior_sd", sd) if wide else sd)
        b = pm.Normal("b", 0, 2)
        pm.Normal("y", a + b, 1, observed=np.zeros(N), dims="obs")
    return model


def closed(y: np.ndarray, mean: float = 0.0, sd: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (a, b)."""
    before = np.diag([1 / sd**2, 1 / 4])
    covariance = np.linalg.inv(before + len(y) * np.ones((2, 2)))
    return covariance @ (before @ [mean, 0.0] + y.sum() * np.ones(2)), covariance


def evidence(y: np.ndarray, mean: float = 0.0, sd: float = 1.0) -> float:
    scale = np.eye(N) + (sd**2 + 4) * np.ones((N, N))
    return float(stats.multivariate_normal(np.full(N, mean), scale).logpdf(y))


def check(tree: xr.DataTree, mean: float, sd: float) -> None:
    """Within four standard errors of a thousand draws of some efficiency."""
    draws = tree["posterior"].to_dataset()
    for i, y in enumerate(Y):
        centre, covariance = closed(y, mean, sd)
        own = np.stack([draws[v].values[0, :, i] for v in "ab"], axis=1)
        allowed = 4 * np.sqrt(np.diag(covariance) / 500)
        assert (np.abs(own.mean(axis=0) - centre) < allowed).all()
        np.testing.assert_allclose(np.cov(own.T), covariance, atol=0.25 * covariance.max())
    found = tree["dataset_stats"].to_dataset()
    truth = [evidence(y, mean, sd) for y in Y]
    error = np.maximum(found["log_evidence_error"].values, 1e-6)
    assert (np.abs(found["log_evidence"].values - truth) < 4 * error).all()
    assert (found["warning"].values == "").all()


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    """A network that does not know of the hyperparameter, which is a constant."""
    return pmcl.fit_amortized(
        normal(wide=True),
        network=TINY,
        simulations=256,
        steps=100,
        random_seed=1,
        progressbar=False,
    )


# Another prior


@pytest.mark.parametrize("refine", ["auto", True])
def test_another_prior_needs_no_training(posterior, refine):
    other = normal(mean=4.0, sd=0.3)
    tree = posterior.sample({"y": Y}, model=other, refine=refine, random_seed=2)
    check(tree, 4.0, 0.3)


def test_the_networks_own_draws_follow_another_prior(posterior):
    """The flow stands at the mode of the other density: draws without weights are nearly right."""
    other = normal(mean=4.0, sd=0.3)
    tree = posterior.sample({"y": Y}, model=other, refine=False, random_seed=2)
    stats_of = tree["dataset_stats"].to_dataset()
    assert (stats_of["engine"].values == "amortized").all()
    assert (stats_of["efficiency"].values > 0.3).all()


def test_the_same_model_gives_the_same_draws(posterior):
    same = posterior.sample({"y": Y}, model=posterior.compiled.model, random_seed=2)
    plain = posterior.sample({"y": Y}, random_seed=2)
    np.testing.assert_allclose(same["posterior"]["a"].mean(), plain["posterior"]["a"].mean(), 0.1)


def test_another_prior_goes_to_a_store(posterior, tmp_path):
    other = normal(mean=4.0, sd=0.3)
    given = {"model": other, "random_seed": 2}
    stored = posterior.sample({"y": Y}, store=tmp_path / "draws.zarr", fallback=None, **given)
    tree = posterior.sample({"y": Y}, fallback=None, **given)
    np.testing.assert_allclose(stored["posterior"]["a"], tree["posterior"]["a"])


def test_a_sampler_under_another_prior_travels(posterior):
    from distributed.protocol.pickle import dumps, loads

    sampler = posterior.sampler.under(normal(mean=4.0, sd=0.3), {"y": Y})
    arrived = loads(dumps(sampler))
    assert arrived.target.model is not None and arrived.other is not None
    np.testing.assert_allclose(arrived.amortizer.search.starts, sampler.amortizer.search.starts)
    assert arrived.amortizer.search.density.compiled == arrived.other


def test_draws_under_one_prior_start_refinement_under_another(posterior):
    start = posterior.sample({"y": Y}, random_seed=2)
    other = normal(mean=4.0, sd=0.3)
    tree = pmcl.refine(other, {"y": Y}, start=start, random_seed=1, progressbar=False)
    check(tree, 4.0, 0.3)


def test_draws_with_another_transform_are_a_start():
    with pm.Model() as logs:
        scale = pm.Exponential("scale", 1)
        pm.Normal("y", 0, scale, observed=np.zeros(N))
    with pm.Model() as bounded:
        scale = pm.Uniform("scale", 0, 2)
        pm.Normal("y", 0, scale, observed=np.zeros(N))
    start = pmcl.refine(logs, {"y": Y - 1.5}, random_seed=1, progressbar=False)
    assert "scale_interval__" not in start["unconstrained_posterior"]
    tree = pmcl.refine(bounded, {"y": Y - 1.5}, start=start, random_seed=1, progressbar=False)
    grid = np.linspace(1e-3, 2, 4000)
    for i, y in enumerate(Y - 1.5):
        weight = np.exp(stats.norm(0, grid[:, None]).logpdf(y).sum(axis=1) + 10)
        mean = (grid * weight).sum() / weight.sum()
        np.testing.assert_allclose(tree["posterior"]["scale"][0, :, i].mean(), mean, atol=0.04)


def test_variables_that_differ_are_refused_by_name(posterior):
    with pm.Model(coords={"obs": range(N)}) as other:
        a = pm.Normal("a")
        c = pm.Normal("c")
        pm.Normal("y", a + c, 1, observed=np.zeros(N), dims="obs")
    with pytest.raises(ValueError, match="'b' is missing; 'c' is new"):
        posterior.sample({"y": Y}, model=other)
    start = posterior.sample({"y": Y}, 100, random_seed=2)
    with pytest.raises(ValueError, match=r"start: expected draws of 'c' of shape \(\), got a"):
        pmcl.refine(other, {"y": Y}, start=start, progressbar=False)
    with pm.Model(coords={"obs": range(N)}) as other:
        b = pm.Normal("b", shape=2)
        a = pm.Normal("a")
        pm.Normal("y", a + b[0], 1, observed=np.zeros(N), dims="obs")
    with pytest.raises(ValueError, match=r"'b' has dims .*shape \(2,\), expected"):
        posterior.sample({"y": Y}, model=other)


# Sensitivity to hyperparameters

SDS = [0.5, 2.0]


def check_sensitivity(found: xr.DataTree) -> None:
    mean, change = found["mean"].to_dataset(), found["change"].to_dataset()
    assert mean["a"].dims == ("prior_sd", "dataset")
    np.testing.assert_array_equal(mean["prior_sd"], SDS)
    for i, y in enumerate(Y):
        before = closed(y)
        for j, sd in enumerate(SDS):
            at = {"prior_sd": j, "dataset": i}
            centre, covariance = closed(y, sd=sd)
            scale = np.sqrt(np.diag(covariance))
            for k, v in enumerate("ab"):
                # weights that are all alike have no error: 1e-3 is that of float32 in the network
                for group, truth in (("mean", centre[k]), ("sd", scale[k])):
                    value = float(found[group][v][at])
                    assert abs(value - truth) < 4 * float(found[f"{group}_error"][v][at]) + 1e-3
            truth = (centre[0] - before[0][0]) / np.sqrt(before[1][0, 0])
            assert abs(float(change["a"][at]) - truth) < 4 * float(found["change_error"]["a"][at])
            truth = scale[0] / np.sqrt(before[1][0, 0])
            error = float(found["sd_ratio_error"]["a"][at])
            assert abs(float(found["sd_ratio"]["a"][at]) - truth) < 4 * error
            said = float(found["dataset_stats"]["log_evidence"][at])
            np.testing.assert_allclose(said, evidence(y, sd=sd), atol=0.1)


@pytest.fixture(scope="module")
def knowing() -> pmcl.AmortizedPosterior:
    """A network that is trained over the prior's sd."""
    return pmcl.fit_amortized(
        normal(wide=True), covariates={"prior_sd": pm.Uniform.dist(0.3, 3.0)},
        network=TINY, simulations=256, steps=100, random_seed=1, progressbar=False,
    )  # fmt: skip


def test_sensitivity_is_the_conjugate_one_without_a_network():
    found = pmcl.sensitivity(normal(wide=True), {"y": Y}, {"prior_sd": SDS})
    check_sensitivity(found)


def test_sensitivity_is_the_conjugate_one_with_a_network_that_knows_no_setting(posterior):
    check_sensitivity(pmcl.sensitivity(posterior, {"y": Y}, {"prior_sd": SDS}))


def test_a_hyperparameter_is_trained_over_from_the_model_to_the_draws(knowing):
    """Of one network, the posterior under any prior sd; the network sees it."""
    for sd in (0.4, 2.5):
        tree = knowing.sample({"y": Y, "prior_sd": np.full(3, sd)}, random_seed=2)
        check(tree, 0.0, sd)
    assert (tree["constant_data"]["prior_sd"].values == 2.5).all()
    check_sensitivity(
        pmcl.sensitivity(knowing, {"y": Y, "prior_sd": np.ones(3)}, {"prior_sd": SDS})
    )


@pytest.fixture(scope="module")
def sensitive() -> xr.DataTree:
    with pm.Model(coords={"obs": range(N)}) as model:
        a = pm.Normal("a", pm.Data("prior_mean", 0.0), pm.Data("prior_sd", 1.0))
        pm.Normal("y", a, 1, observed=np.zeros(N), dims="obs")
    return pmcl.sensitivity(
        model, {"y": Y}, {"prior_mean": [0.0, 3.0], "prior_sd": [0.1, 0.5, 1.0]},
        quantities={"positive": lambda p: p["a"] > 1.5}, random_seed=4,
    )  # fmt: skip


def test_combinations_of_settings_have_a_dim_each(sensitive):
    for i, y in enumerate(Y):
        for m in (0.0, 3.0):
            for s in (0.1, 0.5, 1.0):
                at = {"prior_mean": m, "prior_sd": s}
                precise = 1 / s**2 + N
                truth = stats.norm((m / s**2 + y.sum()) / precise, precise**-0.5)
                told = {
                    k: sensitive[k].to_dataset().sel(at).isel(dataset=i)
                    for k in ("mean", "mean_error", "sd")
                }
                np.testing.assert_allclose(told["mean"]["a"], truth.mean(), atol=0.05)
                np.testing.assert_allclose(told["sd"]["a"], truth.std(), rtol=0.1)
                chance, error = (float(told[k]["positive"]) for k in ("mean", "mean_error"))
                assert abs(chance - truth.sf(1.5)) < 4 * error + 1e-3


def test_sensitivity_of_many_datasets_is_read_in_parts(knowing, tmp_path, monkeypatch):
    from pmcl.diagnostics import hyperparameters

    data, settings = {"y": Y, "prior_sd": np.ones(3)}, {"prior_sd": SDS}
    whole = pmcl.sensitivity(knowing, data, settings)
    monkeypatch.setattr(hyperparameters, "_READ", 2)
    stored = pmcl.sensitivity(knowing, data, settings, store=tmp_path / "draws.zarr")
    assert (tmp_path / "draws.zarr").is_dir()
    assert [*stored["mean"]["dataset"].values] == [*whole["mean"]["dataset"].values]
    check_sensitivity(stored)
    for group in ("mean", "sd_ratio", "baseline_sd"):
        a, b = (t[group]["a"].transpose("dataset", ...) for t in (stored, whole))
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_sensitivity_is_plotted(sensitive):
    import matplotlib

    matplotlib.use("agg")
    left, right = pmcl.plot_sensitivity(sensitive, "1", setting="prior_sd")
    assert left.get_xlabel() == "prior_sd" and right.get_title() == "positive"
    np.testing.assert_allclose(
        left.lines[0].get_ydata(), sensitive["mean"]["a"][0, :, 1], rtol=1e-12
    )
    with pytest.raises(ValueError, match="setting: expected one of"):
        pmcl.plot_sensitivity(sensitive, setting="a")


def test_what_is_no_data_of_the_model_is_no_setting():
    with pytest.raises(ValueError, match=r"settings: expected names of `pm.Data` .*'prior_sd'"):
        pmcl.sensitivity(normal(wide=True), {"y": Y}, {"sd": [1.0]})
    with pytest.raises(ValueError, match="a sequence of values of shape"):
        pmcl.sensitivity(normal(wide=True), {"y": Y}, {"prior_sd": [[1.0]]})
    with pm.Model(coords={"obs": range(N)}) as whole:  # 2.5 would be 2
        a = pm.Normal("a", 0, pm.Data("prior_sd", np.array(1)))
        pm.Normal("y", a, 1, observed=np.zeros(N), dims="obs")
    with pytest.raises(ValueError, match=r"'prior_sd'.: expected values of type int.*1.0"):
        pmcl.sensitivity(whole, {"y": Y}, {"prior_sd": [1.5, 2.5]})
