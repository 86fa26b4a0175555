"""Local variables told by an encoder: against closed forms of linear, Gaussian models."""

import warnings
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from test_stream import compilations

import pmcl
from pmcl.archive.online import to_datatree
from pmcl.archive.zipped import write_archive
from pmcl.compile import UnsupportedModelError, compile_model, localise
from pmcl.compile.local_variables import separate
from pmcl.data.task import DataError
from pmcl.metrics import importance_diagnostics
from pmcl.online import MeanField, Rows
from pmcl.online.gaps import THERE
from pmcl.online.gaussian import divergence
from pmcl.online.latent.encoder import Encoder
from pmcl.online.latent.rows import LatentRows, weigh
from pmcl.online.rows import RowBatch
from pmcl.online.search import narrow
from pmcl.online.search.bound import Target, lower_bound
from pmcl.online.search.maximum import fisher

SIGMA = 0.5
W = np.array([[1.0, -0.5, 0.3], [0.2, 0.8, -1.0]])
MU = np.array([0.5, -1.0, 2.0])
SMALL = -20.0  # log sd of what is known


def factors(rows: int = 2) -> pm.Model:
    """Probabilistic PCA with two factors."""
    with pm.Model(coords={"row": range(rows), "item": range(3), "factor": range(2)}) as model:
        mu = pm.Normal("mu", 0, 3, dims="item")
        w = pm.Normal("w", 0, 1, dims=("factor", "item"))
        f = pm.Normal("f", 0, 1, dims=("row", "factor"))
        pm.Normal("y", f @ w + mu, SIGMA, observed=np.zeros((rows, 3)), dims=("row", "item"))
    return model


def effects(members: int) -> pm.Model:
    """Groups, each with an effect of its own, of a few members."""
    with pm.Model(coords={"group": range(1), "member": range(members)}) as model:
        mu = pm.Normal("mu", 0, 2)
        effect = pm.Normal("effect", 0, 1, dims="group")
        pm.Normal(
            "y", mu + effect[:, None], SIGMA, observed=np.zeros((1, members)),
            dims=("group", "member"),
        )  # fmt: skip
    return model


def rows_of(model: pm.Model, name: str, row: str, *, depth: int = 0) -> LatentRows:
    """Rows with an encoder that nobody trained."""
    observed, local = separate(model, [name])
    compiled = compile_model(observed)
    rows = Rows(compiled, row, localise(compiled))
    n = sum(int(np.prod(i.shape[1:])) for i in compiled.observed if i.name not in local.names)
    network = Encoder(width=8, depth=depth).build(
        n, local.size, masked=False, key=jax.random.key(0)
    )
    return LatentRows(rows, local, 1e-3, network)


def with_linear(rows: LatentRows, weight: np.ndarray, bias: np.ndarray) -> LatentRows:
    """Set the encoder to a linear map: mean and log sd."""
    return eqx.tree_at(
        lambda r: (
            r.encoder.straight.weight,
            r.encoder.network.layers[0].weight,
            r.encoder.network.layers[0].bias,
        ),
        rows,
        (jnp.asarray(weight), jnp.zeros(weight.shape), jnp.asarray(bias)),
    )


def known(rows: LatentRows, **values: np.ndarray) -> MeanField:
    """Parameters of which all is known."""
    z = jnp.asarray(rows.compiled.unconstrain(values))
    return MeanField(z, jnp.full_like(z, SMALL))


@pytest.fixture(scope="module")
def pca() -> LatentRows:
    return rows_of(factors(), "f", "row")


@pytest.fixture(scope="module")
def y() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 2)) @ W + MU + SIGMA * rng.normal(size=(4, 3))


def evidence(y: np.ndarray) -> np.ndarray:
    """Exact log marginal likelihood of rows; NaN is what is missing."""
    covariance = W.T @ W + SIGMA**2 * np.eye(3)
    found = []
    for row in np.atleast_2d(y):
        i = np.flatnonzero(~np.isnan(row))
        found.append(stats.multivariate_normal(MU[i], covariance[np.ix_(i, i)]).logpdf(row[i]))
    return np.asarray(found)


def test_bound_and_its_gradient_are_the_closed_form(pca, y):
    weight = np.random.default_rng(1).normal(size=(4, 3)) * 0.3
    weight[2:] = 0.0
    bias = np.array([0.1, -0.2, -0.5, -1.0])
    rows = with_linear(pca, weight, bias)
    q = known(rows, mu=MU, w=W)

    def exact(z):
        at = rows.compiled.unravel(z)
        mean, sd = y @ weight[:2].T + bias[:2], np.exp(bias[2:])
        left = y - mean @ at["w"] - at["mu"]
        spread = (sd**2) @ at["w"] ** 2
        likelihood = -jnp.sum(left**2 + spread, axis=1) / (2 * SIGMA**2)
        likelihood -= 3 * np.log(SIGMA * np.sqrt(2 * np.pi))
        prior = -jnp.sum(mean**2 + sd**2 + np.log(2 * np.pi), axis=1) / 2
        return jnp.sum(likelihood + prior) + len(y) * np.sum(bias[2:] + (1 + np.log(2 * np.pi)) / 2)

    def estimate(z, key):
        some = q._replace(mean=z)
        return sum(jnp.sum(rows.drawn(some, {"y": y}, key, s)) for s in (1.0, -1.0)) / 2

    keys = jax.random.split(jax.random.key(2), 4000)
    many = jax.jit(jax.vmap(jax.value_and_grad(estimate), in_axes=(None, 0)))
    values, slopes = many(q.mean, keys)
    expected, slope = jax.value_and_grad(exact)(q.mean)
    for found, true in ((values, expected), (slopes, slope)):
        error = np.std(found, axis=0) / np.sqrt(len(keys))
        assert np.all(np.abs(np.mean(found, axis=0) - true) < 4.5 * error + 1e-6)
        assert np.all(error < 0.02 * np.max(np.abs(true)))


