"""Models with a density and no simulator: refinement, evidence and NUTS need no more."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import Interval, log, ordered
from scipy import stats

import pmcl
from pmcl.compile import UnsupportedModelError
from pmcl.compile.integral import left_by_transforms, of_prior

Y = np.random.default_rng(0).normal(1, 1, 20)
N, MEAN = len(Y), Y.mean()
SQUARES = ((Y - MEAN) ** 2).sum()
PRECISION = N + 1 / 25  # of mu ~ N(0, 5), y ~ N(mu, 1)
EVIDENCE = stats.multivariate_normal.logpdf(Y, np.zeros(N), np.eye(N) + 25 * np.ones((N, N)))
QUIET = {"random_seed": 1, "progressbar": False}


def flat() -> None:
    pm.Normal("y", pm.Flat("mu"), pm.HalfFlat("s"), observed=Y)


def density_only() -> None:
    # log densities are PyMC's, so that the evidence is, too
    mu = pm.CustomDist("mu", 0.0, 5.0, logp=lambda v, *p: pm.logp(pm.Normal.dist(*p), v))
    pm.CustomDist("y", mu, logp=lambda v, mu: pm.logp(pm.Normal.dist(mu, 1), v), observed=Y)


def potential_alone() -> None:
    mu = pm.Normal("mu", 0, 5)
    pm.Potential("likelihood", pm.logp(pm.Normal.dist(mu, 1), Y).sum())


def potential_of_data() -> None:
    values = pm.Data("values", np.zeros(N))
    mu = pm.Normal("mu", 0, 5)
    pm.Potential("likelihood", pm.logp(pm.Normal.dist(mu, 1), values).sum())


def potential_as_prior() -> None:
    mu = pm.Flat("mu")
    pm.Potential("prior", pm.logp(pm.Normal.dist(0, 5), mu))
    pm.Normal("y", mu, 1, observed=Y)


def model_of(build: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        build()
    return model


DATA = {flat: {"y": Y}, density_only: {"y": Y}, potential_alone: {},
        potential_of_data: {"values": Y}, potential_as_prior: {"y": Y}}  # fmt: skip


@pytest.mark.parametrize("build", [density_only, potential_alone, potential_of_data])
def test_posterior_and_evidence_are_right(build: Callable[[], None]) -> None:
    tree = pmcl.refine(model_of(build), DATA[build], draws=4000, **QUIET)
    mu = tree["posterior"]["mu"].values.ravel()
    sd = PRECISION**-0.5
    assert mu.mean() == pytest.approx(N * MEAN / PRECISION, abs=4 * sd / 4000**0.5)
    assert mu.std() == pytest.approx(sd, rel=0.05)
    assert tree["dataset_stats"]["log_evidence"].item() == pytest.approx(EVIDENCE, abs=1e-3)


def test_an_improper_prior_has_a_posterior_and_no_evidence() -> None:
    tree = pmcl.refine(model_of(flat), {"y": Y}, draws=4000, **QUIET)
    mu, s = (tree["posterior"][n].values.ravel() for n in ("mu", "s"))
    variance = SQUARES / (N * (N - 4))  # of a t with N - 2 degrees of freedom
    assert mu.mean() == pytest.approx(MEAN, abs=4 * (variance / 4000) ** 0.5)
    assert mu.var() == pytest.approx(variance, rel=0.15)
    expected = stats.invgamma((N - 2) / 2, scale=SQUARES / 2)
    assert stats.kstest(s**2, expected.cdf).statistic < 0.04
    found = tree["dataset_stats"].to_dataset()
    assert np.isnan(found["log_evidence"].item())
    assert "improper prior of mu, s" in found["note"].item()


# by log density: improper, or with an integral that is not 1
CUSTOM: dict[str, tuple[Callable, dict, tuple[bool, bool]]] = {
    "flat": (lambda v: 0.0 * v, {}, (True, False)),
    "one over it": (lambda v: pt.switch(v > 0, -pt.log(v), -np.inf), {"initval": 1}, (True, False)),
    "one over it, as a logarithm": (lambda v: -pt.log(v), {"transform": log}, (True, False)),
    "normal": (lambda v: pm.logp(pm.Normal.dist(0, 1e4), v), {"shape": 2}, (False, False)),
    "half-Cauchy": (
        lambda v: pm.logp(pm.HalfCauchy.dist(5), v),
        {"transform": log},
        (False, False),
    ),
    "without its constant": (lambda v: -(v**2) / 2, {"shape": 2}, (False, True)),
    # proper ones, whose integrals a grid finds, or of which nothing is told
    "exponential": (lambda v: pm.logp(pm.Exponential.dist(10), v), {"initval": 1}, (False, False)),
    "uniform": (lambda v: pm.logp(pm.Uniform.dist(0, 1e3), v), {"initval": 1}, (False, False)),
    "narrow": (lambda v: pm.logp(pm.Normal.dist(0, 0.003), v), {}, (False, False)),
    "far": (lambda v: pm.logp(pm.Normal.dist(1000, 1), v), {"initval": 1000}, (False, False)),
    "long tail": (
        lambda v: pm.logp(pm.InverseGamma.dist(0.001, 0.001), v),
        {"transform": log},
        (False, False),
    ),
    "random walk": (
        lambda v: pm.logp(pm.Normal.dist(pt.concatenate([[0.0], v[:-1]]), 1), v),
        {"shape": 6},
        (False, False),
    ),
    "vector": (
        lambda v: pm.logp(pm.Normal.dist(), v).sum(),
        {"shape": 3},
        (False, False),
    ),
    "with draws": (
        lambda v: -(v**2) / 2,
        {"random": lambda rng=None, size=None: rng.normal(size=size)},
        (False, False),
    ),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_a_prior_by_its_density_is_integrated(name: str) -> None:
    density, options, (improper, unnormalised) = CUSTOM[name]
    with pm.Model() as model:
        w = pm.CustomDist("w", logp=density, **options)
        pm.Normal("y", w.sum(), 1, observed=Y)
    found = pmcl.compile_model(model)
    assert (found.improper, found.unnormalised) == (("w",) * improper, ("w",) * unnormalised)


def test_without_the_constant_there_is_no_evidence() -> None:
    with pm.Model() as model:
        w = pm.CustomDist("w", logp=lambda v: -(v**2) / 2)
        pm.Normal("y", w, 1, observed=Y)
    found = pmcl.refine(model, {"y": Y}, **QUIET)["dataset_stats"].to_dataset()
    assert np.isnan(found["log_evidence"].item())
    assert "no evidence: the prior of w does not integrate to 1" in found["note"].item()


POSITIVE = Interval(0.0, None)


@pytest.mark.parametrize(
    ("prior", "shape", "transform", "share"),
    [
        (pm.Normal, 2, ordered, 1 / 2),
        (pm.Normal, 3, ordered, 1 / 6),
        (pm.Normal, None, POSITIVE, 1 / 2),
        (pm.HalfNormal, None, POSITIVE, 1),
    ],
)
def test_the_share_of_a_prior_that_its_transform_leaves(prior, shape, transform, share) -> None:
    with pm.Model() as model:
        start = None if shape is None else np.arange(float(shape))
        named = {"shape": shape, "transform": transform, "default_transform": None}
        m = prior("m", **named, initval=start)
        pm.Normal("y", m.sum(), 1, observed=Y)
    left, error = (v.item() for v in of_prior(pmcl.compile_model(model)).left)
    assert left == pytest.approx(share, abs=4 * error) and error < 1e-3
    if shape != 2:
        return
    # the sum's distribution does not know of the order, and so the evidence does not
    found = pmcl.refine(model, {"y": Y}, **QUIET)["dataset_stats"].to_dataset()
    exact = stats.multivariate_normal.logpdf(Y, np.zeros(N), np.eye(N) + 2 * np.ones((N, N)))
    assert found["log_evidence"].item() == pytest.approx(exact, abs=0.05)
    assert "evidence of the 0.5 of the prior" in found["note"].item()


def test_the_share_that_transforms_leave_of_the_first_groups() -> None:
    with pm.Model() as model:
        at = pm.Normal("at", 0, 1, transform=POSITIVE, default_transform=None, initval=1.0)
        named = {"transform": ordered, "default_transform": None}
        m = pm.Normal("m", at, 1, shape=(3, 2), **named, initval=np.tile([0.0, 1.0], (3, 1)))
        pm.Normal("y", m.sum(), 1, observed=Y)
    left, error = left_by_transforms(
        pmcl.compile_model(model), np.array([-1, *np.repeat(np.arange(3), 2)])
    )
    np.testing.assert_allclose(left, 0.5 ** np.arange(1, 5), atol=4 * error.max())


def test_a_potential_of_parameters_is_a_term_of_the_prior() -> None:
    model = model_of(potential_as_prior)
    tree = pmcl.refine(model, {"y": Y}, log_prior=True, **QUIET)
    assert "which may not integrate to 1" in tree["dataset_stats"]["note"].item()
    mu = tree["posterior"]["mu"].values.ravel()
    assert mu.std() == pytest.approx(PRECISION**-0.5, rel=0.1)
    prior = tree["log_prior"]["prior"].values.ravel()
    np.testing.assert_allclose(
        prior, stats.norm.logpdf(mu, 0, 5), rtol=1e-7
    )  # PyMC: log(5) is single


def test_nuts_agrees() -> None:
    for build in (potential_alone, density_only):
        tree = pmcl.sample_reference(model_of(build), DATA[build], chains=2, **QUIET)
        mu = tree["posterior"]["mu"].values.ravel()
        assert mu.mean() == pytest.approx(N * MEAN / PRECISION, abs=0.03)


def test_a_potential_by_row_is_padded() -> None:
    """Datasets of other lengths: a Potential along the rows is left out where there are none."""
    with pm.Model(coords={"row": range(N)}) as model:
        weight = pm.Data("weight", np.ones(N), dims="row")
        value = pm.Data("value", np.zeros(N), dims="row")
        mu = pm.Normal("mu", 0, 5)
        term = weight * pm.logp(pm.Normal.dist(mu, 1), value)
        pm.Potential("weighted", term, dims="row")
        pm.Normal("y", mu, 1, observed=np.zeros(N), dims="row")
    data = {
        name: {"y": Y[:n], "value": Y[:n], "weight": np.ones(n)} for name, n in (("a", N), ("b", 9))
    }
    tree = pmcl.refine(model, data, draws=4000, **QUIET)
    for name, n in (("a", N), ("b", 9)):
        mu = tree["posterior"]["mu"].sel(dataset=name).values.ravel()
        precision = 2 * n + 1 / 25
        expected = 2 * Y[:n].sum() / precision
        assert mu.mean() == pytest.approx(expected, abs=4 * precision**-0.5 / 4000**0.5)


def test_a_potential_without_rows_is_not_padded() -> None:
    with pm.Model(coords={"row": range(N)}) as model:
        value = pm.Data("value", np.zeros(N), dims="row")
        mu = pm.Normal("mu", 0, 5)
        pm.Potential("sum", pm.logp(pm.Normal.dist(mu, 1), value).sum())
        pm.Normal("y", mu, 1, observed=np.zeros(N), dims="row")
    data = {name: {"y": Y[:n], "value": Y[:n]} for name, n in (("a", N), ("b", 9))}
    with pytest.raises(pmcl.DataError, match="different lengths along 'row'"):
        pmcl.refine(model, data, **QUIET)


def test_what_needs_draws_of_the_data_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is searched for or sampled."""
    monkeypatch.setattr("pmcl.refinement.standalone.RefineJob.refined", pytest.fail)
    monkeypatch.setattr("pmcl.reference.sample.ReferenceJob.sampled", pytest.fail)
    model = model_of(density_only)
    with pytest.raises(UnsupportedModelError, match=r"'mu' is a `pm.CustomDist` with only `logp`"):
        pmcl.fit_amortized(model, **QUIET)
    with pytest.raises(UnsupportedModelError, match=r"'y' is a `pm.CustomDist` with only `logp`"):
        pmcl.refine(model, {"y": Y}, posterior_predictive=True, **QUIET)
    with pytest.raises(UnsupportedModelError, match="posterior_predictive: expected a model that"):
        pmcl.sample_reference(model, {"y": Y}, posterior_predictive=True, **QUIET)
    with pytest.raises(UnsupportedModelError, match="Potential 'prior' adds"):
        pmcl.fit_online(model_of(potential_as_prior), progressbar=False)


