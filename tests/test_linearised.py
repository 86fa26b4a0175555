"""Networks whose weights have covariances: their noise, and predictions by linearisation."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats

import pmcl
from pmcl.archive.errors import StateError
from pmcl.archive.normals import anchors_of
from pmcl.online.families import anchor


def slopes(stream, output):
    """Where the first rows left a network, and its slopes and what it says there."""
    (anchor,) = np.asarray(stream.state.anchors.at)
    with jax.enable_x64(True):
        return anchor, np.asarray(jax.jacobian(output)(anchor)), np.asarray(output(anchor))


def linearised(stream, output):
    """Slopes of a network where its first rows left it, and what it says at the mean by them."""
    anchor, J, level = slopes(stream, output)
    return J, level + J @ (np.asarray(stream.approximation().mean) - anchor)


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

    J, level = linearised(stream, output)
    rest = y - level
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
    J, mean = linearised(stream, output)
    sd = np.sqrt(np.einsum("nd,de,ne->n", J, q.covariance, J) + 0.1**2)
    found = stream.log_predictive(new, draws=10, random_seed=0)  # means are integrated out
    np.testing.assert_allclose(found, stats.norm(mean, sd).logpdf(new["y"]), atol=1e-6)
    drawn = stream.predict({"x": new["x"]}, draws=20_000, random_seed=0)["y"]
    np.testing.assert_allclose(drawn.mean(["chain", "draw"]), mean, atol=4 * sd.max() / 141)
    np.testing.assert_allclose(drawn.std(["chain", "draw"]), sd, rtol=0.03)
    assert sd[2] > 1.5 * sd[1]  # unsure where it saw nothing
    inside = stream.log_predictive(data, draws=500, random_seed=0)
    assert float(inside.mean()) > 0.5  # the noise's own is 0.88


def regression(stream, data):
    """The normal that a linear model of the slopes of the first rows has, in closed form."""
    parts, prior = stream.compiled.unravel, stream.problem.prior

    def output(z):
        w = parts(z)
        return jnp.tanh(data["x"] @ w["W"] + w["b"]) @ w["V"]

    anchor, J, level = slopes(stream, output)
    precision = np.diag(np.exp(-2 * np.asarray(prior.log_sd))) + J.T @ J / 0.1**2
    mean = np.linalg.solve(precision, J.T @ (data["y"] - level + J @ anchor) / 0.1**2)
    return J, level, mean, np.linalg.inv(precision)


def test_slopes_are_beside_the_mode_so_that_units_differ():
    """At a mode units that rows do not tell apart are alike, for all rows that come later."""
    with pm.Model(coords={"row": range(1)}) as model:
        x = pm.Data("x", np.zeros((1, 1)), dims=("row", None))
        W, b = pm.Normal("W", 0, 1, shape=(1, 8)), pm.Normal("b", 0, 1, shape=8)
        pm.Normal("y", pt.tanh(x @ W + b) @ pm.Normal("V", 0, 1, shape=8), 0.1,
                  observed=np.zeros(1), dims="row")  # fmt: skip
    x = np.linspace(-1, 1, 20)[:, None]
    line = {"x": x, "y": 0.5 * x[:, 0]}
    stream = pmcl.fit_online(model, family="full", random_seed=1, progressbar=False)
    stream = stream.update(line, progressbar=False)
    q = stream.approximation()
    _, _, mean, covariance = regression(stream, line)
    np.testing.assert_allclose(q.mean, mean, atol=1e-6)
    np.testing.assert_allclose(q.covariance, covariance, atol=1e-7)
    bent = {"x": x + 2, "y": 0.5 + np.sin(1.5 * (x[:, 0] + 1)) / 2}
    later = stream.update(bent, progressbar=False)
    told = [float(later.log_predictive(part, random_seed=0).mean()) for part in (line, bent)]
    assert min(told) > 1.1  # 0.93 of the second by the slopes of the mode, at every start


def test_later_batches_are_a_regression_on_the_slopes_of_the_first(net, tmp_path):
    """Nothing is linearised anew: what comes in parts ends where all of it at once does."""
    stream, data = net
    q = stream.approximation()
    (anchor,) = np.asarray(stream.state.anchors.at)
    _, _, mean, covariance = regression(stream, data)
    np.testing.assert_allclose(q.mean, mean, atol=1e-6)
    np.testing.assert_allclose(q.covariance, covariance, atol=1e-7)
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, size=(12, 1))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=12)
    J, level, _, _ = regression(stream, {"x": x, "y": y})
    before = np.linalg.inv(q.covariance)
    precision = before + J.T @ J / 0.1**2
    shift = before @ q.mean + J.T @ (y - level + J @ anchor) / 0.1**2
    mean, covariance = np.linalg.solve(precision, shift), np.linalg.inv(precision)
    pmcl.save(stream, tmp_path / "net.zarr.zip")
    for one in (stream, pmcl.load(tmp_path / "net.zarr.zip", stream.compiled.model)):
        for i in (slice(0, 7), slice(7, 12)):
            one = one.update({"x": x[i], "y": y[i]}, progressbar=False)
        np.testing.assert_allclose(one.approximation().mean, mean, atol=1e-6)
        np.testing.assert_allclose(one.approximation().covariance, covariance, atol=1e-7)
        np.testing.assert_array_equal(one.state.anchors.at, [anchor])
        # the evidence of a batch is that of the same regression, whatever drawn weights say
        spread = J[:7] @ q.covariance @ J[:7].T + 0.1**2 * np.eye(7)
        ahead = level[:7] + J[:7] @ (np.asarray(q.mean) - anchor)
        evidence = stats.multivariate_normal(ahead, spread).logpdf(y[:7])
        assert one.history["log_evidence"].values[-2] == pytest.approx(evidence, abs=1e-6)
        sd = np.sqrt(np.einsum("nd,de,ne->n", J, covariance, J) + 0.1**2)
        truth = stats.norm(level + J @ (mean - anchor), sd).logpdf(y)
        found = one.log_predictive({"x": x, "y": y}, draws=10, random_seed=0)
        np.testing.assert_allclose(found, truth, atol=1e-6)


def curves(tasks):
    """A network with a head for each task."""
    coords = {"row": range(1), "unit": range(12), "task": tasks}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", np.zeros((1, 1)), dims=("row", None))
        task = pm.Data("task_of_row", np.zeros(1, int), dims="row")
        W = pm.Normal("W", 0, 1.5, shape=(1, 12))
        b = pm.Normal("b", 0, 1, dims="unit")
        V = pm.Normal("V", 0, 1, dims=("unit", "task"))
        level = (pt.tanh(x @ W + b) @ V)[pt.arange(x.shape[0]), task]
        pm.Normal("y", level, 0.1, observed=np.zeros(1), dims="row")
    return model


@pytest.mark.parametrize("grows", [False, True])
def test_a_head_that_comes_later_is_learned_and_none_is_forgotten(grows, tmp_path):
    """Each is linearised where its first rows left it, in what its rows depend on."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(40, 1))
    truth = [np.sin(x[:, 0]), np.sign(x[:, 0])]
    tests = [{"x": x, "task_of_row": np.full(40, i), "y": y} for i, y in enumerate(truth)]
    noisy = [{**t, "y": t["y"] + 0.1 * rng.normal(size=40)} for t in tests]
    both = curves(["one", "two"])
    stream = pmcl.fit_online(
        curves(["one"]) if grows else both, family="full", random_seed=1, progressbar=False
    )

    def told():
        found = [stream.log_predictive(t, random_seed=0) for t in tests[: 1 if grows else 2]]
        return [float(f.mean()) for f in found]

    stream = stream.update(noisy[0], progressbar=False)
    before = told()
    assert before[0] > 1.0  # the noise's own is 0.88, and 1.38 where the truth is known
    if grows:
        stream = stream.grow(both)
        assert told() == pytest.approx(before)
        grows = False
    else:
        assert before[1] < 0
    first = np.asarray(stream.state.anchors.at)
    stream = stream.update(noisy[1], progressbar=False)
    pmcl.save(stream, tmp_path / "heads.zarr.zip")
    after = told()
    assert min(after) > 0.9  # -0.2 of the second with the old slopes alone
    np.testing.assert_array_equal(stream.state.anchors.at[0], first[0])
    heads = stream.compiled.unravel(stream.state.anchors.since)
    np.testing.assert_array_equal(heads["V"], [[0, 1]] * 12)
    assert (heads["W"] == 0).all() and (heads["b"] == 0).all()
    # a batch of both is told each by its own slopes
    mixed = {k: np.concatenate([t[k][:5] for t in noisy]) for k in noisy[0]}
    drawn = stream.predict({k: mixed[k] for k in ("x", "task_of_row")}, random_seed=0)["y"]
    level = np.concatenate([t["y"][:5] for t in tests])
    assert np.abs(drawn.mean(["chain", "draw"]) - level).max() < 0.3
    stream = stream.update(mixed, progressbar=False)
    assert len(stream.state.anchors.at) == 2
    assert min(told()) > min(after) - 0.05
    again = pmcl.load(tmp_path / "heads.zarr.zip", both).update(mixed, progressbar=False)
    np.testing.assert_allclose(again.state.q.mean, stream.state.q.mean, rtol=1e-6, atol=1e-8)


