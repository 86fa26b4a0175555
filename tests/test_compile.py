"""Compiled densities and transforms against PyMC's own, and against SciPy where data change."""

import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from pmcl.compile import CompiledModel, compile_model, precision
from pmcl.compile.graphs import host_mode

RNG = np.random.default_rng(7)
X = RNG.normal(size=(8, 2))
GROUP = np.array([0, 0, 1, 1, 2, 2, 2, 1])
TIME = np.linspace(0, 1, 6)
transforms = pm.distributions.transforms


def linear() -> None:
    x = pm.Data("X", X, dims=("obs", "predictor"))
    # 1.7: PyMC takes the logarithm of a constant such as 2 in single precision
    alpha = pm.Normal("alpha", 0.5, 1.7)
    beta = pm.Laplace("beta", 0, 1.7, dims="predictor")
    sigma = pm.HalfNormal("sigma", 1.7)
    mu = pm.Deterministic("mu", alpha + x @ beta, dims="obs")
    pm.Normal("y", mu, sigma, observed=X[:, 0] + 1, dims="obs")


def centred() -> None:
    group = pm.Data("group", GROUP, dims="obs")
    mu = pm.StudentT("mu", 4, mu=0, sigma=3)
    tau = pm.HalfCauchy("tau", 1)
    theta = pm.Normal("theta", mu, tau, dims="group_name")
    sigma = pm.Gamma("sigma", 2, 1)
    pm.StudentT("y", 5, mu=theta[group], sigma=sigma, observed=X[:, 1], dims="obs")


def non_centred() -> None:
    tau = pm.Exponential("tau", 2)
    raw = pm.ZeroSumNormal("raw", 1.5, dims="group_name")
    theta = pm.Deterministic("theta", 0.3 + tau * raw, dims="group_name")
    pm.Poisson("y", pm.math.exp(theta[GROUP]), observed=GROUP + 1)


def intervals() -> None:
    p = pm.Beta("p", 2, 3)
    low = pm.Uniform("low", -2, 1)
    shift = pm.TruncatedNormal("shift", 0.5, 1, lower=-1, upper=2)
    angle = pm.VonMises("angle", 0.3, 2)
    high = pm.Uniform("high", low, low + 3)  # its transform depends on another variable
    pm.Bernoulli("win", p, observed=[1, 0, 1])
    pm.Normal("y", shift + angle + high, 1, observed=X[:, 0])


def simplex() -> None:
    w = pm.Dirichlet("w", np.array([1.0, 2.0, 3.0]), shape=(2, 3))
    pm.Categorical("kind", w, observed=np.array([[0, 1], [2, 1], [2, 0]]))
    pm.Multinomial("count", 6, w, observed=np.array([[1, 2, 3], [0, 2, 4]]))


def ordered() -> None:
    slope = pm.Logistic("slope", 0, 1)
    cut = pm.Normal("cut", 0, 2, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])
    pm.OrderedLogistic("y", slope * X[:, 0], cut, observed=[0, 1, 2, 3, 1, 2, 0, 3])


def autoregressive() -> None:
    rho = pm.Normal("rho", [0.3, 0.1], 0.2, shape=2)
    sigma = pm.InverseGamma("sigma", 3, 2)
    pm.AR("y", rho, sigma=sigma, init_dist=pm.Normal.dist(0, 1, shape=2), observed=X[:, 0])


def mixture() -> None:
    w = pm.Dirichlet("w", np.ones(2))
    mu = pm.Normal("mu", [-1, 1], 1, transform=transforms.ordered, initval=[-1.0, 1.0])
    sigma = pm.LogNormal("sigma", 0, 0.5)
    pm.NormalMixture("y", w, mu, sigma, observed=X[:, 0])
    pm.ZeroInflatedPoisson("n", 0.7, sigma, observed=[0, 2, 0])


def censored() -> None:
    shape = pm.HalfStudentT("shape", 4, 2)
    scale = pm.Weibull("scale", 2, 3)
    pm.Censored("t", pm.Weibull.dist(shape, scale), lower=None, upper=2.0, observed=[0.3, 2.0, 1.1])
    pm.Truncated("u", pm.Normal.dist(shape, 1), lower=0, observed=[0.3, 2.0, 1.1])


