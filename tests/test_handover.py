"""Yesterday's posterior as today's prior."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from draws import differing

import pmcl
from pmcl.compile import make_simulator, read_covariates
from pmcl.compile.conversion.graphs import host_mode
from pmcl.draws.handed import z_of
from pmcl.runtime import precision

N = 4000


def old_model() -> pm.Model:
    with pm.Model(coords={"side": ["l", "r"]}) as model:
        pm.Normal("v")
        pm.Normal("x", dims="side")
        s = pm.HalfNormal("s")
        pm.Deterministic("variance", s**2)
        low = pm.Uniform("low", 0, 1)
        pm.Uniform("high", low, low + 2)
        pm.Normal("y", 0, 1, observed=[0.0])
    return model


def funnel(seed: int = 0) -> dict[str, np.ndarray]:
    """Draws that no normal describes: a funnel, and bounds that follow another variable."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=N)
    low = rng.beta(2, 3, size=N)
    return {
        "v": v,
        "x": np.exp(v)[:, None] * rng.normal(size=(N, 2)) + 1,
        "s": rng.gamma(2, size=N),
        "low": low,
        "high": low + 2 * rng.beta(3, 2, size=N),
    }


def tree_of(draws: dict[str, np.ndarray]) -> xr.DataTree:
    dims = {"x": ("side",)}
    found = {k: (("chain", "draw", *dims.get(k, ())), v[None]) for k, v in draws.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(found)})


@pytest.fixture(scope="module")
def handed() -> pm.Model:
    old = old_model()
    with pm.Model(coords={"side": ["l", "r"]}) as model:
        v = pmcl.as_prior(tree_of(funnel()), model=old, random_seed=0)
        assert list(v) == ["v", "x", "s", "low", "high", "variance"]
        pm.Normal("y", v["x"].sum(), v["s"], observed=[0.0])
    return model


def test_the_new_prior_is_the_old_posterior(handed: pm.Model) -> None:
    assert [rv.name for rv in handed.free_RVs] == ["prior"]
    assert handed.named_vars_to_dims["x"] == ("side",)
    compiled = pmcl.compile_model(handed)
    simulator = make_simulator(compiled, read_covariates(None, ()))
    assert simulator.backend == "jax"
    z, _ = simulator.simulate(N, random_seed=1)
    import jax

    with precision.scope():
        named = jax.jit(jax.vmap(compiled.constrain))(z)
    expected = funnel(seed=5)
    ours = {k: np.asarray(named[k]) for k in expected}
    # what a flow learned from as many draws is not exact, but no normal would come near
    assert differing(ours, expected, level=1e-8) == {}
    assert np.abs(np.corrcoef(ours["v"], np.log(np.abs(ours["x"][:, 0] - 1)))[0, 1] - 0.67) < 0.1
    inside = (ours["high"] > ours["low"]) & (ours["high"] < ours["low"] + 2)
    assert inside.all()


def test_density_and_draws_belong_together(handed: pm.Model) -> None:
    compiled = pmcl.compile_model(handed)
    logp = handed.compile_logp(vars=handed.free_RVs, mode=host_mode())
    z = pm.draw(handed["prior"], 50, random_seed=0, mode=host_mode())
    with precision.scope():
        found = [float(compiled.log_prior(u)) for u in z]
    np.testing.assert_allclose(found, [logp({"prior": u}) for u in z], rtol=1e-6)
    # E[p(z) / q(z)] = 1 with z ~ q, where p is a normal inside of q's support
    many = pm.draw(handed["prior"], 4000, random_seed=1, mode=host_mode())
    mean, factor = many.mean(axis=0), np.linalg.cholesky(0.3 * np.cov(many.T))
    u = np.linalg.solve(factor, (many - mean).T).T
    log_p = -0.5 * (u**2).sum(1) - 0.5 * u.shape[1] * np.log(2 * np.pi)
    log_p -= np.log(np.diag(factor)).sum()
    log_q = np.array([logp({"prior": z}) for z in many])
    ratio = np.exp(log_p - log_q)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio)) + 0.02


def test_some_of_the_variables() -> None:
    old = old_model()
    with pm.Model():
        found = pmcl.as_prior(
            tree_of(funnel()), model=old, vars=["variance", "v"], name="before", flow=False
        )
        assert list(found) == ["v", "variance"]
        drawn = pm.draw(list(found.values()), 4000, random_seed=0, mode=host_mode())
    assert abs(np.log(drawn[1]).mean() / 2 - np.log(funnel()["s"]).mean()) < 0.06
    assert abs(drawn[0].std() - 1) < 0.06


