"""What the experiments share, and what they say of their data."""

import json

import continual
import monitoring
import numpy as np
import pytest
import stroop
import tables
from scipy import stats


def test_participants_are_those_of_the_files(data_folder):
    sizes = {s: stroop.participants(s).sizes["dataset"] for s in stroop.SOURCES}
    assert list(sizes.values()) == [58, 47, 47, 60, 38, 38, 38, 38]
    one = stroop.participants("pratte_2010_e1_simon")
    assert one["y"].shape == (38, 180) and (one["incongruent"].sum("trial") == 90).all()
    y = np.abs(one["y"])
    assert float(y.min()) > 0 and float(y.max()) < 5
    # an error is a negative time
    table = stroop.trials("vonbastian_2016_simon")
    assert 0.01 < (table["y"] < 0).mean() < 0.1
    trials = [d.sizes["trial"] for d in stroop.everyone("vonbastian_2016_flanker").values()]
    assert set(trials) == {96}


def test_how_to_get_the_trials_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PMCL_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="acdc-database.*columns participant, congruency"):
        stroop.folder()


def test_the_ratio_is_of_one_fixed_baseline(tmp_path):
    runs = continual.Runs(tmp_path, [], lambda: None, lambda settings, seed: None)
    made = []
    for _ in range(2):
        found = runs.kept("one thing", lambda: made.append(1) or {"tasks": {}})
    assert len(made) == 1 and found["tasks"] == {} and found["with"]["jax"]
    values = {"adapted_mmd2": 0.02}
    assert continual.ratio(values, {"adapted_mmd2": 0.1}, "adapted") == pytest.approx(0.2)


def test_streams_change_as_they_say():
    calm, noisy, moved, heavy = (monitoring.stream(c, 3) for c in monitoring.CHANGES)
    before, after = slice(None, monitoring.CHANGE), slice(monitoring.CHANGE, None)

    def fits(data, which):
        """Slopes, and sd of what is left, by least squares on all rows of a half."""
        X = data["X"].values[which].reshape(-1, monitoring.PREDICTORS)
        X = np.column_stack([np.ones(len(X)), X])
        y = data["y"].values[which].ravel()
        slopes, *_ = np.linalg.lstsq(X, y, rcond=None)
        return slopes[1:], (y - X @ slopes).std()

    slopes, sd = fits(calm, before)
    for data in (calm, noisy, moved, heavy):
        np.testing.assert_allclose(fits(data, before)[0], slopes, atol=0.1 * sd)
    assert fits(calm, after)[1] == pytest.approx(sd, rel=0.05)
    assert fits(noisy, after)[1] == pytest.approx(2 * sd, rel=0.05)
    shift = fits(moved, after)[0] - slopes
    assert abs(shift[0]) == pytest.approx(2, abs=0.1) and np.abs(shift[1:]).max() < 0.1
    kurtosis = [stats.kurtosis(d["X"].values[after].ravel()) for d in (calm, heavy)]
    assert kurtosis[0] < 0.2 and kurtosis[1] > 5


def test_tables_keep_what_is_not_measured_again(tmp_path):
    def measured(name: str, ratio: float) -> None:
        row = {"adapted_ratio": ratio, "adapted_mmd2": ratio}
        run = {"version": "0.1", "tasks": {"simulated": row, "real": row}}
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps(run))

    def table() -> dict:
        tables.write(tmp_path / "runs", tmp_path, "trial", "python trial.py")
        methods = json.loads((tmp_path / "trial.json").read_text())["methods"]["ours"]
        return {k: (row["seeds"], row["adapted_median"]) for k, row in methods.items()}

    runs = tmp_path / "runs"
    runs.mkdir()
    for name, ratio in [("ours_naive_0", 1.0), ("ours_naive_1", 3.0), ("ours_replay_0", 0.5)]:
        measured(name, ratio)
    assert table() == {"naive": (2, 2.0), "replay": (1, 0.5)}
    for path in runs.iterdir():
        path.unlink()
    # one seed does not replace two; what is measured again replaces what was
    for name, ratio in [("ours_naive_0", 9.0), ("ours_replay_0", 0.4), ("ours_EWC_0", 0.7)]:
        measured(name, ratio)
    assert table() == {"naive": (2, 2.0), "replay": (1, 0.4), "EWC": (1, 0.7)}
