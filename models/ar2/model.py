"""Autoregression of second order, for a standardised series."""

import numpy as np
import pymc as pm
import xarray as xr

sequence = "time"


def model(length: int = 100) -> pm.Model:
    """Build the model; `y` is observed, the series from its first value on."""
    with pm.Model(coords={"time": range(length), "lag": [1, 2]}) as built:
        # partial autocorrelations between -1 and 1: the series is stationary
        partial = pm.Uniform("partial", -1, 1, dims="lag")
        first = partial[0] * (1 - partial[1])
        rho = pm.Deterministic("rho", pm.math.stack([first, partial[1]]), dims="lag")
        level = pm.Normal("level", 0, 0.5)
        sigma = pm.HalfNormal("sigma", 1)
        pm.AR(
            "y",
            pm.math.concatenate([level[None], rho]),
            sigma=sigma,
            constant=True,
            init_dist=pm.Normal.dist(0, 1, shape=2),
            observed=np.zeros(length),
            dims="time",
        )
    return built


def example() -> xr.Dataset:
    """Yearly sunspots: three spells of 100 years, of their square roots."""
    from statsmodels.datasets import sunspots

    y = np.sqrt(sunspots.load_pandas().data["SUNACTIVITY"].to_numpy())
    y = (y - y.mean()) / y.std()
    starts = (0, 100, 200)
    return xr.Dataset(
        {"y": (("dataset", "time"), np.stack([y[i : i + 100] for i in starts]))},
        coords={"dataset": [f"from {1700 + i}" for i in starts]},
    )
