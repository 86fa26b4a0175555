"""Experiment 2 (autoregressive panel): firms, countries, simulated ones, and the networks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from continual import Runs, Task, reference

import pmcl

DEFINITION = pmcl.models.find("autoregressive_panel")
YEARS = 18
COLUMNS = ("country", "year", "passengers", "debt", "gdp")
FEWEST = 10  # years of a country


@dataclass(frozen=True)
class Size:
    """How much is computed; `SHORT` is what continuous integration runs."""

    simulated: int = 4
    firms: int = 11
    baseline_steps: int = 3200
    steps: int = 1500
    adapt_steps: int = 300
    kept: int = 8
    simulations: int | None = None


FULL = Size()
SHORT = Size(
    simulated=1,
    firms=2,
    baseline_steps=100,
    steps=200,
    adapt_steps=20,
    kept=2,
    simulations=500,
)


def baseline_network() -> pmcl.Network:
    """The paper's: an LSTM of 64 and dense layers of 256 and 64; six couplings of 128 units."""
    return pmcl.Network(
        pmcl.Recurrent(outputs=64, cell="lstm", state=64, width=256),
        pmcl.CouplingFlow(layers=6, width=128, activation="elu"),
        whiten=False,
    )


def firms(number: int) -> dict[str, xr.Dataset]:
    """Grunfeld's panel: growth of investment, by market value and capital of the year before."""
    data = DEFINITION.example()
    assert isinstance(data, xr.Dataset)
    return {
        str(name): data.sel(dataset=[name]) for name in data["dataset"].values[:number].tolist()
    }


def simulated_countries(number: int, *, random_seed: int = 0) -> dict[str, xr.Dataset]:
    """Countries by the model, but with covariates that wander, as real ones do."""
    rng = np.random.default_rng(random_seed)
    model = DEFINITION.model(years=YEARS)
    found = {}
    for i in range(number):
        wander = np.cumsum(rng.normal(size=(2, YEARS)), axis=1)
        u, w = (wander - wander.mean(axis=1, keepdims=True)) / wander.std(axis=1, keepdims=True)
        first = rng.normal(0, 0.5)
        pm.set_data({"first": first, "u": u, "w": w}, model=model)
        y = pm.draw(model["y"], random_seed=rng, mode="FAST_COMPILE")
        values = {"first": ((), first), "u": ("year", u), "w": ("year", w), "y": ("year", y)}
        name = f"simulated {i + 1}"
        found[name] = xr.Dataset(values).expand_dims(dataset=[name])
    return found


def read_countries(path: Path) -> dict[str, xr.Dataset]:
    """Read yearly air passengers, household debt and GDP per capita of countries.

    The Eurostat series of the paper cannot be redistributed with pmcl: save them as a CSV file with
    columns country, year, passengers, debt (% of GDP) and gdp (per capita).

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict of xarray.Dataset
        Log differences of passengers, standardised logs of debt and GDP, by country.

    Raises
    ------
    ValueError
        Naming the column or the country, what was expected and what came.
    """
    table = pd.read_csv(path)
    missing = [c for c in COLUMNS if c not in table]
    if missing:
        raise ValueError(
            f"{path}: expected columns {list(COLUMNS)}, {missing} did not come (got "
            f"{list(table.columns)}). Rename them."
        )
    for column in COLUMNS[1:]:
        wrong = pd.to_numeric(table[column], errors="coerce").isna()
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"{path}, line {at + 2}: {column} is expected to be a number, got "
                f"{table[column].iloc[at]!r}. Leave countries out that lack years."
            )
    found = {}
    for country, rows in table.astype(dict.fromkeys(COLUMNS[1:], float)).groupby("country"):
        rows = rows.sort_values("year")
        years = rows["year"].to_numpy()
        if len(years) < FEWEST or (np.diff(years) != 1).any():
            raise ValueError(
                f"{path}, country {country!r}: expected {FEWEST} consecutive years or more, each "
                f"once, got {years.astype(int).tolist()}."
            )
        values = rows[["passengers", "debt", "gdp"]]
        if (values <= 0).any(axis=None):
            column = str(values.columns[(values <= 0).any().to_numpy()][0])
            raise ValueError(
                f"{path}, country {country!r}: {column} is expected to be positive, got "
                f"{float(values[column].min())}; its logarithm is what is modelled."
            )
        one = DEFINITION.module.panel(*(values[c].to_numpy() for c in values))
        found[str(country)] = one.expand_dims(dataset=[str(country)])
    return found


def tasks(out: Path, size: Size = FULL, countries: Path | None = None) -> list[Task]:
    """Build the tasks, one dataset each; references are sampled once and kept in `out`."""
    real = firms(size.firms) if countries is None else read_countries(countries)
    found = []
    for name, data in {**simulated_countries(size.simulated), **real}.items():
        model = DEFINITION.model(years=data.sizes["year"])
        path = out / "references" / f"{name.replace(' ', '_')}.zarr"
        found.append(Task(name, {"adapted": data}, {"adapted": reference(model, data, path)}))
    return found


def start(out: Path, settings: str, seed: int, size: Size = FULL) -> pmcl.AmortizedPosterior:
    """Return the pretrained network: the paper's, at one length, or the default one, over many."""
    out.mkdir(parents=True, exist_ok=True)
    options = (
        {
            "network": baseline_network(),
            "lengths": None,
            "steps": size.baseline_steps,
            "batch_size": 32,
            "learning_rate": 5e-4,
        }
        if settings == "paper"
        else {"steps": size.steps, "simulations": size.simulations}
    )
    return DEFINITION.fit(
        **options,
        random_seed=seed,
        checkpoint=out / f"{settings}-{seed}.checkpoint",
        progressbar=False,
    )


def runs(out: Path, size: Size = FULL, countries: Path | None = None) -> Runs:
    """All tasks, judged relative to the paper's network with seed 0."""
    found = tasks(out, size, countries)
    return Runs(
        out,
        found,
        lambda: start(out, "paper", 0, size),
        lambda settings, seed: start(out, settings, seed, size),
    )
