"""Amortized sampling against nutpie, both warm, on the same datasets in one run.

1,000 draws for each of 100 datasets of the linear regression: draws, densities, k-hat and the
labelled result (`sample`), the draws alone, and what the diagnostics (k-hat, weights, evidence)
cost on top of these; nutpie with one compilation, 4 chains of 400 tuning and 250 kept draws on all
cores.
"""

import time
import warnings
from functools import partial

import numpy as np
import pymc as pm
from network_draws import draw_only
from results import Table, parser, write

import pmcl
from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import simulated_datasets
from pmcl.draws.drawn import judge
from pmcl.draws.network import draw as draw_with_densities
from pmcl.runtime import precision

NETWORKS = {
    "paper": pmcl.Network(pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128)),
    "default": None,
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


def main() -> None:
    """Time both sides and write seconds and ratios."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=100)
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # untrained networks: only their speed matters
    model = linear_regression_model()
    data = simulated_datasets(datasets=given.datasets, rows=100, random_seed=0)[0]
    seconds: dict[str, dict[str, float]] = {}
    cost: dict[str, float] = {}
    for name, network in NETWORKS.items():
        posterior = pmcl.fit_amortized(
            model,
            covariates={"X": pm.Normal.dist(0, 1)},
            exchangeable="obs",
            network=network,
            steps=1,
            random_seed=0,
            progressbar=False,
        )
        task = pmcl.as_task(data, posterior.layout)
        with precision.scope():

            def draw(amortizer=posterior.amortizer, task=task) -> None:  # noqa: ANN001
                draw_only(amortizer, task, 0)

            drawn = draw_with_densities(
                posterior.amortizer,
                posterior.density,
                task,
                draws=1000,
                seed=0,
                progressbar=False,
            )
            seconds[name] = {
                "draws alone": best(draw),
                "sample()": best(
                    partial(posterior.sample, data, 1000, refine=False, random_seed=0)
                ),
            }
            cost[name] = best(partial(judge, drawn)) / seconds[name]["draws alone"]

    def reference() -> float:
        tree = pmcl.sample_reference(
            model, data, draws=250, tune=400, chains=4, random_seed=0, progressbar=False
        )
        return float(np.sum(tree["dataset_stats"]["seconds"]))

    reference()
    seconds["nutpie"] = {"sampling": min(reference() for _ in range(2))}
    nuts = seconds["nutpie"]["sampling"]
    ratios = {f"{name}, {what}": nuts / s for name in NETWORKS for what, s in seconds[name].items()}
    table = Table(
        f"1,000 draws for each of {given.datasets} datasets",
        ["engine", "seconds", "ms a dataset", "faster than nutpie by"],
        [
            *(
                [f"{n}, {w}", s, 1e3 * s / given.datasets, ratios[f"{n}, {w}"]]
                for n in NETWORKS
                for w, s in seconds[n].items()
            ),
            ["nutpie, 4 chains", nuts, 1e3 * nuts / given.datasets, 1.0],
        ],
    )
    print(f"diagnostics on top of the draws alone: {cost}")
    figures = {"datasets": given.datasets, "seconds": seconds, "ratios": ratios}
    write("sampling", given.out, {**figures, "diagnostics_on_top": cost}, table)


if __name__ == "__main__":
    main()
