"""Online inference: mean-field algebra, drift, projections and factors against closed forms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import Interval
from scipy import integrate, stats

import pmcl
from pmcl.compile import UnsupportedModelError, compile_model, localise
from pmcl.online import (
    BayesianForgetting,
    Factor,
    MeanField,
    OrnsteinUhlenbeck,
    Static,
    Wiener,
    divergence,
    expectation,
    prior_scale,
)
from pmcl.online.residual import debiased, exact_residuals, product, residuals
from pmcl.online.rows import RowBatch, Rows, check_separate, padded
from pmcl.online.search.bound import Target, log_likelihood
from pmcl.online.search.climb import climb
from pmcl.online.search.exact import exact, is_gaussian, normal_entries
from pmcl.online.search.search import Search, Way, steps_of
from pmcl.runtime.jitting import jit

Q = MeanField(jnp.array([0.5, -1.0]), jnp.log(jnp.array([0.3, 2.0])))
PRIOR = MeanField(jnp.array([0.0, 1.0]), jnp.log(jnp.array([1.0, 1.5])))


def assert_same(found: MeanField, expected: MeanField) -> None:
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.log_sd, expected.log_sd, rtol=1e-5, atol=1e-6)


def test_products_of_normals():
    # one observation of each entry, with noise of sd 0.7: the textbook's update
    y, noise = np.array([1.2, 0.3]), 0.7
    seen = Factor(jnp.full(2, noise**-2), jnp.asarray(y / noise**2))
    variance = 1 / (1 / np.asarray(PRIOR.variance) + noise**-2)
    mean = variance * (np.asarray(PRIOR.mean) / np.asarray(PRIOR.variance) + y / noise**2)
    posterior = MeanField.of(PRIOR.factor.times(seen))
    assert_same(posterior, MeanField(jnp.asarray(mean), jnp.log(jnp.sqrt(variance))))
    assert_same(MeanField.of(posterior.factor.times(seen, -1.0)), PRIOR)


def test_densities_and_divergence():
    z = np.random.default_rng(0).normal(size=(5, 2))
    expected = stats.norm(np.asarray(Q.mean), np.exp(Q.log_sd)).logpdf(z).sum(axis=1)
    np.testing.assert_allclose(Q.log_density(z), expected, rtol=1e-5)
    # a factor and its density differ by a constant
    assert np.ptp(np.asarray(Q.factor.log(z) - Q.log_density(z))) < 1e-4
    total = 0.0
    for i in range(2):
        q, p = (stats.norm(float(g.mean[i]), float(np.exp(g.log_sd[i]))) for g in (Q, PRIOR))

        def integrand(x, q=q, p=p):
            return q.pdf(x) * (q.logpdf(x) - p.logpdf(x))

        total += integrate.quad(integrand, q.mean() - 12 * q.std(), q.mean() + 12 * q.std())[0]
    np.testing.assert_allclose(divergence(Q, PRIOR), total, rtol=1e-5)
    assert float(divergence(Q, Q)) == pytest.approx(0, abs=1e-6)
    draws = Q.at(np.random.default_rng(1).normal(size=(200_000, 2)))
    mean = float(PRIOR.factor.log(draws).mean())
    assert float(expectation(PRIOR.factor, Q)) == pytest.approx(mean, abs=0.02)


def test_nothing_drifts_in_a_static_world():
    assert Static().move(Q, PRIOR, jnp.asarray(3.0)) is Q
    np.testing.assert_array_equal(Static().weight(jnp.array([0.0, 9.0])), 1)


def test_forgetting_weighs_old_likelihoods_less():
    """Three normal observations at irregular times: the recursion is eq. 10, done at once."""
    drift = BayesianForgetting(0.3, scale=2.0)
    times, y, noise = np.array([0.0, 1.0, 4.5]), np.array([1.0, -0.5, 2.0]), 0.8
    now, before = PRIOR, 0.0
    for t, value in zip(times, y, strict=True):
        now = drift.move(now, PRIOR, jnp.asarray(t - before))
        seen = Factor(jnp.full(2, noise**-2), jnp.full(2, value / noise**2))
        now, before = MeanField.of(now.factor.times(seen)), t
    weights = 0.7 ** ((times[-1] - times) / 2.0)
    np.testing.assert_allclose(drift.weight(jnp.asarray(times[-1] - times)), weights, rtol=1e-5)
    precision = 1 / np.asarray(PRIOR.variance) + weights.sum() / noise**2
    shift = np.asarray(PRIOR.factor.shift) + (weights * y).sum() / noise**2
    assert_same(now, MeanField.of(Factor(jnp.asarray(precision), jnp.asarray(shift))))
    assert_same(drift.move(Q, PRIOR, jnp.asarray(1e4)), PRIOR)


@pytest.mark.parametrize(
    ("drift", "pull", "noise"),
    [
        # dw = a (mu_0 - w) dt + sigma_0 sqrt(2 a) dW; Wiener: dw = sqrt(rate) sigma_0 dW
        (OrnsteinUhlenbeck(0.4, scale=2.0), 0.2, np.sqrt(2 * 0.2)),
        (Wiener(0.4, scale=2.0), 0.0, np.sqrt(0.2)),
    ],
)
def test_diffusions_have_the_moments_of_their_paths(drift, pull, noise):
    elapsed, steps, n = 1.5, 300, 100_000
    rng = np.random.default_rng(0)
    mean, sd = np.asarray(PRIOR.mean), np.sqrt(np.asarray(PRIOR.variance))
    w = np.asarray(Q.at(rng.normal(size=(n, 2))))
    dt = elapsed / steps
    for _ in range(steps):
        w = w + pull * (mean - w) * dt + noise * sd * np.sqrt(dt) * rng.normal(size=w.shape)
    found = drift.move(Q, PRIOR, jnp.asarray(elapsed))
    np.testing.assert_allclose(found.mean, w.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(found.variance, w.var(axis=0), rtol=0.02)
    # two short steps are one long one
    half = drift.move(drift.move(Q, PRIOR, jnp.asarray(0.5)), PRIOR, jnp.asarray(1.0))
    assert_same(half, found)


def test_rates_that_make_no_sense_are_refused():
    for make, message in [
        (
            lambda: BayesianForgetting(1.0),
            "BayesianForgetting: expected a rate from 0 to 1, 1 itself left out",
        ),
        (lambda: OrnsteinUhlenbeck(0.0), "OrnsteinUhlenbeck: expected rate above 0, got 0.0"),
        (lambda: Wiener(0.1, scale=-1.0), "Wiener: expected scale above 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


SIGMA = 0.8


@pytest.fixture(scope="module")
def rows():
    with pm.Model(coords={"row": range(1), "predictor": range(3)}) as model:
        X = pm.Data("X", np.zeros((1, 3)), dims=("row", "predictor"))
        w = pm.Normal("w", 0, 1, dims="predictor")
        pm.Normal("y", X @ w, SIGMA, observed=np.zeros(1), dims="row")
    return Rows(compile_model(model, covariates=["X"]), "row")


def regression(n: int, seed: int) -> RowBatch:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = X @ np.array([1.0, -0.5, 0.2]) + SIGMA * rng.normal(size=n)
    return RowBatch({"X": jnp.asarray(X), "y": jnp.asarray(y)}, jnp.ones(n))


def standard() -> MeanField:
    return MeanField(jnp.zeros(3), jnp.zeros(3))


def test_rows_have_likelihoods_of_their_own(rows):
    with jax.enable_x64(True):
        batch, z = regression(6, 0), np.array([0.3, 0.1, -0.2])
        expected = stats.norm(batch.data["X"] @ z, SIGMA).logpdf(batch.data["y"])
        np.testing.assert_allclose(rows(jnp.asarray(z), batch.data), expected, rtol=1e-10)
        weighted = batch._replace(weights=jnp.array([1, 0, 0.5, 1, 1, 0.0]))
        total = log_likelihood(rows, jnp.asarray(z), weighted)
        np.testing.assert_allclose(total, (weighted.weights * expected).sum(), rtol=1e-10)


def test_one_row_at_a_time_is_the_papers_recursion(rows):
    """vcl.txt, appendix F, eqs. 6 and 7."""
    with jax.enable_x64(True):
        stream, q = regression(30, 1), standard()
        m, v = np.zeros(3), np.ones(3)
        for i in range(30):
            one = RowBatch({k: x[i : i + 1] for k, x in stream.data.items()}, jnp.ones(1))
            if i < 2:
                assert bool(is_gaussian(rows, q, one.data, jax.random.key(i)))
            q = exact(rows, Target(q, one))
            x, y = np.asarray(one.data["X"][0]), float(one.data["y"][0])
            scaled = np.diag(v) @ np.outer(x, x) / SIGMA**2
            m = np.linalg.solve(np.eye(3) + scaled, v * x * y / SIGMA**2 + m)
            v = 1 / (1 / v + x**2 / SIGMA**2)
        np.testing.assert_allclose(q.mean, m, atol=1e-10)
        np.testing.assert_allclose(q.variance, v, rtol=1e-10)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_monte_carlo_ends_where_the_closed_form_does(rows, local, batch_size):
    """With noise of the weights and of the layer's outputs, with all rows and with some."""
    rows = replace(rows, local=localise(rows.compiled) if local else None)
    batch = regression(60, 2)
    truth = exact(rows, Target(standard(), batch))
    search = Search(steps=3000, draws=20, learning_rate=3e-2, batch_size=batch_size)
    found = climb(rows, standard(), Target(standard(), batch), Way(search), jax.random.key(0))
    sd = np.exp(truth.log_sd)
    np.testing.assert_allclose((found.q.mean - truth.mean) / sd, 0, atol=2e-2)
    np.testing.assert_allclose(np.exp(found.q.log_sd) / sd, 1, atol=2e-2)
    assert found.lower_bound[-100:].mean() > found.lower_bound[:100].mean()
    assert found.skipped == 0


