"""Datasets of different size, checked and stacked to padded arrays."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pmcl.compile import VariableInfo
from pmcl.compile.casting import lost
from pmcl.compile.support import in_row
from pmcl.data.order import with_places
from pmcl.data.task import DataError, Layout, Task
from pmcl.runtime.arguments import warn


def concatenate(tasks: Sequence[Task]) -> Task:
    """Join the datasets of several tasks, padding all to the longest."""
    layout = tasks[0].layout
    joined = _stack(
        [t.dataset(i) for t in tasks for i in range(len(t))],
        [n for t in tasks for n in t.names],
        layout,
    )
    labels = tuple(names for t in tasks for names in t.labels or ())
    return replace(
        joined,
        maskable=any(t.maskable for t in tasks),
        labels=labels or None,
        beside=tasks[0].beside,
    )


def stack(
    datasets: Sequence[Mapping[str, np.ndarray]], names: Sequence[str], layout: Layout
) -> Task:
    """Check datasets one by one, pad them to the longest and stack them.

    Labels of the model's elements that came where data count these are numbered.

    Raises
    ------
    DataError
        Naming the variable and the dataset.
    """
    return _stack(with_places(datasets, names, layout), names, layout)


def _stack(
    datasets: Sequence[Mapping[str, np.ndarray]], names: Sequence[str], layout: Layout
) -> Task:
    if not datasets:
        raise DataError("data: expected at least one dataset, none came.")
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if list(names).count(n) > 1})
        raise DataError(f"data: dataset names must differ; {twice} came more than once.")
    _warn_of_blanks(names)
    lengths = [_check(one, name, layout) for one, name in zip(datasets, names, strict=True)]
    longest = max(lengths) if lengths[0] is not None else None  # type: ignore[type-var]
    values = {}
    for info in layout.variables:
        padded = [_pad(np.asarray(d[info.name]), info, layout.row, longest) for d in datasets]
        for name, one in zip(names, padded, strict=True):
            if one.shape != padded[0].shape:
                raise DataError(
                    f"Variable {info.name!r} of dataset {name!r}: expected shape "
                    f"{padded[0].shape}, as dataset {names[0]!r} has, got {one.shape}; "
                    + (
                        f"only the dim {layout.row!r} may have a length of its own."
                        if layout.row
                        else "pass datasets of one length in each call."
                    )
                )
        values[info.name] = np.stack(padded)
    there = {}
    for info in layout.variables:
        value = values[info.name]
        if info.dtype.startswith(("float", "int")) and np.isnan(value.astype(float)).any():
            there[info.name] = ~np.isnan(value)
            value = filled(value, np.issubdtype(np.dtype(info.dtype), np.integer))
        values[info.name] = value.astype(info.dtype)
    _check_something(there, names, layout)
    lengths_of_all = None if longest is None else np.asarray(lengths, dtype=int)
    return Task(layout, values, tuple(names), lengths_of_all, there=there)


def _warn_of_blanks(names: Sequence[str]) -> None:
    """Say where names of datasets differ by blanks alone."""
    if not any(n != n.strip() for n in names):
        return
    alike = Counter(n.strip() for n in names)
    twice = [n for n in names if alike[n.strip()] > 1]
    if twice:
        warn(f"data: names of datasets differ in blanks only, and are taken as they are: {twice}.")


def filled(value: np.ndarray, whole: bool) -> np.ndarray:
    """Put a value that is valid, as others of the dataset are, where one is missing (NaN).

    `value` has a leading dim of datasets. It is the smallest of counts, which no upper bound of a
    row's own excludes, and else the median; where there is none at all, one that most supports
    have.
    """
    middle: Any = np.nanmin if whole else np.nanmedian
    nothing = 0.0 if whole else 0.5
    everywhere = np.nan_to_num(middle(value)) if not np.isnan(value).all() else nothing
    filled = value.copy()
    for one in filled:
        gap = np.isnan(one)
        if gap.any():
            one[gap] = everywhere if gap.all() else middle(one)
    return filled


def _check_something(there: Mapping[str, np.ndarray], names: Sequence[str], layout: Layout) -> None:
    """Refuse datasets of which no value is there."""
    observed = layout.names[: layout.n_observed]
    if not observed or not all(n in there for n in observed):
        return
    nothing = np.all([~there[n].reshape(len(names), -1).any(axis=1) for n in observed], axis=0)
    if nothing.any():
        name = names[int(np.argmax(nothing))]
        raise DataError(
            f"Dataset {name!r}: expected at least one observed value, all of {observed} are "
            "missing (NaN); leave the dataset out."
        )


def _check(one: Mapping[str, np.ndarray], name: str, layout: Layout) -> int | None:
    """Check one dataset; return its length along the row dim."""
    sizes: dict[str, tuple[str, int]] = {}
    for info in layout.variables:
        value = np.asarray(one[info.name])
        where = f"Variable {info.name!r} of dataset {name!r}"
        fixed = all(
            d in layout.data_dims or n == m
            for d, n, m in zip(info.dims, value.shape, info.shape, strict=False)
        )
        if value.ndim != len(info.shape) or not fixed:
            raise DataError(f"{where}: expected shape {layout.expected(info)}, got {value.shape}.")
        for dim, n, own in zip(info.dims, value.shape, info.shape, strict=True):
            if n != own and dim in layout.counted:
                raise DataError(
                    f"{where}: expected length {own} along {dim!r}, as in the model, got {n}: "
                    f"the prior of {layout.counted[dim]!r} depends on this length, and does not "
                    "follow the data. Make it a `pm.Data`, and give its value with each dataset."
                )
        if value.dtype.kind not in "biuf":
            first = f", such as {value.flat[0]!r}" if value.size else ""
            raise DataError(
                f"{where}: expected numbers ({info.dtype}), got {value.dtype}{first}.{_way(value)}"
            )
        real = value.astype(float)
        bad = int(np.isnan(real).sum())
        if bad and info.name not in layout.names[: layout.n_observed]:
            raise DataError(
                f"{where}: expected a covariate without gaps, got {bad} missing values (NaN), the "
                f"first{_first(np.isnan(real))}; drop those rows, or model the covariate."
            )
        if np.isinf(real).any():
            raise DataError(
                f"{where}: expected finite values, got infinite ones, the first"
                f"{_first(np.isinf(real))}. Where a bound is none (of what was not censored, say), "
                "write a number far beyond the data, 1e6 times as large."
            )
        fractions = real != np.round(real)
        if np.issubdtype(np.dtype(info.dtype), np.integer) and fractions[~np.isnan(real)].any():
            fractions &= ~np.isnan(real)
            raise DataError(
                f"{where}: expected integers ({info.dtype}), got fractions, the first "
                f"{real[fractions].flat[0]:g}{_first(fractions)}."
            )
        for dim, n in zip(info.dims, value.shape, strict=True):
            if sizes.setdefault(dim, (info.name, n))[1] != n:
                other, m = sizes[dim]
                raise DataError(
                    f"{where}: expected length {m} along {dim!r}, as {other!r} has, got {n}."
                )
        if 0 in value.shape:
            raise DataError(f"{where}: expected at least one value, got shape {value.shape}.")
        _check_cast(value, info, where)
    try:
        misplaced = None if layout.indices is None else layout.indices.misplaced(one)
    except IndexError as error:
        raise DataError(
            f"Dataset {name!r}: an index of the model is out of range with these data ({error})."
        ) from error
    if misplaced is not None:
        raise DataError(f"{misplaced.of(name)}: {misplaced}")
    return sizes[layout.row][1] if layout.row in sizes else None


def _way(value: np.ndarray) -> str:
    """How what is no number becomes one."""
    if value.dtype.kind in "mM":
        return " Times are numbers of a unit: `(t - t[0]) / np.timedelta64(1, 'D')`, say."
    if value.dtype.kind in "OSUT":
        return (
            " Categories are numbers from 0, `pd.Categorical(values, categories=[...]).codes`; "
            "text that holds numbers, `pd.to_numeric(values)`."
        )
    return ""


def _first(which: np.ndarray) -> str:
    return in_row(tuple(map(int, np.argwhere(which)[0])))


def _check_cast(value: np.ndarray, info: VariableInfo, where: str) -> None:
    """Refuse values that the type of the model's data cannot hold."""
    told = lost(value, info.dtype)
    if told:
        raise DataError(f"{where}: {told}")


def _pad(value: np.ndarray, info: VariableInfo, row: str | None, longest: int | None) -> np.ndarray:
    if longest is None or row not in info.dims:
        return value
    axis = info.dims.index(row)
    index = np.minimum(np.arange(longest), value.shape[axis] - 1)
    return value.take(index, axis=axis)
