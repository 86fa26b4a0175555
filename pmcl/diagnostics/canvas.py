"""Where plots are drawn, on whichever backend of arviz-plots."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

XY = "plot_axis"


_LETTERS = 24  # of a name


COLUMNS = 4  # plots beside each other


_DOTS = 100  # an inch, in a browser


CELLS = 15  # columns of a matrix that leave room for numbers


def drawn(
    table: xr.Dataset,
    draw: Callable[..., None],
    size: tuple[float, float],
    backend: str | None,
    figure_kwargs: Mapping[str, Any] | None,
    *,
    cols: str = "__variable__",
    by: str | None = None,
    each: Callable[..., None] | None = None,
) -> "PlotCollection":
    """Make a plot for each of `cols`, of `size` inches in all, and call `draw` once in each.

    With `by` and `each`: `each` is called before for each value of that dim, in its own colour.
    """
    from arviz_base import rcParams
    from arviz_plots import PlotCollection

    matplotlib = (backend or rcParams["plot.backend"]) == "matplotlib"
    figure: dict[str, Any]
    if matplotlib:
        # labels of any length stay within the figure
        figure = {"figsize": size, "figsize_units": "inches", "layout": "constrained"}
    else:
        figure = {"figsize": tuple(_DOTS * float(v) for v in size), "figsize_units": "dots"}
    looks = ("color", "marker") if by else ()
    pc = PlotCollection.wrap(
        table,
        cols=[cols],
        col_wrap=COLUMNS,
        aes={look: [by] for look in looks},
        backend=backend,
        figure_kwargs={**figure, **(figure_kwargs or {})},
    )
    if each is not None:
        pc.map(each, "each", data=table, store_artist=False)
    pc.map(draw, "drawn", data=table, ignore_aes=set(looks), store_artist=False)
    if by and table.sizes[by] <= CELLS:  # more names could not be read
        if matplotlib:
            pc.add_legend(by, aes=looks, loc="outside right upper")
        else:  # arviz-plots' legends are of lines elsewhere, and these have no markers
            pc.add_legend(by, aes=["color"])
    return pc


def backend_of(target: Any) -> Any:
    from arviz_plots.visuals import backend_from_object

    return backend_from_object(target)


def labels(coord: xr.DataArray) -> list[str]:
    return [shortened(v) for v in coord.values]


def shortened(name: object) -> str:
    """Return a name that leaves room for what it is the name of."""
    text = str(name)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