def test_a_logistic_likelihood_is_not_gaussian():
    with pm.Model(coords={"row": range(5)}) as model:
        w = pm.Normal("w")
        pm.Bernoulli("y", logit_p=w * np.arange(5.0), observed=np.zeros(5, int), dims="row")
    rows = Rows(compile_model(model), "row")
    batch = RowBatch({"y": jnp.array([0, 1, 0, 1, 1])}, jnp.ones(5))
    q = MeanField(jnp.zeros(1), jnp.zeros(1))
    assert not bool(is_gaussian(rows, q, batch.data, jax.random.key(0)))


def test_a_batch_that_says_nothing_does_not_say_that_it_is_gaussian():
    """Nor does a Gaussian likelihood with a large curvature beside one that is none."""
    with pm.Model(coords={"row": range(4)}) as model:
        x = pm.Data("x", np.zeros(4), dims="row")
        w = pm.Normal("w")
        pm.Normal("weight", w, 1e-4, observed=np.zeros(4), dims="row")
        pm.Bernoulli("y", logit_p=w * x, observed=np.zeros(4, int), dims="row")
    rows = Rows(compile_model(model, covariates=["x"]), "row")
    q = MeanField(jnp.zeros(1), jnp.zeros(1))
    data = {"weight": jnp.zeros(4), "y": jnp.array([0, 1, 0, 1])}
    with jax.enable_x64(True):
        for x in (jnp.zeros(4), jnp.ones(4)):
            assert not bool(is_gaussian(rows, q, {**data, "x": x}, jax.random.key(0)))


