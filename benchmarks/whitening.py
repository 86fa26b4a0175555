"""What the network adds to the search, and the search to the network, model by model.

    python benchmarks/whitening.py                       # published models, of no groups
    python benchmarks/whitening.py linear_regression     # one
    python benchmarks/whitening.py --raw 3000            # beside them a network without a search

Each published model's state draws for ten simulations and for its example data; so does a network
that was not trained, which is the normals at the modes that the search finds, and, with `--raw`,
one that learned from the data alone for so many steps. All are compared with NUTS as they are, and
after Pareto-smoothed importance resampling. Nothing is refined.
"""

import json
import time
import warnings
from pathlib import Path
from typing import Any

import xarray as xr
from results import Table, parser, write

import pmcl
from pmcl.data.simulated import simulated_task
from pmcl.models import ModelDefinition, find, names

DRAWS, SIMULATED = 1000, 10
WAYS = {"as it is": None, "after PSIS": "psis"}


def posteriors(definition: ModelDefinition, raw: int) -> dict[str, pmcl.AmortizedPosterior]:
    """The published network, one that is only a search, and perhaps one that has none."""
    published = definition.load()
    options: dict[str, Any] = {"random_seed": 0, "progressbar": False}
    found = {
        "search": definition.fit(**options, steps=1, simulations=256),
        "network": published,
    }
    if raw:
        network = pmcl.Network(published.network.summary, published.network.flow, whiten=False)
        fresh = {"simulations": None, "labels": None, "network": network, "steps": raw}
        found["raw network"] = definition.fit(**options | fresh)
    return found


def judged(posterior: pmcl.AmortizedPosterior, data: Any, reference: xr.DataTree) -> dict:
    """Efficiency, k-hat and distance to NUTS, as it is and resampled."""
    found: dict[str, Any] = {}
    for way, correct in WAYS.items():
        begin = time.perf_counter()
        tree = posterior.sample(data, DRAWS, refine=False, correct=correct, random_seed=1)
        found["seconds"] = time.perf_counter() - begin
        compared = pmcl.compare(tree, reference)
        stats = tree["dataset_stats"].to_dataset()
        found |= {
            "efficiency": float(stats["efficiency"].mean()),
            "khat_above_0.7": float((stats["khat"] > 0.7).mean()),
            f"mmd2 {way}": float(compared["mean_mmd2"]),
            f"agrees {way}": bool(compared.attrs["agrees"]),
        }
    return found


def run(name: str, raw: int) -> dict:
    """All of one model."""
    definition = find(name)
    networks = posteriors(definition, raw)
    published = networks["network"]
    _, simulated = simulated_task(
        published.simulator, published.structure.row, SIMULATED, random_seed=7
    )
    found: dict[str, Any] = {}
    for kind, data in (("simulations", simulated), ("example", definition.example())):
        reference = pmcl.sample_reference(
            definition.model(), data, random_seed=0, progressbar=False
        )
        found[kind] = {label: judged(p, data, reference) for label, p in networks.items()}
    return found


def shown(row: dict[str, Any]) -> list[object]:
    """Efficiency, and distances."""
    both = "{:.4f} / {:.4f}".format(row["mmd2 as it is"], row["mmd2 after PSIS"])
    return [f"{row['efficiency']:.2f}", both]


def tables(rows: dict[str, dict]) -> list[Table]:
    """One table for simulations, one for the examples."""
    labels = list(next(iter(rows.values()))["simulations"])
    columns = [c for label in labels for c in (f"{label}: efficiency", "MMD2 / after PSIS")]
    return [
        Table(
            f"On {kind}, against NUTS",
            ["model", *columns],
            [
                [name, *(c for v in row[kind].values() for c in shown(v))]
                for name, row in rows.items()
            ],
        )
        for kind in ("simulations", "example")
    ]


def main() -> None:
    """Run every model, write after each."""
    arguments = parser(__doc__ or "")
    flat = [n for n in names() if "groups" not in find(n).training()]
    arguments.add_argument("models", nargs="*", default=flat)
    arguments.add_argument("--raw", type=int, default=0, help="steps of the network without search")
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    kept: Path = given.out / "whitening.json"
    rows = json.loads(kept.read_text())["models"] if kept.exists() else {}
    for name in given.models:
        if name in rows and (not given.raw or "raw network" in rows[name]["example"]):
            continue
        rows[name] = run(name, given.raw)
        print(name, json.dumps(rows[name]), flush=True)
        write("whitening", given.out, {"models": rows})
    alike = {
        k: v for k, v in rows.items() if set(v["example"]) == set(rows[given.models[0]]["example"])
    }
    write("whitening", given.out, {"models": rows}, *tables(alike))


if __name__ == "__main__":
    main()
