"""The three calls, end to end, on a conjugate model whose posterior is known in closed form."""

import json
import warnings
from collections import Counter
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.typing import ArrayLike
from scipy.stats import norm

import pmcl
from pmcl import metrics
from pmcl.diagnostics.monitoring import _LEAST, _as_normal

# Not a plain float: PyTensor keeps 1.5 in float32, and its logarithm with it.
SIGMA, ROWS = np.float64(1.5), 20


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        x = pm.Data("x", np.ones(ROWS), dims="obs")
        slope = pm.Normal("slope", 0, 1)
        pm.Deterministic("doubled", 2 * slope)
        pm.Normal("y", slope * x, SIGMA, observed=np.zeros(ROWS), dims="obs")
    return model


@pytest.fixture(scope="module")
def posterior(model: pm.Model) -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(
        model,
        covariates={"x": pm.Normal.dist(0, 1)},
        network=pmcl.Network(
            pmcl.DeepSet(outputs=8, width=16, depth=1, pooled=16, head_width=32, head_depth=1),
            pmcl.CouplingFlow(layers=1, width=16, depth=1, knots=4, affine_width=32),
            whiten=False,  # far from simulations it is wrong, which what is tested here repairs
        ),
        steps=500,
        batch_size=64,
        learning_rate=3e-3,
        warmup=50,
        random_seed=1,
        progressbar=False,
    )


def make(n: int, *, slope: float, seed: int, rows: int = ROWS, scale: float = 1.0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=(n, rows))
    y = slope * x + SIGMA * rng.normal(size=(n, rows))
    dims = ("dataset", "obs")
    names = [f"d{i}" for i in range(n)]
    return xr.Dataset({"x": (dims, x), "y": (dims, y)}, coords={"dataset": names})


