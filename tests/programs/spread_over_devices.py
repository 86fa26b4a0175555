"""Fit, adapt, sample and refine, on the devices that there are; write what came out as JSON.

    python spread_over_devices.py FILE DEVICES            # 0: without `devices=`
    python spread_over_devices.py FILE DEVICES RANK PORT  # one of two processes

Run with XLA_FLAGS=--xla_force_host_platform_device_count=N.
"""

import json
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

path = Path(sys.argv[1])
devices, *process = map(int, sys.argv[2:])
if process:
    rank, port = process
    jax.distributed.initialize(f"localhost:{port}", 2, rank)

import pymc as pm  # noqa: E402

import pmcl  # noqa: E402
from pmcl.runtime import devices as devices_  # noqa: E402

warnings.simplefilter("ignore")
shared: set[int] = set()  # by how many devices work was shared
number = devices_.number
devices_.number = lambda: shared.add(number()) or number()  # type: ignore[func-returns-value]
spread = {"devices": devices} if devices else {}
quiet = {"progressbar": False}

with pm.Model() as model:
    mu = pm.Normal("mu")
    tau = pm.HalfNormal("tau")
    pm.Normal("y", mu, tau, observed=np.zeros(12))

network = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=16, head_depth=1),
    pmcl.CouplingFlow(layers=2, width=8, depth=1, knots=4, affine_width=16),
)
# 20 simulations and 13 datasets cannot be shared evenly by eight
posterior = pmcl.fit_amortized(
    model, network=network, steps=40, batch_size=20, random_seed=1, **spread, **quiet
)
data = {"y": np.random.default_rng(0).normal(1.0, 2.0, size=(13, 12))}
adapted = posterior.adapt(
    data, name="one", strategy=pmcl.Replay(simulations=6), steps=10, batch_size=10,
    random_seed=2, **spread, **quiet,
)  # fmt: skip
plain = adapted.sample(data, 50, refine=False, random_seed=3, log_likelihood=True, **spread)


def weights(posterior: pmcl.AmortizedPosterior) -> list[float]:
    import equinox as eqx

    leaves = jax.tree.leaves(eqx.filter(posterior.amortizer, posterior.amortizer.trainable()))
    assert all(len(leaf.devices()) == 1 for leaf in leaves)
    return np.concatenate([np.ravel(leaf) for leaf in leaves]).tolist()


found = {
    "devices": jax.device_count(),
    "shared": sorted(shared),
    "fitted": weights(posterior),
    "adapted": weights(adapted),
    "losses": posterior.pretraining[0].losses.tolist(),
    "plain": plain["unconstrained_posterior"]["mu"].values[0].tolist(),
    "log_likelihood": plain["log_likelihood"]["y"].values[0, :, :, 0].tolist(),
}
quick = pmcl.Refine(steps=5, draws=4, enough=2.0, rounds=0)
refined = adapted.sample(data, 300, refine=quick, correct=None, random_seed=4, **spread)
aligned = pmcl.Refine(steps=0, rounds=0)
alone = pmcl.refine(
    model, data, refine=aligned, draws=300, correct=None, random_seed=5, **spread, **quiet
)
# what draws say together, not single ones: a search may end a step earlier
found["refined"] = refined["posterior"]["mu"].mean(("chain", "draw")).values.tolist()
found["evidence"] = refined["dataset_stats"]["log_evidence"].values.tolist()
found["alone"] = alone["dataset_stats"]["log_evidence"].values.tolist()
path.write_text(json.dumps(found))
