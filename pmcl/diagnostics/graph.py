"""A picture of a PyMC model: its variables, from causes to effects."""

from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
from pymc.model_graph import ModelGraph, NodeType, random_variable_symbol

from pmcl.diagnostics.canvas import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# a word for what has no distribution of its own; the box and its colour
_LOOKS = {
    NodeType.FREE_RV: (None, "round,pad=0.5", "#ffffff"),
    NodeType.OBSERVED_RV: (None, "round,pad=0.5", "#cfe0f1"),
    NodeType.DATA: ("data", "square,pad=0.4", "#e4e4e4"),
    NodeType.DETERMINISTIC: ("deterministic", "square,pad=0.4", "#ffffff"),
    NodeType.POTENTIAL: ("potential", "sawtooth,pad=0.4", "#ffffff"),
}

_WIDTH, _HEIGHT = 2.1, 1.3  # inches that a variable takes


def layers(parents: dict[str, set[str]]) -> list[list[str]]:
    """Put variables in rows, each below all of its parents and near the middle of them.

    Parameters
    ----------
    parents : dict of str to set of str
        Of every variable.

    Returns
    -------
    list of lists of str
        Rows from the top, each from left to right.
    """
    order = TopologicalSorter(parents)
    order.prepare()
    rows: list[list[str]] = []
    place: dict[str, float] = {}
    while order.is_active():
        ready = order.get_ready()
        order.done(*ready)
        # A parent's place; what has none goes by name.
        middle = {n: np.mean([place[p] for p in parents.get(n, ())] or [0.5]) for n in ready}
        row = sorted(ready, key=lambda n: (middle[n], n))
        place |= {n: (i + 0.5) / len(row) for i, n in enumerate(row)}
        rows.append(row)
    return rows


def draw_model(model: pm.Model) -> "Figure":
    """Draw a model's variables as a graph.

    Unlike :func:`pymc.model_to_graphviz` it needs no program beside Python; dims are named in the
    variables instead of drawn as plates around them.

    Parameters
    ----------
    model : pymc.Model

    Returns
    -------
    matplotlib.figure.Figure
        Free variables are round and white, observed ones blue; data and deterministics are square.
    """
    from matplotlib.figure import Figure

    graph = ModelGraph(model)
    parents = dict(graph.make_compute_graph())
    rows = layers(parents)
    labels, looks = {}, {}
    for plate in graph.get_plates():
        sizes = [
            f"{n} {k}" if n else str(k)
            for n, k in zip(plate.dim_info.names, plate.dim_info.lengths, strict=True)
        ]
        for node in plate.variables:
            word, *looks[name := str(node.var.name)] = _LOOKS[node.node_type]
            lines = [name, word or f"~ {random_variable_symbol(node.var)}", ", ".join(sizes)]
            labels[name] = "\n".join(shortened(line) for line in lines if line)
    width = max(max(map(len, rows)), 2) * _WIDTH
    figure = Figure(figsize=(width, len(rows) * _HEIGHT), layout="constrained")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(len(rows) * _HEIGHT, 0))
    axis.axis("off")
    row_of = {name: i for i, row in enumerate(rows) for name in row}
    boxes, at = {}, {}
    for i, row in enumerate(rows):
        for j, name in enumerate(row):
            shape, colour = looks[name]
            at[name] = ((j + 0.5) * width / len(row), (i + 0.5) * _HEIGHT)
            boxes[name] = axis.text(
                *at[name],
                labels[name],
                ha="center",
                va="center",
                fontsize=9,
                bbox={"boxstyle": shape, "facecolor": colour, "edgecolor": "#444444"},
            )
    for child, above in parents.items():
        for parent in above:
            axis.annotate(
                "",
                xy=at[child],
                xytext=at[parent],
                arrowprops={
                    "arrowstyle": "-|>",
                    # around the variables between the two, not behind them
                    "connectionstyle": "arc3,rad=0.3"
                    if row_of[child] - row_of[parent] > 1
                    else "arc3",
                    "color": "#444444",
                    "patchA": boxes[parent].get_bbox_patch(),
                    "patchB": boxes[child].get_bbox_patch(),
                },
                zorder=0,
            )
    return figure