def test_an_effect_that_joins_a_network_leaves_its_slopes():
    """Of a new group the old slopes foretell more than new ones would."""
    coords = {"row": range(1), "group": range(3)}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", np.zeros((1, 1)), dims=("row", None))
        group = pm.Data("group_of_row", np.zeros(1, int), dims="row")
        W, b = pm.Normal("W", 0, 1.5, shape=(1, 6)), pm.Normal("b", 0, 1, shape=6)
        level = pt.tanh(x @ W + b) @ pm.Normal("V", 0, 1, shape=6)
        effect = pm.Normal("effect", 0, 1, dims="group")
        pm.Normal("y", level + effect[group], 0.1, observed=np.zeros(1), dims="row")
    rng = np.random.default_rng(0)
    stream = pmcl.fit_online(model, family="full", random_seed=1, progressbar=False)
    for i in range(3):
        x = rng.uniform(-2, 2, size=(20, 1))
        batch = {"x": x, "group_of_row": np.full(20, i), "y": np.sin(x[:, 0]) + i}
        stream = stream.update(batch, progressbar=False)
        assert len(stream.state.anchors.at) == 1
        assert int(stream.state.anchors.waiting.sum()) == 2 - i
    told = stream.log_predictive({**batch, "group_of_row": np.zeros(20, int),
                                  "y": np.sin(x[:, 0])}, random_seed=0)  # fmt: skip
    assert float(told.mean()) > 1.2


