"""Models of `pymc.dims` against the same models in plain PyMC, through every door."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest
import xarray as xr

import pmcl
from pmcl.compile import compile_model, make_simulator, read_covariates
from pmcl.compile.labelled import ordinary
from pmcl.compile.variables import own_value

RNG = np.random.default_rng(3)
ROWS, SITES, KINDS = 30, 5, 3
X = RNG.normal(size=(ROWS, 2))
SITE = np.arange(ROWS) % SITES
Y = RNG.normal(size=ROWS) + X @ [1.0, -0.5]
COORDS = {"obs": range(ROWS), "site": range(SITES), "kind": [*"abc"], "predictor": ["p", "q"]}


def as_x(value: object, *dims: str) -> object:
    return pmd.as_xtensor(np.asarray(value, float), dims=dims)


def regression() -> None:
    x = pmd.Data("X", X, dims=("obs", "predictor"))
    alpha = pmd.Normal("alpha", 0.0, 2.0)
    beta = pmd.Normal("beta", 0.0, 1.0, dims="predictor")
    sigma = pmd.HalfNormal("sigma", 1.0)
    mu = pmd.Deterministic("mu", alpha + x.dot(beta, dim="predictor"))
    pmd.Normal("y", mu, sigma, observed=pmd.Data("held", Y, dims="obs"))


def regression_plain() -> None:
    x = pm.Data("X", X, dims=("obs", "predictor"))
    alpha = pm.Normal("alpha", 0.0, 2.0)
    beta = pm.Normal("beta", 0.0, 1.0, dims="predictor")
    sigma = pm.HalfNormal("sigma", 1.0)
    mu = pm.Deterministic("mu", alpha + x @ beta, dims="obs")
    pm.Normal("y", mu, sigma, observed=pm.Data("held", Y, dims="obs"), dims="obs")


def multilevel() -> None:
    site = pmd.Data("site_of", SITE, dims="obs")
    mu = pmd.Normal("mu", 0.0, 1.0)
    tau = pmd.HalfNormal("tau", 1.0)
    a = pmd.Normal("a", mu, tau, dims="site")
    slope = pmd.Normal("slope", 0.0, 1.0, initval=0.3)
    x = pmd.Data("x", X[:, 0], dims="obs")
    pmd.Normal("y", a.isel(site=site) + slope * x, 0.7, observed=as_x(Y, "obs"))


def multilevel_plain() -> None:
    site = pm.Data("site_of", SITE, dims="obs")
    mu = pm.Normal("mu", 0.0, 1.0)
    tau = pm.HalfNormal("tau", 1.0)
    a = pm.Normal("a", mu, tau, dims="site")
    slope = pm.Normal("slope", 0.0, 1.0, initval=0.3)
    x = pm.Data("x", X[:, 0], dims="obs")
    pm.Normal("y", a[site] + slope * x, 0.7, observed=Y, dims="obs")


def many_kinds() -> None:
    """Constrained vectors, dims in an order of their own, bounds, a Potential, a censored row."""
    w = pmd.Dirichlet("w", as_x([1.0, 2.0, 3.0], "kind"), core_dims="kind")
    effect = pmd.ZeroSumNormal("effect", core_dims="kind", dims=("site", "kind"))
    u = pmd.Uniform("u", -1.0, as_x([2.0, 3.0], "predictor"), dims="predictor")
    p = pmd.Beta("p", 2.0, 3.0)
    nu = pmd.HalfStudentT("nu", nu=4.0, sigma=2.0, dims=("kind", "site"))
    t = pmd.Normal("t", effect, 1.0 + nu, dims=("kind", "predictor", "site"))
    pmd.Potential("soft", -((u.sum("predictor") - 1.0) ** 2))
    mean = t.mean("predictor") + p * (w * effect).sum("kind")
    cut = pmd.Normal.dist(mean, 1.0)
    pmd.Censored("y", cut, lower=None, upper=1.0, observed=as_x(np.full((3, 5), 0.4), "kind", "site"))


def many_kinds_plain() -> None:
    w = pm.Dirichlet("w", [1.0, 2.0, 3.0], dims="kind")
    effect = pm.ZeroSumNormal("effect", dims=("site", "kind"))
    u = pm.Uniform("u", -1.0, np.array([2.0, 3.0]), dims="predictor")
    p = pm.Beta("p", 2.0, 3.0)
    nu = pm.HalfStudentT("nu", nu=4.0, sigma=2.0, dims=("kind", "site"))
    by_kind = effect.T[:, None, :]
    t = pm.Normal("t", by_kind, 1.0 + nu[:, None, :], dims=("kind", "predictor", "site"))
    pm.Potential("soft", -((u.sum() - 1.0) ** 2))
    mean = t.mean(axis=1) + p * (w * effect).sum(axis=1)
    cut = pm.Normal.dist(mean, 1.0, shape=(3, 5))
    pm.Censored(
        "y", cut, lower=None, upper=1.0, observed=np.full((3, 5), 0.4), dims=("kind", "site")
    )


def model_of(build: Callable[[], None]) -> pm.Model:
    with pm.Model(coords=COORDS) as model:
        build()
    return model


PAIRS = [
    (regression, regression_plain, ("X",)),
    (multilevel, multilevel_plain, ("site_of", "x")),
    (many_kinds, many_kinds_plain, ()),
]


@pytest.mark.parametrize(("labelled", "plain", "covariates"), PAIRS)
def test_is_the_same_model_in_plain_pymc(
    labelled: Callable[[], None], plain: Callable[[], None], covariates: tuple[str, ...]
) -> None:
    ours = compile_model(model_of(labelled), covariates=covariates)
    theirs = compile_model(model_of(plain), covariates=covariates)
    for kind in ("free", "deterministics", "observed", "covariates", "values"):
        assert getattr(ours, kind) == getattr(theirs, kind)
    assert ours.data_dims == theirs.data_dims and ours._fixed == theirs._fixed
    assert ours.coords.keys() == theirs.coords.keys()
    np.testing.assert_allclose(ours.initial, theirs.initial)
    observed = {i.name: own_value(theirs.model, i.name) for i in theirs.data}
    for z in np.random.default_rng(1).normal(size=(5, ours.dim)) * 0.5:
        np.testing.assert_allclose(ours.log_prior(z), theirs.log_prior(z), rtol=1e-9)
        mine, other = (c.log_likelihood(z, observed) for c in (ours, theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-9)
        here, there = ours.constrain(z, observed), theirs.constrain(z, observed)
        for name, value in there.items():
            np.testing.assert_allclose(here[name], value, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(here[name].shape, value.shape)


@pytest.mark.parametrize(("labelled", "plain", "covariates"), PAIRS[:2])
def test_simulates_the_same_joint(
    labelled: Callable[[], None], plain: Callable[[], None], covariates: tuple[str, ...]
) -> None:
    del covariates  # constants here: the same rows in both
    n, found = 4_000, []
    for build in (labelled, plain):
        compiled = compile_model(model_of(build))
        z, data = make_simulator(compiled, read_covariates(None, ())).simulate(n, random_seed=2)
        found.append(np.hstack([z, np.log1p(np.abs(data["y"])), data["y"] > 0.5]))
    (a, b), spread = found, np.std(found[1], axis=0)
    error = (a.mean(axis=0) - b.mean(axis=0)) / (spread * np.sqrt(2 / n))
    assert a.shape == b.shape and np.abs(error).max() < 4.5
    np.testing.assert_allclose(a.std(axis=0), spread, rtol=0.15)