def test_every_row_is_seen_as_often_as_is_asked():
    batch = RowBatch({}, jnp.array([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]))
    plan = steps_of(Search(steps=1, epochs=6, batch_size=2), batch, jax.random.key(0))
    assert list(np.unique(plan.order, return_counts=True)[0]) == [1, 2, 4, 5, 6]
    assert set(np.unique(plan.order, return_counts=True)[1]) == {6}
    assert plan.scale == 2.5
    # fewer rows than a step has
    whole = steps_of(Search(steps=1, epochs=6, batch_size=50), batch, jax.random.key(0))
    assert len(whole.rates) == 6
    assert whole.order is None
    assert Search(steps=100, epochs=6).length(5) == 100
    assert Search(steps=10, first_steps=30).length(5, first=True) == 30


def test_rows_that_are_not_independent_are_refused():
    with pm.Model(coords={"row": range(5)}) as model:
        w = pm.Normal("w")
        pm.MvNormal("y", w * np.ones(5), np.eye(5), observed=np.zeros(5), dims="row")
    with pytest.raises(UnsupportedModelError, match="'y': expected a likelihood with a term for"):
        Rows(compile_model(model), "row")


@pytest.mark.parametrize("drawn", [False, True])
def test_factors_of_a_gaussian_likelihood_are_what_it_is(rows, drawn):
    """Its diagonal part, that is; the rest of the factors' product is in the means."""
    with jax.enable_x64(True):
        batch = regression(15, 3)
        q = exact(rows, Target(standard(), batch))
        if drawn:
            found = residuals(rows, q, batch.data, jax.random.key(0), 100_000)
        else:
            found = exact_residuals(rows, q, batch.data)
        X, y = batch.data["X"], batch.data["y"]
        precision = X**2 / SIGMA**2
        # the standard error of a precision is its sqrt(2 / draws)
        atol, rtol = (0.1, 0.02) if drawn else (1e-10, 1e-10)
        np.testing.assert_allclose(found.factor.precision, precision, atol=atol, rtol=rtol)
        shift = X * (y - X @ q.mean)[:, None] / SIGMA**2 + precision * q.mean
        np.testing.assert_allclose(found.factor.shift, shift, atol=atol, rtol=rtol)
        fair = debiased(found.factor, q, standard().factor, batch.weights)
        assert_same(MeanField.of(standard().factor.times(product(fair, batch.weights))), q)
        diagonal = (X**2 * q.variance).sum(axis=1) / SIGMA**2
        expected = stats.norm(X @ q.mean, SIGMA).logpdf(y) - diagonal / 2
        log_factor = (shift * q.mean - precision * (q.mean**2 + q.variance) / 2).sum(axis=1)
        np.testing.assert_allclose(found.gain, expected - log_factor, atol=atol, rtol=rtol)
        # products of entries of z are in no factor
        z = np.asarray(q.at(jax.random.normal(jax.random.key(9), (100_000, 3))))
        log_p = stats.norm(z @ X.T, SIGMA).logpdf(y)
        log_r = z @ shift.T - z**2 @ precision.T / 2
        np.testing.assert_allclose(found.misfit, (log_p - log_r).var(axis=0), rtol=0.1, atol=1e-4)


