"""Tasks in every accepted form, padding and its refusal, and one test for each error."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pmcl
from pmcl.compile import CompiledModel, Mask, compile_model
from pmcl.data.constants import check_constants
from pmcl.data.covariates import covariates_among
from pmcl.data.masked import check_masked
from pmcl.data.reading import as_task, layout_of
from pmcl.data.stacking import concatenate, stack
from pmcl.data.task import DataError, Layout, Task
from pmcl.runtime import precision
from pmcl.runtime.jitting import few_lengths

type Arrays = dict[str, np.ndarray]

LENGTHS = {"north": 5, "south": 3, "east": 4}


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    """Two observed variables, one of them of integers; covariates with and without rows."""
    with pm.Model(coords={"obs": range(4), "predictor": ["a", "b"]}) as model:
        X = pm.Data("X", np.zeros((4, 2)), dims=("obs", "predictor"))
        dose = pm.Data("dose", 1.0)
        offset = pm.Data("offset", np.zeros(2), dims="predictor")
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", X @ (beta + offset) * dose, sigma, observed=np.zeros(4), dims="obs")
        pm.Poisson("count", pm.math.exp(beta[0]), observed=np.zeros(4, int), dims="obs")
    return compile_model(model, covariates=("X", "dose", "offset"))


@pytest.fixture(scope="module")
def layout(compiled: CompiledModel) -> Layout:
    return Layout.of(compiled, "obs")


def one(n: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng([seed, n])
    return {
        "y": rng.normal(size=n),
        "count": rng.integers(0, 9, size=n),
        "X": rng.normal(size=(n, 2)),
        "dose": np.asarray(rng.uniform(1, 2)),
        "offset": rng.normal(size=2),
    }


DIMS = {
    "y": ("obs",),
    "count": ("obs",),
    "X": ("obs", "predictor"),
    "dose": (),
    "offset": ("predictor",),
}
RAGGED = {name: one(n) for name, n in LENGTHS.items()}
EQUAL = {name: one(4, seed) for seed, name in enumerate(LENGTHS)}


def labelled(arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    return xr.Dataset(
        {k: (DIMS[k], v) for k, v in arrays.items()}, coords={"predictor": ["a", "b"]}
    )


def table(datasets: Mapping[str, Arrays]) -> pd.DataFrame:
    parts = []
    for name, d in datasets.items():
        part = pd.DataFrame({"dataset": name, "y": d["y"], "count": d["count"]})
        part["dose"] = float(d["dose"])
        for j, label in enumerate("ab"):
            part[f"X[{label}]"] = d["X"][:, j]
            part[f"offset[{label}]"] = d["offset"][j]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def assert_holds(task: Task, datasets: Mapping[str, Arrays]) -> None:
    """Check that a task's datasets, padding dropped, are exactly these."""
    assert task.names == tuple(datasets)
    assert len(task) == len(datasets)
    for i, expected in enumerate(datasets.values()):
        found = task.dataset(i)
        assert set(found) == set(expected)
        for k, v in expected.items():
            np.testing.assert_array_equal(found[k], v, err_msg=k)
            assert found[k].dtype == v.dtype


# --- accepted forms ---------------------------------------------------------------------------


def test_dataset_of_one_without_a_dataset_dim(layout):
    assert_holds(as_task(labelled(one(6)), layout), {"0": one(6)})
    named = labelled(one(6)).assign_coords(dataset="north")
    assert_holds(as_task(named, layout), {"north": one(6)})


@pytest.mark.parametrize(
    "order", [("dataset", "obs", "predictor"), ("predictor", "obs", "dataset")]
)
def test_dataset_with_a_dataset_dim_in_any_order(layout, order):
    joined = xr.concat([labelled(d) for d in EQUAL.values()], pd.Index([*EQUAL], name="dataset"))
    task = as_task(joined.transpose(*order), layout)
    assert_holds(task, EQUAL)
    assert task.values["X"].shape == (3, 4, 2)
    assert not task.ragged and task.mask is None


def test_dataset_dim_without_names_counts(layout):
    joined = xr.concat([labelled(d) for d in EQUAL.values()], "dataset")
    assert_holds(as_task(joined, layout), dict(zip("012", EQUAL.values(), strict=True)))


def test_variable_without_the_dataset_dim_is_shared(layout):
    joined = xr.concat([labelled(d) for d in EQUAL.values()], "dataset")
    joined["X"] = joined["X"].isel(dataset=0, drop=True)
    shared = [{**d, "X": EQUAL["north"]["X"]} for d in EQUAL.values()]
    assert_holds(as_task(joined, layout), dict(zip("012", shared, strict=True)))


def test_arrays_with_and_without_a_leading_dataset_dim(layout):
    assert_holds(as_task(one(6), layout), {"0": one(6)})
    stacked = {k: np.stack([d[k] for d in EQUAL.values()]) for k in DIMS}
    assert_holds(as_task(stacked, layout), dict(zip("012", EQUAL.values(), strict=True)))
    lists = {k: v.tolist() for k, v in one(6).items()}
    assert_holds(as_task(lists, layout), {"0": one(6)})


def test_arrays_that_carry_labels_keep_them(layout):
    whole = labelled(one(6))
    arrays = {k: whole[k].transpose() for k in whole.data_vars}
    arrays["X"] = arrays["X"].sel(predictor=["b", "a"])
    assert_holds(as_task(arrays, layout), {"0": one(6)})


