"""Multilevel posteriors that learn from data: objectives on the marginal density, stored groups."""

import level_models as models
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

import pmcl
from pmcl.parts import datasets as parts

QUIET = {"random_seed": 1, "progressbar": False}
RNG = np.random.default_rng(3)


def of_schools(n: int) -> dict[str, np.ndarray]:
    sigma = RNG.uniform(8, 20, n)
    return {"sigma": sigma, "y": RNG.normal(3 + 6 * RNG.normal(size=n), sigma)}


DATA = {f"of {n}": of_schools(n) for n in (4, 5, 6)}


@pytest.fixture(scope="module")
def schools():
    return pmcl.fit_amortized(
        models.eight_schools(),
        covariates={"sigma": pm.Uniform.dist(8, 20)},
        groups=(3, 12),
        steps=1,
        simulations=100,
        **QUIET,
    )


@pytest.fixture(scope="module")
def adapted(schools):
    return schools.adapt(DATA, name="first", steps=75, patience=None, **QUIET)


def test_adaptation_brings_the_network_to_the_posterior_of_the_global_parameters(schools, adapted):
    """Efficiency of its draws, weighed by the density with groups integrated out."""
    before, after = adapted.records[-1].before, adapted.records[-1].after
    assert after.efficiency.mean() > before.efficiency.mean() + 0.01
    assert after.sc_variance.mean() < 0.7 * before.sc_variance.mean()
    assert "adapted to: first" in repr(adapted)
    # the network before is as it was
    assert schools.records == ()


@pytest.mark.slow
def test_stored_datasets_have_their_groups_and_a_state_goes_on(adapted, tmp_path):
    stored = adapted.memory.stored()
    (labels,) = stored.labels
    assert len(labels) in (4, 5, 6)
    pmcl.save(adapted, tmp_path / "state.zarr.zip")
    again = pmcl.load(tmp_path / "state.zarr.zip", models.eight_schools())
    assert again.memory.stored().labels == stored.labels
    assert again.memory.tasks == ("first",)
    # more groups than in training: what is stored is put in a larger model, too
    more = {"large": of_schools(14), "small": of_schools(3)}
    one, two = (p.adapt(more, name="b", steps=3, patience=None, **QUIET) for p in (adapted, again))
    np.testing.assert_allclose(one.records[-1].record.losses, two.records[-1].record.losses)
    assert one.records[-1].record.rehearsed == 1
    assert len(one.memory) == 2
    assert len(one.forget("first").memory) == 1
    with pytest.raises(ValueError, match="has been adapted to"):
        one.pretrain(10, progressbar=False)


def test_log_prob_of_all_is_the_conditional_of_groups_and_that_of_global_parameters(schools):
    tree = schools.sample(DATA, 50, refine=False, fallback=None, random_seed=2)
    shared, joint = (schools.log_prob(tree, DATA, joint=j) for j in (False, True))
    for name, one in DATA.items():
        post, y, sigma = pmcl.one(tree, name)["posterior"], one["y"], one["sigma"]
        mu, tau, theta = (post[k].values[0] for k in ("mu", "tau", "theta"))
        precision = 1 / tau[:, None] ** 2 + 1 / sigma**2
        mean = (mu[:, None] / tau[:, None] ** 2 + y / sigma**2) / precision
        exact = stats.norm.logpdf(theta, mean, precision**-0.5).sum(axis=1)
        found = (joint - shared).sel(dataset=name).values[0]
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_log_prob_of_all_knows_groups_that_are_not_normal_far_away():
    """Scores above 100 count half: near the initial point groups are normal, and far away not."""
    model = models.capped(3)
    network = pmcl.fit_amortized(model, steps=1, simulations=64, **QUIET)
    data = {"y": np.array([[3.0, -4, 1], [99.0, 103, 97]])}
    tree = network.sample(data, 100, refine=False, fallback=None, random_seed=2)
    shared, joint = (network.log_prob(tree, data, joint=j) for j in (False, True))
    at = np.linspace(-200, 500, 7001)
    mu, tau, a = (tree["posterior"][k].values[0] for k in ("mu", "tau", "a"))

    def log_f(a, mu, tau, y):
        mean = np.minimum(a, 50 + a / 2)
        return stats.norm.logpdf(a, mu, tau) + stats.norm.logpdf(y, mean, 5)

    for i, y in enumerate(data["y"]):
        each = [log_f(at, mu[:, i, None], tau[:, i, None], v) for v in y]
        whole = sum(logsumexp(v, axis=1) + np.log(0.1) for v in each)
        mine = np.moveaxis(a, list(a.shape).index(3), -1)[:, i]
        exact = log_f(mine, mu[:, i, None], tau[:, i, None], y).sum(axis=1) - whole
        found = (joint - shared).isel(dataset=i).values[0]
        clear = tau[:, i] > 1  # narrower ones are between the grid's places; kinks between nodes
        np.testing.assert_allclose(found[clear], exact[clear], atol=0.1 if i else 1e-4)


