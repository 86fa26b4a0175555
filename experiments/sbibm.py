"""Benchmark of simulation-based inference, where the likelihood can be had: C2ST to the reference.

    python experiments/sbibm.py                     # all seven tasks, observations 1 to 5
    python experiments/sbibm.py --tasks slcp sir    # some
    python experiments/sbibm.py --tables            # the table of what there is

Each task is a PyMC model (`sbibm_tasks.py`). The network learns from 10,000 simulations. Draws are
judged by the benchmark's own classifier: those of a network without a search of the density (`raw`,
what the published amortized algorithms are), of the search alone (normals at the modes that it
finds), of the whitened network as it is (`amortized`), and refined and corrected ones. Beside them
stands the best published algorithm. Networks and runs are kept in `--out`.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path

import numpy as np
from continual import kept
from sbibm_tasks import BENCHMARKS, OBSERVATIONS, Benchmark, published

import pmcl

HERE = Path(__file__).parent
DRAWS, SIMULATIONS = 10_000, 10_000
FLOW = pmcl.CouplingFlow(layers=5, width=50, affine_width=50)  # about the peers' size
PROPOSALS = 5  # for each corrected draw: resampling gives draws twice, and a classifier sees that
AMORTIZED = ("NPE", "NLE", "NRE")  # of the published; the sequential ones are for one observation
KINDS = ("raw", "search", "amortized", "corrected")


def c2st(reference: np.ndarray, draws: np.ndarray, seed: int = 1) -> float:
    """C2ST with the classifier and the settings of the benchmark."""
    from sklearn.model_selection import KFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    mean, sd = reference.mean(axis=0), reference.std(axis=0, ddof=1)
    both = (np.concatenate([reference, draws]) - mean) / sd
    labels = np.repeat([0, 1], [len(reference), len(draws)])
    units = 10 * reference.shape[1]
    network = MLPClassifier(
        activation="relu",
        hidden_layer_sizes=(units, units),
        max_iter=10_000,
        solver="adam",
        random_state=seed,
    )
    folds = KFold(n_splits=5, shuffle=True, random_state=seed)
    return float(cross_val_score(network, both, labels, cv=folds, scoring="accuracy").mean())


def network(benchmark: Benchmark, kind: str, seed: int, states: Path) -> tuple:
    """Return a posterior, from its file or trained now, and the seconds that took."""
    kind = "amortized" if kind == "corrected" else kind
    path = states / f"{benchmark.name}_{seed}_{kind}.zarr.zip"
    took = path.with_suffix(".seconds")
    if took.exists():
        return pmcl.load(path, benchmark.model()), float(took.read_text())
    began = time.perf_counter()
    posterior = pmcl.fit_amortized(
        benchmark.model(),
        network=pmcl.Network(benchmark.summary, FLOW, whiten=kind != "raw"),
        simulations=SIMULATIONS,
        steps=1 if kind == "search" else benchmark.steps,
        patience=benchmark.patience,
        random_seed=seed,
        progressbar=False,
    )
    seconds = time.perf_counter() - began
    states.mkdir(parents=True, exist_ok=True)
    pmcl.save(posterior, path)
    took.write_text(str(seconds))  # the last thing: without it the state is not whole
    return posterior, seconds


def run(benchmark: Benchmark, kind: str, seed: int, draws: int, states: Path) -> dict:
    """Sample in one of `KINDS`, and judge the draws by every observation."""
    posterior, training = network(benchmark, kind, seed, states)
    data = benchmark.observed()
    # A resample comes in random order: of more draws than are asked for, few are copies.
    options: dict = (
        {"refine": False} if kind != "corrected" else {"refine": True, "fallback": "nuts"}
    )
    number = draws if kind != "corrected" else PROPOSALS * draws
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = posterior.sample(data, number, random_seed=seed, **options)
    seconds = time.perf_counter() - began
    theta = benchmark.parameters(tree["posterior"].to_dataset())[:draws]
    stats = tree["dataset_stats"].to_dataset()
    return {
        "c2st": [c2st(benchmark.reference(o), theta[:, i]) for i, o in enumerate(OBSERVATIONS)],
        **{name: stats[name].values.tolist() for name in ("khat", "efficiency", "engine")},
        "seconds": {"training": training, "sampling": seconds},
        "draws": draws,
        "simulations": SIMULATIONS,
        "steps": posterior.pretraining[0].steps,
    }


def written(runs: Path, results: Path) -> None:
    """Write the table of what there is."""
    found: dict[str, dict[str, dict]] = {}
    for name, kind in itertools.product(BENCHMARKS, KINDS):
        path = runs / f"{name}_{kind}.json"
        if path.exists():
            found.setdefault(name, {})[kind] = json.loads(path.read_text())
    if not found:
        return
    peers = published()
    lines = [
        "# Benchmark of simulation-based inference", "",
        "`python experiments/sbibm.py`: C2ST to the reference (0.5: no difference), mean over "
        "observations 1 to 5, with the benchmark's classifier. *Raw* learned from simulations "
        "alone, *search* is the normals at the modes that a search of the density finds, "
        "*amortized* the network that learns what is left; *corrected* draws are refined and "
        "weighted. Published: the best algorithm on these observations, and the best of those "
        "that are amortized (NPE, NLE, NRE: a posterior, a likelihood or a ratio for all data). "
        "Reached: amortized below the best amortized, corrected at most 0.01 above the best at "
        "100,000, or above 0.5.", "",
        f"| task | {' | '.join(KINDS)} | efficiency | corrected: efficiency | best amortized at "
        "10,000 | best at 10,000 | best at 100,000 | reached |",
        "|---|" + "---|" * (len(KINDS) + 6),
    ]  # fmt: skip
    for name, row in found.items():
        cells = [f"{np.mean(row[k]['c2st']):.3f}" if k in row else "" for k in KINDS]
        for kind in KINDS[2:]:
            some = row[kind]["efficiency"] if kind in row else ()
            cells.append(", ".join(f"{e:.2f}" for e in some))
        peer = peers[peers["task"] == name]
        few = peer[peer["num_simulations"] == SIMULATIONS]
        amortized = few[few["algorithm"].isin(AMORTIZED)]
        bests = [amortized, few, peer[peer["num_simulations"] == 100_000]]
        bests = [some.loc[some["C2ST"].idxmin()] for some in bests]
        cells += [f"{best['C2ST']:.3f} ({best['algorithm']})" for best in bests]
        reached = ""
        if {"amortized", "corrected"} <= {*row}:
            alone, corrected = (np.mean(row[k]["c2st"]) for k in ("amortized", "corrected"))
            good = alone < bests[0]["C2ST"] and corrected <= max(bests[2]["C2ST"], 0.5) + 0.01
            reached = "yes" if good else "no"
        cells.append(reached)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    results.mkdir(parents=True, exist_ok=True)
    (results / "sbibm.md").write_text("\n".join(lines) + "\n")
    (results / "sbibm.json").write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines))


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(BENCHMARKS), choices=list(BENCHMARKS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "sbibm")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    given = parser.parse_args()
    if not given.tables:
        for name, kind in itertools.product(given.tasks, given.kinds):
            kept(
                given.out / "runs", f"{name} {kind}",
                lambda n=name, k=kind: run(
                    BENCHMARKS[n], k, given.seed, given.draws, given.out / "states"
                ),
                lambda r: f"{np.mean(r['c2st']):.3f}",
            )  # fmt: skip
    written(given.out / "runs", given.results)


if __name__ == "__main__":
    main()