def test_gradients_by_all_that_is_trained_are_the_closed_form(pca, y):
    """Of half of the rows, counted twice, by q's means and sds and by the encoder's weights."""
    rng = np.random.default_rng(3)
    weight, bias = rng.normal(size=(4, 3)) * 0.2, np.array([0.1, -0.2, -0.5, -1.0])
    z = known(pca, mu=MU, w=W).mean
    q = MeanField(z, jnp.asarray(np.log(0.3) + 0.2 * rng.normal(size=len(z))))
    prior = MeanField(jnp.zeros_like(z), jnp.full_like(z, np.log(2.0)))

    def exact(q, weight, bias):
        at, sd = (pca.compiled.unravel(v) for v in (q.mean, jnp.exp(q.log_sd)))
        mean, log_spread = jnp.split(y @ weight.T + bias, 2, axis=1)
        square = mean**2 + jnp.exp(2 * log_spread)
        left = (y - mean @ at["w"] - at["mu"]) ** 2
        left = left + jnp.exp(2 * log_spread) @ at["w"] ** 2 + square @ sd["w"] ** 2 + sd["mu"] ** 2
        terms = -jnp.sum(left, axis=1) / (2 * SIGMA**2) - 3 * np.log(SIGMA * np.sqrt(2 * np.pi))
        terms += jnp.sum(log_spread + 0.5 - square / 2, axis=1)
        return jnp.sum(terms) - divergence(q, prior)

    def estimate(q, weight, bias, key):
        index_key, key = jax.random.split(key)
        rows = with_linear(pca, weight, bias)
        part = rows.part(
            RowBatch({"y": jnp.asarray(y)}, jnp.ones(4)), jax.random.permutation(index_key, 4)[:2]
        )
        return lower_bound(rows, q, Target(prior, part), key, draws=2, scale=2.0)

    keys = jax.random.split(jax.random.key(2), 20_000)
    many = jax.jit(jax.vmap(jax.grad(estimate, (0, 1, 2)), (None, None, None, 0)))
    found = many(q, jnp.asarray(weight), jnp.asarray(bias), keys)
    expected = jax.grad(exact, (0, 1, 2))(q, jnp.asarray(weight), jnp.asarray(bias))
    for some, true in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        error = np.std(some, axis=0) / np.sqrt(len(keys))
        assert np.all(np.abs(np.mean(some, axis=0) - true) < 4.5 * error + 1e-6)
        assert np.all(error < 0.05 * np.max(np.abs(true)))


def exact_encoder(rows: LatentRows) -> LatentRows:
    """Encode as the posterior of the factors is; it has correlations, but for orthogonal w."""
    precision = np.eye(2) + W_ORTHOGONAL @ W_ORTHOGONAL.T / SIGMA**2
    gain = np.linalg.solve(precision, W_ORTHOGONAL) / SIGMA**2
    weight = np.concatenate([gain, np.zeros((2, 3))])
    bias = np.concatenate([-gain @ MU, -np.log(np.diag(precision)) / 2])
    return with_linear(rows, weight, bias)


W_ORTHOGONAL = np.array([[1.0, 1.0, 0.0], [0.5, -0.5, 1.0]])


def test_weights_of_the_exact_encoder_are_the_evidence(pca, y):
    rows = exact_encoder(pca)
    q = known(rows, mu=MU, w=W_ORTHOGONAL)
    _, ratio = weigh(rows, q, {"y": jnp.asarray(y)}, jax.random.key(0), 50)
    covariance = W_ORTHOGONAL.T @ W_ORTHOGONAL + SIGMA**2 * np.eye(3)
    expected = stats.multivariate_normal(MU, covariance).logpdf(y)
    np.testing.assert_allclose(ratio, np.broadcast_to(expected, ratio.shape), atol=1e-5)


def test_importance_estimate_converges(pca, y):
    weight = np.zeros((4, 3))
    rows = with_linear(pca, weight, np.array([0.0, 0.0, 0.0, 0.0]))  # the prior
    q = known(rows, mu=MU, w=W)
    errors = []
    for draws in (1000, 64_000):
        _, ratio = weigh(rows, q, {"y": jnp.asarray(y)}, jax.random.key(1), draws)
        found = importance_diagnostics(ratio.T)
        assert np.all(np.abs(found.log_evidence - evidence(y)) < 4 * found.log_evidence_error)
        errors.append(found.log_evidence_error)
    assert np.all(errors[1] < 0.25 * errors[0])


def test_what_is_missing_does_not_count(pca, y):
    gaps = y.copy()
    gaps[0, 1] = gaps[1, :2] = np.nan
    there = ~np.isnan(gaps)
    q = known(pca, mu=MU, w=W)
    data = {"y": np.where(there, gaps, 99.0), "y" + THERE: there}
    given = {k: jnp.asarray(v) for k, v in data.items()}
    plain = with_linear(pca, np.full((4, 3), 0.1), np.zeros(4))
    wide = eqx.tree_at(
        lambda r: r.encoder, plain, Encoder(width=8, depth=0).told_of_gaps(plain.encoder)
    )
    assert wide.encoder.masked and not plain.encoder.masked
    # as yet it does as before with what has no gaps
    for before, after in zip(plain.encode({"y": y}), wide.encode({"y": y}), strict=True):
        np.testing.assert_allclose(before, after)
    _, ratio = weigh(wide, q, given, jax.random.key(1), 20_000)
    found = importance_diagnostics(ratio.T)
    assert np.all(np.abs(found.log_evidence - evidence(gaps)) < 4 * found.log_evidence_error)
    assert np.all(found.log_evidence_error < 0.1)


