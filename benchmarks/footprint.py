"""Memory and start: peak memory of pretraining, import time, cold start to the first adaptation.

The last with nothing compiled, and with JAX's compilation cache as a first process left it.

Each figure is measured in a process of its own.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from results import parser, run_json, table, write

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


def cold_start() -> dict[str, float]:
    """From a new process to the first adapted posterior, with the defaults."""
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
    )
    fitted = time.perf_counter()
    table = next(iter(bundled_tables().values()))
    posterior.adapt(draw_datasets(table, random_seed=0), name=table.name, progressbar=False)
    return {
        "import": imported - begin,
        "fit_amortized": fitted - imported,
        "adapt": time.perf_counter() - fitted,
        "total": time.perf_counter() - begin,
    }


def main() -> None:
    """Measure everything and write one JSON file."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--steps", type=int, default=3200)
    arguments.add_argument("--only", choices=["pretraining", "cold_start"])
    given = arguments.parse_args()
    if given.only:
        found = pretraining(given.steps) if given.only == "pretraining" else cold_start()
        print("\n" + json.dumps(found))
        return
    imports = {k: seconds_of(v) for k, v in IMPORTS.items()}
    base = imports["import pymc, jax"]
    me = [sys.executable, __file__, "--steps", str(given.steps), "--only"]
    memory = run_json([*me, "pretraining"])
    with tempfile.TemporaryDirectory() as folder:
        # the same twice: what was compiled is kept for the next process
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        start, cached = (run_json([*me, "cold_start"], **cache) for _ in range(2))
    table(
        "Start and memory",
        ["what", "value"],
        [
            *([f"{k} (s)", v] for k, v in imports.items()),
            [
                "import pymc, jax, pmcl, relative to pymc and jax",
                imports["import pymc, jax, pmcl"] / base,
            ],
            ["peak memory of pretraining experiment 1 (GiB)", memory["peak_gib"]],
            ["cold start to the first adapted posterior (s)", start["total"]],
            ["the same with JAX's compilation cache (s)", cached["total"]],
        ],
    )
    write(
        "footprint",
        given.out,
        {
            "import_seconds": imports,
            "import_ratio": imports["import pymc, jax, pmcl"] / base,
            "pretraining": memory,
            "cold_start": start,
            "cached_start": cached,
        },
    )


if __name__ == "__main__":
    main()
