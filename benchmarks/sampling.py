"""Amortized sampling against nutpie, both warm, on the same datasets in one run.

1,000 draws for each of 100 datasets with densities, k-hat, a look from elsewhere and labels
(`sample(refine=False)`), both sides with all cores: the searches of a whitened network are a part
of it. nutpie has one compilation and 4 chains of 400 tuning and 250 kept draws, and fewer datasets
where it is slow. Networks are not trained, which changes nothing of their speed. Figures of another
day stay in the file, and stand before those of today.
"""

import json
import time
import warnings
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
from refinement_models import CASES
from results import Table, parser, write

import pmcl
from pmcl.networks.contexts import contexts
from pmcl.runtime import precision

# The model, its covariates, and the datasets that nutpie samples.
MODELS = {
    "linear regression": ({"X": pm.Normal.dist(0, 1)}, 100),
    "Lotka-Volterra": (None, 8),
    "Wald race": (None, 16),
}


def best(function, repeats: int = 5) -> float:  # noqa: ANN001
    """Return the shortest of several times, after one call that compiles."""
    function()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def run(name: str, datasets: int) -> dict[str, float]:
    """Milliseconds a dataset of one model: ours, the searches of it, and nutpie's."""
    model, data = CASES[name](datasets)
    covariates, few = MODELS[name]
    posterior = pmcl.fit_amortized(
        model,
        covariates=covariates,
        steps=1,
        simulations=256,
        random_seed=0,
        progressbar=False,
    )
    task = pmcl.as_task(data, posterior.layout)
    ours = best(partial(posterior.sample, data, 1000, refine=False, random_seed=0))
    with precision.scope():
        search = best(
            partial(contexts, posterior.amortizer, task.batch(), np.arange(datasets)), repeats=3
        )
    some = {k: v[:few] for k, v in data.items()}

    def reference() -> float:
        tree = pmcl.sample_reference(
            model, some, draws=250, tune=400, chains=4, random_seed=0, progressbar=False
        )
        return float(np.sum(tree["dataset_stats"]["seconds"])) / few

    reference()
    nuts = min(reference() for _ in range(2))
    found = {"ours": ours / datasets, "search": search / datasets, "nutpie": nuts}
    return {k: 1e3 * v for k, v in found.items()} | {"faster by": nuts * datasets / ours}


def main() -> None:
    """Time both sides of every model and write milliseconds and ratios."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=100)
    arguments.add_argument("--models", nargs="*", default=list(MODELS))
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # untrained networks: only their speed matters
    days = known(given.out / "sampling.json")
    rows = {name: run(name, given.datasets) for name in given.models}
    days[datetime.now(UTC).date().isoformat()] = rows
    table = Table(
        f"Milliseconds a dataset, 1,000 draws for each of {given.datasets} ({' / '.join(days)})",
        ["model", "sample(refine=False)", "search of it", "nutpie", "faster by"],
        [[name, *in_order(days, name)] for name in rows],
    )
    write("sampling", given.out, {"datasets": given.datasets, "days": days}, table)


def known(file: Path) -> dict[str, dict]:
    """Figures of other days, by their dates."""
    today = datetime.now(UTC).date().isoformat()
    found = json.loads(file.read_text())["days"] if file.exists() else {}
    return {day: found[day] for day in sorted(found) if day != today}


def in_order(days: dict[str, dict], name: str) -> list[str]:
    """One cell a figure, with those of all days."""
    rows = [found[name] for found in days.values() if name in found]
    return [" / ".join(f"{row[k]:.4g}" for row in rows) for k in rows[-1]]


if __name__ == "__main__":
    main()