def test_scores_are_expected_log_likelihoods_less_those_of_the_factors():
    """One parameter, by quadrature: a logistic likelihood of rows near the boundary, and far."""
    x = np.array([0.2, 1.0, 3.0, -6.0])
    y = np.array([1, 0, 1, 1])
    with pm.Model(coords={"row": range(4)}) as model:
        X = pm.Data("x", x, dims="row")
        w = pm.Normal("w")
        pm.Bernoulli("y", logit_p=w * X, observed=y, dims="row")
    rows = Rows(compile_model(model, covariates=["x"]), "row")
    q = MeanField(jnp.array([0.4]), jnp.log(jnp.array([0.5])))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    at = 0.4 + 0.5 * nodes
    sign = np.where(y == 1, 1, -1)[:, None]
    value = -np.logaddexp(0, -sign * x[:, None] * at)
    odds = 1 / (1 + np.exp(-x[:, None] * at))
    slope = (x[:, None] * (y[:, None] - odds)) @ weights
    precision = (x[:, None] ** 2 * odds * (1 - odds)) @ weights
    shift = slope + precision * 0.4
    score = value @ weights - (shift * 0.4 - precision * (0.4**2 + 0.5**2) / 2)
    with jax.enable_x64(True):
        found = residuals(
            rows, q, {"x": jnp.asarray(x), "y": jnp.asarray(y)}, jax.random.key(1), 100_000
        )
    np.testing.assert_allclose(found.factor.precision[:, 0], precision, atol=0.02)
    np.testing.assert_allclose(found.factor.shift[:, 0], shift, atol=0.02)
    np.testing.assert_allclose(found.gain, score, atol=0.02)
    remainder = value - (shift[:, None] * at - precision[:, None] * at**2 / 2)
    misfit = (remainder**2) @ weights - (remainder @ weights) ** 2
    np.testing.assert_allclose(found.misfit, misfit, rtol=0.1, atol=1e-4)


