"""Simulations against PyMC's own prior predictive draws, and against brute force."""

from collections.abc import Callable
from functools import lru_cache

import jax
import numpy as np
import pymc as pm
import pytest
from draws import differing
from scipy import stats

from pmcl.compile import (
    CompiledModel,
    Simulator,
    compile_model,
    finite_fraction,
    make_simulator,
    read_covariates,
)
from pmcl.compile.conversion.graphs import host_mode
from pmcl.compile.predictive import predict
from pmcl.runtime import precision

DRAWS = 2000
TINY = 1e-4  # some forty statistics a model, at fixed seeds
BACKENDS = ["jax", "pytensor"]
ordered = pm.distributions.transforms.ordered


def mixed() -> None:
    w = pm.Dirichlet("w", np.array([1.0, 2.0, 4.0]))
    tau = pm.HalfCauchy("tau", 0.5)
    effect = pm.ZeroSumNormal("effect", 1.5, dims="group")
    rate = pm.Deterministic("rate", pm.math.exp(0.1 * effect) + 1, dims="group")
    pm.Categorical("kind", w, observed=[0, 0])
    pm.NormalMixture("y", w, [-4.0, 0.0, 6.0], [0.5, 1.0, 2.0], observed=[0.0, 0.0], dims="obs")
    pm.ZeroInflatedPoisson("n", 0.7, rate, observed=[0, 0, 0], dims="group")
    pm.Binomial("k", 9, pm.math.sigmoid(effect), observed=[0, 0, 0], dims="group")
    pm.MvNormal("v", effect[:2], np.array([[2, 0.9], [0.9, 1]]), observed=np.zeros(2))
    pm.AR("series", [0.8], sigma=1 + tau, init_dist=pm.Normal.dist(0, 1), observed=np.zeros(4))


def host_only() -> None:
    low = pm.TruncatedNormal("low", 0, 1, lower=-0.5, upper=1.0)
    angle = pm.VonMises("angle", 0.3, 2)
    high = pm.Uniform("high", low, low + 3)
    pm.Censored("t", pm.Weibull.dist(1.5, high + 1), lower=None, upper=2.0, observed=[0.3, 2.0])
    pm.SkewNormal("y", mu=angle, sigma=1, alpha=3, observed=[0.0, 0.0])
    pm.CustomDist(
        "x",
        high + 1,
        logp=lambda value, rate: -rate * value,
        random=lambda rate, rng, size: rng.exponential(1 / rate, size),
        observed=[0.5, 1.5],
    )


@lru_cache
def compiled_model(build: Callable[[], None]) -> CompiledModel:
    with pm.Model(coords={"group": ["a", "b", "c"], "obs": range(2)}) as model:
        build()
    return compile_model(model)


@lru_cache
def simulator_of(build: Callable[[], None], backend: str) -> Simulator:
    compiled = compiled_model(build)
    return make_simulator(compiled, read_covariates(None, ()), backend=backend)  # type: ignore[arg-type]


@lru_cache
def prior_predictive(build: Callable[[], None]) -> dict[str, np.ndarray]:
    return pm.sample_prior_predictive(
        DRAWS,
        model=compiled_model(build).model,
        random_seed=1,
        return_inferencedata=False,
        compile_kwargs={"mode": host_mode()},
    )


@pytest.mark.parametrize(
    ("build", "backend"), [(mixed, "jax"), (mixed, "pytensor"), (host_only, "pytensor")]
)
def test_draws_are_those_of_the_joint(build: Callable[[], None], backend: str) -> None:
    simulator = simulator_of(build, backend)
    z, data = simulator.simulate(DRAWS, random_seed=3)
    with precision.scope():
        named = jax.jit(jax.vmap(simulator.compiled.constrain))(z)
    ours = {**{k: np.asarray(v) for k, v in named.items()}, **data}
    assert differing(ours, prior_predictive(build), level=TINY) == {}


