"""The search for a posterior: mode, scale, status, and what it does where it cannot find one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

from pmcl.compile import Density, compile_model
from pmcl.compile.variables import initial_point
from pmcl.data.task import Batch
from pmcl.runtime import precision
from pmcl.search.many import narrowed, places, searched, several
from pmcl.search.newton import Mode, Status, lbfgs, newton
from pmcl.search.scales import Dense
from pmcl.search.search import POOL, Search, promise


@pytest.fixture(scope="module")
def density() -> Density:
    with pm.Model(coords={"obs": range(10)}) as model:
        mu = pm.Normal("mu", 1, 2)
        pm.Normal("y", mu, 1, observed=np.zeros(10), dims="obs")
    return Density(compile_model(model), "obs")


def test_the_place_of_a_normal_posterior_is_exact(density):
    y = np.random.default_rng(0).normal(3, 1, 10)
    prior = np.random.default_rng(1).normal(1, 2, (200, 1))
    with precision.scope():
        search = Search.of(density, np.ones(1), prior)
        assert search.starts.shape == (5, 1)
        place = jax.jit(lambda y: search({"y": y}, None))(y)
        exact = 1 / 2**2 + 10
        assert place.status == Status.CONVERGED
        np.testing.assert_allclose(place.loc[0], [(1 / 2**2 + y.sum()) / exact], rtol=1e-8)
        assert isinstance(place.scale, Dense)
        np.testing.assert_allclose(place.scale.lower[0], [[exact**-0.5]], rtol=1e-8)
        np.testing.assert_allclose(place.sides, 0, atol=1e-8)  # normal on all sides
        seen = search.seen(place)
    assert seen.shape == (1, search.features)
    assert seen[0, 0] == -1


def test_without_a_finite_density_the_start_and_the_prior_are_all_there_is(density):
    prior = np.random.default_rng(1).normal(1, 2, (200, 1))
    with precision.scope():
        search = Search.of(density, np.ones(1), prior)
        place = search({"y": jnp.full(10, jnp.nan)}, None)
        assert place.status == Status.NOT_FINITE
        np.testing.assert_allclose(place.loc[0], [1.0])
        assert isinstance(place.scale, Dense)
        np.testing.assert_allclose(place.scale.lower[0], [search.spread])
        seen = search.seen(place)
    assert seen[0, 0] == 1
    assert np.isfinite(seen).all()


def test_a_prior_without_finite_draws_has_scale_one(density):
    with precision.scope():
        search = Search.of(density, np.ones(1), np.full((50, 1), np.inf))
        np.testing.assert_allclose(search.spread, 1)
        place = search({"y": jnp.zeros(10)}, None)
    assert place.status == Status.CONVERGED


def test_the_best_of_two_modes_is_found_from_any_start():
    with pm.Model(coords={"obs": range(1)}) as model:
        x = pm.Normal("x", 1, 3)  # modes near -3 and 3, of which the right one is nearer to 1
        pm.Normal("y", abs(x), 0.3, observed=np.zeros(1), dims="obs")
    density = Density(compile_model(model), "obs")
    prior = np.random.default_rng(1).normal(1, 3, (200, 1))
    with precision.scope():
        search = Search.of(density, np.full(1, -1.0), prior)
        place = search({"y": jnp.full(1, 3.0)}, None)
    assert place.status == Status.CONVERGED
    assert place.loc[0, 0] > 2


def test_the_initial_point_is_that_of_pymc():
    with pm.Model() as model:
        pm.Normal("a", 2, 1)
        pm.HalfNormal("s", 3, initval=0.5)
        pm.Dirichlet("p", np.ones(3))
        pm.Normal("y", 0, 1, observed=0.0)
    expected = model.initial_point()
    want = np.concatenate([np.ravel(expected[v.name]) for v in model.value_vars])
    np.testing.assert_allclose(initial_point(model), want)


class ManyScales(eqx.Module):
    """A normal whose sds differ by a factor of 200, and that is narrower along five directions."""

    sd: jax.Array
    loading: jax.Array

    def __call__(self, z: jax.Array, data: dict[str, jax.Array], mask: None) -> jax.Array:
        u = (z - data["y"]) / self.sd
        return -0.5 * jnp.sum(u**2) - 0.5 * jnp.sum((self.loading.T @ u) ** 2)


@pytest.mark.parametrize("dim", [60, 200, 500])
def test_long_vectors_are_found_in_units_of_their_own(dim):
    rng = np.random.default_rng(dim)
    with precision.scope():
        sd = np.exp(rng.uniform(np.log(0.005), 0, dim))
        loading = rng.normal(size=(dim, 5)) * 3 / np.sqrt(dim)
        density = ManyScales(jnp.asarray(sd), jnp.asarray(loading))
        search = Search.of(density, np.zeros(dim), rng.normal(size=(200, dim)), starts=2)
        assert not search.exact
        y = rng.normal(size=dim)
        place = jax.jit(lambda y: search({"y": y}, None))(jnp.asarray(y))
        assert place.status == Status.CONVERGED
        np.testing.assert_allclose((place.loc[0] - y) / sd, 0, atol=0.02)
        scale = jax.tree.map(lambda x: x[0], place.scale)
        root = np.asarray(jax.vmap(scale.multiply)(jnp.eye(dim)).T)
    # A' (-Hessian) A = I where A A' is its inverse
    inside = (root.T / sd) @ (np.eye(dim) + loading @ loading.T) @ (root.T / sd).T
    values = np.linalg.eigvalsh(inside)
    assert values[0] > 0.7 and values[-1] < 1.3
    log_det = 0.5 * np.linalg.slogdet(np.eye(dim) + loading @ loading.T)[1]
    np.testing.assert_allclose(scale.log_det(), np.log(sd).sum() - log_det, atol=0.01 * dim)


def test_a_spike_of_the_prior_is_not_its_scale(density):
    """More than half of the draws are alike: the others say how far to look."""
    rng = np.random.default_rng(2)
    prior = np.concatenate([rng.normal(5, 1e-3, 120), rng.normal(0, 1, 80)])[:, None]
    search = Search.of(density, np.zeros(1), prior)
    assert 1 < float(search.spread[0]) < 4
    assert np.ptp(np.asarray(search.starts)) > 3


class Crescents(eqx.Module):
    """Two half rings about (-y, 0) and (y, 0), flat along each, and nothing between them."""

    radius: float = eqx.field(static=True, default=0.5)
    width: float = eqx.field(static=True, default=0.02)

    def __call__(self, z: jax.Array, data: dict[str, jax.Array], mask: None) -> jax.Array:
        first = jnp.abs(z[0]) - data["y"]
        r = jnp.sqrt(first**2 + z[1] ** 2 + 1e-30)
        inside = -0.5 * ((r - self.radius) / self.width) ** 2 + jnp.where(z[0] > 0, 1.0, 0.0)
        return jnp.where(first > 0, inside, -jnp.inf)


@pytest.fixture(scope="module")
def crescents() -> tuple[Search, Batch, np.ndarray]:
    prior = np.random.default_rng(3).normal(0, 2, (600, 2))
    y = np.linspace(1.5, 3.0, 8)
    with precision.scope():
        return Search.of(Crescents(), np.zeros(2), prior, starts=16), Batch({"y": y}, None), prior


def test_ridges_without_a_top_beside_a_support_are_found(crescents):
    """Each ridge of each dataset has an end on it, the higher ridge the best."""
    search, batch, prior = crescents
    y = batch.values["y"]
    with precision.scope():
        lost = np.mean(searched(search, batch).status == Status.NOT_FINITE)
        assert lost > 0.3  # else all may be found without
        found = narrowed(search, batch, lambda: prior)
        assert found.searches is not None
        assert found.searches < len(found.starts)
        place = places(found, batch)
    there = np.isfinite(place.log_weight)
    for i in range(len(y)):
        loc = place.loc[i][there[i]]
        np.testing.assert_allclose(np.hypot(np.abs(loc[:, 0]) - y[i], loc[:, 1]), 0.5, atol=0.04)
        assert (loc[:, 0] > 0).any() and (loc[:, 0] < 0).any()
        assert loc[0, 0] > 0
    # what is flat is no wider than the prior
    sd = np.sqrt(np.sum(place.scale.lower**2, axis=-1))
    assert (sd[there] <= 1.01 * np.asarray(found.spread)).all()


def test_searches_whose_starts_all_have_a_density_keep_them(density):
    y = np.random.default_rng(0).normal(1, 2, (8, 1)) + np.random.default_rng(1).normal(size=10)
    prior = np.random.default_rng(1).normal(1, 2, (200, 1))
    with precision.scope():
        search = Search.of(density, np.ones(1), prior, starts=8)
        found = narrowed(search, Batch({"y": y}, None), lambda: prior)
    assert found.searches is None
    assert found.modes == 1
    assert len(found.starts) == 2


def test_only_what_is_flat_is_held_to_the_width_of_the_prior():
    """Sds of 12 and 5 in units of the spread: the first is flat, the second is not."""

    def wide(z):
        return -0.5 * jnp.sum((z / jnp.asarray([12.0, 5.0])) ** 2)

    with precision.scope():
        for proper, sd in ((True, [1.0, 5.0]), (False, [10.0, 5.0])):
            given = {"steps": 60, "tol": 1e-8, "proper": proper}
            found = newton(wide, jnp.ones(2), jnp.ones(2), **given)
            assert found.status == Status.FLAT
            np.testing.assert_allclose(found.scale.lower, np.diag(sd), atol=1e-8)


def test_a_saddle_is_no_mode_though_it_is_as_high():
    def saddle(z):  # at 0, one nat below the modes at x = -1 and 1
        return -((z[0] ** 2 - 1) ** 2) - z[1] ** 2

    with precision.scope():
        search = lambda z: lbfgs(saddle, z, jnp.ones(2), steps=60, tol=1e-8)  # noqa: E731
        found = jax.vmap(search)(jnp.asarray([[0.0, 0.5], [0.8, 0.5]]))
        np.testing.assert_allclose(found.z, [[0.0, 0.0], [1.0, 0.0]], atol=1e-3)
        assert [*found.status] == [Status.SADDLE, Status.CONVERGED]
        assert [*np.isfinite(promise(found))] == [False, True]
        assert not np.isfinite(promise(found, alone=True))[0]


def test_only_where_no_end_counts_is_a_dataset_lost():
    """A flat end that ranks first beside a mode, and one that is alone."""
    ends = np.array([[Status.FLAT, Status.CONVERGED], [Status.FLAT, Status.SADDLE]])
    none, far = np.zeros((2, 2), int), np.array([[0.0, 9.0]] * 2)[..., None]
    with precision.scope():
        lower = jnp.tile(jnp.asarray([1.0, 0.5])[:, None, None], (2, 1, 1, 1))
        scale = Dense(lower, 1 / lower)
        found = Mode(far, np.zeros((2, 2)), scale, ends, none, none)
        chosen, number, lost = several(found)
        assert [*chosen.status[0]] == [Status.FLAT, Status.CONVERGED]
        assert [*number] == [2, 1] and [*lost] == [False, True]
        chosen, number, lost = several(found, alone=True)  # as where searches are pooled
    assert [*number] == [2, 1] and not lost.any()
    assert chosen.status[1, 0] == Status.FLAT


def test_a_pool_is_looked_at_in_parts_of_one_size(crescents):
    search, _, prior = crescents
    with precision.scope():
        pooled = search.pooled(prior, searches=8)
        assert len(pooled.starts) == POOL
        traced = str(jax.make_jaxpr(lambda y: pooled.begin({"y": y}, None))(2.0))
    # neither all of them at once, nor a remainder that compiles again
    assert {n: traced.count(f"f64[{n}] = abs") for n in (1, 32, POOL)} == {1: 0, 32: 1, POOL: 0}
