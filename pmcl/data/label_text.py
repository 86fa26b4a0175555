"""Labels as text, by which they are compared: 1.0 is 1, a date is a date."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pmcl.runtime.arguments import warn


def text(labels: Iterable[object]) -> list[str]:
    """Text of labels, by which they are compared; 1.0 is 1, a date is a date."""
    return [_text(label) for label in labels]


def _text(label: Any) -> str:
    if isinstance(label, np.datetime64) or hasattr(label, "isoformat"):
        import pandas as pd

        try:
            stamp = pd.Timestamp(label)
        except (TypeError, ValueError):  # a time of day, or of another calendar
            return str(label)
        return (stamp if stamp.tzinfo is None else stamp.tz_convert("UTC")).isoformat()
    whole = isinstance(label, float | np.floating) and float(label).is_integer()
    return str(int(label)) if whole else name_of(label)


def numbers(n: int) -> list[str]:
    """Labels that say no more than positions do."""
    return [*map(str, range(n))]


def are_places(labels: Sequence[str]) -> bool:
    """Whether labels are 0, 1, 2 ... in any order."""
    return {*labels} == {*numbers(len(labels))}


def labels_of(value: xr.DataArray, dim: Any) -> list[str]:
    """Labels of an array along a dim, as text."""
    index = value.indexes.get(dim)  # pandas' has the zone of dates, and periods
    return text(value.coords[dim].values if index is None else index)


def storable(data: xr.Dataset) -> xr.Dataset:
    """Labels that files have no type for, such as periods and dates with a zone, as text."""
    odd = {k: v for k, v in data.coords.items() if v.dtype == object and v.ndim == 1}
    return data.assign_coords({k: (v.dims, text(v.values)) for k, v in odd.items()})


def name_of(label: object) -> str:
    """Name of a dataset, as it is in the source; files may have it as bytes."""
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def few(labels: list[str], most: int = 8) -> str:
    """The first of them, for a message."""
    return str(labels) if len(labels) <= most else f"[{str(labels[:most])[1:-1]}, ...]"


def warn_of_spelling(names: Iterable[str], what: str) -> None:
    """Say where names differ in case and blanks alone: a typing error makes two of one."""
    plain = {name: name.strip().casefold() for name in names}
    number = Counter(plain.values())
    alike = sorted(name for name, of in plain.items() if number[of] > 1)
    if alike:
        warn(f"data: names of {what} differ in case or blanks only, and all count: {few(alike)}.")
