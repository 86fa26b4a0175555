"""NUTS of many datasets in one program: against closed forms, and against being alone."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.compile import Density, compile_model
from pmcl.data.reading import task_of
from pmcl.refinement.fallback import together
from pmcl.runtime import precision

ROWS, SD, WIDE = 6, 0.5, 2.0
RNG = np.random.default_rng(0)
# more than are walked together, so that some wait for a second turn; other values missing in each
Y = RNG.normal(1.0, SD, size=(9, ROWS))
Y[RNG.random(Y.shape) < 0.2] = np.nan
ARGS = {"draws": 400, "tune": 300, "random_seed": 1, "progressbar": False}


@pytest.fixture(scope="module")
def normal() -> pm.Model:
    with pm.Model(coords={"row": range(ROWS)}) as model:
        mu = pm.Normal("mu", 0, WIDE, shape=2)
        pm.Normal("y", mu[0], SD, observed=np.zeros(ROWS), dims="row")
    return model


@pytest.fixture(scope="module")
def walked(normal: pm.Model) -> xr.DataTree:
    return pmcl.sample_reference(normal, {"y": Y}, sampler="blackjax", **ARGS)


def test_it_samples_the_posterior(walked: xr.DataTree) -> None:
    """A normal mean with a normal prior, some values missing; and one that no data tell of."""
    there = np.isfinite(Y)
    precision = WIDE**-2 + there.sum(axis=1) / SD**2
    mean = np.nansum(Y, axis=1) / SD**2 / precision
    stats, mu = walked["dataset_stats"].to_dataset(), walked["posterior"]["mu"]
    assert (stats["rhat"] < 1.05).all() and (stats["ess"] > 300).all()
    assert (stats["divergences"] == 0).all() and (stats["engine"] == "nuts").all()
    found = mu.mean(("chain", "draw")).values
    error = np.sqrt(1 / precision / stats["ess"].values)
    np.testing.assert_array_less(np.abs(found[:, 0] - mean), 4.5 * error)
    np.testing.assert_allclose(mu.std(("chain", "draw")).values[:, 0], precision**-0.5, rtol=0.12)
    np.testing.assert_allclose(mu.std(("chain", "draw")).values[:, 1], WIDE, rtol=0.12)
    own = {"acceptance_rate", "diverging", "energy", "lp", "n_steps", "step_size", "tree_depth"}
    assert own <= set(walked["sample_stats"].data_vars)
    assert walked["posterior"].attrs["engine"] == "nuts (blackjax)"


def test_draws_of_a_dataset_are_its_own(normal: pm.Model, walked: xr.DataTree) -> None:
    few = pmcl.sample_reference(normal, {"y": Y[:3]}, sampler="blackjax", **ARGS)
    kept = walked["posterior"].to_dataset().isel(dataset=slice(3))
    xr.testing.assert_allclose(few["posterior"].to_dataset(), kept, rtol=1e-6)


def test_chains_that_do_not_meet_are_named() -> None:
    """Two modes far apart, and one: from draws of both, chains stay where they begin."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu**2, 0.2, observed=[0.0])
    compiled = compile_model(model)
    task = task_of(compiled, {"y": np.array([[25.0], [0.0]])})
    rng = np.random.default_rng(1)
    z = np.stack([5.0 * rng.choice([-1, 1], 100), rng.normal(0, 0.3, 100)])[..., None]
    with precision.scope():
        density = Density(compiled, task.layout.row)
        found = together(density, task, z, np.arange(2), draws=400, seed=2, progressbar=False)
    assert found.rhat[0] > 1.5 and "r-hat of NUTS" in found.warning[0]
    assert found.rhat[1] < 1.05 and found.warning[1] == ""
    # mu of the second has the density exp(-mu**4 / 0.08), nearly: fourth moment 0.02
    assert np.mean(found.drawn.z[1] ** 4) == pytest.approx(0.02, rel=0.35)
    assert found.drawn.z.shape == (2, 400, 1) and (found.gradients > 800).all()


def test_an_unknown_sampler_is_refused(normal: pm.Model) -> None:
    with pytest.raises(ValueError, match="sampler: expected one of .*blackjax.*, got 'hmc'"):
        pmcl.sample_reference(normal, {"y": Y[:1]}, sampler="hmc", **ARGS)
