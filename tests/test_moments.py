"""Full normals in a stream have the posterior's moments where predictors or priors are bent."""

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pmcl
from pmcl.online.families import update
from pmcl.online.families.dense import Full
from pmcl.online.families.moments import consistent, matched
from pmcl.online.memory import Stored
from pmcl.online.search.bound import Target
from pmcl.online.state import as_batch

GROUPS, EACH, NOISE = 6, 40, 1.0


def groups(*, centred: bool) -> pm.Model:
    with pm.Model(coords={"row": range(1), "group": range(GROUPS)}) as model:
        g = pm.Data("g", np.zeros(1, int), dims="row")
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        if centred:
            effect = pm.Normal("effect", mu, tau, dims="group")
        else:
            effect = mu + tau * pm.Normal("raw", 0, 1, dims="group")
        pm.Normal("y", effect[g], NOISE, observed=np.zeros(1), dims="row")
    return model


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    g = rng.permutation(np.repeat(np.arange(GROUPS), EACH))
    return {"g": g, "y": rng.normal(1, 0.5, GROUPS)[g] + NOISE * rng.normal(size=len(g))}


@pytest.fixture(scope="module")
def exact(rows) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of mu and log tau on a grid, the groups' effects integrated out."""
    mu, log_tau = np.meshgrid(np.linspace(-2, 4, 241), np.linspace(-8, 3, 441), indexing="ij")
    tau = np.exp(log_tau)
    log = stats.norm.logpdf(mu, 0, 2) + stats.halfnorm.logpdf(tau) + log_tau
    for j in range(GROUPS):
        mean = rows["y"][rows["g"] == j].mean()
        log = log + stats.norm.logpdf(mean, mu, np.sqrt(tau**2 + NOISE**2 / EACH))
    p = np.exp(log - log.max())
    p /= p.sum()
    values = np.stack([mu, log_tau])
    means = (p * values).sum(axis=(1, 2))
    return means, np.sqrt((p * (values - means[:, None, None]) ** 2).sum(axis=(1, 2)))


def found(stream: pmcl.OnlinePosterior) -> tuple[np.ndarray, np.ndarray]:
    draws = stream.sample(draws=20_000, random_seed=0).posterior
    of = [draws["mu"].values.ravel(), np.log(draws["tau"].values.ravel())]
    return np.mean(of, axis=1), np.std(of, axis=1)


@pytest.mark.filterwarnings("ignore:Update")
@pytest.mark.parametrize("centred", [True, False])
def test_groups_with_an_unknown_spread(centred, rows, exact):
    """A search by slopes ends nowhere where effects are centred, and at the prior where not."""
    start = pmcl.fit_online(
        groups(centred=centred), family="full", random_seed=1, progressbar=False
    )
    means, sds = exact
    mean, sd = found(start.update(rows, progressbar=False))
    assert np.all(np.abs(mean - means) < 0.25 * sds)
    np.testing.assert_allclose(sd, sds, rtol=0.35)
    # forty rows at a time: what they tell of the spread is far from any normal
    stream = start
    first = {k: v[:EACH] for k, v in rows.items()}
    with pytest.warns(UserWarning, match="nats from the normal"):
        stream = stream.update(first, progressbar=False)
    for i in range(1, GROUPS):
        batch = {k: v[i * EACH : (i + 1) * EACH] for k, v in rows.items()}
        stream = stream.update(batch, progressbar=False)
    mean, sd = found(stream)
    assert np.all(np.abs(mean - means) < (1.0 if centred else 2.5) * sds)
    assert np.all((sd > sds / 2) & (sd < 2 * sds))
    assert float(stream.history["divergence"][0]) > 5 * float(stream.history["divergence"][-1])


def test_moments_of_a_product():
    """Against a grid: a product is not linear in its factors."""
    with pm.Model(coords={"row": range(1)}) as model:
        a, b = pm.Normal("a", 1.0, 0.3), pm.Normal("b", 0, 1)
        pm.Normal("y", a * b, 1.0, observed=np.zeros(1), dims="row")
    y = 0.4 + np.random.default_rng(0).normal(size=8)
    stream = pmcl.fit_online(model, family="full", random_seed=0, progressbar=False)
    stream = stream.update({"y": y}, progressbar=False)
    A, B = np.meshgrid(np.linspace(-3, 4, 401), np.linspace(-5, 5, 401), indexing="ij")
    log = stats.norm.logpdf(A, 1.0, 0.3) + stats.norm.logpdf(B)
    log = log + stats.norm.logpdf(y[:, None, None], A * B, 1.0).sum(axis=0)
    p = np.exp(log - log.max())
    evidence = np.log(p.sum()) + log.max() + np.log(7 / 400 * 10 / 400)
    p /= p.sum()
    mean = np.array([(p * A).sum(), (p * B).sum()])
    far = np.stack([A - mean[0], B - mean[1]])
    covariance = np.einsum("iab,jab,ab->ij", far, far, p)
    q = stream.approximation()
    sds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(q.mean / sds, mean / sds, atol=0.1)
    np.testing.assert_allclose(q.covariance / np.outer(sds, sds), covariance / np.outer(sds, sds),
                               atol=0.15)  # fmt: skip
    assert float(stream.history["log_evidence"][0]) == pytest.approx(evidence, abs=0.05)