@pytest.mark.parametrize("form", [labelled, dict], ids=["Dataset", "dict"])
def test_mapping_from_names_to_datasets_of_different_length(layout, form):
    task = as_task({name: form(d) for name, d in RAGGED.items()}, layout)
    assert_holds(task, RAGGED)
    assert task.ragged


@pytest.mark.parametrize("kind", ["object", "category"])
def test_table_with_a_column_that_names_the_dataset(layout, kind):
    long = table(RAGGED).assign(unused="text")
    if kind == "category":  # one of whose categories has no row
        long["dataset"] = pd.Categorical(long["dataset"], [*RAGGED, "nowhere"])
    assert_holds(as_task(long, layout), RAGGED)
    # rows of a dataset need not be neighbours
    mixed = long.sort_values("count", kind="stable").sort_index(key=lambda i: i % 2)
    found = as_task(mixed, layout)
    for i, name in enumerate(found.names):
        np.testing.assert_array_equal(np.sort(found.dataset(i)["y"]), np.sort(RAGGED[name]["y"]))


def test_table_with_columns_of_different_types(layout):
    long = table(EQUAL)
    flags = np.arange(len(long)) % 2 == 0
    long["X[a]"] = flags  # a dummy variable beside real numbers
    task = as_task(long, layout)
    np.testing.assert_array_equal(task.values["X"][..., 0].ravel(), flags)
    np.testing.assert_array_equal(task.values["X"][..., 1].ravel(), long["X[b]"])


def test_table_where_rows_are_the_second_dim():
    with pm.Model(coords={"obs": range(3), "predictor": ["a", "b"]}) as model:
        X = pm.Data("X", np.zeros((2, 3)), dims=("predictor", "obs"))
        beta = pm.Normal("beta", dims="predictor")
        pm.Normal("y", beta @ X, 1, observed=np.zeros(3), dims="obs")
    layout = Layout.of(compile_model(model, covariates=("X",)), "obs")
    long = table(RAGGED)[["dataset", "y", "X[a]", "X[b]"]]
    task = as_task(long, layout)
    for i, d in enumerate(RAGGED.values()):
        np.testing.assert_array_equal(task.dataset(i)["X"], d["X"].T)


def test_a_task_is_passed_on_and_checked_against_the_model(compiled, layout):
    task = as_task(RAGGED, layout)
    assert as_task(task, Layout.of(compiled, "obs")) is task
    with pm.Model() as other:
        pm.Normal("w", pm.Normal("m"), observed=np.zeros(3))
    with pytest.raises(DataError, match=r"\['w'\].*'y'"):
        as_task(task, Layout.of(compile_model(other), None))


def test_rows_are_along_no_axis_of_one_draw() -> None:
    """Whatever its name: 'color' comes before 'site', and tables had to have a row for each."""
    with pm.Model(coords={"site": range(3), "color": ["red", "blue"]}) as model:
        held = pm.Data("held", np.full((3, 2), 2), dims=("site", "color"))
        share = pm.Beta("share", 1, 1)
        shares = pm.math.stack([share, 1 - share])
        pm.Multinomial("y", n=4, p=shares, observed=held, dims=("site", "color"))
    layout = layout_of(compile_model(model))
    assert layout.row == "site"
    counts = np.array([[1, 3], [2, 2], [4, 0], [0, 4]])
    table = pd.DataFrame({"y[blue]": counts[:, 1], "y[red]": counts[:, 0]})
    np.testing.assert_array_equal(as_task(table, layout).values["y"], [counts])
    turned = pd.DataFrame(counts[:, ::-1], columns=["blue", "red"])
    np.testing.assert_array_equal(as_task({"held": turned}, layout).values["y"], [counts])
    both = as_task({"few": {"y": counts[:2]}, "many": {"y": counts}}, layout)
    np.testing.assert_array_equal(both.lengths, [2, 4])


@pytest.mark.parametrize("by", ["dim", "data", "likelihood", "covariate"])
def test_a_prior_that_counts_observations(by: str) -> None:
    """It knows no observations, but a covariate's length: it kept that of the model."""

    def built(n: int) -> pm.Model:
        with pm.Model(coords={"obs": range(n)}) as model:
            held = pm.Data("held", np.zeros(n), dims="obs")
            x = pm.Data("x", np.ones(n), dims="obs") if by == "covariate" else 1.0
            length = held.shape[0] if by == "data" else model.dim_lengths["obs"]
            mu = pm.Normal("mu", 0, 1.0 if by == "likelihood" else 1 / length)
            mean = mu / length if by == "likelihood" else mu * x
            pm.Normal("y", mean, 1, observed=held, dims="obs")
        return model

    names = ["x"] if by == "covariate" else []
    compiled = compile_model(built(4), covariates=names)
    for n in (4, 7):
        data = {name: np.ones(n) for name in ["y", *names]}
        if n != 4 and by in ("dim", "data"):
            with pytest.raises(
                DataError, match="'y' of .* length 4 along 'obs'.*got 7: the prior of 'mu'"
            ):
                as_task(data, Layout.of(compiled, None))
            continue
        as_task(data, Layout.of(compiled, None))
        with precision.scope():
            found = compiled.log_joint(np.array([0.3]), data)
        sd, mean = (1, 0.3 / n) if by == "likelihood" else (1 / n, 0.3)
        exact = stats.norm(0, sd).logpdf(0.3) + stats.norm(mean, 1).logpdf(1.0) * n
        np.testing.assert_allclose(found, exact)