def exact(data: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of slope: conjugate normal with prior N(0, 1) and known sigma."""
    precision = 1 + (data["x"] ** 2).sum("obs") / SIGMA**2
    mean = (data["x"] * data["y"]).sum("obs") / SIGMA**2 / precision
    return mean.values, 1 / np.sqrt(precision.values)


@pytest.fixture(scope="module")
def data() -> xr.Dataset:
    return make(4, slope=0.7, seed=0)


@pytest.fixture(scope="module")
def shifted() -> xr.Dataset:
    """Far from the prior predictive: a slope of 6 prior sds and covariates four times as wide."""
    return make(4, slope=6.0, seed=3, scale=4.0)


GROUPS = {"log_likelihood": True, "log_prior": True, "posterior_predictive": True}


@pytest.fixture(scope="module")
def idata(posterior: pmcl.AmortizedPosterior, data: xr.Dataset) -> xr.DataTree:
    return posterior.sample(
        data,
        2000,
        refine=False,
        random_seed=2,
        **GROUPS,
    )


@pytest.fixture(scope="module")
def reference(model: pm.Model, data: xr.Dataset) -> xr.DataTree:
    return pmcl.sample_reference(model, data, random_seed=3, progressbar=False, **GROUPS)


PLAIN = pmcl.Replay(capacity=3, weighting="dataset")


@pytest.fixture(scope="module")
def adapted(posterior: pmcl.AmortizedPosterior, shifted: xr.Dataset) -> pmcl.AmortizedPosterior:
    return posterior.adapt(
        shifted,
        name="far",
        strategy=PLAIN,
        steps=1200,
        learning_rate=3e-3,
        progressbar=False,
    )


def test_amortized_posterior_is_the_conjugate_one(idata: xr.DataTree, data: xr.Dataset) -> None:
    mean, sd = exact(data)
    draws = idata["posterior"]["slope"]
    # 500 steps of a tiny network: a quarter of a posterior sd, and the sd within a quarter.
    assert np.abs(draws.mean(("chain", "draw")) - mean).max() < 0.25 * sd.max()
    np.testing.assert_allclose(draws.std(("chain", "draw")), sd, rtol=0.25)


def test_groups_dims_and_attributes(idata: xr.DataTree) -> None:
    assert {
        "posterior",
        "unconstrained_posterior",
        "sample_stats",
        "dataset_stats",
        "observed_data",
        "constant_data",
        "log_likelihood",
        "log_prior",
        "posterior_predictive",
    } == set(idata.children)
    assert dict(idata["posterior"].sizes) == {"chain": 1, "draw": 2000, "dataset": 4}
    assert list(idata["posterior"]["dataset"].values) == ["d0", "d1", "d2", "d3"]
    np.testing.assert_allclose(idata["posterior"]["doubled"], 2 * idata["posterior"]["slope"])
    assert set(idata["sample_stats"].data_vars) == {
        "log_prior",
        "log_likelihood",
        "log_q",
        "log_weight",
    }
    assert idata["posterior"].attrs["inference_library"] == "pmcl"
    assert idata["posterior"].attrs["sampling_time"] > 0
    assert idata["log_likelihood"]["y"].dims == ("chain", "draw", "dataset", "obs")
    assert idata["posterior_predictive"]["y"].shape == (1, 2000, 4, ROWS)


def test_densities_in_sample_stats(idata: xr.DataTree, data: xr.Dataset) -> None:
    slope = idata["posterior"]["slope"].values[0]  # (draw, dataset)
    np.testing.assert_allclose(
        idata["sample_stats"]["log_prior"].values[0], norm.logpdf(slope), rtol=1e-9
    )
    terms = norm.logpdf(data["y"].values, slope[..., None] * data["x"].values, SIGMA)
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values[0], terms, rtol=1e-8)
    np.testing.assert_allclose(
        idata["sample_stats"]["log_likelihood"].values[0], terms.sum(-1), rtol=1e-9
    )
    np.testing.assert_allclose(idata["log_prior"]["slope"].values[0], norm.logpdf(slope), rtol=1e-9)
    weights = np.exp(idata["sample_stats"]["log_weight"])
    np.testing.assert_allclose(weights.sum(("chain", "draw")), 1, rtol=1e-6)


def test_evidence_is_the_closed_form(idata: xr.DataTree, data: xr.Dataset) -> None:
    from scipy.stats import multivariate_normal

    stats = idata["dataset_stats"]
    for i in range(4):
        x = data["x"].values[i]
        cov = SIGMA**2 * np.eye(ROWS) + np.outer(x, x)
        exactly = multivariate_normal.logpdf(data["y"].values[i], np.zeros(ROWS), cov)
        error = float(stats["log_evidence_error"][i])
        assert abs(float(stats["log_evidence"][i]) - exactly) < 4 * error + 1e-3
        assert error < 0.2


def test_log_prob_is_the_log_q_of_the_draws(
    posterior: pmcl.AmortizedPosterior, idata: xr.DataTree, data: xr.Dataset
) -> None:
    value = posterior.log_prob(idata, data)
    assert value.dims == ("chain", "draw", "dataset")
    np.testing.assert_allclose(value, idata["sample_stats"]["log_q"], atol=2e-3)


def test_same_seed_same_draws(posterior: pmcl.AmortizedPosterior, data: xr.Dataset) -> None:
    a, b = (posterior.sample(data, 50, refine=False, random_seed=9)["posterior"] for _ in range(2))
    xr.testing.assert_identical(a["slope"], b["slope"])
    c = posterior.sample(data, 50, refine=False, random_seed=10)["posterior"]
    assert not np.array_equal(a["slope"], c["slope"])


def test_single_dataset_and_ragged_data(posterior: pmcl.AmortizedPosterior) -> None:
    alone = make(1, slope=0.5, seed=5).isel(dataset=0, drop=True)
    assert posterior.sample(alone, 20, refine=False)["posterior"].sizes["dataset"] == 1
    short = make(1, slope=0.5, seed=6, rows=12).isel(dataset=0, drop=True)
    tree = posterior.sample({"long": alone, "short": short}, 20, refine=False, log_likelihood=True)
    lonely = posterior.sample({"short": short}, 20, refine=False)
    both = tree["sample_stats"].to_dataset().sel(dataset="short")
    z = tree["unconstrained_posterior"]["slope"].sel(dataset="short").values[0]
    expected = norm.logpdf(short["y"].values, z[:, None] * short["x"].values, SIGMA).sum(-1)
    np.testing.assert_allclose(both["log_likelihood"].values[0], expected, rtol=1e-8)
    assert lonely["observed_data"].sizes["obs"] == 12
    single = pmcl.one(tree, "short")
    assert single["observed_data"].sizes["obs"] == 12
    assert single["log_likelihood"].sizes["obs"] == 12
    assert np.isfinite(single["log_likelihood"]["y"]).all()


def test_adaptation_reaches_the_conjugate_posterior(
    posterior: pmcl.AmortizedPosterior, adapted: pmcl.AmortizedPosterior, shifted: xr.Dataset
) -> None:
    mean, sd = exact(shifted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        before = posterior.sample(shifted, 1000, refine=False, random_seed=0)["posterior"]["slope"]
    after = adapted.sample(shifted, 1000, refine=False, random_seed=0)["posterior"]["slope"]
    wrong = np.abs(before.mean(("chain", "draw")) - mean) / sd
    right = np.abs(after.mean(("chain", "draw")) - mean) / sd
    assert wrong.min() > 2  # the test is a test: the pretrained network is far off here
    assert right.max() < 0.5
    np.testing.assert_allclose(after.std(("chain", "draw")), sd, rtol=0.3)
    assert adapted.records[0].name == "far"
    assert adapted.memory.tasks == ("far",)
    assert posterior.records == () and len(posterior.memory) == 0


def test_strategy_is_part_of_the_state(adapted: pmcl.AmortizedPosterior, data: xr.Dataset) -> None:
    again = adapted.adapt(data, name="near", steps=3, progressbar=False)
    assert again.strategy == PLAIN
    assert again.records[1].record.rehearsed == 1
    assert again.memory.tasks == ("far", "near")


def test_warns_by_name_where_the_draws_are_not_to_be_trusted(
    posterior: pmcl.AmortizedPosterior, shifted: xr.Dataset
) -> None:
    with pytest.warns(UserWarning, match="'d0'.*k-hat"):
        tree = posterior.sample(shifted, 500, refine=False, random_seed=0)
    assert (tree["dataset_stats"]["khat"] > 0.7).all()
    assert all("k-hat" in w for w in tree["dataset_stats"]["warning"].values)


def test_nuts_takes_over_from_the_network_where_it_is_poor(
    posterior: pmcl.AmortizedPosterior, data: xr.Dataset, shifted: xr.Dataset, tmp_path: Path
) -> None:
    both = xr.concat([data.isel(dataset=[0, 1]), shifted.isel(dataset=[2, 3])], "dataset")
    options = {"refine": False, "fallback": "nuts", "random_seed": 0, "progressbar": False}
    tree = posterior.sample(both, 2000, log_likelihood=True, **options)
    stats = tree["dataset_stats"].to_dataset()
    assert stats["engine"].values.tolist() == ["amortized"] * 2 + ["nuts"] * 2
    assert not stats["warning"].values.any()
    # what its diagnostics were is there, and those of NUTS beside it
    assert (stats["khat"].values[2:] > 0.7).all() and (stats["rhat"].values[2:] < 1.05).all()
    assert np.isnan(stats["rhat"].values[:2]).all()
    mean, sd = exact(both)
    slope = tree["posterior"]["slope"]
    assert (np.abs(slope.mean(("chain", "draw")) - mean) / sd).max() < 0.15
    np.testing.assert_allclose(slope.std(("chain", "draw")), sd, rtol=0.12)
    # all that is given of these draws is of these draws, and they count alike
    terms = norm.logpdf(both["y"].values, slope.values[..., None] * both["x"].values, SIGMA)
    np.testing.assert_allclose(tree["log_likelihood"]["y"], terms, rtol=1e-8)
    weight = tree["sample_stats"]["log_weight"].values[..., 2:]
    np.testing.assert_allclose(weight, -np.log(2000))
    stored = posterior.sample(both, 2000, store=tmp_path / "draws.zarr", **options)
    np.testing.assert_array_equal(stored["posterior"]["slope"], slope)


def test_retention_against_references(
    posterior: pmcl.AmortizedPosterior,
    adapted: pmcl.AmortizedPosterior,
    data: xr.Dataset,
    reference: xr.DataTree,
) -> None:
    # one task, before it and after another one: the matrix is what `compare` says, cell by cell
    found = pmcl.retention(
        {"pretraining": posterior, "far": adapted}, {"near": data}, {"near": reference}, draws=500
    )
    assert found["mmd2"].dims == ("after", "task") and found["mmd2"].shape == (2, 1)
    tree = adapted.sample(data, 500, refine=False, random_seed=0)
    expected = pmcl.compare(tree, reference, draws=500)
    assert float(found["mmd2"].sel(after="far")[0]) == pytest.approx(float(expected["mean_mmd2"]))
    assert float(found["mmd2"].sel(after="far")[0]) > float(
        found["mmd2"].sel(after="pretraining")[0]
    )
    assert np.isnan(found.attrs["backward_transfer"])  # of one task there is none
    with pytest.raises(ValueError, match=r"reference for every task, \['near'\] have none"):
        pmcl.retention({"a": posterior}, {"near": data}, {})


def test_predict_at_new_covariates(posterior: pmcl.AmortizedPosterior, data: xr.Dataset) -> None:
    new = np.array([-2.0, 0.0, 5.0])
    tree = posterior.predict(data, {"x": new}, draws=4000, refine=False, random_seed=1)
    y = tree["predictions"]["y"]
    assert y.shape == (1, 4000, 4, 3)
    slope = tree["posterior"]["slope"]
    expected = slope.mean(("chain", "draw")).values[:, None] * new
    spread = np.sqrt(slope.var(("chain", "draw")).values[:, None] * new**2 + SIGMA**2)
    z = (y.mean(("chain", "draw")).values - expected) / (spread / np.sqrt(4000))
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(y.std(("chain", "draw")), spread, rtol=0.06)
    np.testing.assert_allclose(tree["predictions_constant_data"]["x"], np.tile(new, (4, 1)))


def test_reference_is_the_conjugate_posterior(reference: xr.DataTree, data: xr.Dataset) -> None:
    mean, sd = exact(data)
    draws = reference["posterior"]["slope"]
    assert np.abs(draws.mean(("chain", "draw")) - mean).max() < 0.1 * sd.max()
    np.testing.assert_allclose(draws.std(("chain", "draw")), sd, rtol=0.08)
    assert (reference["dataset_stats"]["rhat"] < 1.02).all()
    assert (reference["dataset_stats"]["divergences"] == 0).all()


def test_compare_with_the_reference(
    posterior: pmcl.AmortizedPosterior,
    idata: xr.DataTree,
    reference: xr.DataTree,
    shifted: xr.Dataset,
    model: pm.Model,
) -> None:
    good = pmcl.compare(idata, reference)
    assert set(good.data_vars) >= {"bias_mean", "bias_sd", "mmd2", "null_mmd2", "mean_mmd2"}
    assert good.sizes["dataset"] == 4
    assert abs(float(good["mean_null_mmd2"])) < 0.01
    mean, sd = exact(make(4, slope=0.7, seed=0))
    draws = idata["posterior"]["slope"]
    by_hand = np.abs(draws.mean(("chain", "draw")).values - mean) / sd
    np.testing.assert_allclose(good["bias_mean"], by_hand, atol=0.08)
    itself = pmcl.compare(reference, reference)
    assert float(itself["mean_bias_mean"]) < 1e-12
    # a reference for some of the datasets, in an order of its own, is compared by name
    some = pmcl.compare(idata, reference.sel(dataset=["d2", "d0"]))
    assert some["dataset"].values.tolist() == ["d2", "d0"]
    np.testing.assert_allclose(some["bias_mean"], good["bias_mean"].sel(dataset=some["dataset"]))
    np.testing.assert_allclose(
        pmcl.compare(pmcl.one(idata, "d1"), pmcl.one(reference, "d1"))["bias_mean"],
        good["bias_mean"].sel(dataset=["d1"]),
    )
    group = reference["unconstrained_posterior"].to_dataset()
    other = reference.assign(unconstrained_posterior=xr.DataTree(group.rename(slope="other")))
    with pytest.raises(ValueError, match="same parameters in both, got .'slope'.*'other'"):
        pmcl.compare(idata, other)
    with pytest.raises(TypeError, match="draws: expected a whole number, got 2.5"):
        posterior.sample(make(2, slope=0, seed=1), 2.5, refine=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all datasets of the reference"):
        pmcl.compare(posterior.sample(make(2, slope=0, seed=1), 50, refine=False), reference)


def test_densities_of_draws_go_by_the_names_of_datasets(
    posterior: pmcl.AmortizedPosterior, idata: xr.DataTree, data: xr.Dataset
) -> None:
    expected = posterior.log_prob(idata, data)
    xr.testing.assert_equal(posterior.log_prob(idata["unconstrained_posterior"], data), expected)
    with pytest.raises(ValueError, match=r"`unconstrained_posterior`, \['slope'\] are not there"):
        posterior.log_prob(idata["sample_stats"], data)
    turned = posterior.log_prob(idata, data.isel(dataset=[3, 1, 0, 2]))
    assert turned["dataset"].values.tolist() == ["d3", "d1", "d0", "d2"]
    np.testing.assert_allclose(turned.sel(dataset=expected["dataset"]), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="draws of the datasets .'e0'.*those of .'d0'"):
        posterior.log_prob(idata, data.assign_coords(dataset=["e0", "e1", "e2", "e3"]))
    with pytest.raises(TypeError, match="expected results of `sample`.*got dict"):
        posterior.log_prob({"slope": 0.0}, data)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="a position below 4, got 4"):
        pmcl.one(idata, 4)


def test_compare_goes_by_labels() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 200, 1, 3)) + 10 * np.arange(3)
    dims = ("chain", "draw", "dataset", "g")
    group = xr.Dataset({"b": (dims, draws)}, coords={"g": list("abc"), "dataset": ["0"]})
    trees = [
        xr.DataTree.from_dict({"unconstrained_posterior": some})
        for some in (group, group.isel(g=[2, 0, 1]))
    ]
    assert float(pmcl.compare(*trees)["mean_bias_mean"]) < 1e-12


def test_one_dataset_goes_into_arviz(idata: xr.DataTree) -> None:
    import matplotlib

    matplotlib.use("Agg")
    single = pmcl.one(idata, "d1")
    assert "dataset" not in single["posterior"].dims
    summary = az.summary(single, var_names=["slope"])
    assert np.isclose(
        float(summary.loc["slope", "mean"]),
        float(idata["posterior"]["slope"].sel(dataset="d1").mean()),
        atol=0.01,
    )
    assert az.loo(single).elpd < 0
    for plot in (az.plot_dist, az.plot_forest, az.plot_trace, az.plot_ppc_dist):
        plot(single, backend="matplotlib")
    az.plot_pair(pmcl.one(idata, 0), var_names=["slope", "doubled"], backend="matplotlib")
    az.summary(idata)  # the whole tree too: dataset is a dim like any other
    with pytest.raises(KeyError, match="'d1'"):
        pmcl.one(idata, "d9")


def test_errors_say_what_was_expected(
    posterior: pmcl.AmortizedPosterior, adapted: pmcl.AmortizedPosterior, data: xr.Dataset
) -> None:
    with pytest.raises(pmcl.DataError, match=r"\['x'\] did not come"):
        posterior.sample(data[["y"]], 10, refine=False)
    with pytest.raises(ValueError, match="draws: expected at least 1"):
        posterior.sample(data, 0)
    with pytest.raises(ValueError, match="var_names"):
        posterior.sample(data, 10, var_names=["intercept"])
    with pytest.raises(ValueError, match="has been adapted to"):
        adapted.pretrain(10)
    bare = adapted
    for name in [r.name for r in adapted.records]:
        bare = bare.forget(name)
    with pytest.raises(ValueError, match="has been adapted to tasks that it was made to forget"):
        bare.pretrain(10)  # its weights still are what data made of them
    with pytest.raises(ValueError, match=r"new_covariates: expected \['x'\]"):
        posterior.predict(data, {"z": np.zeros(3)})
    with pytest.raises(AttributeError, match="fitt"):
        pmcl.fitt  # noqa: B018


def test_pretraining_goes_on(posterior: pmcl.AmortizedPosterior) -> None:
    more = posterior.pretrain(100, progressbar=False)
    assert [r.steps for r in more.pretraining] == [500, 100]
    assert len(posterior.pretraining) == 1
    assert more.pretraining[1].validation[-1] < posterior.pretraining[0].validation[-1] + 0.1


def test_repr_shows_what_was_chosen(posterior: pmcl.AmortizedPosterior) -> None:
    text = repr(posterior)
    assert "exchangeable along dim 'obs'" in text and "inside jit (JAX)" in text


def test_refinement_is_exact_far_from_the_prior_predictive(
    posterior: pmcl.AmortizedPosterior, shifted: xr.Dataset
) -> None:
    mean, sd = exact(shifted)
    tree = posterior.sample(shifted, 2000, random_seed=0)  # "auto" sees that they need it
    stats = tree["dataset_stats"].to_dataset()
    assert (stats["khat_amortized"] > 0.7).all() and (stats["khat"] < 0.7).all()
    assert set(stats["engine"].values) <= {"aligned", "refined", "mixture"}
    assert not stats["warning"].values.any()
    slope = tree["posterior"]["slope"]
    assert (np.abs(slope.mean(("chain", "draw")) - mean) / sd).max() < 0.1
    np.testing.assert_allclose(slope.std(("chain", "draw")), sd, rtol=0.1)
    assert tree["posterior"].attrs["engine"] != "amortized"


def test_refinement_by_lbfgs_with_a_network(
    posterior: pmcl.AmortizedPosterior, shifted: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    mean, sd = exact(shifted)
    monkeypatch.setattr("pmcl.search.search._LONGEST_DENSE", 0)
    settings = pmcl.Refine(steps=30, enough=2.0)
    slope = posterior.sample(shifted, 1000, refine=settings, random_seed=0)["posterior"]["slope"]
    assert (np.abs(slope.mean(("chain", "draw")) - mean) / sd).max() < 0.15


def test_refinement_leaves_alone_what_is_good(
    posterior: pmcl.AmortizedPosterior, data: xr.Dataset
) -> None:
    plain = posterior.sample(data, 500, refine=False, random_seed=0)
    good = plain["dataset_stats"]["khat"].values < 0.4
    assert good.any()
    tree = posterior.sample(data, 500, random_seed=0, correct=None)
    stats = tree["dataset_stats"].to_dataset()
    assert set(stats["note"].values[good]) == {"good as it is"}
    a, b = (t["unconstrained_posterior"]["slope"].values[:, :, good] for t in (plain, tree))
    np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="refine: expected True, False, 'auto'"):
        posterior.sample(data, 10, refine="always")


def test_refinement_of_one_dataset_and_of_few_draws(
    posterior: pmcl.AmortizedPosterior, shifted: xr.Dataset
) -> None:
    mean, sd = exact(shifted)
    tree = posterior.sample(shifted.isel(dataset=0, drop=True), 30, refine=True, random_seed=0)
    slope = tree["posterior"]["slope"]
    assert slope.shape == (1, 30, 1)
    assert abs(float(slope.mean()) - float(mean[0])) < 1.0 * float(sd[0])


def test_simulation_based_calibration(posterior: pmcl.AmortizedPosterior) -> None:
    import arviz_plots

    tree = pmcl.calibrate(posterior, simulations=300, draws=100, random_seed=3, progressbar=False)
    values = tree["prior_sbc"]["slope"]
    assert values.dims == ("chain", "draw") and values.shape == (1, 300)
    assert ((values > 0) & (values < 1)).all()
    arviz_plots.plot_ecdf_pit(tree, backend="none")
    refined = pmcl.calibrate(
        posterior, simulations=300, draws=100, refine=True, random_seed=3, progressbar=False
    )
    assert float(refined["uniformity"]["slope"]) > 1e-3
    assert set(refined["dataset_stats"]["engine"].values) != {"amortized"}
    for level, held, low, high in zip(
        refined["coverage"]["level"].values,
        refined["coverage"]["slope"].values,
        refined["coverage"]["low"].values,
        refined["coverage"]["high"].values,
        strict=True,
    ):
        assert low < level < high
        assert low <= held <= high
    assert float(refined["tarp"]["p_value"]) > 1e-3
    # The exact posterior variance of the simulations' rows, about 1 / (1 + 20 / 1.5^2).
    contraction = refined["contraction"]["slope"]
    assert contraction.dims == ("simulation",)
    assert abs(float(contraction.mean()) - 0.89) < 0.03
    assert abs(float(refined["z_score"]["slope"].std()) - 1) < 0.15
    assert float(refined["correlation"]["slope"]) > 0.9


def test_posterior_calibration_around_data(
    posterior: pmcl.AmortizedPosterior, shifted: xr.Dataset
) -> None:
    two = shifted.isel(dataset=slice(2))
    options = {"simulations": 200, "draws": 100, "random_seed": 4, "progressbar": False}
    tree = pmcl.calibrate(posterior, two, refine=True, **options)
    assert tree["posterior_sbc"]["slope"].shape == (2, 1, 200)
    assert (tree["uniformity"]["slope"] > 1e-3).all()
    assert tree["dataset_stats"]["khat"].dims == ("dataset", "simulation")
    # The network has never seen such data: its own draws are not calibrated there.
    plain = pmcl.calibrate(posterior, two, refine=False, **options)
    assert (plain["uniformity"]["slope"] < 1e-3).all()
    assert (plain["tarp"]["p_value"] < 1e-2).all()
    gap = shifted.isel(dataset=[0]).copy(deep=True)
    gap["y"][0, 3] = np.nan
    with pytest.raises(ValueError, match="the datasets have gaps"):
        pmcl.calibrate(posterior, gap, **options)


def test_corrected_draws(posterior: pmcl.AmortizedPosterior, data: xr.Dataset) -> None:
    mean, _ = exact(data)
    plain = posterior.sample(data, 4000, refine=False, random_seed=0)
    resampled = posterior.sample(data, 4000, refine=False, correct="psis", random_seed=0)
    assert np.abs(resampled["posterior"]["slope"].mean(("chain", "draw")) - mean).max() < 0.05
    # what is said of the proposal is said of the same draws
    stats = resampled["dataset_stats"].to_dataset()
    xr.testing.assert_equal(stats["khat"], plain["dataset_stats"]["khat"])
    variance = (
        plain["sample_stats"].to_dataset().pipe(lambda s: s.log_prior + s.log_likelihood - s.log_q)
    ).var(("chain", "draw"), ddof=1)
    np.testing.assert_allclose(stats["sc_variance"], variance, rtol=1e-5)


def test_checks_of_arviz_by_dataset(posterior: pmcl.AmortizedPosterior) -> None:
    data = {
        f"d{i}": make(1, slope=0.5, seed=i, rows=n).isel(dataset=0) for i, n in ((0, 12), (1, 20))
    }
    data["d1"]["y"] = 4 * data["d1"]["y"]  # noise that the model does not know
    tree = posterior.sample(data, 500, random_seed=0, **GROUPS)
    found, power, check = pmcl.loo(tree), pmcl.psense(tree), pmcl.check_predictive(tree)
    for name, rows in (("d0", 12), ("d1", 20)):
        alone = pmcl.one(tree, name)
        expected = az.loo(alone, pointwise=True)
        here = found.sel(dataset=name)
        assert int(here["n"]) == rows
        np.testing.assert_allclose(here["elpd"], expected.elpd)
        np.testing.assert_allclose(here["se"], expected.se)
        np.testing.assert_allclose(here["khat"], expected.pareto_k.max())
        summary = az.psense_summary(alone, round_to=12)
        row = power.sel(dataset=name, parameter="slope")
        np.testing.assert_allclose(row["prior"], summary.loc["slope", "prior"])
        np.testing.assert_allclose(row["likelihood"], summary.loc["slope", "likelihood"])
        replicated = alone["posterior_predictive"]["y"].values[0].std(axis=1)
        own = alone["observed_data"]["y"].values.std()
        p_value = check["p_value"]["y"].sel(dataset=name, statistic="sd")
        np.testing.assert_allclose(p_value, np.mean(replicated > own))
    assert 0.01 < float(check["p_value"]["y"].sel(dataset="d0", statistic="sd")) < 0.99
    assert float(check["p_value"]["y"].sel(dataset="d1", statistic="sd")) < 0.01
    assert float(check["loo_pit"]["y"].sel(dataset="d1")) < 0.05
    assert float(check["loo_pit"]["y"].sel(dataset="d0")) > 0.01
    terms = tree["log_likelihood"].to_dataset()
    terms = terms.where(terms["dataset"] != "d1")  # as where nothing was observed
    nothing = pmcl.psense(xr.DataTree.from_dict({**tree.children, "log_likelihood": terms}))
    xr.testing.assert_allclose(nothing.sel(dataset="d0"), power.sel(dataset="d0"))
    assert abs(nothing["likelihood"].sel(dataset="d1", parameter="slope").item()) < 1e-6
    assert nothing["prior"].sel(dataset="d1", parameter="slope") > 0.05
    with pytest.raises(ValueError, match=r"ask for them with `sample\(..., log_likelihood=True\)"):
        pmcl.loo(posterior.sample(data, 50, random_seed=0))


def test_nuts_and_refinement_have_the_same_groups(
    model: pm.Model, data: xr.Dataset, reference: xr.DataTree
) -> None:
    refined = pmcl.refine(model, data, draws=4000, random_seed=3, progressbar=False, **GROUPS)
    for tree in (reference, refined):
        slope = tree["posterior"]["slope"]
        value = tree["log_likelihood"]["y"]
        line = (slope * data["x"]).transpose(*value.dims)
        terms = norm.logpdf(data["y"].values, line, SIGMA)
        assert value.dims == ("chain", "draw", "dataset", "obs")
        np.testing.assert_allclose(value, terms, rtol=1e-8)
        np.testing.assert_allclose(tree["log_prior"]["slope"], norm.logpdf(slope), rtol=1e-9)
        noise = ((tree["posterior_predictive"]["y"] - line) / SIGMA).values
        assert noise.mean() == pytest.approx(0, abs=5 / noise.size**0.5)
        assert noise.std() == pytest.approx(1, rel=0.02)
        # one draw of the data for each of the parameters, in their order
        assert abs(np.corrcoef(noise.sum(-1).ravel(), slope.values.ravel())[0, 1]) < 0.05
        # each value predicted from the others, in closed form
        x, y = data["x"].values, data["y"].values
        precision = 1 + ((x**2).sum(1, keepdims=True) - x**2) / SIGMA**2
        mean = ((x * y).sum(1, keepdims=True) - x * y) / SIGMA**2 / precision
        left_out = norm.logpdf(y, x * mean, np.sqrt(SIGMA**2 + x**2 / precision)).sum(axis=1)
        np.testing.assert_allclose(pmcl.loo(tree)["elpd"], left_out, atol=0.15)
    assert pmcl.check_predictive(reference)["p_value"]["y"].sizes["dataset"] == 4


def test_a_change_in_a_sequence_is_seen(posterior: pmcl.AmortizedPosterior) -> None:
    before = make(60, slope=0.5, seed=40)
    after = make(20, slope=-1.5, seed=41).assign_coords(dataset=[f"late {i}" for i in range(20)])
    with pytest.warns(UserWarning, match=r"dataset 'late \d' on .* not like the first 30: .*param"):
        found = pmcl.monitor(posterior, [before, after], baseline=30, random_seed=0)
    alarm = found["alarm"].values
    assert not alarm[:60].any()
    assert alarm[64:].all()
    assert bool(found["raised"].sel(series="parameters")[-1])
    np.testing.assert_array_equal(found["task"], np.repeat([0, 1], [60, 20]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = pmcl.monitor(posterior, before, baseline=30, random_seed=0)
    assert not quiet["alarm"].any()
    with pytest.raises(ValueError, match="baseline: expected at least 10 datasets and fewer than"):
        pmcl.monitor(posterior, before, baseline=60)


def test_datasets_of_other_lengths_are_no_change(posterior: pmcl.AmortizedPosterior) -> None:
    """The evidence is a sum over values: that of a half is no evidence of anything."""
    whole = make(50, slope=0.5, seed=40)
    half = {
        f"short {i}": whole.isel(dataset=i, obs=slice(whole.sizes["obs"] // 2)).drop_vars("dataset")
        for i in range(30, 50)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pmcl.monitor(
            posterior, [whole.isel(dataset=slice(30)), half], baseline=30, random_seed=0
        )
    assert not found["raised"].sel(series=["evidence", "inputs"]).any()
    with pytest.raises(ValueError, match="false_alarms: expected a number of at least 2.5e-06"):
        pmcl.monitor(posterior, whole, baseline=30, false_alarms=1e-7)


def test_inputs_of_fewer_rows_are_not_unlike() -> None:
    """Means, spreads and correlations of fewer rows vary more, and that is all."""

    def features(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
        x = rng.normal(size=(n, rows, 6))
        correlation = np.stack([np.corrcoef(one.T)[np.triu_indices(6, 1)] for one in x])
        return np.concatenate([x.mean(axis=1), np.log(x.std(axis=1)), correlation], axis=1)

    raised, wide = [], []
    for rng in np.random.default_rng(0).spawn(40):
        counts = np.repeat([100, 30], [50, 50])
        values = np.concatenate([features(rng, 50, 100), features(rng, 50, 30)])
        distance = metrics.unlike(values, 50, counts)
        raised.append(metrics.alarm(distance, 50, rate=1e-4).raised.any())
        values[75:, 0] += 1.0  # five standard errors
        distance = metrics.unlike(values, 50, counts)
        wide.append(metrics.alarm(distance, 50, rate=1e-4).raised.any())
    assert sum(raised) == 0
    assert sum(wide) == 40


@pytest.mark.parametrize("middle", [-np.inf, -0.5, -0.2, 0.0, 0.3])
def test_khats_of_a_good_network_raise_no_alarm(middle: float) -> None:
    raised, late = [], []
    for rng in np.random.default_rng(0).spawn(40):
        khat = np.where(np.isinf(middle), -np.inf, middle + 0.15 * rng.normal(size=250))
        options = {"rate": 2.5e-5, "least": _LEAST["khat"]}
        raised.append(metrics.alarm(_as_normal(khat), 50, **options).raised.any())
        khat[50:] = np.maximum(khat[50:], -0.1) + 0.7
        found = metrics.alarm(_as_normal(khat), 50, **options).raised
        late.append(int(np.argmax(found)) - 50 if found.any() else 200)
    assert sum(raised) <= 1
    assert np.median(late) <= 5


def test_an_impossible_dataset_in_the_baseline_does_not_silence_the_alarm() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=30), rng.normal(size=5), rng.normal(size=5) + 9])
    values[3] = -np.inf
    assert metrics.alarm(values, 30, rate=1e-4, two_sided=True).raised[-1]
    values[:25] = -np.inf
    with pytest.raises(ValueError, match="baseline: expected at least 10 finite values"):
        metrics.alarm(values, 30, rate=1e-4)


def test_draws_that_differ_in_weight_are_resampled_for_arvizs_checks(
    posterior: pmcl.AmortizedPosterior,
) -> None:
    data = make(1, slope=0.5, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = posterior.sample(data, 2000, refine=False, log_likelihood=True, random_seed=0)
        found = pmcl.loo(tree)
    weight = np.exp(tree["sample_stats"]["log_weight"].values[0, :, 0])
    term = tree["log_likelihood"]["y"].values[0]
    term = term.reshape(2000, -1)
    # Leave-one-out by plain importance ratios, of draws that count by their weights.
    elpd = -np.log((weight[:, None] * np.exp(-term)).sum(axis=0) / weight.sum()).sum()
    unweighted = -np.log(np.exp(-term).mean(axis=0)).sum()
    assert abs(float(found["elpd"][0]) - elpd) < 0.3 * abs(unweighted - elpd) + 0.05


def texts(figure) -> list[str]:
    from matplotlib.text import Text

    return [t.get_text() for t in figure.findobj(Text) if t.get_text()]


def drawn_values(pc) -> list[np.ndarray]:
    """Points of every line, and of every cloud, of a figure: arrays of shape (point, 2)."""
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D

    figure = pc.viz["figure"].item()
    lines = [np.stack(np.broadcast_arrays(*li.get_data()), 1) for li in figure.findobj(Line2D)]
    clouds = [np.asarray(c.get_offsets()) for c in figure.findobj(PathCollection)]
    return [np.asarray(v, float) for v in (*lines, *clouds) if len(v)]


def is_drawn(pc, x: ArrayLike, y: ArrayLike) -> bool:
    """Whether these points are one line or one cloud of a figure."""
    points = np.column_stack([x, y])
    return any(v.shape == points.shape and np.allclose(v, points) for v in drawn_values(pc))


@pytest.fixture(scope="module")
def twice(adapted: pmcl.AmortizedPosterior, data: xr.Dataset) -> pmcl.AmortizedPosterior:
    """What plots are of; they are drawn without a screen."""
    import matplotlib

    matplotlib.use("agg")
    return adapted.adapt(data, name="near", steps=3, progressbar=False)


def test_plots_draw_the_numbers(
    posterior: pmcl.AmortizedPosterior,
    twice: pmcl.AmortizedPosterior,
    idata: xr.DataTree,
    data: xr.Dataset,
) -> None:
    pc = pmcl.plot_losses(twice)
    for record in (r.record for r in twice.records):
        steps = np.arange(len(record.losses))
        assert is_drawn(pc, steps, record.losses)
    efficiency = twice.records[1].record.efficiency
    at = np.linspace(0, twice.records[1].record.steps, len(efficiency) + 1)[1:]
    assert is_drawn(pmcl.plot_losses(twice, measure="efficiency"), at, efficiency)
    tree = posterior.sample(data, 100, random_seed=0)
    pc = pmcl.plot_khat_by_dataset(tree)
    for name in ("khat", "khat_amortized"):
        assert is_drawn(pc, range(4), tree["dataset_stats"][name].values.clip(-0.5, 2.0))
    limit = pmcl.metrics.khat_threshold(100)
    assert any(np.allclose(v[:, 1], limit) for v in drawn_values(pc))
    pc = pmcl.plot_ratio({"naive": {"a": 2.0, "b": 0.1}, "replay": {"a": 0.2, "b": 0.3}})
    assert is_drawn(pc, [0, 1], [2.0, 0.1]) and is_drawn(pc, [0, 1], [0.2, 0.3])
    thrice = twice.adapt(data, name="late", steps=3, progressbar=False)
    pc = pmcl.plot_memory(thrice)
    clouds = [np.asarray(c.get_offsets()) for c in pc.viz["figure"].item().axes[0].collections]
    assert sorted(map(len, clouds)) == sorted(Counter(thrice.memory.tasks).values())
    points = np.concatenate(clouds)
    # principal components: centred, not correlated, the first the larger
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-6)
    scatter = points.T @ points
    assert abs(scatter[0, 1]) < 1e-6 * scatter[0, 0] and scatter[0, 0] >= scatter[1, 1]
    pc = pmcl.plot_agreement(idata, idata, "d1", var_names=["slope"], kind="ecdf")
    slope = np.sort(pmcl.one(idata, "d1")["posterior"]["slope"].values.ravel())
    curves = [v for v in drawn_values(pc) if len(v) > 50]
    assert len(curves) == 2
    for curve in curves:
        middle = np.interp(0.5, curve[:, 1], curve[:, 0])
        assert abs(middle - np.median(slope)) < 0.1 * slope.std()


def test_plots_show_what_they_are_of(
    posterior: pmcl.AmortizedPosterior,
    twice: pmcl.AmortizedPosterior,
    idata: xr.DataTree,
    data: xr.Dataset,
) -> None:
    def shown(pc) -> list[str]:
        figure = pc.viz["figure"].item()
        figure.canvas.draw()
        return texts(figure)

    matrix = twice.history["retention"]["efficiency"]
    found = texts(pmcl.plot_retention(twice).figure)
    assert {"pretraining", "far", "near", "efficiency"} <= set(found)
    cells = [f"{v:.2g}" for v in matrix.values.ravel() if not np.isnan(v)]
    assert len(cells) == 6
    assert all(found.count(c) >= cells.count(c) for c in cells)
    assert {"far", "near"} <= set(shown(pmcl.plot_losses(twice)))
    one_task = shown(pmcl.plot_losses(twice, measure="efficiency", tasks=["near"]))
    assert "near" in one_task and "far" not in one_task
    with pytest.raises(ValueError, match="measure: expected 'loss' or 'efficiency', got 'speed'"):
        pmcl.plot_losses(twice, measure="speed")
    with pytest.raises(ValueError, match=r"tasks: expected some of \['far', 'near'\], got \['x'\]"):
        pmcl.plot_losses(twice, tasks=["x"])
    found = shown(pmcl.plot_khat_by_dataset(posterior.sample(data, 100, random_seed=0)))
    assert {"d0", "d1", "d2", "d3", "orange: of the network, blue: as returned"} <= set(found)
    found = shown(pmcl.plot_ratio({"naive": {"a": 2.0, "b": 0.1}, "replay": {"a": 0.2}}))
    assert {"a", "b", "naive", "replay", "ratio"} <= set(found)
    thrice = twice.adapt(data, name="late", steps=3, progressbar=False)
    assert {"far", "near", "late"} <= set(shown(pmcl.plot_memory(thrice)))
    found = shown(pmcl.plot_agreement(idata, idata, "d1", var_names=["slope"]))
    assert {"slope", "pmcl", "reference"} <= set(found)
    assert {"slope", "doubled"} <= set(shown(pmcl.plot_agreement(idata, idata, pairs=True)))
    # Any backend of arviz-plots; "none" draws nothing.
    assert pmcl.plot_losses(twice, backend="none") is not None
    ax = pmcl.plot_losses(twice).viz["figure"].item().axes[0]
    assert pmcl.plot_retention(twice, measure="khat", ax=ax) is ax
    for plot in (pmcl.plot_retention, pmcl.plot_losses):
        with pytest.raises(ValueError, match="expected a posterior that was adapted"):
            plot(posterior)
    with pytest.raises(ValueError, match=r"measure: expected one of \['sc_variance'"):
        pmcl.plot_retention(twice, measure="speed")
    with pytest.raises(ValueError, match="expected at least three stored datasets, got 0"):
        pmcl.plot_memory(posterior)


def drawn_texts(pc, backend: str) -> str:
    """What a figure of a backend would show in a browser."""
    figure = pc.viz["figure"].item()
    if backend == "plotly":
        return figure.to_json()
    from bokeh.embed import json_item

    return json.dumps(json_item(figure))


@pytest.mark.parametrize("backend", ["plotly", "bokeh"])
def test_plots_on_other_backends(
    adapted: pmcl.AmortizedPosterior,
    idata: xr.DataTree,
    data: xr.Dataset,
    posterior: pmcl.AmortizedPosterior,
    backend: str,
) -> None:
    thrice = adapted
    for name in ("near", "late"):
        thrice = thrice.adapt(data, name=name, steps=3, progressbar=False)
    draws = posterior.sample(data, 100, random_seed=0)
    ratios = {"naive": {"a": 2.0, "b": 0.1}, "replay": {"a": 0.2}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pmcl.plot_losses(thrice, backend=backend)
    for pc, words in [
        (pmcl.plot_losses(thrice, backend=backend), ["far", "late"]),
        (pmcl.plot_khat_by_dataset(draws, backend=backend), ["d0", "d3"]),
        (pmcl.plot_ratio(ratios, backend=backend), ["naive", "replay", "ratio"]),
        (pmcl.plot_memory(thrice, backend=backend), ["far", "near", "late"]),
        (pmcl.plot_agreement(idata, idata, "d1", backend=backend), ["slope", "reference"]),
        (pmcl.plot_agreement(idata, idata, pairs=True, backend=backend), ["slope", "doubled"]),
    ]:
        found = drawn_texts(pc, backend)
        assert all(word in found for word in words), words
