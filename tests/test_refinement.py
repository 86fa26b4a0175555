"""Refinement against closed forms and quadrature, on targets that are easy, hard and hopeless."""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.integrate import quad

import pmcl
from pmcl.refinement.choice import Pilot, candidates
from pmcl.refinement.path import local_path_gradient
from pmcl.refinement.population import population
from pmcl.refinement.proposals import Component, Student
from pmcl.runtime import precision
from pmcl.search.newton import lbfgs, newton
from pmcl.search.scales import Dense, LowRank
from pmcl.search.starts import starts

RNG = np.random.default_rng(5)
FAST = pmcl.Refine(steps=60, pilot=60)


@pytest.fixture(autouse=True)
def double_precision():
    with precision.scope():
        yield


def refined(model: pm.Model, data, **given) -> xr.DataTree:
    given = {"draws": 2000, "refine": FAST, "random_seed": 1, "progressbar": False} | given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pmcl.refine(model, data, **given)


# Parts


def bent(shape) -> Component:
    """Make a bent normal of shape `shape` in two dims, neither moved nor scaled."""
    return Component(shape, jnp.zeros(2), Dense.of(jnp.eye(2)))


def random_scale(kind: str, dim: int):
    if kind == "dense":
        lower = np.tril(RNG.normal(size=(dim, dim)))
        np.fill_diagonal(lower, RNG.uniform(0.5, 2, dim))
        return Dense.of(jnp.asarray(lower))
    directions = np.linalg.qr(RNG.normal(size=(dim, 2)))[0]
    core = np.array([[0.3, 0.0], [0.7, 2.0]])
    return LowRank(*map(jnp.asarray, (RNG.uniform(0.5, 2, dim), directions, core)))


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_scales_agree_with_their_matrix(kind):
    scale = random_scale(kind, 5)
    by = tuple(jnp.asarray(0.3 * RNG.normal(size=p.shape)) for p in scale.neutral())
    for one in (scale, scale.adjust(by), scale.adjust(scale.neutral())):
        matrix = np.asarray(jax.vmap(one.multiply)(jnp.eye(5))).T
        np.testing.assert_allclose(one.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-9)
        x = RNG.normal(size=5)
        np.testing.assert_allclose(one.solve(x), np.linalg.solve(matrix, x), rtol=1e-8)
    same = scale.adjust(scale.neutral())
    np.testing.assert_allclose(same.multiply(x), scale.multiply(x), rtol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_a_component_is_a_density_and_its_draws_have_it(kind):
    """Against the change of variables by the numerical Jacobian of the draw."""
    dim = 3
    context = jnp.asarray([0.2, -0.4, 0.0, 0.3, -0.2, 0.1])
    component = Component(context, jnp.arange(3.0), random_scale(kind, dim))
    eps = jnp.asarray(RNG.normal(size=dim))
    z, log_q = component.transform(eps)
    jacobian = jax.jacfwd(lambda e: component.transform(e)[0])(eps)
    expected = stats.norm.logpdf(eps).sum() - np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(log_q, expected, rtol=1e-9)
    np.testing.assert_allclose(component.log_prob(z), expected, rtol=1e-9)


def test_the_shaped_normal_is_normal_at_zero():
    whole = bent(jnp.zeros(4))
    z = jnp.asarray([0.3, -2.0])
    expected = stats.norm.logpdf(z).sum()
    np.testing.assert_allclose(whole.log_prob(z), expected, rtol=1e-12)


def test_the_student_is_scipys():
    scale = random_scale("dense", 3)
    t = Student(jnp.arange(3.0), scale)
    shape = np.asarray(scale.lower @ scale.lower.T)
    z = RNG.normal(size=3)
    expected = stats.multivariate_t.logpdf(z, loc=np.arange(3.0), shape=shape, df=5)
    np.testing.assert_allclose(t.log_prob(jnp.asarray(z)), expected, rtol=1e-9)
    keys = jax.random.split(jax.random.key(0), 20_000)
    eps = jax.random.normal(jax.random.key(1), (20_000, 3))
    drawn = np.asarray(jax.vmap(t.draw)(eps, jax.vmap(t.mixing)(keys)))
    margin = (drawn[:, 2] - 2.0) / np.sqrt(shape[2, 2])
    assert stats.kstest(margin, stats.t(df=5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("search", [newton, lbfgs])
def test_searches_find_the_mode_and_curvature_of_a_normal(search):
    matrix = RNG.normal(size=(6, 6))
    covariance = matrix @ matrix.T + 0.3 * np.eye(6)
    mean = 5 * RNG.normal(size=6)
    precise = np.linalg.inv(covariance)

    def log_density(z):
        return -0.5 * (z - mean) @ precise @ (z - mean)

    found = search(log_density, jnp.zeros(6), jnp.full(6, 3.0), steps=300, tol=1e-9)
    assert found.converged
    np.testing.assert_allclose(found.z, mean, atol=2e-3)
    factor = np.asarray(jax.vmap(found.scale.multiply)(jnp.eye(6))).T
    # low rank is exact where z is no longer than the rank
    np.testing.assert_allclose(factor @ factor.T, covariance, rtol=1e-6)


def test_newton_leaves_saddles_bounds_and_flat_directions():
    def saddle(z):  # a saddle at 0, modes at x = -1 and 1, flat in z[2]
        return -((z[0] ** 2 - 1) ** 2) - z[1] ** 2

    found = newton(saddle, jnp.asarray([1e-3, 0.5, 2.0]), jnp.ones(3), steps=60, tol=1e-8)
    np.testing.assert_allclose(found.z[:2], [1.0, 0.0], atol=1e-3)
    assert np.isfinite(found.scale.lower).all()
    assert not found.converged  # one direction has no curvature, which is said

    def bounded(z):  # the mode lies at the edge of the support
        return jnp.where(z[0] > 0, -z[0] - 0.5 * z[1] ** 2, -jnp.inf)

    found = newton(bounded, jnp.asarray([1.0, 1.0]), jnp.ones(2), steps=60, tol=1e-8)
    assert np.isfinite(found.z).all() and np.isfinite(found.log_p)
    assert np.isfinite(found.scale.lower).all()

    nowhere = newton(lambda z: jnp.nan * z[0], jnp.ones(2), jnp.ones(2), steps=9, tol=1e-8)
    assert np.isneginf(nowhere.log_p) and not nowhere.converged
    assert np.isfinite(nowhere.scale.lower).all()


def test_starts_are_the_best_draw_the_centre_and_far_apart():
    # No density at 50, hardly any at 20 and at the centre, 0.2.
    z = np.array([[0.0], [0.1], [9.0], [-8.0], [50.0], [0.2], [20.0], [21.0]])
    log_p = np.array([-1.0, 0.0, -1.5, -1.4, -np.inf, -40.0, -30.0, -30.0])
    chosen = starts(jnp.asarray(z), jnp.asarray(log_p), 4, always=5)
    np.testing.assert_allclose(np.ravel(chosen), [0.1, 0.2, 9.0, -8.0])


def test_local_steps_reach_a_skewed_normal():
    """A member of the family: reached, whatever the starting point."""
    truth = bent(jnp.asarray([0.8, 0.0, 0.2, 0.0]))

    def log_density(z):
        return truth.log_prob(z)

    start = bent(jnp.zeros(4))
    found, taken = local_path_gradient(
        log_density, start, jax.random.key(0), steps=400, draws=16, rate=0.05
    )
    assert taken == 400
    z = jax.vmap(lambda e: found.transform(e)[0])(jax.random.normal(jax.random.key(1), (2000, 2)))
    ratio = jax.vmap(log_density)(z) - jax.vmap(lambda u: found.log_prob(u))(z)
    before = jax.vmap(log_density)(z) - jax.vmap(lambda u: start.log_prob(u))(z)
    assert np.std(ratio) < 0.1 < 0.5 < np.std(before)


def test_mixture_weights_are_those_of_the_target():
    centres = np.array([-4.0, 4.0, 0.0])
    z = np.concatenate([RNG.normal(c, 1, 2000) for c in centres])
    log_q = stats.norm.logpdf(z, centres[:, None], 1)
    log_p = np.logaddexp(log_q[0] + np.log(0.2), log_q[1] + np.log(0.8)) + 3.0
    # beside a dataset of which half of the draws have no density, and a place that is empty
    log_q = np.stack([np.vstack([log_q, np.full(6000, -np.inf)])] * 2)
    log_p = np.stack([log_p, np.where(np.arange(6000) % 2, log_p, np.nan)])
    pilot = Pilot(log_p, log_q, np.array([[True, True, True, False]] * 2))
    members = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)[:, None].repeat(2, 1)
    found, one, empty = candidates(pilot, members)
    np.testing.assert_allclose(found.weights, [[0.2, 0.8, 0.0, 0.0]] * 2, atol=0.03)
    assert found.efficiency[0] > 0.9
    assert found.efficiency[1] == pytest.approx(0.5, abs=0.05)  # half of the draws are of no use
    assert (one.efficiency < 0.3).all()  # the pool's draws show what the first component misses
    assert (empty.efficiency == 0).all()


def test_population_follows_a_banana_and_finds_the_weights_of_modes():
    def banana(z):
        return -0.5 * z[0] ** 2 - 0.5 * ((z[1] + z[0] ** 2) / 0.4) ** 2

    def modes(z):
        far = jnp.sum((z - jnp.asarray([6.0, 0.0])) ** 2)
        return jnp.logaddexp(jnp.log(0.3) - 0.5 * jnp.sum(z**2), jnp.log(0.7) - 0.5 * far)

    z = 4.0 * jax.random.normal(jax.random.key(0), (600, 2))
    for density in (banana, modes):
        ratio = jax.vmap(density)(z) + jnp.sum(z**2, axis=1) / 32
        parts = population(
            density, z, ratio, jax.random.key(1), components=6, rounds=8, draws=600, enough=0.7
        )
        eps = jax.random.normal(jax.random.key(2), (6, 500, 2))
        chi2 = parts.mixing(jax.random.key(3), (6, 500))
        u = jax.vmap(lambda s, e, c: jax.vmap(s.draw)(e, c))(parts, eps, chi2).reshape(-1, 2)
        log_q = np.asarray(jax.vmap(lambda s, u=u: jax.vmap(s.log_prob)(u))(parts))
        pilot = Pilot(np.asarray(jax.vmap(density)(u))[None], log_q[None], np.ones((1, 6), bool))
        found = candidates(pilot, pilot.there[None])[0]
        assert found.efficiency > 0.4  # of the draws that it began with: below 0.1
        begun = jnp.exp(ratio - jnp.max(ratio))
        assert jnp.sum(begun) ** 2 / jnp.sum(begun**2) / 600 < 0.1
        if density is modes:
            right = parts.shift[:, 0] > 3
            assert abs(float(found.weights[0, right].sum()) - 0.7) < 0.05
    broken = population(
        lambda u: jnp.nan * u[0],
        z,
        jnp.full(600, -jnp.inf),
        jax.random.key(1),
        components=2,
        rounds=2,
        draws=50,
        enough=0.7,
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(broken))


# Closed forms


def conjugate(rows: int, *, singular: bool = False) -> tuple[pm.Model, dict, list]:
    """Regression with known noise: posterior and evidence in closed form."""
    with pm.Model(coords={"obs": range(rows), "predictor": range(3)}) as model:
        X = pm.Data("X", np.zeros((rows, 3)), dims=("obs", "predictor"))
        beta = pm.Normal("beta", 0.5, 2.0, dims="predictor")
        pm.Normal("y", X @ beta, 0.7, observed=np.zeros(rows), dims="obs")
    X = RNG.normal(size=(6, rows, 3))
    if singular:
        X[..., 2] = X[..., 0] + 1e-4 * RNG.normal(size=(6, rows))
    y = np.einsum("dij,j->di", X, [1.0, -3.0, 2.0]) + 0.7 * RNG.normal(size=(6, rows))
    exact = []
    for x, observed in zip(X, y, strict=True):
        covariance = np.linalg.inv(x.T @ x / 0.49 + np.eye(3) / 4)
        mean = covariance @ (x.T @ observed / 0.49 + 0.5 / 4)
        whole = stats.multivariate_normal(
            x @ np.full(3, 0.5), 4 * x @ x.T + 0.49 * np.eye(rows), allow_singular=True
        )
        exact.append((mean, covariance, whole.logpdf(observed)))
    return model, {"X": X, "y": y}, exact


@pytest.mark.parametrize(("rows", "singular"), [(30, False), (30, True), (1, False)])
def test_conjugate_regression(rows, singular):
    model, data, exact = conjugate(rows, singular=singular)
    tree = refined(model, data)
    beta = tree["posterior"]["beta"].values[0]
    stats_ = tree["dataset_stats"].to_dataset()
    assert (stats_["khat"] < 0.7).all() and (stats_["efficiency"] > 0.7).all()
    assert (stats_["modes"] == 1).all()
    for i, (mean, covariance, evidence) in enumerate(exact):
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(beta[:, i].mean(axis=0), mean, atol=0.12 * sd.max())
        np.testing.assert_allclose(np.cov(beta[:, i].T), covariance, atol=0.12 * sd.max() ** 2)
        error = max(float(stats_["log_evidence_error"][i]), 1e-6)
        assert abs(float(stats_["log_evidence"][i]) - evidence) < 4 * error


def test_weighted_and_resampled_draws_agree():
    model, data, exact = conjugate(30)
    tree = refined(model, data, correct=None)
    weights = np.exp(tree["sample_stats"]["log_weight"].values[0])
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    beta = tree["posterior"]["beta"].values[0]
    for i, (mean, covariance, _) in enumerate(exact):
        found = weights[:, i] @ beta[:, i]
        np.testing.assert_allclose(found, mean, atol=0.15 * np.sqrt(np.diag(covariance)).max())
    again = refined(model, data)
    even = again["sample_stats"]["log_weight"].values
    np.testing.assert_allclose(even, -np.log(even.shape[1]))
    same = refined(model, data)
    xr.testing.assert_equal(again["posterior"].to_dataset(), same["posterior"].to_dataset())


# Quadrature


def test_two_modes_are_weighted_by_their_evidence():
    with pm.Model(coords={"obs": range(1)}) as model:
        mu = pm.Normal("mu", 0.4, 3.0)
        pm.Normal("y", mu**2, 1.0, observed=np.zeros(1), dims="obs")
    data = {"y": np.array([[4.0], [9.0], [0.2]])}
    tree = refined(model, data, draws=4000)
    assert list(tree["dataset_stats"]["modes"].values[:2]) == [2, 2]
    for i, y in enumerate(data["y"][:, 0]):

        def density(m, y=y):
            return stats.norm.pdf(m, 0.4, 3.0) * stats.norm.pdf(y, m**2, 1.0)

        evidence = quad(density, -8, 8, points=(-np.sqrt(y), np.sqrt(y)))[0]
        positive = quad(density, 0, 8, points=(np.sqrt(y),))[0] / evidence
        drawn = tree["posterior"]["mu"].values[0, :, i]
        assert abs(np.mean(drawn > 0) - positive) < 0.04
        error = float(tree["dataset_stats"]["log_evidence_error"][i])
        assert abs(float(tree["dataset_stats"]["log_evidence"][i]) - np.log(evidence)) < 4 * error
        size = quad(lambda m: abs(m) * density(m), -8, 8, points=(0.0,))[0] / evidence  # noqa: B023
        assert abs(np.mean(np.abs(drawn)) - size) < 0.05
    assert (tree["dataset_stats"]["khat"] < 0.7).all()


def test_eight_modes_are_found_and_weighed_alike():
    """Three parameters, of each of which the data know the size: evidence is a product."""
    y = np.array([4.0, 3.0, 5.0])
    with pm.Model(coords={"obs": range(3)}) as model:
        a = pm.Normal("a", 0, 3.0, dims="obs")
        pm.Normal("y", a**2, 1.0, observed=y, dims="obs")
    evidence = 0.0
    for size in y:
        density = lambda u, s=size: stats.norm.pdf(u, 0, 3) * stats.norm.pdf(s, u**2, 1)  # noqa: E731
        evidence += np.log(2 * quad(density, 0, 9, points=(size**0.5,))[0])
    for seed in (1, 2):
        tree = refined(model, None, random_seed=seed)
        found = tree["dataset_stats"].to_dataset().isel(dataset=0)
        assert int(found["modes"]) == 8 and float(found["khat"]) < 0.7
        error = float(found["log_evidence_error"])
        assert abs(float(found["log_evidence"]) - evidence) < 4 * error < 0.2
        octant = (tree["posterior"]["a"].values[0, :, 0] > 0) @ [1, 2, 4]
        assert np.abs(np.bincount(octant, minlength=8) / 2000 - 1 / 8).max() < 0.04


def test_a_ring_has_its_evidence():
    """No mode at all: a circle along which the density is flat but for the prior."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2.0, shape=2)
        pm.Normal("y", pm.math.sqrt((a**2).sum()), 0.05, observed=2.0)
    radius = lambda r: r / 4 * np.exp(-(r**2) / 8) * stats.norm.pdf(2.0, r, 0.05)  # noqa: E731
    evidence = np.log(quad(radius, 1.5, 2.5, points=(2.0,))[0])
    tree = refined(model, None)
    found = tree["dataset_stats"].to_dataset().isel(dataset=0)
    assert float(found["khat"]) < 0.7 and float(found["efficiency"]) > 0.2
    assert abs(float(found["log_evidence"]) - evidence) < 4 * float(found["log_evidence_error"])
    angle = np.arctan2(*tree["posterior"]["a"].values[0, :, 0].T)
    assert np.abs(np.histogram(angle, 8, (-np.pi, np.pi))[0] / 2000 - 1 / 8).max() < 0.04


def test_heavy_tails():
    with pm.Model(coords={"obs": range(2)}) as model:
        mu = pm.StudentT("mu", nu=2.0, mu=0, sigma=1.0)
        pm.StudentT("y", nu=3.0, mu=mu, sigma=1.0, observed=np.zeros(2), dims="obs")
    data = {"y": np.array([[0.0, 1.0], [-6.0, 8.0], [30.0, 31.0]])}
    tree = refined(model, data, draws=4000)
    drawn = tree["posterior"]["mu"].values[0]
    assert np.isfinite(drawn).all()
    for i, y in enumerate(data["y"]):

        def density(m, y=y):
            return stats.t.pdf(m, 2) * np.prod(stats.t.pdf(y - m, 3))

        points = sorted([0.0, *y])
        evidence = quad(density, -60, 90, points=points, limit=500)[0]
        khat = float(tree["dataset_stats"]["khat"][i])
        warned = bool(str(tree["dataset_stats"]["warning"].values[i]))
        assert warned == (khat > 0.7)
        if not warned:
            below = quad(density, -60, 5.0, points=points[:2], limit=500)[0] / evidence
            assert abs(np.mean(drawn[:, i] < 5.0) - below) < 0.05
    assert float(tree["dataset_stats"]["khat"][0]) < 0.7


def test_banana():
    with pm.Model(coords={"obs": range(1)}) as model:
        a = pm.Normal("a", 0, 1.0)
        b = pm.Normal("b", 0, 3.0)
        pm.Normal("y", b + a**2, 0.5, observed=np.zeros(1), dims="obs")
    tree = refined(model, {"y": np.array([[1.0], [-6.0]])}, draws=4000)
    A, B = np.meshgrid(np.linspace(-5, 5, 401), np.linspace(-20, 6, 1001), indexing="ij")
    for i, y in enumerate((1.0, -6.0)):
        weight = stats.norm.pdf(A) * stats.norm.pdf(B, 0, 3) * stats.norm.pdf(y, B + A**2, 0.5)
        weight /= weight.sum()
        found = tree["posterior"].to_dataset().isel(chain=0, dataset=i)
        assert np.isfinite(found["a"]).all() and np.isfinite(found["b"]).all()
        khat = float(tree["dataset_stats"]["khat"][i])
        assert bool(str(tree["dataset_stats"]["warning"].values[i])) == (khat > 0.7)
        if khat <= 0.7:
            assert abs(float(found["b"].mean()) - (weight * B).sum()) < 0.2
            assert abs(float((found["a"] ** 2).mean()) - (weight * A**2).sum()) < 0.2


def test_funnel():
    with pm.Model(coords={"obs": range(3)}) as model:
        v = pm.Normal("v", 0, 3.0)
        x = pm.Normal("x", 0, pm.math.exp(v / 2), shape=3)
        pm.Normal("y", x, 2.0, observed=np.zeros(3), dims="obs")
    data = {"y": np.array([[0.0, 0.1, -0.2], [8.0, -9.0, 10.0]])}
    tree = refined(model, data, draws=4000)
    for name in ("v", "x"):
        assert np.isfinite(tree["posterior"][name]).all()
    for i, y in enumerate(data["y"]):

        def density(u, y=y):
            return stats.norm.pdf(u, 0, 3) * np.prod(stats.norm.pdf(y, 0, np.sqrt(np.exp(u) + 4)))

        evidence = quad(density, -25, 25)[0]
        mean = quad(lambda u: u * density(u), -25, 25)[0] / evidence  # noqa: B023
        sd = np.sqrt(quad(lambda u: (u - mean) ** 2 * density(u), -25, 25)[0] / evidence)  # noqa: B023
        assert abs(float(tree["posterior"]["v"][0, :, i].mean()) - mean) < 0.25 * sd
        assert not str(tree["dataset_stats"]["warning"].values[i])


def test_non_finite_regions_and_bounds():
    """A hard edge inside the prior: half of the prior's draws have no finite density."""
    with pm.Model(coords={"obs": range(4)}) as model:
        top = pm.Uniform("top", 0, 10)
        pm.Uniform("y", 0, top, observed=np.zeros(4), dims="obs")
    data = {"y": np.array([[1.0, 2.0, 3.0, 4.0], [0.1, 0.1, 0.2, 0.1]])}
    tree = refined(model, data, draws=4000)
    drawn = tree["posterior"]["top"].values[0]
    assert np.isfinite(drawn).all()
    for i, y in enumerate(data["y"]):
        m = y.max()
        if not str(tree["dataset_stats"]["warning"].values[i]):
            mean = quad(lambda t: t**-3, m, 10)[0] / quad(lambda t: t**-4, m, 10)[0]
            assert abs(drawn[:, i].mean() - mean) < 0.1 * mean


def test_long_vectors_take_lbfgs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pmcl.search.search._LONGEST_DENSE", 10)
    groups, exact = 30, []
    with pm.Model(coords={"group": range(groups), "obs": range(groups)}) as model:
        effect = pm.Normal("effect", 1.0, 2.0, dims="group")
        pm.Normal("y", effect, 0.5, observed=np.zeros(groups), dims="obs")
    y = RNG.normal(size=(2, groups)) + np.arange(groups)
    precise = 1 / 4 + 1 / 0.25
    exact = (1 / 4 + y / 0.25) / precise
    tree = refined(model, {"y": y}, refine=pmcl.Refine(steps=100, pilot=60))
    found = tree["posterior"]["effect"].values[0]
    np.testing.assert_allclose(found.mean(axis=0), exact, atol=0.12)
    np.testing.assert_allclose(found.std(axis=0), precise**-0.5, rtol=0.2)


def test_number_of_datasets_changes_nothing():
    model, data, _ = conjugate(30)
    few = refined(model, {k: v[:3] for k, v in data.items()}, correct=None, draws=300)
    more = refined(model, data, correct=None, draws=300)
    np.testing.assert_allclose(
        few["posterior"]["beta"].values, more["posterior"]["beta"].values[:, :, :3], rtol=1e-4
    )


def test_a_deterministic_may_be_longer_than_its_dim():
    """As Bambi's probabilities of ordinal outcomes are, one more than there are thresholds."""
    with pm.Model(coords={"threshold": ["low", "high"]}) as model:
        cut = pm.Normal("cut", [-1, 1], 0.5, dims="threshold")
        below = pm.math.invlogit(cut)
        ends = pm.math.concatenate([[0.0], below, [1.0]])
        pm.Deterministic("p", ends[1:] - ends[:-1], dims="threshold")
        pm.Normal("y", cut, 1.0, observed=np.array([-0.7, 0.9]), dims="threshold")
    tree = refined(model, None, draws=30)["posterior"].to_dataset()
    assert tree["p"].dims == ("chain", "draw", "dataset", "p_dim_0")
    assert [*tree["cut"].coords["threshold"].values] == ["low", "high"]
    assert tree["p"].sizes["p_dim_0"] == 3
    np.testing.assert_allclose(tree["p"].sum("p_dim_0"), 1)
    first = 1 / (1 + np.exp(-tree["cut"].sel(threshold="low")))
    np.testing.assert_allclose(tree["p"].isel(p_dim_0=0), first, rtol=1e-6)


@pytest.mark.parametrize("how", ["variable", "data", "array"])
def test_residuals_are_those_of_each_dataset(how):
    own = RNG.normal(size=6)
    with pm.Model(coords={"obs": range(6)}) as model:
        held = pm.Data("held", own, dims="obs") if how == "data" else own
        mu = pm.Normal("mu", 0, 3)
        y = pm.Normal("y", mu, 1, observed=held, dims="obs")
        source = y if how == "variable" else held
        pm.Deterministic("residual", source - mu, dims="obs")
        pm.Deterministic("square", ((source - mu) ** 2).sum())
    gaps = RNG.normal(size=6)
    gaps[2] = np.nan
    data = {
        "whole": {"y": RNG.normal(size=6)},
        "short": {"y": RNG.normal(size=4)},
        "gaps": {"y": gaps},
    }
    tree = refined(model, data, draws=50)
    for name, values in data.items():
        found = pmcl.one(tree, name)["posterior"].to_dataset()
        expected = values["y"] - found["mu"].values[..., None]
        np.testing.assert_allclose(found["residual"], expected, atol=1e-9)  # NaN in its place
        np.testing.assert_allclose(found["square"], (expected**2).sum(-1), rtol=1e-6)


def test_a_deterministic_follows_an_array_that_the_likelihood_keeps():
    own = RNG.normal(size=8)
    with pm.Model(coords={"obs": range(8)}) as model:
        slope = pm.Normal("slope")
        fitted = pm.Deterministic("fitted", slope * own, dims="obs")
        pm.Normal("y", fitted, 1.0, observed=own, dims="obs")
    tree = refined(model, {"y": RNG.normal(size=(1, 8))}, draws=20)["posterior"].to_dataset()
    np.testing.assert_allclose(tree["fitted"], tree["slope"].values[..., None] * own, atol=1e-9)


def test_a_deterministic_of_counts_is_nan_where_one_is_missing():
    own = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9])
    with pm.Model(coords={"obs": range(15)}) as model:
        held = pm.Data("held", own, dims="obs")
        mu = pm.Gamma("mu", 2, 1)
        pm.Poisson("y", mu, observed=held, dims="obs")
        pm.Deterministic("residual", held - mu, dims="obs")
    counts = own[::-1].astype(float)
    counts[[0, 4]] = np.nan
    found = refined(model, {"y": counts[None]}, draws=50)["posterior"].to_dataset()
    expected = counts - found["mu"].values[..., None]
    np.testing.assert_allclose(found["residual"], expected, atol=1e-9)


