"""Speed, memory and accuracy against peers: the same models, data and cores for all.

Every row is a process of its own and is kept when it is done, so that a call that was cut off goes
on where it stopped; what benchmarks/results/peers.json has is not measured anew. `--again` measures
rows of one other day a second time: tables then have both figures. All have the same core.

Networks (pmcl; BayesFlow 2 on JAX, with networks of the same size and with its own; sbi; sbijax)
are trained, then draw for ten datasets. The others, `pmcl.refine` among them, take one dataset
after another. Accuracy is the mean MMD^2 of the ten datasets against long chains of nutpie.

The environments of the peers are made by `make bench-env sbi-env .venv-marginal/.synced`; peers
whose environment is not there are left out, which the tables say.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import peer_tables
from peer_rows import PEERS, ROOT, Judge, Rows, one_core
from results import parser, write

ROWS, PREDICTORS = 100, 5
GROWTH = {
    "rows": [10, 1000],
    "parameters": [3, 102],  # an intercept, a slope and a scale are the fewest
}
GROUPS = [8, 64]
DATASETS = ["10", "100", "1000", "10000"]
BRIEF = "200"  # steps of training where only the cost is asked for


class Way(NamedTuple):
    """How posteriors are had: a script, its environment; numbers of steps if it has a network."""

    environment: str
    command: list[str]
    steps: tuple[int, ...] = ()
    grows: bool = False  # whether growth is measured


WAYS = {
    "pmcl": Way("main", ["peer_pmcl.py"], (500, 0), True),
    "nutpie": Way("main", ["peer_pymc.py", "nutpie"], grows=True),
    "pmcl.refine, no network": Way("main", ["peer_pymc.py", "refine"], grows=True),
    "pmcl, network of the peers' size": Way("main", ["peer_pmcl.py", "--large"], (500,)),
    "BayesFlow, its default networks": Way(
        ".venv-benchmarks", ["peer_bayesflow_draws.py", "--default-networks"], (1000, 3000), True
    ),
    "BayesFlow, set transformer": Way(".venv-benchmarks", ["peer_bayesflow_draws.py"], (2000,)),
    # batches of 200 and of 100 are their own
    "sbi": Way(".venv-sbi", ["peer_sbi.py", "--batch", "200"], (1000, 3000), True),
    "sbijax": Way(".venv-benchmarks", ["peer_sbijax.py", "--batch", "100"], (1000, 3000)),
    "PyMC NUTS": Way("main", ["peer_pymc.py", "nuts"]),
    "blackjax NUTS": Way("main", ["peer_pymc.py", "blackjax"]),
    "PyMC ADVI": Way("main", ["peer_pymc.py", "advi"]),
    "pymc-extras ADVI": Way(".venv-marginal", ["peer_pymc.py", "extras-advi"]),
    "pathfinder": Way(".venv-marginal", ["peer_pymc.py", "pathfinder"]),
}


class Row(NamedTuple):
    """A row of the tables: its name, and how it is measured."""

    label: str
    environment: str
    command: list[str]
    judge: Judge | None = None
    cached: bool = False


def accuracy(rows: Rows, name: str, way: Way) -> list[Row]:
    """Ten regressions of 100 rows and 7 parameters, from nothing."""
    test = rows.test(ROWS, PREDICTORS)
    judge, given = rows.against(test), ["--test", str(test)]
    if not way.steps:
        return [Row(name, way.environment, [*way.command, *given], judge, cached=True)]
    found = []
    for steps in way.steps:
        label = f"{name}, {steps} steps" if steps else f"{name}, its own number of steps"
        command = [*way.command, "--steps", str(steps), *given]
        found.append(Row(label, way.environment, command, judge))
    return found


def datasets(rows: Rows, name: str, way: Way) -> list[Row]:
    """100 draws of more and more datasets, of a network that was hardly trained."""
    del rows
    if not way.steps:
        return []
    command = [*way.command, "--steps", BRIEF, "--draws", "100", "--datasets", *DATASETS]
    return [Row(f"datasets, {name}", way.environment, command)]


def growth(rows: Rows, name: str, way: Way, kind: str) -> list[Row]:
    """Cost by rows of a dataset, or by parameters; networks are hardly trained."""
    found = []
    for value in GROWTH[kind]:
        n = value if kind == "rows" else ROWS
        predictors = value - 2 if kind == "parameters" else PREDICTORS
        size = ["--rows", str(n), "--predictors", str(predictors), "--steps", BRIEF]
        if way.steps:
            command = [*way.command, *size, "--datasets", "10"]
        else:
            test = rows.test(n, predictors)
            command = [*way.command, "--datasets", "3", "--test", str(test)]
        found.append(Row(f"{kind} {value}, {name}", way.environment, command))
    return found


def groups(rows: Rows, name: str, way: Way) -> list[Row]:
    """Cost and accuracy by groups, for what needs no network."""
    if way.steps:
        return []
    found = []
    for value in GROUPS:
        test = rows.test_groups(value)
        command = [*way.command, "--datasets", "3", "--test", str(test)]
        label = f"groups {value}, {name}"
        found.append(Row(label, way.environment, command, rows.against(test)))
    return found


PARTS: dict[str, Callable[[Rows, str, Way], list[Row]]] = {
    "accuracy": accuracy,
    "groups": groups,
    "rows": partial(growth, kind="rows"),
    "parameters": partial(growth, kind="parameters"),
    "datasets": datasets,
}


def of_part(rows: Rows, part: str, name: str) -> list[Row]:
    """Rows of one way in one part of the tables."""
    way = WAYS[name]
    return PARTS[part](rows, name, way) if part == "accuracy" or way.grows else []


def main() -> None:
    """Measure what is not there yet; write the JSON and the tables."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--runs", type=Path, default=ROOT / "out" / "peers")
    arguments.add_argument("--only", nargs="+", choices=list(WAYS), help="some ways")
    arguments.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments.add_argument("--limit", type=float, default=600.0, help="seconds a row may take")
    arguments.add_argument("--minutes", type=float, help="after these no row is begun")
    arguments.add_argument("--again", action="store_true", help="a second day")
    given = arguments.parse_args()
    one_core()
    rows = Rows(
        given.runs, given.out / PEERS, limit=given.limit, again=given.again,
        until=None if given.minutes is None else time.time() + 60 * given.minutes,
    )  # fmt: skip
    for part in given.parts:
        for name in given.only or WAYS:
            for row in of_part(rows, part, name):
                rows.row(*row)
    # what is no row any more goes; what was left for later stays as it was
    labels = {row.label for part in PARTS for name in WAYS for row in of_part(rows, part, name)}
    figures = {k: rows.known[k] for k in sorted(labels & {*rows.known})}
    remarks = peer_tables.ahead(figures)
    del sys.argv[1:]  # what was asked for now: rows have commands and days of their own
    write("peers", given.out, {"rows": figures}, *peer_tables.tables(figures), remarks=remarks)


if __name__ == "__main__":
    main()
