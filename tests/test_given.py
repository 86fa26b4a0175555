"""What is known: conditionals of normals in closed form, for known parameters and known levels."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from pymc.distributions import transforms
from scipy import stats

import pmcl
from pmcl.compile import compile_model
from pmcl.compile.parting import parted
from pmcl.data.reading import task_of
from pmcl.refinement.known import conditional_model, known_z, values_of
from pmcl.refinement.standalone import RefineJob
from pmcl.runtime import precision

GROUPS, SE = 5, 0.8
RNG = np.random.default_rng(0)
Y = RNG.normal(2.0, 1.5, size=(3, GROUPS))
Z = RNG.normal(size=(GROUPS, 2))
NAMES = ("mu", "beta", "theta")
TINY = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)


def levels() -> pm.Model:
    """Groups about a regression: every parameter is normal given the data."""
    with pm.Model(coords={"group": range(GROUPS), "x": range(2)}) as model:
        mu = pm.Normal("mu", 0, 2)
        beta = pm.Normal("beta", 0, 1, dims="x")
        theta = pm.Normal("theta", mu + pm.math.dot(Z, beta), 1, dims="group")
        pm.Normal("y", theta, SE, observed=np.zeros(GROUPS), dims="group")
    return model


def joint(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (mu, beta, theta) given y."""
    design = np.concatenate([np.ones((GROUPS, 1)), Z], axis=1)
    top = np.diag([4.0, 1.0, 1.0])
    middle = design @ top
    prior = np.block([[top, middle.T], [middle, design @ middle.T + np.eye(GROUPS)]])
    seen = prior[:, 3:]
    gain = seen @ np.linalg.inv(prior[3:, 3:] + SE**2 * np.eye(GROUPS))
    return gain @ y, prior - gain @ seen.T


