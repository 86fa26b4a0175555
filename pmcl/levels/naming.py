"""What was found of levels in words, and names of groups."""

from collections import Counter

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.levels.partition import Partition
from pmcl.levels.structure import Levels


def group_name(compiled: CompiledModel, levels: Levels, dataset: int, group: int) -> str:
    """Name of a group of one dataset: its own, or that of its first parameter."""
    if levels.split.block:
        return "the block"
    if levels.labels is not None:
        return levels.labels[dataset][group]
    place = np.asarray(levels.split.place)[dataset] - len(levels.shared)
    entry = int(np.flatnonzero((place >= 0) & (place % levels.groups == group))[0])
    v = next(v for v in compiled.values if v.start <= entry < v.start + v.size)
    dims = next(i.dims for i in compiled.free if i.name == v.variable)
    where = np.unravel_index(entry - v.start, v.shape)
    labels = [
        str(compiled.coords[d][i]) if d in compiled.coords else str(i)
        for d, i in zip(dims, where, strict=True)
    ]
    return f"{v.variable}[{', '.join(labels)}]"


def described(compiled: CompiledModel, found: Partition, *, exact: bool) -> str:
    """Say what was found."""
    infos = {i.name: i for i in compiled.free}
    shared = [v.variable for v in compiled.values if v.name in found.shared]
    local = [v for v in compiled.values if v.name not in found.shared]
    dims: Counter[str] = Counter()
    for v in local:
        label = found.group[v.start : v.start + v.size].reshape(v.shape)
        for axis, dim in enumerate(infos[v.variable].dims[: label.ndim]):
            if (label != label.take([0], axis=axis)).any():
                dims[dim] += 1
    along = " and ".join(repr(d) for d, _ in dims.most_common(2))
    crossed = [v.variable for v in compiled.values if v.name in found.shared and v.size > 1]
    also = f" (of these {', '.join(crossed)} by their entries)" if crossed else ""
    if found.number == 1:
        how = "normal given the others and integrated out exactly"
        how = how if exact else "integrated out by its own curvature"
        return (
            f"levels: one block of {found.width} parameters "
            f"({', '.join(v.variable for v in local)}), {how}; global: {', '.join(shared)}{also}"
        )
    how = "integrated out exactly" if exact else "integrated out by their own curvature"
    return (
        f"levels: {found.number} groups along {along}, each with its part of "
        f"{', '.join(v.variable for v in local)}, {how}; global: {', '.join(shared)}{also}"
    )
