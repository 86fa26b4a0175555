"""Models as PyMC users write them, data as they have them: each way gives the same posterior."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pmcl
from pmcl.amortized.fit import simulator_of
from pmcl.compile import compile_model
from pmcl.compile.constants import beside_rows
from pmcl.data.reading import layout_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=30)
Y = 1 + 2 * X + RNG.normal(size=30)
QUIET = {"random_seed": 1, "progressbar": False}


def exact(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Posterior mean of a and b of ``y ~ N(a + b x, 1)`` with standard normal priors."""
    design = np.c_[np.ones(len(x)), x]
    return np.linalg.solve(design.T @ design + np.eye(2), design.T @ y)


def line(x: Any) -> Any:
    return pm.Normal("a") + pm.Normal("b") * x


def plain() -> None:
    pm.Normal("obs", line(pm.Data("X", X)), 1, observed=pm.Data("y", Y))


def with_dims() -> None:
    x, y = pm.Data("X", X, dims="row"), pm.Data("y", Y, dims="row")
    pm.Normal("obs", line(x), 1, observed=y, dims="row")


def y_first() -> None:
    y, x = pm.Data("y", Y, dims="row"), pm.Data("X", X, dims="row")
    pm.Normal("obs", line(x), 1, observed=y, dims="row")


def shape_of_x() -> None:
    x = pm.Data("X", X)
    pm.Normal("obs", line(x), 1, observed=pm.Data("y", Y), shape=x.shape)


def half_named() -> None:
    pm.Normal("obs", line(pm.Data("X", X)), 1, observed=pm.Data("y", Y, dims="row"), dims="row")


def placeholders() -> None:
    x = pm.Data("X", np.zeros(30))
    mu = pm.Deterministic("mu", line(x))
    pm.Normal("obs", mu, 1, observed=np.zeros(30))


def model_of(build: Callable[[], None], **options: Any) -> pm.Model:
    with pm.Model(**options) as model:
        build()
    return model


SEVERAL = {"a": {"X": X, "obs": Y}, "b": {"X": X[:9], "obs": Y[:9]}}
WAYS = [plain, with_dims, y_first, shape_of_x, half_named, placeholders]


@pytest.mark.parametrize("build", WAYS)
def test_observations_enter_by_their_shape_and_rows_are_one_dim(build: Callable) -> None:
    """Datasets of two lengths, whatever has dims, and which of them the length comes from."""
    tree = pmcl.refine(model_of(build), SEVERAL, draws=4000, **QUIET)
    for name, data in SEVERAL.items():
        one = pmcl.one(tree, name)["posterior"]
        found = [one[n].values.mean() for n in ("a", "b")]
        np.testing.assert_allclose(found, exact(data["X"], data["obs"]), atol=0.03)
    if build is placeholders:  # what is computed by row has the rows, and ends with them
        assert pmcl.one(tree, "b")["posterior"]["mu"].sizes["obs_dim_0"] == 9


@pytest.mark.parametrize("build", [y_first, half_named])
def test_the_reference_follows_the_lengths(build: Callable) -> None:
    tree = pmcl.sample_reference(model_of(build), SEVERAL, chains=2, **QUIET)
    for name, data in SEVERAL.items():
        found = [tree["posterior"][n].sel(dataset=name).values.mean() for n in ("a", "b")]
        np.testing.assert_allclose(found, exact(data["X"], data["obs"]), atol=0.06)


def test_a_network_is_trained_over_lengths_that_come_from_the_observations() -> None:
    small = pmcl.Network(pmcl.DeepSet(outputs=4, width=8), pmcl.CouplingFlow(layers=1, width=8))
    posterior = pmcl.fit_amortized(
        model_of(y_first), covariates=["X"], lengths=(5, 40), steps=5, validation=64,
        simulations=256, network=small, **QUIET,
    )  # fmt: skip
    z, data = posterior.simulator.simulate(3, random_seed=0)
    assert data["obs"].shape == data["X"].shape == (3, 40)
    tree = posterior.predict({"X": X, "y": Y}, {"X": X[:5]}, draws=50)
    assert tree["predictions"]["obs"].shape == (1, 50, 1, 5)