def conditional(y: np.ndarray, at: list[int], value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, covariance = joint(y)
    left = np.setdiff1d(np.arange(len(mean)), at)
    gain = covariance[np.ix_(left, at)] @ np.linalg.inv(covariance[np.ix_(at, at)])
    moved = mean[left] + gain @ (value - mean[at])
    return moved, covariance[np.ix_(left, left)] - gain @ covariance[np.ix_(at, left)]


PLACES = {"mu": [0], "beta": [1, 2], "theta": [3, 4, 5, 6, 7]}
GIVEN = {
    "a vector": {"beta": [0.5, -1.0]},
    "the local level": {"theta": RNG.normal(size=(3, GROUPS))},
    "the global level": {"mu": np.array([0.0, 1.0, 2.0]), "beta": [0.5, -1.0]},
}


def check_parts(tree: xr.DataTree, given: dict[str, np.ndarray]) -> None:
    """As :func:`check`, where entries of variables are known."""
    draws = tree["posterior"].to_dataset()
    places = {n: np.asarray(PLACES[n]) for n in NAMES}
    at = np.concatenate([places[n][~np.isnan(np.ravel(v))] for n, v in given.items()])
    value = np.concatenate([np.ravel(v)[~np.isnan(np.ravel(v))] for v in given.values()])
    order = np.argsort(at)
    left = np.setdiff1d(np.arange(8), at)
    for i, y in enumerate(Y):
        mean, covariance = conditional(y, at[order].tolist(), value[order])
        columns = [draws[n].values[0, :, i].reshape(1000, -1) for n in NAMES if n in draws]
        names = np.concatenate([places[n] for n in NAMES if n in draws])
        found = np.concatenate(columns, axis=1)
        own = found[:, [np.flatnonzero(names == p)[0] for p in left]]
        sd = np.sqrt(np.diag(covariance))
        assert (np.abs(own.mean(axis=0) - mean) < 4.5 * sd / np.sqrt(700)).all()
        size = np.outer(sd, sd)
        np.testing.assert_allclose(np.cov(own.T) / size, covariance / size, atol=0.15)
        for p, v in zip(at, value, strict=True):
            if p in names:
                assert (found[:, np.flatnonzero(names == p)[0]] == v).all()
    assert (tree["dataset_stats"]["warning"].values == "").all()


def check(tree: xr.DataTree, given: dict) -> None:
    draws = tree["posterior"].to_dataset()
    left = [n for n in NAMES if n not in given]
    assert {*draws.data_vars} == {*left}
    at = sum((PLACES[n] for n in NAMES if n in given), [])
    for i, y in enumerate(Y):
        value = np.concatenate([_of(given[n], n, i) for n in NAMES if n in given])
        mean, covariance = conditional(y, at, value)
        own = np.concatenate([draws[n].values[0, :, i].reshape(1000, -1) for n in left], axis=1)
        sd = np.sqrt(np.diag(covariance))
        assert (np.abs(own.mean(axis=0) - mean) < 4.5 * sd / np.sqrt(700)).all()
        size = np.outer(sd, sd)
        np.testing.assert_allclose(np.cov(own.T) / size, covariance / size, atol=0.15)
    assert (tree["dataset_stats"]["warning"].values == "").all()


def _of(value: object, name: str, i: int) -> np.ndarray:
    array = np.asarray(value, float)
    own = 0 if name == "mu" else 1
    return np.atleast_1d(array[i] if array.ndim > own else array)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return levels()


@pytest.mark.parametrize("what", GIVEN)
def test_the_rest_is_the_conditional_normal(model, what):
    tree = pmcl.refine(model, {"y": Y}, given=GIVEN[what], random_seed=1, progressbar=False)
    check(tree, GIVEN[what])
    if what == "a vector":  # a known global parameter leaves the levels as they are
        assert tree["posterior"].attrs["levels"].startswith("levels: 5 groups along 'group'")
    for name, value in GIVEN[what].items():
        for i in range(3):
            held = np.ravel(tree["constant_data"][name].values[i])
            np.testing.assert_allclose(held, _of(value, name, i))


PARTS = {
    "one group": {"theta": np.array([np.nan, np.nan, 1.5, np.nan, np.nan])},
    "a group and a global level": {
        "theta": np.array([0.5, np.nan, np.nan, np.nan, -1.0]),
        "mu": np.array(0.3),
    },
    "an entry of a global level": {"beta": np.array([np.nan, 0.7])},
}


@pytest.mark.parametrize(
    "what",
    ["one group", *(pytest.param(n, marks=pytest.mark.slow) for n in [*PARTS][1:])],
)
def test_entries_that_are_known_leave_the_others(model, what):
    tree = pmcl.refine(model, {"y": Y}, given=PARTS[what], random_seed=1, progressbar=False)
    check_parts(tree, PARTS[what])
    groups = np.isnan(PARTS[what].get("theta", np.full(GROUPS, np.nan))).sum()
    assert tree["posterior"].attrs["levels"].startswith(f"levels: {groups} groups along")
    assert ("mu" in tree["posterior"]) == ("mu" not in PARTS[what])


def test_entries_of_a_variable_with_two_dims_are_known():
    with pm.Model(coords={"g": range(2), "h": range(3)}) as model:
        pm.Normal("a", 1.0, 2.0, dims=("g", "h"))
    which = np.array([[True, False, False], [False, True, True]])
    left = parted(model, {"a": which})["a_unobserved"]
    assert left.type.ndim == 1 and left.eval().shape == (3,)
    np.testing.assert_allclose(pm.logp(left, np.ones(3)).eval(), -np.log(2 * np.sqrt(2 * np.pi)))


def test_the_evidence_of_one_known_group_is_that_of_data_and_the_group(model):
    from scipy import stats

    given = {"theta": np.array([np.nan, np.nan, 1.5, np.nan, np.nan])}
    tree = pmcl.refine(
        model, {"y": Y}, given=given, posterior_predictive=True, random_seed=1, progressbar=False
    )
    design = np.concatenate([np.ones((GROUPS, 1)), Z], axis=1)
    prior = design @ np.diag([4.0, 1.0, 1.0]) @ design.T + np.eye(GROUPS)
    whole = np.block(
        [[prior + SE**2 * np.eye(GROUPS), prior[:, 2:3]], [prior[2:3], prior[2:3, 2:3]]]
    )
    for i, y in enumerate(Y):
        truth = stats.multivariate_normal(np.zeros(GROUPS + 1), whole).logpdf([*y, 1.5])
        found = tree["dataset_stats"].to_dataset().isel(dataset=i)
        error = max(float(found["log_evidence_error"]), 1e-6)
        assert abs(float(found["log_evidence"]) - truth) < 4 * error
    drawn = tree["posterior_predictive"]["y"].values[0, :, :, 2]
    np.testing.assert_allclose(drawn.mean(axis=0), 1.5, atol=4 * SE / np.sqrt(1000))
    np.testing.assert_allclose(drawn.std(axis=0), SE, rtol=0.15)
    assert (tree["constant_data"]["theta_observed"].values == 1.5).all()


def test_entries_of_bounded_variables_are_given_on_the_models_scale():
    with pm.Model(coords={"group": range(3)}) as model:
        rate = pm.Gamma("rate", [1.0, 2.0, 3.0], 1.0, dims="group")
        pm.Poisson("y", rate, observed=np.zeros(3, int), dims="group")
    y = np.array([[2, 0, 5], [1, 3, 9]])
    given = {"rate": np.array([[np.nan, 2.0, np.nan], [np.nan, 4.0, np.nan]])}
    tree = pmcl.refine(model, {"y": y}, given=given, random_seed=1, progressbar=False)
    rate = tree["posterior"]["rate"].values[0]
    assert (rate[:, 0, 1] == 2).all() and (rate[:, 1, 1] == 4).all()
    for j, prior in ((0, 1.0), (2, 3.0)):
        for i in range(2):
            shape = prior + y[i, j]
            np.testing.assert_allclose(rate[:, i, j].mean(), shape / 2, rtol=0.15)
            np.testing.assert_allclose(rate[:, i, j].std(), shape**0.5 / 2, rtol=0.15)
    with pytest.raises(ValueError, match="expected values that its prior allows"):
        pmcl.refine(model, {"y": y}, given={"rate": [-1.0, np.nan, np.nan]}, progressbar=False)


@pytest.mark.parametrize("some", [True, False])
def test_known_values_of_an_interpolated_prior(some):
    """Its density reads its points; the evidence of a normal's is that of the normal."""
    from scipy import stats

    points, y = np.linspace(-6, 6, 2001), np.array([0.5, 1.0])
    with pm.Model(coords={"g": range(3), "row": range(2)}) as model:
        a = pm.Interpolated("a", points, stats.norm.pdf(points), dims="g")
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", a[0] + 2 * a[1] + b, 1, observed=np.zeros(2), dims="row")
    known = np.array([0.3, np.nan if some else -0.1, 0.2])
    tree = pmcl.refine(
        model, {"y": y}, given={"a": known}, draws=500, random_seed=1, progressbar=False
    )
    mean, variance = (0.3, 5.0) if some else (0.1, 1.0)
    exact = stats.multivariate_normal(np.full(2, mean), np.eye(2) + variance).logpdf(y)
    exact += stats.norm.logpdf(known[~np.isnan(known)]).sum()
    stat = tree["dataset_stats"]
    assert abs(float(stat["log_evidence"].item()) - exact) < 0.02


def test_entries_that_are_not_independent_are_refused():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        pm.Multinomial("y", 5, p, observed=[1, 2, 2])
    with pytest.raises(ValueError, match="'p'.: expected all entries, some are NaN"):
        pmcl.refine(model, given={"p": [0.5, np.nan, np.nan]}, progressbar=False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("shares", [0.5, 0.5, 0.5], r"got .0.5 0.5 0.5. for dataset '0'. .0.333"),
        ("shares", [[0.2, 0.3, 0.5], [0.2, 0.3, 0.4]], "for dataset '1'"),
        ("shares", [0.333, 0.333, 0.333], ""),
        ("effects", [-1.0, 0.0, 2.0], "got .-1.  0.  2.."),
        ("effects", [-1.0, 0.0, 1.0], ""),
        ("angle", 4.0, "got 4.* is one"),
        ("angle", 3.1, ""),
        ("factor", [[1.0, 0.6], [0.6, 1.0]], "got"),  # PyMC's LKJCorr is the Cholesky factor
        ("factor", [[1.0, 0.0], [0.6, 0.8]], ""),
    ],
)
def test_entries_that_go_together_are_given_so(name: str, value: object, said: str) -> None:
    """They have an unconstrained value that is another's: evidence and draws did not agree."""
    with pm.Model() as model:
        pm.Dirichlet("shares", np.ones(3))
        pm.ZeroSumNormal("effects", shape=3)
        pm.VonMises("angle", 0, 1)
        pm.LKJCorr("factor", n=2, eta=1)
        pm.Normal("y", pm.Normal("mu"), 1, observed=[0.5])
    compiled = pmcl.compile_model(model)
    task = task_of(compiled, {"y": [[0.5], [1.5]]})
    known = values_of(compiled, task, {name: value})
    if said:
        with pytest.raises(ValueError, match=f"{name}.*values that its prior allows.*{said}"):
            known_z(compiled, task, known)
    else:
        assert np.isfinite(known_z(compiled, task, known)).any()


