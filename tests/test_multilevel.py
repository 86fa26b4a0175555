"""Networks of multilevel models: any number of groups, right by closed forms, refused by name."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import jax
import level_models as models
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

import pmcl
from pmcl.amortized.groups import Sized, prepared
from pmcl.amortized.level_other import Elsewhere
from pmcl.amortized.level_sampler import LevelSampler
from pmcl.amortized.own_size import (
    OwnSize,
    by_known,
    by_number,
    of_own_size,
    of_real_groups,
    too_many,
)
from pmcl.archive.multilevel import from_datatree, to_datatree
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.resizing import resized
from pmcl.data.new_rows import new_rows
from pmcl.draws.groups import Named
from pmcl.draws.results import value_infos
from pmcl.levels.sizes import Members, check_padding, reading_at
from pmcl.parts import datasets
from pmcl.refinement.finishing import Corrected
from pmcl.refinement.settings import Ways, asked_of
from pmcl.runtime import precision

RNG = np.random.default_rng(8)
QUIET = {"random_seed": 1, "progressbar": False}
SHORT = {"steps": 200, "simulations": 600, **QUIET}
SIGMA = {"sigma": pm.Uniform.dist(8, 20)}


@pytest.fixture(scope="module")
def schools():
    """Eight schools, for 3 to 12 of them."""
    return pmcl.fit_amortized(models.eight_schools(), covariates=SIGMA, groups=(3, 12), **SHORT)


@pytest.fixture(scope="module")
def counties():
    """Rows of counties, by an index."""
    return pmcl.fit_amortized(
        models.counties(),
        covariates={"uranium": pm.Normal.dist(0, 1)},
        groups=(3, 12),
        lengths=(10, 60),
        **SHORT,
    )


def of_schools(n: int) -> dict[str, np.ndarray]:
    sigma = RNG.uniform(8, 20, n)
    return {"sigma": sigma, "y": RNG.normal(3 + 6 * RNG.normal(size=n), sigma)}


def of_counties(groups: int, rows: int) -> dict[str, np.ndarray]:
    county = np.concatenate([np.arange(groups), RNG.integers(0, groups, rows - groups)])
    uranium = RNG.normal(size=groups)
    a = RNG.normal(1 + 0.5 * uranium, 0.5)
    return {"in_county": county, "uranium": uranium, "y": RNG.normal(a[county], 0.8)}


@contextmanager
def compiled_programs() -> Iterator[list[str]]:
    """Names of what XLA compiles meanwhile."""
    names: list[str] = []

    def heard(event: str, seconds: float, **about: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


class Exact:
    """Eight schools on a grid: evidence and means, all in closed form given (mu, log tau)."""

    def __init__(self, y: np.ndarray, sigma: np.ndarray, sd: float = 5) -> None:
        mu, log_tau = np.meshgrid(np.linspace(-40, 40, 401), np.linspace(-9, 7, 401), indexing="ij")
        tau = np.exp(log_tau)
        log_p = stats.norm.logpdf(mu, 0, sd) + stats.halfcauchy.logpdf(tau, scale=5) + log_tau
        for value, error in zip(y, sigma, strict=True):
            log_p += stats.norm.logpdf(value, mu, np.hypot(tau, error))
        self.evidence = logsumexp(log_p) + np.log(80 / 400 * 16 / 400)
        weight = np.exp(log_p - logsumexp(log_p))
        precision = 1 / tau[..., None] ** 2 + 1 / sigma**2
        means = (mu[..., None] / tau[..., None] ** 2 + y / sigma**2) / precision
        self.mu = float(np.sum(weight * mu))
        self.theta = np.einsum("ij,ijk->k", weight, means)
        self.new = self.mu, float(np.sum(weight * (tau.clip(max=50) ** 2 + (mu - self.mu) ** 2)))


def test_any_number_of_schools_has_the_right_posterior(schools):
    data = {f"of {n}": of_schools(n) for n in (3, 8, 11)}
    tree = schools.sample(data, 4000, correct=None, random_seed=2)
    found = tree["dataset_stats"].to_dataset()
    assert (found["efficiency"] > 0.8).all()
    for name, one in data.items():
        exact, stat = Exact(one["y"], one["sigma"]), found.sel(dataset=name)
        error = max(float(stat["log_evidence_error"]), 5e-3)
        assert abs(float(stat["log_evidence"]) - exact.evidence) < 4 * error
        alone = pmcl.one(tree, name)
        assert alone["posterior"].sizes["school"] == len(one["y"])
        weight = np.exp(alone["sample_stats"]["log_weight"].values[0])
        post = alone["posterior"]
        assert abs(weight @ post["mu"].values[0] - exact.mu) < 0.4
        np.testing.assert_allclose(weight @ post["theta"].values[0], exact.theta, atol=0.7)


def test_the_weight_of_a_draw_is_that_of_its_densities(schools):
    """log_prior and log_likelihood are of the groups that there are, not of padding."""
    data = of_schools(5)
    tree = schools.sample(data, 100, correct=None, random_seed=3)
    post, stat = pmcl.one(tree)["posterior"], pmcl.one(tree)["sample_stats"]
    mu, tau, theta = (post[n].values[0] for n in ("mu", "tau", "theta"))
    likelihood = stats.norm.logpdf(data["y"], theta, data["sigma"]).sum(axis=1)
    np.testing.assert_allclose(stat["log_likelihood"].values[0], likelihood, rtol=1e-8)
    prior = stats.norm.logpdf(theta, mu[:, None], tau[:, None]).sum(axis=1) + np.log(tau)
    prior += stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5)
    np.testing.assert_allclose(stat["log_prior"].values[0], prior, rtol=1e-6)
    log_w = prior + likelihood - stat["log_q"].values[0]
    assert stats.spearmanr(log_w, stat["log_weight"].values[0]).statistic > 0.99


def test_printing_says_what_levels_there_are(schools, counties):
    assert "groups along 'school', each with its part of theta" in repr(schools)
    assert "trained over 3 to 12 groups along 'school'" in repr(schools)
    assert "trained over 3 to 12 groups along 'county', by 'in_county'" in repr(counties)
    assert schools.sample(of_schools(4), 10)["posterior"].attrs["levels"].startswith("levels: ")


@pytest.mark.slow
def test_groups_of_an_index_agree_with_refinement_of_a_model_of_their_size(counties):
    data = {"small": of_counties(4, 20), "large": of_counties(10, 45)}
    tree = counties.sample(data, 2000, random_seed=2)
    for name, one in data.items():
        model = resized(models.counties(), "county", len(one["uranium"]))
        other = pmcl.refine(model, one, draws=2000, **QUIET)
        a, b = (t["dataset_stats"].to_dataset() for t in (pmcl.one(tree, name), pmcl.one(other)))
        error = np.hypot(float(a["log_evidence_error"]), float(b["log_evidence_error"]))
        assert abs(float(a["log_evidence"] - b["log_evidence"])) < 4 * error
        mine, theirs = pmcl.one(tree, name)["posterior"], pmcl.one(other)["posterior"]
        for variable in ("a", "at", "sigma"):
            apart = mine[variable].values.mean((0, 1)) - theirs[variable].values.mean((0, 1))
            assert (np.abs(apart) < 5 * theirs[variable].values.std((0, 1)) / 30).all()


def test_long_tables_name_their_groups(counties):
    one = of_counties(5, 30)
    names = np.array(["e", "d", "c", "b", "a"])
    table = pd.DataFrame(
        {"county": names[one["in_county"]], "uranium": one["uranium"][one["in_county"]]}
    ).assign(y=one["y"])
    plain = counties.sample(one, 500)
    named = counties.sample(table, 500)
    assert list(named["posterior"].coords["county"].values) == list(names)
    np.testing.assert_allclose(named["posterior"]["a"], plain["posterior"]["a"])
    # several datasets, whose rows are in any order
    both = pd.concat([table.assign(dataset="x"), table[table.county != "c"].assign(dataset="y")])
    tree = counties.sample(both.sample(frac=1, random_state=1), 200)
    y = pmcl.one(tree, "y")["posterior"]
    assert sorted(y.coords["county"].values) == ["a", "b", "d", "e"]
    assert np.isnan(tree["posterior"]["a"].sel(dataset="y").values[..., 4]).all()
    assert tree["constant_data"]["county_length"].to_series().to_dict() == {"x": 5, "y": 4}
    apart = y["a"].sel(county="d").mean() - plain["posterior"]["a"][..., 1].mean()
    assert abs(float(apart)) < 0.3
    labelled = xr.Dataset(
        {
            "in_county": ("row", names[one["in_county"]]),
            "uranium": ("county", one["uranium"]),
            "y": ("row", one["y"]),
        },
        coords={"county": names},
    )
    again = counties.sample(labelled, 500)["posterior"]
    np.testing.assert_allclose(again["a"], plain["posterior"]["a"])
    assert list(again.coords["county"].values) == list(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in_county": np.arange(1, 6)}, "places of its 5 groups.*Numbers counted from 1"),
        ({"in_county": np.array([0, 1, 2, 3, -1])}, "from 0 to 4, got -1"),
        ({"uranium": xr.DataArray(np.zeros(5), dims="county", coords={"county": list("aabcd")})},
         "5 different names of groups"),
        ({"in_county": np.array(list("abcde"))}, "names of groups, and other variables none"),
        ({"county": np.zeros(5)}, "neither an observed variable nor a covariate"),
    ],
)  # fmt: skip
def test_an_index_is_checked_against_its_own_dataset(counties, change, message):
    data = {"in_county": np.arange(5), "uranium": np.zeros(5), "y": np.zeros(5)}
    with pytest.raises(pmcl.DataError, match=message):
        counties.sample({"wrong": data | change}, 10)


def test_tables_that_do_not_say_which_group(counties):
    table = pd.DataFrame({"y": [0.0, 1, 2], "uranium": [0.0, 1, 1], "in_county": [0, 0, 1]})
    with pytest.raises(pmcl.DataError, match="expected a column 'county' or 'in_county'"):
        counties.sample(table.drop(columns="in_county"), 10)
    with pytest.raises(pmcl.DataError, match="'uranium' .* expected one value for group '0'"):
        counties.sample(table, 10)


def test_another_number_of_groups_compiles_nothing(schools):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for n in (5, 9):
            schools.sample(of_schools(n), 50, refine=False)
        with compiled_programs() as names:
            schools.sample({"a": of_schools(10), "b": of_schools(12)}, 70, refine=False)
            schools.sample(of_schools(6), 50, refine=False)
    assert names == []


def test_predictions_of_groups_at_hand_and_of_a_new_one(counties, schools):
    one = of_counties(4, 24)
    table = pd.DataFrame({"county": list("abcd"), "uranium": one["uranium"]})
    table = table.iloc[one["in_county"]].assign(y=one["y"])
    tree = counties.predict(table, pd.DataFrame({"county": ["d", "a"]}), draws=2000)
    a, y = tree["posterior"]["a"].values[0, :, 0], tree["predictions"]["y"].values[0, :, 0]
    noise = tree["posterior"]["sigma"].values[0, :, 0]
    apart = y - a[:, [3, 0]]
    assert (np.abs(apart.mean(axis=0)) < 0.1).all()
    np.testing.assert_allclose(apart.std(axis=0), np.sqrt((noise**2).mean()), rtol=0.1)
    with pytest.raises(pmcl.DataError, match="expected groups of 'a', 'b', 'c', 'd'"):
        counties.predict(table, pd.DataFrame({"county": ["e"]}), draws=50)
    # a school without a result is one of the population
    data = of_schools(6)
    exact = Exact(data["y"], data["sigma"])
    more = {"y": np.append(data["y"], np.nan), "sigma": np.append(data["sigma"], 10.0)}
    tree = schools.sample(more, 4000)
    new = tree["posterior"]["theta"].values[0, :, 0, 6]
    assert abs(new.mean() - exact.new[0]) < 0.7
    assert abs(float(tree["dataset_stats"]["log_evidence"].item()) - exact.evidence) < 0.05


@pytest.mark.slow
def test_predictions_of_datasets_with_groups_of_their_own(counties):
    """Each at rows of its own: by a column, by name, or along a dim."""
    data, names = {}, {"north": list("abcd"), "south": list("edcfg")}
    for name, labels in names.items():
        one = of_counties(len(labels), 24)
        group = {"county": labels, "uranium": one["uranium"]}
        data[name] = pd.DataFrame(group).iloc[one["in_county"]].assign(y=one["y"])
    rows = pd.DataFrame({"dataset": ["south", "north", "south"], "county": ["c", "d", "g"]})
    tree = counties.predict(data, rows, draws=2000)
    for name, wanted in (("north", ["d"]), ("south", ["c", "g"])):
        alone = pmcl.one(tree, name)
        assert alone["posterior"].sizes["county"] == len(names[name])
        assert alone["observed_data"].sizes["row"] == 24
        y = alone["predictions"]["y"].values[0]
        a = alone["posterior"]["a"].sel(county=wanted).values[0]
        noise = alone["posterior"]["sigma"].values[0, :, None]
        assert y.shape == a.shape and (np.abs((y - a).mean(axis=0)) < 0.1).all()
        np.testing.assert_allclose((y - a).std(axis=0), np.sqrt((noise**2).mean()), rtol=0.1)
    by_name = {n: rows[rows["dataset"] == n][["county"]] for n in names}
    again = counties.predict(data, by_name, draws=2000)
    xr.testing.assert_allclose(again["predictions"].to_dataset(), tree["predictions"].to_dataset())
    both = xr.Dataset(
        {"in_county": (("dataset", "row"), [["c", "g"], ["d", "a"]])},
        coords={"dataset": ["south", "north"]},
    )
    for new in (both, {"in_county": both["in_county"].values[::-1]}):
        found = counties.predict(data, new, draws=20)["predictions_constant_data"]
        assert found["in_county"].values.tolist() == [[3, 0], [2, 4]]  # places
        assert np.isfinite(found["uranium"].sel(dataset="south")).all()
    for new, said in (
        (pd.DataFrame({"county": ["a"]}), "dataset 'south': expected groups of 'e', .* got 'a'"),
        (rows[1:2], "expected the datasets 'north', 'south', got 'north'"),
        ({"in_county": [["c"]] * 3}, "expected 2 datasets, got .*3"),
        ({"in_county": ["c"], "uranium": np.zeros(3)}, "expected 'uranium' of 4 groups .* got 3"),
        ({"in_county": ["c"], "uranium": np.zeros(6)}, "expected 'uranium' of 4 groups .* got 6"),
        ({"in_county": ["c"], "uranium": 1.0}, "expected 'uranium' of 4 groups .* got shape .."),
    ):
        with pytest.raises(pmcl.DataError, match=said):
            counties.predict(data, new, draws=20)


def test_new_rows_go_by_labels(counties):
    """Of groups and of datasets, whatever holds them; by position where these are numbers."""
    one = of_counties(4, 24)
    table = pd.DataFrame({"county": list("abcd"), "uranium": one["uranium"]})
    table = table.iloc[one["in_county"]].assign(y=one["y"])
    task = counties.sampler.checked({"north": table, "south": table}).task

    def read(new) -> dict[str, tuple[list, list]]:
        found = new_rows(new, task, "county", "in_county")
        assert [*found] == ["north", "south"]
        return {k: (v["in_county"].tolist(), v["uranium"][:4].tolist()) for k, v in found.items()}

    new = xr.Dataset(
        {"in_county": ("row", ["b"]), "uranium": ("county", [4.0, 3, 2, 1])},
        coords={"county": list("dcba")},
    )
    turned = ([1], [1.0, 2, 3, 4])
    series = pd.Series([4.0, 3, 2, 1], list("dcba"))
    for form in (
        new, new.assign_coords(dataset="north"), {"in_county": ["b"], "uranium": series},
        {"in_county": ["b"], "uranium": new["uranium"]}, [new],
    ):  # fmt: skip
        if isinstance(form, list):
            form = form * 2
        assert read(form) == {"north": turned, "south": turned}
    each = xr.Dataset({"in_county": (("row", "dataset"), [["b", "c"], ["a", "d"]])})
    own = one["uranium"].tolist()
    assert read(each) == {"north": ([1, 0], own), "south": ([2, 3], own)}
    names = each.assign_coords(dataset=["south", "north"])
    for form in (names, {"in_county": names["in_county"]}):
        assert read(form) == {"south": ([1, 0], own), "north": ([2, 3], own)}
    what_if = pd.DataFrame({"county": [*"bdb"], "uranium": [5.0, 6.0, 5.0]})
    assert read(what_if)["north"] == ([1, 3, 1], [own[0], 5.0, own[2], 6.0])
    with pytest.raises(pmcl.DataError, match="'north': expected one value of 'uranium' for each"):
        read(what_if.assign(uranium=[5.0, 6.0, 7.0]))
    numbered = replace(task, labels=(("1", "2", "3", "4"),) * 2)
    with pytest.raises(pmcl.DataError, match="'in_county': got '1', '2', which may be places"):
        new_rows({"in_county": [1, 2]}, numbered, "county", "in_county")
    for form in (pd.DataFrame({"in_county": [1, 2]}), {"in_county": ["1", "2"]}):
        found = new_rows(form, numbered, "county", "in_county")["north"]
        assert found["in_county"].tolist() == [0, 1]
    rows = pd.DataFrame({"county": [*"bacd"], "dataset": [0, 0, 1, 1]})
    assert read(rows) == read(each)
    by_index = {n: t.set_index("county") for n, t in rows.groupby("dataset")}
    assert read(by_index) == read(each)
    with pytest.raises(pmcl.DataError, match="'north': expected 'uranium' of the groups 'a', 'b'"):
        read(new.assign_coords(county=list("dcbx")))


def test_a_state_is_the_posterior_again(counties, tmp_path):
    path = tmp_path / "counties.zarr.zip"
    pmcl.save(counties, path)
    again = pmcl.load(path, models.counties())
    assert isinstance(again, pmcl.MultilevelPosterior)
    assert repr(again) == repr(counties)
    data = {"a": of_counties(4, 20), "b": of_counties(9, 30)}
    one, two = (p.sample(data, 100, refine=False) for p in (counties, again))
    xr.testing.assert_allclose(one["posterior"].to_dataset(), two["posterior"].to_dataset())
    with pytest.raises(pmcl.StateError):
        pmcl.load(path, models.eight_schools())
    tree = to_datatree(counties)
    tree["search"].attrs["searches"] = 8
    with pytest.raises(pmcl.StateError, match="never pooled"):
        from_datatree(tree, models.counties())


def test_calibrated_on_both_levels(schools):
    tree = pmcl.calibrate(schools, simulations=100, draws=100, random_seed=3, progressbar=False)
    for name in ("mu", "tau", "theta"):
        assert (tree["uniformity"][name].values > 1e-3).all(), name


@pytest.mark.slow
def test_a_fixed_number_of_groups_that_constants_make():
    """Counts by site: not exact, and the model's own constant says which row is whose."""
    model = models.counts("poisson")
    posterior = pmcl.fit_amortized(model, **SHORT | {"steps": 100, "simulations": 300})
    assert isinstance(posterior, pmcl.MultilevelPosterior)
    data = {"y": RNG.poisson(np.exp(0.5 + RNG.normal(size=(2, 6))))[:, models.SIX]}
    tree = posterior.sample(data, 2000)
    other = pmcl.refine(model, data, draws=2000, **QUIET)
    a, b = (t["dataset_stats"].to_dataset() for t in (tree, other))
    error = np.hypot(a["log_evidence_error"], b["log_evidence_error"])
    assert (np.abs(a["log_evidence"] - b["log_evidence"]) < 4 * error).all()
    apart = tree["posterior"]["u"].mean(("chain", "draw")) - other["posterior"]["u"].mean(
        ("chain", "draw")
    )
    assert (np.abs(apart) < 0.1).all()
    assert (a["group_points"] >= 8).all()