def test_precisions_of_a_prior_are_those_of_its_entries():
    with pm.Model() as model:
        pm.Normal("a", 1.0, 0.5, shape=3)
        pm.Normal("b", -2.0, 3.0)
        pm.Normal("y", 0.0, 1.0, observed=np.zeros(2))
    with jax.enable_x64(True):
        prior = compile_model(model).log_prior
        flat = MeanField(jnp.zeros(4), jnp.zeros(4))
        normal, factor = normal_entries(prior, flat, jax.random.key(0))
        assert normal.all()
        found = MeanField.of(factor)
        np.testing.assert_allclose(found.mean, [1, 1, 1, -2], rtol=1e-10)
        np.testing.assert_allclose(found.variance, [0.25, 0.25, 0.25, 9], rtol=1e-10)

        def chained(z):
            return prior(z) + 1e-3 * z[0] * z[1] - 1e-3 * jnp.exp(z[3]) - 5e7 * z[2] ** 2

        normal, _ = normal_entries(chained, flat, jax.random.key(0))
        assert list(np.asarray(normal)) == [False, False, True, False]

        def camps(z):  # near zero nothing tells of the one at 50
            return jnp.logaddexp(-(z[0] ** 2), -((z[0] - 50) ** 2)) - (z[1:] ** 2).sum() / 2

        normal, _ = normal_entries(camps, flat, jax.random.key(0))
        assert list(np.asarray(normal)) == [False, True, True, True]


def test_a_prior_of_tiny_scales_is_that_of_units_smaller():
    found = []
    for scale in (1.0, 1e-6):
        with pm.Model(coords={"row": range(1)}) as model:
            s = pm.HalfNormal("s", scale)
            pm.Normal("y", 0, s, observed=np.zeros(1), dims="row")
        prior = pmcl.fit_online(model, random_seed=0, progressbar=False).problem.prior
        found.append((prior.mean[0] - np.log(scale), prior.log_sd[0]))
    np.testing.assert_allclose(*found, atol=1e-6)
    assert -0.7 < found[0][0] < -0.3  # E log |x| is -0.64


def test_a_prior_is_found_where_pymc_begins_at_the_end_of_a_transform():
    with pm.Model(coords={"row": range(1)}) as model:
        above = pm.Normal("above", 0, 1, transform=Interval(0, None))
        pm.Normal("y", above, 1, observed=np.zeros(1), dims="row")
    prior = pmcl.fit_online(model, random_seed=0, progressbar=False).problem.prior
    # nearest to exp(z - exp(2 z) / 2): 1 = exp(2 m + 2 s^2) and 1 = 2 s^2 exp(2 m + 2 s^2)
    found = [prior.mean[0], prior.log_sd[0]]
    np.testing.assert_allclose(found, [-0.5, -np.log(2) / 2], atol=0.05)  # by a noisy search


@pytest.fixture(scope="module")
def network():
    """A classifier with two hidden layers, a head for each of two tasks, and weights of its own."""
    coords = {"row": range(1), "input": range(3), "head": range(2), "label": range(2)}
    with pm.Model(coords=coords) as model:
        X = pm.Data("X", np.zeros((1, 3)), dims=("row", "input"))
        head = pm.Data("task", np.zeros(1, int), dims="row")
        W1, b1 = pm.Normal("W1", 0, 1, shape=(3, 5)), pm.Normal("b1", 0, 1, shape=5)
        W2, b2 = pm.Normal("W2", 0, 1, shape=(5, 4)), pm.Normal("b2", 0, 1, shape=4)
        heads = pm.Normal("heads", 0, 1, shape=(4, 2))
        bias = pm.Normal("bias", 0, 1, dims="head")
        hidden = pt.maximum(X @ W1 + b1, 0)
        hidden = pt.tanh(hidden @ W2 + b2)
        score = (hidden @ heads + bias)[pt.arange(X.shape[0]), head]
        pm.Bernoulli("y", logit_p=score, observed=np.zeros(1, int), dims="row")
    compiled = compile_model(model, covariates=["X", "task"])
    return Rows(compiled, "row", localise(compiled))


