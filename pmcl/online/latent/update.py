"""Rows with local variables of their own, told by an encoder: the bound and the updates."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.beginning import begin
from pmcl.online.latent.encoder import Imagined, Latents, encoder_for
from pmcl.online.latent.features import lengthened
from pmcl.online.latent.rows import LatentRows
from pmcl.online.one_point import a_point, follow
from pmcl.online.rows import RowBatch
from pmcl.online.search.bound import Target
from pmcl.online.search.climb import climb
from pmcl.online.search.search import Way
from pmcl.online.state import Info, RowModel, Settings, State, drifted


class Arrival(NamedTuple):
    """A batch, which came at one time.

    Attributes
    ----------
    data : dict of arrays
        Observed variables and covariates.
    imagined : Imagined
        What the encoder is told of rows that the model draws.
    time : float
    """

    data: Mapping[str, np.ndarray]
    imagined: Imagined
    time: float


def update(
    problem: RowModel,
    latents: Latents,
    state: State,
    arrived: Arrival,
    settings: Settings,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> tuple[State, Latents, Info]:
    """Return what is known after a batch of rows with local variables of their own.

    References
    ----------
    Nguyen et al. (2018), section 4.
    """
    data, imagined, time = arrived
    network_key, start_key, key = jax.random.split(key, 3)
    network = encoder_for(latents, problem, data, imagined, network_key)
    rows = LatentRows(problem.rows, latents.variables, latents.encoder.learning_rate, network)
    n = rows.length(data)
    filled, there = lengthened(problem.rows, data, n)
    batch = RowBatch(filled, jnp.asarray(settings.power * there, jnp.result_type(float)))
    first = not state.updates
    moved = state.q
    if not first:
        moved = drifted(problem, settings.drift, state.q, time - state.time)
    if settings.method is None:
        begun = begin(
            problem, rows, moved, batch, settings, None if first else moved, start_key, advance
        )
        target = Target(
            moved, batch, problem.remainder if first else None, settings.more(moved, problem.prior)
        )
        way = Way(settings.search, first, advance)
        climbed = climb(rows, begun.q, target, way, key, narrow=begun.narrow)
        steps = begun.steps + climbed.steps
        q = predictive = climbed.q
        trained, skipped = climbed.rows, climbed.skipped
        bound, left = climbed.height, climbed.left
    else:
        q, found, steps = follow(
            problem, rows, state, moved, batch, settings, (start_key, key), advance
        )
        predictive = a_point(found.mean)
        trained, skipped = found.rows, found.skipped
        bound = left = np.nan
    assert isinstance(trained, LatentRows)
    info = Info(
        n, 0, exact=False, steps=steps, skipped=skipped,
        lower_bound=bound, clamped=0, khat=np.nan, log_evidence=np.nan, left=left,
    )  # fmt: skip
    kept = latents.networks if latents.encoder.per_task else ()
    networks = (*kept, trained.encoder)
    now = State(q, predictive, state.memory, time, state.seen + n, state.updates + 1)
    return now, latents._replace(networks=networks), info
