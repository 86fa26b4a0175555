"""pmcl at the problem of `peer_problem`; with `--large` a network of the peers' size."""

import sys

from peer_clock import now

BEGIN = now()
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from peer_problem import Engine, measured  # noqa: E402

import pmcl  # noqa: E402
from pmcl.demo.model import linear_regression_model  # noqa: E402

IMPORTED = now() - BEGIN
LARGE = "--large" in sys.argv


class Pmcl(Engine):
    """`fit_amortized` and `sample`."""

    def train(self, steps: int) -> dict[str, float]:
        network = pmcl.Network(
            pmcl.SetTransformer(outputs=50), pmcl.CouplingFlow(layers=6, width=128)
        )
        times = []
        self.posterior = pmcl.fit_amortized(
            linear_regression_model(self.rows, self.predictors),
            covariates={"X": pm.Normal.dist(0, 1)},
            exchangeable="obs",
            network=network if LARGE else None,
            steps=steps or None,
            batch_size=self.batch,
            callback=lambda step, loss, moment: times.append((step, now())),
            random_seed=0,
            progressbar=False,
        )
        # blocks of steps, each with the validation loss after it; the first compiles
        speeds = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in zip(times, times[1:], strict=False)]
        made = self.posterior.pretraining[0].steps
        speed = float(np.median(speeds)) if speeds else None
        return {"steps_made": made, "steps_per_second": speed}

    def draw(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        return self._z(X, y, draws, refine=False)

    def corrected(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        return self._z(X, y, draws, refine="auto")

    def _z(self, X: np.ndarray, y: np.ndarray, draws: int, *, refine: bool | str) -> np.ndarray:
        tree = self.posterior.sample({"X": X, "y": y}, draws, refine=refine, random_seed=1)
        found = tree["posterior"].to_dataset().isel(chain=0).transpose("dataset", "draw", ...)
        log_sigma = np.log(found["sigma"].values)[..., None]
        return np.concatenate(
            [found["alpha"].values[..., None], found["beta"].values, log_sigma], -1
        )


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", UserWarning)
    sys.argv = [a for a in sys.argv if a != "--large"]
    measured(Pmcl, IMPORTED, f"pmcl {pmcl.__version__}")
