"""Levels: what is found, integrals and evidence against closed forms and quadrature."""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import level_models as models
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit, gammaln, logsumexp

import pmcl
from pmcl.compile import CompiledModel, Density, compile_model
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import initial_point
from pmcl.data.covariates import covariates_among
from pmcl.data.masked import check_masked
from pmcl.data.reading import task_of
from pmcl.data.task import Task
from pmcl.levels import proposals
from pmcl.levels.blocks import Factor
from pmcl.levels.climb import Peak
from pmcl.levels.find import find
from pmcl.levels.integrals import Marginal
from pmcl.levels.one_dataset import _choice
from pmcl.levels.reading import Reading, read
from pmcl.levels.structure import KEY, Given, Levels, NoLevels
from pmcl.runtime import precision

RNG = np.random.default_rng(3)
Y8 = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SIGMA8 = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


@pytest.fixture(autouse=True)
def double_precision():
    with precision.scope():
        yield


class Found(NamedTuple):
    """Levels of a model for data, and the density of the global parameters."""

    compiled: CompiledModel
    density: Density
    task: Task
    levels: Levels | NoLevels

    @classmethod
    def of(cls, model: pm.Model, data: dict) -> "Found":
        compiled = compile_model(model, covariates=covariates_among(model, data))
        task = check_masked(compiled, task_of(compiled, data))
        density = Density(compiled, task.layout.row)
        return cls(compiled, density, task, find(density, task, initial_point(model)))

    @property
    def marginal(self) -> Marginal:
        assert isinstance(self.levels, Levels), str(self.levels)
        return Marginal.of(self.density, self.levels)

    def given(self, i: int = 0):
        """Arrays of one dataset with its levels, and its mask."""
        assert isinstance(self.levels, Levels)
        batch = self.task.batch()
        values = {**batch.values, KEY: Given(self.levels.split)}
        return jax.tree.map(lambda v: v[i], (values, batch.mask))

    def log_density(self, g: np.ndarray, i: int = 0) -> np.ndarray:
        """Collapsed log density at g of shape (n, shared)."""
        values, mask = self.given(i)
        return np.asarray(jax.jit(jax.vmap(lambda u: self.marginal(u, values, mask)))(g))


def refined(model: pm.Model, data: dict, **given):
    given = {"draws": 2000, "random_seed": 1, "progressbar": False} | given
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return pmcl.refine(model, data, **given)


# What is found


def test_centred_and_not_are_found_alike():
    data = {"y": Y8, "sigma": SIGMA8}
    for centred in (True, False):
        levels = Found.of(models.eight_schools(centred=centred), data).levels
        assert isinstance(levels, Levels)
        assert (levels.groups, levels.width, levels.exact) == (8, 1, True)
        np.testing.assert_array_equal(levels.shared, [0, 1])
        assert "8 groups along 'school'" in str(levels)
        assert "global: mu, tau" in str(levels)


def test_a_kink_is_not_quadratic():
    """A Laplace prior's third derivatives vanish wherever they exist."""
    with pm.Model(coords={"group": range(5)}) as model:
        theta = pm.Laplace("theta", pm.Normal("mu", 0, 1), 1, dims="group")
        pm.Normal("y", theta, 1, observed=np.zeros(5), dims="group")
    levels = Found.of(model, {"y": RNG.normal(size=5)}).levels
    assert isinstance(levels, Levels)
    assert not levels.exact


@pytest.mark.parametrize("correlated", [False, True])
def test_intercepts_and_slopes(correlated):
    found = Found.of(models.slopes(correlated=correlated), {"y": RNG.normal(size=24)})
    levels = found.levels
    assert isinstance(levels, Levels)
    assert (levels.groups, levels.width, levels.exact) == (6, 2, True)
    # the rows of a group are four neighbours, and belong to nothing else
    rows = np.asarray(levels.split.owner[0])[-24:]
    np.testing.assert_array_equal(rows, models.SIX)


def test_a_group_without_rows_is_one_group():
    """Its intercept and its slope have no term in common."""
    index = np.array([0, 0, 1, 1, 3, 3, 4, 4])
    with pm.Model(coords={"group": range(5)}) as model:
        sd = pm.HalfNormal("sd", 1, shape=2)
        a = pm.Normal("a", 0, sd[0], dims="group")
        b = pm.Normal("b", 0, sd[1], dims="group")
        x = np.arange(8) - 3.5
        pm.Normal("y", a[index] + b[index] * x, 1, observed=RNG.normal(size=8))
    found = Found.of(model, {"y": RNG.normal(size=8)})
    assert isinstance(found.levels, Levels)
    assert (found.levels.groups, found.levels.width) == (5, 2)
    place = np.asarray(found.levels.split.place)[0, 2:] - 2
    np.testing.assert_array_equal(place % 5, np.tile(np.arange(5), 2))


