"""The tables of the demo: what is in them, and what is drawn from them."""

import re
import socket
import sys

import numpy as np
import pandas as pd
import pytest
from paper_tables import paper_tables
from scipy import stats

from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import (
    RegressionTable,
    bundled_tables,
    draw_datasets,
    simulated_datasets,
)

# name: file and number of rows, as documented beside the files
PAPER = {
    "boston": ("boston.csv", 506),
    "auto_mpg": ("auto_mpg.csv", 392),
    "california": ("california.csv.gz", 20640),
    "diabetes": ("diabetes.csv", 442),
    "energy": ("energy_efficiency.csv", 768),
    "bike": ("bike_sharing.csv.gz", 17379),
    "concrete": ("concrete.csv", 1030),
    "liver": ("liver.csv", 345),
    "superconductivity": ("superconductivity.csv", 1472),
}
# OpenML's own column names, and their complete rows
OPENML = {
    531: (506, "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT MEDV"),
    196: (392, "cylinders displacement horsepower weight acceleration model origin class"),
    44960: (
        768,
        "relative_compactness surface_area wall_area roof_area overall_height orientation "
        "glazing_area glazing_area_distribution heating_load",
    ),
    42712: (
        17379,
        "season year month hour holiday weekday workingday weather temp feel_temp humidity "
        "windspeed count",
    ),
    44959: (
        1030,
        "cement blast_furnace_slag fly_ash water superplasticizer coarse_aggregate "
        "fine_aggregate age strength",
    ),
    8: (345, "mcv alkphos sgpt sgot gammagt drinks selector"),
    44964: (
        21263,
        "number_of_elements mean_atomic_mass mean_Valence mean_atomic_radius "
        "mean_ElectronAffinity mean_FusionHeat critical_temp",
    ),
}


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def small_table():
    rng = np.random.default_rng(5)
    return RegressionTable(
        name="small",
        predictors=("a", "b", "c", "d", "e"),
        response="f",
        X=rng.gamma(2.0, 30.0, size=(40, 5)),
        y=rng.normal(1e4, 3.0, size=40),
        source="made here",
    )


def check_table(table):
    assert table.X.shape == (len(table.y), 5)
    assert table.X.dtype == table.y.dtype == np.float64
    assert np.isfinite(table.X).all() and np.isfinite(table.y).all()
    assert len(set(table.predictors) | {table.response}) == 6
    assert table.source and "\n" not in table.source
    # with an intercept: no predictor is a linear combination of the others
    design = np.column_stack([np.ones(len(table.y)), stats.zscore(table.X)])
    assert np.linalg.matrix_rank(design) == 6


def test_paper_tables_have_the_documented_rows_and_columns(data_folder, monkeypatch):
    monkeypatch.setenv("PMCL_DATA", str(data_folder))
    tables = paper_tables()
    assert list(tables) == list(PAPER)
    for name, table in tables.items():
        file, rows = PAPER[name]
        check_table(table)
        frame = pd.read_csv(data_folder / "regression" / file)
        assert table.name == name
        assert [*table.predictors, table.response] == list(frame.columns)
        assert len(table.y) == rows
        np.testing.assert_array_equal(np.column_stack([table.X, table.y]), frame.to_numpy(float))


def test_the_diabetes_file_is_the_bundled_table(data_folder):
    file, bundled = paper_tables(data_folder)["diabetes"], bundled_tables()["diabetes"]
    assert file.predictors == bundled.predictors
    np.testing.assert_array_equal(file.X, bundled.X)
    np.testing.assert_array_equal(file.y, bundled.y)


def test_a_folder_without_a_table_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"boston: expected boston\.csv .*PMCL_DATA"):
        paper_tables(tmp_path)


def test_a_file_without_a_column_is_refused(tmp_path):
    (tmp_path / "regression").mkdir()
    columns = "CRIM ZN RM AGE MEDV".split()
    pd.DataFrame(np.ones((3, 5)), columns=columns).to_csv(
        tmp_path / "regression" / "boston.csv", index=False
    )
    with pytest.raises(ValueError, match=r"boston: expected columns \['DIS'\]"):
        paper_tables(tmp_path)