@pytest.mark.slow
def test_levels_false_is_a_network_of_all_parameters():
    network = pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1)
    given = {"levels": False, "network": network} | SHORT | {"steps": 1}
    posterior = pmcl.fit_amortized(models.eight_schools(), covariates=SIGMA, **given)
    assert isinstance(posterior, pmcl.AmortizedPosterior)
    assert posterior.amortizer.dim == 10


def test_what_is_not_there_is_refused_by_name(schools):
    data = of_schools(5)
    for call in (
        lambda: pmcl.sensitivity(schools, data, {"sigma": [1.0]}),
        lambda: pmcl.model_recovery({"a": schools, "b": schools}, 4),
    ):
        with pytest.raises(NotImplementedError, match="not there for a posterior with levels"):
            call()
    with pytest.raises(ValueError, match="expected datasets"):
        schools.sample()


def known(one: dict[str, np.ndarray], tau: float, theta: np.ndarray) -> tuple[np.ndarray, float]:
    """Means of theta given tau and some of theta; the log density of all that is known."""
    n, at = len(one["y"]), np.flatnonzero(~np.isnan(theta))
    prior = np.diag(np.full(n, tau**2)) + 25.0
    seen = np.concatenate([one["y"], theta[at]])
    noise = np.diag(np.concatenate([one["sigma"] ** 2, np.zeros(len(at))]))
    all_, both = np.concatenate([np.arange(n), at]), np.zeros(len(seen))
    cov = prior[np.ix_(all_, all_)] + noise
    log_p = stats.multivariate_normal(both, cov).logpdf(seen)
    mean = prior[:, all_] @ np.linalg.solve(cov, seen)
    return mean, log_p + stats.halfcauchy.logpdf(tau, scale=5)