@pytest.mark.slow
def test_levels_of_a_mean_that_few_parameters_make_possible():
    """A mean 1 / eta (the default link of Bambi's gamma), eta positive in every row."""
    index = np.repeat(np.arange(5), 4)
    y = RNG.gamma(3, 1 / (1.5 + 0.4 * np.array([-1, -0.5, 0, 0.5, 1]))[index] / 3)
    with pm.Model(coords={"group": range(5)}) as model:
        at, sd = pm.Normal("at", 0, 2.5), pm.HalfNormal("sd", 1)
        u = pm.Normal("u", 0, 1, dims="group")
        eta = at + sd * u[index]
        pm.Gamma("y", 3, 3 * eta, observed=np.ones(20))
    found = refined(model, {"y": y}, draws=500)
    assert "levels: 5 groups" in found["posterior"].attrs["levels"]
    told = found["dataset_stats"].to_dataset()
    assert told["engine"].item() == "mixture" and told["khat"].item() < 0.7
    # on a grid: eta of a group given (at, sd) is normal, cut at zero
    at, sd = np.meshgrid(np.linspace(-2, 9, 221), np.linspace(0.0025, 4, 200), indexing="ij")
    e, weight = np.polynomial.hermite_e.hermegauss(80)
    eta = at[..., None] + sd[..., None] * e
    log_p = stats.norm.logpdf(at, 0, 2.5) + stats.halfnorm.logpdf(sd)
    for one in y.reshape(5, 4):
        with np.errstate(divide="ignore", invalid="ignore"):
            row = stats.gamma.logpdf(one[:, None, None, None], 3, scale=1 / (3 * eta)).sum(axis=0)
        row = np.where(eta > 0, row, -np.inf)
        log_p = log_p + logsumexp(row, axis=-1, b=weight / np.sqrt(2 * np.pi))
    evidence = logsumexp(log_p) + np.log(11 / 220 * 4 / 200)
    assert told["log_evidence"].item() == pytest.approx(evidence, abs=0.1)
    mean = np.sum(np.exp(log_p - logsumexp(log_p)) * at)
    assert float(found["posterior"]["at"].mean()) == pytest.approx(mean, abs=0.1)


def test_levels_are_found_where_most_terms_are_impossible_to_begin_with():
    index, x = np.repeat(np.arange(20), 10), RNG.normal(size=(200, 3))
    with pm.Model(coords={"group": range(20)}) as model:
        at, sd = pm.Normal("at", 0, 2.5), pm.HalfNormal("sd", 1)
        slope = pm.Normal("slope", 0, 2.5, shape=3)
        u = pm.Normal("u", 0, 1, dims="group")
        pm.Gamma("y", 3, 3 * (at + sd * u[index] + x @ slope), observed=np.ones(200))
    levels = Found.of(model, {"y": RNG.gamma(3, 1 / 3, 200)}).levels
    assert isinstance(levels, Levels)
    assert levels.groups == 20 and not levels.exact


def test_groups_of_rows_differ_from_dataset_to_dataset():
    county = np.stack([RNG.permutation(10) % 6, np.sort(RNG.integers(0, 6, 10))])
    data = {"y": RNG.normal(size=(2, 10)), "in_county": county, "uranium": RNG.normal(size=(2, 6))}
    levels = Found.of(models.counties(), data).levels
    assert isinstance(levels, Levels)
    assert levels.groups == 6
    np.testing.assert_array_equal(np.asarray(levels.split.owner)[:, -10:], county)


def test_groups_that_a_matrix_of_zeros_and_ones_makes():
    """Nothing is indexed, and still each dataset has rows of its own in every group."""
    with pm.Model(coords={"group": range(4), "row": range(8)}) as model:
        member = pm.Data("member", np.zeros((8, 4)), dims=("row", "group"))
        a = pm.Normal("a", pm.Normal("mu", 0, 1), 1, dims="group")
        pm.Normal("y", member @ a, 1, observed=np.zeros(8), dims="row")
    group = np.stack([np.arange(8) % 4, np.arange(8) // 2])
    data = {"y": RNG.normal(size=(2, 8)), "member": np.eye(4)[group]}
    levels = Found.of(model, data).levels
    assert isinstance(levels, Levels)
    np.testing.assert_array_equal(np.asarray(levels.split.owner)[:, -8:], group)


def test_groups_within_groups_are_blocks():
    levels = Found.of(models.nested(), {"y": RNG.normal(size=24)}).levels
    assert isinstance(levels, Levels)
    assert (levels.groups, levels.width, levels.exact) == (4, 4, True)  # a school, three classes
    np.testing.assert_array_equal(levels.split.real[0].sum(axis=0), [3, 4, 3, 2])
    np.testing.assert_array_equal(levels.split.owner[0][-24:], models.SCHOOLS[models.PUPILS])


def test_of_crossed_factors_the_small_one_is_global():
    data = {"y": RNG.integers(0, 2, (40, 4))}
    levels = Found.of(models.items(), data).levels
    assert isinstance(levels, Levels)
    assert (levels.groups, levels.width, levels.exact) == (40, 1, False)
    assert "of these difficulty by their entries" in str(levels)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (lambda: models.items(35, 33), {"y": RNG.integers(0, 2, (33, 35))}),
        (models.walk, {"y": RNG.normal(size=30)}),
        (models.regression, {"y": RNG.normal(size=20)}),
    ],
    ids=["crossed", "chain", "regression"],
)
def test_what_has_no_groups_is_refined_as_it_is(model, data):
    levels = Found.of(model(), data).levels
    assert isinstance(levels, NoLevels)
    assert str(levels).startswith("no levels: ")