# --- padding ----------------------------------------------------------------------------------


def test_padding_is_copies_of_the_last_row(layout):
    task = as_task(RAGGED, layout)
    np.testing.assert_array_equal(task.lengths, [5, 3, 4])
    np.testing.assert_array_equal(task.rows, [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    for name in ("y", "count", "X"):
        padded, alone = task.values[name][1], RAGGED["south"][name]
        np.testing.assert_array_equal(padded[:3], alone)
        np.testing.assert_array_equal(padded[3:], [alone[-1], alone[-1]])
    assert task.values["dose"].shape == (3,) and task.values["offset"].shape == (3, 2)
    batch = task.batch()
    np.testing.assert_array_equal(batch.mask.rows[:, :5], task.rows)
    assert batch.mask.values == {}
    assert as_task(EQUAL, layout).batch().mask is None
    # batches are of few lengths
    assert not batch.mask.rows[:, 5:].any()
    for name in ("y", "X"):
        rows = batch.values[name]
        np.testing.assert_array_equal(rows[:, 5], task.values[name][:, 4])
        assert rows.shape[1] == task.room == 6
    assert batch.values["dose"].shape == (3,)


def test_lengths_are_padded_to_few():
    found = [few_lengths(n) for n in range(1, 1000)]
    assert sorted({*found}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96] + [
        128, 192, 256, 384, 512, 768, 1024
    ]  # fmt: skip
    assert all(n <= f < 1.5 * n + 1 for n, f in enumerate(found, start=1))


def test_batches_of_one_length_are_padded_where_the_likelihood_allows(compiled, layout):
    own, other = as_task({"a": one(4)}, layout), as_task({"a": one(13)}, layout)
    near = as_task({"a": one(3)}, Layout.of(compiled, "obs"))
    assert own.batch().mask is None and other.batch().mask is None  # nobody has looked yet
    assert check_masked(compiled, own).batch().mask is None
    batch = check_masked(compiled, other).batch()
    np.testing.assert_array_equal(batch.mask.rows, [np.arange(16) < 13])
    assert batch.values["X"].shape == (1, 16, 2)
    # three and four are among the few, five is not
    assert check_masked(compiled, near).batch().values["y"].shape == (1, 3)
    assert check_masked(compiled, as_task({"a": one(5)}, layout)).room == 6


def test_select_and_concatenate(layout):
    task = as_task(RAGGED, layout)
    assert_holds(task.select([2, 0]), {k: RAGGED[k] for k in ("east", "north")})
    longer = as_task({"west": one(7)}, layout)
    joined = concatenate([task, longer])
    assert_holds(joined, {**RAGGED, "west": one(7)})
    assert joined.values["X"].shape == (4, 7, 2)


def test_labels_of_fixed_dims_are_put_in_the_models_order(layout):
    swapped = labelled(one(6)).sel(predictor=["b", "a"])
    assert_holds(as_task(swapped, layout), {"0": one(6)})
    assert_holds(as_task({"north": swapped}, layout), {"north": one(6)})


def test_number_labels_are_matched_by_value():
    with pm.Model(coords={"obs": range(3), "power": [0, 1]}) as model:
        X = pm.Data("X", np.zeros((3, 2)), dims=("obs", "power"))
        pm.Normal("y", X @ pm.Normal("beta", dims="power"), 1, observed=np.zeros(3), dims="obs")
    layout = Layout.of(compile_model(model, covariates=("X",)), "obs")
    d = {k: one(3)[k] for k in ("y", "X")}
    swapped = xr.Dataset(
        {"y": ("obs", d["y"]), "X": (("obs", "power"), d["X"][:, ::-1])},
        coords={"power": [1.0, 0.0]},
    )
    assert_holds(as_task(swapped, layout), {"0": d})


def test_without_a_row_dim_nothing_is_padded(compiled):
    layout = Layout.of(compiled, None)
    task = as_task(EQUAL, layout)
    assert task.lengths is None and task.mask is None and not task.ragged
    assert_holds(task, EQUAL)
    with pytest.raises(DataError, match=r"Variable 'y'.*'south'.*\(5,\).*\(3,\).*one length"):
        as_task(RAGGED, layout)


def test_masked_likelihood_is_that_of_the_unpadded_data(compiled, layout):
    task = as_task(RAGGED, layout)
    with precision.scope():

        @jax.jit
        @jax.value_and_grad
        def masked(z, data, mask):
            return compiled.log_joint(z, data, mask=mask, dim="obs")

        @jax.jit
        @jax.value_and_grad
        def alone(z, data):
            return compiled.log_joint(z, data)

        for i, d in enumerate(RAGGED.values()):
            z = np.random.default_rng(i).normal(size=compiled.dim)
            padded = {k: v[i] for k, v in task.values.items()}
            value, gradient = masked(z, padded, Mask(task.rows[i]))
            expected, expected_gradient = alone(z, task.dataset(i))
            np.testing.assert_allclose(value, expected, rtol=1e-12)
            np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-12)
            beta, log_sigma = z[:2], z[2]
            mean = d["X"] @ (beta + d["offset"]) * d["dose"]
            truth = (
                stats.norm(mean, np.exp(log_sigma)).logpdf(d["y"]).sum()
                + stats.poisson(np.exp(beta[0])).logpmf(d["count"]).sum()
            )
            found = value - compiled.log_prior(z, task.dataset(i))
            np.testing.assert_allclose(found, truth, rtol=1e-12)


def test_padding_of_an_elementwise_likelihood_passes(compiled, layout):
    check_masked(compiled, as_task(RAGGED, layout))


def _mean_of_rows() -> None:
    X = pm.Data("X", np.zeros(4), dims="obs")
    pm.Normal("y", pm.Normal("m") + X.mean(), 1, observed=np.zeros(4), dims="obs")


def _mean_of_rows_in_the_prior() -> None:
    X = pm.Data("X", np.zeros(4), dims="obs")
    pm.Normal("y", pm.Normal("m", X.mean(), 1) * X, 1, observed=np.zeros(4), dims="obs")


def _autoregression() -> None:
    init = pm.Normal.dist(0, 1)
    pm.AR("y", pm.Normal("m", shape=1), init_dist=init, observed=np.zeros(4), dims="obs")


def _correlated_rows() -> None:
    X = pm.Data("X", np.zeros(4), dims="obs")
    cov = pm.math.exp(-((X[:, None] - X[None]) ** 2)) + np.eye(1)
    mean = pm.Normal("m") + 0 * X
    pm.MvNormal("y", mean, cov + pm.math.eq(X[:, None], X[None]), observed=np.zeros(4), dims="obs")


def _last_row() -> None:
    X = pm.Data("X", np.zeros(4), dims="obs")
    pm.Normal("y", pm.Normal("m") * X[::-1], 1, observed=np.zeros(4), dims="obs")


@pytest.mark.parametrize(
    "build",
    [_mean_of_rows, _mean_of_rows_in_the_prior, _correlated_rows, _last_row],
    ids=lambda f: f.__name__.strip("_"),
)
def test_padding_is_refused_where_rows_depend_on_one_another(build):
    with pm.Model(coords={"obs": range(4)}) as model:
        build()
    compiled = compile_model(model, covariates=("X",))
    datasets = {n: {"y": d["y"], "X": d["X"][:, 0]} for n, d in RAGGED.items()}
    task = as_task(datasets, Layout.of(compiled, "obs"))
    with pytest.raises(DataError, match=r"'obs'.*\['y'\].*one length"):
        check_masked(compiled, task)


def test_a_series_may_be_padded_but_has_no_gaps():
    with pm.Model(coords={"obs": range(4)}) as model:
        _autoregression()
    compiled = compile_model(model)
    layout = Layout.of(compiled, "obs")
    datasets = {n: {"y": d["y"]} for n, d in RAGGED.items()}
    check_masked(compiled, as_task(datasets, layout))
    datasets["north"] = {**datasets["north"], "y": np.array([0.1, np.nan, 0.3, 0.2, 0.5])}
    with pytest.raises(DataError, match=r"Values of \['y'\] are missing.*cut a series before"):
        check_masked(compiled, as_task(datasets, layout))


# --- missing values -----------------------------------------------------------------------------


def with_gaps() -> dict[str, Arrays]:
    found = {k: dict(v) for k, v in RAGGED.items()}
    found["north"]["y"] = found["north"]["y"].copy()
    found["north"]["y"][[0, 3]] = np.nan
    found["east"]["count"] = np.array([np.nan, *found["east"]["count"][1:]])
    return found


def test_missing_values_are_flagged_and_filled(layout):
    task = as_task(with_gaps(), layout)
    assert set(task.there) == {"y", "count"}
    np.testing.assert_array_equal(task.there["y"][0], [0, 1, 1, 0, 1])
    np.testing.assert_array_equal(task.there["count"][2], [0, 1, 1, 1, 1])
    assert task.values["count"].dtype == np.int64
    assert task.values["count"][2, 0] == min(RAGGED["east"]["count"][1:])
    np.testing.assert_allclose(task.values["y"][0, 0], np.median(RAGGED["north"]["y"][[1, 2, 4]]))
    assert_holds(task, with_gaps())
    assert_holds(task.select([1]), {"south": RAGGED["south"]})
    again = as_task(task.labelled().isel(dataset=[0], obs=slice(5)), layout)
    np.testing.assert_array_equal(again.there["y"], task.there["y"][:1])
    assert set(task.batch().mask.values) == {"y", "count"}


def test_missing_values_are_left_out_of_the_likelihood(compiled, layout):
    task = as_task(with_gaps(), layout)
    check_masked(compiled, task)
    z = np.random.default_rng(0).normal(size=compiled.dim)
    beta, log_sigma = z[:2], z[2]
    with precision.scope():
        for i, d in enumerate(with_gaps().values()):
            values = {k: v[i] for k, v in task.values.items()}
            mask = Mask(task.rows[i], {k: v[i] for k, v in task.there.items()})
            value, gradient = jax.value_and_grad(
                lambda u, v=values, m=mask: compiled.log_likelihood(u, v, mask=m, dim="obs")
            )(z)
            mean = d["X"] @ (beta + d["offset"]) * d["dose"]
            terms = stats.norm(mean, np.exp(log_sigma)).logpdf(d["y"])
            counts = np.asarray(d["count"], float)
            known = ~np.isnan(counts)
            truth = np.nansum(terms) + stats.poisson(np.exp(beta[0])).logpmf(counts[known]).sum()
            np.testing.assert_allclose(value, truth, rtol=1e-12)
            assert np.isfinite(gradient).all()


def test_an_entry_of_a_vector_cannot_be_missing_alone():
    with pm.Model(coords={"obs": range(3), "side": ["l", "r"]}) as model:
        mu = pm.Normal("mu", dims="side")
        pm.MvNormal("y", mu, np.eye(2), observed=np.zeros((3, 2)), dims=("obs", "side"))
    compiled = compile_model(model)
    layout = Layout.of(compiled, "obs")
    y = np.arange(6.0).reshape(3, 2)
    y[1] = np.nan
    check_masked(compiled, as_task({"y": y}, layout))
    y[2, 0] = np.nan
    with pytest.raises(DataError, match=r"'y': expected values that are all there or all missing"):
        check_masked(compiled, as_task({"y": y}, layout))


def test_values_that_others_depend_on_cannot_be_missing():
    with pm.Model(coords={"obs": range(3)}) as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1, observed=np.zeros(3), dims="obs")
        pm.Normal("y", x, 1, observed=np.zeros(3), dims="obs")
    compiled = compile_model(model)
    layout = Layout.of(compiled, "obs")
    gap = np.array([0.1, np.nan, 0.4])
    check_masked(compiled, as_task({"x": np.arange(3.0), "y": gap}, layout))
    with pytest.raises(DataError, match=r"Values of \['x'\] are missing.*other variables depend"):
        check_masked(compiled, as_task({"x": gap, "y": np.arange(3.0)}, layout))


