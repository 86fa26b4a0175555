"""What the checks of a posterior cost: their share of a draw of 100 datasets, warm.

Checks are what only judges: k-hat, efficiency and resolution, searches from elsewhere, tails, and
draws of wider proposals. Drawing anew where they find something is repair and is counted apart,
by what a call takes without any. Published networks, simulated data, 1,000 draws of each dataset.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

from results import Table, parser, write

import pmcl
from pmcl.data.simulated import simulated_task
from pmcl.refinement import correction, finishing, wider

MODELS = ("linear_regression", "logistic_regression", "racing_diffusion")
# where the functions that only judge are looked up
JUDGES = ((correction, "objections"), (correction, "elsewhere"), (finishing, "tails"),
          (wider, "around"), (wider, "_moved_by"))  # fmt: skip


@contextlib.contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Add up the seconds within the functions that judge, by name."""
    spent: dict[str, float] = {name: 0.0 for _, name in JUDGES}

    def clocked(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[name] += time.perf_counter() - begin

        return call

    old = [getattr(module, name) for module, name in JUDGES]
    for (module, name), function in zip(JUDGES, old, strict=True):
        setattr(module, name, clocked(name, function))
    try:
        yield spent
    finally:
        for (module, name), function in zip(JUDGES, old, strict=True):
            setattr(module, name, function)


def run(name: str, datasets: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of a draw and of each judge, for the network's own draws and for refined ones."""
    posterior = pmcl.models.load(name)
    task = simulated_task(
        posterior.simulator, posterior.structure.row, datasets, random_seed=5
    )[1]  # fmt: skip
    found = {}
    for kind, refine in (("network", False), ("as it is", "auto"), ("refined", True)):

        def draw(refine: Any = refine) -> None:
            posterior.sample(
                task, 1000, refine=refine, fallback=None, random_seed=1, progressbar=False
            )

        draw()
        best: dict[str, float] = {"draw": float("inf")}
        for _ in range(repeats):
            with timed() as spent:
                begin = time.perf_counter()
                draw()
                whole = time.perf_counter() - begin
            if whole < best["draw"]:
                checks = sum(spent.values())
                best = {"draw": whole, "checks": checks, "share": checks / whole}
                best |= spent
        found[kind] = best
    return found


def main() -> None:
    """Time all models, print a table and write it."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=100)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # only times matter
    rows = {name: run(name, given.datasets, given.repeats) for name in MODELS}
    table = Table(
        f"Seconds of a draw of {given.datasets} datasets, and of what only judges it",
        ["model", "draws", "whole", "checks", "share"],
        [
            [name, kind, one["draw"], one["checks"], f"{one['share']:.0%}"]
            for name, kinds in rows.items()
            for kind, one in kinds.items()
        ],
    )
    write("checks", given.out, {"datasets": given.datasets, "models": rows}, table)


if __name__ == "__main__":
    main()