def test_levels_can_be_switched_off_and_asked_for():
    data = {"y": Y8, "sigma": SIGMA8}
    few = pmcl.Refine(steps=0, rounds=0, starts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = pmcl.refine(
            models.eight_schools(), data, levels=False, refine=few, draws=50, progressbar=False
        )
    assert tree["posterior"].attrs["levels"] == "no levels: switched off"
    assert "group_noise" not in tree["dataset_stats"]
    with pytest.raises(UnsupportedModelError, match="levels=True: expected a multilevel model"):
        pmcl.refine(models.regression(), {"y": np.zeros(20)}, levels=True, progressbar=False)
    with pytest.raises(ValueError, match="levels: expected None, True or False"):
        pmcl.refine(models.regression(), {"y": np.zeros(20)}, levels="on")


# Blocks


def local_level(n: int = 30) -> pm.Model:
    """A random walk that is seen with noise."""
    with pm.Model(coords={"time": range(n)}) as model:
        tau, noise = pm.HalfNormal("tau", 1), pm.HalfNormal("noise", 1)
        start = pm.Normal.dist(0, 2)
        level = pm.GaussianRandomWalk("level", sigma=tau, init_dist=start, dims="time")
        pm.Normal("y", level, noise, observed=np.zeros(n), dims="time")
    return model


def local_level_covariance(tau: np.ndarray, noise: np.ndarray, n: int) -> np.ndarray:
    t = np.arange(n)
    walk = tau[:, None, None] ** 2 * np.minimum(t[:, None], t)
    return 4.0 + walk + noise[:, None, None] ** 2 * np.eye(n)


def ridge(n: int = 40, d: int = 12) -> pm.Model:
    """A regression with one scale for all coefficients."""
    with pm.Model(coords={"row": range(n), "predictor": range(d)}) as model:
        X = pm.Data("X", np.zeros((n, d)), dims=("row", "predictor"))
        tau, noise = pm.HalfNormal("tau", 1), pm.HalfNormal("noise", 1)
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        pm.Normal("y", X @ (tau * beta), noise, observed=np.zeros(n), dims="row")
    return model


def by_two_scales(y: np.ndarray, covariance) -> tuple[float, np.ndarray]:
    """log p(y) and the means of both scales, half-normal a priori, by quadrature of their logs."""
    log_grid = np.linspace(-5, 2, 141)
    tau, noise = (np.exp(g).ravel() for g in np.meshgrid(log_grid, log_grid))
    C = covariance(tau, noise)
    _, log_det = np.linalg.slogdet(C)
    solved = np.linalg.solve(C, np.tile(y[:, None], (len(C), 1, 1)))[..., 0]
    log_p = -0.5 * (solved @ y + log_det + len(y) * np.log(2 * np.pi))
    for scale in (tau, noise):
        log_p += stats.halfnorm.logpdf(scale) + np.log(scale)
    step = np.log(log_grid[1] - log_grid[0])
    evidence = logsumexp(log_p) + 2 * step
    weight = np.exp(log_p + 2 * step - evidence)
    return evidence, np.array([weight @ tau, weight @ noise])


def test_a_chain_with_normal_rows_is_one_block():
    rng = np.random.default_rng(5)
    y = np.cumsum(rng.normal(0, 0.4, 30)) + rng.normal(0, 0.5, 30)
    tree = refined(local_level(), {"y": y}, draws=4000)
    assert tree["posterior"].attrs["levels"] == (
        "levels: one block of 30 parameters (level), normal given the others and integrated out "
        "exactly; global: tau, noise"
    )
    evidence, means = by_two_scales(y, lambda a, b: local_level_covariance(a, b, 30))
    told = tree["dataset_stats"].to_dataset().isel(dataset=0)
    assert abs(float(told["log_evidence"]) - evidence) < 0.03
    assert float(told["efficiency"]) > 0.6
    draws = tree["posterior"].to_dataset().isel(dataset=0)
    found = np.array([float(draws[n].mean()) for n in ("tau", "noise")])
    np.testing.assert_allclose(found, means, atol=0.02)
    # the levels, given the scales, by their own conditional means
    few = draws.stack(sample=("chain", "draw")).isel(sample=slice(0, 4000, 10))
    C = local_level_covariance(few["tau"].values, few["noise"].values, 30)
    signal = C - few["noise"].values[:, None, None] ** 2 * np.eye(30)
    expected = (signal @ np.linalg.solve(C, np.tile(y[:, None], (len(C), 1, 1))))[..., 0]
    drawn = draws["level"].mean(("chain", "draw")).values
    np.testing.assert_allclose(drawn, expected.mean(axis=0), atol=0.06)


def walk_of_counts(y: np.ndarray) -> tuple[float, float, np.ndarray]:
    """log p(y), the mean of the scale, and those of the levels, by filters over a grid of levels.

    Of counts with log means that are a walk of half-normal scale 0.5, from N(0, 1).
    """
    x, scales = np.linspace(-6, 6, 601), np.linspace(0.0, 2.0, 81)[1:]
    rows = stats.poisson.logpmf(y[:, None], np.exp(x))
    log_p, means = [], []
    for scale in scales:
        move = np.exp(-0.5 * ((x[:, None] - x) / scale) ** 2)
        move /= move.sum(axis=1, keepdims=True)  # of narrow steps, too, between points of the grid
        forward = [stats.norm.logpdf(x) + np.log(x[1] - x[0]) + rows[0]]
        for row in rows[1:]:
            most = forward[-1].max()
            forward.append(most + np.log(np.exp(forward[-1] - most) @ move + 1e-300) + row)
        backward = [np.zeros(len(x))]
        for row in rows[:0:-1]:
            after = row + backward[0]
            backward.insert(0, after.max() + np.log(move @ np.exp(after - after.max()) + 1e-300))
        both = np.array(forward) + np.array(backward)
        log_p.append(logsumexp(both[-1]) + stats.halfnorm.logpdf(scale, scale=0.5))
        means.append(np.exp(both - logsumexp(both, axis=1, keepdims=True)) @ x)
    evidence = logsumexp(log_p) + np.log(scales[1] - scales[0])
    weight = np.exp(log_p - logsumexp(log_p))
    return evidence, weight @ scales, weight @ np.array(means)


@pytest.mark.slow
def test_a_chain_with_counts_is_one_block():
    """By filters over a grid: the evidence, the scale and the levels."""
    y = np.random.default_rng(7).poisson(np.exp(0.7 * np.sin(np.arange(40) / 5) + 0.5))
    with pm.Model(coords={"time": range(40)}) as model:
        scale = pm.HalfNormal("scale", 0.5)
        start = pm.Normal.dist(0, 1)
        level = pm.GaussianRandomWalk("level", sigma=scale, init_dist=start, dims="time")
        pm.Poisson("y", pm.math.exp(level), observed=np.zeros(40, int), dims="time")
    tree = refined(model, {"y": y}, draws=4000)
    assert tree["posterior"].attrs["levels"] == (
        "levels: one block of 40 parameters (level), integrated out by its own curvature; "
        "global: scale"
    )
    evidence, mean, levels = walk_of_counts(y)
    told = tree["dataset_stats"].to_dataset().isel(dataset=0)
    assert abs(float(told["log_evidence"]) - evidence) < 0.05
    assert float(told["efficiency"]) > 0.6
    assert str(told["worst_group"].values) == "the block"
    draws = tree["posterior"].to_dataset().isel(dataset=0)
    assert abs(float(draws["scale"].mean()) - mean) < 0.01
    np.testing.assert_allclose(draws["level"].mean(("chain", "draw")), levels, atol=0.04)


def test_coefficients_of_regressions_are_one_block_in_each_of_several_datasets():
    rng = np.random.default_rng(6)
    data = [
        {"X": rng.normal(size=(n, 12)), "y": rng.normal(size=n), "noise": 0.5} for n in (40, 25)
    ]
    for one in data:
        one["y"] = one["X"] @ rng.normal(0, 0.7, 12) + one.pop("noise") * one["y"]
    tree = refined(ridge(), data)
    assert "one block of 12 parameters (beta)" in tree["posterior"].attrs["levels"]
    for i, one in enumerate(data):
        X, y = one["X"], one["y"]
        evidence, means = by_two_scales(
            y,
            lambda a, b, X=X: (
                a[:, None, None] ** 2 * (X @ X.T) + b[:, None, None] ** 2 * np.eye(len(X))
            ),
        )
        told = tree["dataset_stats"].to_dataset().isel(dataset=i)
        assert abs(float(told["log_evidence"]) - evidence) < 0.05
        draws = tree["posterior"].to_dataset().isel(dataset=i)
        found = np.array([float(draws[n].mean()) for n in ("tau", "noise")])
        np.testing.assert_allclose(found, means, atol=0.03)


def test_a_block_is_concave_or_there_is_none():
    """Heavy tails, kinks, few coefficients, many scales, and no scales at all have no block."""
    with pm.Model(coords={"time": range(30)}) as heavy:
        scale, start = pm.HalfNormal("scale", 1), pm.Normal.dist(0, 1)
        level = pm.GaussianRandomWalk("level", sigma=scale, init_dist=start, dims="time")
        pm.StudentT("y", 3, mu=level, sigma=0.2, observed=np.zeros(30), dims="time")
    with pm.Model(coords={"row": range(40), "predictor": range(40)}) as horseshoe:
        local = pm.HalfNormal("local", 1, dims="predictor")
        beta = pm.Normal("beta", 0, local, dims="predictor")
        x = np.random.default_rng(0).normal(size=(40, 40))
        pm.Normal("y", x @ beta, 1, observed=np.zeros(40), dims="row")
    with pm.Model(coords={"row": range(40), "predictor": range(40)}) as normal:
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        pm.Normal("y", x @ beta, 1, observed=np.zeros(40), dims="row")
    with pm.Model(coords={"row": range(40), "predictor": range(40)}) as lasso:
        beta = pm.Laplace("beta", 0, pm.HalfNormal("scale", 1), dims="predictor")
        pm.Normal("y", x @ beta, 1, observed=np.zeros(40), dims="row")
    tried = ((heavy, 30), (horseshoe, 40), (normal, 40), (lasso, 40), (models.regression(), 20))
    for model, n in tried:
        found = Found.of(model, {"y": np.zeros(n)})
        block = find(found.density, found.task, initial_point(model), block=True)
        assert isinstance(block, NoLevels)


@pytest.mark.parametrize("vector", [False, True])
def test_scales_of_a_block_are_global_as_a_vector_too(vector):
    """Where rows say much a scale and its effects look concave along lines, together."""
    rng = np.random.default_rng(2)
    i, j = np.divmod(np.flatnonzero(rng.random(280) < 0.4), 14)
    with pm.Model(coords={"person": range(20), "item": range(14)}) as model:
        mu = pm.Normal("mu", 0, 2)
        scale = pm.HalfNormal("s", 1, shape=2) if vector else None
        one, other = scale if vector else (pm.HalfNormal("s1", 1), pm.HalfNormal("s2", 1))
        ability = pm.ZeroSumNormal("ability", one, dims="person")
        ease = pm.ZeroSumNormal("ease", other, dims="item")
        pm.Binomial("y", 3, logit_p=mu + ability[i] + ease[j], observed=np.zeros(len(i), int))
    found = Found.of(model, {"y": rng.binomial(3, 0.4, len(i))})
    block = find(found.density, found.task, initial_point(model), block=True)
    assert isinstance(block, Levels)
    assert len(block.shared) == 3
    assert "one block of 32 parameters (ability, ease)" in block.text


def test_heavy_tails_of_steps_have_no_block():
    """Although many rows make them concave where they are looked at."""
    with pm.Model(coords={"time": range(40)}) as model:
        step = pm.StudentT.dist(nu=3, mu=0, sigma=pm.HalfNormal("scale", 0.3))
        start = pm.Normal.dist(0, 3)
        level = pm.RandomWalk("level", innovation_dist=step, init_dist=start, steps=39)
        pm.Poisson("y", pm.math.exp(level), observed=np.zeros(40, int), dims="time")
    found = Found.of(model, {"y": np.full(40, 5)})
    block = find(found.density, found.task, initial_point(model), block=True)
    assert isinstance(block, NoLevels)


# Integrals


@pytest.mark.parametrize("d", [1, 3, 6])
def test_factors_agree_with_numpy(d):
    half = RNG.normal(size=(4, d, d + 2))
    matrix = half @ half.swapaxes(1, 2)
    factor = Factor.of(np.moveaxis(matrix, 0, -1))
    assert factor.usable.all()
    np.testing.assert_allclose(
        np.moveaxis(factor.lower, -1, 0), np.linalg.cholesky(matrix), atol=1e-9
    )
    np.testing.assert_allclose(2 * factor.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-8)
    v = RNG.normal(size=(d, 4))
    both = np.asarray(factor.solve_transposed(factor.solve(v))).T
    np.testing.assert_allclose(both, np.linalg.solve(matrix, v.T[..., None])[..., 0], rtol=1e-7)
    assert not Factor.of(-np.moveaxis(matrix, 0, -1)).usable.any()


@pytest.mark.parametrize("width", [2, 12])
def test_proposals_of_groups_have_the_density_that_is_told(width):
    """Of a wide group a multivariate t in opposite pairs, of a narrow one a t each."""
    half = RNG.normal(size=(3, width, width + 2))
    precision = np.moveaxis(half @ half.swapaxes(1, 2), 0, -1)
    peak = Peak(RNG.normal(size=(width, 3)), np.zeros(3), Factor.of(precision))
    l, e = proposals.spread(peak, jax.random.key(0), 2**12)  # noqa: E741
    log_q = proposals.log_density(peak, proposals.standardised(peak, l))
    np.testing.assert_allclose(log_q, proposals.log_density(peak, e), rtol=1e-6)
    scale = np.linalg.inv(np.moveaxis(precision, -1, 0))
    for j in range(3):
        if width == 12:
            q = stats.multivariate_t(peak.l[:, j], scale[j], df=12)
            np.testing.assert_allclose(log_q[:, j], q.logpdf(l[..., j]), rtol=1e-6)
            np.testing.assert_allclose(l.mean(axis=0)[:, j], peak.l[:, j], atol=1e-9)
        # a normal inside of it has the integral 1
        p = stats.multivariate_normal(peak.l[:, j], scale[j]).logpdf(l[..., j])
        assert abs(np.exp(p - log_q[:, j]).mean() - 1) < 0.03


def log_schools(mu, log_tau, y, sigma):
    """Exact log p(mu, log tau, y) of eight schools, theta integrated out by hand."""
    tau = np.exp(log_tau)
    prior = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + log_tau
    each = stats.norm.logpdf(y, mu[..., None], np.hypot(tau[..., None], sigma))
    return prior + each.sum(axis=-1)


@pytest.mark.parametrize("centred", [True, False])
def test_a_normal_group_is_integrated_exactly(centred):
    found = Found.of(models.eight_schools(centred=centred), {"y": Y8, "sigma": SIGMA8})
    g = np.stack([RNG.normal(0, 5, 20), RNG.normal(1, 2, 20)], axis=1)
    exact = lambda g: log_schools(g[..., 0], g[..., 1], Y8, SIGMA8)  # noqa: E731
    np.testing.assert_allclose(found.log_density(g), exact(g), rtol=1e-8)
    values, mask = found.given()
    parts = jax.jit(lambda g: found.marginal.parts(g, values, mask))(g)
    np.testing.assert_allclose(sum(parts), exact(g), rtol=1e-8)
    # and so are its derivatives, which nodes stand for
    at, h = np.array([3.0, 1.2]), 1e-4
    f = lambda u: found.marginal(u, values, mask)  # noqa: E731
    gradient, hessian = jax.jit(lambda u: (jax.grad(f)(u), jax.hessian(f)(u)))(at)
    step = h * np.eye(2)
    numeric = [(exact(at + s) - exact(at - s)) / (2 * h) for s in step]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5)
    second = [
        [
            (exact(at + s + t) - exact(at + s - t) - exact(at - s + t) + exact(at - s - t))
            / (4 * h**2)
            for t in step
        ]
        for s in step
    ]
    np.testing.assert_allclose(hessian, second, atol=1e-4)