def test_what_rows_say_nothing_of_stays_given_the_rest():
    """Of many entries few are touched: the others keep their means, and theirs alone move."""
    dim = 60
    with pm.Model(coords={"row": range(1), "p": range(dim)}) as model:
        X = pm.Data("X", np.zeros((1, dim)), dims=("row", "p"))
        w = pm.Normal("w", 0, 1, dims="p")
        pm.Poisson("y", pm.math.exp(X @ w), observed=np.zeros(1, int), dims="row")
    rng = np.random.default_rng(0)
    X = np.zeros((12, dim))
    X[:, :3] = rng.normal(size=(12, 3))
    batch = {"X": X, "y": rng.poisson(np.exp(X[:, :3] @ [0.5, -0.5, 1.0]))}
    stream = pmcl.fit_online(model, family="full", random_seed=0, progressbar=False)
    q = stream.update(batch, progressbar=False).approximation()
    np.testing.assert_array_equal(q.mean[3:], 0)
    np.testing.assert_allclose(q.covariance[3:, 3:], np.eye(dim - 3), atol=1e-12)
    np.testing.assert_allclose(q.covariance[:3, 3:], 0, atol=1e-12)


@pytest.mark.parametrize("dim", [3, 40, 100])
def test_a_mean_that_is_off_costs_no_variance(dim):
    """Beside the exact posterior of a regression: the mean moves, and the precision stays."""
    with pm.Model(coords={"row": range(1), "p": range(dim)}) as model:
        X = pm.Data("X", np.zeros((1, dim)), dims=("row", "p"))
        pm.Normal("y", X @ pm.Normal("w", 0, 1, dims="p"), 1.0, observed=np.zeros(1), dims="row")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * dim, dim))
    data = {"X": X, "y": rng.normal(size=2 * dim)}
    rows = pmcl.fit_online(model, family="full", progressbar=False).problem.rows
    base = Full(jnp.zeros(dim), jnp.eye(dim))
    precision = np.eye(dim) + X.T @ X
    mean = np.linalg.solve(precision, X.T @ data["y"])
    off = np.linalg.solve(np.linalg.cholesky(precision).T, np.full(dim, 0.7 / np.sqrt(dim)))
    stored = Stored(data, np.zeros(2 * dim), np.full(2 * dim, "0"))
    target = Target(base, as_batch(rows, stored, np.ones(2 * dim)))
    start = Full(jnp.asarray(mean + off), jnp.asarray(precision))
    found = matched(rows, start, target, jax.random.key(0)).q
    left = np.linalg.cholesky(precision).T @ (np.asarray(found.mean) - mean)
    assert np.sum(left**2) < 0.2 * 0.7**2
    turned = np.linalg.solve(precision, np.asarray(found.precision))
    np.testing.assert_allclose(np.linalg.eigvals(turned).real, 1, atol=0.1)


def test_the_normal_beside_stored_rows_is_what_is_left_of_all():
    """Of a regression, whose rows can be divided out exactly: from a normal that is off."""
    dim, n = 3, 12
    with pm.Model(coords={"row": range(1), "p": range(dim)}) as model:
        X = pm.Data("X", np.zeros((1, dim)), dims=("row", "p"))
        pm.Normal("y", X @ pm.Normal("w", 0, 1, dims="p"), 1.0, observed=np.zeros(1), dims="row")
    rng = np.random.default_rng(0)
    data = {"X": rng.normal(size=(n, dim)), "y": rng.normal(size=n)}
    rows = pmcl.fit_online(model, family="full", progressbar=False).problem.rows

    def posterior(X, y):
        precision = np.eye(dim) + X.T @ X
        return Full(jnp.linalg.solve(precision, X.T @ y), jnp.asarray(precision))

    whole = posterior(**data)
    beside = posterior(data["X"][4:], data["y"][4:])
    kept = Stored({k: v[:4] for k, v in data.items()}, np.zeros(4), np.full(4, "0"))
    stored = as_batch(rows, kept, np.ones(4))
    root = np.linalg.cholesky(beside.precision)
    start = Full(beside.mean + np.linalg.solve(root.T, np.full(dim, 0.7)), 1.6 * beside.precision)
    key = jax.random.key(0)
    begun = consistent(rows, beside, whole, stored, key)
    assert begun.apart == pytest.approx(0, abs=1e-12)
    np.testing.assert_array_equal(begun.q.mean, beside.mean)
    found = consistent(rows, start, whole, stored, key)
    assert found.apart < 0.01
    np.testing.assert_allclose(root.T @ (found.q.mean - beside.mean), 0, atol=0.15)
    turned = np.linalg.solve(beside.precision, np.asarray(found.q.precision))
    np.testing.assert_allclose(np.linalg.eigvals(turned).real, 1, atol=0.2)


@pytest.mark.filterwarnings("ignore:Update")
def test_groups_with_a_memory(rows, exact):
    """What leaves a memory is taken out by slopes, and then until the rest gives what all did."""
    stream = pmcl.fit_online(
        groups(centred=True), family="full", memory=pmcl.ResidualMemory(2 * EACH), random_seed=1,
        progressbar=False,
    )  # fmt: skip
    for i in range(GROUPS):
        batch = {k: v[i * EACH : (i + 1) * EACH] for k, v in rows.items()}
        stream = stream.update(batch, progressbar=False)
    divergence = stream.history["divergence"].values
    assert np.isnan(divergence[:2]).all() and np.all(divergence[2:] < 0.06)
    (mean, sd), (means, sds) = found(stream), exact
    assert np.all(np.abs(mean - means) < 0.4 * sds)  # 0.67 by slopes alone
    np.testing.assert_allclose(sd, sds, rtol=0.45)


def test_a_search_that_ends_nowhere_is_refused(rows, monkeypatch):
    stream = pmcl.fit_online(groups(centred=True), family="full", progressbar=False)

    def nowhere(*arguments):
        ended = climb(*arguments)
        return ended._replace(q=ended.q._replace(mean=np.nan * ended.q.mean))

    climb = update.climb
    monkeypatch.setattr(update, "climb", nowhere)
    with pytest.raises(FloatingPointError, match="nothing was learned of this batch"):
        stream.update(rows, progressbar=False)
