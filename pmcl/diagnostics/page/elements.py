"""What a page is made of, and how numbers and pictures get into it."""

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

ROWS = 500  # of a table; a page with more is slow on a phone
PANELS = 16  # of a figure


@dataclass(frozen=True)
class Table:
    """Rows of text; `sortable` ones have a search box, and headings that sort."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    sortable: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture as a data URI, and what it shows, for those who do not see it."""

    source: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading, what to know before reading, and what there is to see."""

    id: str
    title: str
    text: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


@dataclass(frozen=True)
class Verdict:
    """A sentence for the top of the page; not `good` ones are to be acted upon."""

    good: bool
    text: str


@contextmanager
def pictures() -> Iterator[None]:
    """Set matplotlib up for pictures in a page: names are not mathematics, no window opens."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from arviz_base import rc_context

    looks: dict[Any, Any] = {"text.parse_math": False, "text.usetex": False, "svg.fonttype": "path"}
    with mpl.rc_context(looks), rc_context({"plot.backend": "matplotlib"}), plt.ioff():
        yield


def svg(picture: Any) -> str:
    """Return a matplotlib figure, or a plot of arviz-plots, as a data URI."""
    figure = picture.viz["figure"].item() if hasattr(picture, "viz") else picture
    buffer = io.BytesIO()
    # Ids are made from the salt: the same page twice is the same file.
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "pmcl"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There are no gridspecs")  # of arviz-plots' own
        rows = {a.get_subplotspec().rowspan.start for a in figure.axes if a.get_subplotspec()}
        if len(rows) > 1:  # a panel's title must not lie on the numbers of the one above
            wide, high = figure.get_size_inches()
            figure.set_size_inches(wide, max(high, 2.2 * len(rows)))
            figure.set_layout_engine("constrained")
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def fitting(data: xr.Dataset) -> xr.Dataset:
    """Take the first variables, and of a long one the first elements, that fit in one figure."""
    shown: dict[str, xr.DataArray] = {}
    room = PANELS
    for name, array in data.data_vars.items():
        dims = [d for d in array.dims if d not in ("chain", "draw")]
        while shown == {} and (n := _elements(array)) > room:
            longest = max(dims, key=lambda d: array.sizes[d])
            array = array.isel({longest: slice(max(1, array.sizes[longest] * room // n))})
        if _elements(array) > room:
            break
        shown[str(name)] = array
        room -= _elements(array)
    return xr.Dataset(shown)


def _elements(array: xr.DataArray) -> int:
    return int(np.prod([n for d, n in array.sizes.items() if d not in ("chain", "draw")]))


def what_fits(shown: xr.Dataset, data: xr.Dataset) -> str:
    """Say what of the data is shown, where that is not all."""
    if all(n in shown and shown[n].sizes == v.sizes for n, v in data.data_vars.items()):
        return ""
    return f" Shown: {', '.join(map(str, shown))}; of long ones the first elements."


def number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3g}"


def cell(value: Any) -> str:
    return number(float(value)) if isinstance(value, int | float | np.number) else str(value)


def span(values: xr.DataArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"


def cut(rows: int, which: str = "first", most: int = ROWS) -> str:
    return f" (the {which} {most} of {rows})" if rows > most else ""