def truncated() -> None:
    spread = pm.Uniform("spread", 0.5, 2)
    cut = pm.Normal("cut", [0.3, 0.0], spread, transform=ordered, initval=[-1.0, 1.0])
    pm.Normal("y", cut, 1, observed=np.zeros(2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transform_that_truncates_the_prior_truncates_its_draws(backend: str) -> None:
    simulator = simulator_of(truncated, backend)
    z, data = simulator.simulate(DRAWS, random_seed=3)
    with precision.scope():
        named = jax.jit(jax.vmap(simulator.compiled.constrain))(z)
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.5, 2, 4 * DRAWS)
    cut = rng.normal([0.3, 0.0], spread[:, None])
    y = rng.normal(cut, 1)
    kept = cut[:, 0] < cut[:, 1]
    ours = {**{k: np.asarray(v) for k, v in named.items()}, **data}
    theirs = {"spread": spread[kept], "cut": cut[kept], "y": y[kept]}
    assert differing(ours, theirs, level=TINY) == {}
    assert finite_fraction(simulator) == 1.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_seed_same_simulations(backend: str) -> None:
    simulator = simulator_of(truncated, backend)
    anew = make_simulator(simulator.compiled, simulator.covariates, backend=simulator.backend)
    n = DRAWS if backend == "jax" else 50
    z, data = simulator.simulate(n, random_seed=5)
    for again in (simulator, anew):
        z_again, data_again = again.simulate(n, random_seed=5)
        np.testing.assert_array_equal(z, z_again)
        np.testing.assert_array_equal(data["y"], data_again["y"])
    other, _ = simulator.simulate(n, random_seed=6)
    assert not np.any(z == other)
    assert len(np.unique(z[:, 0])) == n


def test_repr_says_where_simulations_are_made() -> None:
    assert simulator_of(mixed, "auto").backend == "jax"
    assert repr(simulator_of(mixed, "auto")) == "Simulator(inside jit (JAX); covariates: none)"
    host = simulator_of(host_only, "auto")
    assert host.backend == "pytensor"
    assert "on PyTensor, prefetched, because JAX cannot sample 'x'" in repr(host)
    assert "because it was asked for" in repr(simulator_of(mixed, "pytensor"))
    with pytest.raises(NotImplementedError, match="x"):
        simulator_of(host_only, "jax")
    with pytest.raises(ValueError, match="backend: expected 'auto', 'jax' or 'pytensor', got 'x'"):
        simulator_of(mixed, "x")


def test_simulating_leaves_the_generators_of_the_model_alone() -> None:
    model = compiled_model(host_only).model
    before = pm.draw(model["low"], random_seed=None, mode=host_mode())
    states = [g.get_value().bit_generator.state for g in generators(model)]
    simulator_of(host_only, "pytensor").simulate(5, random_seed=0)
    assert [g.get_value().bit_generator.state for g in generators(model)] == states
    assert np.isfinite(before)


def generators(model: pm.Model) -> list:
    return [rv.owner.inputs[0] for rv in model.free_RVs]


@pytest.mark.parametrize("heavy", [False, True], ids=BACKENDS)
def test_predictive_draws_at_new_lengths(heavy: bool) -> None:
    with pm.Model(coords={"obs": range(3)}) as model:
        x = pm.Data("x", np.zeros(3), dims="obs")
        slope = pm.Normal("slope")
        scale = pm.HalfNormal("scale")
        pm.Normal("y", slope * x, scale, observed=np.zeros(3), dims="obs")
        if heavy:  # no JAX sampler
            pm.SkewNormal("n", mu=slope, sigma=scale, alpha=0.0, observed=np.zeros(2))
        else:
            pm.Normal("n", slope, scale, observed=np.zeros(2))
    compiled = compile_model(model, covariates=["x"])
    z = np.tile([2.0, np.log(0.5)], (800, 1))
    at = {"x": np.array([0.0, 1.0, 2.0, 3.0, 4.0])}
    lengths = {"obs": 5, "n_dim_0": 4}
    drawn = predict(compiled, z, at, lengths, rng=np.random.default_rng(0))
    again = predict(compiled, z, at, lengths, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(drawn["y"], again["y"])
    assert drawn["y"].shape == (800, 5) and drawn["n"].shape == (800, 4)
    assert stats.kstest(((drawn["y"] - 2 * at["x"]) / 0.5).ravel(), "norm").pvalue > TINY
    assert stats.kstest(((drawn["n"] - 2) / 0.5).ravel(), "norm").pvalue > TINY
