"""PyMC models of many kinds, each compiled by pmcl and by PyMC."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from scipy.interpolate import BSpline

from pmcl.compile import CompiledModel, compile_model
from pmcl.compile.conversion.graphs import host_mode
from pmcl.runtime import precision

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


def hilbert_space_process() -> None:
    length = pm.LogNormal("length", -1, 0.3)
    process = pm.gp.HSGP(m=[6], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, length))
    f = process.prior("f", X=TIME[:, None], dims="time")
    pm.Poisson("y", pm.math.exp(f), observed=[1, 0, 3, 2, 5, 4], dims="time")


def splines() -> None:
    knots = np.r_[[0.0] * 4, 0.5, [1.0] * 4]
    basis = BSpline.design_matrix(TIME, knots, 3).toarray()
    step = pm.HalfNormal("step", 0.7)
    weights = pm.GaussianRandomWalk("weights", 0, step, init_dist=pm.Normal.dist(0, 1), shape=5)
    pm.Normal("y", basis @ weights, 0.3, observed=TIME**2, dims="time")


def solved_in_jax() -> None:
    @pytensor.wrap_jax
    def decay(rate: jax.Array, start: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return x - 0.2 * rate * x, x

        return jax.lax.scan(step, start, None, length=len(TIME))[1]

    rate = pm.HalfNormal("rate")
    path = decay(rate, pm.Gamma("start", 4, 2))
    pm.LogNormal("y", pm.math.log(path), 0.3, observed=TIME + 1, dims="time")


def state_space() -> None:
    drift = pm.Normal("drift", 0, 0.5)
    damping = pm.Beta("damping", 4, 2)
    noise = pm.Normal("noise", dims="time")
    level = pytensor.scan(
        lambda e, x, a, d: a * x + d + 0.3 * e,
        sequences=[noise],
        outputs_info=[pt.zeros(())],
        non_sequences=[damping, drift],
        return_updates=False,
    )
    pm.StudentT("y", nu=5, mu=level, sigma=0.5, observed=TIME, dims="time")


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
    hilbert_space_process,
    splines,
    solved_in_jax,
    state_space,
]


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
