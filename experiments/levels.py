"""Multilevel models refined without a network, against NUTS of their non-centred form.

Simulated data. `python experiments/levels.py "schools 8" --datasets 4` runs one model, and without
a name all are run.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
from level_models import CASES, Case
from rich.console import Console
from rich.table import Table

import pmcl
from pmcl.metrics import mmd2_unbiased, standardise
from pmcl.metrics.discrepancy import median_squared_distance

HERE = Path(__file__).parent
DRAWS = 1000


def flat(tree: xr.DataTree, names: tuple[str, ...], i: int) -> np.ndarray:
    """Draws (draw, parameter) of a dataset, 1,000 of them; scales in logarithms."""
    posterior = tree["posterior"].to_dataset().isel(dataset=i)
    parts = []
    for name in names:
        value = posterior[name].stack(sample=("chain", "draw")).transpose("sample", ...).values
        scale = name.startswith(("tau", "sigma"))
        parts.append(np.log(value) if scale else value)
    whole = np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1)
    return np.random.default_rng(i).permutation(whole)[:DRAWS]


def mmd2(tree: xr.DataTree, reference: xr.DataTree, names: tuple[str, ...], n: int) -> list[float]:
    """Unbiased MMD squared of every dataset, standardised by the reference."""
    found = []
    for i in range(n):
        a, b = flat(tree, names, i), flat(reference, names, i)
        a, b = standardise(a, b), standardise(b, b)
        found.append(mmd2_unbiased(a, b, bandwidth=median_squared_distance(b)))
    return found


def run(case: Case, datasets: int, seeds: int) -> dict:
    """Refine simulated datasets with several seeds, and compare."""
    rng = np.random.default_rng(11)
    each = [case.simulate(rng) for _ in range(datasets)]
    data = {k: np.stack([d[k] for d in each]) for k in each[0]}
    names = [k for k in data if k != "y"]
    compiled = pmcl.compile_model(case.build(True), covariates=names)
    begin = time.perf_counter()
    pmcl.refine(compiled, data, random_seed=99, progressbar=False)
    row: dict = {"datasets": datasets, "seeds": seeds, "first_s": time.perf_counter() - begin}
    trees, seconds, cpu = [], [], []
    for seed in range(seeds):
        begin, used = time.perf_counter(), time.process_time()
        trees.append(pmcl.refine(compiled, data, draws=DRAWS, random_seed=seed, progressbar=False))
        seconds.append((time.perf_counter() - begin) / datasets)
        cpu.append((time.process_time() - used) / datasets)
    stats = [t["dataset_stats"].to_dataset() for t in trees]
    khat = np.concatenate([s["khat"].values for s in stats])
    efficiency = np.concatenate([s["efficiency"].values for s in stats])
    # a second call: the sampler is compiled
    reference = case.build(False)
    given = {"draws": 1000, "target_accept": 0.95, "random_seed": 1, "progressbar": False}
    truth = pmcl.sample_reference(reference, data, **given)
    begin, used = time.perf_counter(), time.process_time()
    pmcl.sample_reference(reference, data, draws=250, random_seed=2, progressbar=False)
    row["nuts_1000_ms"] = 1000 * (time.perf_counter() - begin) / datasets
    row["nuts_1000_cpu_ms"] = 1000 * (time.process_time() - used) / datasets
    evidence = np.stack([s["log_evidence"].values for s in stats])
    row |= {
        "levels": str(trees[0]["posterior"].attrs["levels"]),
        "ms": 1000 * float(np.median(seconds)),
        "cpu_ms": 1000 * float(np.median(cpu)),
        "efficiency": float(np.median(efficiency)),
        "least_efficiency": float(efficiency.min()),
        "khat": float(np.median(khat)),
        "khat_above_0.7": int((khat > 0.7).sum()),
        "group_noise": float(max(s["group_noise"].values.max() for s in stats)),
        "evidence_sd_over_seeds": float(evidence.std(axis=0).max()),
        "evidence_error": float(max(s["log_evidence_error"].values.max() for s in stats)),
    }
    for kind, wanted in (("global", case.shared), ("local", case.local)):
        values = [v for t in trees for v in mmd2(t, truth, wanted, datasets)]
        row[f"mmd2_{kind}"] = float(np.median(values))
        row[f"worst_mmd2_{kind}"] = float(np.max(values))
    return row


def main() -> None:
    """Run the models, print a table and write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all by default")
    parser.add_argument("--datasets", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    path = given.results / "levels.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    rows: dict[str, dict] = kept.get("models", {})
    for name in given.names or CASES:
        rows[name] = run(CASES[name], given.datasets, given.seeds)
        found = {
            "command": "python experiments/levels.py",
            "version": pmcl.__version__,
            "models": rows,
        }
        path.write_text(json.dumps(found, indent=1) + "\n")
    columns = [
        *("efficiency", "least_efficiency", "khat_above_0.7", "group_noise", "mmd2_global"),
        *("worst_mmd2_global", "mmd2_local", "worst_mmd2_local", "ms", "cpu_ms", "nuts_1000_ms"),
        *("nuts_1000_cpu_ms", "first_s"),
    ]
    table = Table("model", *columns, title="Levels, refined without a network; 1,000 draws")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[c]:.3g}" for c in columns))
    Console(width=220).print(table)


if __name__ == "__main__":
    main()
