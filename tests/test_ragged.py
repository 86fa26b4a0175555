"""Datasets of different length and with missing values, end to end on a conjugate model."""

import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pmcl
from pmcl.compile import Masking
from pmcl.data.masked import check_masked
from pmcl.data.reading import task_of
from pmcl.data.task import DataError
from pmcl.draws.densities import constrain, pointwise
from pmcl.runtime import precision

SIGMA = np.float64(1.5)
SHORT, LONG, MISSING = 5, 60, 0.2


def build(rows: int = 20) -> pm.Model:
    with pm.Model(coords={"obs": range(rows)}) as model:
        x = pm.Data("x", np.ones(rows), dims="obs")
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * x, SIGMA, observed=np.zeros(rows), dims="obs")
    return model


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return build()


NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=8, width=16, depth=1, pooled=16, head_width=32, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=16, depth=1, knots=4, affine_width=32),
)


def fit(model: pm.Model, **options: object) -> pmcl.AmortizedPosterior:
    settings = {
        "covariates": {"x": pm.Normal.dist(0, 1)}, "network": NETWORK, "steps": 600,
        "learning_rate": 3e-3, "warmup": 50, "random_seed": 1, "progressbar": False,
        "lengths": (SHORT, LONG), "missing": MISSING, **options,
    }  # fmt: skip
    return pmcl.fit_amortized(model, **settings)


@pytest.fixture(scope="module")
def posterior(model: pm.Model) -> pmcl.AmortizedPosterior:
    return fit(model)


