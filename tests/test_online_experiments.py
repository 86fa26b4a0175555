"""The experiments with streams in a short form: they run, resume and write their tables."""

import json

import generative
import numpy as np
import online_drift
import online_mnist
import online_streams
import pytest
from short_runs import run

import pmcl

pytestmark = pytest.mark.slow


def test_a_boundary_that_rotates_is_followed_where_the_past_is_forgotten(
    tmp_path, monkeypatch, capsys
):
    common = ["--out", tmp_path / "out", "--results", tmp_path, "--updates", 100]
    run(online_streams, monkeypatch, "rotating", *common)
    run(online_streams, monkeypatch, "tables", *common)
    found = json.loads((tmp_path / "online_streams.json").read_text())["rotating"]
    assert found["forgetting"] < 0.6 * found["static"]
    assert found["Ornstein-Uhlenbeck"] < 0.6 * found["static"]
    assert "| static |" in (tmp_path / "online_streams.md").read_text()
    assert (tmp_path / "online_rotating.png").stat().st_size > 5_000
    # what was done is not done again
    capsys.readouterr()
    run(online_streams, monkeypatch, "rotating", *common)
    assert "..." not in capsys.readouterr().out


@pytest.fixture
def rows():
    """Predictors of a made-up table."""
    return np.random.default_rng(0).normal(size=(260, 2))


COMMON = ["--seeds", 0, "--steps", 200]


def test_memories_are_compared_on_the_same_batches(rows, tmp_path, monkeypatch, capsys):
    def curve() -> tuple[np.ndarray, np.ndarray]:
        noise = np.random.default_rng(1).normal(size=len(rows))
        return rows, np.sin(2 * rows[:, 0]) + 0.1 * noise

    small = online_streams.Stream(curve, 0, (6, 6), 50, 20, 10)
    monkeypatch.setattr(online_streams, "MEMORY", {"yacht": small})
    common = ["--out", tmp_path / "out", "--results", tmp_path, *COMMON]
    for part in ("memory", "tables"):
        run(online_streams, monkeypatch, part, *common)
    found = json.loads((tmp_path / "online_streams.json").read_text())
    assert set(found["memory"]["yacht"]) == set(online_streams.MEMORIES)
    assert all(len(v) == 1 and v[0] > -1.6 for v in found["memory"]["yacht"].values())
    assert max(v[0] for v in found["memory"]["yacht"].values()) > -1.3  # of y alone: -1.42
    assert "| yacht | 200 |" in (tmp_path / "online_streams.md").read_text()
    capsys.readouterr()
    run(online_streams, monkeypatch, "memory", *common)
    assert "..." not in capsys.readouterr().out
    goes_on_where_it_was_cut_off(online_streams, ["memory"], 4 * 8, tmp_path, monkeypatch)


def test_drifts_are_compared_on_the_same_batches(rows, tmp_path, monkeypatch):
    """Labels whose boundary stays where it is: to forget half in every batch is a loss."""

    def line() -> tuple[np.ndarray, np.ndarray]:
        return rows, (rows[:, 0] > 0).astype(float)

    drifting = online_streams.Stream(line, 2, (4, 4), 50, 20, 10)
    monkeypatch.setattr(online_drift, "DRIFT", {"weather": drifting})
    drifts = {
        "static": [(None, pmcl.Static())],
        "forgetting": [(a, pmcl.BayesianForgetting(a)) for a in (0.01, 0.5)],
        "forgetting + memory": [(0.5, pmcl.BayesianForgetting(0.5))],
    }
    monkeypatch.setattr(online_drift, "DRIFTS", drifts)
    monkeypatch.setattr(online_drift, "RATES", (0.01, 0.5))
    common = ["--out", tmp_path / "out", "--results", tmp_path, *COMMON]
    full = ["--family", "full", "--drifts", "static", "forgetting"]
    for arguments in ([], full, ["tables"]):
        run(online_drift, monkeypatch, *arguments, *common)
    found = json.loads((tmp_path / "online_drift.json").read_text())["runs"]
    for how, loss in (("mean field, 200 steps", 0.1), ("full", 0.05)):
        later = found[how]["weather"]
        assert later["static"]["None"]["0"] > later["forgetting"]["0.5"]["0"] + loss
    text = (tmp_path / "online_drift.md").read_text()
    assert "## mean field, 200 steps" in text and " at 0.01 |" in text
    # a machine without the files of runs keeps their figures
    run(online_drift, monkeypatch, "tables", "--out", tmp_path / "new", "--results", tmp_path)
    assert json.loads((tmp_path / "online_drift.json").read_text())["runs"] == found
    assert (tmp_path / "online_drift.md").read_text() == text
    goes_on_where_it_was_cut_off(online_drift, [], 4 * 11, tmp_path, monkeypatch)


def goes_on_where_it_was_cut_off(module, part, updates, tmp_path, monkeypatch):
    """Cut off in its middle, a run goes on there and ends as it would have."""
    update, calls = pmcl.OnlinePosterior.update, [0]

    def counted(self, *arguments, **options):
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return update(self, *arguments, **options)

    monkeypatch.setattr(pmcl.OnlinePosterior, "update", counted)
    again = [*part, "--out", tmp_path / "again", "--every", 0, *COMMON]
    with pytest.raises(KeyboardInterrupt):
        run(module, monkeypatch, *again)
    run(module, monkeypatch, *again)
    assert calls[0] == updates + 1  # the one that was cut off
    for path in (tmp_path / "again" / "runs").iterdir():
        whole = json.loads((tmp_path / "out" / "runs" / path.name).read_text())
        assert json.loads(path.read_text())["log_predictive"] == whole["log_predictive"]


