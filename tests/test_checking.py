"""Data far from what was simulated are told from data like it."""

import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.networks.familiarity import Familiar

NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=8, head_width=16, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=16),
    whiten=False,  # draws of what searches depend on nothing else
)
ROWS = 20


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        x = pm.Data("x", np.ones(ROWS), dims="obs")
        pm.Normal("y", pm.Normal("slope") * x, 1, observed=np.zeros(ROWS), dims="obs")
    return model


@pytest.fixture(scope="module")
def posterior(model: pm.Model) -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(
        model, covariates={"x": pm.Normal.dist(0, 1)}, network=NETWORK, steps=200,
        random_seed=1, progressbar=False,
    )  # fmt: skip


def make(n: int, *, seed: int, shift: float = 0.0, scale: float = 1.0, slope: float = 0.5) -> dict:
    rng = np.random.default_rng(seed)
    x = shift + scale * rng.normal(size=(n, ROWS))
    y = slope * x + rng.normal(size=(n, ROWS))
    dims = ("dataset", "obs")
    names = [f"d{i}" for i in range(n)]
    return xr.Dataset({"x": (dims, x), "y": (dims, y)}, coords={"dataset": names})


def test_distances_of_a_normal_are_those_of_a_chi_distribution() -> None:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 6))
    features = rng.normal(size=(8000, 6)) @ mixing + 3
    familiar = Familiar.of(features)
    fresh = familiar.distance(rng.normal(size=(4000, 6)) @ mixing + 3)
    from scipy import stats

    assert stats.kstest(fresh * np.sqrt(6), stats.chi(6).cdf).statistic < 0.04
    quantiles = familiar.quantile(fresh)
    assert stats.kstest(quantiles, "uniform").statistic < 0.04
    assert not familiar.far(fresh).any()
    assert familiar.far(familiar.distance(familiar.mean + 40 * mixing[0]))


def test_data_like_simulations_are_not_far(posterior) -> None:
    rng = np.random.default_rng(0)
    data = xr.concat(
        [make(1, seed=i, slope=rng.normal()) for i in range(40)], "dataset"
    ).assign_coords(dataset=[f"d{i}" for i in range(40)])
    found = pmcl.check_data(posterior, data, simulations=600)
    assert set(found) == {
        "input_distance", "summary_distance", "input_quantile", "summary_quantile", "far",
    }  # fmt: skip
    assert not found["far"].any()
    for kind in ("input", "summary"):
        # forty quantiles of a calibrated distance are uniform
        from scipy import stats

        assert stats.kstest(found[f"{kind}_quantile"].values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [{"shift": 6.0}, {"scale": 8.0}, {"slope": 15.0}],
    ids=["shifted covariate", "wider covariate", "impossible slope"],
)
def test_data_unlike_simulations_are_far_and_named(posterior, other) -> None:
    data = xr.concat([make(2, seed=0), make(1, seed=1, **other)], "dataset").assign_coords(
        dataset=["u", "v", "odd"]
    )
    found = pmcl.check_data(posterior, data, simulations=600)
    assert found["far"].values.tolist() == [False, False, True]
    assert float(found["input_quantile"].sel(dataset="odd")) == 1
    with pytest.warns(pmcl.FarDataWarning, match=r"1 of 3 datasets \('odd'\) lie far outside"):
        posterior.sample(data, 50, refine=False, random_seed=0, progressbar=False)


def test_familiar_data_are_not_warned_of_and_stored_ones_are_familiar(posterior) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pmcl.FarDataWarning)
        posterior.sample(make(3, seed=0), 50, refine=False, random_seed=0, progressbar=False)
    odd = make(1, seed=1, shift=6.0)
    with pytest.warns(pmcl.FarDataWarning, match="'d0'"):
        adapted = posterior.adapt(
            odd, name="odd", strategy=pmcl.Replay(), steps=2,
            random_seed=0, progressbar=False,
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", pmcl.FarDataWarning)
        like = make(1, seed=2, shift=6.0)
        adapted.sample(like, 50, refine=False, random_seed=0, progressbar=False)


def test_it_outlives_the_process(posterior, model, tmp_path) -> None:
    path = tmp_path / "state.zarr.zip"
    pmcl.save(posterior, path)
    loaded = pmcl.load(path, model)
    for a, b in zip(loaded.familiar, posterior.familiar, strict=True):
        np.testing.assert_array_equal(a, b)


def test_wrong_arguments(posterior) -> None:
    with pytest.raises(ValueError, match="simulations: expected at least 20, got 5"):
        pmcl.check_data(posterior, make(1, seed=0), simulations=5)
    with pytest.raises(pmcl.DataError, match="'y'"):
        pmcl.check_data(posterior, {"x": np.zeros(3)})
