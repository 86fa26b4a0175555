"""Time BayesFlow's pretraining of the paper's first experiment; print one JSON object.

Run in the environment of requirements-benchmarks.txt. The network has the sizes of ours, built
from BayesFlow's own parts, and is trained as BayesFlow trains online (`fit_online`, whose steps
Keras compiles). What would only slow it down is left out: no progress bar, no dropout (ours has
none), one simulator call a batch that already gives the network's inputs in single precision.

Where the two libraries count differently: one layer of BayesFlow's coupling flow is two
couplings, each with its own network, so --depth 6 has twelve networks where flowjax's six layers
have six. The feed-forward parts of its attention blocks are gated (SwiGLU): --hidden 128 asks for
one with as many weights as an ordinary network with a hidden layer of 128 units.
"""

import argparse
import json
import os
import resource
import time
from importlib.metadata import version

START = time.perf_counter()
os.environ["KERAS_BACKEND"] = "jax"

import bayesflow as bf  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

IMPORTED = time.perf_counter()
ROWS, PREDICTORS, BATCH = 100, 5, 32


class Clock(keras.callbacks.Callback):
    """Note when the first step is done, and when each epoch is."""

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None
        self.epochs: list[float] = []
        self.cpu: list[float] = []
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.first is None:
            float(logs["loss"])  # waits for the device
            self.first = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.epochs.append(time.perf_counter())
        self.cpu.append(time.process_time())


def simulator(rng: np.random.Generator):
    """Draw from the prior of experiment 1: alpha, beta ~ N(0, 1), sigma ~ HalfNormal(1)."""

    def sample(batch_shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        alpha = rng.standard_normal((*batch_shape, 1), dtype=np.float32)
        beta = rng.standard_normal((*batch_shape, PREDICTORS), dtype=np.float32)
        sigma = np.abs(rng.standard_normal((*batch_shape, 1), dtype=np.float32))
        X = rng.standard_normal((*batch_shape, ROWS, PREDICTORS), dtype=np.float32)
        noise = rng.standard_normal((*batch_shape, ROWS), dtype=np.float32)
        y = alpha + (X @ beta[..., None])[..., 0] + sigma * noise
        return {
            "inference_variables": np.concatenate([alpha, beta, np.log(sigma)], axis=-1),
            "summary_variables": np.concatenate([X, y[..., None]], axis=-1),
        }

    return bf.simulators.LambdaSimulator(sample, is_batched=True)


def build(
    options: argparse.Namespace, simulations: bf.simulators.Simulator | None = None
) -> bf.BasicWorkflow:
    """Join BayesFlow's set transformer and spline coupling flow."""
    width = 64
    summary = bf.networks.SetTransformer(
        summary_dim=50,
        embed_dims=(width, width),
        num_heads=(4, 4),
        num_seeds=1,
        num_inducing_points=options.inducing or None,
        expansion_factor=options.hidden / width,
        dropout=0.0,
    )
    flow = bf.networks.CouplingFlow(
        depth=options.depth,
        transform="spline",
        transform_kwargs={"bins": options.bins, "default_domain": (-5.0, 5.0, -5.0, 5.0)},
        subnet_kwargs={"widths": (128, 128), "activation": "elu", "dropout": 0.0},
    )
    return bf.BasicWorkflow(
        simulator=simulations or simulator(np.random.default_rng(options.seed)),
        # an empty adapter would be replaced by the default one; this has nothing to do either
        adapter=bf.Adapter().convert_dtype("float64", "float32"),
        inference_network=flow,
        summary_network=summary,
        standardize="all",
    )


def main() -> None:
    """Train for a few epochs, and time all but the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3, help="epochs that are timed")
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    parser.add_argument("--depth", type=int, default=6, help="layers of two couplings each")
    parser.add_argument("--inducing", type=int, default=16, help="inducing points; 0: none")
    parser.add_argument("--hidden", type=int, default=128, help="units of feed-forward parts")
    parser.add_argument("--bins", type=int, default=8, help="bins of the splines")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    keras.utils.set_random_seed(options.seed)
    clock = Clock()
    load = os.getloadavg()[0]  # of the other programs: a shared machine makes rough numbers
    begin = time.perf_counter()
    workflow = build(options)
    workflow.fit_online(
        epochs=options.epochs + 1,  # the first one compiles
        num_batches_per_epoch=options.steps,
        batch_size=BATCH,
        callbacks=[clock],
        verbose=0,
    )
    if clock.first is None:
        raise RuntimeError("no training step was seen: expected --steps of at least 1")
    seconds = np.diff(clock.epochs)
    timed = options.epochs * options.steps
    result = {
        "library": "bayesflow",
        "version": version("bayesflow"),
        "backend": f"keras {version('keras')}, jax {version('jax')}",
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(load, 2),
        "settings": vars(options) | {"batch": BATCH, "rows": ROWS},
        "parameters": sum(int(np.prod(v.shape)) for v in workflow.estimator.trainable_variables),
        "seconds_to_import": round(IMPORTED - START, 3),
        "seconds_to_first_step": round(clock.first - begin, 3),
        "seconds_to_first_epoch": round(clock.epochs[0] - begin, 3),
        "steps_timed": timed,
        "steps_per_second": round(timed / float(seconds.sum()), 3),
        "steps_per_second_by_epoch": [round(options.steps / float(s), 3) for s in seconds],
        # of all threads: what a busy machine distorts least
        "cpu_seconds_per_step": round((clock.cpu[-1] - clock.cpu[0]) / timed, 4),
        "loss_by_epoch": [round(loss, 3) for loss in clock.losses],
        # kilobytes on Linux
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
