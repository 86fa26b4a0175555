"""The density that a network of a multilevel model gives to draws."""

from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from pmcl.amortized.groups import Checked
from pmcl.amortized.level_sampler import LevelSampler
from pmcl.compile import Density
from pmcl.data.batching import taken
from pmcl.data.task import DATASET
from pmcl.draws.densities import walk
from pmcl.draws.results import log_q_at
from pmcl.levels.beside import Beside
from pmcl.networks.contexts import contexts
from pmcl.refinement.level_stages import apart, by_network, densities, integrated
from pmcl.runtime import precision


def log_density(
    sampler: LevelSampler, parameters: xr.DataTree | xr.Dataset, given: Checked, *, joint: bool
) -> xr.DataArray:
    """log q of the global parameters, or of all; see `MultilevelPosterior.log_prob`."""
    task, sized = given
    beside = Beside(Density(sized.compiled, sampler.row), sized.reading)

    def value(z: np.ndarray) -> np.ndarray:
        batch = replace(task, beside=beside).batch()
        g = np.ascontiguousarray(z[:, :, sized.reading.shared])
        amortizer = sized.amortizer(sampler.amortizer, sampler.row)
        context = contexts(amortizer, batch, np.arange(len(g)))
        own = walk(lambda some, u, c: by_network(amortizer, u, some, c), g, batch, context)
        found = own.astype(float)
        if not joint:
            return found
        whole = walk(lambda some, u: densities(beside.density, u, some), z, batch)
        alone = walk(lambda some, u: integrated(beside.marginal, u, some), g, batch)
        total = found + whole[0] + whole[1] - alone[0] - alone[1]
        if not beside.marginal.exact:
            return total
        bent = walk(lambda some, u: apart(beside.marginal, u, some), z, batch)
        if len(rows := np.flatnonzero(bent.any(axis=1))):
            less = beside.marginal.inexact
            again = walk(lambda some, u: integrated(less, u, some), g[rows], taken(batch, rows))
            total[rows] += alone[0][rows] + alone[1][rows] - again[0] - again[1]
        return total

    with precision.scope():
        return log_q_at(sized.compiled, _padded(sampler, parameters, given), task.names, value)


def _padded(
    sampler: LevelSampler, parameters: xr.DataTree | xr.Dataset, given: Checked
) -> xr.Dataset:
    """Draws with as many groups as the model has: zero for those that are padding."""
    found = parameters
    if isinstance(found, xr.DataTree):
        found = found["unconstrained_posterior"].to_dataset()
    if not isinstance(found, xr.Dataset):
        return found  # and is refused by its type
    if DATASET not in found.dims:
        found = found.expand_dims(DATASET, axis=2)
    if sampler.groups is None or given.labels is None:
        return found
    dim, labels = sampler.groups.grouping.dim, given.labels
    size, most = given.sized.reading.like.groups, max(map(len, labels))
    there = found.sizes[dim]
    if there not in (size, most):
        raise ValueError(
            f"log_prob: expected draws of {most} groups along {dim!r}, as the data have, got "
            f"{there}."
        )
    names = [*map(str, found.coords[dim].values)] if dim in found.coords else []
    same = len({*labels}) == 1 and there == most
    if same and {*names} == {*labels[0]} and tuple(names) != labels[0]:
        found = found.isel({dim: [names.index(n) for n in labels[0]]})
    fill: Any = {dim: (0, size - there)}
    return found.drop_vars(dim, errors="ignore").pad(fill, constant_values=0.0).fillna(0.0)