def test_noise_of_layers_and_of_weights_have_the_same_bound(pca, y):
    q = known(pca, mu=MU, w=W)._replace(log_sd=jnp.full(9, np.log(0.3)))
    assert pca.rows.local is not None
    plain = LatentRows(replace(pca.rows, local=None), pca.local, 1e-3, pca.encoder)
    keys = jax.random.split(jax.random.key(2), 20_000)
    found = []
    for rows in (pca, plain):
        many = jax.jit(jax.vmap(lambda k, rows=rows: rows.drawn(q, {"y": y}, k)))(keys)
        found.append((np.mean(many, axis=0), np.std(many, axis=0) / np.sqrt(len(keys))))
    assert np.all(np.abs(found[0][0] - found[1][0]) < 4.5 * np.hypot(found[0][1], found[1][1]))


MEMBERS = 3
ENCODER = Encoder(depth=0, learning_rate=2e-2)
SEARCH = pmcl.Search(steps=1500, draws=4, learning_rate=2e-2)


def follow(**options) -> pmcl.LatentPosterior:
    stream = pmcl.fit_online(
        effects(MEMBERS), local="effect", encoder=options.pop("encoder", ENCODER),
        search=options.pop("search", SEARCH), random_seed=0, progressbar=False, **options,
    )  # fmt: skip
    assert isinstance(stream, pmcl.LatentPosterior)
    return stream


def groups(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 1.5 + rng.normal(size=(n, 1)) + SIGMA * rng.normal(size=(n, MEMBERS))


@pytest.fixture(scope="module")
def stream() -> pmcl.LatentPosterior:
    followed = follow()
    for i in range(2):
        followed = followed.update({"y": groups(60, i)}, name=f"batch {i}", progressbar=False)
    return followed


def test_batches_of_about_one_length_compile_once(stream):
    """57 to 64 rows are one length for the compiler."""
    now = stream.update({"y": groups(57, 7)}, progressbar=False)
    now.log_predictive({"y": groups(59, 8)}, draws=50)
    again = compilations(
        lambda: now.update({"y": groups(63, 9)}, progressbar=False).log_predictive(
            {"y": groups(58, 3)}, draws=50
        )
    )
    assert not again & {"_chunk", "_weigh", "_reached"}


def test_learned_posterior_is_the_closed_form(stream):
    y = np.concatenate([groups(60, i) for i in range(2)])
    # Independent entries: the mean is right, the precision that of mu given the effects.
    each = MEMBERS / (SIGMA**2 + MEMBERS)
    mean = each * y.mean(axis=1).sum() / (1 / 4 + each * len(y))
    sd = (1 / 4 + len(y) * MEMBERS / SIGMA**2) ** -0.5
    # Two batches: the second finds less to say of mu than there is (its prior is too narrow).
    first = y[:60]
    narrow = 1 / 4 + 60 * MEMBERS / SIGMA**2
    one = each * first.mean(axis=1).sum() / (1 / 4 + each * 60)
    two = (narrow * one + each * y[60:].mean(axis=1).sum()) / (narrow + each * 60)
    assert abs(two - mean) > 0.02  # or this test would not tell
    assert float(stream.state.q.mean[0]) == pytest.approx(two, abs=0.02)
    assert float(np.exp(stream.state.q.log_sd[0])) == pytest.approx(sd, rel=0.1)
    # Effects, given the mean.
    tree = stream.sample_local({"y": y[:5]}, 4000, random_seed=1)
    precision = 1 + MEMBERS / SIGMA**2
    expected = MEMBERS / SIGMA**2 / precision * (y[:5].mean(axis=1) - two)
    draws = tree["posterior"]["effect"].values[0]
    assert draws.shape == (4000, 5)
    np.testing.assert_allclose(draws.mean(axis=0), expected, atol=0.05)
    np.testing.assert_allclose(draws.std(axis=0), precision**-0.5, rtol=0.15)
    assert np.all(tree["row_stats"]["khat"] < 0.7)


def test_a_power_of_the_bound_is_the_closed_form():
    """Few rows, so that the prior has its say."""
    n, power = 6, 4.0
    y = groups(n, 0)
    found = follow(power=power).update({"y": y}, progressbar=False).approximation()
    each = MEMBERS / (SIGMA**2 + MEMBERS)
    mean = power * each * y.mean(axis=1).sum() / (1 / 4 + power * each * n)
    plain = each * y.mean(axis=1).sum() / (1 / 4 + each * n)
    assert abs(mean - plain) > 0.04
    assert float(found.mean[0]) == pytest.approx(mean, abs=0.015)
    sd = (1 / 4 + power * n * MEMBERS / SIGMA**2) ** -0.5
    assert float(np.exp(found.log_sd[0])) == pytest.approx(sd, rel=0.1)


def test_a_strength_holds_the_mean_of_the_bound():
    strength = 6.0
    one, two = groups(6, 0), groups(6, 1) + 1
    now = follow(strength=strength).update({"y": one}, progressbar=False)
    before = now.approximation()
    m, known = float(before.mean[0]), float(np.exp(-2 * before.log_sd[0]))
    found = now.update({"y": two}, progressbar=False).approximation()
    each = MEMBERS / (SIGMA**2 + MEMBERS)
    held = 1 / 4 + strength * (known - 1 / 4)
    rise = each * (two.mean(axis=1) - m).sum()
    mean = m + rise / (held + each * 6)
    assert rise / (known + each * 6) - (mean - m) > 0.05
    assert float(found.mean[0]) == pytest.approx(mean, abs=0.015)
    sd = (known + 6 * MEMBERS / SIGMA**2) ** -0.5
    assert float(np.exp(found.log_sd[0])) == pytest.approx(sd, rel=0.1)


def test_predictive_density_is_the_closed_form(stream):
    y = groups(6, 9)
    found = stream.log_predictive({"y": y}, random_seed=1)
    mu, sd = float(stream.state.q.mean[0]), float(np.exp(stream.state.q.log_sd[0]))
    covariance = (1 + sd**2) * np.ones((MEMBERS, MEMBERS)) + SIGMA**2 * np.eye(MEMBERS)
    exact = stats.multivariate_normal(np.full(MEMBERS, mu), covariance).logpdf(y)
    assert np.all(np.abs(found.values - exact) < 5 * found["error"].values + 1e-3)
    assert np.all(found["error"].values < 0.02)
    assert found.dims == ("group",)


def test_gaps_are_learned_from(stream):
    y = groups(20, 3)
    y[::2, 1] = np.nan
    later = stream.update({"y": y}, progressbar=False)
    assert later.latents.networks[-1].masked
    assert len(later.latents.networks) == 1
    assert later.history["rows"].values.tolist() == [60, 60, 20]
    far = groups(4, 4)
    far[:, 0] = np.nan
    found = later.sample_local({"y": far}, 200)
    assert np.isfinite(found["posterior"]["effect"].values).all()
    with pytest.raises(DataError, match="at least one observed value"):
        stream.update({"y": np.full((2, MEMBERS), np.nan)})


def test_rows_are_predicted_with_their_local_variables(stream):
    found = stream.predict(rows=500, draws=100, random_seed=1)
    assert found["y"].shape == (1, 100, 500, MEMBERS)
    # members of a group share its effect
    left = found["y"].values - found["effect"].values[..., None]
    assert left.std() == pytest.approx(SIGMA, rel=0.1)
    assert found["effect"].values.std() == pytest.approx(1, rel=0.05)


def test_saved_and_read_again(stream, tmp_path):
    pmcl.save(stream, tmp_path / "a.zarr.zip")
    again = pmcl.load(tmp_path / "a.zarr.zip", effects(MEMBERS))
    assert isinstance(again, pmcl.LatentPosterior)
    assert again.encoder == stream.encoder
    y = {"y": groups(4, 5)}
    for a, b in ((stream, again),):
        np.testing.assert_array_equal(
            a.sample_local(y, 50, random_seed=3)["posterior"]["effect"],
            b.sample_local(y, 50, random_seed=3)["posterior"]["effect"],
        )
    assert repr(again) == repr(stream)
    later = [s.update(y, progressbar=False).state.q.mean for s in (stream, again)]
    np.testing.assert_array_equal(*later)
    with pytest.raises(pmcl.StateError):
        pmcl.load(tmp_path / "a.zarr.zip", effects(MEMBERS + 1))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.drop_nodes("encoder 0"), "expected a group 'encoder 0'"),
        (lambda t: _edited(t, "encoder 0", "scale", 0.0), "scale: expected numbers above 0"),
        (lambda t: _edited(t, "encoder 0", "count", np.nan), "expected finite numbers"),
        (lambda t: _sized(t, 5), "expected the location of 5 numbers"),
    ],
)
def test_files_with_other_encoders_are_refused(stream, tmp_path, change, match):
    tree = change(to_datatree(stream))
    write_archive(tmp_path / "a.zarr.zip", tree)
    with pytest.raises(pmcl.StateError, match=match):
        pmcl.load(tmp_path / "a.zarr.zip", effects(MEMBERS))