def check_known(tree: xr.DataTree, data: dict, given: dict[str, np.ndarray]) -> None:
    for i, (name, one) in enumerate(data.items()):
        alone, n = pmcl.one(tree, name), len(one["y"])
        mean, evidence = known(one, given["tau"][i], given["theta"][i, :n])
        stat, draws = alone["dataset_stats"], alone["posterior"]["theta"].values[0]
        weight = np.exp(alone["sample_stats"]["log_weight"].values[0])
        np.testing.assert_allclose(weight @ draws, mean, atol=0.6)
        error = max(float(stat["log_evidence_error"]), 1e-3)
        assert abs(float(stat["log_evidence"]) - evidence) < 4 * error
        assert {*alone["posterior"].data_vars} == {"mu", "theta"}
        assert (draws[:, ~np.isnan(given["theta"][i, :n])] == 1.5).all()


def some_known(numbers: tuple[int, ...], *, entries: bool) -> dict[str, np.ndarray]:
    theta = np.full((len(numbers), max(numbers)), np.nan)
    for i, n in enumerate(numbers if entries else ()):
        theta[i, : n - 3] = 1.5  # other entries in each dataset
    return {"tau": np.linspace(4.0, 9.0, len(numbers)), "theta": theta}


@pytest.mark.parametrize("refine", [False, "auto"])
def test_some_parameters_known_of_datasets_with_their_own_groups(schools, refine, tmp_path):
    asked = {"random_seed": 3, "refine": refine, "correct": None, "fallback": None}
    data = {"few": of_schools(5), "more": of_schools(7), "again": of_schools(5)}
    given = some_known((5, 7, 5), entries=True)
    tree = schools.sample(data, 4000, given=given, **asked)
    check_known(tree, data, given)
    # within a size neither numbers of groups nor entries that are known compile anything
    others, less = {n: of_schools(int(n)) for n in "687"}, some_known((6, 8, 7), entries=True)
    less["theta"][1, 4] = np.nan
    with compiled_programs() as programs:
        check_known(schools.sample(others, 4000, given=less, **asked), others, less)
    assert programs == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "TOGETHER", 2)
        there = schools.sample(data, 4000, given=given, store=tmp_path / "x.zarr", **asked)
    same_trees(tree, there)


