"""One table of speed and accuracy against peers: the same regression, data and cores for all.

Each figure is of a process of its own, and is kept in `--runs` with the command that made it, so
that a call that was cut off goes on where it stopped. Amortized: pmcl (the network of experiment 1,
and its default network), BayesFlow 2 on JAX (as many couplings) and sbi. One dataset at a time:
PyMC's NUTS, nutpie, ADVI and pathfinder. Accuracy is the mean MMD^2 of ten datasets against long
chains of nutpie.

The environments of the peers are made by `make bench-env sbi-env .venv-marginal/.synced`; peers
whose environment is not there are left out, which the table says.
"""

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from peer_problem import simulate
from results import HERE, Table, parser, run_json, without_folders, write

ROOT = HERE.parent
ROWS, PREDICTORS = 100, 5
GROWTH = {
    "rows": [10, 100, 1000, 10_000],
    "parameters": [3, 22, 202],  # an intercept, a slope and a scale are the fewest
}
DATASETS = [10, 100, 1000, 10_000, 100_000]
DRAWS_OF_MANY = 100
STEPS = [1000, 4000, 10_000]
ACCURATE = 0.01  # mean MMD^2
AMORTIZED = {
    "pmcl": ("main", ["peer_pmcl.py"]),
    "pmcl, default network": ("main", ["peer_pmcl.py", "--default-network"]),
    "BayesFlow": (".venv-benchmarks", ["peer_bayesflow_draws.py"]),
    "sbi": (".venv-sbi", ["peer_sbi.py"]),
}
ONE_BY_ONE = {
    "PyMC NUTS": ("main", "nuts"),
    "nutpie": ("main", "nutpie"),
    "PyMC ADVI": ("main", "advi"),
    "pathfinder": (".venv-marginal", "pathfinder"),
}


def python_of(environment: str) -> str | None:
    """Interpreter of an environment; None where it has not been made."""
    if environment == "main":
        return sys.executable
    path = ROOT / environment / "bin" / "python"
    return str(path) if path.exists() else None


class Runs:
    """Runs kept as JSON files."""

    def __init__(self, folder: Path, *, short: bool):
        self.folder, self.short = folder, short
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, environment: str, command: list[str]) -> dict | None:
        """Return a run from its file, or make it; None where its environment is not there.

        What failed, or was made by another command, is made again.
        """
        path = self.folder / f"{name}.json"
        asked = without_folders(command)
        if path.exists():
            found = json.loads(path.read_text())
            if "failed" not in found and found["command"] == asked:
                return found
        python = python_of(environment)
        if python is None:
            print(f"{name}: left out, {environment} has not been made", flush=True)
            return None
        print(f"{name} ...", flush=True)
        load = os.getloadavg()[0]
        try:
            found = run_json([python, "-W", "ignore", str(HERE / command[0]), *command[1:]])
        except RuntimeError as error:
            found = {"failed": str(error)[-2000:]}
        found |= {"command": asked, "made": f"{datetime.now(UTC):%Y-%m-%d}", "load_average": load}
        path.write_text(json.dumps(found, indent=1))
        return found

    def test(self, rows: int, predictors: int) -> Path:
        """Ten datasets by which accuracy is judged."""
        path = self.folder / f"test_{rows}_{predictors}.npz"
        if not path.exists():
            _, X, y = simulate(np.random.default_rng(7), 10, rows, predictors)
            np.savez(path, X=X, y=y)
        return path

    def reference(self, rows: int, predictors: int) -> np.ndarray:
        """Draws of long chains: (dataset, draw, dim)."""
        path = self.folder / f"reference_{rows}_{predictors}.npz"
        made = self.run(
            f"reference {rows} {predictors}", "main",
            ["peer_pymc.py", "nutpie", "--test", str(self.test(rows, predictors)),
             "--draws", "2500", "--out", str(path)],
        )  # fmt: skip
        if made is None or "failed" in made:
            raise RuntimeError(f"the reference failed: {made}")
        return np.load(path)["plain"]


def accuracy(draws: np.ndarray, reference: np.ndarray) -> float:
    """Mean MMD^2 over datasets."""
    from pmcl.metrics import posterior_discrepancy

    rng = np.random.default_rng(0)
    found = [
        posterior_discrepancy(a, b, rng=rng).mmd2 for a, b in zip(draws, reference, strict=True)
    ]
    return float(np.mean(found))