def _edited(tree, group, name, value):
    tree = tree.copy(deep=True)
    tree[group][name].values[...] = value
    return tree


def _sized(tree, features):
    tree = tree.copy(deep=True)
    tree["encoder 0"].attrs["features"] = features
    return tree


def test_rows_of_another_length_are_refused(stream):
    with pytest.raises(DataError, match="Fill rows up with NaN"):
        stream.update({"y": np.zeros((2, MEMBERS + 1))})


def test_half_an_observation_is_refused():
    with pm.Model(coords={"row": range(1), "item": range(2)}) as model:
        scale = pm.HalfNormal("scale", 1)
        f = pm.Normal("f", 0, 1, dims="row")
        pm.MvNormal("y", (scale * f)[:, None] * np.ones(2), np.eye(2), observed=np.zeros((1, 2)),
                    dims=("row", "item"))  # fmt: skip
    stream = pmcl.fit_online(model, local="f", progressbar=False)
    with pytest.raises(DataError, match="all there or all missing"):
        stream.update({"y": [[0.0, np.nan], [1.0, 1.0]]}, progressbar=False)


def test_same_seed_same_result():
    search = pmcl.Search(steps=20, draws=2)
    y = {"y": groups(10, 0)}
    found = [follow(search=search).update(y, progressbar=False) for _ in range(2)]
    np.testing.assert_array_equal(found[0].state.q.mean, found[1].state.q.mean)


