"""Tasks of the benchmark of simulation-based inference, as PyMC models.

Lueckmann, Boelts, Greenberg, Goncalves & Macke (2021), Benchmarking simulation-based inference,
appendix T. Observations and reference draws come from the folder PMCL_DATA, `sbibm/`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr

import pmcl

OBSERVATIONS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Benchmark:
    """One task.

    Attributes
    ----------
    name : str
    model : callable
    shape : tuple of int
        Of the observed variable `x`.
    parameters : callable
        From a group `posterior` to draws of shape (draw, dataset, dim), as the reference has them.
    raw : bool
        Observations are those before summaries.
    summary : AbstractSummary
        Of the network.
    steps : int
        Most steps of its training.
    patience : int, optional
        Of `fit_amortized`. Where a density has an edge the loss on what is held back jumps, and
        training would end too soon.
    """

    name: str
    model: Callable[[], pm.Model]
    shape: tuple[int, ...]
    parameters: Callable[[xr.Dataset], np.ndarray]
    raw: bool = False
    summary: pmcl.AbstractSummary = field(default_factory=pmcl.Flatten)
    steps: int = 10_000
    patience: int | None = 4

    def observed(self) -> dict[str, np.ndarray]:
        """All observations, as datasets."""
        file = "observation_raw" if self.raw else "observation"
        rows = [_read(self.name, i, f"{file}.csv") for i in OBSERVATIONS]
        return {"x": np.stack([r.reshape(self.shape) for r in rows])}

    def reference(self, observation: int) -> np.ndarray:
        """Reference draws, shape (draw, dim)."""
        return _read(self.name, observation, "reference_posterior.csv.gz")


def folder() -> Path:
    """Where the observations are.

    Raises
    ------
    FileNotFoundError
    """
    path = Path(os.environ.get("PMCL_DATA", "")) / "sbibm"
    if not path.is_dir():
        raise FileNotFoundError(
            "sbibm: set PMCL_DATA to a folder that holds sbibm/<task>/obs_01_observation.csv and "
            "the other files of sbi-benchmark/sbibm, sbibm/tasks/<task>/files"
        )
    return path


def published() -> pd.DataFrame:
    """C2ST of published algorithms on these observations, by task, algorithm and simulations."""
    table = pd.read_csv(folder() / "published_results.csv.gz")
    table = table[table["num_observation"].isin(OBSERVATIONS)]
    mixture = table["task"] == "gaussian_mixture"
    rerun = table["source"] == "gaussian_mixture_rerun"
    table = table[mixture == rerun]
    return table.groupby(["task", "algorithm", "num_simulations"])["C2ST"].mean().reset_index()


def _read(task: str, observation: int, file: str) -> np.ndarray:
    path = folder() / task / f"obs_{observation:02d}_{file}"
    return np.squeeze(pd.read_csv(path).to_numpy(float))


def gaussian_linear() -> pm.Model:
    with pm.Model(coords={"dim": range(10)}) as model:
        theta = pm.Normal("theta", 0, np.sqrt(0.1), dims="dim")
        pm.Normal("x", theta, np.sqrt(0.1), observed=np.zeros(10), dims="dim")
    return model


def gaussian_linear_uniform() -> pm.Model:
    with pm.Model(coords={"dim": range(10)}) as model:
        theta = pm.Uniform("theta", -1, 1, dims="dim")
        pm.Normal("x", theta, np.sqrt(0.1), observed=np.zeros(10), dims="dim")
    return model


def slcp() -> pm.Model:
    """Four points in the plane, of one normal whose covariance is not linear in the parameters."""
    coords = {"parameter": range(5), "point": range(4), "axis": ["x", "y"]}
    with pm.Model(coords=coords) as model:
        t = pm.Uniform("theta", -3, 3, dims="parameter")
        s1, s2, rho = t[2] ** 2, t[3] ** 2, pt.tanh(t[4])
        between = rho * s1 * s2
        cov = pt.stack([s1**2 + 1e-6, between, between, s2**2 + 1e-6]).reshape((2, 2))
        pm.MvNormal("x", t[:2], cov=cov, observed=np.zeros((4, 2)), dims=("point", "axis"))
    return model


def gaussian_mixture() -> pm.Model:
    """Two normals about one mean, a wide one and a narrow one."""
    with pm.Model(coords={"axis": range(2)}) as model:
        theta = pm.Uniform("theta", -10, 10, dims="axis")
        parts = [pm.MvNormal.dist(theta, cov=s**2 * np.eye(2)) for s in (1.0, 0.1)]
        pm.Mixture("x", [0.5, 0.5], parts, observed=np.zeros(2), dims="axis")
    return model


def two_moons() -> pm.Model:
    """Two crescents: a radius about 0.1, and an angle of the right half-plane."""

    def centre(theta: pt.TensorVariable) -> pt.TensorVariable:
        first = -pt.abs(theta[0] + theta[1]) / np.sqrt(2) + 0.25
        return pt.stack([first, (-theta[0] + theta[1]) / np.sqrt(2)])

    def logp(value: pt.TensorVariable, theta: pt.TensorVariable) -> pt.TensorVariable:
        away = value - centre(theta)
        radius = pt.sqrt(pt.sum(away**2) + 1e-30)
        density = pm.logp(pm.Normal.dist(0.1, 0.01), radius) - pt.log(np.pi * radius)
        return pt.switch(away[0] > 0, density, -np.inf)

    def random(theta: np.ndarray, rng: np.random.Generator, size: object = None) -> np.ndarray:
        shape = theta.shape[:-1] if size is None else tuple(np.atleast_1d(size))
        t1, t2 = np.broadcast_to(theta[..., 0], shape), np.broadcast_to(theta[..., 1], shape)
        angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, shape), rng.normal(0.1, 0.01, shape)
        first = radius * np.cos(angle) + 0.25 - np.abs(t1 + t2) / np.sqrt(2)
        return np.stack([first, radius * np.sin(angle) + (t2 - t1) / np.sqrt(2)], axis=-1)

    with pm.Model(coords={"axis": range(2)}) as model:
        theta = pm.Uniform("theta", -1, 1, dims="axis")
        pm.CustomDist(
            "x", theta, logp=logp, random=random, signature="(n)->(n)",
            observed=np.zeros(2), dims="axis",
        )  # fmt: skip
    return model


def bernoulli_glm() -> pm.Model:
    """Spikes of a neuron: an offset, and a filter with a prior for smoothness."""
    design = pd.read_csv(folder() / "bernoulli_glm" / "design_matrix.csv").to_numpy(float)
    size = design.shape[1] - 1
    difference = np.eye(size) - np.diag(np.ones(size - 1), -1)
    # The benchmark's own: differences of differences.
    difference = difference @ difference + np.diag((np.arange(size) / size) ** 0.5)
    precision = np.zeros((size + 1, size + 1))
    precision[0, 0] = 0.5
    precision[1:, 1:] = difference.T @ difference
    with pm.Model(coords={"bin": range(len(design)), "parameter": range(size + 1)}) as model:
        theta = pm.MvNormal("theta", np.zeros(size + 1), tau=precision, dims="parameter")
        pm.Bernoulli("x", logit_p=design @ theta, observed=np.zeros(len(design), int), dims="bin")
    return model


def sir(steps: int = 4) -> pm.Model:
    """An epidemic of a million people, of whom one is infected; ten samples of a thousand.

    With four steps a day a share is within 0.01 binomial standard deviations of that with 20.
    """

    def slope(s: pt.TensorVariable, i: pt.TensorVariable, beta: object, gamma: object) -> tuple:
        infected = beta * s * i
        return -infected, infected - gamma * i

    def day(s, i, beta, gamma):  # noqa: ANN001, ANN202
        h = 1.0 / steps
        for _ in range(steps):  # Runge and Kutta's fourth order
            a = slope(s, i, beta, gamma)
            b = slope(s + h / 2 * a[0], i + h / 2 * a[1], beta, gamma)
            c = slope(s + h / 2 * b[0], i + h / 2 * b[1], beta, gamma)
            d = slope(s + h * c[0], i + h * c[1], beta, gamma)
            s, i = (
                v + h / 6 * (p + 2 * q + 2 * r + t)
                for v, p, q, r, t in zip((s, i), a, b, c, d, strict=True)
            )
        return s, i

    people = 1e6
    with pm.Model(coords={"sample": range(10)}) as model:
        beta = pm.LogNormal("beta", np.log(0.4), 0.5)
        gamma = pm.LogNormal("gamma", np.log(0.125), 0.2)
        (_, infected), _ = pytensor.scan(
            day,
            outputs_info=[pt.constant(1 - 1 / people), pt.constant(1 / people)],
            non_sequences=[beta, gamma],
            n_steps=160,
        )
        share = pt.concatenate([[1 / people], infected])[::17][:10]
        pm.Binomial(
            "x", 1000, pt.clip(share, 1e-12, 1 - 1e-12), observed=np.zeros(10, int), dims="sample"
        )
    return model


def _theta(posterior: xr.Dataset) -> np.ndarray:
    return posterior["theta"].values[0]


BENCHMARKS = {
    b.name: b
    for b in (
        Benchmark("gaussian_linear", gaussian_linear, (10,), _theta),
        Benchmark("gaussian_linear_uniform", gaussian_linear_uniform, (10,), _theta),
        Benchmark("slcp", slcp, (4, 2), _theta, summary=pmcl.DeepSet()),
        Benchmark("gaussian_mixture", gaussian_mixture, (2,), _theta),
        Benchmark("two_moons", two_moons, (2,), _theta, steps=6_000, patience=None),
        Benchmark("bernoulli_glm", bernoulli_glm, (100,), _theta, raw=True),
        Benchmark(
            "sir", sir, (10,),
            lambda p: np.stack([p["beta"].values[0], p["gamma"].values[0]], axis=-1),
        ),
    )
}  # fmt: skip