def test_a_stream_takes_covariates_without_dims() -> None:
    stream = pmcl.fit_online(model_of(plain), progressbar=False)
    for part in (slice(0, 12), slice(12, 30)):
        stream = stream.update({"X": X[part], "obs": Y[part]})
    found = stream.sample(4000, random_seed=1)["posterior"]
    # independent normals: the means of a line through X that is nearly centred
    assert found["b"].mean().item() == pytest.approx(exact(X, Y)[1], abs=0.05)


def eight_covariates() -> None:
    x = pm.Data("X", RNG.normal(size=8))
    effect = (x * pm.Normal("b", shape=8)).sum()
    pm.Normal("obs", effect, 1, observed=RNG.normal(size=8))


def eight_schools() -> None:
    error = pm.Data("X", RNG.uniform(8, 20, 8))
    pm.Normal("obs", pm.Normal("theta", shape=8), error, observed=RNG.normal(size=8))


def a_sum() -> None:
    x = pm.Data("X", RNG.normal(size=8))
    pm.Normal("obs", pm.Normal("a") * x.sum(), 1, observed=RNG.normal(size=8))


def in_order() -> None:
    x = pm.Data("X", RNG.normal(size=8))
    pm.Normal("obs", pm.Normal("a") * pm.math.cumsum(x), 1, observed=RNG.normal(size=8))


@pytest.mark.parametrize("build", [eight_covariates, eight_schools, a_sum, in_order])
def test_what_has_one_length_need_not_be_one_dim(build: Callable) -> None:
    compiled = compile_model(model_of(build), covariates=["X"])
    assert compiled.joined == ""
    assert compiled.covariates[0].dims == ("X_dim_0",)


def square() -> None:
    x = pm.Data("X", RNG.normal(size=(8, 8)))
    pm.Normal("obs", x @ pm.Normal("b", shape=8), 1, observed=RNG.normal(size=8))


def groups() -> None:
    n, g = pm.Data("n", np.full(8, 5)), pm.Data("X", np.zeros(8, int))
    pm.Binomial("obs", n, logit_p=pm.Normal("a", shape=3)[g], observed=np.zeros(8, int))


def test_one_axis_of_a_square_is_the_rows() -> None:
    compiled = compile_model(model_of(square), covariates=["X"])
    assert compiled.covariates[0].dims == ("obs_dim_0", "X_dim_1")
    assert compiled.joined == "rows of 'obs', 'X' are read as one dim, 'obs_dim_0'"


def test_placeholders_that_index_and_count_are_rows() -> None:
    compiled = compile_model(model_of(groups), covariates=["X", "n"])
    assert {i.dims for i in compiled.data} == {("obs_dim_0",)}


def test_constants_beside_the_rows_are_said() -> None:
    model = model_of(lambda: pm.Normal("obs", line(X), 1, observed=Y))
    said = beside_rows(compile_model(model))
    assert f"[{X[0]:.3g}, {X[1]:.3g}" in said and "30 values of 'obs'" in said
    assert 'pm.Data("x", ...)' in said
    said = beside_rows(compile_model(model_of(plain)))
    assert "'X' beside 30 values" in said and "covariates=['X']" in said
    assert beside_rows(compile_model(model_of(plain), covariates=["X"])) == ""


# --- data in the call

NAMED = {"coords": {"row": range(30)}}


def named() -> None:
    x = pm.Data("X", X, dims="row")
    pm.Normal("y", line(x), 1, observed=Y, dims="row")


