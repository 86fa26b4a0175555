"""What errors tell people to write in the place of what cannot be compiled, carried out."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

import pmcl
from pmcl.compile import compile_model

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from corpus import PROGRAMS  # noqa: E402

QUIET = {"random_seed": 1, "progressbar": False}


def refusal(name: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PROGRAMS[name]()
    with pytest.raises(pmcl.UnsupportedModelError) as error:
        compile_model(model)
    return str(error.value)


def test_a_differential_equation_in_steps() -> None:
    """The posterior of a falling body's drag, as the message has it, against a grid."""
    said = refusal("falling body")
    assert "pm.ode.DifferentialEquation" in said
    code = said.split("needs:\n\n")[1]
    times, sigma = np.arange(0.5, 5.5, 0.5), 0.5
    y = 9.8 / 0.4 * (1 - np.exp(-0.4 * times)) + np.random.default_rng(0).normal(0, sigma, 10)
    with pm.Model() as model:
        gamma = pm.LogNormal("gamma", 0, 0.5)
        names = {
            "pytensor": pytensor, "times": times, "h": 0.5 / 4, "p": gamma,
            "y0": pt.constant(0.0, dtype="float64"), "f": lambda y, p: 9.8 - p * y,
        }  # fmt: skip
        exec("\n".join(line[4:] for line in code.splitlines()), names)  # noqa: S102
        pm.Normal("y", names["states"], sigma, observed=y)
    tree = pmcl.refine(model, draws=4000, **QUIET)
    drawn = tree["posterior"]["gamma"].values.ravel()
    grid = np.linspace(0.3, 0.5, 4001)[:, None]
    exact = 9.8 / grid * (1 - np.exp(-grid * times))
    log_p = stats.norm.logpdf(y, exact, sigma).sum(axis=1) + stats.lognorm.logpdf(grid[:, 0], 0.5)
    weight = np.exp(log_p - log_p.max())
    mean = np.average(grid[:, 0], weights=weight)
    sd = np.sqrt(np.average((grid[:, 0] - mean) ** 2, weights=weight))
    assert drawn.mean() == pytest.approx(mean, abs=0.08 * sd)
    assert drawn.std() == pytest.approx(sd, rel=0.06)


@pytest.mark.slow
def test_imputed_values_as_parameters() -> None:
    """As the message has it, against PyMC's own imputation."""
    said = refusal("imputed brains")
    for line in ("observed=x[there]", "shape=int((~there).sum())", "pt.as_tensor(x)[~there], gaps"):
        assert line in said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputed = PROGRAMS["imputed brains"]()
    x, y = (np.random.default_rng(seed).normal(size=29) for seed in (0, 1))  # the program's
    x[[2, 5, 11]] = np.nan
    there = ~np.isnan(x)
    with pm.Model() as model:
        nu = pm.Normal("nu", 0, 0.5)
        pm.Normal("B", nu, 1, observed=x[there])
        gaps = pm.Normal("B_gaps", nu, 1, shape=int((~there).sum()))
        B = pt.set_subtensor(pt.as_tensor(x)[~there], gaps)
        mu = pm.Normal("a", 0, 0.5) + pm.Normal("bB", 0, 0.5) * B
        pm.Normal("K", mu, pm.Exponential("sigma", 1), observed=y)
    ours = pmcl.refine(model, draws=4000, **QUIET)["posterior"]
    theirs = pm.sample(
        model=imputed, draws=2000, chains=2, cores=1, random_seed=1, progressbar=False
    )["posterior"]
    for a, b in [("bB", "bB"), ("sigma", "sigma"), ("B_gaps", "B_unobserved")]:
        axes = (0, 1)
        mean, sd = (getattr(theirs[b].values, k)(axis=axes) for k in ("mean", "std"))
        one = ours[a].isel(dataset=0).values
        np.testing.assert_allclose((one.mean(axis=axes) - mean) / sd, 0, atol=0.12)
        np.testing.assert_allclose(one.std(axis=axes) / sd, 1, atol=0.12)


def test_gaps_of_what_nothing_depends_on_are_data() -> None:
    said = refusal("imputed brains")
    assert "NaN is left out of the likelihood" in said
    y = np.array([0.3, np.nan, 1.2, 0.7])
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.zeros(4))
    tree = pmcl.refine(model, {"y": y}, draws=4000, **QUIET)
    mu = tree["posterior"]["mu"].values
    assert mu.mean() == pytest.approx(np.nansum(y) / 4, abs=4 * 0.5 / 4000**0.5)


def test_an_interval_is_a_potential_and_its_simulator_a_function() -> None:
    """Interval-censored data: refined as they stand, against a grid."""
    model = PROGRAMS["interval censored"]()
    with pytest.raises(pmcl.UnsupportedModelError, match="'between'.*`simulator=`"):
        pmcl.fit_amortized(model, **QUIET)
    tree = pmcl.refine(model, draws=4000, **QUIET)["unconstrained_posterior"]
    low = np.floor(np.random.default_rng(0).weibull(1.5, 60) * 10)
    shape, scale = np.meshgrid(np.linspace(0, 0.9, 301), np.linspace(1.7, 2.8, 301), indexing="ij")
    parts = [
        stats.weibull_min.sf(edge, np.exp(shape)[..., None], scale=np.exp(scale)[..., None])
        for edge in (low, low + 1)
    ]
    log_p = np.log(parts[0] - parts[1]).sum(axis=-1)
    log_p += stats.norm.logpdf(shape, 0, 0.5) + stats.norm.logpdf(scale, 2, 1)
    weight = np.exp(log_p - log_p.max())
    for name, grid in (("shape_log__", shape), ("scale_log__", scale)):
        mean = np.average(grid, weights=weight)
        sd = np.sqrt(np.average((grid - mean) ** 2, weights=weight))
        found = tree[name].values.ravel()
        assert found.mean() == pytest.approx(mean, abs=0.08 * sd)
        assert found.std() == pytest.approx(sd, rel=0.06)