def correlated() -> None:
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
    mu = pm.MvNormal("mu", np.zeros(2), np.array([[1, 0.5], [0.5, 2]]))
    pm.MvNormal("y", mu, chol=chol, observed=X, dims=("obs", "predictor"))


def gaussian_process() -> None:
    x = pm.Data("x", TIME, dims="time")
    length = pm.Gamma("length", 3, 4)
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, length)).prior("f", x[:, None], dims="time")
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=2, observed=[1, 0, 3, 2, 5, 4], dims="time")


def random_walk() -> None:
    walk = pm.GaussianRandomWalk("walk", 0.1, 0.5, init_dist=pm.Normal.dist(0, 1), dims="time")
    skew = pm.SkewNormal("skew", alpha=2, sigma=1)
    pm.Gumbel("y", walk, pm.math.exp(skew), observed=TIME, dims="time")


def custom() -> None:
    drift = pm.Wald("drift", 1, 2)

    def noisy(rate: pt.TensorVariable, size: pt.TensorVariable) -> pt.TensorVariable:
        return pt.exp(pm.Normal.dist(rate, 0.5, size=size))

    pm.CustomDist("y", drift, dist=noisy, observed=[0.5, 1.5, 2.5])
    pm.CustomDist(
        "x",
        drift,
        logp=lambda value, rate: pt.log(rate) - rate * value,
        random=lambda rate, rng, size: rng.exponential(1 / rate, size),
        observed=[0.5, 1.5],
    )


def chained() -> None:
    # an observed variable with an observed child, a free child and a deterministic
    sigma = pm.HalfNormal("sigma")
    first = pm.Normal("first", 0, sigma, observed=TIME)
    late = pm.Normal("late", first.mean(), 1)
    pm.Normal("second", first * late, 1, observed=TIME**2)
    pm.Deterministic("gap", first - late)


class Case(NamedTuple):
    """A model, its compilation, points z, the model's own data, and what both sides make of them.

    Each side is compiled once, with one row a point in every result: log prior, log joint, its
    gradient, then the free variables and deterministics by name.
    """

    model: pm.Model
    compiled: CompiledModel
    z: np.ndarray
    data: dict[str, np.ndarray]
    found: tuple
    back: np.ndarray
    expected: tuple


COORDS = {
    "obs": range(8),
    "predictor": ["a", "b"],
    "group_name": ["u", "v", "w"],
    "time": TIME,
}
COVARIATES = {linear: ("X",), gaussian_process: ("x",)}
MODELS: list[Callable[[], None]] = [
    linear,
    centred,
    non_centred,
    intervals,
    simplex,
    ordered,
    autoregressive,
    mixture,
    censored,
    correlated,
    gaussian_process,
    random_walk,
    custom,
    chained,
]
each_model = pytest.mark.parametrize("build", MODELS, ids=[m.__name__ for m in MODELS])


@lru_cache
def case(build: Callable[[], None]) -> Case:
    with pm.Model(coords=COORDS) as model:
        build()
    compiled = compile_model(model, covariates=COVARIATES.get(build, ()))
    z = np.random.default_rng(1).normal(size=(3, compiled.dim))
    data = {rv.name: np.asarray(model.rvs_to_values[rv].data) for rv in model.observed_RVs}
    data |= {i.name: model[i.name].get_value() for i in compiled.covariates}

    def ours(u: jax.Array) -> tuple:
        density, gradient = jax.value_and_grad(compiled.log_joint)(u, data)
        named = compiled.constrain(u, data)
        found = compiled.log_prior(u, data), density, gradient, named
        return found, compiled.unconstrain(named, data)

    with precision.scope():
        found, back = jax.jit(jax.vmap(ours))(z)
    names = [i.name for i in (*compiled.free, *compiled.deterministics)]
    graphs = [model.logp(vars=model.free_RVs), model.logp(), model.dlogp()]
    values = [v for v in model.unobserved_value_vars if v.name in names]
    pymc = model.compile_fn([*graphs, *values], inputs=model.value_vars, mode=host_mode())
    rows = [pymc(point(compiled, u)) for u in z]
    prior, density, gradient, *rest = (np.stack(column) for column in zip(*rows, strict=True))
    expected = prior, density, gradient, {v.name: r for v, r in zip(values, rest, strict=True)}
    return Case(model, compiled, z, data, found, back, expected)


