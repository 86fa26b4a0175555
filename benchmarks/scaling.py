"""Refinement by the number of datasets: time for each, warm, and peak memory (linear regression).

One compilation serves all; sixteen datasets at a time go through a stage.
"""

import resource
import time
import warnings

import numpy as np
from refinement_models import linear_regression
from results import Table, parser, write

import pmcl

SETTINGS = {"aligned": pmcl.Refine(steps=0), "full": pmcl.Refine(enough=2.0)}


def main() -> None:
    """Refine more and more datasets, print the table and write JSON."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, nargs="+", default=[16, 128, 1024])
    arguments.add_argument("--draws", type=int, default=1000)
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    model, data = linear_regression(max(given.datasets))
    compiled = pmcl.compile_model(model, covariates=["X"])
    rows = []
    for n in given.datasets:
        some = {k: v[:n] for k, v in data.items()}
        for label, settings in SETTINGS.items():
            seconds = []
            for _ in range(2):  # the first compiles what the numbers before it did not need
                begin = time.perf_counter()
                tree = pmcl.refine(
                    compiled, some, draws=given.draws, refine=settings, random_seed=0,
                    progressbar=False,
                )  # fmt: skip
                seconds.append(time.perf_counter() - begin)
            rows.append(
                {
                    "datasets": n,
                    "stages": label,
                    "ms_per_dataset": 1e3 * seconds[1] / n,
                    "first_seconds": seconds[0],
                    "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                    "khat_below_0.7": float(np.mean(tree["dataset_stats"]["khat"] < 0.7)),
                }
            )
            print(rows[-1], flush=True)
    columns = list(rows[0])
    cells = [[r[c] for c in columns] for r in rows]
    table = Table("Refinement by number of datasets", columns, cells)
    write("scaling", given.out, {"draws": given.draws, "rows": rows}, table)


if __name__ == "__main__":
    main()
