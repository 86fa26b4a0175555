"""Data that index: out of range is an error everywhere, with what would be right."""

import numpy as np
import pymc as pm
import pytest

import pmcl
from pmcl.data.reading import as_task, layout_of

ROWS = 12
QUIET = {"random_seed": 0, "progressbar": False}


def model() -> pm.Model:
    with pm.Model(coords={"obs": range(ROWS), "g": ["a", "b", "c"]}) as built:
        g = pm.Data("g_of", np.zeros(ROWS, int), dims="obs")
        b = pm.Normal("b", 0, 10, dims="g")
        pm.Normal("y", b[g], 1, observed=np.zeros(ROWS), dims="obs")
    return built


def data(first: int = 0) -> dict[str, np.ndarray]:
    g = np.repeat([0, 1, 2], 4)
    y = np.array([-5.0, 0, 5])[g] + np.random.default_rng(1).normal(size=ROWS)
    return {"g_of": g + first, "y": y}


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (1, r"'g_of' of dataset '0': it indexes 'b', which has 3 elements.*0 to 2, got 1 to 3.*1"),
        (7, r"from 0 to 2, got 7 to 9.*Number the groups from 0"),
        (-1, r"got -1 to 1.*missing category"),
    ],
)
def test_out_of_range_is_an_error_in_every_call(first: int, said: str) -> None:
    for call in (pmcl.refine, pmcl.sample_reference):
        with pytest.raises(pmcl.DataError, match=said):
            call(model(), data(first), **QUIET)
    stream = pmcl.fit_online(model(), covariates=["g_of"], search=pmcl.Search(steps=1), **QUIET)
    with pytest.raises(pmcl.DataError, match=said):
        stream.update(data(first), progressbar=False)


def test_a_fitted_posterior_and_its_sources_are_checked() -> None:
    network = pmcl.Network(
        pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
        pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
    )
    posterior = pmcl.fit_amortized(
        model(), covariates={"g_of": data()["g_of"][None]}, network=network, steps=5, **QUIET
    )
    posterior.sample(data(), 20, refine=False)
    with pytest.raises(pmcl.DataError, match="covariates: simulated values of 'g_of'.*'b', which"):
        pmcl.fit_amortized(model(), covariates={"g_of": data(1)["g_of"][None]}, **QUIET)
    for call in (
        lambda: posterior.sample({"one": data(), "two": data(1)}, 20),
        lambda: posterior.adapt(data(1), name="t"),
    ):
        with pytest.raises(pmcl.DataError, match="it indexes 'b', which has 3"):
            call()


def test_what_is_computed_from_data_is_followed() -> None:
    """Numbers from 1, from which the model subtracts 1; tables, and several dims at once."""
    with pm.Model(coords={"obs": range(4)}) as built:
        g = pm.Data("g_of", np.ones(4, int), dims="obs")
        h = pm.Data("h_of", np.zeros(4, int), dims="obs")
        c = pm.Normal("c", 0, 1, shape=(3, 2))
        twice = pm.Deterministic("twice", 2 * c)
        pm.Normal("y", c[g - 1, h] + twice[0, h], 1, observed=np.zeros(4), dims="obs")
    layout = layout_of(pmcl.compile_model(built, covariates=["g_of", "h_of"]))
    good = {"g_of": [1, 2, 3, 3], "h_of": [0, 1, 0, 1], "y": np.zeros(4)}
    assert len(as_task(good, layout)) == 1
    with pytest.raises(pmcl.DataError, match=r"'g_of'.*0 to 2, got -1 to 2 \(computed from g_of\)"):
        as_task({**good, "g_of": [0, 1, 2, 3]}, layout)
    with pytest.raises(pmcl.DataError, match="'h_of'.*which has 2 elements"):
        as_task({**good, "h_of": [0, 1, 2, 1]}, layout)


def test_an_array_of_the_model_that_indexes_data_that_index() -> None:
    with pm.Model() as built:
        school = pm.Data("school", np.zeros(4, int))
        rows = np.array([0, 1, 2, 3, 3, 0])
        pm.Normal("y", pm.Normal("b", shape=4)[school[rows]], 1, observed=np.zeros(6))
    layout = layout_of(pmcl.compile_model(built, covariates=["school"]))
    good = {"school": [0, 1, 2, 3], "y": np.zeros(6)}
    assert len(as_task(good, layout)) == 1
    with pytest.raises(pmcl.DataError, match="'school', which has 3 elements, by 3"):
        as_task({**good, "school": [0, 1, 2]}, layout)
    with pytest.raises(pmcl.DataError, match="'b', which has 4 elements.*got 0 to 4"):
        as_task({**good, "school": [0, 1, 2, 4]}, layout)


def test_what_is_indexed_may_be_as_long_as_the_data() -> None:
    """Rows that name an earlier row: the range is that of each dataset."""
    with pm.Model(coords={"obs": range(4)}) as built:
        x = pm.Data("x", np.zeros(4), dims="obs")
        before = pm.Data("before", np.zeros(4, int), dims="obs")
        pm.Normal("y", pm.Normal("b") * x[before], 1, observed=np.zeros(4), dims="obs")
    layout = layout_of(pmcl.compile_model(built, covariates=["x", "before"]))
    for n in (3, 8):
        rows = {"x": np.zeros(n), "y": np.zeros(n)}
        assert len(as_task({**rows, "before": np.arange(n)}, layout)) == 1
        with pytest.raises(pmcl.DataError, match=f"which has {n} elements"):
            as_task({**rows, "before": np.arange(n) + 1}, layout)


@pytest.mark.parametrize(
    ("dtype", "value", "holds"),
    [
        ("int32", 2**32 + 1000, "int32, which holds -2147483648"),
        ("uint8", 300, "uint8, which holds 0 to 255"),
        ("uint8", -1, "uint8"),
        ("bool", 2, "bool, which holds 0 to 1"),
    ],
)
def test_nothing_is_cast_with_loss(dtype: str, value: int, holds: str) -> None:
    with pm.Model(coords={"obs": range(3)}) as built:
        x = pm.Data("x", np.zeros(3, dtype), dims="obs")
        pm.Normal("y", pm.Normal("b") * x, 1, observed=np.zeros(3), dims="obs")
    layout = layout_of(pmcl.compile_model(built, covariates=["x"]))
    good = as_task({"x": np.array([0, 1, 1]), "y": np.zeros(3)}, layout)
    np.testing.assert_array_equal(good.values["x"], [[0, 1, 1]])
    with pytest.raises(pmcl.DataError, match=f"'x'.*{holds}"):
        as_task({"x": np.array([0, 1, value]), "y": np.zeros(3)}, layout)