def point(compiled: CompiledModel, z: np.ndarray) -> dict[str, np.ndarray]:
    return {v.name: z[v.start : v.start + v.size].reshape(v.shape) for v in compiled.values}


@each_model
def test_density_and_gradient_agree_with_pymc(build: Callable[[], None]) -> None:
    prior, joint, gradient, _ = case(build).found
    expected_prior, expected_joint, expected_gradient, _ = case(build).expected
    np.testing.assert_allclose(prior, expected_prior, rtol=1e-6)
    np.testing.assert_allclose(joint - prior, expected_joint - expected_prior, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@each_model
def test_constrain_agrees_with_pymc_and_unconstrain_inverts_it(build: Callable[[], None]) -> None:
    one = case(build)
    named, expected = one.found[3], one.expected[3]
    described = [*one.compiled.free, *one.compiled.deterministics]
    assert {i.name for i in described} == set(named) == set(expected)
    assert {k: v.shape[1:] for k, v in named.items()} == {i.name: i.shape for i in described}
    for name, value in expected.items():
        np.testing.assert_allclose(named[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(one.back, one.z, rtol=1e-9, atol=1e-9)


def test_dims_coords_and_slices() -> None:
    compiled = case(linear).compiled
    assert [(i.name, i.dims, i.shape) for i in (*compiled.free, *compiled.deterministics)] == [
        ("alpha", (), ()),
        ("beta", ("predictor",), (2,)),
        ("sigma", (), ()),
        ("mu", ("obs",), (8,)),
    ]
    assert [(i.name, i.dims) for i in compiled.data] == [
        ("y", ("obs",)),
        ("X", ("obs", "predictor")),
    ]
    assert list(compiled.coords["predictor"]) == ["a", "b"]
    assert compiled.data_dims == {"obs"}
    assert [(v.name, v.variable, v.start, v.size) for v in compiled.values] == [
        ("alpha", "alpha", 0, 1),
        ("beta", "beta", 1, 2),
        ("sigma_log__", "sigma", 3, 1),
    ]
    zero_sum = case(non_centred)
    assert zero_sum.compiled.dim == 1 + 2  # three effects that sum to zero have two values
    assert zero_sum.compiled.observed[0].dims == ("y_dim_0",)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_data_and_their_length_are_arguments(n: int) -> None:
    compiled = case(linear).compiled
    rng = np.random.default_rng(n)
    x, y, z = rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=4)
    alpha, beta, sigma = z[0], z[1:3], np.exp(z[3])

    with precision.scope():
        value, gradient = jax.jit(jax.value_and_grad(compiled.log_likelihood, argnums=1))(
            z, {"X": x, "y": y}
        )
        mu = compiled.constrain(z, {"X": x})["mu"]
        prior = compiled.log_prior(z)  # does not depend on the covariates: they may be left out
    np.testing.assert_allclose(mu, alpha + x @ beta, rtol=1e-12)
    np.testing.assert_allclose(value, stats.norm.logpdf(y, mu, sigma).sum(), rtol=1e-12)
    np.testing.assert_allclose(gradient["y"], -(y - mu) / sigma**2, rtol=1e-12)
    expected = stats.norm.logpdf(alpha, 0.5, 1.7) + stats.laplace.logpdf(beta, 0, 1.7).sum()
    expected += stats.halfnorm.logpdf(sigma, scale=1.7) + z[3]  # the Jacobian of the log
    np.testing.assert_allclose(prior, expected, rtol=1e-12)


def test_length_of_a_series_without_dims_is_an_argument() -> None:
    compiled = case(autoregressive).compiled
    z, y = np.array([0.3, -0.2, 0.1]), np.random.default_rng(0).normal(size=30)
    sigma = np.exp(z[2])
    expected = (
        stats.norm.logpdf(y[:2]).sum()
        + stats.norm.logpdf(y[2:], z[0] * y[1:-1] + z[1] * y[:-2], sigma).sum()
    )
    with precision.scope():
        np.testing.assert_allclose(compiled.log_likelihood(z, {"y": y}), expected, rtol=1e-12)


def test_lengths_inside_the_likelihood_follow_the_data() -> None:
    # a loop, a split and a new array, whose lengths JAX has to know when it traces
    with pm.Model(coords={"day": range(4)}) as model:
        x = pm.Data("x", np.zeros(4), dims="day")
        a = pm.Normal("a")
        start = pm.Normal.dist(0, 1.7)
        pm.GaussianRandomWalk("walk", a, 1.3, init_dist=start, observed=np.zeros(4), dims="day")
        pm.Normal("y", a * pt.arange(x.shape[0]) + x, 1.3, observed=np.zeros(4))
    compiled = compile_model(model, covariates=["x"])
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(2, 9)) for name in ("x", "y", "walk")}
    with precision.scope():
        found = jax.jit(jax.vmap(compiled.log_likelihood))(np.array([[0.3], [0.7]]), data)
    for i, a in enumerate([0.3, 0.7]):
        walk, mean = data["walk"][i], a * np.arange(9) + data["x"][i]
        expected = stats.norm.logpdf(walk[0], 0, 1.7)
        expected += stats.norm.logpdf(np.diff(walk), a, 1.3).sum()
        expected += stats.norm.logpdf(data["y"][i], mean, 1.3).sum()
        np.testing.assert_allclose(found[i], expected, rtol=1e-9)


