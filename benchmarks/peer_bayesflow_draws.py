"""BayesFlow at the problem of `peer_problem`, with the network of `peer_bayesflow`."""

import argparse
import os
import time

BEGIN = time.perf_counter()
os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import keras  # noqa: E402
import numpy as np  # noqa: E402
from peer_bayesflow import Clock, bf, build  # noqa: E402
from peer_problem import Engine, measured, simulate  # noqa: E402

IMPORTED = time.perf_counter() - BEGIN
EPOCH = 100  # steps


class BayesFlow(Engine):
    """`fit_online` and `sample`."""

    def train(self, steps: int) -> dict[str, float]:
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)

        def sample(batch_shape: tuple[int, ...]) -> dict[str, np.ndarray]:
            theta, X, y = simulate(rng, batch_shape[0], self.rows, self.predictors)
            rows = np.concatenate([X, y[..., None]], axis=-1)
            return {"inference_variables": theta, "summary_variables": rows}

        # three layers of two couplings each: as many couplings as the others have
        options = argparse.Namespace(depth=3, inducing=16, hidden=128, bins=8, seed=0)
        clock = Clock()
        begin = time.perf_counter()
        simulator = bf.simulators.LambdaSimulator(sample, is_batched=True)
        self.workflow = build(options, simulator)
        epoch = min(EPOCH, max(steps // 2, 1))
        self.workflow.fit_online(
            epochs=max(steps // epoch, 2), num_batches_per_epoch=epoch, batch_size=self.batch,
            callbacks=[clock], verbose=0,
        )  # fmt: skip
        assert clock.first is not None
        return {
            "seconds_to_first_step": clock.first - begin,
            "steps_per_second": epoch / float(np.median(np.diff(clock.epochs))),
        }

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
    measured(BayesFlow, IMPORTED)
