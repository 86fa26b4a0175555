"""A model definition as a user writes one, small enough to be trained in a test."""

TINY = '''"""A normal mean: what ten numbers have in common."""

import numpy as np
import pymc as pm
import xarray as xr

import pmcl

exchangeable = "obs"


def model(rows=10):
    """Build it."""
    with pm.Model(coords={"obs": range(rows)}) as built:
        mu = pm.Normal("mu", 1, 2)
        pm.Normal("y", mu, 1, observed=np.zeros(rows), dims="obs")
    return built


def network():
    """One that is trained in seconds."""
    return pmcl.Network(
        pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=16, head_depth=1),
        pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=16),
    )


def example():
    """Two sets of numbers."""
    y = np.random.default_rng(0).normal(2, 1, (2, 10))
    return xr.Dataset({"y": (("dataset", "obs"), y)}, coords={"dataset": ["a", "b"]})


def nothing():
    return 3
'''
