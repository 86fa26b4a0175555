"""Which model: nested regressions with closed evidences, calibration, and frequencies."""

import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit, log_softmax, logit, logsumexp, softmax

import pmcl
from pmcl.metrics import model_frequencies, model_probabilities

N = 20
SLOPES = {"one": 1, "two": 2, "three": 3}
X = np.random.default_rng(0).normal(size=(N, 3))


def regression(slopes: int) -> pm.Model:
    """A regression on the first predictors, its noise known: all is normal."""
    with pm.Model(coords={"obs": range(N)}) as model:
        alpha = pm.Normal("alpha", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=slopes)
        mean = alpha + X[:, :slopes] @ beta
        pm.Normal("y", mean, 0.8, observed=np.zeros(N), dims="obs")
    return model


def covariance(slopes: int) -> np.ndarray:
    x = X[:, :slopes]
    return 0.8**2 * np.eye(N) + 2.0**2 + x @ x.T


def closed(y: np.ndarray) -> np.ndarray:
    """Log evidences (dataset, model)."""
    each = [
        stats.multivariate_normal(np.zeros(N), covariance(s)).logpdf(y) for s in SLOPES.values()
    ]
    return np.stack(each, axis=1)


def made(number: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=number)
    scale = [np.linalg.cholesky(covariance(s)) for s in SLOPES.values()]
    return np.stack([scale[t] @ rng.normal(size=N) for t in truth]), truth


def fitted(y: np.ndarray, slopes: dict[str, int] = SLOPES, **given) -> dict[str, xr.DataTree]:
    return {
        name: pmcl.refine(
            regression(s), {"y": y}, draws=500, random_seed=i, progressbar=False, **given
        )
        for i, (name, s) in enumerate(slopes.items())
    }


def check(y: np.ndarray, trees: dict[str, xr.DataTree]) -> None:
    found = pmcl.compare_models(trees, prior={"one": 1, "two": 2, "three": 1})
    truth = closed(y)
    # the smallest error is that of a density evaluated exactly
    error = np.maximum(found["log_evidence_error"].values, 1e-6)
    assert (np.abs(found["log_evidence"].values - truth) <= 3 * error).mean() > 0.98
    weight = truth + np.log([0.25, 0.5, 0.25])
    apart = np.abs(found["probability"].values - softmax(weight, axis=1))
    assert (apart <= 3 * np.maximum(found["probability_error"].values, 1e-6)).mean() > 0.98
    np.testing.assert_allclose(found["probability"].sum("model"), 1.0)
    factor = found["log_bayes_factor"].sel(model="two", against="one").values
    np.testing.assert_allclose(factor, truth[:, 1] - truth[:, 0], atol=0.1)


@pytest.fixture(scope="module")
def few() -> tuple[np.ndarray, dict[str, xr.DataTree]]:
    y, _ = made(6)
    return y, fitted(y, log_likelihood=True)


def test_nested_regressions_have_their_closed_evidences(few):
    check(*few)


def test_results_in_a_store_are_compared_alike(few, tmp_path):
    y, trees = few
    names = ("one", "two")
    stored = {
        n: pmcl.refine(
            regression(SLOPES[n]), {"y": y}, draws=500, random_seed=i, log_likelihood=True,
            store=tmp_path / n, progressbar=False,
        )
        for i, n in enumerate(names)
    }  # fmt: skip
    found, there = pmcl.compare_models(stored), pmcl.compare_models({n: trees[n] for n in names})
    xr.testing.assert_allclose(found.drop_vars("refused"), there.drop_vars("refused"))
    assert (found["refused"].values == "").all()


@pytest.mark.slow
def test_two_hundred_datasets_have_their_closed_evidences():
    y, _ = made(200)
    check(y, fitted(y))