STEPS = np.arange(12)
THERE = ~np.isin(STEPS, [3, 4, 8])
WALK = np.where(THERE, np.cumsum(np.random.default_rng(5).normal(size=12)), np.nan)


def grid_of(log_likelihood: Callable[[float], float], end: float = 4) -> tuple[float, float]:
    """Mean and sd of a standard normal parameter's posterior."""
    grid = np.linspace(-end, end, 801)
    log_p = stats.norm.logpdf(grid) + np.array([log_likelihood(v) for v in grid])
    weight = np.exp(log_p - log_p.max())
    mean = np.average(grid, weights=weight)
    return mean, np.sqrt(np.average((grid - mean) ** 2, weights=weight))


def is_near(values: np.ndarray, mean: float, sd: float) -> None:
    assert values.mean() == pytest.approx(mean, abs=0.08 * sd)
    assert values.std() == pytest.approx(sd, rel=0.06)


def series_with_gaps() -> str:
    with pm.Model() as model:
        rho = pm.Normal("rho")
        pm.AR("y", rho[None], 1, init_dist=pm.Normal.dist(0, 1), observed=np.arange(12.0))
    with pytest.raises(pmcl.DataError) as error:
        pmcl.refine(model, {"y": WALK}, **QUIET)
    return str(error.value)


def test_gaps_of_a_series_as_parameters() -> None:
    """As the message has it, against a grid on which the gaps are integrated out."""
    said = series_with_gaps()
    assert "['y'] are missing (NaN; dataset '0' lacks most)" in said
    for line in (
        "pm.Flat('gaps', shape=int((~there).sum()))",
        "pt.as_tensor(values)[~there], gaps)",
    ):
        assert line in said
    with pm.Model() as model:
        rho = pm.Normal("rho")
        gaps = pm.Flat("gaps", shape=int((~THERE).sum()))
        series = pt.set_subtensor(pt.as_tensor(WALK)[~THERE], gaps)
        of = pm.AR.dist(rho[None], 1, init_dist=pm.Normal.dist(0, 1), shape=12)
        pm.Potential("series", pm.logp(of, series))

    def exact(rho: float) -> float:
        forward = np.where(STEPS[:, None] >= STEPS, rho ** np.abs(STEPS[:, None] - STEPS), 0.0)
        cov = (forward @ forward.T)[np.ix_(THERE, THERE)]
        return stats.multivariate_normal.logpdf(WALK[THERE], cov=cov)

    tree = pmcl.refine(model, draws=4000, **QUIET)
    is_near(tree["posterior"]["rho"].values, *grid_of(exact, 2))


def test_gaps_of_a_series_by_a_filter() -> None:
    """A local level by Kalman, whose step skips what is not there, against a dense normal."""
    assert "Kalman filter in a `pm.Potential`" in series_with_gaps()

    def step(y: pt.TensorVariable, there: pt.TensorVariable, m, v, q):  # noqa: ANN001, ANN202
        v = v + q
        term = pt.where(there, pm.logp(pm.Normal.dist(m, pt.sqrt(v + 1)), y), 0.0)
        gain = pt.where(there, v / (v + 1), 0.0)
        return m + gain * (y - m), (1 - gain) * v, term

    with pm.Model() as model:
        log_q = pm.Normal("log_q")
        terms = pytensor.scan(
            step,
            sequences=[pt.as_tensor(np.nan_to_num(WALK)), pt.as_tensor(THERE)],
            outputs_info=[pt.zeros(()), pt.zeros(()), None],
            non_sequences=[pt.exp(log_q)],
            return_updates=False,
        )[2]
        pm.Potential("series", terms)

    def exact(log_q: float) -> float:
        cov = np.exp(log_q) * (np.minimum(STEPS[:, None], STEPS) + 1.0) + np.eye(12)
        return stats.multivariate_normal.logpdf(WALK[THERE], cov=cov[np.ix_(THERE, THERE)])

    tree = pmcl.refine(model, draws=4000, **QUIET)
    is_near(tree["posterior"]["log_q"].values, *grid_of(exact))


def test_gaps_of_what_a_latent_series_gave_are_left_out() -> None:
    """The same level as a latent walk, its values rows of their own."""
    assert "make the series latent" in series_with_gaps()
    with pm.Model(coords={"time": STEPS}) as model:
        walk = pm.GaussianRandomWalk("walk", 0, 1, init_dist=pm.Normal.dist(0, 1), dims="time")
        pm.Normal("y", walk + pm.Normal("shift"), 1, observed=np.arange(12.0), dims="time")

    def exact(shift: float) -> float:
        cov = (np.minimum(STEPS[:, None], STEPS) + 1.0 + np.eye(12))[np.ix_(THERE, THERE)]
        return stats.multivariate_normal.logpdf(WALK[THERE] - shift, cov=cov)

    tree = pmcl.refine(model, {"y": WALK}, draws=4000, **QUIET)
    is_near(tree["posterior"]["shift"].values, *grid_of(exact))
