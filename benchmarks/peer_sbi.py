"""sbi at the problem of `peer_problem`; in the environment of requirements-sbi.txt.

Neural posterior estimation with a spline flow of six transforms and 128 units, and a
permutation-invariant embedding, on simulations made beforehand, which is how sbi trains. It stops
by its own rule, or after `steps` steps.
"""

from importlib.metadata import version

from peer_clock import now

BEGIN = now()
import numpy as np  # noqa: E402
import torch  # noqa: E402
from peer_problem import EPOCHS, Engine, made_before, measured, simulate  # noqa: E402
from sbi.inference import NPE  # noqa: E402
from sbi.neural_nets import posterior_nn  # noqa: E402
from sbi.neural_nets.embedding_nets import (  # noqa: E402
    FCEmbedding,
    PermutationInvariantEmbedding,
)

IMPORTED = now() - BEGIN


class Sbi(Engine):
    """NPE, amortized."""

    def train(self, steps: int) -> dict[str, float]:
        torch.manual_seed(0)
        one = FCEmbedding(self.predictors + 1, output_dim=64, num_layers=2, num_hiddens=64)
        embedding = PermutationInvariantEmbedding(
            one, trial_net_output_dim=64, num_layers=2, num_hiddens=64, output_dim=50
        )
        network = posterior_nn(
            "nsf", embedding_net=embedding, num_transforms=6, hidden_features=128
        )
        number, an_epoch = made_before(steps, self.batch)
        theta, X, y = simulate(np.random.default_rng(0), number, self.rows, self.predictors)
        rows = torch.as_tensor(np.concatenate([X, y[..., None]], axis=-1))
        inference = NPE(density_estimator=network, show_progress_bars=False)
        inference.append_simulations(torch.as_tensor(theta), rows)
        # It trains for one epoch more than this number.
        inference.train(training_batch_size=self.batch, max_num_epochs=1)
        before = len(inference.summary["training_loss"])
        begin = now()
        inference.train(
            training_batch_size=self.batch, max_num_epochs=EPOCHS - 1, resume_training=True
        )
        seconds = now() - begin
        epochs = len(inference.summary["training_loss"]) - before
        self.posterior = inference.build_posterior()
        return {
            "steps_made": an_epoch * (before + epochs),
            "steps_per_second": an_epoch * epochs / seconds,
        }

    def draw(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        rows = torch.as_tensor(np.concatenate([X, y[..., None]], axis=-1))
        parts = [
            self.posterior.sample_batched((draws,), x=some, show_progress_bars=False).numpy()
            for some in torch.split(rows, 100)
        ]
        return np.moveaxis(np.concatenate(parts, axis=1), 0, 1)


if __name__ == "__main__":
    measured(Sbi, IMPORTED, f"sbi {version('sbi')}")