def logistic(slope: bool) -> pm.Model:
    with pm.Model(coords={"obs": range(N)}) as model:
        logit = pm.Normal("alpha", 0, 1.5) + np.zeros(N)
        if slope:
            logit = logit + X[:, 0] * pm.Normal("beta", 0, 1.5)
        pm.Bernoulli("y", logit_p=logit, observed=np.zeros(N, int), dims="obs")
    return model


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a k-hat that is a little too high
@pytest.mark.slow
def test_errors_of_evidences_are_as_large_as_they_say():
    """Posteriors that are no normals have evidences with an error: against quadrature."""
    rng = np.random.default_rng(3)
    y = rng.binomial(1, 0.3, size=(40, N))
    trees = {
        name: pmcl.refine(logistic(s), {"y": y}, random_seed=1, fallback=None, progressbar=False)
        for name, s in {"none": False, "slope": True}.items()
    }
    found = pmcl.compare_models(trees)
    there = found["refused"].values == ""
    assert there.sum() > 36
    found, y = found.isel(dataset=there), y[there]
    nodes, weights = hermegauss(60)
    log = np.log(weights / np.sqrt(2 * np.pi))
    flat = 1.5 * nodes[:, None, None]
    steep = flat + 1.5 * nodes[None, :, None] * X[:, 0]
    like = [np.where(row > 0, expit(steep), expit(-steep)) for row in y]
    slope = [logsumexp(np.log(v).sum(axis=-1) + log[:, None] + log) for v in like]
    like = [np.where(row > 0, expit(flat), expit(-flat)) for row in y]
    none = [logsumexp(np.log(v).sum(axis=-1)[:, 0] + log) for v in like]
    truth = np.stack([none, slope], axis=1)
    apart = (found["log_evidence"].values - truth) / found["log_evidence_error"].values
    assert (np.abs(apart) < 3).mean() > 0.95 and 0.6 < np.std(apart) < 1.6
    error = found["log_bayes_factor_error"].sel(model="none", against="slope").values
    apart = found["log_bayes_factor"].sel(model="none", against="slope").values - (
        truth[:, 0] - truth[:, 1]
    )
    assert (np.abs(apart) < 3 * error).mean() > 0.92


def test_stacking_weights_are_arvizs(few):
    import arviz_stats

    _, trees = few
    found = pmcl.compare_models(trees)
    alone = {m: pmcl.one(t, "3") for m, t in trees.items()}
    table = arviz_stats.compare(alone, round_to="none").loc[list(trees)]
    np.testing.assert_allclose(found["stacking_weight"].sel(dataset="3"), table["weight"])
    np.testing.assert_allclose(found["elpd"].sel(dataset="3"), table["elpd"])


