"""How a search goes: its options, and its plan for a batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pmcl.online.rows import RowBatch
from pmcl.online.search.arrival import ENOUGH

_CHUNK = 100  # steps that run without a word


class Search(eqx.Module):
    """How the evidence lower bound is climbed, where there is no closed form.

    Attributes
    ----------
    steps : int
        Steps of Adam; as many again, up to four times, where slopes say that it has not arrived
        (not looked at with a `batch_size`).
    first_steps : int, optional
        Of the first search of all, which has farthest to go; `steps` by default.
    epochs : int, optional
        How often every row of a batch is seen, where that takes more steps.
    draws : int
        Draws of z at every step: one, or pairs with noise of opposite signs.
    batch_size : int, optional
        Rows at every step; all by default.
    learning_rate : float
        At first; it falls to zero by a cosine. In standard deviations of what was known before;
        for one point in place of a distribution, in units of z.
    """

    steps: int = 1000
    first_steps: int | None = None
    epochs: int | None = None
    draws: int = 10
    batch_size: int | None = None
    learning_rate: float = 2e-2

    def __check_init__(self) -> None:
        for name in ("steps", "first_steps", "epochs", "draws", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Search: expected {name} of at least 1, got {value}.")
        if not self.learning_rate > 0:
            raise ValueError(f"Search: expected a learning_rate above 0, got {self.learning_rate}.")

    def length(self, n: int, *, first: bool = False) -> int:
        """Number of steps for n rows."""
        least = self.first_steps if first and self.first_steps is not None else self.steps
        if self.epochs is None:
            return least
        return max(least, -(-self.epochs * n // min(self.batch_size or n, n)))


@dataclass(frozen=True)
class Way:
    """How one search goes, and who is told.

    Attributes
    ----------
    search : Search
    first : bool
        Whether it is the first search of all.
    advance : callable
        Told the number of steps done, and a note.
    enough : float
        What it may leave (nats).
    """

    search: Any  # or GaussNewton: what has a length
    first: bool = False
    advance: Callable[[int, str], None] = lambda n, note: None
    enough: float = ENOUGH

    def plan(self, batch: RowBatch, key: Array) -> "Plan":
        """Plan the steps for a batch."""
        return steps_of(self.search, batch, key, first=self.first)

    def length(self, n: int) -> int:
        """Number of steps for n rows."""
        return self.search.length(n, first=self.first)


class Plan(NamedTuple):
    """The steps of a search.

    Attributes
    ----------
    rates : ndarray of shape (step,)
        Learning rates.
    order : ndarray of int of shape (step, row), optional
        Rows of every step; None: all.
    scale : float
        How many times a step's rows stand for all.
    """

    rates: np.ndarray
    order: np.ndarray | None
    scale: float

    def chunks(self) -> Iterator[tuple[np.ndarray, Array | None]]:
        """Some steps after the others."""
        for first in range(0, len(self.rates), _CHUNK):
            here = slice(first, first + _CHUNK)
            yield self.rates[here], None if self.order is None else jnp.asarray(self.order[here])


def steps_of(search: Search, batch: RowBatch, key: Array, *, first: bool = False) -> Plan:
    """Plan a search: each row comes once before any comes again."""
    there = np.flatnonzero(np.asarray(batch.weights))
    n = max(len(there), 1)
    steps = search.length(n, first=first)
    rates = optax.cosine_decay_schedule(search.learning_rate, steps)(np.arange(steps))
    size = search.batch_size
    if size is None or size >= n:
        return Plan(np.asarray(rates), None, 1.0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rounds = -(-steps * size // n)
    order = np.concatenate([rng.permutation(there) for _ in range(rounds)])
    return Plan(np.asarray(rates), order[: steps * size].reshape(steps, size), n / size)
