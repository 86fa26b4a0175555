"""The command ``pmcl`` and the demo: what it writes, and what it says when it cannot run."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

import pmcl
from pmcl.cli import main
from pmcl.demo.run import BUNDLED, QUICK, DemoSettings, demo_tasks
from pmcl.demo.show import DemoResult, TaskScore, make_table


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Run the quick demo, once for all tests here."""
    folder = tmp_path_factory.mktemp("demo") / "nested" / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PMCL_DATA", raising=False)
        assert main(["demo", "--quick", "--out", str(folder), "--seed", "3"]) == 0
    return folder


def test_the_table_has_every_task_with_figures_that_are_near_to_nuts(out):
    table = json.loads((out / "table.json").read_text())
    assert 0 < table["seconds"] < 10 and math.isfinite(table["null_threshold"])
    assert [score["task"] for score in table["scores"]] == ["simulated", BUNDLED[0]]
    for score in table["scores"]:
        assert set(score) == set(TaskScore._fields)
        # a network that was hardly trained is near to NUTS: the search is what it begins with
        assert score["mmd2"] < 0.1 and score["mmd2_adapted"] < 0.1
        assert 0.5 < score["efficiency"] <= 1


def test_the_draws_can_be_read_back_and_give_the_table_again(out):
    results = xr.open_datatree(out / "results.zarr").load()
    assert set(results.children) == {"network", "adapted", "nuts"}
    names = ["simulated 0", "simulated 1", f"{BUNDLED[0]} 0", f"{BUNDLED[0]} 1"]
    for tree in results.children.values():
        assert tree["posterior"]["dataset"].values.tolist() == names
        assert np.isfinite(tree["unconstrained_posterior"]["beta"]).all()
    assert results["nuts/posterior"].sizes["chain"] == QUICK.chains
    single = pmcl.one(results["adapted"], names[-1])
    assert "dataset" not in single["posterior"].dims
    assert single["observed_data"]["y"].shape == (QUICK.rows,)

    compared = pmcl.compare(results["adapted"], results["nuts"], draws=QUICK.draws)
    for score in json.loads((out / "table.json").read_text())["scores"]:
        chosen = {"dataset": [name for name in names if name.startswith(score["task"])]}
        found = float(compared.sel(chosen)["mmd2"].mean())
        assert found == pytest.approx(score["mmd2_adapted"], rel=1e-9)


def test_the_state_is_one_of_the_published_model_and_the_page_is_there(out):
    model = pmcl.models.find("linear_regression").model(rows=QUICK.rows)
    posterior = pmcl.load(out / "posterior.zarr.zip", model)
    assert [record.name for record in posterior.records] == ["simulated", BUNDLED[0]]
    assert "<html" in (out / "report.html").read_text()[:200]


def test_the_figure_is_an_image(out):
    content = (out / "figure.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


def test_tasks_start_with_simulations_and_then_take_the_bundled_tables():
    tasks = demo_tasks(DemoSettings(datasets=3, rows=20), random_seed=1)
    assert list(tasks) == ["simulated", *BUNDLED] and len(BUNDLED) >= 4
    for name, task in tasks.items():
        assert task["X"].shape == (3, 20, 5) and task["y"].shape == (3, 20)
        assert task["dataset"].values.tolist() == [f"{name} {i}" for i in range(3)]


@pytest.mark.parametrize("package", ["matplotlib", "statsmodels", "jinja2"])
def test_a_missing_extra_is_named_before_anything_is_done(monkeypatch, capsys, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)  # what a failed import looks like
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert f'the demo needs {package}, which is not installed: pip install "pmcl[demo]"' in said.err
    assert said.out == "" and not out.exists()


def test_the_version_is_told_without_loading_pymc_or_jax():
    code = (
        "import sys; from pmcl.cli import main\n"
        "try: main(['--version'])\n"
        "finally: print(sorted({'pymc', 'jax', 'arviz'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n")[:2] == [f"pmcl {pmcl.__version__}", "[]"]


def test_the_module_runs_as_a_command_and_needs_one():
    found = subprocess.run(
        [sys.executable, "-m", "pmcl.cli"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2 and "COMMAND" in found.stderr


def test_the_printed_table_fits_a_terminal():
    scores = (TaskScore("modechoice", 0.97, 0.98, 0.0123, -0.0004, 0.0001, 0),
              TaskScore("a", 0.5, 0.6, 0.2, 0.1, 0.001, 3))  # fmt: skip
    result = DemoResult(scores, 0.003, "a 0", 0.0027, xr.DataTree())
    console = Console(file=io.StringIO(), width=80)
    console.print(make_table(result))
    said = console.file.getvalue()
    lines = [line.split("│") for line in said.splitlines()]
    rows = {cells[1].strip(): [c.strip() for c in cells[2:-1]] for cells in lines if len(cells) > 2}
    assert rows["modechoice"] == ["0.97", "0.98", "0.0123", "-0.0004", ""]
    assert rows["a"] == ["0.50", "0.60", "0.2000", "0.1000", "3"]
    assert "2.7 ms a dataset" in " ".join(said.split())
