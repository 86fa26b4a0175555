"""Experiment 2: the autoregressive panel model against SciPy, and the loader of countries."""

import numpy as np
import panel
import pytest
from scipy import stats
from short_runs import countries

from pmcl import models
from pmcl.compile import compile_model, make_simulator, read_covariates

COVARIATES = ["first", "u", "w"]


@pytest.fixture(scope="module")
def compiled():
    return compile_model(panel.DEFINITION.model(years=12), covariates=COVARIATES)


def dataset(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "first": np.array(rng.normal()),
        **{k: rng.normal(size=12) for k in ("u", "w", "y")},
    }


def test_every_year_has_its_own_term(compiled):
    data = dataset(0)
    z = np.random.default_rng(1).normal(size=compiled.dim)
    free = {k: float(v) for k, v in compiled.constrain(z).items()}
    before = np.concatenate([[data["first"]], data["y"][:-1]])
    mean = free["alpha"] + free["beta"] * before
    mean += free["gamma"] * data["u"] + free["delta"] * data["w"]
    expected = stats.norm(mean, free["sigma"]).logpdf(data["y"])
    np.testing.assert_allclose(compiled.log_likelihood(z, data), expected.sum(), rtol=1e-5)


def test_it_simulates_what_its_density_says(compiled):
    """Standardised by the density's mean and sd, simulated years are standard normal."""
    sources = panel.DEFINITION.covariates()
    simulator = make_simulator(compiled, read_covariates(sources, compiled.covariates))
    assert simulator.backend == "jax", simulator.reason
    z, data = simulator.simulate(2000, random_seed=0)
    alpha, beta, gamma, delta, log_sigma = z.T[..., None]
    assert [v.variable for v in compiled.values] == ["alpha", "beta", "gamma", "delta", "sigma"]
    before = np.concatenate([data["first"][:, None], data["y"][:, :-1]], axis=1)
    mean = alpha + beta * before + gamma * data["u"] + delta * data["w"]
    shocks = (data["y"] - mean) / np.exp(log_sigma)
    for year in (0, 1, 11):
        assert stats.kstest(shocks[:, year], "norm").pvalue > 1e-3
    assert abs(np.corrcoef(shocks[:, :-1].ravel(), shocks[:, 1:].ravel())[0, 1]) < 0.02


def test_the_example_is_grunfelds_panel():
    from statsmodels.datasets import grunfeld

    data = panel.DEFINITION.example()
    assert dict(data.sizes) == {"dataset": 11, "year": 18}
    one = data.sel(dataset="General Motors")
    table = grunfeld.load_pandas().data.query("firm == 'General Motors'").sort_values("year")
    growth = np.diff(np.log(table["invest"].to_numpy()))
    np.testing.assert_allclose(one["first"], growth[0])
    np.testing.assert_allclose(one["y"], growth[1:])
    value = np.log(table["value"].to_numpy())
    # the growth from the second year to the third has the value of the second beside it
    np.testing.assert_allclose(one["u"], ((value - value.mean()) / value.std())[1:-1])
    assert set(models.names()) >= {"autoregressive_panel"}


def test_countries_are_read_in_the_order_of_years(tmp_path):
    path = tmp_path / "countries.csv"
    table = countries(path)
    found = panel.read_countries(path)
    assert list(found) == ["Austria", "Norway"]
    one = found["Norway"].isel(dataset=0)
    assert one["y"].shape == (14,)
    growth = np.diff(np.log(table.query("country == 'Norway'")["passengers"]))
    np.testing.assert_allclose(np.append(one["first"], one["y"]), growth)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.rename(columns={"gdp": "GDP"}), r"\['gdp'\] did not come.*Rename"),
        (lambda t: t.assign(debt=t["debt"].astype(str).where(t.index != 3, ":")), "line 5: debt"),
        (lambda t: t.drop(index=4), "'Austria': expected 10 consecutive years"),
        (lambda t: t.assign(year=t["year"].where(t.index != 3, 2004)), "'Austria'.*each once"),
        (lambda t: t.assign(passengers=t["passengers"].where(t.index != 20, 0)), "'Norway': pass"),
    ],
)
def test_what_is_wrong_with_a_file_of_countries_is_said(tmp_path, change, message):
    path = tmp_path / "countries.csv"
    change(countries(path)).to_csv(path, index=False)
    with pytest.raises(ValueError, match=message):
        panel.read_countries(path)
