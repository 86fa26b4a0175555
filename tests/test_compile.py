"""Compiled densities and transforms against PyMC's own, and against SciPy where data change."""

import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc_models import (
    COORDS,
    MODELS,
    TIME,
    autoregressive,
    case,
    centred,
    correlated,
    gaussian_process,
    linear,
    non_centred,
    point,
)
from scipy import stats

import pmcl
from pmcl.compile import Mask, compile_model
from pmcl.compile.conversion.graphs import host_mode
from pmcl.compile.copies import copies_in
from pmcl.data.reading import task_of
from pmcl.runtime import precision

each_model = pytest.mark.parametrize("build", MODELS, ids=[m.__name__ for m in MODELS])


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
    with pytest.warns(UserWarning, match="'scale' has been set to other values since"):
        task_of(compiled, {"y": y, "scale": 2.0})
    with pytest.warns(UserWarning), pytest.raises(pmcl.DataError, match="'scale'.*a constant"):
        task_of(compiled, {"y": y, "scale": 5.0})
    with pytest.raises(ValueError, match="'y_data' holds the observations of 'y'"):
        compile_model(model, covariates=["y_data"])
    with pytest.raises(ValueError, match=r"'X' is not a `pm.Data`.*\['scale', 'y_data'\]"):
        compile_model(model, covariates=["X"])


def test_mask_leaves_the_padding_out() -> None:
    compiled = case(linear).compiled
    rng = np.random.default_rng(3)
    x, y, z = rng.normal(size=(6, 2)), rng.normal(size=6), rng.normal(size=4)
    mask = Mask(np.arange(6) < 4)
    with precision.scope():
        masked = jax.value_and_grad(
            lambda u: compiled.log_likelihood(u, {"X": x, "y": y}, mask=mask, dim="obs")
        )(z)
        alone = jax.value_and_grad(compiled.log_likelihood)(z, {"X": x[:4], "y": y[:4]})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), masked, alone)

    vectors = case(correlated).compiled
    wide = Mask(np.arange(2) < 1)
    with precision.scope(), pytest.raises(ValueError, match="'y'.*each of the 2 elements"):
        vectors.log_likelihood(np.zeros(vectors.dim), {"y": x}, mask=wide, dim="predictor")


def test_mask_leaves_missing_values_out() -> None:
    compiled = case(linear).compiled
    rng = np.random.default_rng(3)
    x, y, z = rng.normal(size=(6, 2)), rng.normal(size=6), rng.normal(size=4)
    there = np.array([True, False, True, True, False, True])
    mask = Mask(np.arange(6) < 5, {"y": there})
    kept = there & (np.arange(6) < 5)
    with precision.scope():
        masked = jax.value_and_grad(
            lambda u: compiled.log_likelihood(u, {"X": x, "y": y}, mask=mask, dim="obs")
        )(z)
        alone = jax.value_and_grad(compiled.log_likelihood)(z, {"X": x[kept], "y": y[kept]})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), masked, alone)


def ar1() -> None:
    rho = pm.Normal("rho", 0.3, 0.2, shape=2)
    init = pm.Normal.dist(0, 1.5)
    pm.AR("y", rho, sigma=0.7, constant=True, init_dist=init, observed=TIME, dims="time")


def walk() -> None:
    sigma = pm.HalfNormal("sigma")
    init = pm.Normal.dist(0.3, 1.5)
    pm.GaussianRandomWalk("y", 0.1, sigma, init_dist=init, observed=TIME, dims="time")


def walks() -> None:
    mu = pm.Normal("mu", shape=2)
    init = pm.MvNormal.dist(np.zeros(2), np.eye(2))
    pm.MvGaussianRandomWalk(
        "y", mu=mu, cov=np.array([[1, 0.3], [0.3, 0.5]]), init_dist=init,
        observed=np.stack([TIME, TIME**2], axis=1), dims=("time", "predictor"),
    )  # fmt: skip


def garch() -> None:
    omega = pm.HalfNormal("omega", shape=2)
    pm.GARCH11(
        "y", omega, 0.3, 0.2, 1.1, observed=np.stack([TIME, TIME**2]), dims=("predictor", "time")
    )


def diffusion() -> None:
    rate = pm.HalfNormal("rate")
    pm.EulerMaruyama(
        "y", 0.1, lambda x, k: (-k * x, 0.5), (rate,), init_dist=pm.Normal.dist(0, 1),
        observed=TIME, dims="time",
    )  # fmt: skip