def test_the_evidence_is_that_of_data_and_what_is_known(model):
    from scipy import stats

    tree = pmcl.refine(model, {"y": Y}, given={"mu": 1.0}, random_seed=1, progressbar=False)
    check(tree, {"mu": 1.0})
    scale = Z @ Z.T + (1 + SE**2) * np.eye(GROUPS)
    for i, y in enumerate(Y):
        truth = stats.multivariate_normal(np.ones(GROUPS), scale).logpdf(y)
        found = tree["dataset_stats"].to_dataset().isel(dataset=i)
        error = max(float(found["log_evidence_error"]), 1e-6)
        assert abs(float(found["log_evidence"]) - truth - stats.norm(0, 2).logpdf(1)) < 4 * error


@pytest.mark.slow
def test_the_evidence_of_what_is_known_counts_what_transforms_leave():
    """Ordered means, known: their density is twice that of two normals; a start is no obstacle."""
    y = RNG.normal(0.6, 1, 12)
    with pm.Model() as cut:
        pair = pm.Normal("pair", 0, 1, shape=2, transform=transforms.ordered, initval=[-1.0, 1.0])
        mean = pm.Normal("mean", 0, 1, initval=0.5)
        pm.Potential("besides", -(mean**2))
        pm.Normal("y", mean + pair.sum(), 1, observed=np.zeros(12))
    known = {"pair": [-0.2, 0.8], "mean": 0.3}
    quiet = {"random_seed": 1, "progressbar": False}
    stats_of = [
        pmcl.refine(cut, {"y": y}, given={name: value}, **quiet)["dataset_stats"].to_dataset()
        for name, value in known.items()
    ]
    # mean is N(0, 1 / 3) by its prior and the potential, which make a density of 1 / sqrt(3)
    ones, noise = np.ones((12, 12)), np.eye(12)
    of_y = stats.multivariate_normal.logpdf(y, np.full(12, 0.6), noise + ones / 3)
    pair_known = of_y + stats.norm.logpdf(known["pair"]).sum() + np.log(2) - np.log(3) / 2
    of_y = stats.multivariate_normal.logpdf(y, np.full(12, 0.3), noise + 2 * ones)
    mean_known = of_y + stats.norm.logpdf(0.3) - 0.3**2
    for found, exact in zip(stats_of, (pair_known, mean_known), strict=True):
        assert found["log_evidence"].item() == pytest.approx(exact, abs=0.05)
        assert "evidence of the 0.5 of the prior" in found["note"].item()
        assert "a prior with 'besides', which may not integrate" in found["note"].item()


