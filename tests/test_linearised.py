"""Networks whose weights have covariances: their noise, and predictions by linearisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pmcl


def test_the_noise_of_a_network_answers_to_what_its_weights_have_determined():
    """MacKay's equation: squared residuals / sd^2 = rows - determined weights, less the prior.

    (With a preset of XLA that compiles fast, variances of predictors came out wrong here.)
    """
    with pm.Model(coords={"row": range(1)}) as model:
        x = pm.Data("x", np.zeros((1, 1)), dims=("row", None))
        W, b = pm.Normal("W", 0, 1, shape=(1, 12)), pm.Normal("b", 0, 1, shape=12)
        V = pm.Normal("V", 0, 0.5, shape=12)
        sd = pm.math.exp(pm.Normal("log_sd", -1, 1))
        pm.Normal("y", pt.tanh(x @ W + b) @ V, sd, observed=np.zeros(1), dims="row")
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(20, 1))
    y = np.sin(2 * x[:, 0]) + 0.02 * rng.normal(size=20)
    search = pmcl.GaussNewton(first_steps=400, tolerance=1e-6)
    stream = pmcl.fit_online(
        model, family="full", search=search, random_seed=1, progressbar=False
    ).update({"x": x, "y": y}, progressbar=False)
    q = stream.approximation()
    parts = stream.compiled.unravel

    def output(z):
        w = parts(z)
        return jnp.tanh(x @ w["W"] + w["b"]) @ w["V"]

    with jax.enable_x64(True):
        J, rest = np.asarray(jax.jacobian(output)(q.mean)), y - np.asarray(output(q.mean))
    log_sd, wide = float(q.mean[-1]), float(q.variance[-1])
    precision = np.exp(-2 * log_sd + 2 * wide)
    determined = precision * np.einsum("nd,de,ne->", J, q.covariance, J)
    assert 4 < determined < 18
    assert (rest**2).sum() * precision == pytest.approx(20 - determined + log_sd + 1, rel=0.05)


@pytest.fixture(scope="module")
def net():
    with pm.Model(coords={"row": range(1)}) as model:
        x = pm.Data("x", np.zeros((1, 1)), dims=("row", None))
        W, b = pm.Normal("W", 0, 1, shape=(1, 4)), pm.Normal("b", 0, 1, shape=4)
        V = pm.Normal("V", 0, 0.5, shape=4)
        pm.Normal("y", pt.tanh(x @ W + b) @ V, 0.1, observed=np.zeros(1), dims="row")
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(30, 1))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=30)
    stream = pmcl.fit_online(model, family="full", random_seed=1, progressbar=False)
    return stream.update({"x": x, "y": y}, progressbar=False), {"x": x, "y": y}


def test_a_network_is_predicted_by_its_linearisation(net):
    """The density of a new row is normal, with the variance J C J' + sigma^2."""
    stream, data = net
    q = stream.approximation()
    parts = stream.compiled.unravel

    def output(z):
        w = parts(z)
        return jnp.tanh(new["x"] @ w["W"] + w["b"]) @ w["V"]

    new = {"x": np.array([[-1.5], [0.3], [3.0]]), "y": np.array([-1.0, 0.3, 0.5])}
    with jax.enable_x64(True):
        J, mean = np.asarray(jax.jacobian(output)(q.mean)), np.asarray(output(q.mean))
    sd = np.sqrt(np.einsum("nd,de,ne->n", J, q.covariance, J) + 0.1**2)
    found = stream.log_predictive(new, draws=10, random_seed=0)  # means are integrated out
    np.testing.assert_allclose(found, stats.norm(mean, sd).logpdf(new["y"]), atol=1e-6)
    drawn = stream.predict({"x": new["x"]}, draws=20_000, random_seed=0)["y"]
    np.testing.assert_allclose(drawn.mean(["chain", "draw"]), mean, atol=4 * sd.max() / 141)
    np.testing.assert_allclose(drawn.std(["chain", "draw"]), sd, rtol=0.03)
    assert sd[2] > 1.5 * sd[1]  # unsure where it saw nothing
    inside = stream.log_predictive(data, draws=500, random_seed=0)
    assert float(inside.mean()) > 0.5  # the noise's own is 0.88