def vague() -> None:
    s2 = pm.InverseGamma("s2", 0.001, 0.001)
    pm.Normal("y", 0, pt.sqrt(s2), observed=Y)


def test_a_prior_whose_draws_divide_by_zero_has_a_posterior() -> None:
    tree = pmcl.refine(model_of(vague), {"y": Y}, draws=4000, **QUIET)
    s2 = tree["posterior"]["s2"].values.ravel()
    expected = stats.invgamma(0.001 + N / 2, scale=0.001 + (Y**2).sum() / 2)
    assert stats.kstest(s2, expected.cdf).statistic < 0.04
    with pytest.raises(UnsupportedModelError, match="Drawing variable 's2'.*divides by zero"):
        pmcl.fit_amortized(model_of(vague), backend="pytensor", **QUIET)


def test_a_hierarchy_with_a_potential_among_its_priors() -> None:
    """Groups about a common mean, whose spread has a Potential: the spread against a grid."""
    y = np.random.default_rng(1).normal(0, 2, 8)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 3)
        pm.Potential("prior_of_tau", -tau)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, 1, observed=y)
    tree = pmcl.refine(model, {"y": y}, draws=4000, **QUIET)
    log_tau = np.linspace(-8, 3, 400)
    grid = np.exp(log_tau)
    log_p = stats.halfnorm.logpdf(grid, scale=3) - grid + log_tau
    log_p += [
        stats.multivariate_normal.logpdf(y, np.zeros(8), (1 + t**2) * np.eye(8) + 25) for t in grid
    ]
    weight = np.exp(log_p - log_p.max())
    mean = np.average(log_tau, weights=weight)
    sd = np.sqrt(np.average((log_tau - mean) ** 2, weights=weight))
    found = tree["unconstrained_posterior"]["tau_log__"].values
    assert found.mean() == pytest.approx(mean, abs=0.12 * sd)
    assert found.std() == pytest.approx(sd, rel=0.15)