def make(n: int, *, slope: float, seed: int, gaps: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = slope * x + SIGMA * rng.normal(size=n)
    y[rng.random(n) < gaps] = np.nan
    return {"x": x, "y": y}


@pytest.fixture(scope="module")
def data() -> dict[str, dict[str, np.ndarray]]:
    return {
        "short": make(SHORT, slope=0.4, seed=0),
        "long": make(LONG, slope=0.9, seed=1),
        "gaps": make(40, slope=-0.6, seed=2, gaps=0.4),
        "beyond": make(200, slope=0.5, seed=3),
    }


def exact(data: dict[str, dict[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of slope, of what is there."""
    mean, sd = [], []
    for d in data.values():
        there = ~np.isnan(d["y"])
        x, y = d["x"][there], d["y"][there]
        precision = 1 + (x**2).sum() / SIGMA**2
        mean.append((x * y).sum() / SIGMA**2 / precision)
        sd.append(precision**-0.5)
    return np.asarray(mean), np.asarray(sd)


def moments(tree: xr.DataTree) -> tuple[np.ndarray, np.ndarray]:
    slope = tree["posterior"]["slope"]
    return slope.mean(("chain", "draw")).values, slope.std(("chain", "draw")).values


def assert_exact(tree: xr.DataTree, data: dict, *, tolerance: float = 0.12) -> None:
    mean, sd = exact(data)
    found_mean, found_sd = moments(tree)
    np.testing.assert_allclose((found_mean - mean) / sd, 0, atol=tolerance)
    np.testing.assert_allclose(found_sd / sd, 1, atol=tolerance)


def test_what_is_trained_over_is_shown(posterior: pmcl.AmortizedPosterior) -> None:
    assert "lengths 5 to 60; 20% missing" in repr(posterior)


def test_masks_have_the_lengths_and_gaps_that_were_asked_for(
    posterior: pmcl.AmortizedPosterior,
) -> None:
    masks = posterior.simulator.masks(4000, random_seed=0)
    assert masks is not None and masks.rows is not None
    n = masks.rows.sum(axis=1)
    assert (n.min(), n.max()) == (SHORT, LONG)
    # log-uniform: as many below the geometric mean as above
    assert abs((n < np.sqrt(SHORT * (LONG + 1))).mean() - 0.5) < 0.04
    gone = 1 - masks.values["y"].mean(axis=1)
    assert abs(gone.mean() - MISSING) < 0.02
    assert 0.35 < np.quantile(gone, 0.95) < 0.5  # to twice the mean, and what chance adds


def test_amortized_posteriors_follow_length_and_gaps(posterior, data) -> None:
    trained = {k: v for k, v in data.items() if k != "beyond"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = posterior.sample(trained, 2000, refine=False, random_seed=0, progressbar=False)
    mean, sd = exact(trained)
    found_mean, found_sd = moments(tree)
    np.testing.assert_allclose(found_sd / sd, 1, atol=0.25)
    np.testing.assert_allclose((found_mean - mean) / sd, 0, atol=0.5)


def test_refined_posteriors_are_exact_at_any_length(posterior, data) -> None:
    tree = posterior.sample(data, 4000, random_seed=0, progressbar=False)
    assert_exact(tree, data)
    assert (tree["dataset_stats"]["khat"] < 0.7).all()
    observed = tree["observed_data"].to_dataset()
    for i, (name, d) in enumerate(data.items()):
        n = len(d["y"])
        np.testing.assert_array_equal(observed["y"].values[i, :n], d["y"])
        assert np.isnan(observed["y"].values[i, n:]).all()
        np.testing.assert_array_equal(pmcl.one(tree, name)["observed_data"]["y"], d["y"])


def test_nuts_takes_the_same_data(model, data) -> None:
    some = {k: data[k] for k in ("short", "gaps")}
    tree = pmcl.sample_reference(
        model, some, draws=1000, tune=300, chains=2, random_seed=0, progressbar=False
    )
    assert_exact(tree, some, tolerance=0.15)


def test_adaptation_memory_and_a_saved_state(posterior, data, model, tmp_path) -> None:
    strategy = pmcl.Replay(capacity=3, simulations=4)
    first = {k: data[k] for k in ("short", "gaps")}
    adapted = posterior.adapt(
        first, name="first", strategy=strategy, steps=30, random_seed=0, progressbar=False
    )
    adapted = adapted.adapt(
        {"long": data["long"]}, name="second", steps=30, random_seed=0, progressbar=False
    )
    assert adapted.memory.tasks == ("first", "second")
    path = tmp_path / "state.zarr.zip"
    pmcl.save(adapted, path)
    loaded = pmcl.load(path, model)
    assert loaded.simulator.masking == Masking("obs", (SHORT, LONG), MISSING)
    xr.testing.assert_identical(
        loaded.memory.stored().labelled(), adapted.memory.stored().labelled()
    )
    both = [
        p.sample(data, 100, refine=False, random_seed=0, progressbar=False)["posterior"]["slope"]
        for p in (adapted, loaded)
    ]
    np.testing.assert_array_equal(*both)


def test_data_with_gaps_need_no_training_on_gaps(model, data) -> None:
    plain = fit(model, lengths=None, missing=0.0, steps=100)
    gaps = {"gaps": data["gaps"]}
    there = ~np.isnan(data["gaps"]["y"])
    cut = {"gaps": {k: v[there] for k, v in data["gaps"].items()}}
    draws = [
        plain.sample(d, 500, refine=False, random_seed=0, progressbar=False) for d in (gaps, cut)
    ]
    # a row without an observation is no row: densities and network agree
    for group, name in (("posterior", "slope"), ("sample_stats", "log_likelihood")):
        np.testing.assert_allclose(*(d[group][name].values for d in draws), rtol=1e-4, atol=1e-5)
    assert_exact(plain.sample(gaps, 4000, random_seed=0, progressbar=False), gaps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (20, 5)}, r"lengths: expected the shortest and the longest.*\(20, 5\)"),
        ({"lengths": (0, 5)}, "lengths: expected the shortest"),
        ({"lengths": (5.5, 9)}, "lengths: expected the shortest"),
        ({"lengths": (5, 9, 12)}, "lengths: expected the shortest"),
        ({"missing": 1.0}, "missing: expected a fraction from 0 to less than 1, got 1.0"),
        ({"missing": -0.1}, "missing: expected a fraction"),
    ],
)
def test_wrong_lengths_and_fractions(model, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(model, steps=1, **options)


def test_likelihoods_that_cannot_be_cut_are_refused_before_training() -> None:
    with pm.Model(coords={"obs": range(6)}) as model:
        x = pm.Data("x", np.ones(6), dims="obs")
        pm.Normal("y", pm.Normal("m") + x.mean(), 1, observed=np.zeros(6), dims="obs")
    with pytest.raises(DataError, match=r"'obs', but the likelihood of \['y'\] cannot be cut"):
        fit(model, steps=1, missing=0.0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("m"), 1, observed=0.0)
    with pytest.raises(ValueError, match="lengths: expected a dim along which"):
        fit(model, steps=1, covariates=None)


@pytest.mark.parametrize("centred", [True, False])
def test_whether_rows_can_be_cut_is_seen_where_they_are_possible(centred: bool) -> None:
    """Times below a shift are impossible, padded or not, which says nothing of the padding."""
    with pm.Model(coords={"trial": range(10)}) as model:
        x = pm.Data("x", np.zeros(10), dims="trial")
        mu = pm.math.exp(pm.Normal("slope") * (x - x.mean() if centred else x))
        shift = pm.HalfNormal("shift", 0.3)
        pm.Wald("time", mu, 1.0, alpha=shift, observed=np.ones(10), dims="trial")
    compiled = pmcl.compile_model(model, covariates=["x"])
    rng = np.random.default_rng(0)
    data = {str(n): {"x": rng.normal(3, 1, n), "time": 0.2 + 0.1 * rng.random(n)} for n in (10, 30)}
    task = task_of(compiled, data)
    if centred:
        with pytest.raises(DataError, match="cannot be cut by row"):
            check_masked(compiled, task)
        alone = check_masked(
            compiled, task_of(compiled, {k: v[None] for k, v in data["30"].items()})
        )
        assert not alone.padded
    else:
        assert check_masked(compiled, task).padded


@pytest.mark.parametrize("mean", [True, False])
def test_whether_missing_values_count_is_seen_where_they_are_possible(mean: bool) -> None:
    with pm.Model(coords={"trial": range(6)}) as model:
        shift = pm.HalfNormal("shift", 0.3)
        first = pm.Normal("first", 0.0, 1.0, observed=np.ones(6), dims="trial")
        mu = pm.math.exp(first.mean()) if mean else 1.0
        pm.Wald("time", mu, 1.0, alpha=shift, observed=np.ones(6), dims="trial")
    compiled = pmcl.compile_model(model)
    values = {"first": np.array([0.3, np.nan, 0.1, 0.2, 0.0, 0.5]), "time": np.full(6, 0.25)}
    task = task_of(compiled, values)
    if mean:
        with pytest.raises(DataError, match="depends on them beyond a term of their own"):
            check_masked(compiled, task)
    else:
        check_masked(compiled, task)


def test_a_series_is_trained_over_lengths() -> None:
    with pm.Model(coords={"time": range(12)}) as model:
        rho = pm.Uniform("rho", -0.9, 0.9)
        init = pm.Normal.dist(0, 1)
        pm.AR("y", [rho], sigma=1.0, init_dist=init, observed=np.zeros(12), dims="time")
    network = replace_summary(pmcl.Recurrent(outputs=4, state=8, width=8))
    posterior = fit(
        model, covariates=None, sequence="time", network=network, missing=0.0, steps=20,
        lengths=(4, 30),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    data = {str(n): {"y": rng.normal(size=n)} for n in (4, 17, 30)}
    tree = posterior.sample(data, 500, random_seed=0, progressbar=False)
    assert (tree["dataset_stats"]["khat"] < 0.7).all()
    grid = np.linspace(-0.899, 0.899, 4001)
    for name, d in data.items():
        y = d["y"]
        log_p = -0.5 * ((y[1:] - grid[:, None] * y[:-1]) ** 2).sum(axis=1)
        p = np.exp(log_p - log_p.max())
        mean = (grid * p).sum() / p.sum()
        sd = np.sqrt(((grid - mean) ** 2 * p).sum() / p.sum())
        found = tree["posterior"]["rho"].sel(dataset=name).values
        assert abs(found.mean() - mean) < 0.2 * sd
        assert abs(found.std() / sd - 1) < 0.15


def replace_summary(summary: pmcl.Recurrent) -> pmcl.Network:
    return pmcl.Network(summary, NETWORK.flow)


def test_the_log_likelihood_of_a_series_is_of_its_own_steps() -> None:
    rng, lengths = np.random.default_rng(0), (21, 13)
    data = {str(n): {"y": rng.normal(size=n), "x": rng.normal(size=n)} for n in lengths}

    def series(n: int, y: np.ndarray, x: np.ndarray) -> pm.Model:
        with pm.Model(coords={"time": range(n)}) as model:
            rho = pm.Normal("rho", 0, 0.4, shape=2)
            init = pm.Normal.dist(0, 1, shape=2)
            pm.AR("y", rho, sigma=1.0, init_dist=init, observed=y, dims="time")
            pm.Normal("x", rho[0], 1.0, observed=x, dims="time")
        return model

    compiled = pmcl.compile_model(series(21, **data["21"]))
    task = check_masked(compiled, task_of(compiled, data))
    z = rng.normal(size=(len(lengths), 3, 2))
    with precision.scope():
        found = pointwise(compiled, z, task)
    for i, (n, one) in enumerate(zip(lengths, data.values(), strict=True)):
        model = series(n, **one)
        logp = model.compile_logp(vars=[model["y"], model["x"]], sum=False)
        for j in range(3):
            whole, by_row = logp({"rho": z[i, j]})
            np.testing.assert_allclose(found["y"][i, j], whole)
            np.testing.assert_allclose(found["x"][i, j, :n], by_row)


def test_calibration_over_the_lengths_and_gaps_of_training(posterior) -> None:
    options = {"simulations": 200, "draws": 100, "random_seed": 3, "progressbar": False}
    tree = pmcl.calibrate(posterior, refine=True, **options)
    assert float(tree["uniformity"]["slope"]) > 1e-3
    assert tree["prior_sbc"]["slope"].shape == (1, 200)


def test_what_depends_on_all_rows_is_of_those_that_there_are():
    """An average effect: rows that are padding have no part in it, whatever their number."""
    with pm.Model(coords={"obs": range(12), "effect": range(2)}) as model:
        x = pm.Data("x", np.zeros(12), dims="obs")
        b = pm.Normal("b", dims="effect")
        mu = pm.Deterministic("mu", b[0] + b[1] * x, dims="obs")
        pm.Deterministic("average", mu.mean())
        pm.Deterministic("apart", mu - mu.mean(), dims="obs")
        pm.Deterministic("number", x.shape[0])
        pm.Normal("y", mu, 1, observed=np.zeros(12), dims="obs")
    compiled = pmcl.compile_model(model, covariates=["x"])
    rng, names = np.random.default_rng(0), ("b", "mu", "average", "apart", "number")
    for lengths in ((9, 9), (9, 5, 12), (12, 12), (20, 3)):
        data = {str(i): {"x": rng.normal(size=n), "y": np.zeros(n)} for i, n in enumerate(lengths)}
        task = check_masked(compiled, task_of(compiled, data))
        z = rng.normal(size=(len(lengths), 4, 2))
        with precision.scope():
            found = constrain(compiled, z, task, names)
        for i, (n, one) in enumerate(zip(lengths, data.values(), strict=True)):
            mu = z[i, :, :1] + z[i, :, 1:] * one["x"]
            np.testing.assert_allclose(found["mu"][i][:, :n], mu)
            np.testing.assert_allclose(found["average"][i], mu.mean(axis=1))
            np.testing.assert_allclose(found["apart"][i][:, :n], mu - mu.mean(1, keepdims=True))
            assert (found["number"][i] == n).all()


def test_checks_leave_out_what_is_missing() -> None:
    """Of two observed variables, one of which has no values in a dataset."""
    rng, n = np.random.default_rng(0), 12

    def either(shared: bool) -> pm.Model:
        with pm.Model(coords={"obs": range(n)}) as model:
            mu = pm.Normal("mu")
            pm.Normal("a", mu, 1, observed=np.zeros(n), dims="obs")
            pm.Normal("b", mu if shared else 0.0, 1, observed=np.zeros(n), dims="obs")
        return model

    data = {name: rng.normal(0.5, 1, size=(2, n)) for name in ("a", "b")}
    data["a"][:, [1, 5]], data["b"][0, 3], data["b"][1] = np.nan, np.nan, np.nan
    options = {"draws": 500, "random_seed": 1, "progressbar": False}
    groups = {"log_likelihood": True, "posterior_predictive": True}
    fits = {
        name: pmcl.refine(either(name == "shared"), data, **groups, **options)
        for name in ("shared", "apart")
    }
    for name, tree in fits.items():
        terms = tree["log_likelihood"].to_dataset()
        for k, y in data.items():
            gone = np.isnan(terms[k].isel(chain=0, draw=0).values)
            np.testing.assert_array_equal(gone, np.isnan(y))
        total = terms["a"].sum("obs") + terms["b"].sum("obs")
        np.testing.assert_allclose(total, tree["sample_stats"]["log_likelihood"])
        expected = []
        for i in range(2):
            a, b = (y[i][~np.isnan(y[i])] for y in data.values())
            of_mu = np.concatenate([a, b]) if name == "shared" else a
            sd = np.sqrt(
                1 + 1 / len(of_mu)
            )  # of one value given the others, N(mu, 1), mu ~ N(0, 1)
            terms = stats.norm.logpdf(of_mu, (of_mu.sum() - of_mu) / len(of_mu), sd).sum()
            expected.append(terms + (0 if name == "shared" else stats.norm.logpdf(b).sum()))
        found = pmcl.loo(tree)
        np.testing.assert_allclose(found["elpd"], expected, atol=0.15)
        np.testing.assert_array_equal(found["n"], [21, 10])
        assert int(pmcl.loo(tree, var_name="b")["n"][1]) == 0
        check = pmcl.check_predictive(tree)
        for group in ("p_value", "loo_pit"):
            assert np.isnan(check[group]["b"].values[1]).all()
            assert np.isfinite(check[group]["a"].values).all()
    compared = pmcl.compare_models(fits)
    for name, tree in fits.items():
        np.testing.assert_allclose(compared["elpd"].sel(model=name), pmcl.loo(tree)["elpd"])
    with pytest.raises(ValueError, match=r"var_name: expected one of \['a', 'b'\], got 'c'"):
        pmcl.loo(fits["apart"], var_name="c")