def test_known_values_are_of_the_datasets_own_groups(schools):
    names, one = list("vwxyz"), of_schools(5)
    labelled = {k: xr.DataArray(v, dims="school", coords={"school": names}) for k, v in one.items()}
    theta = np.array([[1.0, 2, 3, 4, 5]])
    asked = {"refine": False, "fallback": None, "random_seed": 3}
    tree = schools.sample(labelled, 100, given={"theta": theta}, **asked)
    assert {*tree["posterior"].data_vars} == {"mu", "tau"}
    assert list(tree["constant_data"].coords["school"].values) == names
    np.testing.assert_allclose(tree["constant_data"]["theta"].values, theta)
    with pytest.raises(ValueError, match=r"'theta'.: expected values of 5 groups .* got 4"):
        schools.sample(labelled, given={"theta": theta[:, :4]})
    with pytest.raises(ValueError, match="expected an array without labels"):
        schools.sample(labelled, given={"theta": pd.Series(theta[0], names)})


@pytest.mark.parametrize(
    ("theta", "said"),
    [
        (np.ones((3, 5)), "expected values of 1 datasets .* got 3"),
        (np.ones((1, 6)), "expected values of 5 groups .* NaN beyond these, got 6"),
    ],
)
def test_known_values_of_another_number_are_refused(schools, theta, said):
    with pytest.raises(ValueError, match=rf"'theta'.: {said}"):
        schools.sample(of_schools(5), given={"theta": theta})