FRAME = pd.DataFrame({"X": X, "y": Y, "half": np.repeat(["u", "v"], 15)})
HALVES = {"u": slice(0, 15), "v": slice(15, 30)}
ONE: dict[str, Any] = {
    "table": FRAME,
    "PyArrow": pyarrow.Table.from_pandas(FRAME[["X", "y"]]),
    "series": {"X": FRAME.X, "y": FRAME.y},
    "Dataset": xr.Dataset({"X": ("row", X), "y": ("row", Y)}),
}
TWO: dict[str, Any] = {
    "groupby": FRAME.groupby("half"),
    "mapping of tables": {k: rows for k, rows in FRAME.groupby("half")},
    "column": FRAME.rename(columns={"half": "dataset"}),
    "sequence": [{"X": X[rows], "y": Y[rows]} for rows in HALVES.values()],
    "sequence of tables": [FRAME[rows] for rows in HALVES.values()],
}


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    small = pmcl.Network(pmcl.DeepSet(outputs=4, width=8), pmcl.CouplingFlow(layers=1, width=8))
    return pmcl.fit_amortized(
        model_of(named, **NAMED), covariates=FRAME[["X"]], network=small, simulations=256,
        steps=5, validation=64, **QUIET,
    )  # fmt: skip


@pytest.mark.parametrize("form", ONE)
def test_one_dataset(posterior: pmcl.AmortizedPosterior, form: str) -> None:
    task = pmcl.as_task(ONE[form], posterior.layout)
    np.testing.assert_array_equal(task.dataset(0)["X"], X)
    np.testing.assert_array_equal(task.dataset(0)["y"], Y)
    assert len(task) == 1


@pytest.mark.parametrize("form", TWO)
def test_several_datasets(posterior: pmcl.AmortizedPosterior, form: str) -> None:
    task = pmcl.as_task(TWO[form], posterior.layout)
    assert task.names == (("0", "1") if form.startswith("sequence") else ("u", "v"))
    for i, rows in enumerate(HALVES.values()):
        np.testing.assert_array_equal(task.dataset(i)["X"], X[rows])
        np.testing.assert_array_equal(task.dataset(i)["y"], Y[rows])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Y, r'got ndarray of shape \(30,\): write \{"y": values\}'),
        (FRAME.y, r"got Series of shape \(30,\)"),
        ([1.0, 2.0], "one dataset for each entry.*got a list of float"),
        ({"X": X}, r"\['y'\] did not come"),
        (FRAME[["X"]], r"'y'.*expected column\(s\) \['y'\].*each element of 'row', got \['X'\]"),
        ("data.csv", "got str"),
    ],
)
def test_what_was_taken_for_what_is_said(
    posterior: pmcl.AmortizedPosterior, data: Any, said: str
) -> None:
    with pytest.raises(pmcl.DataError, match=said):
        pmcl.as_task(data, posterior.layout)


def test_tables_go_through_refinement(posterior: pmcl.AmortizedPosterior) -> None:
    tree = pmcl.refine(posterior.compiled.model, FRAME.groupby("half"), draws=4000, **QUIET)
    for name, rows in HALVES.items():
        found = [tree["posterior"][n].sel(dataset=name).values.mean() for n in ("a", "b")]
        np.testing.assert_allclose(found, exact(X[rows], Y[rows]), atol=0.03)


def test_without_data_the_models_own_are_taken(
    posterior: pmcl.AmortizedPosterior, capsys: pytest.CaptureFixture[str]
) -> None:
    model = posterior.compiled.model
    trees = [
        pmcl.refine(model, draws=4000, **QUIET),
        pmcl.sample_reference(model, chains=4, **QUIET),
        posterior.sample(draws=4000, random_seed=1),
    ]
    assert "No data came: the model's own are taken (y (30,))" in capsys.readouterr().out
    for tree in trees:
        one = pmcl.one(tree)["posterior"]
        found = [one[n].values.mean() for n in ("a", "b")]
        np.testing.assert_allclose(found, exact(X, Y), atol=0.04)
    adapted = posterior.adapt(name="own", steps=2, progressbar=False)
    np.testing.assert_array_equal(adapted.memory.stored().values["y"][0], Y)


def test_placeholders_are_no_data() -> None:
    for call in (pmcl.refine, pmcl.sample_reference):
        with pytest.raises(pmcl.DataError, match=r"'obs' are all equal \(0\), as placeholders"):
            call(model_of(placeholders))


def test_covariates_without_values_are_refused() -> None:
    with pytest.raises(ValueError, match="'X' has no values in the model that differ"):
        pmcl.fit_amortized(model_of(placeholders), covariates=["X"])
    with pytest.raises(ValueError, match="'Z' is not a `pm.Data`"):
        pmcl.fit_amortized(model_of(plain), covariates=["Z"])
    with pytest.raises(TypeError, match="a list of names, got int"):
        pmcl.fit_amortized(model_of(plain), covariates=3)


