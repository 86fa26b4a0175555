"""Derivatives of special functions against differences of SciPy's values."""

from collections.abc import Callable

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import special as scipy_special
from scipy import stats

from pmcl.compile import compile_model
from pmcl.compile.conversion.graphs import host_mode
from pmcl.compile.conversion.special import betainc, erfcx, ive
from pmcl.runtime import precision


def derivative(function: Callable[[float], float], at: float) -> float:
    """Central differences, extrapolated to no step (Richardson)."""
    steps = 1e-3 * at / 2.0 ** np.arange(4)
    found = [(function(at + h) - function(at - h)) / (2 * h) for h in steps]
    for j in range(1, 4):
        found = [(4**j * b - a) / (4**j - 1) for a, b in zip(found, found[1:], strict=False)]
    return found[0]


@pytest.mark.parametrize("seed", range(3))
def test_incomplete_beta_is_differentiable_in_all_its_arguments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = np.exp(rng.uniform(-2.5, 5, (2, 40)))
    x = rng.beta(a, b).clip(1e-12, 1 - 1e-12)
    with precision.scope():
        value = betainc(a, b, x)
        found = jax.vmap(jax.grad(betainc, argnums=(0, 1, 2)))(a, b, x)
    np.testing.assert_allclose(value, scipy_special.betainc(a, b, x), rtol=1e-10)
    for i in range(len(a)):
        by_a = derivative(lambda s, i=i: scipy_special.betainc(s, b[i], x[i]), a[i])
        by_b = derivative(lambda s, i=i: scipy_special.betainc(a[i], s, x[i]), b[i])
        np.testing.assert_allclose(found[0][i], by_a, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(found[1][i], by_b, rtol=1e-7, atol=1e-10)
    density = np.exp((a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - scipy_special.betaln(a, b))
    np.testing.assert_allclose(found[2], density, rtol=1e-9)


def test_incomplete_beta_at_the_ends_of_its_range() -> None:
    with precision.scope():
        for x in (0.0, 1.0):
            assert float(betainc(2.0, 3.0, x)) == x
            assert [float(g) for g in jax.grad(betainc, (0, 1, 2))(2.0, 3.0, x)] == [0.0] * 3


def test_scaled_complementary_error_function_of_arrays_has_second_derivatives() -> None:
    x = np.array([-2.0, -0.1, 0.0, 0.5, 1.0, 2.2, 3.0, 8.0, 40.0])
    with precision.scope():
        first = jax.grad(lambda v: erfcx(v).sum())(x)
        second = jax.jacfwd(jax.grad(lambda v: erfcx(v).sum()))(x).diagonal()
        third = jax.jacfwd(lambda v: jax.jacfwd(jax.grad(lambda u: erfcx(u).sum()))(v).sum(0))(x)
    value = scipy_special.erfcx(x)
    exact = 2 * x * value - 2 / np.sqrt(np.pi)
    np.testing.assert_allclose(first, exact, rtol=1e-8, atol=1e-12)
    # erfcx'' = 2 erfcx + 2 x erfcx'; at 40 six digits of that cancel
    np.testing.assert_allclose(second, 2 * value + 2 * x * np.asarray(first), rtol=1e-4)
    assert np.isfinite(third).all()


def test_bessel_functions_and_their_derivatives_are_scipys() -> None:
    v, x = np.meshgrid(np.arange(26), np.r_[np.geomspace(1e-3, 1e5, 60), 1599.9, 1600.1])
    with precision.scope():
        value = ive(v, x)
        first = jax.grad(lambda u: ive(v, u).sum())(x)
        second = jax.jvp(jax.grad(lambda u: ive(v, u).sum()), (x,), (np.ones_like(x),))[1]
        ends = [float(ive(order, 0.0)) for order in (0, 1, 2)]
    exact = lambda order: scipy_special.ive(np.abs(order), x)  # noqa: E731
    np.testing.assert_allclose(value, exact(v), rtol=1e-10)
    slope = (exact(v - 1) + exact(v + 1)) / 2 - exact(v)
    scale = exact(v) * (v / x + 1)  # of the terms whose difference a derivative is
    np.testing.assert_array_less(np.abs(np.asarray(first) - slope), 1e-10 * scale)
    curvature = (exact(v - 2) + 6 * exact(v) + exact(v + 2)) / 4 - exact(v - 1) - exact(v + 1)
    np.testing.assert_array_less(np.abs(np.asarray(second) - curvature), 1e-9 * scale * (v / x + 1))
    assert ends == [1.0, 0.0, 0.0]


def test_a_periodic_process_in_a_basis_has_pymcs_density() -> None:
    x = np.linspace(-1, 1, 12)[:, None]
    with pm.Model() as model:
        length, scale = pm.InverseGamma("length", 5, 3), pm.HalfNormal("scale", 1)
        kernel = pm.gp.cov.Periodic(1, period=1.0, ls=length)
        f = pm.gp.HSGPPeriodic(m=6, scale=scale, cov_func=kernel).prior("f", X=x)
        pm.Normal("y", f, 0.3, observed=np.sin(3 * x[:, 0]))
    compiled, logp = compile_model(model), model.compile_logp(mode=host_mode())
    for z in np.random.default_rng(0).normal(size=(3, compiled.dim)):
        at = {v.name: z[v.start : v.start + v.size].reshape(v.shape) for v in compiled.values}
        with precision.scope():
            found = compiled.log_joint(z, {"y": np.sin(3 * x[:, 0])})
            slope = jax.grad(compiled.log_joint)(z, {"y": np.sin(3 * x[:, 0])})
        np.testing.assert_allclose(found, logp(at), rtol=1e-9)
        assert np.isfinite(slope).all()


def test_a_censored_normal_is_refined_by_its_hessian() -> None:
    """PyMC's normal tails are this function of whole arrays: their Hessian is Newton's."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Censored("y", pm.Normal.dist(mu, 1.0), lower=0.0, upper=None, observed=np.zeros(4))
    compiled = compile_model(model)
    y = np.array([0.0, 0.0, 0.7, 1.9])
    with precision.scope():
        found = jax.hessian(lambda z: compiled.log_likelihood(z, {"y": y}))(np.array([0.4]))

    def log_density(mu: float) -> float:
        return float(2 * stats.norm.logcdf(-mu) + stats.norm(mu, 1).logpdf(y[2:]).sum())

    h = 1e-4
    exact = (log_density(0.4 + h) - 2 * log_density(0.4) + log_density(0.4 - h)) / h**2
    np.testing.assert_allclose(found[0, 0], exact, rtol=1e-5)


def test_it_is_replaced_inside_of_loops_too() -> None:
    def step(before: pt.TensorVariable, mu: pt.TensorVariable) -> pt.TensorVariable:
        return before / 2 + pt.erfcx(mu * pt.ones(2))

    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        states = pytensor.scan(
            step,
            outputs_info=[pt.zeros(2)],
            non_sequences=[mu],
            n_steps=3,
            strict=True,
            return_updates=False,
        )
        pm.Normal("y", states[-1], 1.0, observed=np.zeros(2))
    compiled = compile_model(model)
    with precision.scope():
        found = jax.grad(jax.grad(lambda u: compiled.log_likelihood(u[None], {"y": np.ones(2)})))(
            0.4
        )

    def log_density(mu: float) -> float:
        return float(2 * stats.norm.logpdf(1 - 1.75 * scipy_special.erfcx(mu)))

    h = 1e-4
    exact = (log_density(0.4 + h) - 2 * log_density(0.4) + log_density(0.4 - h)) / h**2
    np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize("wide", [True, False])
def test_logits_far_from_zero_have_gradients(wide: bool) -> None:
    """exp(|x|) overflows from 88 on in single precision, and from 709 in double."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1e4, shape=6)
        pm.Bernoulli("y", logit_p=x, observed=np.zeros(6, int))
    compiled = compile_model(model)
    far = 1000.0 if wide else 100.0
    z = np.array([-far, far, -far, far, 0.5, -0.5])
    y = np.array([0, 0, 1, 1, 0, 1])
    with jax.enable_x64(wide):
        data, at = {"y": np.asarray(y)}, jax.numpy.asarray(z)
        gradient = jax.grad(lambda z: compiled.log_likelihood_terms(z, data)["y"].sum())(at)
        value = compiled.log_likelihood_terms(at, data)["y"]
    np.testing.assert_allclose(gradient, y - scipy_special.expit(z), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(value, -np.logaddexp(0, np.where(y, -z, z)), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(
    ("likelihood", "value", "at", "slope"),
    [
        (lambda e: pm.Bernoulli("y", p=pm.math.invprobit(e), observed=[0]), 1, 9.0, 0.0),
        (lambda e: pm.Bernoulli("y", p=pm.math.invprobit(e), observed=[0]), 0, -40.0, 0.0),
        (lambda e: pm.ZeroInflatedPoisson("y", pm.math.sigmoid(e), 2.0, observed=[0]), 1, 40.0, 0),
        (lambda e: pm.Censored("y", pm.Normal.dist(e), None, 0.5, observed=[0.0]), 0.2, -9.0, 9.2),
        (lambda e: pm.Censored("y", pm.Normal.dist(e), None, 0.5, observed=[0.0]), 0.2, 60, -59.8),
        (lambda e: pm.Truncated("y", pm.Normal.dist(e), 0.0, observed=[1.0]), 0.3, -9.0, None),
        (lambda e: pm.Truncated("y", pm.Normal.dist(e), 0.0, observed=[1.0]), 0.3, 60.0, -59.7),
    ],
)
def test_branches_that_are_not_taken_have_no_part_in_a_slope(likelihood, value, at, slope) -> None:
    """As in PyMC: what is not chosen may be the logarithm of 0, whose slope is infinite."""
    with pm.Model() as model:
        likelihood(pm.Normal("e", 0, 50))
    if slope is None:  # the ratio of density and mass is that of the tail
        slope = value - at - np.exp(stats.norm.logpdf(at) - stats.norm.logcdf(at))
    compiled = compile_model(model)
    with precision.scope():
        y = np.full(1, value, compiled.observed[0].dtype)
        found = jax.grad(lambda z: compiled.log_likelihood(z, {"y": y}))(np.array([float(at)]))
    assert float(found[0]) == pytest.approx(slope, abs=1e-8)
