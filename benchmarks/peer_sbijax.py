"""sbijax at the problem of `peer_problem`; in the environment of requirements-benchmarks.txt.

Neural posterior estimation with its masked autoregressive flow as it comes, on simulations made
beforehand, in its own batches. It has no permutation-invariant network of rows: the flow sees all
numbers of a dataset. It stops by its own rule, or after `steps` steps.
"""

from importlib.metadata import version

from peer_clock import now

BEGIN = now()
import jax  # noqa: E402
import numpy as np  # noqa: E402
import sbijax  # noqa: E402
from peer_problem import EPOCHS, Engine, made_before, measured, simulate  # noqa: E402
from sbijax.nn import make_maf  # noqa: E402

IMPORTED = now() - BEGIN


class Sbijax(Engine):
    """`train` and `sample` of an `npe`."""

    def train(self, steps: int) -> dict[str, float]:
        number, an_epoch = made_before(steps, self.batch)
        theta, X, y = simulate(np.random.default_rng(0), number, self.rows, self.predictors)
        self.objective = sbijax.npe(make_maf(self.predictors + 2))
        self.params, info = sbijax.train(
            jax.random.key(0), self.objective, {"y": numbers(X, y), "theta": theta},
            n_iter=EPOCHS, batch_size=self.batch,
        )  # fmt: skip
        return {"steps_made": len(info.losses) * an_epoch}

    def draw(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        found = [
            sbijax.sample(jax.random.key(i), self.objective, self.params, one, n_samples=draws)[0]
            for i, one in enumerate(numbers(X, y))
        ]
        return np.concatenate([np.asarray(one["theta"]) for one in found])


def numbers(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """All numbers of each dataset, of shape (dataset, number)."""
    rows = np.concatenate([X, y[..., None]], axis=-1)
    return rows.reshape(len(rows), -1)


if __name__ == "__main__":
    measured(Sbijax, IMPORTED, f"sbijax {version('sbijax')}")