def test_what_is_known_in_part_leaves_initial_values():
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3, initval=[0.1, 0.2, 0.3])
        b = pm.HalfNormal("b", 1, initval=2.0)
        pm.Normal("y", a.sum(), b, observed=np.zeros(4))
    two = parted(model, {"a": np.array([True, False, True])})
    found = {rv.name: v for rv, v in two.rvs_to_initial_values.items() if v is not None}
    np.testing.assert_array_equal(found["a_observed"], [0.1, 0.3])
    np.testing.assert_array_equal(found["a_unobserved"], [0.2])
    assert found["b"] == 2.0


def test_a_network_gives_the_rest(model):
    posterior = pmcl.fit_amortized(
        model, network=TINY, simulations=256, steps=50, random_seed=1, progressbar=False
    )
    tree = posterior.sample({"y": Y}, given=GIVEN["a vector"], random_seed=2)
    check(tree, GIVEN["a vector"])
    part = PARTS["one group"]
    check_parts(posterior.sample({"y": Y}, given=part, random_seed=2), part)
    with pytest.raises(ValueError, match="given: expected refinement"):
        posterior.sample({"y": Y}, given={"mu": 1.0}, refine=False)


@pytest.mark.slow
def test_a_network_with_levels_gives_the_rest_and_takes_another_prior():
    """Of a model whose levels are found: the network is one of the global parameters."""
    posterior = pmcl.fit_amortized(
        levels(), levels=True, simulations=128, steps=20, random_seed=1, progressbar=False
    )
    assert isinstance(posterior, pmcl.MultilevelPosterior)
    for given in (GIVEN["a vector"], GIVEN["the local level"]):
        check(posterior.sample({"y": Y}, given=given, random_seed=2), given)
    part = PARTS["a group and a global level"]
    check_parts(posterior.sample({"y": Y}, given=part, random_seed=2), part)
    with pm.Model(coords={"group": range(GROUPS), "x": range(2)}) as other:
        mu = pm.Normal("mu", 4, 0.1)
        beta = pm.Normal("beta", 0, 1, dims="x")
        theta = pm.Normal("theta", mu + pm.math.dot(Z, beta), 1, dims="group")
        pm.Normal("y", theta, SE, observed=np.zeros(GROUPS), dims="group")
    found = posterior.sample({"y": Y}, model=other, random_seed=2)
    for i, y in enumerate(Y):
        precise = np.linalg.inv(Z @ Z.T + (1 + SE**2) * np.eye(GROUPS))
        variance = 1 / (100 + precise.sum())
        mean = variance * (400 + precise.sum(axis=1) @ y)
        own = found["posterior"]["mu"].values[0, :, i]
        np.testing.assert_allclose(own.mean(), mean, atol=4.5 * np.sqrt(variance / 700))
        np.testing.assert_allclose(own.std(), np.sqrt(variance), rtol=0.15)
    with pytest.raises(ValueError, match="'mu' is missing"):
        posterior.sample({"y": Y}, model=_without_mu())