def test_datasets_of_which_the_same_is_known_share_a_model(schools):
    data = {n: of_schools(int(n[0])) for n in ("5a", "5b", "7", "5c", "5d", "6")}
    theta = np.full((6, 7), np.nan)
    theta[[0, 3], 1] = 1.0
    sampler, asked = schools.sampler, asked_of(schools.compiled, Ways(False), 10, seed=0)
    read = schools._read(data, set())
    assert [[*r] for r in by_known(read)] == [[0, 1, 3, 4], [5], [2]]
    _, read, _ = Elsewhere(data, None, {"theta": theta}, None).of(sampler, read, asked)
    assert {(*r,) for r in by_known(read)} == {(0, 3), (1, 4), (5,), (2,)}
    auto = asked._replace(fallback="auto")
    assert [too_many(auto, n) for n in (4, 5)] == [False, True]
    assert not too_many(asked._replace(fallback="nuts"), 9)


def fall(monkeypatch, which: int) -> None:
    """Give a dataset of several, and any alone, to NUTS."""
    monkeypatch.setattr(
        Corrected,
        "fallen",
        lambda self, asked: np.arange(len(self.log_weights))[which:] if asked.fallback else None,
    )


@pytest.mark.slow
def test_nuts_takes_datasets_of_which_less_is_known(schools, monkeypatch):
    data, given = {n: of_schools(int(n)) for n in "57"}, some_known((5, 7), entries=True)
    given["theta"][1] = np.nan
    asked = {"given": given, "random_seed": 3}
    fall(monkeypatch, -1)
    tree = schools.sample(data, 2000, **asked)
    assert tree["dataset_stats"]["engine"].values.tolist() == ["amortized", "nuts"]
    one = data["7"]
    np.testing.assert_allclose(
        pmcl.one(tree, "7")["posterior"]["theta"].mean(("chain", "draw")),
        known(one, given["tau"][1], given["theta"][1])[0],
        atol=0.6,
    )
    monkeypatch.undo()
    others = schools.sample(data, 2000, fallback=None, **asked)
    for name in ("log_prior", "log_likelihood"):  # a known value's own density is of the prior
        a, b = (t["sample_stats"][name].mean(("chain", "draw")).values for t in (tree, others))
        np.testing.assert_allclose(a, b, atol=0.25)
    given["theta"][1] = 1.0  # nothing is left
    given["mu"] = np.array([np.nan, 2.0])
    fall(monkeypatch, -1)
    tree = schools.sample(data, 100, **asked)
    assert (pmcl.one(tree, "7")["posterior"]["mu"] == 2.0).all()


def other_schools(sd: float, *, mean: bool = False) -> pm.Model:
    with pm.Model(coords={"school": range(8)}) as model:
        sigma = pm.Data("sigma", np.ones(8), dims="school")
        mu, tau = pm.Normal("mu", 0, sd), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Deterministic("twice", 2 * mu)
        shift = pm.Data("shift", np.zeros(8), dims="school")
        shift = shift.mean() if mean else shift
        pm.Normal("y", theta + shift, sigma, observed=np.zeros(8), dims="school")
    return model


@pytest.fixture(scope="module")
def other():
    return other_schools(1.0)


@pytest.mark.parametrize("refine", [False, "auto"])
def test_another_prior_of_datasets_with_any_number_of_groups(schools, other, refine, monkeypatch):
    data = {"few": of_schools(5), "more": of_schools(7)}
    moved = {k: {**one, "shift": -one["y"] / 3, "y": one["y"] * 2 / 3} for k, one in data.items()}
    tree = schools.sample(moved, 3000, model=other, refine=refine, random_seed=3)
    monkeypatch.setattr("pmcl.draws.results.doubts", lambda names, stats: [f"of {names}"])
    six = {**of_schools(6), "shift": np.zeros(6)}
    told = Mock(side_effect=check_padding)  # of every data: others may show what these hide
    monkeypatch.setattr("pmcl.amortized.level_other.check_padding", told)
    with (
        compiled_programs() as names,
        pytest.warns(UserWarning, match="of .*'few', 'more'") as said,
    ):
        schools.sample({**moved, "six": six}, 3000, model=other, refine=refine)
    assert names == [] and told.called and [w.filename for w in said] == [__file__]
    for name, one in data.items():
        exact, alone = Exact(one["y"], one["sigma"], sd=1.0), pmcl.one(tree, name)
        stat = alone["dataset_stats"]
        error = max(float(stat["log_evidence_error"]), 5e-3)
        assert abs(float(stat["log_evidence"]) - exact.evidence) < 4 * error
        weight = np.exp(alone["sample_stats"]["log_weight"].values[0])
        theta = weight @ alone["posterior"]["theta"].values[0]
        np.testing.assert_allclose(theta, exact.theta, atol=0.7)
        # all variables are those of the other model
        draws = alone["posterior"]
        np.testing.assert_allclose(draws["twice"].values, 2 * draws["mu"].values)
    with pytest.raises(ValueError, match="var_names: expected some of .*'twice'"):
        schools.sample(moved, model=other, refine=refine, var_names=["thrice"])


def test_what_a_zero_hides_of_another_model_is_seen(schools):
    data, model = {**of_schools(5), "shift": np.zeros(5)}, other_schools(1.0, mean=True)
    sampler, *_ = Elsewhere(data, model, None, None).of(
        schools.sampler,
        schools._read(data, {"shift"}),
        asked_of(schools.compiled, Ways(False), 10, seed=0),
    )
    assert not sampler.padding and sampler.prior is None


@pytest.mark.slow
def test_another_model_may_have_other_transforms(schools):
    with pm.Model(coords={"school": range(8)}) as model:
        sigma = pm.Data("sigma", np.ones(8), dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.Uniform("tau", 0, 10)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, sigma, observed=np.zeros(8), dims="school")
    tree = schools.sample(of_schools(5), 500, model=model, given={"mu": 0.0}, random_seed=3)
    tau = tree["posterior"]["tau"].values
    assert (tau > 0).all() and (tau < 10).all()
    assert float(tree["dataset_stats"]["khat"].item()) < 0.7


def test_a_task_of_the_models_own_groups_needs_no_names(schools):
    size = len(schools.compiled.coords["school"])
    given = schools.sampler.checked(pmcl.as_task(of_schools(size), schools.layout))
    assert given.labels is None and not given.padded
    (rows,) = by_number(given)
    own = of_own_size(schools.groups, given, rows)
    assert own.sized is given.sized and [*own.places] == [*range(given.sized.compiled.dim)]


