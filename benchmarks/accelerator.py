"""An accelerator beside the cores: pretraining with large batches, and refinement of many datasets.

Both run in processes of their own, with JAX on the cores (`JAX_PLATFORMS=cpu`) and on JAX's default
device; where that is the cores too, there is one row and no ratio.
"""

import json
import sys
import time
import warnings

import jax
import numpy as np
from pretraining import ours
from refinement_models import linear_regression
from results import Table, parser, run_json, write

import pmcl


def measured(batch: int, steps: int, datasets: int, draws: int) -> dict:
    """Steps of pretraining and refined datasets a second, on JAX's default device."""
    trained = ours(steps, batch)
    model, data = linear_regression(datasets)
    compiled = pmcl.compile_model(model, covariates=["X"])
    warnings.simplefilter("ignore", UserWarning)
    seconds = []
    for n in (min(datasets, 1024), datasets):  # the first compiles
        begin = time.perf_counter()
        tree = pmcl.refine(
            compiled, {k: v[:n] for k, v in data.items()}, draws=draws, random_seed=0,
            progressbar=False,
        )  # fmt: skip
        seconds.append(time.perf_counter() - begin)
    return {
        "device": jax.devices()[0].device_kind,
        "platform": jax.default_backend(),
        "pretraining_steps_per_second": trained["steps_per_second"],
        "refined_datasets_per_second": datasets / seconds[-1],
        "khat_below_0.7": float(np.mean(tree["dataset_stats"]["khat"] < 0.7)),
    }


def main() -> None:
    """Run on the cores and on the default device; write the ratio."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--batch", type=int, default=1024)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--datasets", type=int, default=10_000)
    arguments.add_argument("--draws", type=int, default=1000)
    arguments.add_argument("--one", action="store_true", help="this process's device, as JSON")
    given = arguments.parse_args()
    if given.one:
        print("\n" + json.dumps(measured(given.batch, given.steps, given.datasets, given.draws)))
        return
    command = [sys.executable, __file__, "--one"]
    for name in ("batch", "steps", "datasets", "draws"):
        command += [f"--{name}", str(getattr(given, name))]
    runs = {"cores": run_json(command, JAX_PLATFORMS="cpu")}
    default = run_json(command) if jax.default_backend() != "cpu" else None
    ratios = {}
    if default is not None:
        runs["accelerator"] = default
        for key in ("pretraining_steps_per_second", "refined_datasets_per_second"):
            ratios[key] = default[key] / runs["cores"][key]
    columns = list(runs["cores"])
    table = Table(
        f"Pretraining with batches of {given.batch}, refinement of {given.datasets} datasets",
        ["run", *columns],
        [[name, *(row[c] for c in columns)] for name, row in runs.items()],
    )
    if ratios:
        print(ratios)
    settings = {k: getattr(given, k) for k in ("batch", "steps", "datasets", "draws")}
    write("accelerator", given.out, {"settings": settings, "runs": runs, "ratios": ratios}, table)


if __name__ == "__main__":
    main()
