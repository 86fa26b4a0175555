"""Labels that come in different orders, and numbers that may be labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pmcl.data.label_text import few, numbers, text
from pmcl.data.labels import along, is_turned, own_labels
from pmcl.data.plain import plain
from pmcl.data.task import DataError, Layout
from pmcl.runtime.arguments import warn


def check_one_order(datasets: Mapping[str, Any], layout: Layout) -> None:
    """Refuse datasets that have the same labels in different orders, where the model has none.

    Values go by position there, and results of one position would be about different things.

    Raises
    ------
    DataError
    """
    free = {
        d: n
        for i in layout.variables
        for d, n in zip(i.dims, i.shape, strict=True)
        if d not in {layout.row, *layout.data_dims}
        and text(layout.coords.get(d, range(n))) == numbers(n)
    }
    first: dict[tuple[str, tuple[str, ...]], tuple[str, list[str]]] = {}
    for name, data in datasets.items() if free else ():
        for dim, n in free.items():
            labels = along(data, dim, layout)
            if not labels or (dim in layout.coords and {*labels} == {*numbers(n)}):
                continue  # the model's numbers are labels, too
            other, theirs = first.setdefault((dim, tuple(sorted(labels))), (name, labels))
            if labels != theirs:
                raise DataError(
                    f"data: along {dim!r} dataset {name!r} has the labels {few(labels)}, dataset "
                    f"{other!r} {few(theirs)}, and the model none, so that positions would count. "
                    f"Give the model the labels (`coords`), or all datasets one order."
                )


def check_order(arrays: Mapping[str, object], layout: Layout, where: str) -> None:
    """Refuse labels that are the model's in another order, beside values that have no labels.

    Constants that came are among them, and data that count along the labels. Only where
    :func:`aligned` puts them in order.

    Raises
    ------
    DataError
    """
    for dim in sorted(layout.tied & {*layout.coords}):
        along_it = {i.name for i in layout.variables if dim in i.dims}
        along_it |= {n for n, dims in layout.dims_of_constants.items() if dim in dims}
        own = {n: own_labels(v, dim) for n, v in arrays.items() if n in along_it}
        ours = text(layout.coords[dim])
        turned = [n for n, labels in own.items() if labels and is_turned(labels, ours)]
        # by position go 0, 1, 2 ... and names of columns, too
        bare = [n for n, labels in own.items() if labels is None or {*labels} != {*ours}]
        if turned and bare and ours != numbers(len(ours)):
            raise DataError(
                f"Variable {turned[0]!r}{where}: labels along {dim!r} are the model's in another "
                f"order, and the model has a constant as long; {bare} have no labels of it: "
                "by label and by position they are paired differently. Give all labels, or none."
            )
    for place in layout.indices.places if layout.indices else ():
        dim = place.dim
        along_it = {i.name for i in layout.variables if place.plain and i.dims[:1] == (dim,)}
        own = {n: own_labels(arrays.get(n), dim) for n in along_it}
        ours = text(layout.coords.get(dim, ()))
        turned = [n for n, labels in own.items() if labels and is_turned(labels, ours)]
        index: Any = arrays.get(place.data)
        if turned and plain(getattr(index, "values", index)).dtype.kind in "biuf":
            raise DataError(
                f"Variable {turned[0]!r}{where}: labels along {dim!r} are "
                f"{few(own[turned[0]] or [])}, the model's {few(ours)}, and {place.data!r} counts "
                "along it: by label and by position its numbers say different things. Pass labels "
                f"for them, or put {turned[0]!r} in the model's order."
            )


def with_places(
    datasets: Sequence[Mapping[str, np.ndarray]], names: Sequence[str], layout: Layout
) -> list[dict[str, np.ndarray]]:
    """Number what counts along a dim of the model, and came as its labels.

    Raises
    ------
    DataError
        Naming those that the model does not have.

    Warns
    -----
    UserWarning
        Where numbers came, of which all may be labels.
    """
    found = [dict(one) for one in datasets]
    seen: set[str] = set()  # data may index several variables: numbered once
    for place in layout.indices.places if layout.indices else ():
        ours = text(layout.coords.get(place.dim, ()))
        if not place.plain or place.data not in layout.names:
            continue
        if ours == numbers(len(ours)) or len({*ours}) < len(ours) or place.data in seen:
            continue
        seen.add(place.data)
        came: set[str] = set()
        position = {label: i for i, label in enumerate(ours)}
        for name, one in zip(names, found, strict=True):
            value = np.asarray(one[place.data])
            labels = text(value.ravel())
            if value.dtype.kind in "biuf":
                came |= {*labels}
                continue
            unknown = [n for n in dict.fromkeys(labels) if n not in position]
            if unknown:
                raise DataError(
                    f"Variable {place.data!r} of dataset {name!r}: expected labels of "
                    f"{place.dim!r} ({few(ours)}), or their places from 0, got {few(unknown)}."
                )
            one[place.data] = np.array([position[n] for n in labels], int).reshape(value.shape)
        if came and came <= {*ours} and came <= {*numbers(len(ours))}:
            first = min(came)
            warn(
                f"Variable {place.data!r}: got {few(sorted(came))}, which are places along "
                f"{place.dim!r}, counted from 0, and its labels ({few(ours)}) as well. They are "
                f"taken as places: {first} is the group {ours[int(first)]!r}. Pass labels as text "
                "(`.astype(str)`)."
            )
    return found
