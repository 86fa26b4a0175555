"""Other priors, known parameters: what a density gives without training, against closed forms."""

import warnings

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
    return pmcl.fit_amortized(
        normal(), network=TINY, simulations=256, steps=100, random_seed=1, progressbar=False
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