@pytest.mark.parametrize(
    "method",
    [
        pmcl.Naive(),
        pmcl.ElasticWeightConsolidation(1.0, decay=1.0),
        pmcl.OnlineLaplace(strength=1.0),
        pmcl.SynapticIntelligence(strength=1.0),
    ],
)
def test_baselines_follow_one_value(method):
    search = pmcl.Search(steps=1500, draws=1, learning_rate=5e-2)
    stream = follow(method=method, search=search, encoder=Encoder(depth=0, learning_rate=5e-2))
    y = np.concatenate([groups(40, 0), groups(40, 0) + 4.0])
    means = []
    for part in (y[:40], y[40:]):
        stream = stream.update({"y": part}, progressbar=False)
        means.append(float(stream.approximation().mean[0]))
    assert means[0] == pytest.approx(y[:40].mean(), abs=0.15)
    target = y[40:].mean()
    if isinstance(method, pmcl.Naive):
        assert means[1] == pytest.approx(target, abs=0.15)
    else:
        assert means[0] < means[1] < target - 0.5  # held back


def test_information_is_right_where_the_encoder_is_wide():
    """The noise of its draws is no information."""
    rows = rows_of(effects(MEMBERS), "effect", "group")
    y = groups(400, 1)
    sd = 0.8
    rows = with_linear(rows, np.zeros((2, MEMBERS)), np.array([0.1, np.log(sd)]))
    q = known(rows, mu=np.asarray(1.4))
    batch = RowBatch({"y": jnp.asarray(y)}, jnp.ones(400))
    found = np.mean([fisher(rows, q.mean, batch, jax.random.key(i))[0] for i in range(8)])
    slopes = (y - 1.4 - 0.1).sum(axis=1) / SIGMA**2
    noise = (MEMBERS * sd / SIGMA**2) ** 2 / 5  # of each factor's square
    exact = np.sum(slopes**2)
    # A square of ten draws' mean would be off by half of 400 * noise.
    assert abs(found - exact) < 0.25 * 400 * noise


def test_information_is_of_the_bounds_gradients():
    rows = rows_of(effects(MEMBERS), "effect", "group")
    y = groups(30, 1)
    weight = np.zeros((2, MEMBERS))
    weight[0] = 0.3 / MEMBERS
    rows = with_linear(rows, weight, np.array([0.1, SMALL]))
    q = known(rows, mu=np.asarray(1.0))
    found = fisher(rows, q.mean, RowBatch({"y": jnp.asarray(y)}, jnp.ones(30)), jax.random.key(0))
    effect = 0.3 * y.mean(axis=1) + 0.1
    slopes = (y - 1.0 - effect[:, None]).sum(axis=1) / SIGMA**2
    np.testing.assert_allclose(found, [np.sum(slopes**2)], rtol=1e-4)


def generator(tasks: int, *, counted: bool = False) -> pm.Model:
    """A network from factors to observations, with a first layer a task; its number may count."""
    with pm.Model(coords={"row": range(1), "item": range(4), "factor": range(2)}) as model:
        task = pm.Data("task", np.array(0))
        head = pm.Normal("head", 0, 1, shape=(tasks, 2, 5))
        shared = pm.Normal("shared", 0, 0.5, shape=(5, 4))
        f = pm.Normal("f", 0, 1, dims=("row", "factor"))
        hidden = pt.maximum(f @ head[task], 0)
        hidden = hidden * (1 + task) if counted else hidden
        pm.Bernoulli(
            "y", logit_p=hidden @ shared, observed=np.zeros((1, 4), int), dims=("row", "item")
        )
    return model


def test_heads_begin_afresh_where_parameters_have_drifted():
    """Nothing was said of the second one, but its variance has grown."""
    stream = pmcl.fit_online(
        generator(2), local="f", covariates=["task"], drift=pmcl.Wiener(0.01),
        encoder=Encoder(width=8, depth=1),
        search=pmcl.Search(steps=1, learning_rate=1e-6), random_seed=0, progressbar=False,
    )  # fmt: skip
    y = np.random.default_rng(0).integers(0, 2, size=(40, 4))
    for task in (0, 1):
        stream = stream.update({"y": y, "task": task}, progressbar=False)
    heads = np.asarray(stream.compiled.unravel(stream.state.q.mean)["head"])
    assert np.all(np.abs(heads).max(axis=(1, 2)) > 0.5)


def test_rows_are_predicted_at_a_covariate_that_they_share():
    stream = pmcl.fit_online(
        generator(2), local="f", covariates=["task"], random_seed=0, progressbar=False
    )
    found = stream.predict({"task": 1}, rows=7, draws=3)  # a priori
    assert found["y"].shape == (1, 3, 7, 4)
    assert stream.sample(10)["posterior"]["head"].shape == (1, 10, 2, 2, 5)


def test_an_encoder_that_begins_with_one_row_is_not_blind():
    rng = np.random.default_rng(0)
    with pm.Model(coords={"group": range(1), "member": range(3)}) as model:
        mu = pm.Normal("mu", 1000, 300)
        effect = pm.Normal("effect", 0, 200, dims="group")
        pm.Normal("y", mu + effect[:, None], 30, observed=np.zeros((1, 3)),
                  dims=("group", "member"))  # fmt: skip
    truth = 200 * rng.normal(size=(40, 1))
    y = 1000 + truth + 30 * rng.normal(size=(40, 3))
    stream = pmcl.fit_online(
        model, local="effect", encoder=Encoder(depth=0, learning_rate=2e-2),
        search=pmcl.Search(steps=600, draws=4), random_seed=0, progressbar=False,
    )  # fmt: skip
    for part in (y[:1], y[1:]):
        stream = stream.update({"y": part}, progressbar=False)
    network = stream.latents.networks[0]
    np.testing.assert_allclose(network.location, y.mean(axis=0))
    # The first row's own width was the prior's, which counts for one row.
    assert np.all((network.scale > 150) & (network.scale < 350))
    tree = stream.sample_local({"y": y}, 200)
    found = tree["posterior"]["effect"].mean(("chain", "draw")).values
    assert np.corrcoef(found, truth[:, 0])[0, 1] > 0.98
    assert float((tree["row_stats"]["khat"] < 0.7).mean()) > 0.9


