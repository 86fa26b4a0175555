"""Streams of several components: two modes on a grid, one mode in closed form."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from test_families import SIGMA, linear, linear_model, part, posterior

import pmcl
from pmcl.archive import StateError
from pmcl.online.families.dense import Full
from pmcl.online.families.mixture import Mixture, alike, counts_of, stacked
from pmcl.online.gaussian import MeanField

NOISE = 0.8
GRID = np.linspace(-4, 4, 8001)


def squared() -> pm.Model:
    """The sign of theta is told by its prior alone."""
    with pm.Model(coords={"row": range(1)}) as model:
        theta = pm.Normal("theta", 0.2, 1)
        pm.Normal("y", theta**2, NOISE, observed=np.zeros(1), dims="row")
    return model


def density(*batches: np.ndarray, powers: tuple[float, ...] = (1.0, 1.0)) -> np.ndarray:
    log_p = stats.norm(0.2, 1).logpdf(GRID)
    for y, power in zip(batches, powers, strict=False):
        log_p = log_p + power * stats.norm(GRID[:, None] ** 2, NOISE).logpdf(y).sum(axis=1)
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(0)
    return [1.7 + NOISE * rng.normal(size=16) for _ in range(2)]


@pytest.fixture(scope="module")
def two():
    # a seed with starts on both sides
    return pmcl.fit_online(squared(), family="full", components=4, random_seed=3, progressbar=False)


@pytest.fixture(scope="module")
def learned(two, batches):
    for y in batches:
        two = two.update({"y": y}, progressbar=False)
    return two


def positive(stream) -> float:
    """What the components with a positive mean count for."""
    there = [float(c.state.predictive.mean[0]) > 0 for c in stream.components]
    assert 0 < sum(there) < 4
    return float(stream.weights[np.array(there)].sum())


def test_modes_have_the_masses_of_a_grid(two, learned, batches):
    p = density(*batches)
    mass = p[GRID > 0].sum()
    assert 0.55 < mass < 0.8  # else equal weights would do
    assert positive(learned) == pytest.approx(mass, abs=0.02)
    np.testing.assert_allclose(learned.weights.sum(), 1)
    mean, sd = p @ GRID, np.sqrt(p @ GRID**2 - (p @ GRID) ** 2)
    q = learned.approximation()
    assert float(q.mean[0]) == pytest.approx(mean, abs=0.06)
    assert float(np.exp(q.log_sd[0])) == pytest.approx(sd, rel=0.03)
    found = learned.sample(4000, random_seed=0)
    theta = found.posterior["theta"].values[0]
    assert np.mean(theta > 0) == pytest.approx(mass, abs=0.02)
    np.testing.assert_allclose(
        found.sample_stats["log_q"][0], q.log_density(theta[:, None]), rtol=1e-9
    )
    assert two.weights.tolist() == [0.25] * 4


def test_predictions_are_those_of_a_grid(learned, batches):
    p, new = density(*batches), np.array([0.0, 1.5, 4.0])
    truth = np.log(p @ stats.norm(GRID[:, None] ** 2, NOISE).pdf(new))
    found = learned.log_predictive({"y": new}, draws=2000, random_seed=0)
    np.testing.assert_allclose(found, truth, atol=0.06)  # tails are a normal's
    drawn = learned.predict(rows=5, draws=2000, random_seed=0)["y"]
    assert drawn.dims == ("chain", "draw", "row") and drawn.shape == (1, 2000, 5)
    assert float(drawn.mean()) == pytest.approx(p @ GRID**2, abs=0.05)
    # draws of components are mixed
    np.testing.assert_array_equal(drawn["draw"], np.arange(2000))


def test_weights_are_forgotten_with_the_likelihoods(two, batches):
    drift = pmcl.BayesianForgetting(0.5)
    stream = _with(two, drift=drift)
    for y in batches:
        stream = stream.update({"y": y}, progressbar=False)
    p = density(*batches, powers=(0.5, 1.0))
    assert positive(stream) == pytest.approx(p[GRID > 0].sum(), abs=0.03)
    weights = stream.history["weight"]
    assert weights.dims == ("component", "update") and weights.shape == (4, 2)


def test_where_k_hat_is_high_weights_foretell(two, batches, monkeypatch):
    monkeypatch.setattr("pmcl.online.mixture.TRUSTED", np.nan)
    first = two.update({"y": batches[0]}, progressbar=False)
    np.testing.assert_allclose(first.weights, 0.25)
    both = first.update({"y": batches[1]}, random_seed=7, progressbar=False)
    log_p = [c.log_predictive({"y": batches[1]}, random_seed=7) for c in first.components]
    p = np.exp(np.array(log_p))
    shares = (p / p.sum(axis=0)).mean(axis=1)
    np.testing.assert_allclose(both.weights, (4 * 0.25 + 16 * shares) / 20, rtol=1e-6)


def _with(stream, **settings):
    parts = tuple(replace(c, settings=c.settings._replace(**settings)) for c in stream.components)
    return replace(stream, components=parts)


def test_a_memory_keeps_the_masses(two, batches):
    stream = _with(two, memory=pmcl.ResidualMemory(4, draws=50))
    for y in batches:
        stream = stream.update({"y": y}, progressbar=False)
    assert all(len(c.state.memory) == 4 for c in stream.components)
    assert positive(stream) == pytest.approx(density(*batches)[GRID > 0].sum(), abs=0.05)


def test_one_mode_stays_exact(tmp_path):
    data = linear(24, 0)
    stream = pmcl.fit_online(
        linear_model(), family="full", components=2, random_seed=0, progressbar=False
    )
    for i in (0, 8, 16):
        stream = stream.update(part(data, slice(i, i + 8)), progressbar=False)
    mean, covariance = posterior(data)
    q = stream.approximation()
    np.testing.assert_allclose(q.mean, mean, atol=1e-6)
    np.testing.assert_allclose(q.variance, np.diag(covariance), atol=1e-6)
    np.testing.assert_allclose(stream.weights, 0.5, atol=0.02)
    new = linear(5, 1)
    spread = np.sqrt(SIGMA**2 + np.einsum("ni,ij,nj->n", new["X"], covariance, new["X"]))
    truth = stats.norm(new["X"] @ mean, spread).logpdf(new["y"])
    np.testing.assert_allclose(stream.log_predictive(new, draws=4000), truth, atol=0.03)


def test_a_mixture_is_saved_and_goes_on_the_same(learned, batches, tmp_path):
    path = tmp_path / "mixture.zarr.zip"
    pmcl.save(learned, path)
    again = pmcl.load(path, squared())
    assert isinstance(again, pmcl.OnlineMixture)
    assert again.log_weights == learned.log_weights
    both = [s.update({"y": batches[0][:5]}, progressbar=False) for s in (learned, again)]
    np.testing.assert_array_equal(both[0].weights, both[1].weights)
    xs = [s.sample(50, random_seed=1).posterior["theta"].values for s in both]
    np.testing.assert_array_equal(*xs)
    assert "4 components" in repr(again)
    # what was compiled for one component serves all
    assert len({id(c.compiled) for c in again.components}) == 1
    broken = replace(learned, log_weights=((0.0,) * 4, (0.0,) * 4))
    pmcl.save(broken, path)
    with pytest.raises(StateError, match="weights: expected each update's to add up to one"):
        pmcl.load(path, squared())


def test_a_mixture_grows():
    def model(predictors: list[str]) -> pm.Model:
        with pm.Model(coords={"row": range(1), "predictor": predictors}) as found:
            X = pm.Data("X", np.zeros((1, len(predictors))), dims=("row", "predictor"))
            w = pm.Normal("w", 0, 1, dims="predictor")
            pm.Normal("y", X @ w, SIGMA, observed=np.zeros(1), dims="row")
        return found

    data = linear(16, 0)
    stream = pmcl.fit_online(
        model(["a", "b"]), family="full", components=2, random_seed=0, progressbar=False
    )
    stream = stream.update({"X": data["X"][:8, :2], "y": data["y"][:8]}, progressbar=False)
    stream = stream.update(
        {"X": data["X"][8:], "y": data["y"][8:]}, model=model(["a", "b", "c"]), progressbar=False
    )
    X = np.where((np.arange(16) < 8)[:, None] & (np.arange(3) == 2), 0.0, data["X"])
    mean, _ = posterior({"X": X, "y": data["y"]})
    np.testing.assert_allclose(stream.approximation().mean, mean, atol=1e-6)


def test_alike_counts_and_shares():
    with jax.enable_x64(True):
        near = Full(jnp.zeros(2), jnp.eye(2))
        far = near._replace(mean=jnp.full(2, 50.0))
        np.testing.assert_allclose(alike((near, far, near), jax.random.key(0)), [2, 1, 2])
        # half a normal and half another, by quadrature
        q = Mixture(jnp.log(jnp.array([0.3, 0.7])), (
            MeanField(jnp.zeros(1), jnp.zeros(1)), MeanField(jnp.ones(1), jnp.full(1, 0.5))
        ))  # fmt: skip
        x = np.linspace(-15, 15, 20001)
        p = np.exp(np.asarray(q.log_density(x[:, None])))
        assert np.trapezoid(p, x) == pytest.approx(1)
        assert np.trapezoid(p * x, x) == pytest.approx(float(q.mean[0]))
        second = np.trapezoid(p * (x - float(q.mean[0])) ** 2, x)
        assert second == pytest.approx(float(q.variance[0]))
    # half of the rows are of one component, half of another, and the third foretells none
    log_p = np.log(np.kron([[0.9, 0.1], [0.1, 0.9], [0.01, 0.01]], np.ones(50)))
    log_w = np.log(np.full(3, 1 / 3))
    for i in range(50):
        log_w = stacked(log_w, log_p[:, i::50], 3 + 2 * i)
    weights = np.exp(log_w)
    assert weights.sum() == pytest.approx(1)
    assert weights[:2] == pytest.approx(0.5, abs=0.02)
    rng = np.random.default_rng(0)
    counts = [counts_of(np.array([0.05, 0.25, 0.7]), 10, rng) for _ in range(400)]
    assert {int(c.sum()) for c in counts} == {10}
    np.testing.assert_allclose(np.mean(counts, axis=0), [0.5, 2.5, 7], atol=0.1)


def test_what_has_no_meaning_with_components_is_said():
    with pm.Model(coords={"row": range(1)}) as local:
        pm.Normal("y", pm.Normal("u", dims="row"), 1, observed=np.zeros(1), dims="row")
    for model, settings, message in [
        (squared(), {"components": 0}, "a number of normals of at least 1, got 0"),
        (squared(), {"components": True}, "a number of normals"),
        (local, {"components": 2, "local": "u"}, "components: expected 1, got 2: with local"),
        (squared(), {"components": 2, "method": pmcl.Naive()}, "follows one value"),
        (squared(), {"components": 2, "drift": pmcl.ChangePoint()}, "something else by each"),
        (squared(), {"components": 2, "start": pmcl.Start()}, "begins at one place"),
    ]:
        with pytest.raises(ValueError, match=message):
            pmcl.fit_online(model, progressbar=False, **settings)
