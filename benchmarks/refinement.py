"""Refinement without a network against nutpie, warm and cold, on six models, paired in one run.

nutpie: 4 chains of 400 tuning and 250 kept draws on all cores, one compilation for all datasets.
pmcl: without local steps (`steps=0`), and the default, 1,000 draws, from the prior. Gradients:
nutpie's leapfrog steps, tuning included; ours with a Hessian counted as one gradient for each
parameter.
"""

import json
import time
import warnings
from collections.abc import Callable

import numpy as np
from refinement_models import CASES
from results import Table, parser, write

import pmcl

ALIGNED = pmcl.Refine(steps=0)
DEFAULT = pmcl.Refine()


def timed(function: Callable) -> tuple[float, object]:
    """Seconds that a call takes, and what it returns."""
    begin = time.perf_counter()
    found = function()
    return time.perf_counter() - begin, found


def run(name: str, n: int) -> dict:
    """Time both sides on one model, and compare their draws."""
    model, data = CASES[name](n)

    def nuts():  # noqa: ANN202
        return pmcl.sample_reference(
            model, data, draws=250, tune=400, chains=4, random_seed=0, progressbar=False
        )

    covariates = [v.name for v in model.data_vars if v.name in data]
    cold_nuts, reference = timed(nuts)
    stats = reference["dataset_stats"].to_dataset()
    kept = float(reference["sample_stats"]["n_steps"].sum(("chain", "draw")).mean())
    row = {
        "datasets": n,
        "nutpie": {
            "cold_seconds": cold_nuts,
            "ms_per_dataset": 1e3 * float(np.median(stats["seconds"])),
            # Tuning is not kept; its trajectories are about as long.
            "gradients": kept * (400 + 250) / 250,
            "rhat_worst": float(stats["rhat"].max()),
            "divergences": int(stats["divergences"].sum()),
        },
    }
    compiling, compiled = timed(lambda: pmcl.compile_model(model, covariates=covariates))
    for label, settings in (("aligned", ALIGNED), ("default", DEFAULT)):

        def ours(settings: pmcl.Refine = settings):  # noqa: ANN202
            return pmcl.refine(
                compiled, data, draws=1000, refine=settings, random_seed=0, progressbar=False
            )

        cold, _ = timed(ours)
        warm, tree = timed(ours)
        found = tree["dataset_stats"].to_dataset()
        compared = pmcl.compare(tree, reference)
        row[label] = {
            "cold_seconds": compiling + cold,
            "ms_per_dataset": 1e3 * warm / n,
            "gradients": float(found["gradients"].mean()),
            "khat_below_0.7": float((found["khat"] < 0.7).mean()),
            "efficiency": float(found["efficiency"].mean()),
            "mmd2": float(compared["mean_mmd2"]),
            "null_mmd2": float(compared["mean_null_mmd2"]),
            "above_null": int(compared["above_null"].sum()),
        }
    return row


def main() -> None:
    """Run every model, print the table and write JSON after each."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=32)
    arguments.add_argument("--models", nargs="*", default=list(CASES))
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rows = {}
    for name in given.models:
        rows[name] = run(name, given.datasets)
        print(name, json.dumps(rows[name]), flush=True)
        write("refinement", given.out, {"models": rows})
    table = Table(
        f"ms a dataset, {given.datasets} datasets, warm (ratio to nutpie)",
        ["model", "nutpie", "aligned", "default", "k-hat < 0.7", "MMD2 (null)"],
        [
            [
                name,
                row["nutpie"]["ms_per_dataset"],
                *(
                    f"{ms:.3g} ({ms / row['nutpie']['ms_per_dataset']:.2g})"
                    for ms in (
                        row["aligned"]["ms_per_dataset"],
                        row["default"]["ms_per_dataset"],
                    )
                ),
                row["default"]["khat_below_0.7"],
                f"{row['default']['mmd2']:.2g} ({row['default']['null_mmd2']:.2g})",
            ]
            for name, row in rows.items()
        ],
    )
    write("refinement", given.out, {"models": rows}, table)


if __name__ == "__main__":
    main()
