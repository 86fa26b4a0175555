"""Where the rows of `peers.py` are kept: each in its own file when it is done, then in one JSON.

A row is a process, measured once, or on two days. Each measurement has its command, its day, the
version that it is of, and the load of the machine before it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from peer_problem import simulate, simulate_groups
from results import HERE, run_json, without_folders

ROOT = HERE.parent
PEERS = "peers.json"
TESTS = 10  # datasets that are judged

type Measured = list[dict]  # of one row: of one day, or of two
type Judge = Callable[[Path], dict]


def python_of(environment: str) -> str | None:
    """Interpreter of an environment; None where it has not been made."""
    if environment == "main":
        return sys.executable
    path = ROOT / environment / "bin" / "python"
    return str(path) if path.exists() else None


def one_core() -> None:
    """Keep this process, and all that it starts, on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Rows:
    """Rows of which some are there.

    Parameters
    ----------
    folder : Path
        For rows that were measured here, test data and reference draws.
    kept : Path
        A JSON of rows that were measured before, perhaps elsewhere.
    limit : float
        Seconds that a row may take.
    again : bool
        Whether rows of one other day are measured a second time.
    until : float, optional
        Clock (`time.time`) after which no row is begun.
    """

    def __init__(
        self, folder: Path, kept: Path, *, limit: float, again: bool, until: float | None
    ) -> None:
        self.folder, self.limit, self.again, self.until = folder, limit, again, until
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, Measured] = {}
        if kept.exists():
            self.known = json.loads(kept.read_text()).get("rows", {})
        for path in folder.glob("*.json"):
            self.known[path.stem] = json.loads(path.read_text())

    def row(
        self, name: str, environment: str, command: list[str], judge: Judge | None = None,
        cached: bool = False,
    ) -> Measured:  # fmt: skip
        """Return a row, measured if need be; empty where it cannot be, or is left for later.

        What failed, took longer than a limit that is now higher, or was made by another command,
        is made anew. `judge` makes figures of the file of draws that the process writes to `--out`;
        `cached` adds a second process with the caches of the first.
        """
        asked, today = without_folders(command), f"{datetime.now(UTC):%Y-%m-%d}"
        found = [m for m in self.known.get(name, []) if m["command"] == asked and self._stands(m)]
        other_day = len(found) == 1 and found[0]["made"] != today
        if found and not (self.again and other_day):
            return found
        python = python_of(environment)
        if python is None:
            print(f"{name}: left out, {environment} has not been made", flush=True)
            return found
        if self.until is not None and time.time() > self.until:
            print(f"{name}: left for the next call", flush=True)
            return found
        print(f"{name} ...", flush=True)
        about = {"command": asked, "made": today, "load_average": os.getloadavg()[0]}
        full = [python, "-W", "ignore", str(HERE / command[0]), *command[1:]]
        found = [*found, self._measure(full, judge, cached=cached) | about]
        print(json.dumps(found[-1]), flush=True)
        self.known[name] = found
        (self.folder / f"{name}.json").write_text(json.dumps(found, indent=1))
        return found

    def _stands(self, measured: dict) -> bool:
        """Whether a measurement need not be made anew."""
        return "failed" not in measured and measured.get("over", self.limit) >= self.limit

    def _measure(self, command: list[str], judge: Judge | None, *, cached: bool) -> dict:
        """Run a process with empty caches; judge what it drew."""
        with tempfile.TemporaryDirectory() as empty:
            caches = {
                "PYTENSOR_FLAGS": f"base_compiledir={empty}/pytensor",
                "NUMBA_CACHE_DIR": f"{empty}/numba",
            }
            if cached:  # JAX keeps none unless it is told to
                caches["JAX_COMPILATION_CACHE_DIR"] = f"{empty}/jax"
                caches["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
            draws = Path(empty) / "draws.npz"
            out = [] if judge is None else ["--out", str(draws)]
            try:
                found = run_json([*command, *out], seconds=self.limit, **caches)
                if cached:
                    two = run_json([*command, "--datasets", "1"], seconds=self.limit, **caches)
                    found["seconds_of_the_first_cached"] = two["seconds_of_the_first"]
            except subprocess.TimeoutExpired:
                return {"over": self.limit}
            except RuntimeError as error:
                # the error, without a trace that names places of this machine
                said = [line for line in str(error).splitlines() if "Error" in line.split(":")[0]]
                return {"failed": said[-1] if said else "no error of Python's"}
            return found if judge is None else found | judge(draws)

    def against(self, test: Path) -> Judge:
        """What judges draws of these datasets: the mean MMD^2 to long chains, by kind of draws."""

        def judge(path: Path) -> dict[str, float]:
            reference = self.reference(test)
            with np.load(path) as saved:
                return {f"mmd2_{k}": accuracy(saved[k], reference) for k in saved.files}

        return judge

    def test(self, rows: int, predictors: int) -> Path:
        """Datasets of the regression."""
        path = self.folder / f"test_{rows}_{predictors}.npz"
        if not path.exists():
            _, X, y = simulate(np.random.default_rng(7), TESTS, rows, predictors)
            np.savez(path, X=X, y=y)
        return path

    def test_groups(self, groups: int) -> Path:
        """Datasets of groups."""
        path = self.folder / f"test_groups_{groups}.npz"
        if not path.exists():
            np.savez(path, y=simulate_groups(np.random.default_rng(7), TESTS, groups))
        return path

    def reference(self, test: Path) -> np.ndarray:
        """Draws of long chains of nutpie: (dataset, draw, dim)."""
        path = self.folder / f"reference of {test.stem}.npz"
        if not path.exists():
            run_json(
                [sys.executable, "-W", "ignore", str(HERE / "peer_pymc.py"), "nutpie", "--test",
                 str(test), "--draws", "10000", "--out", str(path)],
            )  # fmt: skip
        return np.load(path)["plain"]


def accuracy(draws: np.ndarray, reference: np.ndarray) -> float:
    """Mean MMD^2 over the datasets that were drawn; the thousand draws may be in chains."""
    from pmcl.metrics import posterior_discrepancy

    rng = np.random.default_rng(0)
    found = [
        posterior_discrepancy(a, b, rng=rng).mmd2
        for a, b in zip(draws, reference[: len(draws)], strict=True)
    ]
    return float(np.mean(found))