def amortized(runs: Runs, only: list[str] | None) -> dict[str, dict]:
    """Train, judge and draw at the size of experiment 1."""
    reference, test = runs.reference(ROWS, PREDICTORS), runs.test(ROWS, PREDICTORS)
    found = {}
    for name, (environment, command) in AMORTIZED.items():
        if only and name not in only:
            continue
        datasets = DATASETS[:2] if runs.short else DATASETS
        each: list[dict] = []
        for steps in [20, 40] if runs.short else STEPS:
            out = runs.folder / f"draws {name} {steps}.npz"
            many = [] if each else ["--datasets", *map(str, datasets)]
            one = runs.run(
                f"amortized {name} {steps}", environment,
                [*command, "--steps", str(steps), *many, "--draws-of-many", str(DRAWS_OF_MANY),
                 "--test", str(test), "--out", str(out)],
            )  # fmt: skip
            each.append(one or {"left_out": environment})
            if one is None or "failed" in one:
                break
            saved, row = np.load(out), one["trained"][0]
            row["mmd2"] = accuracy(saved[f"plain_{steps}"], reference)
            if f"corrected_{steps}" in saved:
                row["mmd2_corrected"] = accuracy(saved[f"corrected_{steps}"], reference)
        there = [one for one in each if "trained" in one]
        if not there:
            found[name] = each[0]
            continue
        one = there[0] | {"trained": [one["trained"][0] for one in there]}
        one["peak_gib"] = max(e["peak_gib"] for e in there)
        found[name] = one
    return found


def one_by_one(runs: Runs, only: list[str] | None) -> dict[str, dict]:
    """Sample, or approximate, ten datasets one after another."""
    reference, test = runs.reference(ROWS, PREDICTORS), runs.test(ROWS, PREDICTORS)
    found = {}
    for name, (environment, method) in ONE_BY_ONE.items():
        if only and name not in only:
            continue
        out = runs.folder / f"draws {name}.npz"
        number = ["--datasets", "2"] if runs.short else []
        one = runs.run(
            f"one by one {name}", environment,
            ["peer_pymc.py", method, "--test", str(test), "--out", str(out), *number],
        )  # fmt: skip
        if one is None or "failed" in one:
            found[name] = one or {"left_out": environment}
            continue
        drawn = np.load(out)["plain"]
        one["mmd2"] = accuracy(drawn, reference[: len(drawn)])
        found[name] = one
    return found


def growth(runs: Runs, only: list[str] | None) -> dict[str, dict[str, dict[str, dict]]]:
    """Cost by rows of a dataset, and by parameters; networks are not trained to the end."""
    found: dict[str, dict[str, dict[str, dict]]] = {}
    for kind, values in GROWTH.items():
        found[kind] = {}
        for value in values[:2] if runs.short else values:
            rows = value if kind == "rows" else ROWS
            predictors = value - 2 if kind == "parameters" else PREDICTORS
            size = ["--rows", str(rows), "--predictors", str(predictors)]
            steps = str(20 if runs.short or rows > 1000 else 100)
            each = {}
            for name, (environment, command) in AMORTIZED.items():
                if only and name not in only:
                    continue
                each[name] = runs.run(
                    f"{kind} {value} {name}", environment,
                    [*command, *size, "--steps", steps, "--datasets", "10"],
                )  # fmt: skip
            test = runs.test(rows, predictors)
            for name, (environment, method) in ONE_BY_ONE.items():
                if only and name not in only:
                    continue
                each[name] = runs.run(
                    f"{kind} {value} {name}", environment,
                    ["peer_pymc.py", method, "--test", str(test), "--datasets", "3"],
                )  # fmt: skip
            found[kind][str(value)] = {k: v for k, v in each.items() if v is not None}
    return found


def number(value: float | None) -> str:
    """A figure of a table."""
    return "" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def until_accurate(one: Mapping, key: str = "mmd2") -> str:
    """Shortest training after which the draws were accurate, and the best there was if none."""
    rows = one["trained"]
    good = [r["seconds"] for r in rows if r[key] <= ACCURATE]
    return number(min(good)) if good else f"not in {number(max(r['seconds'] for r in rows))}"