def test_what_is_another_models_is_passed_over_in_a_task_with_groups(schools):
    task = schools.sampler.checked(of_schools(5)).task
    (y, sigma), size = task.layout.variables, task.values["y"].shape
    more = replace(task.layout, variables=(y, sigma, sigma._replace(name="shift")))
    found = replace(task, layout=more, values={**task.values, "shift": np.ones(size)})
    again = schools.sampler.checked(found, ["shift"])
    assert [*again.task.values] == ["y", "sigma"] and again.labels == task.labels
    with pytest.raises(pmcl.DataError, match=r"\['shift'\] is neither"):
        schools.sampler.checked(found)


def mean_over_schools() -> pm.Model:
    """Schools about a mean of all schools' data: what is padding would count."""
    with pm.Model(coords={"school": range(8)}) as model:
        sigma = pm.Data("sigma", np.ones(8), dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu + sigma.mean(), tau, dims="school")
        pm.Normal("y", theta, sigma, observed=np.zeros(8), dims="school")
    return model


def same_trees(here: xr.DataTree, there: xr.DataTree) -> None:
    """To the last digit."""
    assert {*here.children} == {*there.children}
    for name in here.children:
        one, two = (t[name].to_dataset().load() for t in (here, there))
        assert {*one} == {*two} and {*one.coords} == {*two.coords}
        for k in one.variables:
            np.testing.assert_array_equal(one[k].values, two[k].values, err_msg=f"{name} {k}")


@pytest.mark.slow
@pytest.mark.parametrize("refine", [False, "auto"])
def test_another_model_whose_groups_depend_on_those_of_others(schools, refine, tmp_path):
    """A mean over the schools that there are: by the network, in models of their number."""
    model = mean_over_schools()
    data = {"few": of_schools(5), "more": of_schools(7), "again": of_schools(5)}
    asked = {"model": model, "refine": refine, "correct": None, "fallback": None, "random_seed": 3}
    tree = schools.sample(data, 4000, **asked)
    for name, one in data.items():
        alone, shift = pmcl.one(tree, name), one["sigma"].mean()
        exact = Exact(one["y"] - shift, one["sigma"])
        weight = np.exp(alone["sample_stats"]["log_weight"].values[0])
        assert abs(float(alone["dataset_stats"]["log_evidence"]) - exact.evidence) < 0.1
        theta = weight @ alone["posterior"]["theta"].values[0]
        np.testing.assert_allclose(theta, exact.theta + shift, atol=0.7)
    assert (tree["dataset_stats"]["engine"] == "amortized").all() or refine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "TOGETHER", 2)
        there = schools.sample(data, 4000, store=tmp_path / "x.zarr", **asked)
    same_trees(tree, there)


def chain() -> pm.Model:
    """Every school's result has half of the effect of the school before: no groups."""
    with pm.Model(coords={"school": range(8)}) as model:
        sigma = pm.Data("sigma", np.ones(8), dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        before = pm.math.concatenate([[0.0], theta[:-1]])
        pm.Normal("y", theta + before / 2, sigma, observed=np.zeros(8), dims="school")
    return model


@pytest.mark.slow
def test_another_model_without_the_levels_of_the_network(schools, tmp_path):
    """Refined without it, each number of groups in a model of its own."""
    model = chain()
    data = {"few": of_schools(5), "more": of_schools(7), "again": of_schools(5)}
    with pytest.raises(ValueError, match="model: expected one with the levels of the network's"):
        schools.sample(data, 100, model=model, refine=False)
    given = {"tau": np.array([4.0, 6.0, 9.0])}
    asked = {"model": model, "given": given, "fallback": None, "random_seed": 3}
    tree = schools.sample(data, 2000, **asked)
    assert tree["posterior"].attrs["levels"].startswith("no levels")
    for (name, one), tau in zip(data.items(), given["tau"], strict=True):
        n, alone = len(one["y"]), pmcl.one(tree, name)
        prior, move = np.diag(np.full(n, tau**2)) + 25.0, np.eye(n) + np.eye(n, k=-1) / 2
        cov = move @ prior @ move.T + np.diag(one["sigma"] ** 2)
        theta = prior @ move.T @ np.linalg.solve(cov, one["y"])
        found = alone["posterior"]["theta"].mean(("chain", "draw"))
        np.testing.assert_allclose(found, theta, atol=0.7)
        evidence = stats.multivariate_normal(np.zeros(n), cov).logpdf(one["y"])
        evidence += stats.halfcauchy.logpdf(tau, scale=5)
        assert abs(float(alone["dataset_stats"]["log_evidence"]) - evidence) < 0.1
        assert float(alone["constant_data"]["tau"]) == tau
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "TOGETHER", 2)
        there = schools.sample(data, 2000, store=tmp_path / "x.zarr", **asked)
    same_trees(tree, there)
    theta = np.full((3, 7), np.nan)
    theta[0, :2] = 1.5
    asked["given"] = given | {"theta": theta, "mu": [2.0, np.nan, np.nan]}
    tree = schools.sample(data, 200, **asked)
    assert (pmcl.one(tree, "few")["posterior"]["theta"].values[..., :2] == 1.5).all()
    assert ((tree["posterior"]["mu"] == 2.0).all(("chain", "draw")) == [True, False, False]).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "TOGETHER", 1)
        there = schools.sample(data, 200, store=tmp_path / "y.zarr", **asked)
        same_trees(tree, there)
        patch.setattr("pmcl.amortized.own_size._SIZES", 2)  # of three models
        refined = Mock(side_effect=KeyboardInterrupt)
        patch.setattr(OwnSize, "refined", refined)
        for fallback, then in (("auto", None), ("nuts", "nuts")):
            with pytest.raises(KeyboardInterrupt):
                schools.sample(data, 200, **asked | {"fallback": fallback})
            assert refined.call_args.args[1].fallback == then


@pytest.mark.slow
def test_a_cluster_draws_what_is_left(schools, tmp_path):
    distributed = pytest.importorskip("distributed")
    data, given = {n: of_schools(int(n)) for n in "57"}, some_known((5, 7), entries=True)
    here = schools.sample(data, 200, given=given, fallback=None, random_seed=3)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as local,
        distributed.Client(local) as client,
    ):
        there = schools.sample(
            data, 200, given=given, fallback=None, random_seed=3, client=client,
            store=tmp_path / "x.zarr",
        )  # fmt: skip
    same_trees(here, there)