# --- errors: the variable, the dataset, what was expected, what came ----------------------------


def broken(**changes: object) -> dict[str, Arrays]:
    """Three datasets, the second with other values for some variables; None drops one."""
    south = {k: v for k, v in {**RAGGED["south"], **changes}.items() if v is not None}
    return {**RAGGED, "south": south}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, r"'south'.*expected.*'y', 'count', 'X', 'dose', 'offset'.*\['y'\] did not"),
        ({"z": np.zeros(3)}, r"'south'.*\['z'\] is neither.*expected \['y'"),
        ({"X": np.zeros((3, 4))}, r"'X'.*'south'.*\(obs: any, predictor: 2\).*\(3, 4\)"),
        ({"X": np.zeros(3)}, r"'X'.*'south'.*\(obs: any, predictor: 2\).*\(3,\)"),
        ({"X": np.zeros((2, 2))}, r"'X'.*'south'.*length 3.*'obs'.*'y' has.* 2"),
        ({"count": np.zeros(2, int)}, r"'count'.*'south'.*length 3.*'obs'.*'y' has.* 2"),
        ({"y": np.array(["u", "v", "w"])}, r"'y' of dataset 'south': expected numbers.*float64"),
        ({"y": np.array([1, "v", None], object)}, r"'y'.*'south'.*numbers.*object"),
        ({"y": np.zeros(3, complex)}, r"'y'.*'south'.*numbers.*complex128"),
        ({"count": np.array([1.0, 2.5, 3.0])}, r"'count'.*'south'.*integers.*int64.*fractions"),
        ({"X": np.full((3, 2), np.nan)}, r"'X'.*'south'.*covariate without gaps.*6 missing"),
        (
            {"X": np.ma.masked_equal([[0.0, 1.0]] * 3, 1)},
            r"'X'.*'south'.*covariate without gaps.*3 missing",
        ),
        (
            {"y": np.full(3, np.nan), "count": np.full(3, np.nan)},
            r"Dataset 'south': expected at least one observed value",
        ),
        ({"dose": np.array(np.inf)}, r"'dose'.*'south'.*finite.*infinite"),
        (
            {"y": np.zeros(0), "count": np.zeros(0, int), "X": np.zeros((0, 2))},
            r"'y'.*'south'.*at least one value.*\(0,\)",
        ),
    ],
    ids=[
        "missing name",
        "unknown name",
        "wrong shape",
        "wrong rank",
        "rows differ",
        "observations differ",
        "text",
        "objects",
        "complex",
        "fractions",
        "NaN",
        "masked",
        "nothing observed",
        "infinite",
        "empty",
    ],
)
def test_errors_name_the_variable_and_the_dataset(layout, changes, message):
    with pytest.raises(DataError, match=message):
        as_task(broken(**changes), layout)