def test_a_block_of_nested_groups_is_integrated_exactly():
    """More parameters than nodes are used for: the normal moves with the global parameters."""
    y = RNG.normal(size=24)
    found = Found.of(models.nested(), {"y": y})
    same = (models.SCHOOLS[:, None] == models.SCHOOLS).astype(float)
    of_pupils = np.ix_(models.PUPILS, models.PUPILS)

    def exact(g):
        mu, *taus = g
        tau = np.exp(taus)
        covariance = (tau[0] ** 2 * same + tau[1] ** 2 * np.eye(8))[of_pupils] + np.eye(24)
        prior = stats.norm.logpdf(mu, 0, 3) + np.sum(stats.halfnorm.logpdf(tau) + taus)
        return prior + stats.multivariate_normal.logpdf(y, np.full(24, mu), covariance)

    g = RNG.normal(0, 0.7, (5, 3))
    np.testing.assert_allclose(found.log_density(g), [exact(u) for u in g], rtol=1e-9)
    values, mask = found.given()
    gradient = jax.jit(jax.grad(lambda u: found.marginal(u, values, mask)))(g[0])
    h = 1e-5
    numeric = [(exact(g[0] + s) - exact(g[0] - s)) / (2 * h) for s in h * np.eye(3)]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5)


def log_counts(g, y, kind):
    """log p(g) + sum_j log Z_j(g) of the count models, by quadrature on a fine grid."""
    mean, tau = g[0], np.exp(g[1])
    u = tau * np.linspace(-9, 9, 4001)
    eta = mean + u
    if kind == "poisson":
        terms = y[:, None] * eta - np.exp(eta) - gammaln(y + 1)[:, None]
    else:
        terms = np.log(np.where(y[:, None] == 1, expit(eta), expit(-eta)))
    groups = np.add.reduceat(terms, np.arange(0, 24, 4)) + stats.norm.logpdf(u, 0, tau)
    prior = stats.norm.logpdf(mean) + stats.halfnorm.logpdf(tau) + g[1]
    return prior + np.sum(logsumexp(groups, axis=1) + np.log(u[1] - u[0]))


