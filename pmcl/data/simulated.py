"""Simulations as a task: labelled, with the lengths and gaps of training."""

import numpy as np

from pmcl.compile import Simulator
from pmcl.data.task import Layout, Task


def simulated_task(
    simulator: Simulator, row: str | None, n: int, *, random_seed: int
) -> tuple[np.ndarray, Task]:
    """Draw parameters z and datasets from the model's joint, less those with non-finite values.

    Parameters
    ----------
    simulator : Simulator
    row : str or None
        The dim along which datasets may differ in length.
    n : int
    random_seed : int
    """
    z, data = simulator.simulate(n, random_seed=random_seed)
    keep = np.all([np.isfinite(v).reshape(n, -1).all(axis=1) for v in data.values()], axis=0)
    layout = Layout.of(simulator.compiled, row)
    values = {i.name: np.asarray(data[i.name])[keep] for i in layout.variables}
    names = tuple(f"simulated {i}" for i in np.flatnonzero(keep))
    mask = simulator.masks(n, random_seed=random_seed)
    lengths, there = None, {}
    if row is not None:
        lengths = np.full(len(names), Task(layout, values, names, None).width)
    if mask is not None:
        lengths = lengths if mask.rows is None else np.asarray(mask.rows)[keep].sum(axis=1)
        there = {k: np.asarray(v)[keep] for k, v in mask.values.items()}
    return z[keep], Task(layout, values, names, lengths, there=there)
