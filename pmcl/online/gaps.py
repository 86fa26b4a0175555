"""Rows with missing values: what says which are there travels beside the values."""

from collections.abc import Mapping

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.data.masked import check_vectors
from pmcl.data.task import Task

THERE = " is there"  # after a variable's name: which of its values are not missing


def with_gaps(compiled: CompiledModel, task: Task) -> dict[str, np.ndarray]:
    """Return the values of the one dataset of a task, and beside them which are not missing.

    Raises
    ------
    DataError
        Where of values that have one likelihood together some are missing.
    """
    check_vectors(compiled, task)
    there = {name + THERE: seen for name, (seen,) in task.there.items() if not seen.all()}
    return {k: v[0] for k, v in task.values.items()} | there


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
