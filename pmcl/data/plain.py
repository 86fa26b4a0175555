"""Numbers of any container as plain arrays; what is missing is NaN."""

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np


def array_of(value: Any) -> np.ndarray:
    """Values of a Series or a DataFrame; what pandas calls NA is NaN."""
    kinds = [value.dtype] if value.ndim == 1 else [*value.dtypes]
    own = [k for k in kinds if not isinstance(k, np.dtype) and getattr(k, "kind", "O") in "biuf"]
    if own and value.isna().to_numpy().any():
        return value.to_numpy(dtype=float, na_value=np.nan)
    if own and len(own) == len(kinds):
        within = [k.subtype if hasattr(k, "subtype") else k.numpy_dtype for k in own]
        return value.to_numpy(dtype=np.result_type(*within))
    return plain(value.to_numpy())


def plain(value: object) -> np.ndarray:
    """Return an array; masked entries are NaN, and numbers kept as objects (beside a None) numbers.

    What is no number stays as it is, and so do whole numbers that a float does not hold.
    """
    if np.ma.isMaskedArray(value):
        value = value.astype(float).filled(np.nan)  # type: ignore[attr-defined]
    array = np.asarray(value)
    if array.dtype != object or not array.ndim:
        return array
    import pandas as pd

    gaps = pd.isna(array)
    there = array[~gaps].tolist()
    real = all(isinstance(v, Real | Decimal | np.bool_) for v in there)
    whole = [v for v in there if isinstance(v, int | np.integer)]
    if not real or any(int(float(v)) != v for v in whole if gaps.any() or len(whole) < len(there)):
        return array
    if len(whole) == len(there) and not gaps.any():
        return np.array(array.tolist())
    found = np.full(array.shape, np.nan)
    found[~gaps] = [float(v) for v in there]
    return found


def alike(one: Any, other: Any) -> bool:
    """Whether two arrays, labelled or not, have the same values; gaps are alike."""
    try:
        first, second = (plain(getattr(v, "values", v)) for v in (one, other))
        if {first.dtype.kind, second.dtype.kind} <= {*"biuf"}:
            return first.shape == second.shape and bool(close(first, second).all())
        return bool(np.array_equal(first, second))
    except (ValueError, TypeError):  # a ragged list; text beside pandas' NA
        return False


def close(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which numbers are the same, as far as the coarser of their types holds them.

    Files of text are not read to the last digit of it.
    """
    steps = [float(np.finfo(v.dtype).eps) for v in (one, other) if v.dtype.kind == "f"]
    if not steps:
        return one == other
    return np.isclose(one, other, rtol=8 * max(steps), atol=0, equal_nan=True)