def test_observations_that_the_distributions_depend_on() -> None:
    """A lag of the model's own `pm.Data`, as state spaces have it: it follows the data."""
    with pm.Model() as model:
        y = pm.Data("series", np.random.default_rng(0).normal(size=30))
        rho = pm.Normal("rho")
        pm.Normal("y", rho * pt.concatenate([[0.0], y[:-1]]), 1, observed=y)
    other = np.cumsum(np.random.default_rng(1).normal(size=30))
    for data in (None, {"y": other}):
        here = y.get_value() if data is None else other
        precision = 1 + np.sum(here[:-1] ** 2)
        mean, sd = np.sum(here[:-1] * here[1:]) / precision, precision**-0.5
        tree = pmcl.refine(model, data, draws=4000, **QUIET)
        nuts = pmcl.sample_reference(model, data, draws=1000, chains=2, **QUIET)
        for found in (tree["posterior"]["rho"].values, nuts["posterior"]["rho"].values):
            assert found.mean() == pytest.approx(mean, abs=0.12 * sd)
            assert found.std() == pytest.approx(sd, rel=0.1)
    gap = np.where(np.arange(30) == 5, np.nan, other)
    with pytest.raises(pmcl.DataError, match=r"\['y'\] are missing"):
        pmcl.refine(model, {"y": gap}, **QUIET)
    with pytest.raises(UnsupportedModelError, match="'series' holds the observations of 'y'"):
        pmcl.refine(model, {"y": other}, posterior_predictive=True, **QUIET)
    with pytest.raises(UnsupportedModelError, match="'series' holds the observations of 'y'"):
        pmcl.fit_amortized(model, **QUIET)