@pytest.mark.parametrize("kind", ["poisson", "bernoulli"])
def test_count_models_agree_with_quadrature(kind):
    u = np.repeat(RNG.normal(size=6), 4)
    y = RNG.poisson(np.exp(0.5 + u)) if kind == "poisson" else (u > 0).astype(int)
    found = Found.of(models.counts(kind), {"y": y})
    g = np.array([[0.3, -1.0], [0.3, 0.0], [-0.5, 0.7]])
    exact = np.array([log_counts(u, y, kind) for u in g])
    np.testing.assert_allclose(found.log_density(g), exact, atol=0.02)  # five nodes
    # estimates by draws are unbiased, and their logarithms little noisy
    values, mask = found.given()
    many = np.repeat(g, 2000, axis=0)
    draw = jax.jit(lambda g, k: found.marginal.draw(g, k, values, mask, 8))
    z, log_p, _ = draw(many, jax.random.key(0))
    ratio = np.exp(np.asarray(log_p).reshape(3, -1) - exact[:, None])
    error = ratio.std(axis=1) / np.sqrt(ratio.shape[1])
    assert (np.abs(ratio.mean(axis=1) - 1) < 4 * error + 1e-9).all()
    assert (ratio.std(axis=1) < 0.4).all()
    # what is drawn holds the global parameters that it was drawn given
    assert isinstance(found.levels, Levels)
    np.testing.assert_array_equal(np.asarray(z)[:, found.levels.shared], many)