def fake_download(monkeypatch):
    """Replace the downloads by tables of OpenML's shape, whose values say row and column."""
    frames = {}
    for data_id, (rows, columns) in OPENML.items():
        names = columns.split()
        values = np.arange(rows)[:, None] + np.arange(len(names)) / 100
        frames[data_id] = pd.DataFrame(values, columns=names)
    # as OpenML has it: a nominal column, and six rows without horsepower
    auto = frames[196]
    incomplete = auto.iloc[:6].assign(horsepower=np.nan)
    auto = pd.concat([incomplete, auto], ignore_index=True)
    frames[196] = auto.assign(cylinders=pd.Categorical((auto["cylinders"] % 3).astype(str)))
    names = "MedInc HouseAge AveRooms AveBedrms Population AveOccup Latitude Longitude MedHouseVal"
    california = pd.DataFrame(np.ones((20640, 9)), columns=names.split())

    def fetch_openml(*, data_id, as_frame):
        return type("Bunch", (), {"frame": frames[data_id]})

    def fetch_california_housing(*, as_frame):
        return type("Bunch", (), {"frame": california})

    monkeypatch.delenv("PMCL_DATA", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    monkeypatch.setattr("sklearn.datasets.fetch_california_housing", fetch_california_housing)
    return frames


def test_downloaded_columns_go_where_the_files_have_them(monkeypatch):
    fake_download(monkeypatch)
    tables = paper_tables()
    assert list(tables) == list(PAPER)
    energy = tables["energy"]
    assert energy.predictors == ("X1", "X3", "X6", "X7", "X8") and energy.response == "Y1"
    np.testing.assert_allclose(energy.X[3], [3.00, 3.02, 3.05, 3.06, 3.07])
    np.testing.assert_allclose(energy.y[3], 3.08)
    bike = tables["bike"]
    assert bike.predictors == ("mnth", "temp", "hum", "windspeed", "weekday")
    np.testing.assert_allclose(bike.X[2], [2.02, 2.08, 2.10, 2.11, 2.05])
    np.testing.assert_allclose(bike.y[2], 2.12)
    concrete = tables["concrete"]
    np.testing.assert_allclose(concrete.X[1], [1.00, 1.03, 1.04, 1.05, 1.02])
    auto = tables["auto_mpg"]
    assert auto.response == "mpg" and len(auto.y) == 392
    np.testing.assert_allclose(auto.X[:4, 0], [0, 1, 2, 0])
    np.testing.assert_allclose(auto.y[0], 0.07)


def test_an_unexpected_download_is_refused(monkeypatch):
    frames = fake_download(monkeypatch)
    whole = frames[531]
    frames[531] = whole.iloc[:-1]
    with pytest.raises(RuntimeError, match=r"expected 506 complete rows .* got 505.*PMCL_DATA"):
        paper_tables()
    frames[531] = whole.drop(columns="DIS")
    with pytest.raises(RuntimeError, match=r"boston: expected columns \['DIS'\].*PMCL_DATA"):
        paper_tables()


def test_a_failed_download_says_how_to_get_the_data(monkeypatch, offline, tmp_path):
    monkeypatch.delenv("PMCL_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    message = re.escape("set PMCL_DATA to a folder with regression/boston.csv")
    with (
        pytest.warns(UserWarning, match="Retrying"),
        pytest.raises(RuntimeError, match=message),
    ):
        paper_tables()


def test_bundled_tables_load_without_network(offline):
    tables = bundled_tables()
    assert len(tables) >= 5
    for name, table in tables.items():
        assert table.name == name
        check_table(table)
    assert {name: len(table.y) for name, table in tables.items()} == {
        "diabetes": 442,
        "wine": 178,
        "star98": 303,
        "macrodata": 203,
        "randhie": 20190,
        "anes96": 944,
        "modechoice": 840,
    }


def test_bundled_tables_differ_in_character():
    tables = bundled_tables()
    explained, condition = {}, {}
    for name, table in tables.items():
        X, y = stats.zscore(table.X), stats.zscore(table.y)
        coefficients = np.linalg.lstsq(X, y)[0]
        explained[name] = 1 - np.mean((y - X @ coefficients) ** 2)
        condition[name] = np.linalg.cond(np.corrcoef(X.T))
    assert explained["randhie"] < 0.1 and explained["modechoice"] > 0.9
    assert condition["macrodata"] > 100 > 10 > condition["diabetes"]
    assert stats.kurtosis(tables["randhie"].y) > 10


def test_missing_statsmodels_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    with pytest.raises(ImportError, match=r"pip install pmcl\[demo\]"):
        bundled_tables()


def test_tables_refuse_wrong_shapes_and_missing_values(small_table):
    names = small_table.predictors
    with pytest.raises(ValueError, match="small: expected X of shape"):
        RegressionTable("small", names, "f", small_table.X[:-1], small_table.y, "here")
    with pytest.raises(ValueError, match="expected 5 predictors, got 4"):
        RegressionTable("small", names[:4], "f", small_table.X, small_table.y, "here")
    X = small_table.X.copy()
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="small, column b: expected finite"):
        RegressionTable("small", names, "f", X, small_table.y, "here")


def test_drawn_rows_are_rows_of_the_standardised_table(small_table):
    data = draw_datasets(small_table, datasets=6, rows=50, random_seed=3)
    assert data["X"].dims == ("dataset", "obs", "predictor") and data["X"].shape == (6, 50, 5)
    assert data["y"].dims == ("dataset", "obs") and data["y"].shape == (6, 50)
    assert data["X"].dtype == data["y"].dtype == np.float64
    assert list(data["dataset"].values) == [f"small {i}" for i in range(6)]
    whole = stats.zscore(np.column_stack([small_table.X, small_table.y]))
    drawn = np.concatenate([data["X"].values, data["y"].values[..., None]], axis=2)
    distance = np.abs(drawn[:, :, None, :] - whole).max(axis=3)
    assert distance.min(axis=2).max() < 1e-10
    # 50 rows of a table of 40 repeat some; 300 draws miss a row with probability 0.0005 each
    chosen = distance.argmin(axis=2)
    assert len(np.unique(chosen)) == 40
    assert len({tuple(row) for row in chosen}) == 6


def test_draws_are_uniform_over_the_table(small_table):
    data = draw_datasets(small_table, datasets=40, rows=100, random_seed=4)
    counts = np.unique(data["y"].values, return_counts=True)[1]
    assert len(counts) == 40
    assert stats.chisquare(counts).pvalue > 0.001


def test_draws_follow_the_seed(small_table):
    first = draw_datasets(small_table, random_seed=1)
    assert first.sizes == {"dataset": 10, "obs": 100, "predictor": 5}
    assert first.identical(draw_datasets(small_table, random_seed=1))
    assert not first.equals(draw_datasets(small_table, random_seed=2))
    simulated = simulated_datasets(datasets=3, rows=7, random_seed=1)
    again = simulated_datasets(datasets=3, rows=7, random_seed=1)
    assert all(a.identical(b) for a, b in zip(simulated, again, strict=True))
    assert not simulated[0].equals(simulated_datasets(datasets=3, rows=7, random_seed=2)[0])


def test_draws_refuse_a_constant_column_and_empty_data_sets(small_table):
    X = small_table.X.copy()
    X[:, 2] = 0.1
    table = RegressionTable("flat", small_table.predictors, "f", X, small_table.y, "here")
    with pytest.raises(ValueError, match="flat, column c: expected values that vary"):
        draw_datasets(table, random_seed=1)
    with pytest.raises(ValueError, match="rows: expected at least 1, got 0"):
        draw_datasets(small_table, rows=0, random_seed=1)
    with pytest.raises(ValueError, match="datasets: expected at least 1, got 0"):
        simulated_datasets(datasets=0, rows=5, random_seed=1)


def test_simulated_datasets_follow_the_prior_and_the_likelihood():
    data, parameters = simulated_datasets(datasets=2000, rows=20, random_seed=8)
    assert data["X"].dims == ("dataset", "obs", "predictor") and data["X"].shape == (2000, 20, 5)
    assert data["y"].dims == ("dataset", "obs")
    assert all(variable.dtype == np.float64 for variable in (data["X"], data["y"]))
    assert list(data["dataset"].values[:2]) == ["simulated 0", "simulated 1"]
    assert parameters["dataset"].equals(data["dataset"])
    residual = data["y"] - parameters["alpha"] - data["X"].dot(parameters["beta"], "predictor")
    standard = residual / parameters["sigma"]
    for values in (parameters["alpha"], parameters["beta"], data["X"], standard):
        assert stats.kstest(values.values.ravel(), "norm").pvalue > 0.001
    assert stats.kstest(parameters["sigma"].values, "halfnorm").pvalue > 0.001
    # and independent of one another
    columns = [parameters["alpha"], *parameters["beta"].T, parameters["sigma"], standard[:, 0]]
    correlation = np.corrcoef(np.stack([column.values for column in columns]))
    assert np.abs(correlation - np.eye(len(columns))).max() < 5 / np.sqrt(2000)


def test_the_model_is_the_one_that_was_simulated_from():
    model = linear_regression_model(rows=30)
    data, parameters = simulated_datasets(datasets=1, rows=30, random_seed=2)
    alpha, sigma = float(parameters["alpha"][0]), float(parameters["sigma"][0])
    beta = parameters["beta"].values[0]
    X, y = data["X"].values[0], data["y"].values[0]
    assert [variable.name for variable in model.free_RVs] == ["alpha", "beta", "sigma"]
    assert model.named_vars_to_dims["X"] == ("obs", "predictor")
    assert model.named_vars_to_dims["y"] == ("obs",)
    assert model.named_vars_to_dims["beta"] == ("predictor",)
    model["X"].set_value(X)
    # the observations of the model are zeros: they are compared with zeros
    point = {"alpha": alpha, "beta": beta, "sigma_log__": np.log(sigma)}
    expected = (
        stats.norm.logpdf(alpha)
        + stats.norm.logpdf(beta).sum()
        + stats.halfnorm.logpdf(sigma)
        + np.log(sigma)
        + stats.norm.logpdf(np.zeros(30), alpha + X @ beta, sigma).sum()
    )
    logp = model.compile_logp(mode="FAST_COMPILE")
    np.testing.assert_allclose(logp(point), expected, rtol=1e-10)
    # given the parameters, the simulated response has the likelihood's spread
    spread = np.sum(((y - alpha - X @ beta) / sigma) ** 2)
    assert 0.001 < stats.chi2.cdf(spread, 30) < 0.999


def test_the_model_refuses_empty_data():
    with pytest.raises(ValueError, match="rows: expected at least 1"):
        linear_regression_model(rows=0)
    with pytest.raises(ValueError, match="predictors: expected at least 1"):
        linear_regression_model(predictors=0)
