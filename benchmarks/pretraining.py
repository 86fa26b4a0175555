"""Pretraining: steps per second of experiment 1's network, against BayesFlow 2 on JAX, in one run.

The two sides take turns in processes of their own, ours twice, so that a noisy machine is noisy to
both. BayesFlow needs the second environment (`make bench-env`). Ours also says what part of the
machine's own rate of matrix multiplication it has, with XLA's count of a step's operations.
"""

import json
import sys
import time
from pathlib import Path

from results import HERE, Table, parser, run_json, write


def matrix_rate(size: int = 2048, repeats: int = 10) -> float:
    """Operations per second of a product of large square matrices, in single precision."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    a = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(a, a).block_until_ready()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        product(a, a).block_until_ready()
        times.append(time.perf_counter() - begin)
    return 2 * size**3 / sorted(times)[repeats // 2]


def operations(problem, amortizer) -> float:  # noqa: ANN001
    """Operations of a step's loss and gradient, as XLA counts them."""
    import equinox as eqx
    import jax

    weights, rest = eqx.partition(amortizer, amortizer.trainable())

    def loss(weights, key):  # noqa: ANN001, ANN202
        return problem.loss(eqx.combine(weights, rest), key, {})

    compiled = jax.jit(jax.value_and_grad(loss)).lower(weights, jax.random.key(0)).compile()
    return float(compiled.cost_analysis()["flops"])


def ours(steps: int, batch: int = 32) -> dict:
    """Time the training loop that `fit_amortized` runs, on the network of experiment 1."""
    begin = time.perf_counter()
    import equinox as eqx
    import jax
    import pymc as pm

    import pmcl
    from pmcl.demo.model import linear_regression_model
    from pmcl.runtime import precision
    from pmcl.training import Optimiser
    from pmcl.training.loop import run_block, start
    from pmcl.training.pretraining import SimulationLoss

    imported = time.perf_counter()
    network = pmcl.Network(pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128))
    posterior = pmcl.fit_amortized(
        linear_regression_model(),
        covariates={"X": pm.Normal.dist(0, 1)},
        exchangeable="obs",
        network=network,
        steps=1,
        batch_size=32,
        validation=32,
        random_seed=0,
        progressbar=False,
    )
    first = time.perf_counter()
    with precision.scope():
        optimiser = Optimiser.of(5e-4, 100_000)
        problem = SimulationLoss(posterior.simulator, batch)
        state = start(posterior.amortizer, optimiser, 0)
        state, _ = run_block(problem, optimiser, posterior.amortizer, state, {}, 100)
        jax.block_until_ready(state.step)
        speeds, cpu = [], time.process_time()
        for _ in range(max(steps // 100, 1)):
            t = time.perf_counter()
            state, _ = run_block(problem, optimiser, posterior.amortizer, state, {}, 100)
            jax.block_until_ready(state.step)
            speeds.append(100 / (time.perf_counter() - t))
        cpu = time.process_time() - cpu
        flops, rate = operations(problem, posterior.amortizer), matrix_rate()
    speed = sorted(speeds)[len(speeds) // 2]
    weights = eqx.filter(posterior.amortizer, posterior.amortizer.trainable())
    return {
        "library": "pmcl",
        "parameters": sum(x.size for x in jax.tree.leaves(weights)),
        "seconds_to_import": imported - begin,
        "seconds_to_first_step": first - imported,
        "steps_per_second": speed,
        "operations_per_step": flops,
        "matrix_rate": rate,
        "share_of_matrix_rate": flops * speed / rate,
        "cpu_seconds_per_step": cpu / (100 * len(speeds)),
    }


def main() -> None:
    """Run both sides in turn and write the ratio."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--ours", action="store_true", help="only our side, as JSON")
    arguments.add_argument(
        "--peer-python", default=str(HERE.parent / ".venv-benchmarks" / "bin" / "python")
    )
    given = arguments.parse_args()
    if given.ours:
        print("\n" + json.dumps(ours(given.steps)))
        return
    mine = [sys.executable, __file__, "--ours", "--steps", str(given.steps)]
    peer = [given.peer_python, str(Path(__file__).parent / "peer_bayesflow.py")]
    runs = {
        "pmcl, before": run_json(mine),
        "BayesFlow, 6 layers (12 couplings)": run_json(peer),
        "BayesFlow, 3 layers (6 couplings)": run_json([*peer, "--depth", "3"]),
        "pmcl, after": run_json(mine),
    }
    speed = (runs["pmcl, before"]["steps_per_second"] + runs["pmcl, after"]["steps_per_second"]) / 2
    ratios = {k: speed / v["steps_per_second"] for k, v in runs.items() if "Bayes" in k}
    keys = ("steps_per_second", "seconds_to_first_step", "parameters", "cpu_seconds_per_step")
    own = ("operations_per_step", "matrix_rate", "share_of_matrix_rate")
    table = Table(
        "Pretraining, experiment 1: batch 32, 100 rows",
        ["run", *keys, *own, "pmcl is faster by"],
        [
            [k, *(v[c] for c in keys), *(v.get(c, "") for c in own), ratios.get(k, "")]
            for k, v in runs.items()
        ],
    )
    write("pretraining", given.out, {"runs": runs, "ratios": ratios}, table)


if __name__ == "__main__":
    main()
