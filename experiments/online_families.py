"""Streams of small networks whose weights have covariances, against the mean field's figures.

    python experiments/online_families.py             # four tables of the residual-memory paper
    python experiments/online_families.py tables      # the table of what there is

Kurle et al. (2020), Continual learning with Bayesian neural networks for non-stationary data, Table
1, with the batches and networks of `online_streams.py`. Every run is kept in `--out`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from continual import kept
from online_streams import HERE, MEMORY, PUBLISHED, Stream, network, said, split

import pmcl

NAMES = {
    "full": ("full", None, 1e-4),
    "full, not held": ("full", None, 0.0),
    "full, residual": ("full", pmcl.ResidualMemory, 1e-4),
    "low rank": ("low_rank", None, 0.0),
}


def families(stream: Stream, name: str, seed: int, given: argparse.Namespace) -> dict:
    """Return the mean test log predictive density after every batch."""
    parts, whole, inputs = split(stream, seed)
    family, rule, stiffness = NAMES[name]
    online = pmcl.fit_online(
        network(inputs, stream.hidden, stream.labels), family=family,
        memory=None if rule is None else rule(stream.memory),
        search=pmcl.GaussNewton(steps=given.steps, stiffness=stiffness),
        random_seed=seed, progressbar=False,
    )  # fmt: skip
    found: list[float] = []
    for part in parts[: given.updates]:
        online = online.update(part, progressbar=False)
        found.append(float(online.log_predictive(whole, draws=200, random_seed=0).mean()))
    tenth = max(len(found) // 10, 1)
    history = online.history
    return {
        "log_predictive": found,
        "figure": float(np.mean(found[-tenth:])),
        "steps": int(history["steps"].sum()),
        "seconds": float(history["seconds"].sum()),
    }


def written(runs: Path, results: Path) -> None:
    """Write the table and the figures of what there is."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(runs.glob("families_*.json")):
        one = json.loads(path.read_text())
        found.setdefault(one["data"], {}).setdefault(one["name"], []).append(one["figure"])
    mean_field = json.loads((results / "online_streams.json").read_text())["memory"]
    lines = [
        "# Families", "",
        "Test log predictive density (nats a row), mean over the last tenth of the updates, then "
        "over seeds (in brackets): `python experiments/online_families.py`.", "",
        "| data | " + " | ".join(NAMES) + " | mean field, residual | the paper's GRS |",
        "|---|" + "---|" * (len(NAMES) + 2),
    ]  # fmt: skip
    for data in MEMORY:
        if data not in found:
            continue
        cells = [data, *(shown(found[data].get(name, [])) for name in NAMES)]
        cells += [shown(mean_field[data]["residual"]), str(PUBLISHED[data][0])]
        lines.append(f"| {' | '.join(cells)} |")
    (results / "online_families.md").write_text("\n".join([*lines, ""]))
    (results / "online_families.json").write_text(json.dumps(found, indent=1) + "\n")


def shown(values: list[float]) -> str:
    spread = f" ± {np.std(values):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread} ({len(values)})" if values else ""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["tables"])
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "online_families")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--data", nargs="+", default=list(MEMORY)[:4])
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=50, help="of each search but the first")
    parser.add_argument("--updates", type=int, help="at most")
    given = parser.parse_args()
    runs = given.out / "runs"
    if given.part == "tables":
        written(runs, given.results)
        return
    for seed in given.seeds:
        for data in given.data:
            for name in given.names:
                kept(
                    runs, f"families {data} {name} {seed}",
                    lambda d=data, n=name, s=seed: {
                        "data": d, "name": n, **families(MEMORY[d], n, s, given)
                    },
                    said,
                )  # fmt: skip


if __name__ == "__main__":
    main()