def test_rows_that_an_encoder_cannot_tell_apart_are_said():
    y = np.random.default_rng(0).normal(size=(1000, 3))
    stream = pmcl.fit_online(
        factors(), local="f", encoder=Encoder(width=4, depth=1), search=pmcl.Search(steps=5),
        random_seed=0, progressbar=False,
    ).update({"y": y}, progressbar=False)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".* before it arrived")  # of five steps
        stream.update({"y": 3 * y[:20]}, progressbar=False)
    y[:15] *= 1000
    with pytest.warns(UserWarning, match=r"'1': 15 of 20 rows have values more than 10") as said:
        stream.update({"y": y[:20]}, progressbar=False)
    assert said[0].filename == __file__


def test_what_is_yes_or_no_is_never_far_out():
    """One row of many that says yes is not many standard deviations away."""
    encoder = Encoder(width=4, depth=1)
    stream = pmcl.fit_online(
        generator(1), local="f", covariates=["task"], encoder=encoder,
        search=pmcl.Search(steps=2, draws=2), random_seed=0, progressbar=False,
    )  # fmt: skip
    y = np.random.default_rng(0).integers(0, 2, size=(200, 4))
    y[:, 1:3] = 0
    y[0, 2] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".* before it arrived")  # of two steps
        network = stream.update({"y": y, "task": 0}, progressbar=False).latents.networks[0]
    np.testing.assert_array_equal(network.scale, 0.5)
    np.testing.assert_allclose(network.location, y.mean(axis=0), atol=1e-6)


def test_a_variable_that_is_wholly_missing_does_not_stop_the_others():
    """What stands in its place has a density of its own, whose gradient must be finite."""
    with pm.Model(coords={"row": range(1)}) as model:
        mu = pm.Normal("mu", 0, 10)
        effect = pm.Normal("effect", mu, 1.0, dims="row")
        pm.Normal("y", effect, 1.0, observed=np.zeros(1), dims="row")
        pm.LogNormal("w", effect, 1.0, observed=np.ones(1), dims="row")
        pm.Beta("share", pm.math.exp(effect), 1.0, observed=np.full(1, 0.5), dims="row")
    y = np.random.default_rng(0).normal(3, 1, 40)
    stream = pmcl.fit_online(
        model, local="effect", encoder=Encoder(width=8, depth=1, learning_rate=5e-3),
        search=pmcl.Search(steps=1500, draws=4), random_seed=0, progressbar=False,
    )  # fmt: skip
    nothing = np.full(40, np.nan)
    stream = stream.update({"y": y, "w": nothing, "share": nothing}, progressbar=False)
    assert int(stream.history["skipped"][0]) == 0
    q = stream.approximation()
    # of y alone: normal, with variance 2 around mu
    precision = 1 / 100 + 40 / 2
    assert float(q.mean[0]) == pytest.approx(y.sum() / 2 / precision, abs=0.3 * precision**-0.5)
    assert float(np.exp(q.log_sd[0])) == pytest.approx(precision**-0.5, rel=0.5)


def test_heads_of_unseen_tasks_stay_at_the_prior():
    encoder = Encoder(width=8, depth=1, per_task=True)
    stream = pmcl.fit_online(
        generator(3), local="f", covariates=["task"], encoder=encoder,
        search=pmcl.Search(steps=60, draws=2, batch_size=20), random_seed=0, progressbar=False,
    )  # fmt: skip
    assert stream.problem.rows.local.layers == 2
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=(40, 4))

    def heads(s):
        at = (
            s.compiled.unravel(s.state.q.mean)["head"],
            s.compiled.unravel(jnp.exp(s.state.q.log_sd))["head"],
        )
        return np.asarray(at[0]), np.asarray(at[1])

    one = stream.update({"y": y, "task": 0}, name="a", progressbar=False)
    mean, sd = heads(one)
    assert np.all(mean[0] != 0) and np.all(mean[1:] == 0) and np.all(sd[1:] == 1)
    two = one.update({"y": y, "task": 1}, name="b", progressbar=False)
    later, sd = heads(two)
    assert np.all(later[0] == mean[0])  # this batch said nothing of it
    assert np.all(later[1] != 0) and np.all(later[2] == 0) and np.all(sd[2] == 1)
    assert len(two.latents.networks) == 2
    # each task is told by its own encoder
    few = {"y": y[:3], "task": 0}
    first = two.sample_local(few, 20, task="a", random_seed=1)["posterior"]["f"]
    last = two.sample_local(few, 20, task="b", random_seed=1)["posterior"]["f"]
    assert not np.allclose(first, last)
    with pytest.raises(ValueError, match="expected the name of a batch"):
        two.sample_local(few, 20, task="c")


def narrowed_shapes(stream):
    """Shapes of variables for which rows of the model were made."""
    kept = stream.problem.rows.compiled.kept
    return [k[1] for k in kept if isinstance(k, tuple) and k[0] == "narrowed"]