def test_no_dataset_at_all(layout):
    with pytest.raises(DataError, match="at least one dataset, none came"):
        stack([], [], layout)
    with pytest.raises(DataError, match=r"expected the variables \['y'.*did not come"):
        as_task({}, layout)
    with pytest.raises(DataError, match="at least one dataset, none came"):
        as_task(table(RAGGED).iloc[:0], layout)
    joined = xr.concat([labelled(d) for d in EQUAL.values()], "dataset")
    with pytest.raises(DataError, match="at least one dataset, none came"):
        as_task(joined.isel(dataset=slice(0, 0)), layout)


def test_not_data_at_all(layout):
    with pytest.raises(DataError, match="by the variables' names, got ndarray"):
        as_task(np.zeros(3), layout)


def test_duplicate_names(layout):
    joined = xr.concat(
        [labelled(d) for d in EQUAL.values()], pd.Index(["u", "v", "u"], name="dataset")
    )
    with pytest.raises(DataError, match=r"names must differ; \['u'\]"):
        as_task(joined, layout)
    with pytest.raises(DataError, match=r"names must differ; \['1'\]"):
        as_task({1: one(3), "1": one(4)}, layout)


def test_labels_that_are_not_the_models(layout):
    renamed = {"north": labelled(one(4)).assign_coords(predictor=["a", "c"])}
    with pytest.raises(DataError, match=r"'X'.*'north'.*'predictor'.*'c'.*'a', 'b'"):
        as_task(renamed, layout)