def classified(n: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return {"X": X, "task": rng.integers(0, 2, n), "y": (X[:, 0] > 0).astype(int)}


def test_noise_of_outputs_is_that_of_weights_for_every_row(network):
    """Kingma et al. (2015): each row's likelihood has the same distribution either way."""
    assert {w.name for w in network.local.weights} == {"W1", "b1", "W2", "b2", "heads", "bias"}
    assert network.local.layers == 3
    assert network.local.deep
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, classified(4, 0))
        mean, log_sd = jax.random.normal(jax.random.key(0), (2, network.compiled.dim))
        q = MeanField(mean / 2, jnp.log(0.3) + log_sd / 4)
        assert check_separate(network, q, data, jax.random.key(1))
        keys = jax.random.split(jax.random.key(2), 100_000)
        drawn = {}
        for name, rows in (("local", network), ("weights", replace(network, local=None))):
            sample = jit(lambda keys, rows=rows: jax.vmap(lambda k: rows.drawn(q, data, k))(keys))
            drawn[name] = np.asarray(sample(keys))
        sd = drawn["weights"].std(axis=0)
        error = sd / np.sqrt(len(keys))
        np.testing.assert_array_less(
            np.abs(drawn["local"].mean(axis=0) - drawn["weights"].mean(axis=0)), 6 * error
        )
        np.testing.assert_allclose(drawn["local"].std(axis=0) / sd, 1, atol=0.03)
        # rows share the weights' noise, and not the outputs'
        assert np.abs(np.corrcoef(drawn["local"].T)[np.triu_indices(4, 1)]).max() < 0.02
        assert np.abs(np.corrcoef(drawn["weights"].T)[np.triu_indices(4, 1)]).max() > 0.1


def test_layers_that_share_weights_or_mix_rows_keep_their_weights_noise():
    def compiled(build):
        with pm.Model(coords={"row": range(3), "input": range(2)}) as model:
            X = pm.Data("X", np.zeros((3, 2)), dims=("row", "input"))
            pm.Normal("y", build(X), 1.0, observed=np.zeros(3), dims="row")
        return compile_model(model, covariates=["X"])

    def twice(X):
        w = pm.Normal("w", dims="input")
        return X @ w + pt.sqr(X) @ w

    def scaled(X):
        return X @ (pm.HalfNormal("scale") * pm.Normal("w", dims="input"))

    def shared_bias(X):
        W, b = pm.Normal("W", shape=(2, 2)), pm.Normal("b")
        return pt.tanh(X @ W + b).sum(axis=1)

    def centred(X):
        return (X - X.mean(axis=0)) @ pm.Normal("w", dims="input")

    def two(X):
        return X[:, 0] * 0 + X @ pm.Normal("w", dims="input") + pt.sqr(X) @ pm.Normal("v", shape=2)

    both = localise(compiled(two))
    assert both is not None
    assert {w.name for w in both.weights} == {"w", "v"}
    assert not both.deep

    assert localise(compiled(twice)) is None
    assert localise(compiled(scaled)) is None
    found = localise(compiled(shared_bias))
    assert found is not None
    assert [w.name for w in found.weights] == ["W"]  # two outputs of a row share b
    c = compiled(centred)
    q = MeanField(jnp.ones(2), jnp.zeros(2))
    data = {"X": jnp.array([[1.0, 2.0], [0.0, 1.0], [3.0, -1.0]]), "y": jnp.zeros(3)}
    with pytest.raises(UnsupportedModelError, match="'X': expected that a row's likelihood"):
        check_separate(Rows(c, "row", localise(c)), q, data, jax.random.key(0))

    def flipped(X):
        return pt.flip(X @ pm.Normal("w", dims="input"))

    c = compiled(flipped)
    rows = Rows(c, "row", localise(c))
    constant = {"X": jnp.ones((3, 2)), "y": jnp.zeros(3)}
    with pytest.raises(UnsupportedModelError, match="rows depend on one another"):
        check_separate(rows, q, constant, jax.random.key(0))