def test_a_constant_that_comes_with_other_values_is_refused() -> None:
    compiled = compile_model(model_of(plain))
    with pytest.raises(pmcl.DataError, match=r"other values in.*Fit it again.*covariates=\['X'\]"):
        pmcl.refine(compiled, {"X": X + 1, "y": Y}, progressbar=False)
    # as in results of `pm.sample`
    task = pmcl.as_task({"X": X, "y": Y, "obs": Y}, layout_of(compiled))
    np.testing.assert_array_equal(task.values["obs"], [Y])
    with pytest.raises(pmcl.DataError, match="Column 'X'.*other values in the model"):
        pmcl.as_task(pd.DataFrame({"X": X + 1, "y": Y}), layout_of(compiled))


def test_one_needs_a_name_where_there_are_several() -> None:
    tree = pmcl.refine(model_of(plain), SEVERAL, draws=100, **QUIET)
    with pytest.raises(KeyError, match="there are 2"):
        pmcl.one(tree)


def test_columns_are_parts_of_a_covariate() -> None:
    with pm.Model(coords={"row": range(30), "side": ["l", "r"]}) as model:
        x = pm.Data("X", np.zeros((30, 2)), dims=("row", "side"))
        pm.Normal("y", x @ pm.Normal("b", dims="side"), 1, observed=np.zeros(30), dims="row")
    table = pd.DataFrame({"X[r]": X + 10, "X[l]": X})
    simulator = simulator_of(model, table)
    _, data = simulator.simulate(2, random_seed=0)
    np.testing.assert_allclose(data["X"][..., 1] - data["X"][..., 0], 10)
    with pytest.raises(ValueError, match=r"expected columns .*'X\[r\]'.*got .*'X\[R\]'"):
        simulator_of(model, table.rename(columns={"X[r]": "X[R]"}))
    with pytest.raises(ValueError, match=r"covariates\['X'\]: expected finite values, got 1"):
        masked = np.ma.masked_equal(np.stack([X, np.where(X == X[0], -999, X)], 1), -999)
        simulator_of(model, {"X": masked})


# --- irregular times, and what will take long -----------------------------------------------------


