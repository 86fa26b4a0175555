"""Models that Bambi writes are PyMC models like any other."""

import bambi
import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pmcl
from pmcl.compile import Density, make_simulator, read_covariates
from pmcl.compile.conversion.graphs import host_mode
from pmcl.compile.variables import initial_point
from pmcl.data.reading import layout_of, task_of
from pmcl.levels.find import find
from pmcl.levels.structure import Levels
from pmcl.runtime import precision

FORMULAS = [
    ("y ~ x + (1|g)", "gaussian"),
    ("n ~ x", "poisson"),
    ("n ~ x", "negativebinomial"),
    ("p(few, n) ~ x", "binomial"),  # to NumPy a name with a comma may be a dtype
]


def built(formula: str, family: str) -> pm.Model:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"x": rng.normal(size=30), "g": rng.choice(list("abc"), 30)})
    data["y"], data["n"] = data["x"] + rng.normal(size=30), rng.poisson(2, 30)
    data["few"] = rng.binomial(data["n"], 0.5)
    model = bambi.Model(formula, data, family=family)
    model.build()
    return model.backend.model


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_densities_and_draws(formula: str, family: str) -> None:
    model = built(formula, family)
    compiled = pmcl.compile_model(model)
    simulator = make_simulator(compiled, read_covariates(None, ()))
    assert simulator.backend == "jax"
    z, drawn = simulator.simulate(3, random_seed=0)
    (info,) = compiled.observed
    assert drawn[info.name].shape == (3, 30)
    data = {info.name: np.asarray(model.rvs_to_values[model[info.name]].data)}
    logp = model.compile_logp(mode=host_mode())
    for u in z:
        point = {v.name: u[v.start : v.start + v.size].reshape(v.shape) for v in compiled.values}
        with precision.scope():
            found = float(compiled.log_joint(u, data))
        np.testing.assert_allclose(found, logp(point), rtol=1e-8)


def test_groups_are_found() -> None:
    model = built("y ~ x + (x|g)", "gaussian")
    (rv,) = model.observed_RVs
    data = {rv.name: np.asarray(model.rvs_to_values[rv].data)}
    compiled = pmcl.compile_model(model)
    with precision.scope():
        density = Density(compiled, layout_of(compiled).row)
        levels = find(density, task_of(compiled, data), initial_point(model))
    assert isinstance(levels, Levels)
    assert (levels.groups, levels.width, levels.exact) == (3, 2, True)


def test_results_are_what_bambi_predicts_from() -> None:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"x": rng.normal(3, 1, size=30), "f": [*"abcabcabcabcabc"] * 2})
    data["y"] = data["x"] + (data["f"] == "b") + rng.normal(size=30)
    model = bambi.Model("y ~ x * f + (1|f)", data, center_predictors=False)
    model.build()
    with pytest.raises(TypeError, match=r"got bambi.models.Model. Pass `model.backend.model`"):
        pmcl.refine(model)
    hardly = pmcl.Refine(steps=0, rounds=0)  # any draws will do
    idata = pmcl.refine(
        model.backend.model, draws=50, refine=hardly, fallback=None, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    new = pd.DataFrame({"x": [0.0, 4.0], "f": ["b", "c"]})
    predicted = model.predict(pmcl.one(idata, 0), data=new, inplace=False)["posterior"]["mu"]
    p = idata["posterior"].to_dataset().isel(dataset=0)
    for i, (x, f) in enumerate(new.itertuples(index=False)):
        mean = p["Intercept"] + p["f"].sel(f_dim=f) + p["1|f"].sel(f__factor_dim=f)
        mean = mean + x * (p["x"] + p["x:f"].sel({"x:f_dim": f}))
        np.testing.assert_allclose(predicted.isel(__obs__=i), mean, rtol=1e-6)