@pytest.mark.parametrize("build", [autoregressive, ar1, walk, walks, garch, diffusion])
def test_padding_at_the_end_of_a_series_is_left_out(build: Callable[[], None]) -> None:
    with pm.Model(coords={"time": TIME, "predictor": [0, 1]}) as model:
        build()
    compiled = compile_model(model)
    (info,) = compiled.observed
    dim = "time" if "time" in info.dims else "y_dim_0"
    axis, n = info.dims.index(dim), info.shape[info.dims.index(dim)]
    y = np.random.default_rng(1).normal(size=info.shape)
    z = np.random.default_rng(2).normal(size=compiled.dim)
    mask = Mask(np.arange(n) < n - 2)
    with precision.scope():
        whole = compiled.log_likelihood(z, {"y": y}, mask=Mask(np.ones(n, bool)), dim=dim)
        np.testing.assert_allclose(whole, compiled.log_likelihood(z, {"y": y}), rtol=1e-12)
        masked = jax.value_and_grad(
            lambda u: compiled.log_likelihood(u, {"y": y}, mask=mask, dim=dim)
        )(z)
        short = {"y": y.take(np.arange(n - 2), axis=axis)}
        alone = jax.value_and_grad(compiled.log_likelihood)(z, short)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), masked, alone)


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
    with pytest.raises(ValueError, match=r"unconstrain.*'beta' of shape \(2,\), got \(3,\)"):
        compiled.unconstrain({"alpha": 0.0, "beta": np.zeros(3), "sigma": 1.0})


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


