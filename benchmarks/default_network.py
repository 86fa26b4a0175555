"""Accuracy against cost of the flow: how the default network was chosen.

Each flow is pretrained with the default summary on the linear regression for the same number of
steps; its loss on fresh simulations stands beside the time of 1,000 draws for 100 datasets.
"""

import time

import numpy as np
import pymc as pm
from network_draws import draw_only
from results import Table, parser, write

import pmcl
from pmcl.demo.model import linear_regression_model
from pmcl.demo.tables import simulated_datasets
from pmcl.runtime import precision

FLOWS = {
    "6 layers of 128, 8 knots (the paper's), no affine layer": pmcl.CouplingFlow(affine=False),
    "6 layers of 128, 8 knots": pmcl.CouplingFlow(),
    "3 layers of 64, 8 knots": pmcl.CouplingFlow(layers=3, width=64),
    "2 layers of 64, 5 knots (default)": pmcl.CouplingFlow(
        layers=2, width=64, knots=5, activation="silu"
    ),
    "1 layer of 64, 5 knots": pmcl.CouplingFlow(layers=1, width=64, knots=5, activation="silu"),
}


def main() -> None:
    """Pretrain every flow, time its draws, print and write the table."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--steps", type=int, default=2000)
    given = arguments.parse_args()
    data = simulated_datasets(datasets=100, rows=100, random_seed=0)[0]
    rows: dict[str, dict[str, float]] = {}
    for name, flow in FLOWS.items():
        begin = time.perf_counter()
        posterior = pmcl.fit_amortized(
            linear_regression_model(),
            covariates={"X": pm.Normal.dist(0, 1)},
            network=pmcl.Network(pmcl.DeepSet(), flow),
            steps=given.steps,
            random_seed=0,
            progressbar=False,
        )
        seconds = time.perf_counter() - begin
        task = pmcl.as_task(data, posterior.layout)
        times = []
        with precision.scope():
            for i in range(6):
                begin = time.perf_counter()
                draw_only(posterior.amortizer, task, i)
                times.append(time.perf_counter() - begin)
        rows[name] = {
            "validation_loss": float(np.min(posterior.pretraining[0].validation)),
            "fit_seconds": seconds,
            "draw_seconds": min(times[1:]),
        }
        print(name, rows[name], flush=True)
    columns = ["validation_loss", "fit_seconds", "draw_seconds"]
    table = Table(
        f"Flows after {given.steps} steps of 64 simulations",
        ["flow", *columns],
        [[k, *(v[c] for c in columns)] for k, v in rows.items()],
    )
    write("default_network", given.out, {"steps": given.steps, "flows": rows}, table)


if __name__ == "__main__":
    main()
