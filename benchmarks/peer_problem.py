"""What every library is measured at, in NumPy, and how an amortized one is timed.

It runs in every library's own environment, so that it needs nothing but NumPy. Two problems: the
regression of experiment 1, with any number of rows and predictors, and a normal model of groups.
"""

import argparse
import json
import os
import resource
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from peer_clock import now

MOST_SECONDS = 200.0  # that drawing may take; more datasets are not tried beyond
ROWS_OF_A_GROUP = 5
EPOCHS = 10  # that a simulation is seen, where they are made beforehand


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


def simulate_groups(rng: np.random.Generator, n: int, groups: int) -> np.ndarray:
    """Draw y, of shape (n, groups * 5), of groups whose means are normal.

    mu ~ N(0, 1), tau and sigma ~ HalfNormal(1), a_j ~ N(mu, tau), y_ij ~ N(a_j, sigma).
    """
    mu, tau, sigma = rng.standard_normal((3, n, 1))
    mean = mu + np.abs(tau) * rng.standard_normal((n, groups))
    noise = rng.standard_normal((n, groups * ROWS_OF_A_GROUP))
    return np.repeat(mean, ROWS_OF_A_GROUP, axis=1) + np.abs(sigma) * noise


def made_before(steps: int, batch: int) -> tuple[int, int]:
    """How many simulations make so many steps in `EPOCHS`, a tenth held back; steps of an epoch."""
    number = max(steps // EPOCHS, 4) * batch * 10 // 9
    return number, int(number * 0.9) // batch


class Engine(ABC):
    """An amortized library: train a network, then draw."""

    def __init__(self, rows: int, predictors: int, batch: int):
        self.rows, self.predictors, self.batch = rows, predictors, batch

    @abstractmethod
    def train(self, steps: int) -> dict[str, float]:
        """Train from nothing, as a user does; return steps_per_second, warm, and what is of note.

        0 steps are the library's own number, where it has one.
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


def say(found: dict) -> None:
    """Print one JSON object, after whatever a library has printed."""
    print()
    print(json.dumps(found | {"clock": "CPU", "cores": len(os.sched_getaffinity(0))}))


def measured(make: type[Engine], imported: float, version: str) -> None:
    """Train and draw as the command line says; print one JSON object, and save draws."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--predictors", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300, help="0: the library's own number")
    parser.add_argument("--datasets", type=int, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--test", type=Path, help="npz with X and y, to be judged by draws")
    parser.add_argument("--out", type=Path, help="npz for these draws")
    given = parser.parse_args()
    engine = make(given.rows, given.predictors, given.batch)
    begin = now()
    details = engine.train(given.steps)
    found = {
        "version": version,
        "seconds_to_import": imported,
        "seconds_to_train": now() - begin,
        "steps": given.steps,
        **details,
        "peak_gib_of_training": peak_gib(),
    }
    saved = {}
    if given.test is not None:
        test = np.load(given.test)
        for kind, draw in (("plain", engine.draw), ("corrected", engine.corrected)):
            for when in ("first", "again"):
                begin = now()
                draws = draw(test["X"], test["y"], given.draws)
                if draws is not None:
                    found[f"seconds_{kind}_{when}"] = now() - begin
                    saved[kind] = draws
    drawn = []
    for n in given.datasets:
        _, X, y = simulate(np.random.default_rng(1), n, given.rows, given.predictors)
        if n <= 1000:
            engine.draw(X, y, given.draws)  # compiles, where that is done
        begin = now()
        engine.draw(X, y, given.draws)
        seconds = now() - begin
        drawn.append({"datasets": n, "seconds": seconds})
        if 10 * seconds > MOST_SECONDS:
            break
    if given.out is not None:
        np.savez(given.out, **saved)
    say(found | {"drawn": drawn, "peak_gib": peak_gib()})