def test_a_category_that_is_far_less_likely_has_a_log_density_and_a_gradient():
    """The logarithm of a softmax's entry underflows below -745, or -103 in single precision."""
    with pm.Model(coords={"row": range(3)}) as model:
        z = pm.Normal("z", shape=4)
        pm.Categorical("y", logit_p=z * np.ones((3, 1)), observed=np.zeros(3, int), dims="row")
    compiled = compile_model(model)
    z, data = np.array([-2000.0, 0.0, 300.0, 1.0]), {"y": np.array([0, 2, 3])}
    for double in (True, False):
        with jax.enable_x64(double):
            terms = compiled.log_likelihood_terms(jnp.asarray(z), data)["y"]
            slope = jax.grad(compiled.log_likelihood)(jnp.asarray(z), data)
        np.testing.assert_allclose(terms, [-2300, 0, -299], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(slope, [1, 0, -2, 1], atol=1e-6)


def _either(*more: float) -> pt.TensorVariable:
    return pt.stack([pm.Normal("a"), *more])


IMPOSSIBLE = {  # a density at a = impossible, which was finite, and at a = possible
    "bernoulli": (lambda y: pm.Bernoulli("y", pm.Normal("a"), observed=y), [1, 1, 1], 1.2, 0.6),
    "beta": (lambda y: pm.Beta("y", pm.Normal("a"), 2.0, observed=y), [0.3, 0.4, 0.5], -0.5, 0.5),
    "gamma": (lambda y: pm.Gamma("y", pm.Normal("a"), 2.0, observed=y), [1.0, 2, 3], -0.5, 0.5),
    "hurdle": (
        lambda y: pm.HurdlePoisson("y", pm.Normal("a"), 2.0, observed=y), [1, 2, 3], 1.5, 0.5,
    ),
    "categorical": (
        lambda y: pm.Categorical("y", _either(0.4, 0.3), observed=y), [0, 1, 2], 0.5, 0.3,
    ),
    "multinomial": (
        lambda y: pm.Multinomial("y", 6, _either(0.4, 0.3), observed=y), [1, 2, 3], 0.5, 0.3,
    ),
    "mixture": (
        lambda y: pm.NormalMixture("y", _either(0.4), np.arange(2.0), observed=y),
        [0.0, 1, 2], 0.9, 0.6,
    ),
    "cutpoints": (
        lambda y: pm.OrderedLogistic("y", 0.0, _either(0.5), observed=y), [0, 2, 2], 1.0, -1.0,
    ),
    "wald": (lambda y: pm.Wald("y", pm.Normal("a"), 1.0, observed=y), [1.0, 2, 3], -1.2, 0.6),
}  # fmt: skip


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_parameters_that_a_distribution_cannot_have_are_impossible(kind: str) -> None:
    """PyTensor's conversion to JAX passes over PyMC's checks of them."""
    build, y, impossible, possible = IMPOSSIBLE[kind]
    with pm.Model() as model:
        build(np.array(y))
    compiled, expected = compile_model(model), model.compile_fn(model.logp(), mode=host_mode())
    for a in (impossible, possible):
        found = float(compiled.log_joint(jnp.array([a]), {"y": np.array(y)}))
        assert found == pytest.approx(float(expected({"a": a})), rel=1e-6)
    assert np.isfinite(found)


def test_a_row_with_an_impossible_parameter_leaves_the_others_as_they_are() -> None:
    with pm.Model(coords={"row": range(3)}) as model:
        x = pm.Data("x", np.zeros(3), dims="row")
        p = pm.Normal("a") + pm.Normal("b") * x
        pm.Bernoulli("y", p, observed=np.ones(3, int), dims="row")
    compiled = compile_model(model, covariates=["x"])
    data = {"x": np.array([0.0, 1.0, 0.5]), "y": np.ones(3, int)}
    found = compiled.log_likelihood_terms(jnp.array([0.5, 0.7]), data)["y"]
    np.testing.assert_allclose(found, [np.log(0.5), -np.inf, np.log(0.85)])


def test_without_bounds_there_are_no_checks_of_parameters() -> None:
    w, y = np.array([0.3, 0.9]), np.array([0.2, 1.5])
    with pm.Model(check_bounds=False) as model:
        weights = pm.HalfNormal("w", 1, shape=2)
        pm.NormalMixture("y", weights, np.array([0.0, 1.0]), observed=y)
    found = compile_model(model).log_likelihood(jnp.log(w), {"y": y})
    expected = np.log(w @ stats.norm.pdf(y, np.array([[0.0], [1.0]]))).sum()
    assert float(found) == pytest.approx(expected)


def test_zero_sums_are_possible_in_single_precision() -> None:
    with pm.Model() as model:
        z = pm.ZeroSumNormal("z", shape=20)
        pm.Normal("y", z.sum(), 1, observed=0.0)
    compiled = compile_model(model)
    with precision.scope_of("single"):
        drawn = jax.random.normal(jax.random.key(0), (50, 19), jnp.float32)
        found = jax.vmap(lambda u: compiled.log_prior(u, {}))(drawn)
    assert np.isfinite(found).all()


def test_an_angle_has_one_turn() -> None:
    """The density over all unconstrained values is that of an angle, and its integral is finite."""
    with pm.Model() as model:
        pm.VonMises("y", pm.VonMises("m", 0, 0.5), 2.0, observed=[0.3])
    compiled, z = compile_model(model), np.linspace(-12, 12, 8001)
    with precision.scope():
        log_p = jax.vmap(lambda u: compiled.log_joint(u[None], {"y": jnp.array([0.3])}))(z)
    turn = z[np.abs(z) < np.pi]
    exact = stats.vonmises.pdf(turn, 0.5) * stats.vonmises.pdf(0.3, 2.0, loc=turn)
    np.testing.assert_allclose(np.exp(log_p[np.abs(z) < np.pi]), exact, rtol=1e-6)
    assert (np.exp(log_p[np.abs(z) > np.pi]) == 0).all()


def test_a_summary_of_the_observations_in_a_prior_is_none_of_the_likelihood() -> None:
    y = np.random.default_rng(0).normal(3, 2, 12)
    for scaled in (False, True):
        with pm.Model() as model:
            a, s = pm.Normal("a", y.mean(), 1), pm.Uniform("s", 0, y.std())
            pm.Normal("y", a * y.std() if scaled else a, s, observed=y)
        assert bool(compile_model(model).copies) == scaled


_WALK = np.random.default_rng(1).normal(size=(5, 8)).cumsum(1)
_COUNTS = np.random.default_rng(2).poisson(6, (5, 8))
_CAMPS = np.random.default_rng(3).normal(size=40)
_COPIES = {
    "logarithms of counts": (np.log1p(_COUNTS.ravel()[:-1]), _COUNTS.ravel()[1:], 1),
    "standardised": ((_CAMPS[:-1] - _CAMPS.mean()) / _CAMPS.std(), _CAMPS[1:], 1),
    "squares": (_CAMPS[:-2] ** 2, _CAMPS[2:], 2),
    "the level of differences": (_WALK[0, :-1], np.diff(_WALK[0]), 1),
    "differences of the level": (np.diff(_WALK[0])[:-1], _WALK[0, 2:], 2),
    "at risk": (500 - np.r_[0, _COUNTS.ravel().cumsum()[:-1]], _COUNTS.ravel(), 1),
    "a panel": (_COUNTS[:, :-1], _COUNTS[:, 1:], 1),
    "a panel in long form": (_WALK[:, :-1].ravel(), _WALK[:, 1:].ravel(), 0),
    "counts of a panel in long form": (
        np.c_[np.zeros(5), _COUNTS[:, :-1]].ravel(),
        _COUNTS.ravel(),
        1,
    ),
    "times of the censored": (np.where(_CAMPS > 0, np.inf, _CAMPS), _CAMPS, 0),
    "no copy: another walk": (np.flip(_WALK[1]) + 0.1, _WALK[0], None),
    "no copy: a line without noise": (_CAMPS, 2 * _CAMPS + 1, None),
    "no copy: time and its placeholder": (np.linspace(0, 1, 30), np.linspace(0, 1, 30), None),
    "no copy: months": (np.eye(12)[np.arange(40) % 12], _COUNTS.ravel(), None),
    "no copy: decimals": (np.round(_CAMPS, 1), np.round(np.flip(_CAMPS), 1), None),
}


@pytest.mark.parametrize("name", _COPIES)
def test_what_was_computed_of_earlier_values_is_a_copy(name: str) -> None:
    """It stays the model's own in the likelihood of any other dataset."""
    constant, own, moved = _COPIES[name]
    with pm.Model() as model:
        mean = pm.Normal("b") * pt.as_tensor(constant)
        pm.Normal("y", mean if np.ndim(constant) == own.ndim else mean.sum(1), observed=own)
    assert [copy.rows for copy in copies_in(model, [mean])] == ([] if moved is None else [moved])


@pytest.mark.parametrize("kind", ["cov", "tau", "sum", "product"])
def test_a_matrix_that_is_data_and_not_symmetric_is_refused(kind: str) -> None:
    """Half of it would be passed over; L L' of a triangular one is none of these."""
    with pm.Model(coords={"a": range(2), "b": range(2)}) as model:
        V = pm.Data("V", np.eye(2), dims=("a", "b"))
        sd = pm.HalfNormal("sd")
        of = {"sum": {"cov": V + sd**2 * np.eye(2)}, "product": {"cov": V @ V.T}}
        pm.MvNormal("y", pm.Normal("m"), **of.get(kind, {kind: V}), observed=np.zeros(2), dims="a")
    compiled = compile_model(model, covariates=["V"])
    half, y = np.array([[1.0, 0.0], [0.5, 1.0]]), np.ones(2)
    both = half + half.T
    task_of(compiled, {"V": both, "y": y})
    if kind == "product":
        task_of(compiled, {"V": half, "y": y})
        return
    with pytest.raises(pmcl.DataError, match="'V'.*expected a symmetric matrix"):
        task_of(compiled, {"V": half, "y": y})


def test_a_wave_of_data_is_no_basis() -> None:
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(0, 1, 4))
        pm.Normal("y", pm.Normal("b") * pt.sin(pt.sqrt(3.0) * (x + 0.25)), 1, observed=np.zeros(4))
    bases = compile_model(model, covariates=["x"]).bases
    assert bases.outside({"x": np.linspace(0, 50, 4), "y": np.zeros(4)}) == ""


@pytest.mark.parametrize("n", [100, 10**6, 10**9])
def test_functions_of_integers_are_double_precision(n: int) -> None:
    """PyMC's data of integers have 32 bits, of which JAX takes logarithms in single precision."""
    with pm.Model(coords={"row": range(3)}) as model:
        trials = pm.Data("trials", np.full(3, 7), dims="row")
        p = pm.Beta("p", 1, 1)
        pm.Binomial("y", trials, p, observed=np.zeros(3, int), dims="row")
        pm.Poisson("k", p * pm.math.exp(0.5 * pm.math.log(trials)), observed=np.zeros(3, int))
    compiled = compile_model(model, covariates=["trials"])
    y, k = np.array([n // 3, n // 2, n]), np.array([0, 3, 9])
    z = compiled.unconstrain({"p": np.array(0.4)})
    with precision.scope():
        found = compiled.log_likelihood_terms(z, {"y": y, "k": k, "trials": np.full(3, n, "int32")})
    np.testing.assert_allclose(found["y"], stats.binom.logpmf(y, n, 0.4), rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(found["k"], stats.poisson.logpmf(k, 0.4 * n**0.5), rtol=1e-12)
