"""Exact draws and probabilities of discrete variables, by variable elimination."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

FloatArray = NDArray[np.float64]
type Scope = tuple[int, ...]


class TooEntangled(ValueError):
    """Variables that depend on too many others at once for a sum over all their values."""


def elimination_order(
    scopes: Sequence[Scope], sizes: Sequence[int], *, most: int
) -> list[tuple[int, Scope]]:
    """Order in which variables are summed out, each with those it then depends on.

    The one with the smallest table comes next.

    Raises
    ------
    TooEntangled
        Where a table would have more than `most` entries.
    """
    beside: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for v in scope:
            beside[v] |= {*scope} - {v}
    left, order = {*range(len(sizes))}, []
    table = [_size(sizes, {v} | beside[v]) for v in range(len(sizes))]
    # in their own order where tables are equal, as they are along a chain
    waiting = sorted(left, key=lambda v: (table[v], v))
    while waiting:
        v = min(waiting, key=lambda v: (table[v], v)) if beside[waiting[0]] else waiting[0]
        waiting.remove(v)
        if table[v] > most:
            raise TooEntangled(f"a table of {table[v]:.3g} numbers")
        order.append((v, tuple(sorted(beside[v]))))
        for u in beside[v]:
            beside[u] = (beside[u] | beside[v]) - {u, v}
            table[u] = _size(sizes, {u} | beside[u])
        left.discard(v)
    return order


def _size(sizes: Sequence[int], which: set[int]) -> float:
    return float(np.prod([float(sizes[v]) for v in which]))


def eliminate(
    tables: Mapping[Scope, FloatArray],
    sizes: Sequence[int],
    order: Sequence[tuple[int, Scope]],
    rng: np.random.Generator,
) -> tuple[NDArray[np.intp], list[FloatArray]]:
    """Draw all variables from their joint distribution, and give the probability of each value.

    Parameters
    ----------
    tables : mapping
        By the variables of a factor, in ascending order, its log of shape (draw, value, ...): the
        log of the joint, up to a constant for each draw, is the sum of all.
    sizes : sequence of int
        Number of values of each variable.
    order : sequence
        From :func:`elimination_order`.
    rng : numpy.random.Generator

    Returns
    -------
    values : ndarray of int, shape (draw, variable)
        One exact draw of all variables for each draw.
    probability : list of ndarray, shape (draw, value)
        Of each variable alone.

    References
    ----------
    .. [1] Dawid (1992). Applications of a general propagation algorithm for probabilistic expert
       systems. Statistics and Computing 2, 25-36.
    """
    draws = len(next(iter(tables.values()))) if tables else 1
    values = np.zeros((draws, len(sizes)), int)
    probability: dict[int, FloatArray] = {}
    alone = {v for v, others in order if not others}
    alone -= {v for scope in tables if len(scope) > 1 for v in scope}
    for size in {sizes[v] for v in alone}:
        some = [v for v in sorted(alone) if sizes[v] == size]
        logs = np.stack([tables.get((v,), np.zeros((draws, size))) for v in some], axis=1)
        chance = softmax(logs, axis=2)
        values[:, some] = _drawn(chance, rng)
        probability |= {v: chance[:, i] for i, v in enumerate(some)}
    order = [(v, others) for v, others in order if v not in alone]
    waiting: list[tuple[Scope, FloatArray]] = list(tables.items())
    by_variable: list[list[int]] = [[] for _ in sizes]
    for i, (scope, _) in enumerate(waiting):
        for v in scope:
            by_variable[v].append(i)
    done: set[int] = set()
    conditional: dict[int, FloatArray] = {}
    for v, others in order:
        axes = (v, *others)
        total = np.zeros((draws, *(sizes[a] for a in axes)))
        for i in by_variable[v]:
            if i not in done:
                total = total + _spread(*waiting[i], axes)
                done.add(i)
        rest = logsumexp(total, axis=1)
        # what is impossible whatever the value is never asked for
        conditional[v] = total - np.where(np.isfinite(rest), rest, 0.0)[:, None]
        if others:
            for u in others:
                by_variable[u].append(len(waiting))
            waiting.append((others, rest))
    probability |= _backwards(conditional, values, order, rng)
    return values, [probability[v] for v in range(len(sizes))]


def _spread(scope: Scope, table: FloatArray, axes: Scope) -> FloatArray:
    """Give a table the axes (draw, *axes), of length one where it does not depend on one."""
    places = [axes.index(v) for v in scope]
    moved = np.moveaxis(
        table, range(1, table.ndim), [1 + i for i in np.argsort(np.argsort(places))]
    )
    shape = [len(table)] + [1] * len(axes)
    for i, v in enumerate(axes):
        if v in scope:
            shape[1 + i] = table.shape[1 + scope.index(v)]
    return moved.reshape(shape)


def _backwards(
    conditional: Mapping[int, FloatArray],
    values: NDArray[np.intp],
    order: Sequence[tuple[int, Scope]],
    rng: np.random.Generator,
) -> dict[int, FloatArray]:
    """Draw `values`, and find probabilities, from what was eliminated last to the first."""
    at = np.arange(len(values))
    joint: dict[int, tuple[Scope, FloatArray]] = {}
    last = {v: i for i, (v, _) in enumerate(order)}
    for v, others in reversed(order):
        chance = np.exp(conditional[v])
        own = np.moveaxis(chance, 1, -1)[(at, *(values[:, u] for u in others))]
        values[:, v] = _drawn(own, rng)
        if others:
            # all of them are beside that of them which was eliminated first
            scope, table = joint[min(others, key=last.__getitem__)]
            extra = tuple(1 + i for i, u in enumerate(scope) if u not in others)
            kept = tuple(u for u in scope if u in others)
            chance = chance * _spread(kept, table.sum(axis=extra), (v, *others))
        joint[v] = ((v, *others), chance)
    return {v: t.sum(axis=tuple(range(2, t.ndim))) for v, (_, t) in joint.items()}


def _drawn(chance: FloatArray, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw positions along the last axis with these probabilities, up to a factor."""
    sums = np.cumsum(chance, axis=-1)
    points = rng.random(chance.shape[:-1])[..., None] * sums[..., -1:]
    return np.minimum((points >= sums).sum(axis=-1), chance.shape[-1] - 1)
