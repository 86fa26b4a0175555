"""Streams with covariances: families of normals against closed forms, quadrature and each other."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pmcl
from pmcl.archive import StateError
from pmcl.compile import compile_model
from pmcl.compile.predictors import predictors
from pmcl.online.families.dense import Full, divergence
from pmcl.online.families.low_rank import LowRank
from pmcl.online.gaussian import MeanField

SIGMA = 0.8
FAMILIES = ["full", "low_rank"]


def linear_model(noise: float | None = SIGMA) -> pm.Model:
    with pm.Model(coords={"row": range(1), "predictor": ["a", "b", "c"]}) as model:
        X = pm.Data("X", np.zeros((1, 3)), dims=("row", "predictor"))
        w = pm.Normal("w", 0, 1, dims="predictor")
        sd = pm.HalfNormal("sigma", 1.0) if noise is None else noise
        pm.Normal("y", X @ w, sd, observed=np.zeros(1), dims="row")
    return model


def linear(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) @ [[1, 0.9, 0], [0, 0.4, 0], [0, 0, 1]]
    return {"X": X, "y": X @ [1.0, -0.5, 0.2] + SIGMA * rng.normal(size=n)}


def part(data, index):
    return {k: v[index] for k, v in data.items()}


def posterior(data):
    precision = np.eye(3) + data["X"].T @ data["X"] / SIGMA**2
    return np.linalg.solve(precision, data["X"].T @ data["y"] / SIGMA**2), np.linalg.inv(precision)


@pytest.fixture(scope="module", params=FAMILIES)
def line(request):
    return pmcl.fit_online(linear_model(), family=request.param, random_seed=0, progressbar=False)


def assert_posterior(stream, data, atol=1e-6):
    q = stream.approximation()
    mean, covariance = posterior(data)
    np.testing.assert_allclose(q.mean, mean, atol=atol)
    np.testing.assert_allclose(q.solve(jnp.eye(3)), covariance, atol=atol)


def test_a_linear_model_streamed_row_by_row_ends_at_the_exact_posterior(line):
    data, stream = linear(24, 0), line
    for i in range(8):
        stream = stream.update(part(data, slice(i, i + 1)), progressbar=False)
    for i in (8, 16):
        stream = stream.update(part(data, slice(i, i + 8)), progressbar=False)
    assert_posterior(stream, data)
    assert (stream.history["steps"] <= 3).all()
    assert line.state.updates == 0
    # a mean field loses what covariances say
    mean = pmcl.fit_online(linear_model(), random_seed=0, progressbar=False)
    mean = mean.update(data, progressbar=False).approximation()
    assert np.abs(np.exp(mean.log_sd) / np.sqrt(np.diag(posterior(data)[1])) - 1).max() > 0.3


@pytest.mark.parametrize("memory", [pmcl.RandomCoreset(6), pmcl.KCenterCoreset(6),
                                    pmcl.ResidualMemory(6, draws=50),
                                    pmcl.ResidualMemory(6, draws=50, score="gain")])  # fmt: skip
def test_memories_lose_nothing_of_a_gaussian_likelihood(line, memory):
    data = linear(24, 1)
    stream = replace(line, settings=line.settings._replace(memory=memory))
    for i in (0, 8, 16):
        stream = stream.update(part(data, slice(i, i + 8)), progressbar=False)
    assert len(stream.state.memory) == 6
    assert_posterior(stream, data)
    # what is stored is not in q
    rest = np.linalg.inv(posterior(data)[1])
    rest = rest - stream.state.memory.data["X"].T @ stream.state.memory.data["X"] / SIGMA**2
    np.testing.assert_allclose(stream.state.q.solve(jnp.eye(3)), np.linalg.inv(rest), atol=1e-6)


def test_forgetting_is_a_weighted_regression(line):
    data, drift = linear(16, 2), pmcl.BayesianForgetting(0.3, scale=2.0)
    stream = replace(line, settings=line.settings._replace(drift=drift))
    for time, index in ((0.0, slice(0, 8)), (3.0, slice(8, 16))):
        stream = stream.update(part(data, index), time=time, progressbar=False)
    weights = np.repeat([0.7**1.5, 1.0], 8)[:, None]
    precision = np.eye(3) + data["X"].T @ (weights * data["X"]) / SIGMA**2
    mean = np.linalg.solve(precision, data["X"].T @ (weights[:, 0] * data["y"]) / SIGMA**2)
    q = stream.approximation()
    np.testing.assert_allclose(q.mean, mean, atol=1e-8)
    np.testing.assert_allclose(q.solve(jnp.eye(3)), np.linalg.inv(precision), atol=1e-8)


@pytest.fixture(scope="module")
def normals():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        prior = MeanField(jnp.asarray(rng.normal(size=6)), jnp.asarray(0.3 * rng.normal(size=6)))
        columns = jnp.asarray(rng.normal(size=(6, 3)))
        precision = np.diag(np.exp(-2 * prior.log_sd)) + columns @ columns.T
        both = [kind.independent(prior).plus(columns) for kind in (Full, LowRank)]
        return prior, columns, np.asarray(precision), both


def test_normals_with_covariances_are_what_they_say(normals):
    prior, columns, precision, both = normals
    covariance = np.linalg.inv(precision)
    rng = np.random.default_rng(1)
    z, J = rng.normal(size=(5, 6)), rng.normal(size=(4, 2, 6))
    with jax.enable_x64(True):
        truth = stats.multivariate_normal(np.asarray(prior.mean), covariance)
        for q in both:
            np.testing.assert_allclose(q.variance, np.diag(covariance), rtol=1e-9)
            np.testing.assert_allclose(q.solve(columns), covariance @ columns, rtol=1e-9)
            np.testing.assert_allclose(q.apply(columns), precision @ columns, rtol=1e-9)
            spread = np.einsum("nid,de,nje->nij", J, covariance, J)
            np.testing.assert_allclose(q.spread(jnp.asarray(J)), spread, rtol=1e-9)
            np.testing.assert_allclose(q.log_density(z), truth.logpdf(z), rtol=1e-9)
            root = np.asarray(q.at(jnp.eye(6)) - q.mean)
            np.testing.assert_allclose(root.T @ root, covariance, atol=1e-9)
            first = type(q).independent(prior)
            trace = np.trace(covariance @ np.diag(np.exp(-2 * prior.log_sd)))
            ratio = np.linalg.slogdet(precision)[1] + 2 * float(prior.log_sd.sum())
            np.testing.assert_allclose(divergence(q, first), (trace - 6 + ratio) / 2, rtol=1e-9)


def test_drifts_move_covariances_as_their_formulas_say(normals):
    prior, _, precision, both = normals
    covariance, prior_variance = np.linalg.inv(precision), np.diag(np.exp(2 * prior.log_sd))
    with jax.enable_x64(True):
        far = [q._replace(mean=q.mean + 1.0) for q in both]
        kept = float(np.exp(-0.4 * 1.5))
        expected = {
            pmcl.OrnsteinUhlenbeck(0.4): (1 - kept**2) * prior_variance + kept**2 * covariance,
            pmcl.Wiener(0.4): covariance + 0.6 * prior_variance,
            pmcl.BayesianForgetting(0.3): np.linalg.inv(
                0.7**1.5 * precision + (1 - 0.7**1.5) * np.linalg.inv(prior_variance)
            ),
        }
        for drift, truth in expected.items():
            full, low = (drift.move(q, prior, jnp.asarray(1.5)) for q in far)
            np.testing.assert_allclose(full.covariance, truth, atol=1e-9)
            np.testing.assert_allclose(low.solve(jnp.eye(6)), truth, atol=1e-9)
            np.testing.assert_allclose(full.mean, low.mean, atol=1e-9)


def test_a_short_precision_keeps_its_diagonal(normals):
    _, _, precision, (_, low) = normals
    with jax.enable_x64(True):
        short = low.short(2)
        assert short.columns.shape == (6, 2)
        np.testing.assert_allclose(np.diag(short.apply(jnp.eye(6))), np.diag(precision), rtol=1e-9)
        whole = low.plus(low.columns).short(3)
        twice = low.plus(low.columns).apply(jnp.eye(6))
        np.testing.assert_allclose(whole.apply(jnp.eye(6)), twice, atol=1e-9)


def test_predictors_and_their_densities_are_those_of_the_model():
    with pm.Model(coords={"row": range(1), "p": range(3)}) as model:
        X = pm.Data("X", np.zeros((1, 3)), dims=("row", "p"))
        w, s = pm.Normal("w", dims="p"), pm.HalfNormal("s")
        pm.Normal("y", X @ w, s, observed=np.zeros(1), dims="row")
        pm.Bernoulli("b", logit_p=X @ w, observed=np.zeros(1, int), dims="row")
        pm.Poisson("c", pm.math.exp(X @ w), observed=np.zeros(1, int), dims="row")
        V = pm.Normal("V", shape=(3, 4))
        pm.Categorical("k", logit_p=X @ V, observed=np.zeros(1, int), dims="row")
        pm.Binomial("n", n=5, p=pm.math.sigmoid(X @ w), observed=np.zeros(1, int), dims="row")
        pm.NegativeBinomial(
            "m", mu=pm.math.exp(X @ w), alpha=s, observed=np.zeros(1, int), dims="row"
        )
        pm.StudentT("t", nu=4, mu=X @ w, sigma=s, observed=np.zeros(1), dims="row")
        pm.Gamma("g", mu=pm.math.exp(X @ w), sigma=s, observed=np.ones(1), dims="row")
    compiled = compile_model(model, covariates=["X"])
    rng = np.random.default_rng(0)
    counts = np.array([0, 1, 3, 2])
    data = {"X": rng.normal(size=(4, 3)), "b": np.array([0, 1, 1, 0]), "c": counts, "k": counts,
            "n": counts, "m": counts, "y": rng.normal(size=4), "t": rng.normal(size=4),
            "g": rng.gamma(2, size=4)}  # fmt: skip
    with jax.enable_x64(True):
        data = {k: jnp.asarray(v) for k, v in data.items()}
        z = jnp.asarray(rng.normal(size=compiled.dim))
        terms, told = compiled.log_likelihood_terms(z, data), predictors(compiled)
        for one, (eta, others) in zip(told.parts, told(z, data), strict=True):
            found = one.log_density(eta, others, data[one.name])
            np.testing.assert_allclose(found, terms[one.name], rtol=1e-6, atol=1e-8)
            drawn = one.draw(
                np.repeat(np.asarray(eta)[None], 20_000, axis=0),
                tuple(np.asarray(v) for v in others),
                np.random.default_rng(1),
            )
            assert drawn.shape == (20_000, 4)
        odds = 1 / (1 + np.exp(-np.asarray(data["X"] @ compiled.unravel(z)["w"])))
        bernoulli = next(i for i, one in enumerate(told.parts) if one.name == "b")
        drawn = told.parts[bernoulli].draw(
            np.repeat(np.asarray(told(z, data)[bernoulli][0])[None], 20_000, axis=0), (), rng
        )
        np.testing.assert_allclose(drawn.mean(axis=0), odds, atol=0.02)


def test_a_logistic_regression_is_the_best_normal():
    """On a grid: the lower bound has no slope at the normal that is found."""
    with pm.Model(coords={"row": range(1), "p": range(2)}) as model:
        X = pm.Data("X", np.zeros((1, 2)), dims=("row", "p"))
        pm.Bernoulli("y", logit_p=X @ pm.Normal("w", 0, 1.5, dims="p"),
                     observed=np.zeros(1, int), dims="row")  # fmt: skip
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)) @ [[1, 0.8], [0, 0.6]]
    y = rng.binomial(1, special.expit(X @ [1.5, -1.0]))
    stream = pmcl.fit_online(model, family="auto", random_seed=0, progressbar=False)
    assert stream.settings.family == "full"
    stream = stream.update({"X": X, "y": y}, progressbar=False)
    q = stream.approximation()
    covariance = np.asarray(q.covariance)
    # expectations over the linear predictors, by quadrature
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    at = (X @ np.asarray(q.mean))[:, None] + np.sqrt(np.einsum("nd,de,ne->n", X, covariance, X))[
        :, None
    ] * nodes
    odds = special.expit(at)
    slope = X.T @ (y - odds @ weights) - np.asarray(q.mean) / 1.5**2
    precision = np.eye(2) / 1.5**2 + X.T @ (((odds * (1 - odds)) @ weights)[:, None] * X)
    np.testing.assert_allclose(slope, 0, atol=1e-4)
    np.testing.assert_allclose(np.linalg.inv(covariance), precision, rtol=1e-4)
    assert float(stream.history["khat"][-1]) < 0.5


def test_an_unknown_noise_and_a_prior_that_is_not_normal():
    """Against the posterior of sigma with the weights integrated out, on a grid."""
    data = linear(30, 3)
    stream = pmcl.fit_online(linear_model(None), family="full", random_seed=0, progressbar=False)
    for index in (slice(0, 15), slice(15, 30)):
        stream = stream.update(part(data, index), progressbar=False)
    log_sd = np.linspace(-2, 1.5, 2000)
    covariance = data["X"] @ data["X"].T
    log_p = np.array(
        [
            stats.multivariate_normal(np.zeros(30), covariance + np.exp(2 * s) * np.eye(30))
            .logpdf(data["y"]) + stats.halfnorm().logpdf(np.exp(s)) + s
            for s in log_sd
        ]
    )  # fmt: skip
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ log_sd
    sd = np.sqrt(p @ (log_sd - mean) ** 2)
    q = stream.approximation()
    i = stream.compiled.values[1].start
    assert stream.compiled.values[1].name.startswith("sigma")
    assert float(q.mean[i] - mean) / sd == pytest.approx(0, abs=0.35)
    assert float(np.exp(q.log_sd[i])) / sd == pytest.approx(1, abs=0.15)


def test_a_stream_with_covariances_is_saved_and_goes_on_the_same(line, tmp_path):
    data = linear(12, 4)
    stream = replace(line, settings=line.settings._replace(memory=pmcl.ResidualMemory(4)))
    stream = stream.update(part(data, slice(0, 8)), progressbar=False)
    path = tmp_path / "stream.zarr.zip"
    pmcl.save(stream, path)
    again = pmcl.load(path, linear_model())
    for name in ("q", "predictive"):
        for a, b in zip(getattr(again.state, name), getattr(stream.state, name), strict=True):
            np.testing.assert_array_equal(a, b)
    both = [s.update(part(data, slice(8, 12)), progressbar=False) for s in (stream, again)]
    np.testing.assert_array_equal(both[0].approximation().mean, both[1].approximation().mean)
    broken = replace(stream, state=stream.state._replace(q=_broken(stream.state.q)))
    path = tmp_path / "broken.zarr.zip"
    pmcl.save(broken, path)
    with pytest.raises(StateError, match="q: expected a precision that is positive definite"):
        pmcl.load(path, linear_model())


def _broken(q):
    if isinstance(q, Full):
        return q._replace(precision=-q.precision)
    return q._replace(diagonal=-q.diagonal)


def test_what_does_not_fit_a_family_is_said():
    model = linear_model()
    for settings, message in [
        ({"family": "fuller"}, "family: expected one of"),
        ({"family": "full", "precision": "single"}, "covariances need precision='double'"),
        ({"family": "full", "search": pmcl.Search()}, "needs a GaussNewton"),
        ({"search": pmcl.GaussNewton()}, "needs a Search"),
        ({"family": "low_rank", "strength": 2.0}, "`strength` is for a mean field"),
    ]:
        with pytest.raises(ValueError, match=message):
            pmcl.fit_online(model, progressbar=False, **settings)
    with pm.Model(coords={"row": range(1)}) as mixed:
        w = pm.Normal("w", shape=2)
        pm.NormalMixture("y", [0.5, 0.5], w, 1.0, observed=np.zeros(1), dims="row")
    with pytest.raises(ValueError, match="'y' is of 'MixtureRV', which is none of"):
        pmcl.fit_online(mixed, family="full", progressbar=False)
    auto = pmcl.fit_online(mixed, family="auto", progressbar=False)
    assert auto.settings.family == "mean_field"
    with pytest.raises(ValueError, match="GaussNewton: expected steps of at least 1"):
        pmcl.GaussNewton(steps=0)


SHAPED = {
    "gamma": (
        lambda a, b, y: pm.Gamma("y", alpha=pm.math.exp(b), beta=pm.math.exp(b - a), observed=y),
        lambda a, b, y: stats.gamma.logpdf(y, np.exp(b), scale=np.exp(a - b)),
        lambda rng: rng.gamma(3, 2, size=60),
    ),
    "negative binomial": (
        lambda a, b, y: pm.NegativeBinomial(
            "y", mu=pm.math.exp(a), alpha=pm.math.exp(b), observed=y
        ),
        lambda a, b, y: stats.nbinom.logpmf(y, np.exp(b), 1 / (1 + np.exp(a - b))),
        lambda rng: rng.negative_binomial(3, 0.1, size=60),
    ),
    "laplace": (
        lambda a, b, y: pm.Laplace("y", mu=a, b=pm.math.exp(b), observed=y),
        lambda a, b, y: stats.laplace.logpdf(y, a, np.exp(b)),
        lambda rng: 1 + rng.laplace(size=60),
    ),
    "logistic": (
        lambda a, b, y: pm.Logistic("y", mu=a, s=pm.math.exp(b), observed=y),
        lambda a, b, y: stats.logistic.logpdf(y, a, np.exp(b)),
        lambda rng: 1 + rng.logistic(size=60),
    ),
    "weibull": (
        lambda a, b, y: pm.Weibull("y", alpha=pm.math.exp(b), beta=pm.math.exp(a), observed=y),
        lambda a, b, y: stats.weibull_min.logpdf(y, np.exp(b), scale=np.exp(a)),
        lambda rng: 3 * rng.weibull(2, size=60),
    ),
    "beta": (
        lambda a, b, y: pm.Beta("y", alpha=pm.math.exp(a), beta=pm.math.exp(b), observed=y),
        lambda a, b, y: stats.beta.logpdf(y, np.exp(a), np.exp(b)),
        lambda rng: rng.beta(3, 2, size=60),
    ),
    "student": (
        lambda a, b, y: pm.StudentT("y", nu=3, mu=a, sigma=pm.math.exp(b), observed=y),
        lambda a, b, y: stats.t.logpdf(y, 3, a, np.exp(b)),
        lambda rng: 1 + rng.standard_t(3, size=60),
    ),
}


def test_a_low_rank_precision_gives_back_what_a_full_one_does():
    """What lies within its columns, exactly; what does not, as far as they go."""
    rng = np.random.default_rng(0)
    columns = jnp.asarray(rng.normal(size=(6, 3)))
    before = LowRank(jnp.zeros(6), jnp.asarray(rng.uniform(0.5, 2, 6)), columns)
    less = columns @ jnp.asarray(0.3 * rng.normal(size=(3, 2)))
    dense = Full(before.mean, before.apply(jnp.eye(6)))
    after = before.minus(less)
    assert after.columns.shape == columns.shape
    np.testing.assert_allclose(
        after.apply(jnp.eye(6)), dense.minus(less).precision, rtol=1e-10, atol=1e-12
    )
    more = before.minus(50 * jnp.asarray(rng.normal(size=(6, 4)))).apply(jnp.eye(6))
    lost = np.linalg.eigvalsh(dense.precision - more)
    assert lost.min() > -1e-9
    assert lost.max() > 0.1
    assert np.linalg.eigvalsh(more - jnp.diag(before.diagonal)).min() > -1e-9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SHAPED)
def test_shapes_of_rows_that_are_not_concave_are_known_as_well_as_they_are(name, family):
    """Single rows' curvatures may be negative: without these a sd came out a fifth too small."""
    make, log_p, draw = SHAPED[name]
    y = draw(np.random.default_rng(1))
    with pm.Model() as model:
        make(pm.Normal("a", 1, 2), pm.Normal("b", 0, 2), np.zeros(1, y.dtype))
    stream = pmcl.fit_online(model, family=family, random_seed=0, progressbar=False)
    stream = stream.update({"y": y}, progressbar=False)
    q = stream.approximation()
    sd = np.sqrt(np.asarray(q.variance))
    axes = [m + 6 * s * np.linspace(-1, 1, 81) for m, s in zip(np.asarray(q.mean), sd, strict=True)]
    a, b = np.meshgrid(*axes, indexing="ij")
    height = log_p(a[..., None], b[..., None], y).sum(axis=-1)
    height = height + stats.norm.logpdf(a, 1, 2) + stats.norm.logpdf(b, 0, 2)
    p = np.exp(height - height.max())
    means = [np.average(v, weights=p) for v in (a, b)]
    sds = [np.sqrt(np.average((v - m) ** 2, weights=p)) for v, m in zip((a, b), means, strict=True)]
    np.testing.assert_allclose((np.asarray(q.mean) - means) / sds, 0, atol=0.1)
    np.testing.assert_allclose(sd, sds, rtol=0.06)