def _increasing(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.cumsum(rng.exponential(1.0, n))


@pytest.fixture(scope="module")
def irregular() -> pmcl.AmortizedPosterior:
    with pm.Model(coords={"time": range(8)}) as model:
        when = pm.Data("when", np.arange(8.0), dims="time")
        light = pm.Data("light", np.zeros(8), dims="time")
        rate = pm.HalfNormal("rate")
        mu = pm.math.exp(-rate * when) + light
        pm.Normal("y", mu, 0.1, observed=np.zeros(8), dims="time")
    network = pmcl.Network(
        pmcl.Recurrent(outputs=4, width=4),
        pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
        whiten=False,
    )
    return pmcl.fit_amortized(
        model,
        covariates={"when": _increasing, "light": pm.Normal.dist()},
        sequence="time",
        network=network,
        steps=20,
        validation=32,
        lengths=(4, 8),
        **QUIET,
    )


@pytest.mark.filterwarnings("ignore::pmcl.FarDataWarning")
def test_a_series_with_times_is_read_with_its_steps(irregular, tmp_path) -> None:
    assert irregular.structure.times == ("when",)
    assert "with the steps of 'when'" in repr(irregular)
    data = {"when": np.array([0.5, 1, 4, 4.25]), "light": np.ones(4), "y": np.zeros(4)}
    rows, _ = irregular.amortizer.inputs.split(data)
    np.testing.assert_allclose(np.asarray(rows)[:, -1], [0, 0.5, 3, 0.25])
    # a state keeps it, and padding does not reach it
    pmcl.save(irregular, tmp_path / "state.zarr.zip")
    sources = {"when": _increasing, "light": pm.Normal.dist()}
    model = irregular.compiled.model
    again = pmcl.load(tmp_path / "state.zarr.zip", model, covariates=sources)
    assert again.structure == irregular.structure
    two = {name: {k: v[:n] for k, v in data.items()} for name, n in (("all", 4), ("less", 2))}
    together = again.sample(two, 20, random_seed=1, refine=False)
    alone = irregular.sample({"all": data}, 20, random_seed=1, refine=False)
    np.testing.assert_allclose(
        together["posterior"]["rate"].sel(dataset="all"),
        alone["posterior"]["rate"].sel(dataset="all"),
        rtol=1e-5,
    )


def test_training_that_takes_long_is_said_before(irregular, monkeypatch) -> None:
    monkeypatch.setattr("pmcl.training.run._LONG", 1e-6)
    with pytest.warns(UserWarning, match="a step takes .* s, so that 20 steps .*1 parameters"):
        irregular.pretrain(20, progressbar=False)


def test_a_loop_over_rows_is_said_before_it_is_compiled(monkeypatch) -> None:
    monkeypatch.setattr("pmcl.compile.size._NODES", 40)
    y = np.random.default_rng(0).normal(size=20)
    with pm.Model() as model:
        a = pm.Beta("a", 2, 2)
        level = [pt.zeros(())]
        for t in range(1, 20):
            level.append(a * y[t - 1] + (1 - a) * level[-1])
        pm.Normal("y", pt.stack(level), 1, observed=y)
    with pytest.warns(UserWarning, match="'y' is a graph of .* operations.*`pytensor.scan`"):
        compile_model(model)


def test_more_parameters_than_can_be_are_said_before(irregular, monkeypatch) -> None:
    monkeypatch.setattr("pmcl.compile.size._PARAMETERS", 2)
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        pm.Normal("y", b, 1, observed=pm.Data("held", np.arange(3.0)))
    said = r"3 parameters \('b' has 3\), for 3 observed values.*pmcl.sample_reference"
    with pytest.warns(UserWarning, match=f"refine: the model has {said}"):
        pmcl.refine(model, draws=50, levels=False, **QUIET)
    with pytest.warns(UserWarning, match=f"fit_amortized: the model has {said}"):
        pmcl.fit_amortized(
            model, network=irregular.network, exchangeable=None, steps=2, levels=False, **QUIET
        )


def transects(*, vector: bool = False) -> pm.Model:
    """Counts along transects."""
    with pm.Model(coords={"transect": range(6)}) as model:
        dims = "transect" if vector else None
        length = pm.Data("transect_length", np.full(6, 3.0) if vector else 3.0, dims=dims)
        rate = pm.Gamma("rate", 2, 1)
        seen = pm.Deterministic("seen", rate * length * np.ones(6) if not vector else rate * length)
        pm.Poisson("y", seen, observed=np.ones(6, int), dims="transect")
    return model


def test_a_covariate_may_be_called_as_lengths_are(tmp_path):
    """All six counts were cut to the first three, by a length of 3 kilometres."""
    y = np.array([[1, 4, 2, 2, 7, 3], [0, 1, 1, 3, 0, 1]])
    data = {"transect_length": [3.0, 4.0], "y": y}
    options = {"draws": 100, "random_seed": 1, "progressbar": False}
    tree = pmcl.refine(transects(), data, **options)
    one = pmcl.one(tree, "1")
    assert one["observed_data"]["y"].values.tolist() == y[1].tolist()
    assert float(one["constant_data"]["transect_length"]) == 4.0
    pmcl.refine(transects(), tree, store=tmp_path / "again", **options)  # results are data
    again = pmcl.one(xr.open_datatree(tmp_path / "again", engine="zarr", consolidated=False), "0")
    assert again["observed_data"].sizes["transect"] == 6
    assert float(again["constant_data"]["transect_length"]) == 3.0


def test_a_covariate_that_lengths_would_replace_is_refused():
    rows = [{"transect_length": np.ones(n), "y": np.ones(n, int)} for n in (4, 6)]
    with pytest.raises(pmcl.DataError, match="transect_length: results say by this name"):
        pmcl.refine(transects(vector=True), rows, progressbar=False)
