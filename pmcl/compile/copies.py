"""Observed values that a model also holds as a constant, where they do not follow the data."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pmcl.compile.variables import content, holder_of, own_value

_FEWEST = 4  # values whose mean or standard deviation, or whose place elsewhere, is no chance
_FARTHEST = 24  # rows by which a copy may be moved


class Copy(NamedTuple):
    """A constant of the likelihood that holds observed values.

    Attributes
    ----------
    variable : str
        The observed variable.
    values : array
        What the model itself has for it.
    rows : int
        How far they are moved.
    summary : str
        What of them it is, where it is a single number.
    deterministic : str
        The one that has it, where the likelihood has not.
    """

    variable: str
    values: np.ndarray
    rows: int
    summary: str = ""
    deterministic: str = ""

    def __str__(self) -> str:
        if self.deterministic:
            return (
                f"Deterministic {self.deterministic!r} has the model's own values of "
                f"{self.variable!r}, whatever data come: of other data it is wrong. Compute it "
                "from the results, whose `observed_data` has the values."
            )
        if self.summary:
            return (
                f"Variable {self.variable!r}: the likelihood has the {self.summary} of its own "
                "`observed` values as a constant, which stays as it is whatever data come. Scale "
                "the data before they are passed, compute it in the model from a `pm.Data`, or "
                "make it a parameter."
            )
        held = " If it is the `pm.Data` that is observed, write the observed variable in its place."
        moved = f", moved by {self.rows} row{'s' * (self.rows > 1)}" if self.rows else ""
        return (
            f"Variable {self.variable!r}: the model also has its own `observed` values as a "
            f"constant array{moved}, which stays as it is whatever data come. Write a dependence "
            "on earlier values as a distribution (`pm.AR`, or `pm.CustomDist` with `dist=`), or "
            "make the array a `pm.Data`, and give its values with each dataset."
            + ("" if self.rows else held)
        )


def summaries_in(
    model: pm.Model, likelihood: Sequence[Variable], variables: Sequence[Variable]
) -> tuple[Copy, ...]:
    """Find means and standard deviations of observed values among a likelihood's constants.

    `variables`: random ones; what these follow from, such as the bounds of a prior, is left out.
    """
    numbers = {
        np.asarray(v.data).item()
        for v in ancestors(list(likelihood), blockers=variables)
        if isinstance(v, Constant) and np.size(v.data) == 1 and np.asarray(v.data).dtype.kind == "f"
    }
    found = []
    for rv in model.observed_RVs:
        own = own_value(model, rv.name).astype(float)
        if own.size < _FEWEST or not _telling(own):
            continue
        forms = [("standard deviation", own.std()), ("standard deviation", own.std(ddof=1))]
        if (own != np.round(own)).any():  # else many numbers may be it
            forms = [("mean", own.mean()), *forms]
        for what, value in forms:
            simple = np.isclose(1e3 * value, np.round(1e3 * value), rtol=1e-9)  # 0.5, say
            if not simple and any(np.isclose(value, n, rtol=1e-12, atol=0) for n in numbers):
                found.append(Copy(rv.name, own, 0, what))
    return tuple(found[:1])


def copies_in(model: pm.Model, densities: Sequence[Variable]) -> tuple[Copy, ...]:
    """Find observed values, or what follows from earlier ones, among constants of log densities."""
    constants = [
        np.asarray(v.data, float)
        for v in ancestors(list(densities))
        if isinstance(v, Constant) and np.ndim(v.data) and np.asarray(v.data).dtype.kind in "iuf"
    ]
    found = []
    for rv in model.observed_RVs:
        own = own_value(model, rv.name).astype(float)
        if not own.ndim or not _telling(own):
            continue
        known = np.unique(own)
        forms = [_forms(np.moveaxis(own, i, 0)) for i in range(own.ndim)]
        every = [_moved(forms, known, c) for c in constants]
        rows = [r for r in every if r is not None]
        if rows:
            found.append(Copy(rv.name, own, min(rows)))
    return tuple(found)


def copies_in_deterministics(
    model: pm.Model, deterministics: Mapping[str, Variable], densities: Sequence[Variable]
) -> tuple[Copy, ...]:
    """Find observed values among the constants of deterministics (residuals, say) alone."""

    def arrays(outputs: Sequence[Variable]) -> dict[bytes, Variable]:
        constants = (v for v in content(outputs) if isinstance(v, Constant))
        return {np.asarray(v.data).tobytes(): v for v in constants if np.ndim(v.data)}

    seen, found = {*arrays(densities)}, dict[str, Copy]()
    for name, value in deterministics.items():
        new = {k: v for k, v in arrays([value]).items() if k not in seen}
        seen |= {*new}
        for copy in copies_in(model, [*new.values()]):
            found.setdefault(copy.variable, copy._replace(deterministic=name))
    return tuple(found.values())


def follow_data(
    model: pm.Model,
    deterministics: Sequence[Variable],
    densities: Sequence[Variable],
    observed: Mapping[Variable, Variable],
) -> list[Variable]:
    """Put symbols of observed variables in the place of the model's own values of these.

    In deterministics alone, which are of the data that come; not what densities hold too, which
    stays as it is there (:func:`copies_in`). Of an axis of length 1 arrays may be repeated along
    it, as no symbol would be.
    """
    own = {rv: own_value(model, rv.name) for rv in observed}
    holders = {model[n]: rv for rv in own for n in [holder_of(model, rv.name)] if n}
    held = content(densities)
    arrays = {np.asarray(v.data).tobytes() for v in held if isinstance(v, Constant)}
    found: dict[Variable, Variable] = {}
    for var in content(deterministics) - held:
        rv = holders.get(var)
        if isinstance(var, Constant) and np.ndim(var.data) and 1 not in np.shape(var.data):
            if np.asarray(var.data).tobytes() in arrays:
                continue
            same = (r for r, v in own.items() if np.array_equal(v, var.data) and _telling(v))
            rv = next(same, None)
        if rv is not None:
            found[var] = observed[rv].astype(var.type.dtype)
    if not found:
        return [*deterministics]
    # nodes are made anew: arrays have their lengths in their types, of which symbols have none
    return clone_replace(list(deterministics), found, rebuild_strict=False)


class _Forms(NamedTuple):
    """Observed values, the rows first, as a model may have them in the same row and later."""

    same: list[np.ndarray]
    later: list[np.ndarray]


def _forms(own: np.ndarray) -> _Forms:
    with np.errstate(all="ignore"):
        same = [own, np.log(own)]
        # counts in logs, squares (volatility), sums (who is no longer at risk), and differences
        later = [*same, np.log1p(own), np.sqrt(own), own**2, abs(own), own.cumsum(0)]
        later += [np.diff(own, axis=0)]
    return _Forms(*([f for f in each if np.isfinite(f).all()] for each in (same, later)))


def _moved(forms: Sequence[_Forms], known: np.ndarray, constant: np.ndarray) -> int | None:
    """By how many rows a constant, or a column of it, is moved against observed values.

    `forms` by axis: the rows of a panel may be series. `known`: the values, in their order.
    """
    if constant.ndim == len(forms) + 1:
        columns = np.moveaxis(constant, -1, 0)[:64]
        return next((r for c in columns for r in [_moved(forms, known, c)] if r is not None), None)
    if constant.ndim != len(forms):
        return None
    for axis, own in enumerate(forms):
        rows = _moved_along_rows(own, np.moveaxis(constant, axis, 0))
        if rows is not None:
            return rows
    return 0 if _among(known, constant) else None


def _among(known: np.ndarray, constant: np.ndarray) -> bool:
    """Whether most numbers of many digits are observed ones, whatever their order.

    As the earlier values of several series are that stand below one another.
    """
    values = np.unique(constant[np.isfinite(constant)])
    thousands = 1e3 * values
    values = values[~np.isclose(thousands, np.round(thousands), rtol=1e-9)]
    if len(values) < _FEWEST or len(known) < _FEWEST:
        return False
    after = known.searchsorted(values).clip(1, len(known) - 1)
    near = np.minimum(abs(known[after] - values), abs(known[after - 1] - values))
    return bool(np.mean(near <= 1e-9 * abs(values)) >= 0.5)


def _moved_along_rows(forms: _Forms, constant: np.ndarray) -> int | None:
    own = forms.same[0]
    if constant.shape[1:] != own.shape[1:]:
        return None
    least = max(min(len(own), len(constant)) // 2, 1)
    for rows in range(_FARTHEST + 1):
        pairs = [(f, constant[rows:], False) for f in forms.same]
        pairs += [(f[rows:], constant, False) for f in forms.same]
        pairs += [(f, constant[rows:], True) for f in forms.later if rows]
        for one, other, linear in pairs:
            n = min(len(one), len(other))
            if n >= least and _agree(one[:n], other[:n], linear):
                return rows
    return None


def _agree(one: np.ndarray, other: np.ndarray, linear: bool) -> bool:
    """Whether values are the same, but for one filler (0, infinity); or linear in one another."""
    head = slice(0, 16)  # enough to tell most that are not
    for rows in (head, slice(None)):
        a, b = one[rows].ravel(), other[rows].ravel()
        if linear:
            if not np.isfinite(b).all():
                return False
            a, b = a - a.mean(), b - b.mean()
            size = (a @ a) * (b @ b)
            agreed = size == 0 if rows is head else size > 0
            agreed |= (a @ b) ** 2 > (1 - 1e-11) * size
            there = np.ones(len(a), bool)
        else:
            apart = ~np.isclose(a, b, rtol=1e-6, atol=0)
            fillers = np.unique(b[apart])
            agreed = len(fillers) <= 1
            there = ~np.isin(b, fillers)
        if not agreed:
            return False
    return bool(_telling(one.ravel()[there]))


def _telling(values: np.ndarray) -> bool:
    """Whether that arrays hold the same values can be no chance: not of counters, or few codes."""
    flat = np.ravel(values)
    counts = np.unique(flat, return_counts=True)[1]
    if len(counts) < 2 or np.ptp(np.diff(flat)) <= 1e-9 * np.ptp(flat):
        return False
    each = 20.0 if (flat != np.round(flat)).any() and len(counts) > 2 else 0.0
    share = counts / len(flat)
    bits = len(flat) * max(each, float(-(share * np.log2(share)).sum()))
    return bits > 30