# Posteriors


class Grid(NamedTuple):
    """Exact posterior of eight schools, on a grid of mu and log tau."""

    evidence: float
    mean: np.ndarray  # of mu, log tau, then every theta
    sd: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, sigma: np.ndarray) -> "Grid":
        mu, log_tau = np.meshgrid(np.linspace(-25, 35, 400), np.linspace(-12, 5, 600))
        log_p = log_schools(mu, log_tau, y, sigma)
        evidence = logsumexp(log_p) + np.log(60 / 399 * 17 / 599)
        weight = np.exp(log_p - logsumexp(log_p))
        tau2 = np.exp(2 * log_tau)[..., None]
        precision = 1 / tau2 + 1 / sigma**2
        local = (mu[..., None] / tau2 + y / sigma**2) / precision
        values = np.concatenate([mu[..., None], log_tau[..., None], local], axis=-1)
        within = np.concatenate([np.zeros((*mu.shape, 2)), 1 / precision], axis=-1)
        mean = np.einsum("ab,abc->c", weight, values)
        second = np.einsum("ab,abc->c", weight, values**2 + within)
        return cls(evidence, mean, np.sqrt(second - mean**2))


@pytest.mark.parametrize(
    "groups", [pytest.param(5, marks=pytest.mark.slow), 8, pytest.param(40, marks=pytest.mark.slow)]
)
def test_schools_have_their_posterior(groups):
    """Any number of them, centred: against quadrature over the two global parameters."""
    sigma = np.resize(SIGMA8, groups)
    y = Y8 if groups == 8 else RNG.normal(4 + 5 * RNG.normal(size=groups), sigma)
    tree = refined(models.eight_schools(groups), {"y": y, "sigma": sigma}, draws=4000)
    exact = Grid.of(y, sigma)
    posterior = tree["posterior"].to_dataset().isel(dataset=0, chain=0)
    drawn = np.column_stack([posterior["mu"], np.log(posterior["tau"]), posterior["theta"]])
    stats_ = tree["dataset_stats"].to_dataset().isel(dataset=0)
    assert float(stats_["khat"]) < 0.7
    assert float(stats_["efficiency"]) > 0.6
    assert abs(float(stats_["log_evidence"]) - exact.evidence) < 4 * float(
        stats_["log_evidence_error"]
    )
    error = exact.sd / np.sqrt(4000 * float(stats_["efficiency"]))
    assert (np.abs(drawn.mean(axis=0) - exact.mean) < 4.5 * error).all()
    np.testing.assert_allclose(drawn.std(axis=0), exact.sd, rtol=0.12)
    assert posterior["theta"].dims == ("draw", "school")
    if groups == 8:
        # the published posterior of the usual priors
        np.testing.assert_allclose([posterior["mu"].mean(), posterior["mu"].std()], 4.4, atol=1.3)
        np.testing.assert_allclose(posterior["tau"].mean(), 3.6, atol=0.3)
        np.testing.assert_allclose(posterior["tau"].std(), 3.2, atol=0.4)


