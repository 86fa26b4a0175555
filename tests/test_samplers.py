"""Samplers of ours against SciPy's distributions and densities."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pmcl.compile import compile_model, make_simulator, read_covariates
from pmcl.compile.conversion import samplers
from pmcl.runtime import precision

N = 20_000
TINY = 1e-4
KEY = jax.random.key(3)
POINTS = np.array([0.0, 0.5, 0.5001, 2.0, 3.0])
HEIGHTS = np.array([0.2, 1.0, 0.0, 0.0, 0.7])


def draws(sample: samplers.Draw, *parameters: object, n: int = N) -> np.ndarray:
    with precision.scope():
        given = [jnp.asarray(p) for p in parameters]
        return np.asarray(sample(KEY, (n,), *given))


CONTINUOUS: dict[str, tuple[samplers.Draw, tuple, Callable]] = {
    "weibull": (samplers.weibull, (1.7,), stats.weibull_min(1.7).cdf),
    "triangular": (samplers.triangular, (-1.0, 0.3, 2.0), stats.triang(1.3 / 3, -1, 3).cdf),
    "moyal": (samplers.moyal, (0.3, 1.4), stats.moyal(0.3, 1.4).cdf),
    "skew normal": (samplers.skew_normal, (0.3, 1.4, -3.0), stats.skewnorm(-3, 0.3, 1.4).cdf),
    "skew t": (
        samplers.skew_student_t,
        (3.0, 0.8, 0.3, 1.4),
        stats.jf_skew_t(3, 0.8, 0.3, 1.4).cdf,
    ),
    "truncated normal": (
        samplers.truncated_normal,
        (0.3, 2.0, -1.0, 1.5),
        stats.truncnorm(-0.65, 0.6, 0.3, 2).cdf,
    ),
    "one-sided": (
        samplers.truncated_normal,
        (0.3, 2.0, -1.0, np.inf),
        stats.truncnorm(-0.65, np.inf, 0.3, 2).cdf,
    ),
    "far right": (samplers.truncated_normal, (0.0, 1.0, 9.0, 30.0), stats.truncnorm(9, 30).cdf),
    "far left": (
        samplers.truncated_normal,
        (0.0, 1.0, -np.inf, -9.0),
        stats.truncnorm(-np.inf, -9).cdf,
    ),
    "wald": (samplers.wald, (0.7, 2.5, 0.2), stats.invgauss(0.7 / 2.5, 0.2, 2.5).cdf),
    # a large mean against the shape: the smaller root is the difference of two large numbers
    "wide wald": (samplers.wald, (500.0, 0.5, 0.0), stats.invgauss(1000, 0, 0.5).cdf),
    "rice": (samplers.rice, (1.2, 0.7), stats.rice(1.2, 0, 0.7).cdf),
    "von Mises": (samplers.von_mises, (0.4, 2.0), stats.vonmises(2, 0.4).cdf),
    "flat von Mises": (samplers.von_mises, (0.0, 1e-6), stats.uniform(-np.pi, 2 * np.pi).cdf),
    "narrow von Mises": (samplers.von_mises, (0.0, 900.0), stats.vonmises(900).cdf),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_follow_scipy(name: str) -> None:
    sample, parameters, cdf = CONTINUOUS[name]
    found = draws(sample, *parameters)
    assert found.shape == (N,)
    assert stats.kstest(found, cdf).pvalue > TINY


DISCRETE: dict[str, tuple[samplers.Draw, tuple, stats.rv_discrete]] = {
    "uniform": (samplers.discrete_uniform, (-2, 3), stats.randint(-2, 4)),
    "hypergeometric": (samplers.hypergeometric, (7, 13, 5), stats.hypergeom(20, 7, 5)),
    "all of them": (samplers.hypergeometric, (3, 2, 5), stats.hypergeom(5, 3, 5)),
    "binomial": (samplers.binomial, (6, 0.3), stats.binom(6, 0.3)),
    "categorical": (
        samplers.categorical,
        (np.array([0.1, 0.6, 0.0, 0.3]),),
        stats.rv_discrete(values=(range(4), [0.1, 0.6, 0.0, 0.3])),
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_draws_follow_scipy(name: str) -> None:
    sample, parameters, expected = DISCRETE[name]
    values, counts = np.unique(draws(sample, *parameters), return_counts=True)
    p = expected.pmf(values)
    assert np.isclose(p.sum(), 1)  # what never came has no mass to speak of
    if len(values) == 1:
        return
    assert stats.chisquare(counts, N * p / p.sum()).pvalue > TINY


def test_multinomial_draws_follow_scipy() -> None:
    p = np.array([0.5, 0.0, 0.3, 0.2])
    found, number = np.unique(draws(samplers.multinomial, 3, p), axis=0, return_counts=True)
    exact = stats.multinomial(3, p).pmf(found)
    assert exact.sum() == pytest.approx(1)  # all that is possible, and nothing else
    assert stats.chisquare(number, N * exact).pvalue > TINY


def test_tiny_probabilities_are_no_nan() -> None:
    """Rounding made what is left less than its share: counts were NaN, or the least integer."""
    with pm.Model() as model:
        pm.Beta("unused", 1, 1)
        pm.DirichletMultinomial("y", n=9, a=np.full(4, 0.02), observed=np.zeros((500, 4), int))
    simulator = make_simulator(compile_model(model), read_covariates(None, ()))
    y = simulator.simulate(20, random_seed=1)[1]["y"]
    assert simulator.backend == "jax"
    np.testing.assert_array_equal(y.sum(axis=-1), 9)
    assert (y >= 0).all()
    np.testing.assert_allclose(y.mean(axis=(0, 1)), 9 / 4, atol=0.2)


def test_interpolated_draws_follow_the_integral_of_the_density() -> None:
    area = np.concatenate([[0], np.cumsum(np.diff(POINTS) * (HEIGHTS[1:] + HEIGHTS[:-1]) / 2)])
    fine = np.linspace(0, 3, 30_001)
    density = np.interp(fine, POINTS, HEIGHTS) / area[-1]
    integral = np.concatenate([[0], np.cumsum(np.diff(fine) * (density[1:] + density[:-1]) / 2)])
    found = draws(samplers.interpolated, POINTS, HEIGHTS / area[-1], area / area[-1])
    assert stats.kstest(found, lambda x: np.interp(x, fine, integral)).pvalue > TINY


def test_stick_breaking_weights_are_products_of_betas() -> None:
    found = draws(samplers.stick_breaking_weights, 1.7, 3)
    np.testing.assert_allclose(found.sum(axis=-1), 1)
    left = 1 - np.cumsum(found, axis=-1)
    pieces = found[:, :3] / np.concatenate([np.ones((N, 1)), left[:, :2]], axis=1)
    for piece in pieces.T:
        assert stats.kstest(piece, stats.beta(1, 1.7).cdf).pvalue > TINY
    assert abs(np.corrcoef(pieces.T)[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(N)


@pytest.mark.parametrize("order", [2, 4])
def test_lkj_factors_are_of_correlations_with_beta_margins(order: int) -> None:
    eta = 1.6
    L = draws(lambda key, shape, e: samplers.lkj_cholesky(key, shape, order, e), eta)
    R = L @ np.swapaxes(L, 1, 2)
    np.testing.assert_allclose(np.diagonal(R, axis1=1, axis2=2), 1)
    shape = eta - 1 + order / 2
    for i, j in zip(*np.tril_indices(order, -1), strict=True):
        assert stats.kstest(R[:, i, j], stats.beta(shape, shape, -1, 2).cdf).pvalue > TINY
    if order == 2:
        return
    # det R is a product of independent betas: 1 - y of every row
    log_det = np.log(np.linalg.det(R))
    rng = np.random.default_rng(0)
    k = np.arange(1, order)
    y = rng.beta(k / 2, eta - 1 + order / 2 - (k - 1) / 2, (N, order - 1))
    assert stats.ks_2samp(log_det, np.log(1 - y).sum(axis=1)).pvalue > TINY


W = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
MU, ROWS = np.arange(4.0), np.array([[1.3, 0], [0.4, 0.5]])
MEANS, COLUMNS = np.ones((2, 2)), np.array([[0.7, 0], [-0.3, 1.1]])
PLACES = {
    "car": (lambda: pm.CAR("x", MU, W, 0.6, 1.3), samplers.car, (MU, W, 0.6, 1.3, True)),
    "icar": (lambda: pm.ICAR("x", W, zero_sum_stdev=0.1), samplers.icar, (W, 1.0, 0.1)),
    "matrix normal": (
        lambda: pm.MatrixNormal("x", MEANS, rowchol=ROWS, colchol=COLUMNS),
        samplers.matrix_normal,
        (MEANS, ROWS, COLUMNS),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_gaussian_draws_have_the_mean_and_precision_of_the_density(name: str) -> None:
    build, sample, parameters = PLACES[name]
    with pm.Model() as model:
        pm.Normal("y", build().sum(), 1, observed=0.0)
    compiled = compile_model(model)
    with precision.scope():
        hessian = np.asarray(jax.hessian(compiled.log_prior)(jnp.zeros(compiled.dim)))
        gradient = np.asarray(jax.grad(compiled.log_prior)(jnp.zeros(compiled.dim)))
    mean = np.linalg.solve(-hessian, gradient)
    found = draws(sample, *parameters).reshape(N, -1)
    white = (found - mean) @ np.linalg.cholesky(-hessian)
    for column in white.T:
        assert stats.kstest(column, stats.norm.cdf).pvalue > TINY
    assert abs(np.corrcoef(white.T)[np.triu_indices(4, 1)]).max() < 5 / np.sqrt(N)
