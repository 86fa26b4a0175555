"""BayesFlow at the problem of `peer_problem`, with the network of `peer_bayesflow`.

With `--default-networks` its own: a DeepSet and a coupling flow as they come.
"""

import argparse
import os
import sys
from importlib.metadata import version

from peer_clock import now

BEGIN = now()
os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import keras  # noqa: E402
import numpy as np  # noqa: E402
from peer_bayesflow import Clock, bf, build  # noqa: E402
from peer_problem import Engine, measured, simulate  # noqa: E402

IMPORTED = now() - BEGIN
EPOCH = 100  # steps
OWN = "--default-networks" in sys.argv


class BayesFlow(Engine):
    """`fit_online` and `sample`."""

    def train(self, steps: int) -> dict[str, float]:
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)

        def sample(batch_shape: tuple[int, ...]) -> dict[str, np.ndarray]:
            theta, X, y = simulate(rng, batch_shape[0], self.rows, self.predictors)
            rows = np.concatenate([X, y[..., None]], axis=-1)
            return {"inference_variables": theta, "summary_variables": rows}

        clock = Clock()
        simulator = bf.simulators.LambdaSimulator(sample, is_batched=True)
        if OWN:
            self.workflow = bf.BasicWorkflow(
                simulator=simulator,
                adapter=bf.Adapter().convert_dtype("float64", "float32"),
                inference_network="coupling_flow",
                summary_network="deep_set",
                standardize="all",
            )
        else:
            # three layers of two couplings each: as many couplings as the others have
            options = argparse.Namespace(depth=3, inducing=16, hidden=128, bins=8, seed=0)
            self.workflow = build(options, simulator)
        epoch = min(EPOCH, max(steps // 4, 1))
        self.workflow.fit_online(
            epochs=max(steps // epoch, 2), num_batches_per_epoch=epoch, batch_size=self.batch,
            callbacks=[clock], verbose=0,
        )  # fmt: skip
        return {"steps_per_second": epoch / float(np.median(np.diff(clock.cpu)))}

    def draw(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        rows = np.concatenate([X, y[..., None]], axis=-1)
        parts = [
            self.workflow.sample(
                conditions={"summary_variables": rows[i : i + 100]}, num_samples=draws
            )["inference_variables"]
            for i in range(0, len(rows), 100)
        ]
        return np.concatenate(parts)


if __name__ == "__main__":
    sys.argv = [a for a in sys.argv if a != "--default-networks"]
    measured(BayesFlow, IMPORTED, f"BayesFlow {version('bayesflow')}")