def tables(figures: Mapping) -> list[Table]:
    """All figures."""
    rows: list[list[str]] = []
    for name, one in figures["amortized"].items():
        if "trained" not in one:
            rows.append([name, "failed" if "failed" in one else "left out", *[""] * 8])
            continue
        last = one["trained"][-1]
        at = {row["datasets"]: row["draws_per_second"] for row in one["drawn"]}
        rows.append([
            name, number(one["seconds_to_import"]),
            number(one["trained"][0]["seconds_to_first_step"]), number(last["steps_per_second"]),
            until_accurate(one), f"{last['mmd2']:.4f} ({number(last['seconds'])} s)",
            *(
                [until_accurate(one, "mmd2_corrected"), f"{last['mmd2_corrected']:.4f}"]
                if "mmd2_corrected" in last
                else ["", ""]
            ),
            number(at.get(100)), number(one["peak_gib"]),
        ])  # fmt: skip
    found = [
        Table(
            f"Ten regressions of {ROWS} rows and {PREDICTORS + 2} parameters (runs of "
            f"{' to '.join(made(figures))}; *accurate* is a mean MMD² of {ACCURATE} or less to "
            "long chains of NUTS)",
            ["amortized", "import, s", "first step, s", "steps/s", "training until accurate, s",
             "MMD² after the longest", "training until accurate, corrected, s",
             "MMD², corrected", "draws/s, 100 datasets", "peak, GiB"],
            rows,
        )
    ]  # fmt: skip
    rows = []
    for name, one in figures["one_by_one"].items():
        if "mmd2" not in one:
            rows.append([name, "failed" if "failed" in one else "left out", *[""] * 5])
            continue
        rows.append([
            name, number(one["seconds_to_import"]), number(one["seconds_of_the_first"]),
            number(one["seconds_a_dataset"]), f"{one['mmd2']:.4f}",
            number(one["draws"] / one["seconds_a_dataset"]), number(one["peak_gib"]),
        ])  # fmt: skip
    columns = [
        "method", "import, s", "the first dataset, s", "each other, s", "MMD²", "draws/s",
        "peak, GiB",
    ]  # fmt: skip
    found.append(Table("The same, one dataset at a time", columns, rows))
    drawn = {k: one["drawn"] for k, one in figures["amortized"].items() if "drawn" in one}
    sizes = sorted({row["datasets"] for rows in drawn.values() for row in rows})
    found.append(
        Table(
            f"Seconds for {DRAWS_OF_MANY} draws of each of so many datasets, warm",
            ["", *(f"{n:,}" for n in sizes)],
            [
                [name, *(number({r["datasets"]: r["seconds"] for r in rows}.get(n)) for n in sizes)]
                for name, rows in drawn.items()
            ],
        )
    )
    for kind, by_value in figures["growth"].items():
        for title, key, names in (
            ("Steps per second", "steps_per_second", AMORTIZED),
            ("Peak memory, GiB", "peak_gib", AMORTIZED),
            ("Seconds a dataset, warm", "seconds_a_dataset", [*AMORTIZED, *ONE_BY_ONE]),
        ):
            cells = [[n, *(_cell(by_value[v].get(n), key) for v in by_value)] for n in names]
            found.append(Table(f"{title}, by {kind}", ["", *by_value], cells))
    return found


def made(figures: Mapping) -> list[str]:
    """First and last day of the runs, or the one of all."""
    kinds = (figures["amortized"], figures["one_by_one"])
    days = sorted({one["made"] for kind in kinds for one in kind.values() if "made" in one})
    return days[:1] + days[1:][-1:]


def ahead(figures: Mapping) -> list[str]:
    """Sentences on whatever a peer does better than both networks of pmcl."""
    there = {k: v for k, v in figures["amortized"].items() if "trained" in v}

    def accurate(one: Mapping) -> float:
        rows = [r["seconds"] for r in one["trained"] if r["mmd2"] <= ACCURATE]
        return min(rows, default=float("inf"))

    def drawn(one: Mapping) -> float:
        return {r["datasets"]: r["seconds"] for r in one["drawn"]}.get(100, float("inf"))

    measures = {
        "imports sooner": lambda one: one["seconds_to_import"],
        "takes its first step sooner": lambda one: one["trained"][0]["seconds_to_first_step"],
        "takes more steps a second": lambda one: -one["trained"][-1]["steps_per_second"],
        "is accurate after less training": accurate,
        "is more accurate after the longest training": lambda one: one["trained"][-1]["mmd2"],
        "draws faster": drawn,
        "needs less memory": lambda one: one["peak_gib"],
    }
    ours = [v for k, v in there.items() if k.startswith("pmcl")]
    lines = []
    for what, measure in measures.items():
        best = min(map(measure, ours), default=float("inf"))
        for name, one in there.items():
            if not name.startswith("pmcl") and measure(one) < best:
                lines.append(
                    f"- {name} {what} ({number(abs(measure(one)))} against {number(abs(best))})."
                )
    first = min((one["trained"][0]["seconds"] for one in ours), default=float("nan"))
    for name, one in figures["one_by_one"].items():
        if "mmd2" in one and one["seconds_of_the_first"] < first:
            many = -(-first // max(one["seconds_a_dataset"], 1e-9))
            lines.append(
                f"- For a few datasets {name}: it has the first after "
                f"{number(one['seconds_of_the_first'])} s and each other after "
                f"{number(one['seconds_a_dataset'])} s, where the shortest training of pmcl takes "
                f"{number(first)} s, the time of {number(many)} datasets."
            )
    return lines or ["Nowhere in these tables."]


def _cell(one: Mapping | None, key: str) -> str:
    if one is None:
        return ""
    if "failed" in one:
        return "failed"
    if key == "seconds_a_dataset" and "drawn" in one:
        return number(one["drawn"][0]["seconds"] / one["drawn"][0]["datasets"])
    if key == "steps_per_second":
        return number(one["trained"][-1][key])
    return number(one[key])


def main() -> None:
    """Run what is not there yet; write the JSON and the tables."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--runs", type=Path, default=ROOT / "out" / "peers")
    arguments.add_argument("--only", nargs="+", help="names of some")
    arguments.add_argument("--short", action="store_true", help="little, to see that it works")
    given = arguments.parse_args()
    runs = Runs(given.runs / "short" if given.short else given.runs, short=given.short)
    figures = {
        "amortized": amortized(runs, given.only),
        "one_by_one": one_by_one(runs, given.only),
        "growth": growth(runs, given.only),
    }
    remarks = ["Where a peer is ahead:", "", *ahead(figures)]
    write("peers", given.out, figures, *tables(figures), remarks=remarks)


if __name__ == "__main__":
    main()
