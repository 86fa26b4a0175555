"""Whitened networks: right where the search knows the posterior, a flow at each mode, labels."""

import warnings
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pmcl
from pmcl.amortized.fit import _pool
from pmcl.archive.amortized import from_datatree, to_datatree
from pmcl.compile import Density
from pmcl.networks.contexts import contexts, placed, weighed
from pmcl.runtime import precision
from pmcl.search.search import POOL
from pmcl.training.bank import Simulated
from pmcl.training.labels import label_log_q

ROWS = 10
NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=16, depth=1, knots=4, affine_width=16),
)
QUIET = {"random_seed": 0, "progressbar": False}


def normal_model() -> pm.Model:
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu, sigma, observed=np.zeros(ROWS), dims="obs")
    return model


def two_sided() -> pm.Model:
    """A number of which the data tell the size alone, not the sign."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        x = pm.Normal("x", 0.5, 2)
        pm.Normal("y", abs(x), 1, observed=np.zeros(ROWS), dims="obs")
    return model


@pytest.fixture(scope="module")
def normal() -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(normal_model(), network=NETWORK, steps=300, simulations=1000, **QUIET)


@pytest.fixture(scope="module")
def signs() -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(two_sided(), network=NETWORK, steps=300, simulations=1000, **QUIET)


def test_it_is_right_far_from_anything_that_was_simulated(normal):
    y = np.random.default_rng(0).normal(50, 0.01, size=(3, ROWS))  # 50 prior sds away
    with warnings.catch_warnings():  # far from simulations, on which nothing depends here
        warnings.simplefilter("error", pmcl.FarDataWarning)
        tree = normal.sample({"y": y}, 4000, refine=False, random_seed=0)
    found = tree["dataset_stats"].to_dataset()
    assert (found["khat"] < 0.5).all() and (found["efficiency"] > 0.9).all()
    # the same integral on a grid
    mu, log_sigma = np.meshgrid(
        np.linspace(0, 60, 1201), np.linspace(-3, 5, 801), indexing="ij", sparse=True
    )
    for i, rows in enumerate(y):
        log_p = stats.norm.logpdf(mu) + stats.halfnorm.logpdf(np.exp(log_sigma)) + log_sigma
        for value in rows:
            log_p = log_p + stats.norm.logpdf(value, mu, np.exp(log_sigma))
        p = np.exp(log_p - log_p.max())
        mean = np.sum(p * mu) / p.sum()
        sd = np.sqrt(np.sum(p * (mu - mean) ** 2) / p.sum())
        draws = tree["posterior"]["mu"].isel(dataset=i)
        assert float(draws.mean()) == pytest.approx(mean, abs=0.1 * sd)
        assert float(draws.std()) == pytest.approx(sd, rel=0.1)


def test_a_network_without_training_is_the_normal_at_the_mode():
    fresh = pmcl.fit_amortized(normal_model(), network=NETWORK, steps=1, simulations=50, **QUIET)
    y = np.random.default_rng(1).normal(size=(1, ROWS))
    z = fresh.sample({"y": y}, 4000, refine=False, random_seed=0)["posterior"]
    log_sigma = np.log(z["sigma"].values.ravel())
    # z = (mu, log sigma) at its mode has the Hessian's variance, 1 / (1 + n / sigma^2) for mu
    top = np.exp(np.median(log_sigma))
    assert z["mu"].std() == pytest.approx((1 + ROWS / top**2) ** -0.5, rel=0.1)


def test_both_modes_are_found_and_weighed(signs):
    assert signs.amortizer.search.modes == 2
    y = 3 + np.random.default_rng(0).normal(size=(2, ROWS))
    tree = signs.sample({"y": y}, 8000, refine=False, random_seed=0)
    x = tree["posterior"]["x"]
    for i, rows in enumerate(y):
        mean = np.array([0.5 / 4 + rows.sum(), 0.5 / 4 - rows.sum()]) / (1 / 4 + ROWS)
        height = stats.norm.logpdf(mean, 0.5, 2) + [
            stats.norm.logpdf(rows, abs(m), 1).sum() for m in mean
        ]
        positive = 1 / (1 + np.exp(height[1] - height[0]))
        share = float((x.isel(dataset=i) > 0).mean())
        assert share == pytest.approx(positive, abs=4 * np.sqrt(0.25 / 8000) + 0.01)
    assert (tree["dataset_stats"]["efficiency"] > 0.9).all()


def test_modes_are_weighed_by_the_density_whatever_the_search_said(signs):
    rows = 0.7 + np.random.default_rng(0).normal(size=ROWS)
    task = xr.Dataset({"y": (("dataset", "obs"), rows[None])})
    q = signs.amortizer
    mean = np.array([0.5 / 4 + rows.sum(), 0.5 / 4 - rows.sum()]) / (1 / 4 + ROWS)
    height = stats.norm.logpdf(mean, 0.5, 2) + [
        stats.norm.logpdf(rows, abs(m), 1).sum() for m in mean
    ]
    positive = 1 / (1 + np.exp(height[1] - height[0]))
    with precision.scope():
        batch = signs.sampler.checked(task).batch()
        context = jax.tree.map(lambda v: v[0], contexts(q, batch, np.arange(1)))
        wrong = q.with_weights(context, jnp.log(jnp.array([0.05, 0.95])))
        right = jax.jit(lambda c: weighed(q, lambda z: q.search.density(z, {"y": rows}, None), c))(
            wrong
        )
        share = np.exp(q.log_weights(right))
    first = positive if context.place.loc[0, 0] > 0 else 1 - positive
    assert first > 0.3  # far from what the search is made to say
    # ten draws' worth of that are beside 128 of the density
    assert share[0] == pytest.approx((128 * first + 10 * 0.05) / 138, abs=0.02)


def test_the_density_of_a_mixture_is_one_and_that_of_its_draws(signs):
    task = xr.Dataset({"y": (("dataset", "obs"), np.full((1, ROWS), 1.0))})
    q = signs.amortizer
    with precision.scope():
        batch = signs.sampler.checked(task).batch()
        context = jax.tree.map(lambda v: v[0], contexts(q, batch, np.arange(1)))
        grid = jnp.linspace(-8, 8, 4001)
        density = jnp.exp(jax.vmap(q.log_prob, in_axes=(0, None))(grid[:, None], context))
        assert float(jnp.sum(density) * (grid[1] - grid[0])) == pytest.approx(1, abs=1e-3)
        z, log_q = q.draw(jax.random.key(0), 20_000, context)
        again = jax.vmap(q.log_prob, in_axes=(0, None))(z, context)
        np.testing.assert_allclose(log_q, again, atol=1e-4)
        below = jnp.cumsum(density) * (grid[1] - grid[0])
        test = stats.kstest(np.asarray(z[:, 0]), lambda v: np.interp(v, grid, below))
    assert test.pvalue > 1e-3


def test_labels_drawn_again_leave_the_loss_as_it_is(normal_mean):
    """For any q, and the more so for one that is far off: an identity of expectations."""
    q = normal_mean.amortizer()
    with precision.scope():
        density = Density(normal_mean.compiled, "obs")
        z, data = normal_mean.simulator.simulate(4000, random_seed=3)
        keys = jax.random.split(jax.random.key(0), len(z))
        one = jax.jit(
            jax.vmap(
                lambda u, x, k: jnp.stack(
                    [label_log_q(q, density, u, x, None, None, k, labels=n) for n in (1, 4)]
                )
            )
        )
        once, again = np.asarray(one(z, data, keys)).T
    apart = again - once
    assert abs(apart.mean()) < 4 * apart.std() / np.sqrt(len(apart))
    assert again.std() < once.std()


def test_simulations_without_a_finite_density_are_left_out_and_counted():
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        scale = pm.Normal("scale", 1, 1)  # negative at 16 %
        pm.Normal("y", 0, scale, observed=np.zeros(ROWS), dims="obs")
    with pytest.warns(UserWarning, match="left out of training"):
        found = pmcl.fit_amortized(model, network=NETWORK, steps=20, simulations=400, **QUIET)
    (record,) = found.pretraining
    assert record.simulations == 400
    assert record.left_out == pytest.approx(400 * stats.norm.cdf(-1), abs=40)
    assert np.isfinite(record.losses).all()


def test_no_search_begins_at_the_truth_of_what_is_learned_from(normal):
    about = SimpleNamespace(source=normal.simulator, seed=normal.seed)
    learned = Simulated.of(normal.simulator, POOL, random_seed=normal.seed).z
    assert not np.isin(_pool(about), learned).any()


def test_a_stored_search_is_compared(normal, tmp_path):
    path = tmp_path / "state.zarr"
    pmcl.save(normal, path)
    again = pmcl.load(path, normal_model())
    y = np.random.default_rng(0).normal(size=(2, ROWS))
    for name in ("mu", "sigma"):
        a, b = (p.sample({"y": y}, 100, random_seed=1)["posterior"][name] for p in (normal, again))
        np.testing.assert_array_equal(a, b)
    tree = to_datatree(normal)
    tree["search"]["evidence"] = tree["search"]["evidence"] + 1
    with pytest.raises(pmcl.StateError, match="at stored data 0 the search ends"):
        from_datatree(tree, normal_model())


def test_searches_are_made_once(normal):
    with precision.scope():
        batch = normal.sampler.checked({"y": np.zeros((3, ROWS))}).batch()
        found = placed(normal.amortizer, batch)
        assert found.place.loc.shape == (3, 1, 2)
        assert placed(normal.amortizer, found) is found


def test_a_network_that_is_not_whitened_sees_fresh_simulations():
    network = eqx.tree_at(lambda n: n.whiten, NETWORK, False)
    found = pmcl.fit_amortized(normal_model(), network=network, steps=10, **QUIET)
    assert found.amortizer.search is None
    assert found.pretraining[0].simulations == 0


def test_a_network_that_is_right_is_left_as_it_is(capsys):
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        mu = pm.Normal("mu", 0, 1)  # normal posteriors, which a search alone finds
        pm.Normal("y", mu, 1, observed=np.zeros(ROWS), dims="obs")
    exact = pmcl.fit_amortized(model, network=NETWORK, steps=1, simulations=50, **QUIET)
    capsys.readouterr()
    y = np.random.default_rng(3).normal(size=(4, ROWS))
    found = exact.adapt({"y": y}, name="same", random_seed=0, progressbar=True)
    record = found.records[0].record
    assert (record.steps, record.stopped) == (0, "nothing to gain")
    assert "same: no step is taken" in " ".join(capsys.readouterr().out.split())
    for a, b in zip(*(jax.tree.leaves(p.sampler.amortizer) for p in (exact, found)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(found.memory) == 1  # what comes later rehearses it all the same
    assert np.isnan(found.history["adaptation"]["objective_at_end"].values).all()
    taken = exact.adapt({"y": y}, name="same", steps=2, patience=None, **QUIET)
    assert taken.records[0].record.steps == 2


def test_searches_are_not_made_again_by_a_training_that_goes_on(tmp_path, monkeypatch):
    """A checkpoint holds what was found, not the data; one of other simulations is not used."""
    path = tmp_path / "run"
    options = {"network": NETWORK, "simulations": 60, "checkpoint": path, **QUIET}
    first = pmcl.fit_amortized(normal_model(), steps=2, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run.searches"]
    made, *_ = first.bank(path, progressbar=False)
    leaves = sum(np.asarray(x).nbytes for x in jax.tree.leaves((made.z, made.place)))
    assert leaves < (tmp_path / "run.searches").stat().st_size < leaves + 5000

    def none(*_, **__):
        raise AssertionError("searched again")

    monkeypatch.setattr("pmcl.training.bank.placed", none)
    again, *_ = first.bank(path, progressbar=False)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="belongs to another run: expected .*'seed': 1"):
        pmcl.fit_amortized(normal_model(), steps=2, **(options | {"random_seed": 1}))
    with pytest.raises(AssertionError, match="searched again"):
        first.bank(progressbar=False)