def _without_mu() -> pm.Model:
    with pm.Model(coords={"group": range(GROUPS), "x": range(2)}) as model:
        beta = pm.Normal("beta", 0, 1, dims="x")
        theta = pm.Normal("theta", pm.math.dot(Z, beta), 1, dims="group")
        pm.Normal("y", theta, SE, observed=np.zeros(GROUPS), dims="group")
    return model


def test_predictions_hold_what_is_known(model):
    """Had `theta` been drawn anew, the replicates would be wider by far."""
    tree = pmcl.refine(
        model, {"y": Y}, given={"theta": Y}, posterior_predictive=True, log_likelihood=True,
        random_seed=1, progressbar=False,
    )  # fmt: skip
    drawn = tree["posterior_predictive"]["y"].values[0]
    np.testing.assert_allclose(drawn.mean(axis=0), Y, atol=4 * SE / np.sqrt(1000))
    np.testing.assert_allclose(drawn.std(axis=0), SE, rtol=0.15)
    assert [*tree["log_likelihood"].data_vars] == ["y"]


def test_starts_go_to_a_store_with_their_datasets(model, tmp_path, monkeypatch):
    """Part by part, from draws in a store of their own; the draws are the same."""
    from pmcl.parts import datasets

    monkeypatch.setattr(datasets, "TOGETHER", 1)
    asked = {"random_seed": 1, "progressbar": False, "fallback": None, "draws": 1000}
    start = pmcl.refine(model, {"y": Y}, store=tmp_path / "start.zarr", **asked)
    given = GIVEN["a vector"]
    here = pmcl.refine(model, {"y": Y}, start=start, given=given, **asked)
    there = pmcl.refine(
        model, {"y": Y}, start=start, given=given, store=tmp_path / "draws.zarr", **asked
    )
    check(there, given)
    np.testing.assert_allclose(there["posterior"]["mu"], here["posterior"]["mu"], rtol=1e-6)
    short = start["posterior"].to_dataset().isel(dataset=slice(2))
    with pytest.raises(ValueError, match="expected draws of 3 datasets, got 2"):
        pmcl.refine(model, {"y": Y}, start=xr.DataTree.from_dict({"posterior": short}), **asked)


