"""What happened to a stream, update by update."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from pmcl.online.search.arrival import MUCH
from pmcl.online.state import Info

_ASKEW, _ASKEW_EACH = 0.06, 0.01  # nats, and nats for each unconstrained parameter
_FEW = 5  # weights for a row at most


class UpdateRecord(NamedTuple):
    """One update.

    Attributes
    ----------
    name : str
        Of the batch.
    time : float
    info : Info
    seconds : float
    """

    name: str
    time: float
    info: Info
    seconds: float


def history_of(records: Sequence[UpdateRecord]) -> xr.Dataset:
    """Records as one Dataset along `update`."""
    fields = {
        name: ("update", np.asarray([getattr(r.info, name) for r in records]))
        for name in Info._fields
    }
    fields["time"] = ("update", np.asarray([r.time for r in records], float))
    fields["seconds"] = ("update", np.asarray([r.seconds for r in records], float))
    names = np.asarray([r.name for r in records], dtype=str)
    return xr.Dataset(fields, coords={"update": names})


def recorded(
    records: tuple[UpdateRecord, ...], record: UpdateRecord, dim: int, enough: float
) -> tuple[UpdateRecord, ...]:
    """Records with one more; warns of an update that hardly learned, or did not arrive.

    `enough` is what a search may leave (nats).
    """
    info = record.info
    if info.left > MUCH * enough:
        warnings.warn(
            f"Update {record.name!r}: the search ended after {info.steps} steps before it arrived; "
            f"its lower bound could rise by {info.left:.3g} nats more. What is known of parameters "
            "may be too wide, or beside where it should be, and later updates rest on it. Take "
            "more steps (`search`), family='auto' in place of a mean field, or a prior that is "
            "nearer.",
            stacklevel=3,
        )
    if info.divergence > max(_ASKEW, dim * _ASKEW_EACH):
        warnings.warn(
            f"Update {record.name!r}: what is known after rows that are gone is "
            f"{info.divergence:.2g} nats from the normal in its place, which may lead later "
            "updates astray, most of all in scales and tails. Begin with more rows at once, or "
            "keep more of them (memory=pmcl.ResidualMemory(...)).",
            stacklevel=3,
        )
    if info.skipped > info.steps / 2:
        warnings.warn(
            f"Update {record.name!r}: {info.skipped} of {info.steps} steps were left out, as a "
            "gradient was not finite: little of this batch was learned. Look for values that "
            "the model cannot have made, or pass a `start` nearer to what is possible.",
            stacklevel=3,
        )
    return (*records, record)


def look_at_first_rows(name: str, rows: int, dim: int) -> None:
    """Warn where few rows say where a network's predictors are linearised from then on."""
    if rows * _FEW < dim:
        warnings.warn(
            f"Update {name!r}: {rows} rows for a network of {dim} weights, whose slopes stay where "
            "its first rows leave them: it will hardly learn what these do not show. Begin with "
            f"more rows (at least {-(-dim // _FEW)}), keep the first until there are so many "
            f"(memory=pmcl.ResidualMemory({-(-dim // _FEW)})), or use family='mean_field'.",
            stacklevel=4,
        )
