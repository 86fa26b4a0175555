"""PyMC at the problem of `peer_problem`: NUTS of PyMC and of nutpie, ADVI, pathfinder.

One dataset after another, as a PyMC user does it: PyMC compiles for each, nutpie once for all.
Pathfinder is that of pymc-extras; the environment has to have it.
"""

import argparse
import json
import time
from pathlib import Path

BEGIN = time.perf_counter()
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import xarray as xr  # noqa: E402
from peer_problem import peak_gib  # noqa: E402

IMPORTED = time.perf_counter() - BEGIN


def model(X: np.ndarray, y: np.ndarray) -> pm.Model:
    """The regression, with its data as `pm.Data`."""
    with pm.Model() as built:
        data = pm.Data("X", X.astype(float))
        seen = pm.Data("seen", y.astype(float))
        alpha = pm.Normal("alpha")
        beta = pm.Normal("beta", shape=X.shape[1])
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", alpha + data @ beta, sigma, observed=seen)
    return built


def flat(posterior: xr.Dataset) -> np.ndarray:
    """Draws of (alpha, beta, log sigma), of shape (draw, dim)."""
    found = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
    columns = [found["alpha"].values[:, None], found["beta"].values, found["sigma"].values[:, None]]
    columns[-1] = np.log(columns[-1])
    return np.concatenate(columns, axis=1)


def nuts(X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
    with model(X, y):
        tree = pm.sample(
            draws, tune=1000, chains=4, nuts_sampler="pymc", random_seed=0, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    return flat(tree["posterior"].to_dataset())


class Nutpie:
    """Compiled at the first dataset."""

    def __init__(self) -> None:
        self.compiled = None

    def __call__(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        import nutpie

        if self.compiled is None:
            self.compiled = nutpie.compile_pymc_model(model(X, y))
        here = self.compiled.with_data(X=X.astype(float), seen=y.astype(float))
        tree = nutpie.sample(here, draws=draws, tune=1000, chains=4, seed=0, progress_bar=False)
        return flat(tree["posterior"].to_dataset() if "posterior" in tree else tree.posterior)


def advi(X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
    with model(X, y):
        fitted = pm.fit(20_000, method="advi", random_seed=0, progressbar=False)
        return flat(fitted.sample(draws, random_seed=0)["posterior"].to_dataset())


def pathfinder(X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
    import pymc_extras

    tree = pymc_extras.fit_pathfinder(
        model(X, y), num_draws=draws, random_seed=0, progressbar=False
    )
    return flat(tree["posterior"].to_dataset())


def main() -> None:
    """Time one method at some datasets; print one JSON object, and save draws."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=["nuts", "nutpie", "advi", "pathfinder"])
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--datasets", type=int, default=10)
    given = parser.parse_args()
    method = {"nuts": nuts, "nutpie": Nutpie(), "advi": advi, "pathfinder": pathfinder}[
        given.method
    ]
    test = np.load(given.test)
    seconds, found = [], []
    for X, y in zip(test["X"][: given.datasets], test["y"], strict=False):
        begin = time.perf_counter()
        found.append(method(X, y, given.draws))
        seconds.append(time.perf_counter() - begin)
    fewest = min(map(len, found))
    if given.out is not None:
        np.savez(given.out, plain=np.stack([f[:fewest] for f in found]))
    print()
    print(
        json.dumps(
            {
                "seconds_to_import": IMPORTED,
                "seconds_of_the_first": seconds[0],
                "seconds_a_dataset": float(np.median(seconds[1:] or seconds)),
                "draws": fewest,
                "peak_gib": peak_gib(),
            }
        )
    )


if __name__ == "__main__":
    main()
