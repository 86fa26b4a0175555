"""The racing diffusion model: its density against SciPy and integrals, its simulator against it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats

from pmcl import models
from pmcl.compile import compile_model, make_simulator, read_covariates

RACE = models.find("racing_diffusion").module
PERSONS = [(1.2, 3.0, 1.0, 0.25), (0.5, 6.0, 0.2, 0.1), (3.0, 1.0, 0.9, 0.4), (1.0, 8.0, 0.01, 0.3)]


def compiled_function(function, dtype: str):
    """The logarithm of a function of times, boundaries and drifts in JAX, of a precision."""
    inputs = [pt.vector(n, dtype=dtype) for n in ("t", "b", "v")]
    factor, exponent = function(*inputs)
    # JAX's conversion is what pmcl runs; SciPy is what it is compared with.
    return pytensor.function(inputs, pt.log(factor) + exponent, mode="JAX")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_density_and_survival_are_scipys(dtype):
    rng = np.random.default_rng(0)
    n = 400
    b, v = rng.uniform(0.3, 3, n), rng.uniform(0.05, 6, n)
    t = np.exp(rng.uniform(np.log(0.02), np.log(5), n))
    wald = stats.invgauss(mu=1 / (v * b), scale=b**2)
    given = [x.astype(dtype) for x in (t, b, v)]
    tolerance = 2e-3 if dtype == "float32" else 1e-8
    found = compiled_function(RACE.first_passage, dtype)(*given)
    np.testing.assert_allclose(found, wald.logpdf(t), rtol=tolerance, atol=tolerance)
    # SciPy's own survival loses its digits where it is next to nothing
    clear = wald.sf(t) > 1e-6
    assert clear.mean() > 0.7
    found = compiled_function(RACE.survival, dtype)(*given)
    np.testing.assert_allclose(found[clear], wald.logsf(t)[clear], rtol=tolerance, atol=tolerance)


def test_survival_at_long_times_is_the_integral_of_the_density():
    """Where 1 - F has no digits left."""
    for t, b, v in [(4.0, 0.6, 4.0), (5.0, 1.0, 6.0), (5.0, 0.3, 8.0)]:

        def density(s, b=b, v=v):
            return b / np.sqrt(2 * np.pi * s**3) * np.exp(-((b - v * s) ** 2) / (2 * s))

        whole, _ = integrate.quad(density, t, t + 10, epsabs=0, epsrel=1e-10)
        assert whole < 1e-10
        found = compiled_function(RACE.survival, "float64")([t], [b], [v])[0]
        np.testing.assert_allclose(found, np.log(whole), rtol=1e-7)


@pytest.fixture(scope="module")
def compiled():
    return compile_model(RACE.model(trials=1))


@pytest.mark.parametrize("person", PERSONS)
def test_it_integrates_to_one(compiled, person):
    z = jnp.log(jnp.asarray(person))
    density = jax.jit(lambda y: jnp.exp(compiled.log_likelihood(z, {"y": y[None]})))
    t0 = person[-1]
    total = 0.0
    for low, high in [(-60.0, -5.0), (-5.0, -t0), (-t0, t0), (t0, 5.0), (5.0, 60.0)]:
        part, _ = integrate.quad(density, low, high, limit=400, epsabs=1e-7)
        total += part
    assert abs(total - 1) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_are_finite_everywhere(compiled, dtype):
    rng = np.random.default_rng(0)
    times = np.concatenate(
        [[1e-6, 0.1, 0.25, 0.2500001, 0.2501, 0.26, 4.999], rng.uniform(0, 5, 200)]
    )
    times = np.concatenate([times, [5.0, 5.2, 7.0, 30.0]])  # longer than any lapse
    y = np.concatenate([times, -times])
    z = rng.normal(size=(200, 4)) * 2 + np.log([1.2, 3.0, 1.0, 0.25])
    z = np.concatenate([z, np.log([PERSONS[0]])])
    one = jax.value_and_grad(lambda u, v: compiled.log_likelihood(u, {"y": v[None]}))
    with jax.enable_x64(dtype == "float64"):
        gradient = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
        value, slope = gradient(jnp.asarray(z, dtype), jnp.asarray(y, dtype))
        assert slope.dtype == dtype
    impossible = (np.abs(y) >= 5) & (np.abs(y) - np.exp(z[:, 3:]) <= 1e-4)
    assert impossible.any()
    assert (np.isfinite(value) == ~impossible).all()
    assert np.isfinite(slope).all()


def test_gradients_are_those_of_differences(compiled):
    y = np.array([0.2, 0.3, 0.5, 1.0, 4.0, 6.0, -0.3, -0.8, -4.5, -7.0])
    value = jax.jit(jax.vmap(lambda u, v: compiled.log_likelihood(u, {"y": v[None]}), (None, 0)))
    slope = jax.jit(jax.vmap(jax.grad(lambda u, v: value(u, v[None])[0]), (None, 0)))
    h = 1e-6 * np.eye(4)
    for person in PERSONS:
        z = np.log(person)
        expected = np.stack([value(z + e, y) - value(z - e, y) for e in h], axis=-1) / 2e-6
        np.testing.assert_allclose(slope(z, y), expected, rtol=1e-5, atol=1e-6)


def test_simulated_times_follow_the_density(compiled):
    simulator = make_simulator(compile_model(RACE.model(trials=20_000)), read_covariates({}, ()))
    assert simulator.backend == "jax", simulator.reason
    z, data = simulator.simulate(3, random_seed=4)
    for u, y in zip(z, data["y"], strict=True):
        density = jax.jit(
            jax.vmap(lambda v, u=u: jnp.exp(compiled.log_likelihood(u, {"y": v[None]})))
        )
        edges = np.linspace(-5, 5, 20_001)
        heights = np.asarray(density(jnp.asarray(edges)))
        cdf = np.concatenate([[0], np.cumsum((heights[1:] + heights[:-1]) / 2 * np.diff(edges))])
        inside = y[np.abs(y) < 5]
        cdf = (cdf - cdf[0]) / cdf[-1]
        assert stats.kstest(inside, lambda x, e=edges, c=cdf: np.interp(x, e, c)).pvalue > 1e-3


def test_the_prior_covers_people():
    """Mean times from 0.3 to 1.5 s and accuracies from 0.6 to 1 are all within its reach."""
    simulator = make_simulator(compile_model(RACE.model()), read_covariates({}, ()))
    _, data = simulator.simulate(2000, random_seed=0)
    mean = np.abs(data["y"]).mean(axis=1)
    accuracy = (data["y"] > 0).mean(axis=1)
    for low, high in [(0.3, 0.6), (0.6, 1.0), (1.0, 1.5)]:
        assert ((mean > low) & (mean < high)).mean() > 0.05
    for low, high in [(0.6, 0.8), (0.8, 0.95), (0.95, 1.0)]:
        assert ((accuracy > low) & (accuracy <= high)).mean() > 0.05
    assert (mean > 4).mean() < 0.02 and (accuracy < 0.5).mean() < 0.1


@pytest.mark.slow
def test_drifts_by_condition():
    definition = models.find("racing_diffusion_conditions")
    compiled = compile_model(definition.model(), covariates=["incongruent"])
    single = compile_model(RACE.model(trials=90))
    data = definition.example().sel(dataset="large")
    which = data["incongruent"].values
    z = np.zeros(compiled.dim)
    free = compiled.constrain(z)
    total = 0.0
    for condition in (0, 1):
        one = np.log(
            [
                float(free["boundary"]),
                float(free["drift"][condition]),
                float(free["error"][condition]),
                float(free["t0"]),
            ]
        )
        total += float(single.log_likelihood(one, {"y": data["y"].values[which == condition]}))
    whole = compiled.log_likelihood(z, {"y": data["y"].values, "incongruent": which})
    np.testing.assert_allclose(float(whole), total, rtol=1e-6)
    # more incongruent errors, and slower, the larger the effect
    example = definition.example()
    slow = np.abs(example["y"]).where(example["incongruent"] == 1).mean("trial")
    assert float(slow.sel(dataset="large")) > float(slow.sel(dataset="none"))
