"""Rows with missing values: what says which are there travels beside the values."""

from collections.abc import Mapping

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.data.task import DataError, Task

THERE = " is there"  # after a variable's name: which of its values are not missing


def with_gaps(compiled: CompiledModel, task: Task) -> dict[str, np.ndarray]:
    """Return the values of the one dataset of a task, and beside them which are not missing.

    Raises
    ------
    DataError
        Where of values that have one likelihood together some are missing.
    """
    values = {k: v[0] for k, v in task.values.items()}
    for name, (seen,) in task.there.items():
        if seen.all():
            continue
        terms = compiled.term_dims(name)
        across = tuple(range(terms, seen.ndim))
        if across and (seen.any(axis=across) != seen.all(axis=across)).any():
            raise DataError(
                f"Variable {name!r}: expected values that are all there or all missing where "
                f"they have one likelihood together ({seen.ndim - terms} last dims), got some "
                "of each. Write it as independent variables given local ones, or leave such "
                "rows out."
            )
        values[name + THERE] = seen
    return values


def values_alone[T](data: Mapping[str, T]) -> dict[str, T]:
    """Take the values, without what says which are missing."""
    return {name: v for name, v in data.items() if not name.endswith(THERE)}


def without_filling(data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the values as a user would write them: NaN for what is missing."""
    there = {name: data.get(name + THERE) for name in values_alone(data)}
    return {
        name: data[name] if seen is None or seen.all() else np.where(seen, data[name], np.nan)
        for name, seen in there.items()
    }


def has_gaps(data: Mapping[str, object]) -> bool:
    """Whether anything is missing."""
    return any(name.endswith(THERE) for name in data)


def filled(
    data: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Say that nothing is missing of variables of which another batch lacks some."""
    more = {
        name: np.ones(data[name.removesuffix(THERE)].shape, bool)
        for name in other.keys() - data.keys()
        if name.endswith(THERE)
    }
    return {**data, **more}