def test_images_are_learned_task_by_task_and_go_on_where_they_stopped(
    tmp_path, monkeypatch, capsys
):
    """Made-up images of which two pixels say the label, in place of MNIST's."""

    def images(n: int, seed: int) -> online_mnist.Images:
        rng = np.random.default_rng(seed)
        X = rng.random((n, 784)).astype(np.float32) / 50
        y = rng.integers(0, 10, n)
        X[np.arange(n), 60 * y] = 1.0
        X[np.arange(n), 60 * y + 7] = 1.0
        return online_mnist.Images(X, y)

    monkeypatch.setattr(online_mnist, "mnist", lambda: (images(3000, 0), images(400, 1)))
    small = online_mnist.Problem((20,), 2, 5, 60, 100, 10)
    monkeypatch.setitem(online_mnist.PROBLEMS, "split", small)
    common = ["--out", tmp_path / "out", "--results", tmp_path]
    stopped = online_mnist.tasks

    def two(*arguments):
        for i, task in enumerate(stopped(*arguments)):
            if i == 2:
                raise KeyboardInterrupt
            yield task

    monkeypatch.setattr(online_mnist, "tasks", two)
    with pytest.raises(KeyboardInterrupt):
        run(online_mnist, monkeypatch, "split", *common, "--methods", "VCL + random")
    monkeypatch.setattr(online_mnist, "tasks", stopped)
    capsys.readouterr()
    strengths = {"EWC": (pmcl.ElasticWeightConsolidation, (1.0, 100.0))}
    monkeypatch.setattr(online_mnist, "STRENGTHS", strengths)
    run(online_mnist, monkeypatch, "sweep", *common, "--on", "split")
    methods = ["VCL + random", "k-center alone", "EWC"]
    run(online_mnist, monkeypatch, "split", *common, "--methods", *methods)
    said = capsys.readouterr().out
    assert "VCL + random 0 1 [" not in said and "VCL + random 0 2 [" in said
    run(online_mnist, monkeypatch, "tables", *common)
    found = json.loads((tmp_path / "online_mnist.json").read_text())["experiments"]["split"]
    learned = {name: several["0"] for name, several in found["methods"].items()}
    assert len(learned["VCL + random"]["curve"]) == 5
    assert learned["VCL + random"]["accuracy"] > 0.9
    assert learned["k-center alone"]["accuracy"] > 0.9
    # a baseline's run is the best of its sweep
    assert len(found["sweep"]["EWC"]) == 2
    assert learned["EWC"]["accuracy"] == max(found["sweep"]["EWC"].values())
    text = (tmp_path / "online_mnist.md").read_text()
    assert "| VCL + random | " in text
    # what was measured stays, where its runs no longer are
    run(online_mnist, monkeypatch, "tables", "--out", tmp_path / "none", "--results", tmp_path)
    assert (tmp_path / "online_mnist.md").read_text() == text


def test_two_tasks_in_the_plane(tmp_path):
    found = online_mnist.toy(tmp_path)
    assert min(found["VCL"]) > 0.95
    assert (tmp_path / "online_toy.png").stat().st_size > 10_000


def test_a_generator_learns_one_label_after_another(tmp_path, monkeypatch, capsys):
    """Made-up images: bars whose place says the label, and whose length is what varies."""

    def images(n: int, seed: int) -> online_mnist.Images:
        rng = np.random.default_rng(seed)
        X, y = np.zeros((n, 28, 28), np.float32), rng.integers(0, 10, n)
        for one, label, length in zip(X, y, rng.integers(8, 28, n), strict=True):
            one[2 * label : 2 * label + 2, :length] = 1.0
        return online_mnist.Images(X.reshape(n, -1), y)

    monkeypatch.setattr(generative, "mnist", lambda: (images(3000, 0), images(400, 1)))
    # wide enough to leave something free for the second label: what the first needs is held
    size = generative.Size(2, 2, 32, 200, 900, 50, 20, 10, 100, 200)
    monkeypatch.setattr(generative, "SHORT", size)
    common = ["--short", "--out", tmp_path / "out", "--results", tmp_path, "--methods"]
    run(generative, monkeypatch, "digits", *common, "GVCL", "naive")
    found = json.loads((tmp_path / "generative.json").read_text())["runs"]
    gvcl, naive = found["digits_GVCL_0_10000"], found["digits_naive_0"]
    assert gvcl["uncertainty"][0][0] < 1 and gvcl["uncertainty"][1][1] < 1  # by chance: 2.3
    # what was learned first is remembered, and forgotten where nothing holds it
    assert gvcl["final"][0]["mean"] > naive["final"][0]["mean"] + 20
    assert all(f["error"] < 5 for f in gvcl["final"])
    assert (tmp_path / "generative_digits_GVCL.png").stat().st_size > 3_000
    assert "| GVCL, power 10000 | 0 |" in (tmp_path / "generative.md").read_text()
    # what was done is not done again
    capsys.readouterr()
    run(generative, monkeypatch, "digits", *common, "GVCL", "naive")
    assert "..." not in capsys.readouterr().out
