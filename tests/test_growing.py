"""Streams whose models get more entries in the middle."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import pmcl

SIGMA = 0.7


def regression(predictors, prior: float = 1.0) -> pm.Model:
    with pm.Model(coords={"row": range(1), "predictor": predictors}) as model:
        X = pm.Data("X", np.zeros((1, len(predictors))), dims=("row", "predictor"))
        w = pm.Normal("w", 0, prior, dims="predictor")
        b = pm.Normal("b", 0, 2)
        pm.Normal("y", b + X @ w, SIGMA, observed=np.zeros(1), dims="row")
    return model


def levels(names, *, centred: bool = False, coords: bool = True) -> pm.Model:
    with pm.Model(coords={"row": range(1), "clinic": names}) as model:
        which = pm.Data("which", np.zeros(1, int), dims="row")
        mean = pm.Normal("mean", 0, 2)
        dims = {"dims": "clinic"} if coords else {"shape": len(names)}
        if centred:
            effect = pm.Normal("effect", mean, 0.5, **dims)
        else:
            effect = mean + 0.5 * pm.Normal("effect", 0, 1, **dims)
        pm.Normal("y", effect[which], SIGMA, observed=np.zeros(1), dims="row")
    return model


def rows(n, seed, columns):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    return {"X": X, "y": 0.5 + X @ np.arange(1, columns + 1) + SIGMA * rng.normal(size=n)}


@pytest.mark.parametrize("family", ["mean_field", "full", "low_rank"])
def test_a_new_predictor_leaves_what_is_known_bit_for_bit(family):
    """And with covariances ends at the posterior of all rows, with zeros for what was not."""
    stream = pmcl.fit_online(
        regression(["a", "c"]), family=family, random_seed=0, progressbar=False
    )
    first, second = rows(20, 0, 2), rows(20, 1, 3)
    stream = stream.update(first, progressbar=False)
    model = regression(["a", "b", "c"])
    grown = stream.grow(model)
    before, after = stream.approximation(), grown.approximation()
    index = np.array([0, 2, 3])  # a, c, b of the intercept
    np.testing.assert_array_equal(np.asarray(after.mean)[index], before.mean)
    if family == "mean_field":
        np.testing.assert_array_equal(np.asarray(after.log_sd)[index], before.log_sd)
        np.testing.assert_array_equal(after.mean[1], 0.0)
        np.testing.assert_allclose(after.log_sd[1], 0.0, atol=1e-12)
        return
    np.testing.assert_allclose(after.variance[1], 1.0, rtol=1e-12)
    known = before.precision if family == "full" else before.columns
    now = after.precision if family == "full" else after.columns
    np.testing.assert_array_equal(
        np.asarray(now)[np.ix_(index, index)] if family == "full" else np.asarray(now)[index],
        known,
    )
    end = stream.update(second, model=model, progressbar=False)
    padded = np.insert(first["X"], 1, 0.0, axis=1)
    X = np.column_stack([np.concatenate([padded, second["X"]]), np.ones(40)])
    y = np.concatenate([first["y"], second["y"]])
    precision = np.diag([1, 1, 1, 0.25]) + X.T @ X / SIGMA**2
    q = end.approximation()
    np.testing.assert_allclose(q.mean, np.linalg.solve(precision, X.T @ y / SIGMA**2), atol=1e-6)
    np.testing.assert_allclose(q.solve(jnp.eye(4)), np.linalg.inv(precision), atol=1e-6)
    assert end.state.seen == 40
    assert list(end.sample(5, random_seed=0).posterior["predictor"].values) == ["a", "b", "c"]


@pytest.mark.parametrize("centred", [False, True])
def test_a_new_level_is_of_the_population(centred):
    """Its mean is what is known of the population's, as near as a normal can say."""
    stream = pmcl.fit_online(
        levels(["x", "y"], centred=centred), family="full", random_seed=0, progressbar=False
    )
    rng = np.random.default_rng(0)
    which = np.repeat([0, 1], 40)
    data = {"which": which, "y": np.array([2.8, 3.4])[which] + SIGMA * rng.normal(size=80)}
    stream = stream.update(data, progressbar=False)
    grown = stream.grow(levels(["x", "y", "z"], centred=centred))
    old, draws = (s.sample(4000, random_seed=0).posterior for s in (stream, grown))
    found = draws["effect"].sel(clinic="z").values
    if not centred:
        found = draws["mean"].values + 0.5 * found
    population = old["mean"].values
    assert found.mean() == pytest.approx(population.mean(), abs=0.05)
    assert found.std() >= 0.45  # its own, at least
    before, after = stream.approximation(), grown.approximation()
    np.testing.assert_array_equal(np.asarray(after.mean)[:3], before.mean)
    np.testing.assert_array_equal(np.asarray(after.precision)[:3, :3], before.precision)
    data = {"which": np.full(60, 2), "y": 1.0 + SIGMA * rng.normal(size=60)}
    grown = grown.update(data, progressbar=False)
    truth = 0 if centred else float(grown.approximation().mean[0])
    effect = float(grown.approximation().mean[3])
    value = effect if centred else truth + 0.5 * effect
    assert value == pytest.approx(data["y"].mean(), abs=0.3)