def test_prior_depends_on_a_covariate() -> None:
    compiled = case(gaussian_process).compiled
    z = np.random.default_rng(0).normal(size=7)
    with pm.Model(coords=COORDS) as other:
        gaussian_process()
    times = {"x": TIME**2 * 3}
    other.set_data("x", times["x"])
    graphs = [other.logp(vars=other.free_RVs), *other.replace_rvs_by_values([other["f"]])]
    pymc = other.compile_fn(graphs, inputs=other.value_vars, mode=host_mode())
    expected, latent = pymc(point(compiled, z))
    with precision.scope():
        found, named = compiled.log_prior(z, times), compiled.constrain(z, times)
        back = compiled.unconstrain(named, times)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(named["f"], latent, rtol=1e-9)
    np.testing.assert_allclose(back, z, rtol=1e-9)


def test_observations_and_constants_given_as_data() -> None:
    with pm.Model(coords={"obs": range(3)}) as model:
        scale = pm.Data("scale", 2.0)
        y_data = pm.Data("y_data", np.zeros(3), dims="obs")
        mu = pm.Normal("mu")
        pm.Normal("y", mu, scale, observed=y_data, dims="obs")
    compiled = compile_model(model)
    model.set_data("scale", 5.0)
    model.set_data("y_data", [9.0, 9.0, 9.0])
    y = np.array([0.5, -1.0, 2.0, 3.0])
    with precision.scope():
        found = compiled.log_likelihood(np.array([0.3]), {"y": y})
    np.testing.assert_allclose(found, stats.norm.logpdf(y, 0.3, 2.0).sum(), rtol=1e-12)
    assert [i.name for i in compiled.data] == ["y"]
    with pytest.raises(ValueError, match="'y_data' holds the observations of 'y'"):
        compile_model(model, covariates=["y_data"])
    with pytest.raises(ValueError, match=r"'X' is not a `pm.Data`.*\['scale', 'y_data'\]"):
        compile_model(model, covariates=["X"])


def test_mask_leaves_the_padding_out() -> None:
    compiled = case(linear).compiled
    rng = np.random.default_rng(3)
    x, y, z = rng.normal(size=(6, 2)), rng.normal(size=6), rng.normal(size=4)
    mask = np.arange(6) < 4
    with precision.scope():
        masked = jax.value_and_grad(
            lambda u: compiled.log_likelihood(u, {"X": x, "y": y}, mask=mask, dim="obs")
        )(z)
        alone = jax.value_and_grad(compiled.log_likelihood)(z, {"X": x[:4], "y": y[:4]})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), masked, alone)

    series = case(autoregressive).compiled
    with precision.scope(), pytest.raises(ValueError, match="'y'.*each of the 6 elements"):
        series.log_likelihood(z[:3], {"y": y}, mask=mask, dim="y_dim_0")