def test_dims_that_are_not_the_models(layout):
    renamed = {"north": labelled(one(4)).rename(obs="row")}
    with pytest.raises(DataError, match=r"'y'.*'north'.*\('obs',\).*\('row',\)"):
        as_task(renamed, layout)


def test_several_datasets_under_one_name(layout):
    joined = xr.concat([labelled(d) for d in EQUAL.values()], "dataset")
    with pytest.raises(DataError, match="'north': expected one dataset under one name, got 3"):
        as_task({"north": joined}, layout)


def test_arrays_with_different_numbers_of_datasets(layout):
    stacked = {k: np.stack([d[k] for d in EQUAL.values()]) for k in DIMS}
    with pytest.raises(DataError, match=r"numbers of datasets.*'y': 2.*'X': 3"):
        as_task({**stacked, "y": stacked["y"][:2]}, layout)


def test_arrays_with_different_lengths(layout):
    with pytest.raises(DataError, match=r"'X' of dataset '0'.*length 6.*'obs'.*'y' has.* 5"):
        as_task({**one(6), "X": one(5)["X"]}, layout)
    with pytest.raises(DataError, match=r"'y'.*\(obs: any\).*\(2, 3, 4\)"):
        as_task({**one(6), "y": np.zeros((2, 3, 4))}, layout)


def test_table_without_a_dataset_column(layout):
    with pytest.raises(DataError, match=r"'dose' of dataset '0'.*column 'dataset'"):
        as_task(table(RAGGED).drop(columns="dataset"), layout)


def test_table_with_rows_of_no_dataset(layout):
    long = table(RAGGED)
    long.loc[[1, 7], "dataset"] = None
    with pytest.raises(DataError, match="'dataset'.*2 rows"):
        as_task(long, layout)


def test_table_with_missing_columns(layout):
    with pytest.raises(DataError, match=r"'X'.*\['X\[b\]'\].*got \['dataset', 'y'"):
        as_task(table(RAGGED).drop(columns="X[b]"), layout)


@pytest.mark.parametrize("column", ["dose", "offset[a]"])
def test_table_where_a_value_of_the_whole_dataset_varies(layout, column):
    long = table(RAGGED)
    long.loc[6, column] = -1.0
    with pytest.raises(DataError, match=rf"'{column[:6].strip('[')}.*'south'.*one value.*2 diff"):
        as_task(long, layout)


def test_table_cannot_hold_three_dims():
    with pm.Model(coords={"obs": range(2), "a": range(2), "b": range(2)}) as model:
        X = pm.Data("X", np.zeros((2, 2, 2)), dims=("obs", "a", "b"))
        pm.Normal("y", pm.Normal("m") * X.sum((1, 2)), 1, observed=np.zeros(2), dims="obs")
    layout = Layout.of(compile_model(model, covariates=("X",)), "obs")
    with pytest.raises(DataError, match=r"'X' has 3 dims"):
        as_task(pd.DataFrame({"dataset": ["u"], "y": [0.0]}), layout)


# --- what is read, and what is refused ------------------------------------------------------------


def labelled_model(labels, rows: int = 4) -> Layout:
    with pm.Model(coords={"obs": range(rows), "p": labels}) as built:
        X = pm.Data("X", np.zeros((rows, 3)), dims=("obs", "p"))
        b = pm.Normal("b", dims="p")
        pm.Normal("y", X @ b, 1, observed=np.zeros(rows), dims="obs")
    return layout_of(pmcl.compile_model(built, covariates=["X"]))


DAYS = pd.date_range("2020-01-01", periods=3)
MATRIX = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "aligned"),
    [
        (["a", "b", "c"], ["c", "b", "a"], True),
        (DAYS, DAYS[::-1], True),
        (DAYS, [str(d.date()) for d in DAYS[::-1]], False),
        ([1, 2, 3], [3.0, 2.0, 1.0], True),
        (["01", "02", "03"], [3, 2, 1], False),
        (["dose", "age", "bmi"], ["BMI", "Age", "Dose"], False),
        (["a", "b", "c"], ["a", "b", " c"], False),
        (["a", "b", "c"], ["a", "b", "b"], False),
    ],
)
@pytest.mark.parametrize("frame", [False, True])
def test_labels_agree_or_are_refused(ours, theirs, aligned, frame):
    layout = labelled_model(ours)
    X = pd.DataFrame(MATRIX, columns=theirs)
    if not frame:
        X = xr.DataArray(MATRIX, dims=("obs", "p"), coords={"p": theirs})
    data = {"X": X, "y": np.zeros(4)}
    if aligned:
        np.testing.assert_array_equal(as_task(data, layout).values["X"][0], MATRIX[:, ::-1])
    else:
        with pytest.raises(DataError, match=r"labels of dim 'p' are .*the model's are"):
            as_task(data, layout)
    plain = as_task({"X": MATRIX, "y": np.zeros(4)}, layout)  # no labels: positions count
    np.testing.assert_array_equal(plain.values["X"][0], MATRIX)


