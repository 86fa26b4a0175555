"""The benchmark of peers: rows that were measured are kept, a second day goes beside the first."""

import json
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmark's modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def rows_of(tmp_path):
    """Rows in a folder of the test's, with a number of settings."""
    from peer_rows import Rows

    def make(*, limit=20.0, again=False, until=None, kept="none.json"):
        return Rows(tmp_path / "runs", tmp_path / kept, limit=limit, again=again, until=until)

    return make


@pytest.fixture
def script(tmp_path):
    """A peer that counts how often it was run, and says so in JSON."""
    path = tmp_path / "peer.py"
    path.write_text(
        "import json, pathlib, sys, time\n"
        "place = pathlib.Path(__file__).with_suffix('.txt')\n"
        "n = int(place.read_text()) + 1 if place.exists() else 1\n"
        "place.write_text(str(n))\n"
        "time.sleep(60 if 'slow' in sys.argv else 0)\n"
        "assert 'fails once' not in sys.argv or n > 1\n"
        "print('a library speaks'); print(json.dumps({'n': n}))\n"
    )
    return str(path)


def test_a_row_is_measured_once_and_again_only_on_another_day(rows_of, script, tmp_path):
    (first,) = rows_of().row("a", "main", [script])
    assert first["n"] == 1 and first["command"] == ["peer.py"]
    # the file of its own, and no process
    assert rows_of().row("a", "main", [script]) == [first]
    assert rows_of(again=True).row("a", "main", [script]) == [first]
    kept = {"rows": {"a": [first | {"made": "2020-01-01"}]}}
    (tmp_path / "peers.json").write_text(json.dumps(kept))
    (tmp_path / "runs" / "a.json").unlink()
    # from the JSON of an earlier day
    assert rows_of(kept="peers.json").row("a", "main", [script])[0]["n"] == 1
    both = rows_of(kept="peers.json", again=True).row("a", "main", [script])
    assert [one["n"] for one in both] == [1, 2] and both[0]["made"] == "2020-01-01"
    assert rows_of(kept="peers.json", again=True).row("a", "main", [script]) == both
    # another command is another measurement
    assert [one["n"] for one in rows_of().row("a", "main", [script, "other"])] == [3]


def test_what_failed_is_made_anew_and_what_took_too_long_is_not_in_that_time(rows_of, script):
    (failed,) = rows_of().row("a", "main", [script, "fails once"])
    assert "AssertionError" in failed["failed"]
    assert rows_of().row("a", "main", [script, "fails once"])[0]["n"] == 2
    (slow,) = rows_of(limit=0.5).row("b", "main", [script, "slow"])
    assert slow["over"] == 0.5
    assert rows_of(limit=0.5).row("b", "main", [script, "slow"]) == [slow]
    # with more time it is tried again
    (longer,) = rows_of(limit=0.6).row("b", "main", [script, "slow"])
    assert longer["over"] == 0.6
    assert rows_of(limit=0.5).row("b", "main", [script, "slow"]) == [longer]


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    import subprocess

    from results import run_json

    said, child = tmp_path / "child", "import time; time.sleep(1.5); open({!r}, 'w').close()"
    script = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child.format(str(said))!r}])\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        run_json([sys.executable, "-c", script], seconds=0.7)
    time.sleep(1.6)
    assert not said.exists()


def test_every_row_that_is_kept_is_one_of_the_tables(rows_of):
    import peers

    rows = rows_of()
    made = {
        r.label for part in peers.PARTS for n in peers.WAYS for r in peers.of_part(rows, part, n)
    }
    kept = json.loads((BENCHMARKS / "results" / "peers.json").read_text())["rows"]
    assert {*kept} <= made and "pmcl, 500 steps" in made and "groups 8, nutpie" in made


def test_what_cannot_be_measured_now_is_left(rows_of, script):
    assert rows_of(until=time.time() - 1).row("a", "main", [script]) == []
    assert rows_of().row("a", ".venv-of-nobody", [script]) == []


def test_tables_show_both_days_and_the_shortest_accurate_training():
    import peer_tables

    network = {
        "version": "v", "seconds_to_import": 1.0, "seconds_to_train": 10.0, "made": "2020-01-01",
        "seconds_plain_first": 2.0, "seconds_plain_again": 1.0, "peak_gib": 1.0,
        "mmd2_plain": 0.2, "steps_per_second": 5.0,
    }  # fmt: skip
    longer = network | {"mmd2_plain": 0.001, "seconds_to_train": 20.0}
    one_by_one = {
        "version": "w", "seconds_to_import": 1.0, "seconds_of_the_first": 5.0, "peak_gib": 0.5,
        "seconds_a_dataset": 0.05, "mmd2_plain": 0.0, "made": "2020-01-01",
        "seconds_of_the_first_cached": 2.0,
    }  # fmt: skip
    rows = {
        "pmcl, 500 steps": [network],
        "pmcl, its own number of steps": [longer, longer | {"made": "2020-01-02"}],
        "peer": [one_by_one],
        "slow": [{"over": 600.0, "made": "2020-01-01"}],
        "rows 10, peer": [one_by_one],
    }
    first = {line[0]: line for line in peer_tables.tables(rows)[0].cells()}
    assert set(first) == {"pmcl, its own number of steps", "peer", "slow"}
    ours = first["pmcl, its own number of steps"]
    assert ours[2:6] == ["yes", "0.0010 / 0.0010", "23 / 23", ""] and ours[-1].endswith(
        "2020-01-02"
    )
    assert first["peer"][4:7] == ["6.5", "3", "0.05"]
    assert first["slow"][2:4] == ["no", "over 600 s"]
    # without a network pmcl has nothing here, so nobody is ahead of it; a faster network is
    assert "nowhere" in "\n".join(peer_tables.ahead(rows))
    rows["other, 10 steps"] = [network | {"steps_per_second": 50.0, "peak_gib": 0.5}]
    said = peer_tables.ahead(rows)
    assert "- a network takes more steps a second: other (50); pmcl 5" in said
    assert "- a network needs less memory: other (0.5); pmcl 1" in said and len(said) == 4


def test_the_documented_tables_are_those_of_the_figures():
    import peer_tables

    rows = json.loads((BENCHMARKS / "results" / "peers.json").read_text())["rows"]
    text = (BENCHMARKS / "results" / "peers.md").read_text()
    for table in peer_tables.tables(rows):
        assert "\n".join(table.markdown()) in text, table.title
    for line in peer_tables.ahead(rows):
        assert line in text