@pytest.mark.parametrize(
    "method",
    [None, pmcl.ElasticWeightConsolidation(1.0, decay=1.0), pmcl.SynapticIntelligence(1.0)],
)
@pytest.mark.parametrize("counted", [False, True])
def test_searches_leave_out_other_tasks_heads(monkeypatch, method, counted):
    """The same result, with a model of one head; where the task counts as a number, with all."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=(40, 4))
    search = pmcl.Search(steps=30, draws=2 if method is None else 1, batch_size=20)
    found, shapes = [], []
    for worth in (narrow._WORTH, 0):
        monkeypatch.setattr(narrow, "_WORTH", worth)
        stream = pmcl.fit_online(
            generator(4, counted=counted), local="f", covariates=["task"], method=method,
            encoder=Encoder(width=8, depth=1), search=search, start=pmcl.ScatteredStart(),
            random_seed=0, progressbar=False,
        )  # fmt: skip
        one = stream.update({"y": y, "task": 2}, progressbar=False)
        two = one.update({"y": y, "task": 1}, progressbar=False)
        values = stream.compiled.unravel
        heads = [values(s.approximation().mean)["head"] for s in (one, two)]
        found.append([*(values(v) for v in two.state.q), values(two.state.predictive.mean)])
        shapes.append(narrowed_shapes(stream))
    assert shapes == [[], [((5, 4), (1, 2, 5))]]  # compiled once for both tasks
    for plain, narrowed in zip(*found, strict=True):
        tolerance = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(narrowed["shared"], plain["shared"], **tolerance)
        np.testing.assert_allclose(narrowed["head"][1], plain["head"][1], **tolerance)
    others = np.array([0, 2, 3])
    if not counted:  # nothing else moves, not even by rounding
        np.testing.assert_array_equal(heads[1][others], heads[0][others])


def test_what_rows_look_up_is_not_narrowed(monkeypatch):
    """No covariate of the batch tells the range, and an index past its end would be its last."""
    monkeypatch.setattr(narrow, "_WORTH", 0)
    with pm.Model(coords={"row": range(1)}) as model:
        category = pm.Data("category", np.zeros(1, int), dims="row")
        level = pm.Normal("level", 0, 1, shape=8)
        u = pm.Normal("u", 0, 1, dims="row")
        pm.Bernoulli("y", logit_p=u + level[category], observed=np.zeros(1, int), dims="row")
    stream = pmcl.fit_online(
        model, local="u", covariates=["category"], search=pmcl.Search(steps=2, draws=2),
        random_seed=0, progressbar=False,
    )  # fmt: skip
    rows = {"y": np.arange(20) % 2, "category": np.repeat([7, 6], 10)}
    stream = stream.update(rows, progressbar=False)
    assert not narrowed_shapes(stream)
    assert np.all(np.asarray(stream.state.q.mean[:6]) == 0)


def test_positive_local_variables_are_told_on_the_logarithm():
    """Counts of a rate that is a row's own: what is left when it is gone is negative binomial."""
    with pm.Model(coords={"row": range(1)}) as model:
        shape = pm.LogNormal("shape", np.log(2.0), 1e-4)
        rate = pm.Gamma("rate", shape, 0.5, dims="row")
        pm.Poisson("y", rate, observed=np.zeros(1, int), dims="row")
    rng = np.random.default_rng(0)
    y = rng.negative_binomial(2, 1 / 3, size=200)
    stream = pmcl.fit_online(
        model, local="rate", encoder=Encoder(width=16, depth=1, learning_rate=5e-3),
        search=pmcl.Search(steps=1500, draws=2), random_seed=0, progressbar=False,
    ).update({"y": y}, progressbar=False)  # fmt: skip
    test = np.arange(8)
    found = stream.log_predictive({"y": test}, random_seed=1)
    exact = stats.nbinom(2, 1 / 3).logpmf(test)
    assert np.all(np.abs(found.values - exact) < 5 * found["error"].values + 2e-3)
    drawn = stream.sample_local({"y": test}, 2000, random_seed=1)["posterior"]["rate"].values[0]
    assert np.all(drawn > 0)
    np.testing.assert_allclose(drawn.mean(axis=0), (2 + test) / 1.5, rtol=0.12)