def test_a_mean_far_below_what_is_counted_is_left():
    """From a rate of 1 to one of a million a first step has to be a millionth of its length."""
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("a", 0, 3)), observed=np.zeros(1, int))
    stream = pmcl.fit_online(model, family="full", random_seed=0, progressbar=False)
    stream = stream.update({"y": np.full(20, 10**6)}, progressbar=False)
    q = stream.approximation()
    assert float(q.mean[0]) == pytest.approx(np.log(10**6), abs=1e-4)
    assert float(q.variance[0]) == pytest.approx(1 / (20 * 10**6), rel=0.01)


def test_a_step_that_cannot_be_taken_at_any_length_is_said():
    """From a rate of 1 to one of 1e15: the shortest step is still a thousand times too long."""
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("a", 0, 30)), observed=np.zeros(1, int))
    stream = pmcl.fit_online(model, family="full", random_seed=0, progressbar=False)
    with pytest.warns(UserWarning, match="before it arrived"):
        stream.update({"y": np.full(20, 10**15)}, progressbar=False)


CERTAIN = {
    "probit": (
        lambda e, **k: pm.Bernoulli("y", p=pm.math.invprobit(e), **k),
        lambda e: np.stack([stats.norm.logcdf(-e), stats.norm.logcdf(e)]),
    ),
    "guessed": (
        lambda e, **k: pm.Bernoulli("y", p=0.2 + 0.8 * pm.math.sigmoid(e), **k),
        lambda e: np.log(np.stack([0.8 * special.expit(-e), 0.2 + 0.8 * special.expit(e)])),
    ),
    "ordered": (
        lambda e, **k: pm.OrderedLogistic("y", eta=e, cutpoints=[-1.0, 1.0], **k),
        lambda e: np.log(
            np.diff([0 * e, special.expit(-1 - e), special.expit(1 - e), 1 + 0 * e], axis=0)
        ),
    ),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_rows_whose_probability_rounds_to_one_are_told_apart(name):
    """On a grid: a row far out, which was certain, says nothing more, and spoils nothing."""
    make, log_p = CERTAIN[name]
    with pm.Model(coords={"row": range(1)}) as model:
        x = pm.Data("x", np.zeros(1), dims="row")
        w = pm.Normal("w", 0, 2)
        make(w * x, observed=np.zeros(1, int), dims="row")
    rng = np.random.default_rng(2)
    x, grid = rng.normal(size=80), np.linspace(-1, 4, 2001)
    odds = np.exp(log_p(1.2 * x))
    y = (rng.uniform(size=80) > odds.cumsum(axis=0)[:-1]).sum(axis=0)
    far = {"ordered": (-60.0, 0)}.get(name, (60.0, 1))
    x, y = np.append(x, far[0]), np.append(y, far[1])
    stream = pmcl.fit_online(model, family="full", random_seed=0, progressbar=False)
    q = stream.update({"x": x, "y": y}, progressbar=False).approximation()
    with np.errstate(divide="ignore"):
        each = log_p(grid[:, None] * x)
    height = stats.norm.logpdf(grid, 0, 2)
    height = height + each[y, :, np.arange(81)].sum(axis=0)
    p = np.exp(height - height.max())
    mean = np.average(grid, weights=p)
    sd = np.sqrt(np.average((grid - mean) ** 2, weights=p))
    assert float(q.mean[0]) == pytest.approx(mean, abs=0.1 * sd)
    assert float(np.sqrt(q.variance[0])) == pytest.approx(sd, rel=0.06)