def test_weights_are_ratios_of_densities():
    """`log_weight` is log_prior + log_likelihood - log_q, for draws that keep their weights."""
    u = np.repeat(RNG.normal(size=6), 4)
    y = RNG.poisson(np.exp(0.5 + u))
    tree = refined(models.counts(), {"y": y}, correct=None, draws=1000)
    s = tree["sample_stats"].to_dataset().isel(dataset=0, chain=0)
    ratio = (s["log_prior"] + s["log_likelihood"] - s["log_q"]).values
    stats_ = tree["dataset_stats"].to_dataset().isel(dataset=0)
    np.testing.assert_allclose(
        logsumexp(ratio) - np.log(len(ratio)), float(stats_["log_evidence"]), rtol=1e-6
    )
    assert 0 < float(stats_["group_noise"]) < 0.1
    assert int(stats_["group_points"]) == 8
    # and the evidence is that of quadrature over the global parameters
    mean, log_tau = np.linspace(-2.5, 2.5, 26), np.linspace(-6, 1.5, 31)
    grid = [[log_counts((m, t), y, "poisson") for t in log_tau] for m in mean]
    exact = logsumexp(grid) + np.log(0.2 * 0.25)
    assert abs(exact - float(stats_["log_evidence"])) < 4 * float(stats_["log_evidence_error"])


def test_groups_of_different_size_with_padding_and_gaps():
    """Rows in any order, two lengths, a missing value: against the multivariate normal."""
    model = models.counties()
    data = {
        name: {"y": RNG.normal(size=n), "in_county": county, "uranium": RNG.normal(size=6)}
        for name, n, county in [
            ("short", 7, np.array([5, 0, 0, 1, 5, 2, 2])),
            ("long", 12, RNG.integers(0, 6, 12)),
        ]
    }
    data["long"]["y"][3] = np.nan
    found = Found.of(model, data)
    g = RNG.normal(0, 0.5, (4, 4))
    for i, one in enumerate(data.values()):
        there = np.isfinite(one["y"])
        y, county = one["y"][there], one["in_county"][there]
        expected = []
        for at, slope, *logs in g:
            tau, sigma = np.exp(logs)
            covariance = tau**2 * (county[:, None] == county) + sigma**2 * np.eye(len(y))
            mean = at + slope * one["uranium"][county]
            prior = stats.norm.logpdf([at, slope], 0, 2).sum() + np.sum(
                stats.halfnorm.logpdf([tau, sigma]) + logs
            )
            expected.append(prior + stats.multivariate_normal.logpdf(y, mean, covariance))
        np.testing.assert_allclose(found.log_density(g, i), expected, rtol=1e-8)


@pytest.mark.slow
def test_a_group_whose_tails_are_too_heavy_is_named():
    """A Cauchy prior, and nothing that is known of one group: weights have no variance."""
    with pm.Model(coords={"group": list("abc")}) as model:
        sd = pm.Data("sd", np.ones(3), dims="group")
        theta = pm.StudentT("theta", nu=1, mu=pm.Normal("mu"), sigma=1, dims="group")
        pm.Normal("y", theta, sd, observed=np.zeros(3), dims="group")
    data = {"y": np.array([0.3, 0.1, -0.5]), "sd": np.array([0.1, 1e6, 0.1])}
    with pytest.warns(UserWarning, match=r"proposals of group theta\[b\]"):
        tree = pmcl.refine(model, data, draws=500, fallback=None, random_seed=1, progressbar=False)
    stats = tree["dataset_stats"].to_dataset()
    assert stats["worst_group"].item() == "theta[b]"
    assert 0.5 < stats["group_khat"].item() < 1.1


def outliers(groups: int = 4) -> pm.Model:
    """Normal groups seen through errors with heavy tails: a group may have two modes."""
    with pm.Model(coords={"group": range(groups)}) as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", mu, tau, dims="group")
        pm.StudentT("y", nu=1, mu=theta, sigma=0.2, observed=np.zeros(groups), dims="group")
    return model


@pytest.mark.slow
def test_groups_of_several_modes_are_right_by_their_weights():
    y = np.array([6.0, 0.2, -0.4, 5.5])
    found = Found.of(outliers(), {"y": y})
    assert isinstance(found.levels, Levels)
    assert not found.levels.concave
    tree = refined(outliers(), {"y": y}, draws=4000, correct=None)
    # the evidence by quadrature of every group on a fine grid, and of the globals on another
    mu, log_tau = np.meshgrid(np.linspace(-6, 8, 141), np.linspace(-8, 3, 111), indexing="ij")
    tau = np.exp(log_tau)
    log_p = stats.norm.logpdf(mu) + stats.halfnorm.logpdf(tau) + log_tau
    e = np.linspace(-9, 9, 1801)
    for value in y:
        at = mu[..., None] + tau[..., None] * e  # a normal's own scale: no peak is missed
        each = stats.norm.logpdf(e) + stats.t.logpdf(value, 1, at, 0.2)
        fine = logsumexp(each, axis=-1) + np.log(0.01)
        log_p += fine
    truth = logsumexp(log_p) + np.log(0.1 * 0.1)
    stat = tree["dataset_stats"].to_dataset()
    error = max(float(stat["log_evidence_error"].item()), 5e-3)
    assert abs(stat["log_evidence"].item() - truth) < 4 * error