def test_refusals_say_what_to_do():
    with pytest.raises(ValueError, match="expected names of free variables"):
        pmcl.fit_online(factors(), local="g")
    with pytest.raises(ValueError, match="expected none"):
        pmcl.fit_online(factors(), local="f", memory=pmcl.RandomCoreset(5))
    with pytest.raises(ValueError, match="the likelihood is an integral"):
        pmcl.fit_online(factors(), local="f", start=pmcl.MaximumLikelihoodStart())
    with pytest.raises(ValueError, match="expected `local`"):
        pmcl.fit_online(factors(), encoder=Encoder())
    with pytest.raises(ValueError, match="learning_rate above 0"):
        Encoder(learning_rate=0)
    with pytest.raises(ValueError, match="width of at least 1"):
        Encoder(width=0)
    with pm.Model(coords={"row": range(2)}) as model:
        a = pm.Normal("a", dims="row")
        b = pm.Normal("b", dims="row")
        pm.Normal("y", a + b, observed=np.zeros(2), dims="row")
    with pytest.raises(UnsupportedModelError, match=r"local=\['a', 'b'\]"):
        pmcl.fit_online(model, local="a")
    with pm.Model(coords={"row": range(2)}) as model:
        top = pm.HalfNormal("top")
        a = pm.Uniform("a", 0, top, dims="row")
        pm.Normal("y", a, observed=np.zeros(2), dims="row")
    with pytest.raises(UnsupportedModelError, match="depends on"):
        pmcl.fit_online(model, local="a")
    with pm.Model(coords={"row": range(2)}) as model:
        p = pm.Beta("p", 1, 1)
        a = pm.Bernoulli("a", p, dims="row")
        pm.Normal("y", a, observed=np.zeros(2), dims="row")
    with pytest.raises(UnsupportedModelError, match="continuous local variable"):
        pmcl.fit_online(model, local="a")
    with pm.Model(coords={"row": range(1)}) as model:
        top = pm.Data("top", [1.0], dims="row")
        scale = pm.HalfNormal("scale")
        a = pm.Uniform("a", 0, top, dims="row")
        pm.Normal("y", a, scale, observed=np.zeros(1), dims="row")
    with pytest.raises(UnsupportedModelError, match=r"depend on \['top'\]"):
        pmcl.fit_online(model, local="a")
    with pm.Model(coords={"row": range(3)}) as model:
        scale = pm.HalfNormal("scale")
        a = pm.Uniform("a", 0, np.array([1.0, 2.0, 3.0]), dims="row")
        pm.Normal("y", a, scale, observed=np.zeros(3), dims="row")
    with pytest.raises(UnsupportedModelError, match="a constant with a value a row"):
        pmcl.fit_online(model, local="a")
    with pm.Model(coords={"row": range(1)}) as model:
        scale = pm.HalfNormal("scale")
        a = pm.VonMises("a", 0, 0.2, dims="row")
        pm.Normal("y", pt.cos(a), scale, observed=np.zeros(1), dims="row")
    with pytest.raises(UnsupportedModelError, match="circular"):
        pmcl.fit_online(model, local="a")
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("scale"), shape=3)
        pm.Normal("y", a, 1, observed=np.zeros(3))
    with pytest.raises(ValueError, match="It has no dims"):
        pmcl.fit_online(model, local="a")
    with pytest.raises(ValueError, match="every name once"):
        pmcl.fit_online(factors(), local=["f", "f"])
    with pytest.raises(ValueError, match="local_noise"):
        pmcl.fit_online(factors(), local=False)
    with pytest.raises(ValueError, match="expected an update"):
        follow().log_predictive({"y": groups(2, 0)})


def test_two_local_variables():
    """An intercept and a slope of each group."""
    with pm.Model(coords={"group": range(1), "visit": range(4)}) as model:
        t = pm.Data("t", np.zeros((1, 4)), dims=("group", "visit"))
        mu = pm.Normal("mu", 0, 2)
        a = pm.Normal("a", mu, 1, dims="group")
        b = pm.Normal("b", 0, 0.5, dims="group")
        pm.Normal("y", a[:, None] + b[:, None] * t, SIGMA, observed=np.zeros((1, 4)),
                  dims=("group", "visit"))  # fmt: skip
    stream = pmcl.fit_online(
        model, local=["a", "b"], encoder=Encoder(depth=0, learning_rate=2e-2),
        search=pmcl.Search(steps=800, draws=4), random_seed=0, progressbar=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    t = np.tile(np.arange(4.0), (80, 1))
    truth = rng.normal(size=(80, 2)) * [1, 0.5] + [1, 0]
    y = truth[:, :1] + truth[:, 1:] * t + SIGMA * rng.normal(size=(80, 4))
    y[70, 2] = np.nan  # a gap from the beginning on
    stream = stream.update({"y": y, "t": t}, progressbar=False)
    tree = stream.sample_local({"y": y, "t": t}, 500)
    for i, name in enumerate(("a", "b")):
        found = tree["posterior"][name].mean(("chain", "draw")).values
        assert np.corrcoef(found, truth[:, i])[0, 1] > 0.85
    covariance = SIGMA**2 * np.eye(4) + 1 + 0.25 * np.outer(t[0], t[0])
    mu = float(stream.state.q.mean[0])
    exact = stats.multivariate_normal(np.full(4, mu), covariance).logpdf(y[:10])
    found = stream.log_predictive({"y": y[:10], "t": t[:10]})
    assert np.all(np.abs(found.values - exact) < 5 * found["error"].values + 0.05)


@pytest.mark.slow
def test_streamed_factors_span_the_principal_components():
    from sklearn.datasets import load_wine
    from sklearn.decomposition import PCA

    y = load_wine().data
    y = (y - y.mean(axis=0)) / y.std(axis=0)
    with pm.Model(coords={"row": range(1), "item": range(13), "factor": range(2)}) as model:
        w = pm.Normal("w", 0, 1, dims=("factor", "item"))
        sigma = pm.HalfNormal("sigma", 1)
        f = pm.Normal("f", 0, 1, dims=("row", "factor"))
        pm.Normal("y", f @ w, sigma, observed=y[:1], dims=("row", "item"))
    stream = pmcl.fit_online(model, local="f", random_seed=1, progressbar=False)
    for part in np.array_split(np.random.default_rng(1).permutation(y), 3):
        stream = stream.update({"y": part}, progressbar=False)
    found = stream.sample(random_seed=1)["posterior"].to_dataset().mean(("chain", "draw"))
    exact = PCA(2).fit(y)
    plane = np.linalg.qr(found["w"].values.T)[0]
    assert np.linalg.svd(plane.T @ exact.components_.T)[1].min() > 0.98
    np.testing.assert_allclose(found["sigma"], np.sqrt(exact.noise_variance_), rtol=0.03)
    top = np.linalg.eigvalsh(found["w"].values.T @ found["w"].values)[:-3:-1]
    np.testing.assert_allclose(
        top + float(found["sigma"]) ** 2, exact.explained_variance_, rtol=0.1
    )
    told = stream.sample_local({"y": y}, 200, random_seed=1)["posterior"]["f"]
    told = np.linalg.qr(told.mean(("chain", "draw")).values)[0]
    scores = np.linalg.qr(exact.transform(y))[0]
    assert np.linalg.svd(told.T @ scores)[1].min() > 0.98