def test_while_all_rows_are_in_the_memory_nothing_is_linearised_for_good(net):
    """A memory that holds the first rows of a network: the first batches may be small."""
    stream, data = net
    small = pmcl.fit_online(
        stream.compiled.model, family="full", memory=pmcl.ResidualMemory(30),
        random_seed=1, progressbar=False,
    )  # fmt: skip
    for i in range(0, 30, 10):
        small = small.update({k: v[i : i + 10] for k, v in data.items()}, progressbar=False)
    _, _, mean, covariance = regression(small, data)  # of all rows, on slopes that all have told
    np.testing.assert_allclose(small.approximation().mean, mean, atol=1e-6)
    np.testing.assert_allclose(small.approximation().covariance, covariance, atol=1e-7)
    told = [float(s.log_predictive(data, random_seed=0).mean()) for s in (stream, small)]
    assert told[1] > told[0] - 0.05


def test_few_first_rows_of_a_network_are_warned_of(net):
    stream, data = net
    few = {k: v[:2] for k, v in data.items()}
    empty = [
        pmcl.fit_online(
            stream.compiled.model, family="full", memory=memory, random_seed=1, progressbar=False
        )
        for memory in (None, pmcl.ResidualMemory(1))
    ]
    with pytest.warns(UserWarning, match="Update '0': 2 rows for a network of 12 weights"):
        empty[0].update(few, progressbar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = empty[1].update({k: v[:1] for k, v in few.items()}, progressbar=False)
    with pytest.warns(UserWarning, match=r"Update '1': 2 rows .*memory=pmcl.ResidualMemory\(3\)"):
        kept.update({k: v[1:2] for k, v in data.items()}, progressbar=False)


def test_new_entries_are_linearised_in_all_entries_or_in_themselves_alone():
    class Told:
        parts = ()

        def __call__(self, z, dataset):
            return [(jnp.stack([z[0] ** 2, z[0] * z[1] ** 2])[:, None], ())]

    anchors = anchor.Anchors(jnp.array([[1.0, 0, 0]]), jnp.array([0, 1, 1]))
    new, at = jnp.array([False, True, False]), jnp.array([2.0, 3.0, 0.0])
    # z[0] stays at its anchor, by which its square is 1 + 2 (z - 1); z[1] is as in the model
    for own, level, slope in [(False, 2 * 9, [9, 12, 0]), (True, 2 * 9, [9, 12, 0])]:
        told = anchor.Anchored(Told(), anchors, new, own)
        np.testing.assert_allclose(told(at, {})[0][0][:, 0], [3, level])
        found = jax.jacobian(lambda z, f=told: f(z, {})[0][0][:, 0])(at)
        np.testing.assert_allclose(found, [[2, 0, 0], slope])
    mean = jnp.array([4.0, 2.0, 5.0])
    own, alone = (anchors.joined(mean, new, own=o) for o in (True, False))
    np.testing.assert_array_equal(own.at, [[1, 0, 0], [4, 2, 5]])
    np.testing.assert_array_equal(own.since, [0, 1, 2])
    np.testing.assert_array_equal(alone.at, [[1, 2, 0]])
    np.testing.assert_array_equal(alone.since, [0, 0, 1])
    both = [anchor.Anchored(Told(), a)(at, {})[0][0][:, 0] for a in (own, alone)]
    # z[0] z[1]^2 about (4, 2): 16 + 4 (2 - 4) + 16 (3 - 2); about (1, 2): 4 + 4 (2 - 1) + 4 (3 - 2)
    np.testing.assert_allclose(both, [[3, 24], [3, 12]])
    assert own.ways == alone.ways == (False, True)
    full = anchor.Anchors(jnp.zeros((anchor.MOST, 3)), own.since)
    assert full.ways == (False,)
    assert anchor.Anchors.none(mean).ways == (True,)


@pytest.mark.parametrize("memory", [pmcl.RandomCoreset(29), pmcl.KCenterCoreset(29)])
def test_with_a_coreset_slopes_are_those_of_all_rows(net, memory):
    """Not those of the one row that is not stored."""
    stream, data = net
    coreset = pmcl.fit_online(
        stream.compiled.model, family="full", memory=memory, random_seed=1, progressbar=False
    ).update(data, progressbar=False)
    assert len(coreset.memory["row"]) == 29
    told = [float(s.log_predictive(data, random_seed=0).mean()) for s in (stream, coreset)]
    assert told[1] > told[0] - 0.1


def test_a_model_grows_into_a_network(net, tmp_path):
    """And without its rows a stream tells nothing of where they put its slopes."""
    _, data = net

    def model(units):
        with pm.Model(coords={"row": range(1)}) as found:
            x = pm.Data("x", np.zeros((1, 1)), dims=("row", None))
            level = x @ pm.Normal("slope", 0, 1, shape=1)
            if units:
                W, b = pm.Normal("W", 0, 1, shape=(1, units)), pm.Normal("b", 0, 1, shape=units)
                level = level + pt.tanh(x @ W + b) @ pm.Normal("V", 0, 0.5, shape=units)
            pm.Normal("y", level, 0.1, observed=np.zeros(1), dims="row")
        return found

    stream = pmcl.fit_online(model(0), family="full", random_seed=1, progressbar=False)
    stream = stream.update({k: v[:10] for k, v in data.items()}, progressbar=False)
    assert stream.state.anchors is None
    whole = model(4)
    stream = stream.update({k: v[10:] for k, v in data.items()}, model=whole, progressbar=False)
    assert len(stream.state.anchors.at) == 1
    pmcl.save(stream, tmp_path / "grown.zarr.zip")
    pmcl.load(tmp_path / "grown.zarr.zip", whole)
    kept = pmcl.fit_online(
        whole, family="full", memory=pmcl.ResidualMemory(30), random_seed=1, progressbar=False
    ).update(data, progressbar=False)
    pmcl.save(kept, tmp_path / "bare.zarr.zip", include_memory=False)
    bare = pmcl.load(tmp_path / "bare.zarr.zip", whole)
    assert len(kept.state.anchors.at) == 1 and not len(bare.state.anchors.at)


def test_anchors_that_cannot_be_are_refused():
    at = xr.Dataset({"at": (("anchor", "z"), np.zeros((1, 2))), "since": ("z", [0, 1])})
    anchors_of(at, 2, "here")
    for broken, message in [
        (at.drop_vars("since"), "here: expected numbers 'since'"),
        (at.isel(z=[0]), r"here: at: expected shape \(1, 2\)"),
        (at.assign(at=at["at"] * np.nan), "here: at: expected finite numbers"),
        (at.assign(since=at["since"] + 1), "here: since: expected numbers of anchors"),
    ]:
        with pytest.raises(StateError, match=message):
            anchors_of(broken, 2, "here")
