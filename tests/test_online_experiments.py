"""The experiments with streams in a short form: they run, resume and write their tables."""

import json

import generative
import numpy as np
import online_mnist
import online_streams
import pytest
from short_runs import run

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
    run(online_mnist, monkeypatch, "split", *common, "--methods", "VCL + random", "EWC")
    said = capsys.readouterr().out
    assert "VCL + random 0 1 [" not in said and "VCL + random 0 2 [" in said
    run(online_mnist, monkeypatch, "tables", *common)
    found = json.loads((tmp_path / "online_mnist.json").read_text())["split"]
    assert len(found["VCL + random"]["curve"]) == 5
    assert found["VCL + random"]["accuracy"][0] > 0.9
    assert "| VCL + random | " in (tmp_path / "online_mnist.md").read_text()


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
    size = generative.Size(2, 2, 16, 200, 250, 50, 20, 10, 100, 200)
    monkeypatch.setattr(generative, "SHORT", size)
    common = ["--short", "--out", tmp_path / "out", "--results", tmp_path, "--methods"]
    run(generative, monkeypatch, "digits", *common, "VCL", "naive")
    found = json.loads((tmp_path / "generative.json").read_text())["digits"]
    vcl, naive = found["VCL, seed 0"], found["naive, seed 0"]
    assert vcl["uncertainty"][0][0] < 1 and vcl["uncertainty"][1][1] < 1  # by chance: 2.3
    # what was learned first is remembered, and forgotten where nothing holds it
    assert vcl["final"][0]["mean"] > naive["final"][0]["mean"] + 20
    assert all(f["error"] < 5 for f in vcl["final"])
    assert (tmp_path / "generative_digits_VCL.png").stat().st_size > 3_000
    assert "| VCL | 0 |" in (tmp_path / "generative.md").read_text()
    # what was done is not done again
    capsys.readouterr()
    run(generative, monkeypatch, "digits", *common, "VCL", "naive")
    assert "..." not in capsys.readouterr().out