def test_errors_of_probabilities_are_those_of_noisy_evidences():
    evidence, error = np.array([0.3, -0.4, 0.1]), np.array([0.05, 0.02, 0.08])
    prior = np.array([0.5, 0.3, 0.2])
    found = model_probabilities(evidence, error, prior)
    rng = np.random.default_rng(0)
    many = softmax(evidence + error * rng.normal(size=(100_000, 3)) + np.log(prior), axis=1)
    np.testing.assert_allclose(found.value, many.mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(found.error, many.std(axis=0), rtol=0.03)


def test_frequencies_in_the_population_have_their_exact_posterior():
    """Of two models the posterior of the frequency is an integral of one number."""
    rng = np.random.default_rng(2)
    evidence = np.stack([rng.normal(0.4, 1.5, size=15), np.zeros(15)], axis=1)

    def density(r: float) -> float:
        return float(np.exp(np.logaddexp(np.log(r) + evidence[:, 0], np.log1p(-r)).sum() - 5))

    total = quad(density, 0, 1)[0]
    mean = quad(lambda r: r * density(r), 0, 1)[0] / total
    square = quad(lambda r: r**2 * density(r), 0, 1)[0] / total
    above = quad(density, 0.5, 1)[0] / total
    drawn = model_frequencies(evidence, np.zeros((15, 2)), np.ones(2), rng, draws=20_000)[:, 0]
    np.testing.assert_allclose(drawn.mean(), mean, atol=0.01)
    np.testing.assert_allclose(drawn.std(), np.sqrt(square - mean**2), rtol=0.05)
    np.testing.assert_allclose((drawn > 0.5).mean(), above, atol=0.02)


def test_frequencies_follow_the_datasets(few):
    found = pmcl.compare_models(few[1])
    np.testing.assert_allclose(found["frequency"].sum(), 1.0)
    np.testing.assert_allclose(found["exceedance"].sum(), 1.0)
    assert (found["frequency_low"] < found["frequency"]).all()


def test_what_cannot_be_compared_is_refused(few):
    y, trees = few
    with pytest.raises(ValueError, match="two models or more"):
        pmcl.compare_models({"one": trees["one"]})
    with pytest.raises(ValueError, match="prior: expected a number for each of"):
        pmcl.compare_models(trees, prior={"one": 1})
    other = trees["two"].copy()
    other["observed_data"] = xr.DataTree(trees["two"]["observed_data"].to_dataset() + 1)
    with pytest.raises(ValueError, match="'one' and 'two' differ"):
        pmcl.compare_models({"one": trees["one"], "two": other})
    bare = xr.DataTree.from_dict({"posterior": trees["one"]["posterior"].to_dataset()})
    with pytest.raises(ValueError, match="model 'nuts' have no evidence"):
        pmcl.compare_models({"one": trees["one"], "nuts": bare})
    note = trees["two"]["dataset_stats"].to_dataset().copy()
    note["note"] = note["note"] + "; no evidence: improper prior of alpha"
    other = trees["two"].copy()
    other["dataset_stats"] = xr.DataTree(note)
    with pytest.raises(ValueError, match="'flat' has no evidence .improper prior of alpha"):
        pmcl.compare_models({"one": trees["one"], "flat": other})


def test_results_come_by_the_names_of_models():
    with pytest.raises(TypeError, match="compare_models: expected a mapping.*got list"):
        pmcl.compare_models([])  # type: ignore[arg-type]


def test_an_improper_prior_is_refused():
    with pm.Model() as flat:
        mu = pm.Flat("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(5))
    with pm.Model() as proper:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(5))
    data = {"y": np.random.default_rng(0).normal(size=5)}
    trees = {
        k: pmcl.refine(m, data, draws=100, random_seed=1, progressbar=False)
        for k, m in {"flat": flat, "proper": proper}.items()
    }
    with pytest.raises(ValueError, match="improper prior of mu"):
        pmcl.compare_models(trees)


def test_datasets_whose_posterior_does_not_stand_have_no_probability(few):
    _, trees = few
    stats_of = trees["two"]["dataset_stats"].to_dataset().copy(deep=True)
    stats_of["warning"], stats_of["engine"] = (
        stats_of[k].astype(object) for k in ("warning", "engine")
    )
    stats_of["warning"][2] = "k-hat 0.9 is above 0.7"
    stats_of["engine"][4] = "nuts"
    doubtful = trees["two"].copy()
    doubtful["dataset_stats"] = xr.DataTree(stats_of)
    with pytest.warns(UserWarning, match="2 of 6 datasets have no probabilities .*two: k-hat"):
        found = pmcl.compare_models(trees | {"two": doubtful})
    left = np.isnan(found["probability"]).all("model")
    assert [*np.flatnonzero(left)] == [2, 4]
    assert "NUTS" in str(found["refused"].values[4]) and found["refused"].values[0] == ""
    assert np.isfinite(found["frequency"]).all()


def check_recovery(found: xr.Dataset, number: int) -> None:
    assert found.sizes["simulation"] == number and int(found["left_out"]) <= number // 50
    np.testing.assert_allclose(found["confusion"].sum("model"), 1.0)
    assert float(found["p_value"]) > 1e-3
    assert int(found["number"].sum()) == 2 * (number - int(found["left_out"]))


@pytest.fixture(scope="module")
def recovered() -> xr.Dataset:
    models = {k: regression(SLOPES[k]) for k in ("one", "three")}
    return pmcl.model_recovery(models, 60, draws=500, random_seed=3, progressbar=False)


def test_the_true_model_is_recovered_as_often_as_it_is_said(recovered):
    check_recovery(recovered, 60)
    assert (recovered["confusion"].values.diagonal() > 0.6).all()


def test_the_recovery_is_plotted(recovered):
    import matplotlib

    matplotlib.use("agg")
    left, right = pmcl.plot_model_recovery(recovered)
    assert left.get_xlabel() == "most probable model"
    assert f"{float(recovered['p_value']):.2g}" in right.get_title()


LEVEL = 0.01  # of either test: right probabilities fail both together in one run of fifty, at most


def p_values(probability: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """Of Spiegelhalter's test, which sees confidence, and of Hosmer's and Lemeshow's, by bins.

    Nothing was fitted, so that there is a degree of freedom for every bin.
    """
    from pmcl.metrics import trust_of

    edges = np.linspace(0, 1 + 1e-9, 11)
    both = np.stack([1 - probability, probability], axis=1)
    spread = probability * (1 - probability)
    which = np.digitize(probability, edges)
    bins = [b for b in np.unique(which) if spread[which == b].sum() > 2]
    off = [(right - probability)[which == b].sum() ** 2 / spread[which == b].sum() for b in bins]
    p_value = trust_of(both, right.astype(int), edges).p_value
    return p_value, float(stats.chi2.sf(sum(off), len(bins)))


def sharpened(probability: np.ndarray, by: float) -> np.ndarray:
    return expit(by * logit(np.clip(probability, 1e-12, 1 - 1e-12)))


def test_the_tests_of_calibration_have_their_level_and_power():
    """On closed evidences, a hundred times a thousand datasets: the next test can fail."""
    rng = np.random.default_rng(5)
    truth = np.repeat([False, True], 500)
    failed = {by: 0 for by in (1.0, 1.3, 1 / 1.3)}
    models = [stats.multivariate_normal(np.zeros(N), covariance(s)) for s in (1, 3)]
    for _ in range(100):
        y = np.concatenate([m.rvs(500, random_state=rng) for m in models])
        odds = models[1].logpdf(y) - models[0].logpdf(y)
        for by in failed:
            failed[by] += min(p_values(sharpened(expit(odds), by), truth)) < LEVEL
    assert failed[1.0] <= 6 and failed[1.3] >= 85 and failed[1 / 1.3] >= 85


@pytest.mark.slow
def test_probabilities_of_a_thousand_datasets_are_calibrated():
    models = {k: regression(SLOPES[k]) for k in ("one", "three")}
    found = pmcl.model_recovery(models, 1000, random_seed=4, progressbar=False)
    check_recovery(found, 1000)
    assert ((found["truth"] == "three").sum(), int(found["left_out"])) == (500, 0)
    right = (found["truth"] == "three").values
    probability = found["probability"].sel(model="three").values
    np.testing.assert_allclose(p_values(probability, right)[0], found["p_value"])
    assert min(p_values(probability, right)) > LEVEL
    # the same datasets tell probabilities that are too sure, and such as are not sure enough
    for by in (1.3, 1 / 1.3):
        assert min(p_values(sharpened(probability, by), right)) < LEVEL


@pytest.mark.slow
def test_other_prior_probabilities_have_their_share_of_datasets():
    models = {k: regression(SLOPES[k]) for k in ("one", "three")}
    prior = {"one": 0.2, "three": 0.8}
    found = pmcl.model_recovery(models, 300, prior=prior, random_seed=4, progressbar=False)
    check_recovery(found, 300)
    right = (found["truth"] == "three").values
    assert right.sum() == 240
    assert min(p_values(found["probability"].sel(model="three").values, right)) > LEVEL


def test_wrong_probabilities_are_found_out():
    """Overconfident probabilities fail the test that right ones pass."""
    from pmcl.metrics import trust_of

    rng = np.random.default_rng(0)
    log_odds = rng.normal(0, 1, size=(1000, 3))
    right = softmax(log_odds, axis=1)
    truth = (rng.random((1000, 1)) > np.cumsum(right, axis=1)).sum(axis=1)
    edges = np.linspace(0, 1 + 1e-9, 11)
    assert trust_of(right, truth, edges).p_value > 0.01
    wrong = softmax(2.5 * log_odds, axis=1)
    assert trust_of(wrong, truth, edges).p_value < 1e-6
    score = trust_of(right, truth, edges).log_score
    np.testing.assert_allclose(score, log_softmax(log_odds, axis=1)[np.arange(1000), truth].mean())


def test_models_of_other_data_are_refused():
    with pm.Model() as other:
        pm.Normal("y2", pm.Normal("mu"), 1, observed=np.zeros(3))
    with pytest.raises(ValueError, match="the same observed variables"):
        pmcl.model_recovery({"one": regression(1), "other": other}, 4, progressbar=False)
    with warnings.catch_warnings(), pytest.raises(TypeError, match="got dict"):
        pmcl.model_recovery({"one": regression(1), "other": {}}, 4)
