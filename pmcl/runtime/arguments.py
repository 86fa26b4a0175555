"""What users pass, checked: numbers, seeds, and names in messages."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    pass


def listed(names: Sequence[object], most: int = 5) -> str:
    """Names for a message: the first few, and dots where there are more."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def warn(text: str) -> None:
    """Warn at the line outside of pmcl from which it was called."""
    warnings.warn(text, skip_file_prefixes=(str(Path(__file__).parents[1]),))


def positive(name: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a whole number, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}.")
    return value


def positive_rate(value: float) -> float:
    if not value > 0:
        raise ValueError(f"learning_rate: expected a number above 0, got {value}.")
    return value


def seed_of(given: int | None, derived: int | None) -> int:
    """Return the seed that was given, one that follows from another, or one out of nothing.

    Raises
    ------
    TypeError
        Where the seed is no whole number.
    ValueError
        Where there is none, and several processes have to draw alike.
    """
    if given is not None:
        if not isinstance(given, int | np.integer):
            raise TypeError(
                f"random_seed: expected a whole number or None, got {type(given).__name__}: "
                "`int(rng.integers(2**32))` of a generator."
            )
        return int(given)
    if derived is not None:
        return derived
    if jax.process_count() > 1:
        raise ValueError(
            "random_seed: expected a number, as several processes work together "
            "(`jax.distributed`) and have to draw alike."
        )
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)
