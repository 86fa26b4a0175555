"""Experiment 2 in its short form: it runs, resumes and writes its tables."""

import autoregressive_panel
import pytest
from short_runs import check, countries, run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


@pytest.mark.slow
def test_the_panel_and_its_forecast(tmp_path, monkeypatch, capsys):
    common = ["--short", "--seeds", 0, "--out", tmp_path / "out", "--results", tmp_path]
    run(autoregressive_panel, monkeypatch, "continual", *common, "--methods", "SC-ER", "adapt")
    run(autoregressive_panel, monkeypatch, "forecast", *common)
    assert "ours adapt 0: adapted: median" in capsys.readouterr().out
    tasks = ["simulated 1", "American Steel", "Atlantic Refining"]
    methods = {"paper": {"SB", "SC-ER"}, "ours": {"SB", "adapt"}}
    found = check(tmp_path, "autoregressive_panel", methods, tasks)
    assert found["with"].keys() >= {"pymc", "jax"} and found["made"].startswith("20")
    assert found["methods"]["ours"]["adapt"]["refined_worst"] < 0.2
    # a forecast of a series that the model fits: intervals hold about what they say
    assert found["forecast"]["intervals"]["10"]["95%"] > 0.6
    assert (tmp_path / "autoregressive_panel_forecast.png").stat().st_size > 10_000
    # what was done is not done again
    run(autoregressive_panel, monkeypatch, "continual", *common, "--methods", "SC-ER", "adapt")
    assert "..." not in capsys.readouterr().out


@pytest.mark.slow
def test_countries_from_a_file(tmp_path, monkeypatch):
    countries(tmp_path / "air.csv")
    common = ["--short", "--seeds", 0, "--countries", tmp_path / "air.csv"]
    monkeypatch.setattr(autoregressive_panel, "HERE", tmp_path / "experiments")
    common += ["--out", tmp_path / "out"]
    run(autoregressive_panel, monkeypatch, "continual", *common, "--methods", "naive")
    run(autoregressive_panel, monkeypatch, "forecast", *common)
    # other data has its own tables
    results = tmp_path / "out" / "panel-air" / "results"
    tasks = ["simulated 1", "Austria", "Norway"]
    methods = {"paper": {"SB"}, "ours": {"SB", "naive"}}
    found = check(results, "autoregressive_panel", methods, tasks)
    # fourteen years: one can be left out, ten cannot
    assert set(found["forecast"]["intervals"]) == {"1"}
