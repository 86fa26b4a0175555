"""The command: a model fitted, adapted, sampled and compared from a shell."""

import json
import re
from pathlib import Path

import h5py
import level_models as models
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from tiny_model import TINY

import pmcl
from pmcl.cli import main
from pmcl.cli.common import label_columns
from pmcl.cli.files import read_data, read_results, write_results
from pmcl.compile import compile_model
from pmcl.data import label_text
from pmcl.data.grouped import GroupedReader
from pmcl.data.reading import as_task
from pmcl.data.task import DataError, Layout
from pmcl.levels.sizes import Grouping, Groups


class Work:
    """A folder with a model, data and a state."""

    def __init__(self, path: Path):
        self.path = path
        self.file = path / "tiny.py"
        self.file.write_text(TINY)
        self.model = f"{self.file}:model"
        self.state = path / "state.zarr.zip"
        rng = np.random.default_rng(0)
        self.y = rng.normal([[0.5], [2.0]], 1, (2, 10))
        frame = pd.DataFrame({"who": np.repeat(["ann", "bob"], 10), "y": self.y.ravel()})
        frame.to_csv(path / "first.csv", index=False)
        renamed = frame.rename(columns={"who": "dataset"})
        renamed.to_parquet(path / "second.parquet")

    def __truediv__(self, name: str) -> str:
        return str(self.path / name)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Work:
    work = Work(tmp_path_factory.mktemp("work"))
    options = ["--steps", "600", "--seed", "1", "--quiet"]
    assert main(["fit", "--model", work.model, "--out", str(work.state), *options]) == 0
    return work


def test_a_model_is_fitted_over_lengths_and_gaps(work):
    out = work / "ragged.zarr.zip"
    options = ["--lengths", "5", "20", "--missing", "0.1", "--steps", "100", "--quiet"]
    assert main(["fit", "--model", work.model, "--out", out, *options]) == 0
    model = pmcl.models.named(work.model).model()
    assert "lengths 5 to 20; 10% missing" in repr(pmcl.load(out, model))


