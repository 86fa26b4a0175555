"""Searches for the posteriors of many datasets, and how many starts and modes a model needs."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
from jax import Array

from pmcl.data.batching import over_chunks, over_datasets, over_items, taken
from pmcl.data.task import Batch
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.search.newton import Mode, Status
from pmcl.search.search import Distinct, Place, Search, distinct, promise

_TOGETHER = 16  # searches that a device works on together: each waits for the slowest
_LOOKED_AT = 32  # datasets by which a search is narrowed
_MODES = 8  # most that are kept of a dataset
_FEWEST = 2  # starts
_SELDOM = 0.02  # of all modes that were found, those that may be missed
_LOST = 0.1  # of searches, those that may begin where the density is not finite
_MORE = 0.1  # nats of evidence that are a gain
_BEGUN = 8  # searches of each dataset that begin where its density is high


@jit
def _searched(search: Search, batch: Batch, start: Array) -> Mode:
    return over_datasets(search.from_start, batch, start)


@jit
def _begun(search: Search, batch: Batch) -> Array:
    return over_datasets(search.begin, batch)


@jit
def _places(search: Search, batch: Batch, found: Mode) -> Place:
    return over_datasets(search.place, batch, found)


@jit
def _distinct(found: Mode, number: int, alone: bool = False) -> Distinct:
    look = lambda modes: distinct(modes, promise(modes, alone=alone), number)  # noqa: E731
    return jax.vmap(look)(found)


def searched(
    search: Search,
    batch: Batch,
    starts: np.ndarray | None = None,
    *,
    together: int = _TOGETHER,
) -> Mode:
    """Search from every start of every dataset: fields (dataset, start, ...).

    `starts`, of shape (dataset, start, dim), are each dataset's own; the search's by default.
    A device works on so many `together`.
    """
    batch = batch._replace(place=None)  # what was found before is no part of the program
    n, own = _number(batch), np.asarray(search.starts)
    size = devices.together(together)
    if starts is None and search.searches is not None:
        begun = lambda part: _begun(search, part)  # noqa: E731
        starts = over_chunks(begun, batch, np.arange(n), size=size)
    elif starts is None:
        starts = np.broadcast_to(own, (n, *own.shape))
    number = starts.shape[1]
    # by starts, then by datasets: those that take as long come together
    item, start = np.tile(np.arange(n), number), np.moveaxis(starts, 1, 0).reshape(-1, own.shape[1])
    # its own starts are no part of the program: any number of them needs but one
    alike = eqx.tree_at(lambda s: s.starts, replace(search, modes=1, searches=None), own[:1])
    found = over_chunks(lambda part, u: _searched(alike, part, u), batch, item, start, size=size)
    shaped = lambda x: np.moveaxis(x.reshape(number, n, *x.shape[1:]), 0, 1)  # noqa: E731
    return jax.tree.map(shaped, found)


def searched_everywhere(
    search: Search, batch: Batch, starts: np.ndarray | None = None, *, together: int = _TOGETHER
) -> Mode:
    """As :func:`searched`; elsewhere where all of a dataset begin at a density of zero."""
    found = searched(search, batch, starts, together=together)
    lost = np.flatnonzero((np.asarray(found.status) == Status.NOT_FINITE).all(axis=1))
    if not len(lost):
        return found
    some = replace(search, searches=found.status.shape[1]).elsewhere()
    new = searched(some, taken(batch, lost), together=together)
    number = np.arange(_number(batch))
    number[lost] = len(number) + np.arange(len(lost))
    both = jax.tree.map(lambda *x: np.concatenate(x), found, new)
    return taken(both, number)


def several(
    found: Mode, *, alone: bool = False, most: int | None = None
) -> tuple[Mode, np.ndarray, np.ndarray]:
    """Put the modes that differ and count first, of searches with fields (dataset, start, ...).

    `most`: so many at most, those of most evidence; as many as searches by default.

    Flat ends `alone` count, too, where searches are pooled: as in :meth:`Search.place`.

    Returns
    -------
    found : Mode
        The best again where there are fewer; where none counts, the most probable end.
    number : array of int of shape (dataset,)
        Modes that there are.
    lost : array of bool of shape (dataset,)
        Where none counts.
    """
    n, starts = found.z.shape[:2]
    kept = starts if most is None else min(starts, most)
    parts = over_items(lambda modes: _distinct(modes, kept, alone), found, size=_TOGETHER)
    which, number = parts.which, np.isfinite(parts.evidence).sum(axis=1)
    lost = number == 0
    which[lost] = np.argmax(np.nan_to_num(found.log_p[lost], nan=-np.inf), axis=1)[:, None]
    chosen = jax.tree.map(lambda x: x[np.arange(n)[:, None], which], found)
    return chosen, np.maximum(number, 1), lost


def places(search: Search, batch: Batch, *, advance: Callable[[int], None] | None = None) -> Place:
    """Where the posterior of every dataset is: NumPy arrays with a leading dataset.

    Parameters
    ----------
    search : Search
    batch : Batch
    advance : callable, optional
        Told how many datasets are done.
    """
    parts, size = [], devices.together(_TOGETHER)
    for begin in range(0, _number(batch), size * devices.number()):
        some = np.arange(begin, min(begin + size * devices.number(), _number(batch)))
        part = taken(batch, some)
        found = searched(search, part)
        look = lambda one, modes: _places(search, one, modes)  # noqa: E731
        parts.append(over_chunks(look, part, np.arange(len(some)), found, size=size))
        if advance is not None:
            advance(len(some))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def narrowed(search: Search, batch: Batch, prior: Callable[[], np.ndarray] | None = None) -> Search:
    """The search with as few of its starts, and as many modes, as datasets like these need.

    Parameters
    ----------
    search : Search
        With many starts.
    batch : Batch
        Simulated datasets, of which some are looked at.
    prior : callable, optional
        Makes draws (draw, dim) at which searches may begin in their place, where the density is
        zero at too many starts and more is found from these. None of them is the truth of a
        dataset of the batch, or of one that is learned from.
    """
    batch = taken(batch, np.arange(min(_LOOKED_AT, _number(batch))))
    ends = searched(search, batch)
    found = jax.tree.map(np.asarray, _distinct(ends, _MODES))
    which, evidence, met = found
    there = np.isfinite(evidence)
    if prior is not None and (ends.status == Status.NOT_FINITE).mean() > _LOST:
        pooled = search.pooled(prior(), searches=_BEGUN)
        more = jax.tree.map(np.asarray, _distinct(searched(pooled, batch), _MODES, True))
        gain = _total(more.evidence) - _total(evidence)
        if np.mean(gain > _MORE) > _SELDOM + np.mean(gain < -_MORE):
            return replace(pooled, modes=_most(np.isfinite(more.evidence)))
    if not there.any():
        return search
    modes = _most(there)
    # (start, mode): which starts find each of the modes that are kept, of any dataset
    kept = there & (np.arange(_MODES) < modes)
    finds = np.stack([met[i, :, which[i, k]] for i, k in zip(*np.nonzero(kept), strict=True)], 1)
    chosen, missed = [0], ~finds[0]
    while len(chosen) < _FEWEST or missed.mean() > _SELDOM:
        gain = (finds & missed).sum(axis=1)
        gain[chosen] = -1
        chosen.append(int(np.argmax(gain)))
        missed &= ~finds[chosen[-1]]
    starts = jax.device_put(np.asarray(search.starts)[chosen])
    return eqx.tree_at(lambda s: s.starts, replace(search, modes=modes), starts)


def _most(there: np.ndarray) -> int:
    """Modes that hardly a dataset has more of; `there` has shape (dataset, mode)."""
    number = np.sort(there.sum(axis=1))
    return max(1, int(number[int(np.ceil((1 - _SELDOM) * len(number))) - 1]))


def _total(evidence: np.ndarray) -> np.ndarray:
    """Of all modes of each dataset, in logs; far below all others where there is none."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.logaddexp.reduce(evidence, axis=1), -1e300)


def _number(batch: Batch) -> int:
    """Datasets."""
    return len(jax.tree.leaves(batch.values)[0])