def test_stored_rows_go_with_new_levels_and_not_with_new_predictors(tmp_path):
    memory = pmcl.RandomCoreset(5)
    stream = pmcl.fit_online(
        levels(["x", "y"]), memory=memory, family="full", random_seed=0, progressbar=False
    )
    rng = np.random.default_rng(0)

    def batch(clinics):
        which = rng.integers(0, clinics, size=30)
        return {"which": which, "y": which + SIGMA * rng.normal(size=30)}

    stream = stream.update(batch(2), progressbar=False)
    stream = stream.update(batch(3), model=levels(["x", "y", "z"]), progressbar=False)
    assert len(stream.state.memory) == 5
    pmcl.save(stream, tmp_path / "grown.zarr.zip")
    again = pmcl.load(tmp_path / "grown.zarr.zip", levels(["x", "y", "z"]))
    np.testing.assert_array_equal(again.approximation().mean, stream.approximation().mean)
    with pytest.raises(ValueError, match="labels of dim 'clinic' that there were first"):
        stream.grow(levels(["new", "x", "y", "z"]))
    with pytest.raises(ValueError, match="labels of dim 'clinic' that there were first"):
        stream.grow(levels(["y", "x", "z"]))  # what is stored says 0 for "x"
    line = pmcl.fit_online(
        regression(["a"]), memory=memory, family="full", random_seed=0, progressbar=False
    ).update(rows(9, 0, 1), progressbar=False)
    with pytest.raises(ValueError, match="nobody knows the stored rows' new ones"):
        line.grow(regression(["a", "b"]))
    pair = pmcl.fit_online(
        regression(["a", "b"]), memory=memory, family="full", random_seed=0, progressbar=False
    ).update(rows(9, 0, 2), progressbar=False)
    with pytest.raises(ValueError, match="labels of dim 'predictor' that there were first"):
        pair.grow(regression(["b", "a"]))


@pytest.mark.slow
def test_the_prior_of_what_is_known_stays_whatever_it_is():
    """With bounds, of vectors, and of levels whose spread is a parameter."""

    def spread(names, scale=1.0, end=1.0, shares=1.0, least=0.0):
        with pm.Model(coords={"row": range(1), "clinic": names}) as model:
            which = pm.Data("which", np.zeros(1, int), dims="row")
            sd = pm.HalfNormal("sd", scale)
            part = pm.Uniform("part", 0, end) * pm.Dirichlet("shares", [1.0, shares])[0]
            effect = pm.Normal("effect", 0, least + sd, dims="clinic")
            pm.Normal("y", part * effect[which], SIGMA, observed=np.zeros(1), dims="row")
        return model

    stream = pmcl.fit_online(spread(["x", "y"]), random_seed=0, progressbar=False)
    more = ["z", "y", "x"]
    for name, other in [
        ("sd", spread(more, scale=2.0)),
        ("part", spread(more, end=9.0)),
        ("shares", spread(more, shares=2.0)),
        ("effect", spread(more, least=0.1)),
    ]:
        with pytest.raises(ValueError, match=f"variable '{name}': expected the prior that it had"):
            stream.grow(other)
    assert stream.grow(spread(more)).compiled.dim == stream.compiled.dim + 1


def test_models_that_do_not_go_on_are_refused():
    stream = pmcl.fit_online(regression(["a", "c"]), random_seed=0, progressbar=False)
    stream = stream.update(rows(9, 0, 2), progressbar=False)
    with pytest.raises(ValueError, match=r"dim 'predictor' that there were, \['c'\] are missing"):
        stream.grow(regression(["a", "b"]))
    with pytest.raises(ValueError, match="variable 'w': expected the prior that it had"):
        stream.grow(regression(["a", "b", "c"], prior=2.0))
    with pytest.raises(ValueError, match="expected the variable 'w', which something is known of"):
        stream.grow(levels(["x"]))
    bare = pmcl.fit_online(levels(["x", "y"], coords=False), random_seed=0, progressbar=False)
    with pytest.raises(ValueError, match="axis 0 had 2 entries and has 3: give it a dim"):
        bare.grow(levels(["x", "y", "z"], coords=False))
    same = stream.grow(regression(["a", "c"]))
    np.testing.assert_array_equal(same.approximation().mean, stream.approximation().mean)
    assert replace(same, compiled=stream.compiled).state.updates == 1
