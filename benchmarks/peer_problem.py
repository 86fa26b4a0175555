"""What every library is measured at: one regression, in NumPy, and how an amortized one is timed.

It runs in every library's own environment, so that it needs nothing but NumPy.
"""

import argparse
import json
import os
import resource
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

MOST_SECONDS = 600.0  # that drawing may take; more datasets are not tried beyond


def simulate(
    rng: np.random.Generator, n: int, rows: int, predictors: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw parameters (alpha, beta, log sigma) of shape (n, dim), X and y from the joint.

    alpha, beta ~ N(0, 1), sigma ~ HalfNormal(1): experiment 1 where there are five predictors.
    """
    theta = rng.standard_normal((n, predictors + 2))
    theta[:, -1] = np.log(np.abs(theta[:, -1]))
    X = rng.standard_normal((n, rows, predictors))
    noise = np.exp(theta[:, -1:]) * rng.standard_normal((n, rows))
    y = theta[:, :1] + (X @ theta[:, 1:-1, None])[..., 0] + noise
    return tuple(np.asarray(v, np.float32) for v in (theta, X, y))


class Engine(ABC):
    """An amortized library: train a network, then draw."""

    def __init__(self, rows: int, predictors: int, batch: int):
        self.rows, self.predictors, self.batch = rows, predictors, batch

    @abstractmethod
    def train(self, steps: int) -> dict[str, float]:
        """Train from nothing.

        Returns
        -------
        dict
            seconds_to_first_step, steps_per_second (warm), and perhaps `seconds`, where more than
            a user would do was done here.
        """

    @abstractmethod
    def draw(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
        """Draw parameters: an array of shape (dataset, draw, dim)."""

    def corrected(self, X: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray | None:
        """Draws that are corrected with the density, where the library can."""
        return None


def peak_gib() -> float:
    """Peak resident memory of this process, and of as many others as its cores run at a time."""
    own, others = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    # Compilers are children, too, but small ones.
    running = len(os.sched_getaffinity(0)) if others > own / 4 else 0
    return (own + running * others) / 2**20


def measured(make: type[Engine], imported: float) -> None:
    """Train and draw as the command line says; print one JSON object, and save draws."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--predictors", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, nargs="+", default=[300])
    parser.add_argument("--datasets", type=int, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--draws-of-many", type=int, default=1000, help="of `--datasets`")
    parser.add_argument("--test", type=Path, help="npz with X and y, to be judged by draws")
    parser.add_argument("--out", type=Path, help="npz for these draws")
    given = parser.parse_args()
    trained, saved = [], {}
    for steps in given.steps:
        begin = time.perf_counter()
        engine = make(given.rows, given.predictors, given.batch)
        found = engine.train(steps)
        found = {"steps": steps, "seconds": time.perf_counter() - begin, **found}
        if given.test is not None:
            test = np.load(given.test)
            saved[f"plain_{steps}"] = engine.draw(test["X"], test["y"], given.draws)
            begin = time.perf_counter()
            corrected = engine.corrected(test["X"], test["y"], given.draws)
            if corrected is not None:
                saved[f"corrected_{steps}"] = corrected
                found["seconds_to_correct"] = time.perf_counter() - begin
        trained.append(found)
    drawn = []
    for n in given.datasets:
        _, X, y = simulate(np.random.default_rng(1), n, given.rows, given.predictors)
        if n <= 1000:
            engine.draw(X, y, given.draws_of_many)  # compiles, where that is done
        begin = time.perf_counter()
        engine.draw(X, y, given.draws_of_many)
        seconds = time.perf_counter() - begin
        rate = n * given.draws_of_many / seconds
        drawn.append({"datasets": n, "seconds": seconds, "draws_per_second": rate})
        if 10 * seconds > MOST_SECONDS:
            break
    if given.out is not None:
        np.savez(given.out, **saved)
    print()
    print(
        json.dumps(
            {
                "seconds_to_import": imported,
                "trained": trained,
                "drawn": drawn,
                "peak_gib": peak_gib(),
                "cores": len(os.sched_getaffinity(0)),
            }
        )
    )
