"""Draws of the parameters from their prior, for searches to begin at; no data are simulated."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
from pymc.distributions.multivariate import ICARRV
from pytensor.graph.replace import graph_replace

from pmcl.compile import CompiledModel
from pmcl.compile.conversion.graphs import to_host
from pmcl.compile.simulable import can_draw
from pmcl.draws.densities import unconstrain
from pmcl.runtime import precision

_TRIES = 5  # times as many draws as are wanted, before those that are finite are repeated
# What samplers raise for parameters outside their range, or where numbers underflow
_CANNOT = (ValueError, ZeroDivisionError, OverflowError)


def prior_draws(
    compiled: CompiledModel, dataset: Mapping[str, np.ndarray], number: int, *, seed: int
) -> np.ndarray:
    """Draw z from the prior, of shape (number, dim); all finite.

    A variable without a sampler (`pm.Flat`, `pm.ICAR`, a `pm.CustomDist` with only `logp`) is drawn
    within a unit of the model's initial point on the unconstrained scale, and so is all of z where
    no draw is finite.
    """
    names, model = [i.name for i in compiled.free], compiled.model
    # PyMC has no sampler of ICAR; pmcl's own is compiled for simulations
    without = [isinstance(rv.owner.op, ICARRV) or not can_draw(rv) for rv in model.free_RVs]
    stand_in = [rv for rv, no in zip(model.free_RVs, without, strict=True) if no]
    rng = np.random.default_rng(seed)

    def drawer() -> Callable:
        inputs = {rv: rv.type(name=rv.name) for rv in stand_in}
        outputs = graph_replace([model[n] for n in names], inputs, strict=False)
        return to_host(list(inputs.values()), outputs)

    seeded = compiled.keep("prior", drawer)
    draw = seeded(rng)
    near, given = _near(compiled, dataset, number, rng, [rv.name for rv in stand_in])
    found = np.empty((0, compiled.dim))
    for _ in range(_TRIES):
        rows = []
        with np.errstate(all="ignore"):
            for i in range(number):
                try:
                    rows.append(draw(*(given[rv.name][i] for rv in stand_in)))
                except _CANNOT:
                    continue
        if rows:
            values = {n: np.stack([row[j] for row in rows]) for j, n in enumerate(names)}
            with precision.scope():
                needed = {n: dataset[n] for n in compiled.needed_to_unconstrain}
                z = np.asarray(unconstrain(compiled, values, needed))
            found = np.concatenate([found, z[np.isfinite(z).all(axis=1)]])[:number]
        if len(found) == number:
            return found
    return np.resize(found, (number, compiled.dim)) if len(found) else near


def _near(
    compiled: CompiledModel,
    dataset: Mapping[str, np.ndarray],
    number: int,
    rng: np.random.Generator,
    names: list[str],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Points near the initial one, of shape (number, dim), and the values of `names` there."""
    z = compiled.initial + rng.normal(size=(number, compiled.dim))
    if not names:
        return z, {}
    with precision.scope():
        data = jax.tree.map(jax.numpy.asarray, dict(dataset))
        values = jax.vmap(lambda u: compiled.constrain(u, data))(z)
    dtypes = {i.name: i.dtype for i in compiled.free}
    return z, {n: np.asarray(values[n], dtypes[n]) for n in names}
