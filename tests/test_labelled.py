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
    site = pmd.Data("site_of", SITE.astype("int32"), dims="obs")
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
    pmd.Censored(
        "y", cut, lower=None, upper=1.0, observed=as_x(np.full((3, 5), 0.4), "kind", "site")
    )


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
    pytest.param(many_kinds, many_kinds_plain, (), marks=pytest.mark.slow),
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


def distributions() -> None:
    """The distributions of `pymc.dims` that the other models leave out."""
    half, by_site = as_x([0.5, 1.5, 2.5], "kind"), {"dims": ("site", "kind")}
    pmd.Flat("flat", dims="site")
    pmd.HalfFlat("half_flat", dims="site")
    pmd.Triangular("triangular", lower=0.0, upper=3.0, c=1.0)
    pmd.TruncatedNormal("cut_normal", half, 1.0, lower=0.0, **by_site)
    pmd.Logistic("logistic", half, 2.0, **by_site)
    pmd.LogNormal("log_normal", half, 0.5, **by_site)
    pmd.StudentT("student", nu=half, mu=1.0, sigma=2.0, **by_site)
    pmd.VonMises("angle", 0.3, half, **by_site)
    pmd.Cauchy("cauchy", half, 1.0, **by_site)
    pmd.HalfCauchy("half_cauchy", 2.0, **by_site)
    pmd.Kumaraswamy("kumaraswamy", 2.0, 3.0, **by_site)
    pmd.Laplace("laplace", half, 1.0, **by_site)
    pmd.Exponential("exponential", half, **by_site)
    pmd.Gamma("gamma", mu=half, sigma=1.0, **by_site)
    pmd.Gumbel("gumbel", half, 1.0, **by_site)
    pmd.InverseGamma("inverse_gamma", 2.0, half, **by_site)
    pmd.Weibull("weibull", 2.0, 1.0, **by_site)
    pmd.Pareto("pareto", 2.0, 1.0, dims="site")
    cov = as_x(np.eye(3) + 0.3, "kind", "kind2")
    pmd.MvNormal("vector", half, cov, core_dims=("kind", "kind2"), dims=("kind", "site"))
    counts = {"observed": as_x(np.ones((5, 3)), "site", "kind").astype(int), **by_site}
    chance = as_x([0.2, 0.3, 0.5], "kind")
    pmd.NegativeBinomial("nb", mu=half, alpha=2.0, **counts)
    pmd.BetaBinomial("bb", alpha=2.0, beta=half, n=4, **counts)
    pmd.Bernoulli("bernoulli", logit_p=half, **counts)
    pmd.Binomial("binomial", n=3, p=chance, **counts)
    pmd.Geometric("geometric", chance, **counts)
    of_site = as_x(np.ones(5), "site").astype(int)
    pmd.Categorical("category", p=chance, core_dims="kind", observed=of_site, dims="site")


@pytest.mark.slow
def test_the_density_is_that_of_pymc() -> None:
    model = model_of(distributions)
    compiled = compile_model(model)
    points = np.random.default_rng(4).normal(size=(3, compiled.dim)) * 0.4
    theirs = model.compile_logp(mode="FAST_COMPILE")
    observed = {i.name: own_value(compiled.model, i.name) for i in compiled.observed}
    for z in points:
        parts = {v.name: z[v.start : v.start + v.size].reshape(v.shape) for v in compiled.values}
        # a vector lies along the last of its dims here
        parts["vector"] = parts["vector"].T
        ours = compiled.log_prior(z) + compiled.log_likelihood(z, observed)
        np.testing.assert_allclose(ours, theirs(parts), rtol=1e-9)
    infos = {i.name: i for i in compiled.free}
    assert infos["vector"].dims == ("site", "kind") and infos["vector"].shape == (5, 3)
    assert infos["gamma"].dims == ("site", "kind")


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


QUIET = {"random_seed": 0, "progressbar": False}
NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)


def means(tree: xr.DataTree) -> dict[str, np.ndarray]:
    return {k: v.mean(("chain", "draw")).values for k, v in tree["posterior"].data_vars.items()}


@pytest.fixture(scope="module")
def fitted() -> tuple[pm.Model, pmcl.AmortizedPosterior]:
    model = model_of(regression)
    fit = pmcl.fit_amortized(
        model, covariates=["X"], exchangeable="obs", network=NETWORK, steps=20, **QUIET
    )
    return model, fit


@pytest.mark.slow
def test_doors_take_it(fitted: tuple[pm.Model, pmcl.AmortizedPosterior], tmp_path) -> None:
    model, posterior = fitted
    alone = means(pmcl.refine(model, draws=4_000, **QUIET))
    plain = means(pmcl.refine(model_of(regression_plain), draws=4_000, **QUIET))
    nuts = pmcl.sample_reference(model, draws=1_000, chains=2, **QUIET)
    pmcl.save(posterior, tmp_path / "s.zarr.zip")
    loaded = pmcl.load(tmp_path / "s.zarr.zip", model)
    drawn = means(loaded.sample(draws=4_000, **QUIET))
    spread = nuts["posterior"].std(("chain", "draw"))
    for name, value in means(nuts).items():
        for other in (alone, plain, drawn):
            assert np.all(np.abs(other[name] - value) < 0.2 * spread[name].values)
    table = {"X": X[:7], "y": Y[:7]}
    adapted = posterior.adapt(table, name="t", steps=2, **QUIET)
    assert adapted.sample(table, 20, refine=False, random_seed=0)["posterior"].sizes["draw"] == 20


@pytest.mark.slow
def test_a_stream_of_it() -> None:
    found = []
    for build in (regression, regression_plain):
        stream = pmcl.fit_online(model_of(build), row="obs", random_seed=0)
        stream = stream.update({"X": X[:20], "y": Y[:20]}, random_seed=0, progressbar=False)
        found.append(means(stream.sample(2_000, random_seed=0)))
    for name, value in found[1].items():
        np.testing.assert_allclose(found[0][name], value, atol=0.02)


@pytest.mark.slow
def test_groups_are_seen() -> None:
    ours, theirs = (
        pmcl.refine(model_of(build), draws=2_000, levels=True, **QUIET)
        for build in (multilevel, multilevel_plain)
    )
    assert ours["posterior"].attrs["levels"] == theirs["posterior"].attrs["levels"]
    assert "5 groups along 'site'" in str(ours["posterior"].attrs["levels"])
    spread = theirs["posterior"].std(("chain", "draw"))
    for name, value in means(theirs).items():
        assert np.all(np.abs(means(ours)[name] - value) < 0.1 * spread[name].values)


def test_follows_its_own_data_and_coordinates() -> None:
    model = model_of(regression)
    first = ordinary(model)
    with model:
        pm.set_data({"X": X[:4], "held": Y[:4]}, coords={"obs": range(4)})
    second = ordinary(model)
    assert second is first and second["X"].get_value().shape == (4, 2)
    assert compile_model(model, covariates=("X",)).observed[0].shape == (4,)
    with model:
        pmd.Normal("late", 0.0, 1.0)
    assert ordinary(model) is not first and "late" in ordinary(model).named_vars
    assert ordinary(first) is first