@pytest.mark.parametrize("activation", ["relu", "tanh", np.sin])
def test_prior_scales_give_outputs_of_unit_variance(activation):
    """grs.txt, appendix H: over weights and data, for inputs that were standard normal."""
    f = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}.get(activation, activation)
    rng = np.random.default_rng(0)
    W = prior_scale(50, activation) * rng.normal(size=(50, 4000))
    out = f(rng.normal(size=(4000, 50))) @ W
    assert out.var(axis=0).mean() == pytest.approx(1, rel=0.03)
    assert prior_scale(9) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="prior_scale: expected an activation of"):
        prior_scale(3, "step")
    with pytest.raises(ValueError, match="expected at least one input"):
        prior_scale(0)


def test_lengths_are_few_and_never_far_too_long():
    lengths = [padded(n) for n in range(1, 3000)]
    assert all(m >= n for n, m in enumerate(lengths, start=1))
    assert all(m <= 1.25 * n + 1 for n, m in enumerate(lengths, start=1))
    assert len(set(lengths)) < 45
    assert all(padded(m) == m for m in lengths)


@pytest.mark.parametrize("shape", ["two in a sum", "shared by outputs"])
def test_sums_of_layers_have_the_noise_of_both(shape):
    """And a layer that several outputs of a row share has one noise for all of them."""
    coords = {"row": range(1), "input": range(2), "output": range(3)}
    with pm.Model(coords=coords) as model:
        X = pm.Data("X", np.zeros((1, 2)), dims=("row", "input"))
        w, v = pm.Normal("w", dims="input"), pm.Normal("v", dims="input")
        b = pm.Normal("b", dims="output")
        if shape == "two in a sum":
            mean = (X @ w + pt.sqr(X) @ v)[:, None] * np.ones(3)
        else:
            mean = (X @ w)[:, None] + b
        pm.Categorical("y", logit_p=2 * mean + mean**2, observed=np.zeros(1, int), dims="row")
    compiled = compile_model(model, covariates=["X"])
    rows = Rows(compiled, "row", localise(compiled))
    assert rows.local is not None
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        data = {"X": jnp.asarray(rng.normal(size=(3, 2))), "y": jnp.array([0, 1, 2])}
        q = MeanField(jnp.asarray(rng.normal(size=compiled.dim)), jnp.full(compiled.dim, -0.7))
        keys, found = jax.random.split(jax.random.key(2), 100_000), []
        for one in (rows, replace(rows, local=None)):
            sample = jit(lambda keys, one=one: jax.vmap(lambda k: one.drawn(q, data, k))(keys))
            found.append(np.asarray(sample(keys)))
        error = found[1].std(axis=0) / np.sqrt(len(keys))
        difference = np.abs(found[0].mean(axis=0) - found[1].mean(axis=0))
        np.testing.assert_array_less(difference, 6 * error + 1e-9)
        np.testing.assert_allclose(found[0].std(axis=0), found[1].std(axis=0), rtol=0.03, atol=1e-9)


def test_rows_are_told_to_depend_on_one_another_by_one_row_too():
    with pm.Model(coords={"row": range(1), "input": range(2)}) as model:
        X = pm.Data("X", np.zeros((1, 2)), dims=("row", "input"))
        pm.Normal("y", (X - X.mean(axis=0)) @ pm.Normal("w", dims="input"), 1.0,
                  observed=np.zeros(1), dims="row")  # fmt: skip
    rows = Rows(compile_model(model, covariates=["X"]), "row")
    one = {"X": jnp.array([[1.0, 2.0]]), "y": jnp.ones(1)}
    with pytest.raises(UnsupportedModelError, match="rows depend on one another"):
        check_separate(rows, MeanField(jnp.zeros(2), jnp.zeros(2)), one, jax.random.key(0))
