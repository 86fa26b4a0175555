"""The same wrong data through every call and the command line: refused with the same words."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.amortized.simulating import simulator_of
from pmcl.cli import main
from pmcl.runtime.files import from_json, to_json

ROWS = 6
QUIET = {"random_seed": 0, "progressbar": False}
NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
    whiten=False,
)
MODEL = """
import numpy as np
import pymc as pm

exchangeable = "obs"


def model():
    with pm.Model(coords={"obs": range(6), "arm": ["placebo", "drug"]}) as made:
        exposure = pm.Data("exposure", np.ones(6), dims="obs")
        arm = pm.Data("arm_of", np.zeros(6, int), dims="obs")
        X = pm.Data("X", np.zeros((6, 2)), dims=("obs", "arm"))
        b = pm.Normal("b", 0, 0.5, dims="arm")
        pm.Poisson(
            "y", exposure * pm.math.exp(b[arm] + X @ b), observed=np.zeros(6, int), dims="obs"
        )
    return made


def covariates():
    return {
        "exposure": pm.Uniform.dist(0.5, 2),
        "arm_of": pm.Bernoulli.dist(0.5),
        "X": pm.Normal.dist(0, 0.3),
    }
"""
X = np.linspace(-0.5, 0.5, 2 * ROWS).reshape(ROWS, 2)


def data(**changes: object) -> dict[str, object]:
    good = {
        "exposure": np.ones(ROWS),
        "arm_of": [0, 1, 0, 1, 0, 1],
        "X": X,
        "y": [0, 2, 1, 0, 1, 3],
    }
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[pm.Model, pmcl.AmortizedPosterior, Path]:
    folder = tmp_path_factory.mktemp("doors")
    (folder / "m.py").write_text(MODEL)
    given: dict = {}
    exec(MODEL, given)
    model = given["model"]()
    posterior = pmcl.fit_amortized(
        model,
        covariates=given["covariates"](),
        network=NETWORK,
        steps=5,
        exchangeable="obs",
        **QUIET,
    )
    pmcl.save(posterior, folder / "state.zarr.zip")
    return model, posterior, folder


def with_labels(labels: list[str]) -> xr.DataArray:
    return xr.DataArray(X, dims=("obs", "arm"), coords={"arm": labels})


WRONG = {
    "a count below 0": (data(y=[0, -1, 2, 3, 1, 1]), "'y' of dataset '0': .*got -1 in row 1"),
    "an index from 1": (
        data(arm_of=[1, 2] * 3),
        "'arm_of'.*it indexes 'b'.*counted from 1",
    ),
    "a missing category": (data(arm_of=[1, 0, -1, 0, 1, 1]), "'arm_of'.*pandas gives to a missing"),
    "fractions that index": (data(arm_of=[0.5, 1, 0, 1, 0, 1]), "'arm_of'.*integers.*fractions"),
    "a fill value": (data(X=np.where(X == X[2, 0], 1e20, X)), "'X'.*got 1e.20 in row 2, entry 0"),
    "labels that differ": (data(X=with_labels(["Placebo", "drug"])), "'X'.*differ in case or bla"),
    "a gap in a covariate": (data(exposure=[1, np.nan] * 3), "'exposure'.*without gaps"),
}
IMPOSSIBLE = (
    data(exposure=[1.0, 1, -1, 1, 1, 1]),
    "'y' of dataset '0': got 1 in row 2.*'expos",
)


def doors(made: tuple) -> dict[str, Callable]:
    model, posterior, _ = made
    return {
        "refine": lambda d: pmcl.refine(model, d, **QUIET),
        "sample_reference": lambda d: pmcl.sample_reference(model, d, **QUIET),
        "sample": lambda d: posterior.sample(d, 20, random_seed=0),
        "adapt": lambda d: posterior.adapt(d, name="t", steps=2, **QUIET),
        "check_data": lambda d: pmcl.check_data(posterior, d),
        "calibrate": lambda d: pmcl.calibrate(posterior, d, simulations=4, draws=4, **QUIET),
    }


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_are_refused_in_the_same_words_everywhere(made, name: str) -> None:
    wrong, said = WRONG[name]
    for call in doors(made).values():
        with pytest.raises(pmcl.DataError, match=said):
            call(wrong)


def test_rows_that_are_impossible_are_refused_where_draws_are_made(made) -> None:
    wrong, said = IMPOSSIBLE
    for name, call in doors(made).items():
        if name != "calibrate":
            with pytest.raises(pmcl.DataError, match=said):
                call(wrong)


# a table's columns are named after the model's labels
@pytest.mark.parametrize("name", [n for n in WRONG if n != "labels that differ"])
def test_the_command_line_says_it_in_a_line(made, name: str, capsys) -> None:
    wrong, said = WRONG[name]
    _, _, folder = made
    columns = {
        f"X[{label}]": np.asarray(wrong["X"])[:, i] for i, label in enumerate(["placebo", "drug"])
    }
    plain = {k: v for k, v in wrong.items() if k != "X"}
    pd.DataFrame({"dataset": "0", **plain, **columns}).to_csv(folder / "d.csv", index=False)
    table, model, state = (str(folder / n) for n in ("d.csv", "m.py:model", "state.zarr.zip"))
    for command in (
        ["reference", table, "-m", model, "-o", str(folder / "no.nc"), "-q"],
        ["sample", state, table, "-m", model, "-o", str(folder / "no.nc"), "-q"],
        ["adapt", state, table, "-m", model, "-q"],
    ):
        assert main([*command, "--no-cache"]) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and err.startswith(f"pmcl {command[0]}: ")
        with pytest.raises(pmcl.DataError, match=said):
            raise pmcl.DataError(err)


@pytest.mark.parametrize("name", [n for n in WRONG if n != "a count below 0"])
def test_new_covariates_of_predictions_are_checked(made, name: str) -> None:
    wrong, said = WRONG[name]
    with pytest.raises(pmcl.DataError, match=f"new_covariates: .*{said}"):
        made[1].predict(data(), {k: v for k, v in wrong.items() if k != "y"}, draws=4)


def test_predictions_are_at_the_new_covariates_of_their_dataset(made) -> None:
    """Names of datasets decide, and labels of columns."""
    two = {"u": data(), "v": data()}
    large = [np.full(ROWS, 1.0), np.full(ROWS, 1000.0)]
    new = xr.Dataset(
        {
            "exposure": (("dataset", "obs"), large),
            "arm_of": ("obs", np.zeros(ROWS, int)),
            "X": (("obs", "arm"), X[:, ::-1]),
        },
        coords={"dataset": ["v", "u"], "arm": ["drug", "placebo"]},
    )
    found = made[1].predict(two, new, draws=20, random_seed=1)
    means = found["predictions"]["y"].mean(("chain", "draw", "obs"))
    assert float(means.sel(dataset="u")) > 50 * float(means.sel(dataset="v"))
    constant = found["predictions_constant_data"]
    np.testing.assert_array_equal(constant["X"].sel(dataset="u"), X)
    with pytest.raises(pmcl.DataError, match="expected the datasets 'u', 'v', got 'u', 'w'"):
        made[1].predict(two, new.assign_coords(dataset=["u", "w"]), draws=4)
    alone = new.isel(dataset=[0])
    with pytest.raises(pmcl.DataError, match="expected the datasets 'u', 'v', got 'v'"):
        made[1].predict(two, alone, draws=4)
    with pytest.raises(pmcl.DataError, match="expected the datasets 'u', got 'v'"):
        made[1].predict({"u": data()}, alone, draws=4)
    arm = [0] * ROWS
    by_name = {k: data(arm_of=arm, exposure=e) for k, e in zip("vu", large, strict=True)}
    again = made[1].predict(two, by_name, draws=20, random_seed=1)["predictions"]["y"]
    np.testing.assert_array_equal(again, found["predictions"]["y"])
    tables = {
        k: pd.DataFrame({"X[drug]": X[:, 1], "X[placebo]": X[:, 0], "arm_of": 0, "exposure": e})
        for k, e in zip("vu", large, strict=True)
    }
    table = pd.concat([one.assign(dataset=k) for k, one in tables.items()])
    for form in (tables, table, table.groupby("dataset"), [tables["u"], tables["v"]]):
        again = made[1].predict(two, form, draws=20, random_seed=1)["predictions"]["y"]
        np.testing.assert_array_equal(again, found["predictions"]["y"])
    with pytest.raises(ValueError, match="'exposure'. did not come"):
        made[1].predict(two, table.drop(columns="exposure"), draws=4)
    by_name["u"].pop("X")
    with pytest.raises(ValueError, match="'X'. did not come. Those of several.*a `dataset`"):
        made[1].predict(two, by_name, draws=4)


def test_a_stream_refuses_them(made) -> None:
    model, _, _ = made
    names = ["exposure", "arm_of", "X"]
    stream = pmcl.fit_online(model, covariates=names, search=pmcl.Search(steps=1), **QUIET)
    for wrong, said in WRONG.values():
        with pytest.raises(pmcl.DataError, match=said):
            stream.update(wrong, progressbar=False)
    many = {k: np.concatenate([np.asarray(v)] * 30) for k, v in data().items()}
    many["exposure"][150] = -1.0
    with pytest.raises(pmcl.DataError, match=r"'y' of dataset '0': got 0 in row 150, .*'exposure'"):
        stream.update(many, progressbar=False)


def fit(model: pm.Model, **sources: object) -> pmcl.AmortizedPosterior:
    normal = {"exposure": np.ones((1, ROWS)), "arm_of": np.zeros((1, ROWS), int), "X": X[None]}
    given = {**normal, **sources}
    return pmcl.fit_amortized(
        model, covariates=given, network=NETWORK, steps=1, exchangeable="obs", **QUIET
    )


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"arm_of": np.array([[0, 1, 2, 0, 0, 1]])}, "simulated values of 'arm_of'.*from 0 to 1"),
        ({"arm_of": np.full((1, ROWS), 0.5)}, r"covariates\['arm_of'\]: expected integers"),
        ({"arm_of": np.full((1, ROWS), 2**40)}, r"covariates\['arm_of'\].*int32, which holds"),
        ({"exposure": np.full((1, ROWS), np.nan)}, r"covariates\['exposure'\]: expected finite"),
        ({"X": with_labels(["Placebo", "drug"])}, r"covariates\['X'\]: labels of dim 'arm'.*case"),
        ({"X": pd.DataFrame(X, columns=["a", "b"])}, r"covariates\['X'\]: labels of dim 'arm'"),
    ],
)
def test_sources_of_covariates_are_checked_too(made, sources, said) -> None:
    with pytest.raises(ValueError, match=said):
        fit(made[0], **sources)


def test_labelled_sources_are_brought_in_the_models_order(made) -> None:
    sources = {"exposure": np.ones(9), "arm_of": np.zeros(9, int)}
    backwards = with_labels(["drug", "placebo"]).expand_dims("dataset")
    for X_source in (backwards, pd.DataFrame(X, columns=["drug", "placebo"])):
        found = simulator_of(made[0], {**sources, "X": X_source}).covariates
        table = found.datasets["X"][0] if "X" in found.datasets else found.rows["X"]
        np.testing.assert_array_equal(table, X[:, ::-1])


def test_a_source_may_be_a_coordinate(made) -> None:
    sources = xr.Dataset(
        {"exposure": ("obs", np.ones(ROWS)), "X": (("obs", "arm"), X)},
        coords={"arm_of": ("obs", np.arange(ROWS) % 2), "arm": ["placebo", "drug"]},
    )
    found = simulator_of(made[0], sources).covariates
    np.testing.assert_array_equal(found.rows["arm_of"], np.arange(ROWS) % 2)


def test_json_is_what_the_standard_says() -> None:
    text = to_json({"khat": -np.inf, "of": [np.nan, 1.5, {"n": None}], 3: "x"})
    largest = np.finfo(float).max
    assert json.loads(text) == {"khat": -largest, "of": [None, 1.5, {"n": None}], "3": "x"}
    assert from_json(text) == json.loads(text)
    for wrong in ('{"a": NaN}', '{"a": 1, "a": 2}', "[-Infinity]", "{"):
        with pytest.raises(ValueError, match="key comes twice|expected a number|Expecting"):
            from_json(wrong)
