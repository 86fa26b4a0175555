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
from pmcl.demo.show import DemoResult, TaskScore, draw_figure, make_table

SCORE_KEYS = {
    *TaskScore._fields,
    "ratio_right_after",
    "ratio_after_all",
}


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Run the quick demo, once for all tests here."""
    folder = tmp_path_factory.mktemp("demo") / "nested" / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PMCL_DATA", raising=False)
        assert main(["demo", "--quick", "--out", str(folder), "--seed", "3"]) == 0
    return folder


def test_the_table_has_every_task_and_method_with_finite_numbers(out):
    table = json.loads((out / "table.json").read_text())
    assert math.isfinite(table["null_threshold"])
    found = [(score["method"], score["task"]) for score in table["scores"]]
    tasks = ["simulated", BUNDLED[0]]
    assert found == [(method, task) for method in ("naive", "replay") for task in tasks]
    for score in table["scores"]:
        assert set(score) == SCORE_KEYS
        numbers = [value for value in score.values() if not isinstance(value, str)]
        assert len(numbers) == 6 and all(map(math.isfinite, numbers))
        # a network that was hardly trained is near to NUTS: the search is what it begins with
        assert score["pretrained"] < 0.1
        assert score["ratio_after_all"] == pytest.approx(score["after_all"] / score["pretrained"])
    # after the last task there is nothing left to forget
    for score in table["scores"][1::2]:
        assert score["right_after"] == score["after_all"]


def test_the_draws_can_be_read_back_and_give_the_table_again(out):
    results = xr.open_datatree(out / "results.zarr").load()
    assert set(results.children) == {"pretrained", "naive", "replay", "nuts"}
    names = ["simulated 0", "simulated 1", f"{BUNDLED[0]} 0", f"{BUNDLED[0]} 1"]
    for tree in results.children.values():
        assert tree["posterior"]["dataset"].values.tolist() == names
        assert np.isfinite(tree["unconstrained_posterior"]["beta"]).all()
    assert results["nuts/posterior"].sizes["chain"] == QUICK.chains
    single = pmcl.one(results["replay"], names[-1])
    assert "dataset" not in single["posterior"].dims
    assert single["observed_data"]["y"].shape == (QUICK.rows,)

    for score in json.loads((out / "table.json").read_text())["scores"]:
        chosen = {"dataset": [name for name in names if name.startswith(score["task"])]}
        tree, reference = (results[k].sel(chosen) for k in (score["method"], "nuts"))
        compared = pmcl.compare(tree, reference, draws=QUICK.draws)
        assert float(compared["mmd2"].mean()) == pytest.approx(score["after_all"], rel=1e-9)


def test_the_figure_is_an_image(out):
    content = (out / "figure.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


def test_tasks_start_with_simulations_and_then_take_the_bundled_tables():
    tasks = demo_tasks(DemoSettings(datasets=3, rows=20), random_seed=1)
    assert list(tasks) == ["simulated", *BUNDLED] and len(BUNDLED) >= 4
    for name, task in tasks.items():
        assert task["X"].shape == (3, 20, 5) and task["y"].shape == (3, 20)
        assert task["dataset"].values.tolist() == [f"{name} {i}" for i in range(3)]


@pytest.mark.parametrize("package", ["matplotlib", "statsmodels"])
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


@pytest.fixture
def result() -> DemoResult:
    """Make up a result: one ratio below zero, as noise about zero gives, and one above one."""
    scores = (
        TaskScore("a", "naive", 0.2, 0.001, 0.1, 0.5),
        TaskScore("b", "naive", 0.4, 0.001, 0.02, 0.02),
        TaskScore("a", "replay", 0.2, 0.001, 0.1, -0.002),
        TaskScore("b", "replay", 0.4, 0.001, 0.04, 0.04),
    )
    rng = np.random.default_rng(0)
    trees = {}
    for i, name in enumerate(("pretrained", "naive", "replay", "nuts")):
        beta = rng.normal(i, 1, size=(1, 50, 2, 3))
        posterior = xr.Dataset(
            {"beta": (("chain", "draw", "dataset", "predictor"), beta)},
            coords={"dataset": ["a 0", "b 0"]},
        )
        trees[name] = xr.DataTree.from_dict({"posterior": posterior})
    return DemoResult(scores, 0.003, "b 0", xr.DataTree.from_dict(trees))


def test_the_printed_table_holds_ratios_and_medians(result):
    console = Console(file=io.StringIO(), width=160)
    console.print(make_table(result))
    lines = [line.split("│") for line in console.file.getvalue().splitlines()]
    rows = {cells[1].strip(): [c.strip() for c in cells[2:-1]] for cells in lines if len(cells) > 2}
    # ratios are 0.1 / 0.2, 0.5 / 0.2, 0.1 / 0.2, -0.002 / 0.2 and so on
    assert rows["a"] == ["0.2", "0.001", "0.5", "2.5", "0.5", "-0.01"]
    assert rows["b"] == ["0.4", "0.001", "0.05", "0.05", "0.1", "0.1"]
    assert rows["median"] == ["", "", "0.28", "1.3", "0.3", "0.045"]


def test_the_figure_copes_with_a_ratio_below_zero(result, tmp_path):
    assert draw_figure(result, tmp_path / "figure.png").stat().st_size > 10_000