def test_wrong_arguments_are_named():
    model, data, _ = conjugate(30)
    with pytest.raises(ValueError, match="draws: expected at least 1"):
        pmcl.refine(model, data, draws=0)
    with pytest.raises(pmcl.DataError, match="'y'"):
        pmcl.refine(model, {"X": data["X"]}, progressbar=False)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gaussian_mixture", "two_moons"])
def test_published_reference_posteriors(data_folder: Path, task: str):
    import pandas as pd

    folder = data_folder / "sbibm" / task
    read = [
        [
            pd.read_csv(folder / f"obs_{i:02d}_{kind}").to_numpy()
            for kind in ("observation.csv", "reference_posterior.csv.gz")
        ]
        for i in (1, 2)
    ]
    with pm.Model(coords={"obs": range(2)}) as model:
        if task == "gaussian_mixture":
            theta = pm.Uniform("theta", -10, 10, shape=2)
            parts = [pm.MvNormal.dist(theta, s**2 * np.eye(2)) for s in (1.0, 0.1)]
            pm.Mixture("x", [0.5, 0.5], parts, observed=np.zeros(2), dims="obs")
        else:
            theta = pm.Uniform("theta", -1, 1, shape=2)

            def logp(value, theta):
                p0 = value[0] + pm.math.abs(theta[0] + theta[1]) / np.sqrt(2) - 0.25
                p1 = value[1] - (theta[1] - theta[0]) / np.sqrt(2)
                r = pm.math.sqrt(p0**2 + p1**2)
                inside = pm.logp(pm.Normal.dist(0.1, 0.01), r) - pm.math.log(np.pi * r)
                return pm.math.switch(p0 > 0, inside, -np.inf)

            def random(theta, rng=None, size=None):
                raise NotImplementedError

            pm.CustomDist(
                "x", theta, logp=logp, random=random, signature="(n)->(n)",
                observed=np.zeros(2), dims="obs",
            )  # fmt: skip
    data = {"x": np.concatenate([r[0] for r in read])}
    tree = refined(model, data, draws=4000, refine=pmcl.Refine(starts=8))
    drawn = tree["posterior"]["theta"].values[0]
    assert np.isfinite(drawn).all()
    for i, (_, reference) in enumerate(read):
        score = pmcl.metrics.c2st(drawn[:2000, i], reference[:2000], random_seed=0)
        warned = bool(str(tree["dataset_stats"]["warning"].values[i]))
        assert warned or score < 0.6
        if task == "gaussian_mixture":
            assert score < 0.6
        else:  # both moons are found
            side = np.sign(reference @ [1, -1] if i < 0 else reference.sum(axis=1))
            assert abs(np.mean(drawn[:, i].sum(axis=1) > 0) - np.mean(side > 0)) < 0.2
