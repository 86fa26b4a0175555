"""Memory and start: peak memory of pretraining, import time, cold start to the first adaptation.

The last with nothing compiled, and with JAX's compilation cache as a first process left it; with
the default numbers of steps, and with the demo's. Each figure is measured in a process of its own.
"""

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

from results import Table, parser, run_json, write

IMPORTS = {
    "import pymc, jax": "import pymc, jax",
    "import pmcl": "import pmcl",
    "import pymc, jax, pmcl": "import pymc, jax, pmcl",
    "import pmcl, and name all it offers": "import pmcl; [getattr(pmcl, n) for n in pmcl.__all__]",
}


def seconds_of(statement: str, repeats: int = 3) -> float:
    """Shortest time of a statement in a new process."""
    code = (
        "import time, json; t = time.perf_counter(); "
        f"{statement}; print(); print(json.dumps({{'s': time.perf_counter() - t}}))"
    )
    return min(run_json([sys.executable, "-c", code])["s"] for _ in range(repeats))


def pretraining(steps: int) -> dict[str, float]:
    """Peak resident memory of pretraining the network of experiment 1."""
    import resource

    sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
    import pymc as pm

    import pmcl
    from pmcl.demo.model import linear_regression_model

    begin = time.perf_counter()
    pmcl.fit_amortized(
        linear_regression_model(),
        covariates={"X": pm.Normal.dist(0, 1)},
        exchangeable="obs",
        network=pmcl.Network(
            pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128)
        ),
        steps=steps,
        batch_size=32,
        random_seed=0,
        progressbar=False,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"peak_gib": peak, "seconds": time.perf_counter() - begin}


def cold_start(pretraining: int | None = None, adaptation: int | None = None) -> dict[str, float]:
    """From a new process to the first adapted posterior, with some steps or the default ones.

    And how good the network's own draws are then, for the datasets that it was adapted to.
    """
    begin = time.perf_counter()
    import pymc as pm

    import pmcl
    from pmcl.demo.model import linear_regression_model
    from pmcl.demo.tables import bundled_tables, draw_datasets

    imported = time.perf_counter()
    posterior = pmcl.fit_amortized(
        linear_regression_model(),
        covariates={"X": pm.Normal.dist(0, 1)},
        exchangeable="obs",
        random_seed=0,
        progressbar=False,
        **({} if pretraining is None else {"steps": pretraining}),
    )
    fitted = time.perf_counter()
    table = next(iter(bundled_tables().values()))
    data = draw_datasets(table, random_seed=0)
    posterior = posterior.adapt(
        data, name=table.name, progressbar=False,
        **({} if adaptation is None else {"steps": adaptation}),
    )  # fmt: skip
    adapted = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        stats = posterior.sample(data, 1000, refine=False, random_seed=0)["dataset_stats"]
    return {
        "import": imported - begin,
        "fit_amortized": fitted - imported,
        "adapt": adapted - fitted,
        "total": adapted - begin,
        "pretraining_steps": posterior.pretraining[0].steps,
        "adaptation_steps": posterior.records[0].record.steps,
        "khat_highest": float(stats["khat"].max()),
        "efficiency_mean": float(stats["efficiency"].mean()),
    }


def main() -> None:
    """Measure everything and write one JSON file."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--steps", type=int, default=3200)
    arguments.add_argument("--only", choices=["pretraining", "start"])
    arguments.add_argument("--of-start", type=int, nargs="*", default=[], help="steps of `start`")
    given = arguments.parse_args()
    if given.only:
        measures = {
            "pretraining": lambda: pretraining(given.steps),
            "start": lambda: cold_start(*given.of_start),
        }
        print("\n" + json.dumps(measures[given.only]()))
        return
    from pmcl.demo.run import DemoSettings  # not above: the processes that are timed import it

    demo = DemoSettings()
    kinds = {"default steps": (), "the demo's steps": (demo.steps, 200)}
    imports = {k: seconds_of(v) for k, v in IMPORTS.items()}
    base = imports["import pymc, jax"]
    me = [sys.executable, __file__, "--steps", str(given.steps), "--only"]
    memory = run_json([*me, "pretraining"])
    starts = {}
    for label, steps in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            # the same twice: what was compiled is kept for the next process
            cache = {
                "JAX_COMPILATION_CACHE_DIR": folder,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
            for kind in ("cold", "cached"):
                starts[f"{label}, {kind}"] = run_json(
                    [*me, "start", "--of-start", *map(str, steps)], **cache
                )
    ratio = imports["import pymc, jax, pmcl"] / base
    table = Table(
        "Start and memory",
        ["what", "value"],
        [
            *([f"`{k}`, s", v] for k, v in imports.items()),
            ["`import pymc, jax, pmcl`, relative to pymc and jax", ratio],
            ["peak memory of pretraining experiment 1, GiB", memory["peak_gib"]],
        ],
    )
    columns = list(next(iter(starts.values())))
    by_part = Table(
        "From nothing to the first adapted posterior, seconds; then steps, and the network's own "
        "draws for these datasets",
        ["start", *columns],
        [[k, *(v[c] for c in columns)] for k, v in starts.items()],
    )
    figures = {"import_seconds": imports, "import_ratio": ratio, "pretraining": memory}
    write("footprint", given.out, {**figures, "starts": starts}, table, by_part)


if __name__ == "__main__":
    main()