@pytest.mark.slow
def test_groups_without_a_prior_are_drawn_by_their_weights():
    """A flat prior has no mode to propose at: every draw of a group was its first proposal."""
    x, y = np.array([0.0, 1.0, 2.0, -1.0, 0.5]), np.array([0.3, 1.2, 1.6, -1.1, 0.4])
    with pm.Model(coords={"object": range(5)}) as model:
        slope = pm.Normal("slope", 1, 0.3)
        true = pm.Flat("true", dims="object")
        pm.StudentT("x", 5, mu=true, sigma=0.3, observed=np.zeros(5), dims="object")
        pm.StudentT("y", 5, mu=slope * true, sigma=0.4, observed=np.zeros(5), dims="object")
    tree = refined(model, {"x": x, "y": y}, draws=4000, fallback=None)
    assert tree["posterior"].attrs["levels"].startswith("levels: 5 groups along 'object'")
    slopes, at = np.linspace(-1, 3, 201), np.linspace(-10, 10, 4001)
    rows = stats.t.pdf((x[:, None, None] - at) / 0.3, 5)
    rows = rows * stats.t.pdf((y[:, None, None] - slopes[:, None] * at) / 0.4, 5)
    total = rows.sum(axis=-1)  # (object, slope)
    weight = np.prod(total, axis=0) * stats.norm.pdf(slopes, 1, 0.3)
    weight /= weight.sum()
    mean, square = (((rows * at**k).sum(axis=-1) / total) @ weight for k in (1, 2))
    draws = tree["posterior"].to_dataset().isel(dataset=0, chain=0)
    np.testing.assert_allclose(float(draws["slope"].mean()), weight @ slopes, atol=0.03)
    np.testing.assert_allclose(draws["true"].mean("draw"), mean, atol=0.03)
    np.testing.assert_allclose(draws["true"].std("draw"), np.sqrt(square - mean**2), rtol=0.08)


@pytest.mark.slow
def test_a_kink_where_nobody_looked_is_seen_by_the_draws():
    """Far from the initial point, where groups are normal, scores above 100 count half."""
    model = models.capped(4)
    near, y = np.array([3.0, -4, 1, 2]), np.array([99.0, 103, 80, 97])
    alone = refined(model, {"y": near}, draws=500)
    both = refined(model, {"y": np.stack([near, y])}, draws=500)
    told = "not normal where the posterior is"
    assert [told in note for note in both["dataset_stats"]["note"].values] == [False, True]
    mu = alone["posterior"]["mu"].values.ravel()
    np.testing.assert_array_equal(both["posterior"]["mu"].values[..., 0].ravel(), mu)
    levels = [tree["posterior"].attrs["levels"] for tree in (alone, both)]
    assert ["by their own curvature" in text for text in levels] == [False, True]
    found = both["dataset_stats"].to_dataset().isel(dataset=1)
    mu, tau = np.meshgrid(np.linspace(-20, 250, 136), np.linspace(0.5, 100, 200), indexing="ij")
    log_p = stats.norm.logpdf(mu, 0, 60) + stats.halfnorm.logpdf(tau, scale=20)
    a = np.linspace(-100, 400, 501)
    prior = stats.norm.logpdf(a, mu[..., None], tau[..., None])
    for one in y:
        log_p += logsumexp(prior + stats.norm.logpdf(one, np.minimum(a, 50 + a / 2), 5), axis=-1)
    evidence = logsumexp(log_p) + np.log(2 * 0.5)  # a's step is one
    assert found["log_evidence"].item() == pytest.approx(evidence, abs=0.15)


def test_concave_groups_are_known():
    for model, data in (
        (models.counts(), {"y": RNG.poisson(2, 24)}),
        (models.counts("bernoulli"), {"y": RNG.integers(0, 2, 24)}),
        (models.eight_schools(), {"y": Y8, "sigma": SIGMA8}),
    ):
        levels = Found.of(model, data).levels
        assert isinstance(levels, Levels)
        assert levels.concave


def by_slope(*, index: bool) -> pm.Model:
    """Slopes of groups without intercepts: a row of x = 0 depends on no group."""
    which = np.arange(12) % 4
    with pm.Model(coords={"group": range(4), "row": range(12)}) as model:
        x = pm.Data("x", np.ones(12), dims="row")
        if index:
            which = pm.Data("which", which, dims="row")
        b = pm.Normal("b", pm.Normal("mu"), pm.HalfNormal("tau"), dims="group")
        pm.Normal("y", b[which] * x, 1, observed=np.zeros(12), dims="row")
    return model


@pytest.mark.parametrize("differ", [True, False])
def test_rules_say_which_terms_are_whose(differ):
    """Also where an index was the same wherever it was looked at, and terms depend on no group."""
    which = np.stack([RNG.permutation(12) % 4 for _ in range(3)])
    which = which if differ else np.broadcast_to(which[0], which.shape)
    x = RNG.integers(0, 2, (3, 12)).astype(float)
    data = {"y": RNG.normal(size=(3, 12)), "x": x, "which": which}
    found = Found.of(by_slope(index=True), data)
    reading = read(found.density, found.task)
    assert isinstance(reading, Reading)
    assert reading.rules is not None
    assert reading.rules[-1].by == "which"
    other = {**data, "which": np.stack([RNG.permutation(12) % 4 for _ in range(3)])}
    task = task_of(found.compiled, other)
    told = reading.of(found.density, task)
    assert isinstance(told, Levels)
    np.testing.assert_array_equal(told.split.owner[:, -12:], other["which"])
    # a constant of the model is no index
    plain = Found.of(by_slope(index=False), {"y": data["y"], "x": x})
    rules = read(plain.density, plain.task).rules
    np.testing.assert_array_equal(rules[-1].table, np.arange(12) % 4)


def test_points_are_chosen_in_proportion_to_their_weights():
    w = np.array([[0.1, 0.0, 1.0], [0.2, 3.0, np.nan], [0.7, 1.0, 0.0]])
    with np.errstate(divide="ignore"):
        log_w = jnp.asarray(np.log(np.nan_to_num(w)) + [5.0, -800.0, 3.0])
    u = (np.arange(1000) + 0.5) / 1000
    found = np.asarray(jax.vmap(lambda v: _choice(log_w, jnp.full(3, v)))(jnp.asarray(u)))
    share = np.stack([(found == i).mean(axis=0) for i in range(3)])
    assert np.allclose(share, np.nan_to_num(w) / np.nansum(w, axis=0), atol=1e-3)
