"""pmcl at the problem of `peer_problem`; with `--default-network` first, its default network."""

import sys
import time

BEGIN = time.perf_counter()
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from peer_problem import Engine, measured  # noqa: E402

import pmcl  # noqa: E402
from pmcl.demo.model import linear_regression_model  # noqa: E402

IMPORTED = time.perf_counter() - BEGIN
DEFAULT = "--default-network" in sys.argv


class Pmcl(Engine):
    """`fit_amortized` and `sample`."""

    def train(self, steps: int) -> dict[str, float]:
        network = pmcl.Network(
            pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128)
        )
        options = {
            "covariates": {"X": pm.Normal.dist(0, 1)}, "exchangeable": "obs", "random_seed": 0,
            "network": None if DEFAULT else network, "progressbar": False,
        }  # fmt: skip
        model = linear_regression_model(self.rows, self.predictors)
        begin = time.perf_counter()
        pmcl.fit_amortized(model, steps=1, batch_size=self.batch, validation=32, **options)
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        self.posterior = pmcl.fit_amortized(model, steps=steps, batch_size=self.batch, **options)
        seconds = time.perf_counter() - begin
        return {
            "seconds": seconds, "seconds_to_first_step": first, "steps_per_second": self.speed(),
        }  # fmt: skip

    def speed(self, blocks: int = 3, size: int = 100) -> float:
        """Steps per second of the training loop that `fit_amortized` runs, warm."""
        import jax

        from pmcl.runtime import precision
        from pmcl.training import Optimiser
        from pmcl.training.loop import run_block, start
        from pmcl.training.pretraining import SimulationLoss

        size = max(size * 100 // self.rows, 5) if self.rows > 100 else size
        with precision.scope():
            optimiser = Optimiser.of(5e-4, 100_000)
            problem = SimulationLoss(self.posterior.simulator, self.batch)
            amortizer = self.posterior.amortizer
            state = start(amortizer, optimiser, 0)
            times = []
            for _ in range(blocks + 1):
                begin = time.perf_counter()
                state, _ = run_block(problem, optimiser, amortizer, state, {}, size)
                jax.block_until_ready(state.step)
                times.append(time.perf_counter() - begin)
        return size / float(np.median(times[1:]))

    def draw(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        return self._z(X, y, draws, refine=False)

    def corrected(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        return self._z(X, y, draws, refine=True)

    def _z(self, X: np.ndarray, y: np.ndarray, draws: int, *, refine: bool) -> np.ndarray:
        tree = self.posterior.sample({"X": X, "y": y}, draws, refine=refine, random_seed=1)
        found = tree["posterior"].to_dataset().isel(chain=0).transpose("dataset", "draw", ...)
        log_sigma = np.log(found["sigma"].values)[..., None]
        return np.concatenate(
            [found["alpha"].values[..., None], found["beta"].values, log_sigma], -1
        )


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", UserWarning)
    sys.argv = [a for a in sys.argv if a != "--default-network"]
    measured(Pmcl, IMPORTED)
