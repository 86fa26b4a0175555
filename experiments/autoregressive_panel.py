"""Experiment 2 in full: fifteen short series, one after another, with every strategy.

    python experiments/autoregressive_panel.py continual   # all methods, the paper's settings, ours
    python experiments/autoregressive_panel.py forecast    # one and ten years ahead, with a figure
    python experiments/autoregressive_panel.py tables      # tables and figures of what there is

The series are four simulated countries and Grunfeld's eleven firms, which come with statsmodels.
`--countries FILE` reads countries from a CSV file in place of the firms (country, year, passengers,
debt, gdp). Every run is kept in `--out`, one file each, so that a command that was cut off goes on
where it stopped. `--short` computes as little as shows that all of it works.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import panel
import tables
import xarray as xr
from continual import (
    Method,
    Runs,
    choose_folders,
    our_methods,
    paper_methods,
    paper_options,
    paper_replay,
)

import pmcl

HERE = Path(__file__).parent
AHEAD = (1, 10)
LEAST = 8  # years to learn from: the network has seen no shorter series
COMMAND = "python experiments/autoregressive_panel.py continual (forecast)"


def methods(size: panel.Size) -> dict[str, tuple[Method, ...]]:
    """All methods by their settings."""
    few = min(30, size.adapt_steps)
    return {
        "paper": paper_methods(
            paper_replay(size.kept), paper_options(steps=few, draws=16), strength=1e2
        ),
        "ours": our_methods(pmcl.Replay(capacity=size.kept), size.adapt_steps),
    }


def forecast(runs: Runs, results: Path, prefix: str) -> None:
    """Forecast the last year, and the last ten, of every series from the years before.

    The network knows the series before only by what it was pretrained on; covariates of the years
    ahead are taken as known.
    """
    posterior = runs.start("ours", 0)
    found: dict[str, Any] = {}
    ahead: dict[int, xr.Dataset] = {}
    series = {t.name: t.adapted.isel(dataset=0, drop=True) for t in runs.tasks}
    name, shortest = min(((n, s.sizes["year"]) for n, s in series.items()), key=lambda x: x[1])
    horizons = [years for years in AHEAD if shortest - years >= LEAST]
    if not horizons:
        raise ValueError(
            f"forecast: expected {LEAST + min(AHEAD)} years or more of every series, {name!r} has "
            f"{shortest}."
        )
    for years in horizons:
        past = {name: s.isel(year=slice(None, -years)) for name, s in series.items()}
        coming = [s.isel(year=slice(-years, None)) for s in series.values()]
        known = {
            "first": np.stack([p["y"].values[-1] for p in past.values()]),
            **{k: np.stack([c[k].values for c in coming]) for k in ("u", "w")},
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the result
            tree = posterior.predict(past, known, draws=2000, random_seed=3)
        drawn = tree["predictions"]["y"].cumsum("year").stack(sample=("chain", "draw"))
        truth = xr.concat([c["y"].cumsum("year") for c in coming], "dataset")
        last = drawn.isel(year=-1)
        found[str(years)] = {
            **{
                f"{level:.0%}": float(
                    (
                        (truth.values >= drawn.quantile(0.5 - level / 2, "sample").values)
                        & (truth.values <= drawn.quantile(0.5 + level / 2, "sample").values)
                    ).mean()
                )
                for level in (0.5, 0.8, 0.95)
            },
            "mean_absolute_error": float(
                np.abs(last.median("sample").values - truth.isel(year=-1).values).mean()
            ),
            "khat_above_0.7": int((tree["dataset_stats"]["khat"] > 0.7).sum()),
        }
        ahead[years] = drawn.quantile([0.025, 0.25, 0.5, 0.75, 0.975], "sample")
    runs.kept("forecast", lambda: {"intervals": found})
    _plot(series, ahead, results / f"{prefix}forecast.png")


def _plot(series: dict[str, xr.Dataset], ahead: dict[int, xr.Dataset], path: Path) -> None:
    """Draw the longest forecast as bands, and that of one year as an interval beside its truth."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = [n for n in series if not n.startswith("simulated")][:6]
    figure, axes = plt.subplots(
        2, 3, figsize=(10, 5), sharex=True, layout="constrained", squeeze=False
    )
    for name, axis in zip(names, axes.flat, strict=False):
        level = np.concatenate([[0], np.cumsum(series[name]["y"].values)])

        def bands(years: int, name: str = name, level: np.ndarray = level) -> np.ndarray:
            one = ahead[years].isel(dataset=list(series).index(name))
            start = level[len(level) - 1 - years]
            return start + one.transpose("quantile", "year").values

        years = max(ahead)
        start = len(level) - 1 - years
        found = np.concatenate([np.full((5, 1), level[start]), bands(years)], axis=1)
        at = np.arange(start, len(level))
        axis.fill_between(at, found[0], found[4], color="C0", alpha=0.2, label="95 %")
        axis.fill_between(at, found[1], found[3], color="C0", alpha=0.4, label="50 %")
        axis.plot(at, found[2], color="C0", label=f"{years} years ahead, median")
        if 1 in ahead and years > 1:
            last = bands(1)[:, 0]
            beside = len(level) - 1 + 0.4
            axis.vlines(beside, last[0], last[4], color="C1", linewidth=2, alpha=0.5)
            axis.vlines(beside, last[1], last[3], color="C1", linewidth=5)
            axis.plot(beside, last[2], "o", color="C1", label="one year ahead")
        axis.plot(level, color="k", marker=".", label="observed")
        axis.set_title(name)
    axes[0, 0].legend(fontsize="small")
    figure.supylabel("log level, from the first year")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=["continual", "forecast", "tables", "all"])
    parser.add_argument("--out", type=Path, help="of runs; out/panel by default")
    parser.add_argument("--results", type=Path, help="of tables; experiments/results by default")
    parser.add_argument("--methods", nargs="+", help="names of some; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--countries", type=Path)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    size = panel.SHORT if given.short else panel.FULL
    name = "panel"
    if given.countries:
        # Other data: neither runs nor tables of the firms are theirs.
        name = f"panel-{given.countries.stem}"
        given.results = given.results or HERE.parent / "out" / name / "results"
    choose_folders(given, name)
    if given.part != "tables":
        runs = panel.runs(given.out, size, given.countries)
        if given.part in ("continual", "all"):
            runs.continual(methods(size), given.seeds, given.methods)
        if given.part in ("forecast", "all"):
            forecast(runs, given.results, "autoregressive_panel_")
    tables.write(given.out / "runs", given.results, "autoregressive_panel", COMMAND)


if __name__ == "__main__":
    main()
