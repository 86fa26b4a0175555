"""Classifiers as PyMC models, whose weights are followed online; and the images they classify."""

import os
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from jax import Array

import pmcl


class Images(NamedTuple):
    """Images as rows of numbers between 0 and 1, and their labels."""

    X: np.ndarray
    y: np.ndarray


LIT = 100  # pixels of an image that are not black, more or less


def classifier(
    inputs: int,
    hidden: tuple[int, ...],
    labels: int,
    heads: int = 1,
    *,
    prior: float | None = None,
) -> pm.Model:
    """Fully connected network with normal weights; for several tasks a head for each.

    Parameters
    ----------
    inputs : int
    hidden : tuple of int
        Units of each hidden layer.
    labels : int
    heads : int
        More than one: `head` says which one each row has.
    prior : float, optional
        Standard deviation of the weights, times the square root of what goes into a unit; one for
        every weight by default, as in the paper.
    """

    def scale(n: int, activation: str) -> float:
        return 1.0 if prior is None else prior * pmcl.prior_scale(n, activation)

    coords = {"row": range(1), "input": range(inputs)}
    with pm.Model(coords=coords) as model:
        X = pm.Data("X", np.zeros((1, inputs), np.float32), dims=("row", "input"))
        layer, n, sd = X, inputs, scale(min(inputs, LIT), "linear")
        for i, units in enumerate(hidden):
            W = pm.Normal(f"W{i}", 0, sd, shape=(n, units))
            b = pm.Normal(f"b{i}", 0, 1, shape=units)
            layer, n, sd = pt.maximum(layer @ W + b, 0), units, scale(units, "relu")
        V = pm.Normal("V", 0, sd, shape=(n, heads * labels))
        c = pm.Normal("c", 0, 1, shape=heads * labels)
        score = layer @ V + c
        if heads > 1:
            head = pm.Data("head", np.zeros(1, int), dims="row")
            score = score.reshape((-1, heads, labels))[pt.arange(X.shape[0]), head]
        pm.Categorical("y", logit_p=score, observed=np.zeros(1, int), dims="row")
    return model


def probabilities(
    stream: pmcl.OnlinePosterior, X: np.ndarray, head: int = 0, *, labels: int, draws: int = 10,
    task: str | None = None,
) -> np.ndarray:  # fmt: skip
    """Return predictive probabilities, shape (row, label): means over draws of weights."""
    q = stream.approximation(task=task)
    with jax.enable_x64(False):
        noise = jax.random.normal(jax.random.key(0), (draws, stream.compiled.dim), jnp.float32)
        z = jnp.asarray(q.mean) + jnp.exp(jnp.asarray(q.log_sd)) * noise
        parts = [stream.compiled.unravel(one) for one in z]
        found = [np.asarray(_forward(p, jnp.asarray(X), head, labels)) for p in parts]
    return np.mean(found, axis=0)


def _forward(weights: dict[str, Array], X: Array, head: int, labels: int) -> Array:
    layer, i = X, 0
    while f"W{i}" in weights:
        layer = jax.nn.relu(layer @ weights[f"W{i}"] + weights[f"b{i}"])
        i += 1
    score = layer @ weights["V"] + weights["c"]
    return jax.nn.softmax(score[:, head * labels : (head + 1) * labels])


def mnist() -> tuple[Images, Images]:
    """Training and test images: of the folder PMCL_DATA, else through scikit-learn."""
    folder = os.environ.get("PMCL_DATA")
    if folder:
        with np.load(Path(folder) / "mnist" / "mnist.npz") as f:
            return (
                _images(f["train_x"], f["train_y"]),
                _images(f["test_x"], f["test_y"]),
            )
    from sklearn.datasets import fetch_openml

    X, y = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False)
    whole = _images(X, y)
    return Images(*(v[:60_000] for v in whole)), Images(*(v[60_000:] for v in whole))


def not_mnist(test: float = 0.2) -> tuple[Images, Images]:
    """Letters A to J as images; a part of each class is kept for tests.

    Raises
    ------
    FileNotFoundError
        If the folder PMCL_DATA does not have them: no library serves them.
    """
    path = Path(os.environ.get("PMCL_DATA", "")) / "mnist" / "notmnist_small.npz"
    if not path.is_file():
        raise FileNotFoundError(
            "notMNIST: set PMCL_DATA to a folder that holds mnist/notmnist_small.npz, with arrays "
            "x (image, 28, 28) and y (image), labels 0 to 9 for letters A to J"
        )
    with np.load(path) as f:
        whole = _images(f["x"], f["y"])
    order = np.random.default_rng(0).permutation(len(whole.y))
    cut = int(len(order) * test)
    first, rest = order[:cut], order[cut:]
    return Images(whole.X[rest], whole.y[rest]), Images(whole.X[first], whole.y[first])


def _images(x: np.ndarray, y: np.ndarray) -> Images:
    X = x.reshape(len(x), -1).astype(np.float32) / np.float32(255)
    return Images(X, np.asarray(y).astype(np.int64))