def test_a_store_has_what_memory_would_have(schools, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "TOGETHER", 2)
    given = {"refine": False, "fallback": None, "random_seed": 3}
    here = schools.sample(DATA, 100, **given)
    there = schools.sample(DATA, 100, store=tmp_path / "x.zarr", **given)
    for name in here.children:
        xr.testing.assert_allclose(here[name].to_dataset(), there[name].to_dataset().load())


def test_log_prior_is_of_the_groups_that_there_are(schools):
    tree = schools.sample(DATA, 50, log_prior=True, fallback=None, random_seed=2)
    for name in DATA:
        one = pmcl.one(tree, name)
        mu, tau, theta = (one["posterior"][k].values[0] for k in ("mu", "tau", "theta"))
        exact = stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1)
        np.testing.assert_allclose(one["log_prior"]["theta"].values[0], exact, rtol=1e-6)


def test_data_unlike_simulations_are_told(schools):
    usual = pmcl.check_data(schools, DATA, simulations=100, random_seed=1)
    assert not usual["far"].any()
    far = {"far": {"sigma": np.full(5, 10.0), "y": 1e4 + np.arange(5.0)}}
    assert pmcl.check_data(schools, far, simulations=100, random_seed=1)["far"].all()


@pytest.mark.slow
def test_a_change_of_the_global_parameters_is_told(schools):
    series = {f"a{i}": of_schools(5) for i in range(30)}
    later = {f"b{i}": {k: v + 300 * (k == "y") for k, v in of_schools(6).items()} for i in range(6)}
    with pytest.warns(UserWarning, match="not like the first"):
        found = pmcl.monitor(schools, {**series, **later}, baseline=24, random_seed=1)
    assert found["alarm"].values[-1] and not found["alarm"].values[:30].any()


@pytest.mark.slow
def test_a_report_is_written(adapted, tmp_path):
    page = pmcl.report(adapted, tmp_path / "page.html", calibration=False, progressbar=False)
    assert "first" in page.read_text()


@pytest.mark.slow
def test_groups_that_an_index_alone_tells_are_stored_at_any_number(tmp_path):
    """No variable of the data has the groups' dim: they are as many as the index says."""
    rng = np.random.default_rng(0)

    def counts(sites: int, rows: int = 20) -> dict[str, np.ndarray]:
        at, expected = np.arange(rows) % sites, rng.lognormal(1.7, 1, rows)
        y = rng.poisson(expected * np.exp(rng.normal(0, 0.5, sites)[at]))
        return {"at": at[None], "expected": expected[None], "y": y[None]}

    posterior = pmcl.models.load("counts_by_site")
    posterior = posterior.adapt(counts(4), name="first", steps=1, patience=None, **QUIET)
    pmcl.save(posterior, tmp_path / "state.zarr.zip")
    model = pmcl.models.find("counts_by_site").model()
    again = pmcl.load(tmp_path / "state.zarr.zip", model)
    assert again.memory.stored().labels == (("0", "1", "2", "3"),)
    for name, sites in {"more": 14, "fewer": 3}.items():
        again = again.adapt(counts(sites), name=name, steps=1, patience=None, **QUIET)
    assert again.memory.tasks == ("first", "more", "fewer")
    assert [len(labels) for labels in again.memory.stored().labels] == [4, 14, 3]