def test_what_is_known_goes_to_a_store(model, tmp_path):
    asked = {"given": GIVEN["the local level"], "random_seed": 1, "progressbar": False}
    stored = pmcl.refine(model, {"y": Y}, store=tmp_path / "draws.zarr", **asked)
    check(stored, GIVEN["the local level"])


def test_datasets_of_different_lengths_keep_theirs():
    with pm.Model(coords={"obs": range(4)}) as model:
        a = pm.Normal("a")
        b = pm.Normal("b", 0, 2)
        pm.Normal("y", a + b, 1, observed=np.zeros(4), dims="obs")
    data = {"short": {"y": Y[0, :3]}, "long": {"y": Y[1]}}
    tree = pmcl.refine(model, data, given={"b": [0.5, 1.0]}, random_seed=1, progressbar=False)
    for i, (y, b) in enumerate(zip((Y[0, :3], Y[1]), (0.5, 1.0), strict=True)):
        precise = 1 + len(y)
        own = tree["posterior"]["a"].values[0, :, i]
        np.testing.assert_allclose(own.mean(), (y - b).sum() / precise, atol=4 / precise**0.5 / 25)
        np.testing.assert_allclose(own.std(), precise**-0.5, rtol=0.15)


def test_bounded_parameters_are_given_on_the_models_scale():
    with pm.Model(coords={"obs": range(GROUPS)}) as model:
        mu = pm.Normal("mu", 0, 2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu, sigma, observed=np.zeros(GROUPS), dims="obs")
    tree = pmcl.refine(model, {"y": Y}, given={"sigma": 0.5}, random_seed=1, progressbar=False)
    precise = 1 / 4 + GROUPS / 0.25
    found = tree["posterior"]["mu"].values[0]
    np.testing.assert_allclose(found.mean(axis=0), Y.sum(axis=1) / 0.25 / precise, atol=0.04)
    np.testing.assert_allclose(found.std(axis=0), precise**-0.5, rtol=0.15)
    with pytest.raises(ValueError, match="'sigma'.: expected values that its prior allows, got -1"):
        pmcl.refine(model, {"y": Y}, given={"sigma": [1.0, 2.0, -1.0]}, progressbar=False)


def test_the_conditional_model_is_compiled_once(model):
    compiled = compile_model(model)
    known = {"mu": np.ones((), bool)}
    assert conditional_model(compiled, known) is conditional_model(compile_model(model), known)
    some = {"theta": np.arange(GROUPS) < 2}
    assert conditional_model(compiled, some) is conditional_model(compiled, some)
    assert conditional_model(compiled, some) is not conditional_model(
        compiled, {"theta": np.arange(GROUPS) > 2}
    )


def test_the_job_of_what_is_left_travels(model):
    from distributed.protocol.pickle import dumps, loads

    rest = conditional_model(compile_model(model), {"theta": np.ones(GROUPS, bool)})
    arrived = loads(dumps(RefineJob(rest, np.zeros((3, rest.dim)), None, None, row="group")))
    assert [i.name for i in arrived.compiled.covariates] == ["theta"]
    data = {"y": Y[0], "theta": Y[1]}
    z = np.array([0.3, -0.2, 0.5])
    with precision.scope():
        np.testing.assert_allclose(
            arrived.compiled.log_joint(z, data), rest.log_joint(z, data), rtol=1e-12
        )


