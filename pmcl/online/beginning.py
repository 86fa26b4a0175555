"""Where the search of an update begins."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.online.gaussian import MeanField
from pmcl.online.rows import AbstractRows, RowBatch
from pmcl.online.search import climb
from pmcl.online.search.narrow import Narrow, narrow
from pmcl.online.state import RowModel, Settings

_ROUNDING = 1e-5  # in the prior's standard deviations


class Begun(NamedTuple):
    """Where a search begins.

    Attributes
    ----------
    q : MeanField
    narrow : Narrow or None
        The problem without what the batch says nothing of, where that is much.
    steps : int
        That this took.
    """

    q: MeanField
    narrow: Narrow | None
    steps: int


def begin(
    problem: RowModel,
    rows: AbstractRows,
    prior: MeanField,
    batch: RowBatch,
    settings: Settings,
    known: MeanField | None,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> Begun:
    """Return where a search begins.

    Entries of z of which nothing is known begin as `settings.start` says where the batch says
    anything of them, and so may the widths of others (`again`); where the batch says nothing they
    stay where they are.

    Parameters
    ----------
    problem : RowModel
    rows : Rows or LatentRows
    prior : MeanField
        Of the search.
    batch : RowBatch
    settings : Settings
    known : MeanField or None
        Where entries begin of which something is known; None in the first search of all.
    key : Array
    """
    first = known is None
    known = prior if known is None else known
    new = np.asarray(is_prior(known, problem.prior))
    if not new.any() and not settings.start.narrows:
        return Begun(known, None, 0)
    start_key, key = jax.random.split(key)
    if not first:
        begun, steps = settings.start(prior, start_key), 0
    else:
        n = int((batch.weights > 0).sum())
        begun = settings.start.first(rows, prior, batch, settings.search, start_key, advance)
        steps = settings.start.length(n, settings.search)
    places = (begun, prior) if known is prior else (begun, prior, known)
    reached = climb.reached(rows, places, batch, settings.search, key)
    if first:  # of what is not normal the search finds the prior itself better than `prior` does
        reached = reached | ~problem.normal
    again = settings.start.again(known, problem.prior)
    each = zip(begun, again, prior, known, strict=True)
    start = (
        jnp.where(new, jnp.where(reached, b, p), jnp.where(reached, a, k)) for b, a, p, k in each
    )
    few = narrow(rows, begun, reached, batch, key) if problem.remainder is None else None
    return Begun(MeanField(*start), few, steps)


def is_prior(q: MeanField, prior: MeanField) -> Array:
    """Entries of which an approximation knows no more than the prior, but for rounding."""
    far = jnp.abs(q.mean - prior.mean) * jnp.exp(-prior.log_sd)
    return (far <= _ROUNDING) & (q.log_sd >= prior.log_sd - _ROUNDING)
