"""Pseudo-datasets: more data like a few stored datasets, for which no labels are needed.

Self-consistency holds for any data, so they may be made at will: bootstrap rows of an exchangeable
dataset, and posterior-predictive observations at the covariates at hand.
"""

from collections.abc import Sequence

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.compile.predictive import lengths_of, predict
from pmcl.data.stacking import stack
from pmcl.data.task import Task
from pmcl.networks import Structure


def pseudo_datasets(
    compiled: CompiledModel,
    sources: Task,
    z: np.ndarray | None,
    counts: Sequence[int] | np.ndarray,
    structure: Structure,
    rng: np.random.Generator,
    *,
    bootstrap: bool,
    predictive: float,
) -> tuple[Task, np.ndarray]:
    """Make pseudo-datasets of each source.

    Parameters
    ----------
    compiled : CompiledModel
    sources : Task
    z : array of shape (source, draw, dim), optional
        Posterior draws, for the predictive ones.
    counts : sequence of int
        How many of each source.
    structure : Structure
        Rows are drawn again where they are exchangeable only.
    rng : numpy.random.Generator
    bootstrap : bool
        Draw rows with replacement.
    predictive : float
        Fraction whose observations are simulated from a posterior draw.

    Returns
    -------
    pseudo : Task
    parent : array of int
        The source of each.
    """
    layout = sources.layout
    rows = layout.row if bootstrap and structure.kind == "exchangeable" else None
    parent = np.repeat(np.arange(len(sources)), counts)
    observed = layout.names[: layout.n_observed]
    made = []
    simulated = np.zeros(len(parent), bool) if z is None else rng.random(len(parent)) < predictive
    originals = [sources.dataset(i) for i in range(len(sources))]
    for i, new in zip(parent, simulated, strict=True):
        data = dict(originals[i])
        if rows is not None:
            assert sources.lengths is not None
            length = int(sources.lengths[i])
            index = rng.integers(length, size=length)
            again = {
                v.name: data[v.name].take(index, axis=v.dims.index(rows))
                if rows in v.dims
                else data[v.name]
                for v in layout.variables
            }
            # of a few rows with gaps, those that are drawn may hold no observation at all
            if any(not np.isnan(again[n].astype(float)).all() for n in observed):
                data = again
        if new:
            assert z is not None
            u = z[i, rng.integers(z.shape[1])][None]
            drawn = predict(compiled, u, data, lengths_of(compiled, data), rng=rng)
            if all(np.isfinite(value).all() for value in drawn.values()):
                gone = {name: np.isnan(data[name].astype(float)) for name in drawn}
                data |= {
                    name: np.where(gone[name], np.nan, value[0]) if gone[name].any() else value[0]
                    for name, value in drawn.items()
                }
        made.append(data)
    return stack(made, [f"{sources.names[p]}~{i}" for i, p in enumerate(parent)], layout), parent