@pytest.mark.slow
def test_groups_are_integrated_out_where_another_of_their_parameters_is_known():
    groups, rows = 12, 6
    of, x = np.repeat(np.arange(groups), rows), np.tile(np.linspace(-1, 1, rows), groups)
    with pm.Model(coords={"group": range(groups), "row": range(groups * rows)}) as model:
        mean_a, mean_b = pm.Normal("mean_a", 0, 2), pm.Normal("mean_b", 0, 2)
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mean_a, 1, dims="group")
        b = pm.Normal("b", mean_b, tau, dims="group")
        pm.Normal("y", a[of] + b[of] * x, 0.5, observed=np.zeros(len(of)), dims="row")
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, groups), rng.normal(-0.5, 0.7, groups)
    data = {"y": rng.normal(a[of] + b[of] * x, 0.5)}
    asked = {"given": {"a": a}, "draws": 2000, "random_seed": 1, "progressbar": False}
    tree = pmcl.refine(model, data, **asked)
    assert str(tree["posterior"].attrs["levels"]).startswith("levels: 12 groups along 'group'")
    flat = pmcl.refine(model, data, levels=False, **asked)
    one, other = (t["dataset_stats"].to_dataset().isel(dataset=0) for t in (tree, flat))
    error = np.hypot(float(one["log_evidence_error"]), float(other["log_evidence_error"]))
    assert abs(float(one["log_evidence"] - other["log_evidence"])) < 4 * error
    precise = 1 / 4 + groups
    found = tree["posterior"]["mean_a"].values
    np.testing.assert_allclose(found.mean(), a.sum() / precise, atol=4 / precise**0.5 / 40)
    np.testing.assert_allclose(found.std(), precise**-0.5, rtol=0.1)


def test_what_cannot_be_given_is_refused(model):
    for given, said in (
        ({}, "expected values of some free variables"),
        ({"y": Y[0]}, r"expected values of some free variables, \['mu', 'beta', 'theta'\], got"),
        ({"beta": [1.0, 2.0, 3.0]}, r"'beta'.: expected shape \(2,\), or \(3, 2\)"),
        ({"beta": {"a": 1.0}}, "expected numbers, or labelled ones"),
        ({"beta": [1.0, np.inf]}, "expected finite numbers, or NaN for entries that are not"),
        ({"beta": [np.nan, np.nan]}, "expected finite numbers, or NaN for entries that are not"),
        ({"beta": [[1.0, np.nan]] * 2 + [[np.nan, 1.0]]}, "expected the same entries known in all"),
        ({"mu": 0.0, "beta": [0, 0], "theta": Y}, "some free variable without a value"),
    ):
        with pytest.raises(ValueError, match=said):
            pmcl.refine(model, {"y": Y}, given=given, progressbar=False)


def test_labels_and_names_of_what_is_given_count() -> None:
    compiled = compile_model(levels())
    task = task_of(compiled, {name: {"y": y} for name, y in zip("uvw", Y, strict=True)})
    theta = np.arange(3.0 * GROUPS).reshape(3, GROUPS)
    backwards = xr.DataArray(
        theta.T[::-1, ::-1],
        dims=("group", "dataset"),
        coords={"group": range(GROUPS)[::-1], "dataset": list("wvu")},
    )
    found = values_of(
        compiled, task, {"theta": backwards, "mu": pd.Series([3.0, 2, 1], list("wvu"))}
    )
    np.testing.assert_array_equal(found["theta"], theta)
    np.testing.assert_array_equal(found["mu"], [1, 2, 3])
    with pytest.raises(pmcl.DataError, match="names of datasets are .*they differ"):
        values_of(compiled, task, {"mu": pd.Series([3.0, 2, 1], list("abc"))})