def test_a_part_of_a_series_that_is_observed_cannot_be_read_from_the_whole() -> None:
    with pm.Model(coords={"time": range(6)}) as model:
        series = pm.Data("series", np.arange(6.0), dims="time")
        pm.Normal("y", pm.Normal("rho") * series[:-1], 1, observed=series[1:])
    with pytest.raises(UnsupportedModelError, match=r"'series': the observations of 'y' are comp"):
        pmcl.refine(model, {"series": np.arange(8.0)}, **QUIET)


def test_a_prior_without_a_sampler_is_searched_all_the_same() -> None:
    """PyMC cannot draw from ICAR; its density, soft sum included, is a normal one."""
    neighbours = np.eye(5, k=1) + np.eye(5, k=-1)
    y = np.array([1.0, 0.5, -0.2, -0.8, 0.3])
    with pm.Model(coords={"place": range(5)}) as model:
        phi = pm.ICAR("phi", W=neighbours, zero_sum_stdev=0.05, dims="place")
        pm.Normal("y", phi, 0.5, observed=y, dims="place")
    idata = pmcl.refine(model, draws=2000, **QUIET)
    laplacian = np.diag(neighbours.sum(axis=0)) - neighbours
    precision = laplacian + np.ones((5, 5)) / (0.05 * 5) ** 2 + np.eye(5) / 0.25
    exact = np.linalg.solve(precision, y / 0.25)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    draws = idata["posterior"]["phi"].values.reshape(-1, 5)
    np.testing.assert_allclose(draws.mean(axis=0), exact, atol=0.1 * sd.min())
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.08)
    assert idata["dataset_stats"]["warning"].item() == ""


def fewer_terms() -> None:
    density = lambda v, mu: pm.logp(pm.Normal.dist(mu, 1), v)[1:]  # noqa: E731
    pm.CustomDist("y", pm.Normal("mu"), logp=density, observed=np.zeros(6))


def of_its_own_length() -> None:
    pm.Normal("y", pm.Normal("mu", shape=6), 1, observed=np.zeros(6))


def walk() -> None:
    start = pm.Normal.dist()
    pm.GaussianRandomWalk("y", mu=pm.Normal("b"), init_dist=start, observed=np.zeros(6))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            fewer_terms,
            r"'y': its `logp` returns terms of shape \(5,\).*\(6,\). Return one term a row",
        ),
        (of_its_own_length, "'y' of dataset '0': expected length 6 along dim 'y_dim_0', got 9"),
        (walk, "'y' of dataset '0': expected length 6 along dim 'y_dim_0', got 9"),
    ],
)
def test_lengths_without_terms_are_said(build: Callable[[], None], said: str) -> None:
    with pytest.raises(pmcl.DataError, match=said):
        pmcl.refine(model_of(build), {"y": np.zeros(9)}, **QUIET)
