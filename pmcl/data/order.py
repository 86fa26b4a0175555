"""Refusals of labels that come in different orders."""

from collections.abc import Mapping
from typing import Any

from pmcl.data.labels import along, few, is_turned, numbers, own_labels, text
from pmcl.data.task import DataError, Layout


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

    Constants that came are among them. Only where :func:`aligned` puts them in order.

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
