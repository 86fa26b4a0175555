"""Posteriors with a trusted reference, refined without a network: what is wrong, and what is said.

`python experiments/truths.py` goes on where it was interrupted; `--only NAME` runs one, and
`--fallback none` leaves NUTS out. Wrong is a mean or a sd that is off by more than 0.3 sd on the
unconstrained scale, and by more than as many exact draws are (the sd of a t distribution with three
degrees of freedom is nothing that 1,000 draws tell), or an MMD squared of more than 0.02.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from truth_models import TRUTHS, Truth

import pmcl
from pmcl.compile import compile_model
from pmcl.draws.results import flat_z
from pmcl.metrics.discrepancy import posterior_discrepancy

HERE = Path(__file__).parent
OFF, APART, SEEDS = 0.3, 0.02, 5


def judged(truth: Truth, seeds: range, fallback: str | None = "auto") -> list[dict]:
    """Refine one posterior with several seeds, and compare each with its reference."""
    model = truth.model()
    reference = truth.reference(model, np.random.default_rng(0))
    noise = of_exact_draws(reference)
    compiled = compile_model(model)
    data = {v.name: model.rvs_to_values[v].data for v in model.observed_RVs} or None
    found = []
    for seed in seeds:
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = pmcl.refine(
                compiled, data, random_seed=seed, fallback=fallback, progressbar=False
            )
        stats = tree["dataset_stats"].to_dataset().isel(dataset=0)
        z = flat_z(compiled, tree)[:, :, 0].reshape(-1, compiled.dim)
        apart = posterior_discrepancy(z, reference, rng=np.random.default_rng(seed))
        off = most_off(z, reference)
        found.append(
            {
                "seed": seed,
                "off": off,
                "noise": noise,
                "mmd2": float(apart.mmd2),
                "wrong": is_wrong(off, noise, float(apart.mmd2)),
                "warning": str(stats["warning"].item()),
                "engine": str(stats["engine"].item()),
                "khat": float(stats["khat"].item()),
                "efficiency": float(stats["efficiency"].item()),
                "seconds": time.perf_counter() - begin,
            }
        )
    return found


def most_off(z: np.ndarray, reference: np.ndarray) -> float:
    """By how much a mean or a sd is off, in sd, at most over the entries."""
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    apart = np.abs([(z.mean(axis=0) - mean) / sd, z.std(axis=0) / sd - 1])
    return float(apart.max())


def of_exact_draws(reference: np.ndarray, draws: int = 1000) -> float:
    """By how much that many draws of the reference are off, in 98 of 100 cases."""
    rng = np.random.default_rng(3)
    found = [most_off(rng.choice(reference, draws), reference) for _ in range(300)]
    return float(np.quantile(found, 0.98))


def is_wrong(off: float, noise: float, mmd2: float) -> bool:
    """Whether draws are not those of the posterior."""
    return not off <= max(OFF, noise) or mmd2 > APART


def counts(rows: list[dict]) -> dict[str, int]:
    """How many runs there are of each kind."""
    warned = [bool(r["warning"]) for r in rows]
    wrong = [r["wrong"] for r in rows]
    return {
        "runs": len(rows),
        "right": sum(not w for w in wrong),
        "wrong without a word": sum(w and not s for w, s in zip(wrong, warned, strict=True)),
        "right and warned of": sum(s and not w for w, s in zip(wrong, warned, strict=True)),
        "by NUTS": sum("nuts" in r["engine"].lower() for r in rows),
    }


def table(found: dict[str, list[dict]]) -> str:
    """What the docs show: by kind, and every posterior."""
    kinds: dict[str, list[dict]] = {}
    for name, rows in found.items():
        kinds.setdefault(TRUTHS[name].kind, []).extend(rows)
    kinds["all"] = [r for rows in found.values() for r in rows]
    lines = ["| kind | " + " | ".join(counts([])) + " |", "|---" * 6 + "|"]
    lines += [
        f"| {kind} | " + " | ".join(str(v) for v in counts(rows).values()) + " |"
        for kind, rows in kinds.items()
    ]
    lines += ["", "| posterior | kind | most off, sd | MMD² | efficiency | engines | said |"]
    lines += ["|---" * 7 + "|"]
    for name, rows in found.items():
        engines = ", ".join(sorted({r["engine"] for r in rows}))
        said = sum(bool(r["warning"]) for r in rows)
        lines.append(
            f"| {name} | {TRUTHS[name].kind} | {max(r['off'] for r in rows):.2f} | "
            f"{max(r['mmd2'] for r in rows):.4f} | "
            f"{np.median([r['efficiency'] for r in rows]):.2f} | {engines} | "
            f"{f'{said} of {len(rows)}' if said else ''} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of posteriors")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--begin", type=int, default=0, help="the first seed")
    parser.add_argument("--fallback", choices=("auto", "none"), default="auto")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--again", action="store_true", help="run what was run before")
    given = parser.parse_args()
    path = given.out / "truths.json"
    given.out.mkdir(parents=True, exist_ok=True)
    done = json.loads(path.read_text())["posteriors"] if path.exists() and not given.again else {}
    seeds = range(given.begin, given.begin + given.seeds)
    fallback = None if given.fallback == "none" else "auto"
    for name in given.only or TRUTHS:
        if len(done.get(name, ())) < given.seeds:
            done[name] = judged(TRUTHS[name], seeds, fallback)
            told = counts(done[name])
            print(f"{name}: {told}", *(f"  {r}" for r in done[name] if r["wrong"]), sep="\n")
        found = {n: done[n] for n in TRUTHS if n in done}
        command = "python experiments/truths.py"
        every = [r for rows in found.values() for r in rows]
        whole = {"command": command, "version": pmcl.__version__, "counts": counts(every)}
        path.write_text(json.dumps({**whole, "posteriors": found}, indent=1) + "\n")
        (given.out / "truths.md").write_text(
            f"`{command}`, pmcl {pmcl.__version__}\n\n{table(found)}"
        )


if __name__ == "__main__":
    main()