def test_terms_add_up() -> None:
    one = case(linear)
    with precision.scope():
        prior = one.compiled.log_prior_terms(one.z[0], one.data)
        likelihood = one.compiled.log_likelihood_terms(one.z[0], one.data)
    assert list(prior) == ["alpha", "beta", "sigma"]
    assert likelihood["y"].shape == (8,)
    total = sum(prior.values()) + likelihood["y"].sum()
    np.testing.assert_allclose(total, one.expected[1][0], rtol=1e-9)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"X": np.zeros((5, 2))}, r"expected values for \['y'\]"),
        ({"y": np.zeros(5)}, r"expected values for \['X'\]"),
        ({"X": np.zeros((5, 2)), "y": np.zeros((5, 1))}, r"'y'.*\('obs',\), got shape \(5, 1\)"),
        ({"X": np.zeros((5, 2)), "y": np.zeros(4)}, "'X'.*length 4 along dim 'obs', got 5"),
        ({"X": np.zeros((5, 3)), "y": np.zeros(5)}, "'X'.*length 2 along dim 'predictor', got 3"),
    ],
)
def test_wrong_data_are_named(data: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case(linear).compiled.log_likelihood(np.zeros(4), data)


def test_a_dim_of_constant_data_has_a_fixed_length() -> None:
    compiled = case(centred).compiled
    with pytest.raises(ValueError, match="'y'.*length 8 along dim 'obs', got 5.*covariates"):
        compiled.log_likelihood(np.zeros(6), {"y": np.zeros(5)})


def test_wrong_parameters_are_named() -> None:
    compiled = case(linear).compiled
    with pytest.raises(ValueError, match=r"z: expected shape \(4,\), got \(3,\)"):
        compiled.log_prior(np.zeros(3))
    with pytest.raises(ValueError, match=r"unconstrain.*\['sigma'\]"):
        compiled.unconstrain({"alpha": 0.0, "beta": np.zeros(2)})


def test_named_and_nested_models() -> None:
    with pm.Model(name="outer") as model:
        pm.Normal("mu", 1, 2)
        with pm.Model(name="inner"):
            sigma = pm.HalfNormal("sigma")
        x = pm.Data("x", np.zeros(3))
        pm.Normal("y", model["mu"] + x, sigma, observed=np.zeros(3))
    compiled = compile_model(model, covariates=["outer::x"])
    data = {"outer::y": np.array([0.1, 0.2]), "outer::x": np.array([1.0, 2.0])}
    with precision.scope():
        named = compiled.constrain(np.array([0.5, 0.7]))
        found = compiled.log_likelihood(np.array([0.5, 0.7]), data)
    assert list(named) == ["outer::mu", "outer::inner::sigma"]
    expected = stats.norm.logpdf(data["outer::y"], 0.5 + data["outer::x"], np.exp(0.7)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_densities_are_double_precision_in_the_scope_whatever_the_flag() -> None:
    one = case(linear)
    with precision.network_scope():
        with precision.scope():
            inside = jax.jit(one.compiled.log_joint)(one.z[0], one.data)
        outside = jax.jit(one.compiled.log_joint)(one.z[0], one.data)
    assert inside.dtype == jnp.float64 and outside.dtype == jnp.float32
    np.testing.assert_allclose(inside, one.expected[1][0], rtol=1e-9)
    np.testing.assert_allclose(outside, inside, rtol=1e-5)


def test_import_neither_loads_the_jax_dispatch_nor_switches_precision() -> None:
    code = (
        "import sys, pmcl.compile, jax\n"
        "assert 'pytensor.link.jax.dispatch' not in sys.modules\n"
        "assert 'pymc.sampling.jax' not in sys.modules\n"
        "assert not jax.config.jax_enable_x64\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
