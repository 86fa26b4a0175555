"""What is compiled, and when: programs, seconds in XLA and CPU seconds of each call.

Every tree is measured in a process of its own, without a compilation cache; this one once more with
a cache that a process before it has filled. ``--against REVISION`` measures an earlier state of the
repository in the same run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from results import Table, parser, run_json, write

ROOT = Path(__file__).parents[1]
FIRST = ("fit", "adapt", "sample 5")
ROWS, PREDICTORS = 60, 5


class Compiled:
    """Counts XLA's programs, from when it is made."""

    def __init__(self) -> None:
        import jax

        self.programs, self.seconds = 0, 0.0
        self.names: Counter[str] = Counter()
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **about: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.programs += 1
            self.seconds += seconds
            self.names[str(about.get("fun_name", "?"))] += 1


def stages(names: list[str]) -> dict[str, dict]:
    """Run the calls of a first session, and those that follow; figures of each."""
    import numpy as np
    import pymc as pm

    import pmcl

    compiled = Compiled()
    found: dict[str, dict] = {}

    @contextmanager
    def stage(name: str):  # noqa: ANN202
        programs, seconds, cpu = compiled.programs, compiled.seconds, time.process_time()
        clock, known = time.perf_counter(), compiled.names.copy()
        yield
        found[name] = {
            "programs": compiled.programs - programs,
            "xla": compiled.seconds - seconds,
            "cpu": time.process_time() - cpu,
            "clock": time.perf_counter() - clock,
            "names": dict(compiled.names - known),
        }

    coords = {"obs": range(ROWS), "predictor": range(PREDICTORS)}
    with pm.Model(coords=coords) as model:
        x = pm.Data("X", np.zeros((ROWS, PREDICTORS)), dims=("obs", "predictor"))
        alpha = pm.Normal("alpha")
        beta = pm.Normal("beta", dims="predictor")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", alpha + x @ beta, sigma, observed=np.zeros(ROWS), dims="obs")

    def data(n: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Datasets of which some are far from the prior: every stage of refinement is needed."""
        rng = np.random.default_rng([seed, n])
        x = rng.normal(size=(n, ROWS, PREDICTORS)) * rng.choice([0.1, 1.0, 3.0], size=(n, 1, 1))
        noise = rng.standard_t(3, size=(n, ROWS)) * 0.5
        return {"X": x, "y": x @ rng.normal(size=PREDICTORS) + noise}

    quiet = {"progressbar": False}
    with stage("fit"):
        posterior = pmcl.fit_amortized(
            model, covariates={"X": pm.Normal.dist(0, 1)}, steps=200, random_seed=1, **quiet
        )
    with stage("adapt"):
        posterior = posterior.adapt(data(5), name="first", steps=50, random_seed=1, **quiet)
    with stage("sample 5"):
        tree = posterior.sample(data(5), random_seed=1, **quiet)
    later = {
        "sample 5, seed": lambda: posterior.sample(data(5), random_seed=2, **quiet),
        "sample 1": lambda: posterior.sample(data(1), random_seed=1, **quiet),
        "sample 2": lambda: posterior.sample(data(2), random_seed=1, **quiet),
        "sample 3": lambda: posterior.sample(data(3), random_seed=1, **quiet),
        "sample 16": lambda: posterior.sample(data(16), random_seed=1, **quiet),
        "sample 40": lambda: posterior.sample(data(40), random_seed=1, **quiet),
        "sample 1000": lambda: posterior.sample(data(1000), random_seed=1, **quiet),
        "log_prob": lambda: posterior.log_prob(tree, data(5)),
        "log_prob again": lambda: posterior.log_prob(tree, data(5, 1)),
        "predict": lambda: posterior.predict(data(5), random_seed=1),
        "predict again": lambda: posterior.predict(data(3), random_seed=3),
        "adapt again": lambda: posterior.adapt(data(5, 1), name="b", steps=50, **quiet),
        "adapt 40, 75 steps": lambda: posterior.adapt(data(40), name="c", steps=75, **quiet),
        "refine 5": lambda: pmcl.refine(model, data(5), random_seed=1, **quiet),
        "refine 40": lambda: pmcl.refine(model, data(40, 2), random_seed=2, **quiet),
        "reference 2": lambda: pmcl.sample_reference(model, data(2), random_seed=1, **quiet),
        "reference 3": lambda: pmcl.sample_reference(model, data(3), random_seed=2, **quiet),
    }
    for name, call in later.items():
        if not names or name in names:
            with stage(name):
                call()
    return found


def measure(tree: Path, names: list[str], cache: str | None = None) -> dict[str, dict]:
    """Measure a tree of the repository in a process of its own."""
    command = [sys.executable, __file__, "--child", *names]
    environment = {"PYTHONPATH": str(tree), "XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    if cache:
        environment |= {
            "JAX_ENABLE_COMPILATION_CACHE": "1",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    return run_json(command, **environment)


@contextmanager
def revision(name: str):  # noqa: ANN201
    """Give the repository as it was at a revision."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        run = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*run, "add", "--detach", str(path), name], check=True, capture_output=True)
        try:
            yield path
        finally:
            subprocess.run([*run, "remove", "--force", str(path)], check=True)


def total(found: dict[str, dict], what: str) -> float:
    """Sum over the three first calls."""
    return sum(found[name][what] for name in FIRST)


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--against", help="a revision of the repository to compare with")
    arguments.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.child is not None:
        warnings.simplefilter("ignore")
        print()
        print(json.dumps(stages(given.child)))
        return
    trees = {"this tree": measure(ROOT, [])}
    with tempfile.TemporaryDirectory() as cache:
        measure(ROOT, ["none"], cache)
        trees["this tree, warm cache"] = measure(ROOT, ["none"], cache)
    if given.against:
        with revision(given.against) as path:
            trees[given.against] = measure(path, [])
    rows = [
        (name, label, f["programs"], f["xla"], f["cpu"], f["clock"])
        for name in trees["this tree"]
        for label, found in trees.items()
        if (f := found.get(name)) is not None
    ]
    for label, found in trees.items():
        sums = (total(found, what) for what in ("programs", "xla", "cpu", "clock"))
        rows.append(("the three first", label, *sums))
    columns = ["call", "tree", "programs", "s in XLA", "CPU s", "s"]
    write("compiling", given.out, {"trees": trees}, Table("What is compiled", columns, rows))


if __name__ == "__main__":
    main()