@pytest.mark.slow
def test_another_prior_in_a_store(schools, other, tmp_path):
    data = {"few": of_schools(5), "more": of_schools(7)}
    kept = schools.sample(data, 100, model=other, random_seed=3, store=tmp_path / "there")
    tree = schools.sample(data, 100, model=other, random_seed=3)
    for name in ("posterior", "unconstrained_posterior"):
        xr.testing.assert_allclose(kept[name].to_dataset(), tree[name].to_dataset(), rtol=1e-5)


def test_starting_points_are_of_the_groups_that_there_are(schools):
    data = {"few": of_schools(5), "more": of_schools(11)}
    found = schools.warm_start(data, draws=2000, chains=3, random_seed=1)
    for name, one in data.items():
        n, start = len(one["y"]), found[name]
        assert start.positions.shape == (3, n + 2)
        assert start.initvals[0]["theta"].shape == (n,)
        exact = Exact(one["y"], one["sigma"])
        np.testing.assert_allclose(start.mean[2:], exact.theta, atol=1.0)
    tree = schools.sample(data, 100, random_seed=1)
    with pytest.raises(ValueError, match=r"all entries of \['theta'\] for dataset 'few'"):
        pmcl.warm_start(tree, resized(models.eight_schools(), "school", 11))
    alone = pmcl.one(tree, "few")
    assert [*pmcl.warm_start(alone, resized(models.eight_schools(), "school", 5))] == ["0"]


@pytest.mark.slow
def test_nuts_takes_over_in_a_model_of_the_datasets_own_size(schools, monkeypatch):
    """As if all draws were bad; densities are of the groups that there are."""
    monkeypatch.setattr(
        "pmcl.refinement.finishing.Corrected.fallen",
        lambda self, asked: np.arange(len(self.log_weights)) if asked.fallback else None,
    )
    data = {"few": of_schools(5), "more": of_schools(7)}
    for one in data.values():  # far from the funnel
        one["sigma"] = one["sigma"] / 10
        one["y"] = 3 + 12 * RNG.normal(size=len(one["y"]))
    tree = schools.sample(data, 1000, fallback="nuts", random_seed=1)
    assert (tree["dataset_stats"]["engine"] == "nuts").all()
    assert (tree["dataset_stats"]["rhat"] < 1.05).all()
    for name, one in data.items():
        exact, alone = Exact(one["y"], one["sigma"]), pmcl.one(tree, name)
        post = alone["posterior"]
        np.testing.assert_allclose(post["theta"].mean(("chain", "draw")), exact.theta, atol=0.3)
        assert abs(float(post["mu"].mean()) - exact.mu) < 0.6
        likelihood = stats.norm.logpdf(one["y"], post["theta"].values[0], one["sigma"]).sum(axis=1)
        np.testing.assert_allclose(
            alone["sample_stats"]["log_likelihood"].values[0], likelihood, rtol=1e-6
        )


@pytest.mark.slow
def test_the_globals_are_a_prior_of_the_next_schools(schools):
    """Evidence of new data given old ones, and schools that are drawn from the population."""
    old, new = of_schools(6), of_schools(8)
    with pm.Model(coords={"school": range(8)}) as model:
        before = pmcl.as_prior(schools, {"main": old, "other": new}, dataset="main", random_seed=1)
        assert list(before) == ["mu", "tau"]
        sigma = pm.Data("sigma", np.ones(8), dims="school")
        theta = pm.Normal("theta", before["mu"], before["tau"], dims="school")
        pm.Normal("y", theta, sigma, observed=np.zeros(8), dims="school")
    tree = pmcl.refine(model, new, draws=4000, **QUIET)
    assert "integrated out exactly" in tree["posterior"].attrs["levels"]
    both = Exact(*(np.concatenate([old[k], new[k]]) for k in ("y", "sigma")))
    evidence = both.evidence - Exact(old["y"], old["sigma"]).evidence
    found = tree["dataset_stats"]
    assert abs(float(found["log_evidence"].item()) - evidence) < 0.1
    assert abs(float(tree["posterior"]["mu"].mean()) - both.mu) < 0.4
    np.testing.assert_allclose(
        tree["posterior"]["theta"].mean(("chain", "draw"))[0], both.theta[6:], atol=0.8
    )
    with pm.Model():  # the same schools again, with what is known of each
        again = pmcl.as_prior(schools, old, vars=["theta"], flow=False, random_seed=1)
        assert list(again) == ["theta"] and again["theta"].type.shape == (6,)
    named = {
        k: xr.DataArray(v, dims="school", coords={"school": [*"abcdef"]}) for k, v in old.items()
    }
    with pm.Model(coords={"school": [*"fedcba"]}) as turned:
        other = pmcl.as_prior(schools, named, vars=["theta"], flow=False, random_seed=1)
    assert turned.named_vars_to_dims["theta"] == ("school",)
    drawn = [pm.draw(v["theta"], 400, random_seed=0).mean(axis=0) for v in (again, other)]
    np.testing.assert_allclose(drawn[0], drawn[1][::-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "given", "error", "message"),
    [
        (models.regression, {"levels": True}, UnsupportedModelError, "expected a multilevel"),
        (models.regression, {"groups": (3, 9)}, UnsupportedModelError, "expected a multilevel"),
        (models.eight_schools, {"groups": (1, 9)}, ValueError, "groups: expected the smallest"),
        (models.eight_schools, {"groups": (3, 9)}, UnsupportedModelError, "'sigma'. are constants"),
        (
            models.slopes,
            {"groups": (3, 9)},
            UnsupportedModelError,
            "here constants of the model do",
        ),
        (models.nested, {"groups": (3, 9)}, UnsupportedModelError, "expected one dim that all"),
        (models.eight_schools, {"levels": "on"}, ValueError, "levels: expected None"),
        (
            models.eight_schools,
            {"levels": True, "network": pmcl.DeepSet()},
            ValueError,
            "has no summary network",
        ),
        (
            models.counties,
            {"covariates": {"in_county": np.arange(6), "uranium": np.ones(3)}, "groups": (3, 9)},
            ValueError,
            "expected no source of 'in_county'",
        ),
    ],
)
def test_models_that_do_not_fit(model, given, error, message):
    with pytest.raises(error, match=message):
        pmcl.fit_amortized(model(), **SHORT | {"steps": 1} | given)


