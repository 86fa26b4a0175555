"""What a type can hold."""

import numpy as np


def lost(value: np.ndarray, dtype: str) -> str:
    """Say which value a type cannot hold; nothing where it holds all, NaN aside."""
    kind = np.dtype(dtype)
    if kind.kind == "f" and value.dtype.kind not in "iu":
        return _overflowing(value, kind)
    with np.errstate(invalid="ignore"):
        cast = value.astype(kind)
        # back again: 2**63 as a float is not what an integer of 64 bits holds
        same = (cast == value) & (cast.astype(value.dtype) == value)
    gaps = np.isnan(value.astype(float))
    if (same | gaps).all():
        return ""
    first = value[~(same | gaps)].flat[0]
    if kind.kind == "f":
        holds = f"which holds whole numbers up to 2**{np.finfo(kind).nmant + 1}"
    else:
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        holds = f"which holds {low} to {high}"
    return (
        f"expected values of type {dtype}, {holds}, got {first!r}. Declare the `pm.Data` with "
        "values of a type that holds more, such as int64 or float64."
    )


def _overflowing(value: np.ndarray, kind: np.dtype) -> str:
    """Say which number is too large for a type of floats."""
    most = np.finfo(kind).max
    if value.dtype.kind != "f":
        return ""
    beyond = value[np.isfinite(value) & (np.abs(value) > most)]
    if not beyond.size:
        return ""
    return f"expected values of type {kind}, which holds numbers up to {most:g}, got {beyond[0]:g}."
