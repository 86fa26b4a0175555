"""Comparing draws of two simulators."""

from collections.abc import Mapping

import numpy as np
from scipy import stats


def statistics(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every entry of every variable, and products of neighbours, which see dependence."""
    columns = [
        (f"{name}[{j}]", v.reshape(len(v), -1)[:, j].astype(float))
        for name, v in sorted(values.items())
        for j in range(v[0].size)
    ]
    following = [*columns[1:], columns[0]]
    products = [(f"{a} * {b}", u * v) for (a, u), (b, v) in zip(columns, following, strict=True)]
    return dict([*columns, *products])


def differing(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], *, level: float
) -> dict[str, float]:
    """The p values below `level` of two-sample tests, by statistic."""
    one, two = statistics(ours), statistics(theirs)
    assert set(one) == set(two)
    p = {name: float(stats.ks_2samp(one[name], two[name]).pvalue) for name in one}
    return {name: v for name, v in p.items() if v < level}
