"""Experiment 3 in its short form: it runs, resumes and writes its tables."""

import json

import pytest
import racing_diffusion
import stroop
from short_runs import check, run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


# five minutes of compiling; the panel's short form, of the same machinery, is always run
@pytest.mark.slow
def test_the_race(tmp_path, monkeypatch, data_folder):
    common = ["--short", "--seeds", 0, "--out", tmp_path / "out", "--results", tmp_path]
    run(racing_diffusion, monkeypatch, "continual", *common, "--methods", "adapt")
    tasks = ["simulated", "chetverikov_2017_flanker"]
    methods = {"paper": {"SB"}, "ours": {"SB", "adapt"}}
    found = check(tmp_path, "racing_diffusion", methods, tasks)
    assert found["methods"]["ours"]["adapt"]["refined_worst"] < 0.2


@pytest.mark.slow
def test_sources_that_are_never_adapted_to(tmp_path, monkeypatch, data_folder):
    common = ["--short", "--out", tmp_path / "out", "--results", tmp_path]
    run(racing_diffusion, monkeypatch, "unseen", *common)
    found = json.loads((tmp_path / "racing_diffusion.json").read_text())
    assert set(found["unseen"]["sources"]) == set(stroop.UNSEEN)
    assert found["unseen"]["khat_below_0.7"] > 0.5


@pytest.mark.slow
def test_what_the_race_leaves_to_the_second_model(tmp_path, monkeypatch, data_folder):
    common = ["--short", "--seeds", 0, "--out", tmp_path / "out", "--results", tmp_path]
    run(racing_diffusion, monkeypatch, "recovery", *common)
    run(racing_diffusion, monkeypatch, "timing", *common)
    found = json.loads((tmp_path / "racing_diffusion.json").read_text())
    assert found["recovery"]["sources"]["chetverikov_2017_flanker"]["participants"] == 3
    assert found["timing"]["NUTS, a participant"] > 0