@pytest.mark.parametrize(("draws", "new"), [("lr", "rl"), ("rl", "lr"), ("rl", "rl")])
def test_labels_of_draws_and_of_the_new_model_may_be_in_another_order(draws: str, new: str) -> None:
    values = {**funnel(), "x": np.random.default_rng(0).normal(size=(N, 2))}
    values["x"] += [5 * (side == "r") for side in draws]
    tree = tree_of(values)
    tree["posterior"] = tree["posterior"].to_dataset().assign_coords(side=list(draws))
    old = old_model()
    with pm.Model(coords={"side": list(new)}) as model:
        x = pmcl.as_prior(tree, model=old, vars=["x"], flow=False)["x"]
    assert model.named_vars_to_dims["x"] == ("side",)
    found = pm.draw(x, 400, random_seed=0, mode=host_mode()).mean(axis=0)
    np.testing.assert_allclose(found, [5 * (side == "r") for side in new], atol=0.3)


def known_slopes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(1.5, 1, size=(10, 6))  # not centred: the two are correlated
    return x, 0.5 + 0.8 * x + rng.normal(size=x.shape)


def exact(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    design = np.stack([np.ones(x.size), x.ravel()], axis=1)
    covariance = np.linalg.inv(design.T @ design + np.eye(2))
    return covariance @ design.T @ y.ravel(), covariance


@pytest.mark.parametrize("updates", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_chain_of_updates_ends_at_the_closed_form(updates: int) -> None:
    x, y = (v[:updates] for v in known_slopes())
    model, tree = None, None
    for i in range(updates):
        with pm.Model() as new:
            if tree is None:
                ab = {"a": pm.Normal("a"), "b": pm.Normal("b")}
            else:
                ab = pmcl.as_prior(tree, model=model, random_seed=i)
                assert {"a", "b"} <= set(ab)
            pm.Normal("y", ab["a"] + ab["b"] * x[i], 1, observed=y[i])
            tree = pm.sample(2000, tune=500, chains=2, random_seed=i, progressbar=False, quiet=True)
        model = new
    mean, covariance = exact(x, y)
    found = np.stack([tree["posterior"][n].values.ravel() for n in ("a", "b")])
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((found.mean(axis=1) - mean) / sd, 0, atol=0.15)
    np.testing.assert_allclose(
        np.cov(found) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.15
    )


def test_what_is_missing_is_named() -> None:
    old, draws = old_model(), tree_of(funnel())
    two = xr.concat([draws["posterior"].to_dataset()] * 2, "dataset").assign_coords(
        dataset=["u", "w"]
    )
    several = xr.DataTree.from_dict({"posterior": two})
    cases = [
        (lambda: pmcl.as_prior(draws), ValueError, "pass `model=`"),
        (lambda: pmcl.as_prior(np.zeros(3), model=old), TypeError, "got ndarray"),
        (lambda: pmcl.as_prior(draws, model=old, vars=["q"]), ValueError, r"'v', 'x'.*\['q'\]"),
        (lambda: pmcl.as_prior(draws, model=old, vars=["high"]), ValueError, "'high' depend on"),
        (lambda: pmcl.as_prior(several, model=old), ValueError, "`dataset=`, one of 'u', 'w'"),
        (lambda: pmcl.as_prior(several, model=old, dataset="q"), ValueError, "'u', 'w', got 'q'"),
        (lambda: pmcl.as_prior(draws, model=old, dataset="q"), ValueError, "of one dataset"),
        (
            lambda: pmcl.as_prior(draws.isel(draw=slice(5)), model=old),
            ValueError,
            "at least 200 finite draws",
        ),
    ]
    for call, error, message in cases:
        with pm.Model(), pytest.raises(error, match=message):
            call()
    with pytest.raises(TypeError, match="model"):
        pmcl.as_prior(draws, model=old)
    with old, pytest.raises(ValueError, match="expected a new model"):
        pmcl.as_prior(draws, model=old)


def test_bounds_that_are_data_go_by_their_labels() -> None:
    with pm.Model(coords={"g": [*"abc"]}) as model:
        top = pm.Data("top", np.ones(3), dims="g")
        pm.Normal("y", pm.Uniform("u", 0, top, dims="g"), 1, observed=np.zeros(3), dims="g")
    compiled = pmcl.compile_model(model, covariates=["top"])
    coords = {"g": [*"abc"]}
    u = xr.DataArray([[[0.5, 1, 1.5]]], dims=("chain", "draw", "g"), coords=coords)
    upper = xr.DataArray([1.0, 2, 5], dims="g", coords=coords)
    for order in ([0, 1, 2], [2, 0, 1]):
        groups = {
            "posterior": {"u": u.isel(g=order)},
            "constant_data": {"top": upper.isel(g=order)},
        }
        tree = xr.DataTree.from_dict({k: xr.Dataset(v) for k, v in groups.items()})
        expected = [0, 0, np.log(3 / 7)]
        np.testing.assert_allclose(z_of(compiled, tree, "draws").ravel(), expected, atol=1e-12)