def answer(capsys) -> dict:
    """What a program reads: nothing but JSON on standard output."""
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_fit_adapt_sample_reference_compare(work, capsys):
    adapted = work / "adapted.zarr.zip"
    assert main(
        ["adapt", str(work.state), work / "first.csv", "--model", work.model, "--out", adapted,
         "--dataset", "who", "--steps", "30", "--strategy", "naive", "--json", "-q"]
    ) == 0  # fmt: skip
    told = answer(capsys)
    assert told["state"] == adapted
    (task,) = told["tasks"]
    assert task["task"] == "first" and task["datasets"] == 2 and task["steps"] <= 30
    # the state that was read is as it was
    assert len(pmcl.load(work.state, pmcl.models.named(work.model).model()).records) == 0

    draws = work / "draws.zarr"
    data = work / "second.parquet"
    asked = ["--model", work.model, "--out", draws, "--seed", "3", "--json", "-q"]
    assert main(["sample", adapted, data, *asked]) == 0
    told = answer(capsys)["datasets"]
    assert list(told) == ["ann", "bob"]
    assert all(v["khat"] < 0.7 and v["warning"] == "" for v in told.values())
    drawn = xr.open_datatree(draws, engine="zarr", consolidated=False)["posterior"]["mu"]
    # mu ~ N(1, 2), ten y ~ N(mu, 1)
    exact = (1 / 4 + work.y.sum(axis=1)) / (1 / 4 + 10)
    np.testing.assert_allclose(drawn.mean(("chain", "draw")), exact, atol=0.05)

    assert main(["reference", data, "--model", work.model, "--out", work / "nuts.nc", "-q"]) == 0
    assert main(["compare", draws, work / "nuts.nc", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.split("\n", 1)[1])
    assert found["agrees"] and found["datasets"]["ann"]["mmd2"] < 0.02

    page = work / "report.html"
    asked = ["--model", work.model, "--out", page, "--results", draws, "--no-calibration", "-q"]
    assert main(["report", adapted, *asked, "--reference", work / "nuts.nc"]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "In agreement with the reference on 2 datasets." in Path(page).read_text()


def test_tasks_in_turn_go_on_from_what_is_in_force(work, capsys):
    state = work.path / "turns.zarr.zip"
    state.write_bytes(work.state.read_bytes())
    tasks = [work / "second.parquet", work / "second.parquet"]
    more = ["--model", work.model, "--name", "u", "--name", "v", "--steps", "10", "-q"]
    checkpoint = work.path / "half-done"
    more += ["--strategy", "naive", "--checkpoint", str(checkpoint)]
    assert main(["adapt", str(state), *tasks, *more]) == 0
    said = capsys.readouterr().out
    assert "u: 2 datasets" in said and said.endswith(f"wrote {state}\n")
    found = pmcl.models.named(work.model).load(state)
    assert [r.name for r in found.records] == ["u", "v"] and len(found.memory) == 0
    assert isinstance(found.strategy, pmcl.Naive)
    assert not list(work.path.glob("half-done*"))


@pytest.mark.slow
def test_a_task_is_done_before_where_its_data_are_the_same(work, capsys):
    """A file of a known name and with other data was passed over, and its data lost."""
    state, path, out = work.path / "days.zarr.zip", work.path / "day.csv", work / "month.zarr.zip"
    state.write_bytes(work.state.read_bytes())
    rng = np.random.default_rng(3)
    days = [pd.DataFrame({"dataset": "u", "y": rng.normal(size=10)}) for _ in range(2)]
    more = ["-m", work.model, "--steps", "10", "-q", "--checkpoint", work / "half"]
    days[0].to_csv(path, index=False)
    asked = ["adapt", str(state), str(path), *more, "-o", out]
    assert main(asked) == 0 and main(asked) == 0
    assert "day: done before\n" in capsys.readouterr().err
    days[1].to_csv(path, index=False)
    assert main(asked) == 1
    assert "'day' was adapted to before, with other data" in capsys.readouterr().err
    assert main([*asked, "--name", "next day"]) == 0
    found = pmcl.models.named(work.model).load(out)
    assert [r.name for r in found.records] == ["day", "next day"]
    assert found.learned(days[1], "next day") and not found.learned(days[1], "another")
    # whichever dataset is written first
    two = pd.concat([days[0], days[1].assign(dataset="a")])
    found = found.adapt(two, name="two", steps=2, progressbar=False)
    assert found.learned(two.sort_values("dataset", kind="stable"), "two")
    with pytest.raises(DataError, match="'day' was adapted to before, with other data"):
        found.learned(days[1], "day")
    # a state that another command wrote is not gone on with
    capsys.readouterr()
    other = work / "other.zarr.zip"
    assert main(["fit", "-m", work.model, "-o", other, "--steps", "10", "--seed", "2", "-q"]) == 0
    assert main(["adapt", other, str(path), *more, "-o", out]) == 1
    assert "a state that does not come from the one given" in capsys.readouterr().err


def test_draws_that_should_not_be_trusted_are_named(work, capsys):
    far = pd.DataFrame({"dataset": "far", "y": np.full(10, 40.0)})
    far.to_csv(work / "far.csv", index=False)
    asked = ["--model", work.model, "--out", work / "far.nc", "--refine", "never", "-q"]
    # a network that has to know by itself where posteriors are
    network = pmcl.Network(pmcl.DeepSet(width=8, head_width=8), pmcl.CouplingFlow(layers=1), False)
    model = pmcl.models.named(work.model).model()
    poor = pmcl.fit_amortized(model, network=network, steps=1, random_seed=0, progressbar=False)
    pmcl.save(poor, work / "poor.zarr.zip")
    assert main(["sample", work / "poor.zarr.zip", work / "far.csv", *asked]) == 0
    said = capsys.readouterr()
    assert "not to be trusted (k-hat): far" in said.out
    warned = [
        line for line in said.err.splitlines() if line.startswith("pmcl sample: The posterior")
    ]
    assert len(warned) == 1 and "k-hat" in warned[0]


def test_draws_that_differ_end_with_status_1(work, capsys, tmp_path):
    rng = np.random.default_rng(0)
    for name, mean in (("a", 0.0), ("b", 1.0)):
        z = rng.normal(mean, 1, (4, 250, 2))
        data = xr.Dataset(
            {"mu": (("chain", "draw", "dataset"), z)}, coords={"dataset": ["ann", "bob"]}
        )
        tree = xr.DataTree.from_dict({"unconstrained_posterior": data})
        tree.to_netcdf(tmp_path / f"{name}.nc")
    assert main(["compare", str(tmp_path / "a.nc"), str(tmp_path / "b.nc")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "they do not agree" and said[1].startswith("ann ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adapt", "STATE", "none.csv", "-m", "MODEL"], "none.csv: expected a data file"),
        (["adapt", "STATE", "-m", "MODEL"], "at least one data file"),
        (["adapt", "STATE", "CSV", "-m", "MODEL"], "expected a column 'dataset'"),
        (["adapt", "STATE", "CSV", "-m", "MODEL", "--name", "a", "--name", "b"], "1 names, got 2"),
        (["adapt", "STATE", "CSV", "CSV", "-m", "MODEL"], "names of their own, got first, first"),
        (["adapt", "STATE", "CSV", "-m", "ar2"], "the state is of another model"),
        (["adapt", "CSV", "CSV", "-m", "MODEL"], "not a pmcl state"),
        (["sample", "STATE", "CSV", "-m", "MODEL", "-o", "CSV"], "is there already"),
        (["reference", "none.csv", "-m", "MODEL", "-o", "CSV"], "is there already"),
        (["sample", "STATE", "MODEL.py", "-m", "MODEL", "-o", "x.nc"], "expected one of .csv"),
        (["sample", "STATE", "CSV", "-m", "nothing", "-o", "x.nc"], "no published model"),
        (["models", "show", "nothing"], "no published model"),
        (["compare", "none.nc", "none.nc"], "expected results"),
        (["compare", "CSV", "CSV"], "could not be read as results"),
        (["fit", "-m", "MODEL:no", "-o", "x.zarr.zip"], "no published model"),
        (["fit", "-m", "MODEL", "-o", "STATE"], "is there already"),
        (["adapt", "STATE", "CSV", "-m", "MODEL", "-o", "CSV"], "is there already"),
        (["report", "STATE", "-m", "MODEL", "-o", "CSV"], "is there already"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(work, capsys, arguments, message):
    known = {
        "STATE": str(work.state),
        "CSV": work / "first.csv",
        "MODEL": work.model,
        "MODEL.py": str(work.file),
    }
    assert main([known.get(a, a) for a in arguments]) == 1
    said = capsys.readouterr()
    assert message in said.err and said.out == ""
    assert said.err.startswith(f"pmcl {arguments[0]}: ") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["frobnicate"], ["fit"], ["sample", "a", "b", "--refine", "maybe"]]
)
def test_what_is_not_understood_ends_with_status_2(capsys, arguments):
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""


def test_every_command_has_help(capsys):
    commands = ["demo", "publish", "fit", "adapt", "sample", "reference", "compare"]
    for command in [[c] for c in commands] + [["models", c] for c in ("list", "show", "check")]:
        assert main([*command, "--help"]) == 0
        said = capsys.readouterr().out
        assert " ".join(command) in said and "--" in said


def test_models_are_listed_shown_and_checked(capsys, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.py").write_text(TINY)
    folder = ["--folder", str(tmp_path)]
    assert main(["models", "list", *folder, "--json"]) == 0
    assert answer(capsys) == {"tiny": "A normal mean: what ten numbers have in common."}
    assert main(["models", "check", *folder]) == 1
    assert capsys.readouterr().out == "tiny: no card; write it with `pmcl publish tiny`\n"
    assert main(["models", "show", "tiny", *folder]) == 1
    assert main(["models", "check", "other", *folder]) == 1
    assert "no published model" in capsys.readouterr().out
    publish = ["publish", "tiny", *folder, "--steps", "400", "--simulations", "50", "-q"]
    status = main([*publish, "--json"])
    told = answer(capsys)["tiny"]
    assert status == int(bool(told["problems"])) and set(told["calibration"]["network"]["p"]) == {
        "mu"
    }
    assert main(["models", "check", *folder]) == 0
    capsys.readouterr()
    assert main(["publish", *folder]) == 0  # nothing is stale
    assert capsys.readouterr().out == "every card and state is of its model\n"
    assert main(["models", "show", "tiny", *folder]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "# tiny"


def test_names_of_datasets_are_text_as_in_the_file(tmp_path):
    names = ["1.1", "1.10", "007", "7", "1e3", "1000", "True", "true", "NA"]
    text = "who,y\n" + "".join(f"{n},{i}.5\n" for i, n in enumerate(names))
    (tmp_path / "d.csv").write_text(text)
    found = read_data(tmp_path / "d.csv", dataset="who")
    assert found["dataset"].tolist() == names
    np.testing.assert_array_equal(found["y"], np.arange(9) + 0.5)


@pytest.mark.parametrize(
    ("own", "cells", "read"),
    [
        ([0, 1, 2], ["02", "01", "00"], [2, 1, 0]),
        ([0.25, 0.5, 0.75, 1], ["0.25", "0.50", "0.75", "1.00"], [0.25, 0.5, 0.75, 1]),
        ([1, 2, 3], ["3.00", "2.00", "1.00"], [3, 2, 1]),
        ([1, 2, 3], ["01", "02", "03"], [1, 2, 3]),
        ([1, 2], [" 1", " 2"], [1, 2]),
        ([True, False], ["FALSE", "TRUE"], [False, True]),
        ([2, 1], ["1", "2"], [1, 2]),
        (["007", "7"], ["7", "007"], ["7", "007"]),  # the model's as they stand
        ([1, 2, 7], ["007", "7", "1"], ["007", "7", "1"]),  # two would be one
        (["a", "NA"], ["NA", "a"], ["NA", "a"]),
        (None, ["007", "NA"], ["007", "NA"]),
    ],
)
def test_labels_in_a_text_file_are_the_models_and_else_as_they_stand(tmp_path, own, cells, read):
    path = tmp_path / "d.csv"
    path.write_text("".join(["dataset,k,y\n", *(f"u,{c},1.5\n" for c in cells)]))
    assert read_data(path, labels={"k": own})["k"].tolist() == read


def test_values_go_by_labels_that_are_numbers_with_zeros_in_front(tmp_path):
    with pm.Model(coords={"month": [0, 1, 2]}) as model:
        mu = pm.Normal("mu", 0, 1, dims="month")
        pm.Normal("y", mu, 1, observed=np.zeros(3), dims="month")
    (tmp_path / "d.csv").write_text("dataset,month,y\nu,02,1\nu,01,2\nu,00,3\n")
    found = read_data(tmp_path / "d.csv", labels=label_columns(model))
    task = as_task(found, Layout.of(compile_model(model), None))
    np.testing.assert_array_equal(task.values["y"], [[3, 2, 1]])


def test_columns_of_names_are_those_of_dims_and_of_the_groups_index():
    model = models.counties()
    model.add_coord("length_only", length=3)
    assert label_columns(model) == {
        "county": tuple(range(6)),
        "row": tuple(range(10)),
        "length_only": None,
    }
    groups = Groups(2, 9, Grouping("county", "in_county", ("a",)))
    found = label_columns(model, groups)
    assert found["county"] is None and found["in_county"] is None


def test_groups_named_by_the_rows_index_are_as_in_the_file(tmp_path):
    compiled = compile_model(models.counties(), covariates=["in_county", "uranium"])
    groups = Groups(2, 9, Grouping("county", "in_county", ("a",)))
    path = tmp_path / "d.csv"
    labels = label_columns(compiled.model, groups)
    read = GroupedReader(Layout.of(compiled, "row"), "county", "in_county")
    path.write_text("dataset,y,uranium,in_county\nu,0,1,007\nu,1,2,7\n")
    assert read(read_data(path, labels=labels)).labels == (("007", "7"),)
    path.write_text("dataset,y,uranium,in_county\nu,0,1,10\nu,1,2,9\n")
    assert read(read_data(path, labels=labels)).labels == (("9", "10"),)


def test_netcdf_of_version_3_and_beside_other_groups_is_read(tmp_path):
    data = xr.Dataset({"y": (("dataset", "row"), [[1.0, 2, 3]])})
    data.to_netcdf(tmp_path / "old.nc", engine="scipy", format="NETCDF3_CLASSIC")
    data.to_netcdf(tmp_path / "d.nc")
    other = xr.Dataset({"z": ("row", [1.0, 2])})  # of another length than the root's
    other.to_netcdf(tmp_path / "d.nc", mode="a", group="log")
    data.to_zarr(tmp_path / "d.zarr", consolidated=False)
    other.to_zarr(tmp_path / "d.zarr", group="log", mode="a", consolidated=False)
    for name in ("old.nc", "d.nc", "d.zarr"):
        xr.testing.assert_identical(read_data(tmp_path / name).drop_attrs(), data)


def test_the_dim_of_datasets_has_its_name_in_arviz_groups_too(tmp_path):
    rows = ("country", "obs")
    groups = {
        "observed_data": xr.Dataset({"y": (rows, np.eye(2))}, coords={"country": ["a", "b"]}),
        "constant_data": xr.Dataset({"x": ("obs", [1.0, 2])}),
    }
    xr.DataTree.from_dict(groups).to_netcdf(tmp_path / "d.nc")
    found = read_data(tmp_path / "d.nc", dataset="country")
    assert found["observed_data/y"].dims == ("dataset", "obs")
    assert [*found["observed_data/dataset"].values] == ["a", "b"]
    with pytest.raises(DataError, match="expected a dim 'land'.*'country'"):
        read_data(tmp_path / "d.nc", dataset="land")


def test_a_column_called_dataset_gives_way_to_the_one_that_was_named(tmp_path):
    frame = pd.DataFrame({"dataset": ["u", "v"], "country": ["a", "b"], "y": [1, 2]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    found = read_data(tmp_path / "d.csv", dataset="country")
    assert found["dataset"].tolist() == ["a", "b"] and [*found] == ["dataset", "y"]
    arrays = frame.set_index("country").to_xarray()
    arrays.set_coords("dataset").to_netcdf(tmp_path / "d.nc")
    assert read_data(tmp_path / "d.nc", dataset="country")["dataset"].values.tolist() == ["a", "b"]
    arrays[["y"]].expand_dims(dataset=2).to_netcdf(tmp_path / "two.nc")
    with pytest.raises(pmcl.DataError, match="one dim of datasets, got 'country' and 'dataset'"):
        read_data(tmp_path / "two.nc", dataset="country")


@pytest.mark.parametrize("name", ["draws.nc", "draws.zarr"])
def test_labels_that_files_have_no_type_for_are_written_as_text(tmp_path, name):
    months = pd.period_range("2020-01", periods=2, freq="M")
    days = pd.date_range("2020-01-01", periods=2, tz="Europe/Berlin")
    coords = {"m": [*months], "d": [*days], "text": ["a", "b"]}
    b = xr.DataArray(np.zeros((2, 2, 2)), dims=[*coords], coords=coords, name="b")
    write_results(tmp_path / name, xr.DataTree.from_dict({"posterior": b.to_dataset()}))
    found = read_results(tmp_path / name)["posterior"]
    assert found["m"].values.tolist() == ["2020-01", "2020-02"]
    # compared as such everywhere
    assert label_text.text(found["d"].values) == label_text.text(days)
    assert found["text"].values.tolist() == ["a", "b"]


def test_data_files_of_every_kind_are_the_same_data(tmp_path):
    frame = pd.DataFrame({"dataset": ["a", "a", "b", "b"], "y": [1.0, 2.0, 3.0, 4.0]})
    frame.to_csv(tmp_path / "d.csv.gz", index=False)
    frame.to_csv(tmp_path / "d.tsv", sep="\t", index=False)
    frame.to_parquet(tmp_path / "d.parquet")
    for name in ("d.csv.gz", "d.tsv", "d.parquet"):
        pd.testing.assert_frame_equal(read_data(tmp_path / name), frame)
    data = xr.Dataset({"y": (("who", "obs"), [[1.0, 2.0], [3.0, 4.0]])}, coords={"who": ["a", "b"]})
    data.to_netcdf(tmp_path / "d.nc")
    data.to_zarr(tmp_path / "d.zarr", consolidated=False)
    for name in ("d.nc", "d.zarr"):
        found = read_data(tmp_path / name, dataset="who")
        assert list(found["dataset"].values) == ["a", "b"]
        np.testing.assert_array_equal(found["y"], data["y"])
    with pytest.raises(DataError, match="expected a column 'who' that tells"):
        read_data(tmp_path / "d.csv.gz", dataset="who")
    (tmp_path / "d.nc").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="could not be read"):
        read_data(tmp_path / "d.nc")


def test_warnings_are_said_in_a_line_and_those_of_libraries_are_not(work, capsys, tmp_path):
    frame = pd.DataFrame({"dataset": "ann", "y": [*work.y[0][:9], -999.0]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    out = ["--out", str(tmp_path / "d.nc"), "--draws", "50", "--quiet"]
    assert main(["reference", str(tmp_path / "d.csv"), "--model", work.model, *out]) == 0
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("pmcl") for line in said if line.strip())
    marked = [line for line in said if "Variable 'y' of dataset 'ann': got -999 in row 9" in line]
    assert len(marked) == 1 and marked[0].startswith("pmcl reference: ")


# --- options from a file, the state of the machine, completion ------------------------------------


@pytest.mark.slow
def test_options_come_from_a_file_and_those_of_the_command_line_first(work, capsys):
    told = work.path / "fit.yaml"
    out = work / "of-a-file.zarr.zip"
    told.write_text(f"model: {work.model}\nout: {out}\nsteps: 100\nlengths: [5, 20]\nquiet: true\n")
    assert main(["fit", "--settings", str(told), "--seed", "4", "--steps", "50"]) == 0
    posterior = pmcl.load(out, pmcl.models.named(work.model).model())
    assert (posterior.settings.steps, posterior.seed) == (50, 4)
    assert "lengths 5 to 20" in repr(posterior)

    told = work.path / "sample.json"
    draws = work / "of-a-file.zarr"
    asked = {"model": work.model, "out": draws, "draws": 30, "quiet": True}
    told.write_text(json.dumps(asked, default=str))
    data = work / "second.parquet"
    assert main(["sample", str(work.state), data, "--settings", str(told)]) == 0
    found = xr.open_datatree(draws, engine="zarr", consolidated=False)["posterior"]
    assert found.sizes["draw"] == 30


@pytest.mark.parametrize(
    ("name", "text", "status", "said"),
    [
        ("a.yaml", "stepz: 5", 2, "stepz"),
        ("b.json", '{"steps": "many"}', 2, "many"),
        ("c.yaml", "- steps", 1, "options by name"),
        ("d.ini", "", 1, ".json, .toml, .yaml"),
        ("e.yaml", None, 1, "No such file"),
    ],
)
def test_a_file_of_options_that_is_wrong_is_said(name, text, status, said, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    options = ["--model", "linear_regression", "--out", str(tmp_path / "s.zarr.zip")]
    assert main(["fit", *options, "--settings", str(path)]) == status
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_doctor_says_what_is_installed_and_what_is_kept(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("pmcl.cli.machine.default_folder", lambda: tmp_path / "jaxlib-1")
    (tmp_path / "jaxlib-1").mkdir()
    (tmp_path / "jaxlib-1" / "one").write_bytes(bytes(2**20))
    monkeypatch.setenv("PMCL_DATA", "somewhere")
    assert main(["doctor", "--json"]) == 0
    told = answer(capsys)
    assert told["system"]["pmcl"] == pmcl.__version__
    assert told["packages"]["numpy"] == np.__version__
    assert "cpu:0" in told["devices"] and told["environment"]["PMCL_DATA"] == "somewhere"
    assert told["kept"]["jaxlib-1"] == "1.0 MiB"
    assert main(["doctor"]) == 0
    assert "flowjax" in capsys.readouterr().out


def test_the_shell_completes_commands(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "--shell", "bash"]) == 0
    script = next(p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".bashrc")
    written = "".join(p.read_text() for p in tmp_path.rglob("*") if p.is_file())
    assert script and "doctor" in written and "--draws" in written


def test_the_commands_of_the_page_for_r_run_as_printed(work, monkeypatch, capsys):
    page = (Path(__file__).parents[1] / "docs" / "r.md").read_text()
    calls = re.findall(r"run\((\"(?:fit|sample)\".*?)\)\n", page, re.S)
    assert len(calls) == 2
    monkeypatch.chdir(work.path)
    Path("cars.py").write_text(TINY)
    frame = pd.DataFrame({"dataset": np.repeat(["a", "b"], 10), "y": work.y.ravel()})
    frame.to_csv("cars.csv", index=False)
    for call in calls:
        words = re.findall(r'"(.*?)"', call)
        assert main([*words, *(["--steps", "20"] if words[0] == "fit" else [])]) == 0
        told = answer(capsys)
    assert set(told["datasets"]["a"]) >= {"khat", "warning"}
    with h5py.File("draws.nc") as file:  # what ncdf4 reads
        found = file["posterior/mu"]
        assert found.shape == (1, 1000, 2)
        assert [d[0].name.split("/")[-1] for d in found.dims] == ["chain", "draw", "dataset"]