@pytest.mark.parametrize("shifted", [False, True])
def test_a_mean_over_groups_is_no_padding(shifted):
    """What belongs to one group depends on the data of all; times below a shift are impossible."""
    with pm.Model(coords={"school": range(8)}) as model:
        x = pm.Data("x", np.zeros(8), dims="school")
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        theta = pm.Normal("theta", mu * (x - x.mean()), tau, dims="school")
        if shifted:
            shift, mean = pm.HalfNormal("shift", 0.01), 0.01 * pm.math.exp(pm.math.tanh(theta))
            pm.Wald("y", mean, 0.1, alpha=shift, observed=np.ones(8), dims="school")
        else:
            pm.Normal("y", theta, 1, observed=np.zeros(8), dims="school")
    with pytest.raises(UnsupportedModelError, match="a mean over groups"):
        pmcl.fit_amortized(model, covariates={"x": pm.Normal.dist()}, groups=(3, 9), **SHORT)


def test_datasets_that_do_not_adjoin_have_random_numbers_of_their_own(schools):
    data = {"a": of_schools(5), "b": of_schools(7), "c": of_schools(5), "d": of_schools(7)}
    read = schools.sampler.checked(data)
    places = [of_own_size(schools.groups, read, rows).task.position for rows in by_number(read)]
    assert [p.tolist() for p in places] == [[0, 2], [1, 3]]
    task = of_own_size(schools.groups, read, [1, 3]).task
    assert [p.position.tolist() for p in task.parts(1)] == [[1], [3]]


def test_few_sizes_of_a_model_are_kept():
    made, compiled = [], pmcl.compile_model(models.regression())

    def size(n: int) -> int:
        return compiled.keep_few("test", n, lambda: made.append(n) or n, most=2)

    assert [size(n) for n in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]


def test_what_groups_have_is_cut_by_the_name_of_their_dim():
    """A simplex has another number of unconstrained entries."""
    coords = {"site": range(6), "kind": range(3), "place": range(4)}
    with pm.Model(coords=coords) as model:
        pm.Dirichlet("share", np.ones(3), dims=("site", "kind"))
        pm.Normal("at", 0, 1, dims=("site", "place"), transform=pm.distributions.transforms.ordered,
                  initval=np.tile(np.arange(4.0), (6, 1)))  # fmt: skip
        zero = pm.ZeroSumNormal("sums_to_zero", dims="place")
        pm.Normal("y", zero, 1, observed=np.zeros(4), dims="place")
    found = value_infos(pmcl.compile_model(model))
    assert {n: (i.dims, i.shape) for n, i in found.items()} == {
        "share_simplex__": (("site", "share_simplex___dim_1"), (6, 2)),
        "at_ordered__": (("site", "place"), (6, 4)),
        "sums_to_zero_zerosum__": (("sums_to_zero_zerosum___dim_0",), (3,)),
    }


def test_what_depends_on_several_groups_is_of_those_that_there_are():
    """The best school of five, in a model of six: padding has no part in it."""
    model = models.eight_schools()
    with model:
        theta = model["theta"]
        pm.Deterministic("best", theta.max())
        pm.Deterministic("precise", (theta / model["sigma"]).sum())
        pm.Deterministic("apart", theta - theta.mean(), dims="school")
        pm.Deterministic("effect", theta - model["mu"], dims="school")
    ready = prepared(model, SIGMA, (3, 12))
    compiled = pmcl.compile_model(ready.model, covariates=["sigma"])
    reading = reading_at(ready.reading, compiled, ready.groups.grouping)
    sampler = LevelSampler(Sized(compiled, reading), None, None, ready.groups, None)
    data = {"a": of_schools(5), "b": of_schools(7), "c": of_schools(5)}
    read = sampler.checked(data)
    z = RNG.normal(size=(3, 20, read.sized.compiled.dim))
    names = ("theta", "mu", "best", "precise", "apart", "effect")
    with precision.scope():
        found = of_real_groups(ready.groups, read, z, names)
    for i, one in enumerate(data.values()):
        n = len(one["y"])
        theta, mu = found["theta"][i][:, :n], found["mu"][i][:, None]
        np.testing.assert_allclose(found["best"][i], theta.max(axis=1))
        np.testing.assert_allclose(found["precise"][i], (theta / one["sigma"]).sum(axis=1))
        np.testing.assert_allclose(found["apart"][i][:, :n], theta - theta.mean(1, keepdims=True))
        np.testing.assert_allclose(found["effect"][i][:, :n], theta - mu)


def test_initial_values_are_those_of_the_groups_that_a_model_has_then():
    with pm.Model(coords={"site": range(3), "part": range(2)}) as model:
        mu = pm.Normal("mu", 0, 1, initval=0.5)
        start = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        m = pm.Normal("m", mu, 1, dims=("site", "part"), initval=start)
        pm.Normal("y", m, 1.0, observed=np.zeros((3, 2)), dims=("site", "part"))
    found = resized(model, "site", 5).initial_point()
    np.testing.assert_array_equal(found["m"], start[[0, 1, 2, 2, 2]])
    assert found["mu"] == 0.5
    np.testing.assert_array_equal(resized(model, "site", 2).initial_point()["m"], start[:2])


def test_the_number_of_groups_is_no_part_of_a_density():
    with pm.Model(coords={"school": range(8)}) as model:
        sigma = pm.Data("sigma", np.ones(8), dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau * np.sqrt(2) ** sigma.shape[0], dims="school")
        pm.Normal("y", theta, sigma, observed=np.zeros(8), dims="school")
    with pytest.raises(UnsupportedModelError, match="depends on how many there are"):
        pmcl.fit_amortized(model, covariates=SIGMA, groups=(3, 9), **SHORT)


def test_predicted_counts_of_padding_are_missing():
    counts = xr.Dataset({"y": (("chain", "draw", "dataset", "site"), np.ones((1, 2, 2, 4), int))})
    tree = xr.DataTree.from_dict({"predictions": counts, "posterior_predictive": counts})
    labels = (("a", "b"), ("a", "b", "c"))
    found = Named("site", labels).of(tree, labels)
    for name in tree.children:
        there = np.isfinite(found[name]["y"].values).all(axis=(0, 1))
        np.testing.assert_array_equal(there, [[True, True, False], [True, True, True]])


def test_members_are_of_every_group():
    for seed in range(20):
        found = Members(3, 9)(np.random.default_rng(seed), 30)
        number = found.max() + 1
        assert 3 <= number <= 9
        np.testing.assert_array_equal(found[:number], np.arange(number))
    assert Members(5, 5)(np.random.default_rng(0), 3).tolist() == [0, 1, 2]
