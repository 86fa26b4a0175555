"""What errors tell people to write in the place of what cannot be compiled, carried out."""

import sys
import warnings
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
    for line in ("observed=x[there]", "shape=(~there).sum()", "pt.as_tensor(x)[~there], gaps"):
        assert line in said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputed = PROGRAMS["imputed brains"]()
    rng = np.random.default_rng(0)
    x = rng.normal(size=29)
    x[[2, 5, 11]] = np.nan
    there, y = ~np.isnan(x), rng.normal(size=29)
    with pm.Model() as model:
        nu = pm.Normal("nu", 0, 0.5)
        pm.Normal("B", nu, 1, observed=x[there])
        gaps = pm.Normal("B_gaps", nu, 1, shape=(~there).sum())
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