def test_labels_that_repeat_on_both_sides_count_by_position():
    layout = labelled_model(["Lincoln", "Adams", "Lincoln"])
    X = xr.DataArray(MATRIX, dims=("obs", "p"), coords={"p": ["Lincoln", "Adams", "Lincoln"]})
    found = as_task({"X": X, "y": np.zeros(4)}, layout)
    np.testing.assert_array_equal(found.values["X"][0], MATRIX)


@pytest.fixture(scope="module")
def line_model() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as built:
        x = pm.Data("x", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b") * x, 1, observed=np.zeros(4), dims="obs")
    return built


def test_what_is_another_models_is_passed_over_in_a_task(line_model):
    x, y = np.arange(4.0), np.ones(4)
    both = as_task({"x": x, "y": y}, layout_of(pmcl.compile_model(line_model, covariates=["x"])))
    alone = layout_of(pmcl.compile_model(line_model))
    with pytest.raises(DataError, match=r"\['x'\] are `pm.Data` that were no covariates"):
        as_task(both, alone)
    found = as_task(both, replace(alone, others=frozenset("x")))
    assert [*found.values] == ["y"]
    np.testing.assert_array_equal(found.values["y"], [y])


def test_masked_arrays_in_a_list_keep_their_masks(line_model):
    layout = layout_of(pmcl.compile_model(line_model, covariates=["x"]))
    one = np.ma.masked_equal([1.0, -999.0, 2.0, 3.0], -999.0)
    task = as_task({"y": [one, one], "x": np.ones((2, 4))}, layout)
    np.testing.assert_array_equal(task.there["y"], [[True, False, True, True]] * 2)
    with pytest.raises(DataError, match=r"'y'.*one length, got lengths \[2, 3\].*mapping"):
        as_task({"y": [[1.0, 2.0, 3.0], [1.0, 2.0]], "x": np.ones((2, 4))}, layout)


def test_a_covariate_may_be_a_coordinate_and_is_missed_where_it_is_not_there(line_model):
    layout = layout_of(pmcl.compile_model(line_model, covariates=["x"]))
    data = xr.Dataset({"y": ("obs", np.zeros(4))}, coords={"x": ("obs", np.arange(4.0))})
    np.testing.assert_array_equal(as_task(data, layout).values["x"][0], np.arange(4.0))
    assert covariates_among(line_model, data) == ("x",)
    with pytest.warns(
        UserWarning, match="'x' did not come with the data: the values that the model"
    ):
        assert covariates_among(line_model, {"y": np.zeros(4)}) == ()
    with pytest.raises(DataError, match="expected 'x', as the model calls it, got 'X'"):
        covariates_among(line_model, {"y": np.zeros(4), "X": np.zeros(4)})


def test_a_covariate_on_which_nothing_depends_is_refused():
    with pm.Model(coords={"obs": range(4)}) as built:
        pm.Data("x", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b") * np.ones(4), 1, observed=np.zeros(4), dims="obs")
    with pytest.raises(
        pmcl.UnsupportedModelError, match=r"nothing in the model depends on \['x'\]"
    ):
        pmcl.compile_model(built, covariates=["x"])


@pytest.fixture(scope="module")
def known_schools() -> Layout:
    """Standard errors are constants of the model, and observations a `pm.Data`."""
    with pm.Model(coords={"school": list("ABCD")}) as model:
        s = pm.Data("s", S, dims="school")
        held = pm.Data("held", np.zeros(4), dims="school")
        pm.Normal("y", pm.Normal("t", dims="school"), s, observed=held, dims="school")
    return layout_of(compile_model(model))


S, OF_SCHOOLS = np.array([1.0, 2, 3, 4]), np.array([0.5, 1, 1.5, 2])
NOT_THE_MODELS = "'s'.*with other values in the model"


def of_schools(s: object, form: str) -> object:
    """Schools in the other order."""
    columns = {"s": pd.Series(s, index=list("DCBA")), "y": pd.Series(OF_SCHOOLS, list("DCBA"))}
    return pd.DataFrame(columns).rename_axis("school") if form == "table" else columns


@pytest.mark.parametrize("form", ["table", "Series"])
def test_constants_are_compared_by_their_labels(known_schools, form):
    task = as_task(of_schools(S[::-1], form), known_schools)
    np.testing.assert_array_equal(task.values["y"], [OF_SCHOOLS[::-1]])
    with pytest.raises(pmcl.DataError, match=NOT_THE_MODELS):
        as_task(of_schools(S, form), known_schools)


def test_constants_may_come_with_each_of_several_datasets(known_schools):
    y = [OF_SCHOOLS, OF_SCHOOLS]
    for s in ([S, S], xr.DataArray([S, S], dims=("dataset", "school")).T):
        np.testing.assert_array_equal(as_task({"y": y, "s": s}, known_schools).values["y"], y)
    for s in ([S, S + 1], [S, S[:2]], pd.array(["a", None, "b", "c"], dtype="string")):
        with pytest.raises(pmcl.DataError, match=NOT_THE_MODELS):
            as_task({"y": y, "s": s}, known_schools)


def test_observations_may_come_twice_in_a_table(known_schools):
    table = pd.DataFrame({"y": OF_SCHOOLS, "held": OF_SCHOOLS})
    np.testing.assert_array_equal(as_task(table, known_schools).values["y"], [OF_SCHOOLS])


def of_rows(x: np.ndarray, form: str) -> object:
    """Rows D, C, B, A of a model whose rows are A, B, C, D."""
    columns = {"x": pd.Series(x, index=list("DCBA")), "y": pd.Series(OF_SCHOOLS, list("DCBA"))}
    return pd.DataFrame(columns).rename_axis("obs") if form == "table" else columns


@pytest.mark.parametrize("form", ["table", "Series"])
@pytest.mark.parametrize("named", [True, False])
def test_rows_of_a_model_with_a_constant_of_the_rows_go_by_their_labels(form, named):
    """What a constant says of a row is of the row of that name, whatever order rows come in."""
    with pm.Model(coords={"obs": list("ABCD")}) as model:
        x = pm.Data("x", S, dims="obs") if named else S
        pm.Normal("y", pm.Normal("b") * x, 1, observed=np.zeros(4), dims="obs")
    layout = layout_of(pmcl.compile_model(model))
    data = of_rows(S[::-1], form)
    data = data if named else {"y": data["y"]} if form == "Series" else data.drop(columns="x")
    np.testing.assert_array_equal(as_task(data, layout).values["y"], [OF_SCHOOLS[::-1]])
    if named:
        with pytest.raises(DataError, match="'x'.*with other values in the model"):
            as_task(of_rows(S, form), layout)
    if named and form == "Series":  # by position one, the other by label
        for half in ({"x": data["x"]}, {"y": data["y"]}):
            with pytest.raises(DataError, match="in another order.*have no labels of it"):
                as_task({"x": S, "y": OF_SCHOOLS, **half}, layout)


def test_rows_in_another_order_beside_values_without_labels_are_refused(line_model):
    with pm.Model(coords={"obs": list("ABCD")}) as model:
        z = pm.Data("z", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b") * z + S, 1, observed=np.zeros(4), dims="obs")
    y, z = pd.Series(OF_SCHOOLS, list("DCBA")), np.zeros(4)
    tied = layout_of(pmcl.compile_model(model, covariates=["z"]))
    others = ["z1", "z2", "z3", "z4"]
    for bare in (z, pd.Series(z), xr.DataArray(z, {"obs": range(4)})):
        with pytest.raises(DataError, match=r"'y': labels along 'obs'.*\['z'\] have no labels"):
            as_task({"y": y, "z": bare}, tied)
    wide = {"y": y.to_frame().T, "z": pd.DataFrame([z], columns=others)}
    with pytest.raises(DataError, match=r"'y': labels along 'obs'.*\['z'\] have no labels"):
        as_task(wide, tied)
    # numbers may be those of a table that was put in order before the model was made of it
    numbered = replace(tied, coords={**tied.coords, "obs": np.arange(4)})
    with pytest.warns(UserWarning, match="'y': labels are .*'3', '2'.* taken by position"):
        found = as_task({"y": y.set_axis([3, 2, 1, 0]), "z": z}, numbered)
    np.testing.assert_array_equal(found.values["y"], [OF_SCHOOLS])
    with pytest.warns(UserWarning, match="'y': labels are .*'3', '2'.* taken by position"):
        found = as_task({"y": y.set_axis([3, 2, 1, 0]), "z": z}, replace(numbered, row=None))
    np.testing.assert_array_equal(found.values["y"], [OF_SCHOOLS])
    # without a constant of the rows their order says nothing
    free = layout_of(pmcl.compile_model(line_model, covariates=["x"]))
    np.testing.assert_array_equal(as_task({"y": y, "x": z}, free).values["y"], [OF_SCHOOLS])


def test_constants_are_the_same_as_far_as_their_types_hold_them(known_schools):
    thirds = replace(known_schools, constants={"s": S / 3})
    ones = np.ones(4)
    for near in (S.astype("float32") / np.float32(3), np.nextafter(S / 3, 9)):
        assert as_task({"y": ones, "s": near}, thirds)
        check_constants(pd.DataFrame({"s": near}), thirds, "u")
    for far in (S / 3 * (1 + 1e-9), np.round(S / 3, 6)):
        with pytest.raises(DataError, match=NOT_THE_MODELS):
            as_task({"y": ones, "s": far}, thirds)
        with pytest.raises(DataError, match=NOT_THE_MODELS):
            check_constants(pd.DataFrame({"s": far}), thirds, "u")


def test_a_constant_that_comes_by_row_is_that_of_the_rows_group(known_schools):
    schools = list("DBBACA")
    right = pd.DataFrame({"school": schools, "s": [4.0, 2, 2, 1, 3, 1]})
    check_constants(right, known_schools, "u")
    check_constants(right.assign(s=[np.nan, 2, 2, 1, 3, 1]), known_schools, "u")
    with pytest.raises(pmcl.DataError, match=NOT_THE_MODELS):
        check_constants(right.assign(s=right["s"].to_numpy()[::-1]), known_schools, "u")


def test_a_constant_that_comes_by_row_has_the_models_values(known_schools):
    for column, right in ((np.repeat(S, 2), True), (np.repeat(S + 7, 2), False)):
        table = pd.DataFrame({"s": column})
        with nullcontext() if right else pytest.raises(pmcl.DataError, match=NOT_THE_MODELS):
            check_constants(table, known_schools, "u")
