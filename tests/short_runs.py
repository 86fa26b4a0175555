"""The experiments in their short form, as from the command line."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd


def run(module, monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["experiment", *map(str, arguments)])
    module.main()


def check(results: Path, name: str, methods: dict[str, set[str]], tasks: list[str]) -> dict:
    found = json.loads((results / f"{name}.json").read_text())
    assert {s: set(m) for s, m in found["methods"].items()} == methods
    for some in found["methods"].values():
        for row in some.values():
            assert list(row["tasks"]["adapted_ratio"]) == tasks
            assert np.isfinite(list(row["tasks"]["adapted_mmd2"].values())).all()
    assert "adapted_ratio" in (results / f"{name}.md").read_text()
    assert (results / f"{name}_ratio_ours.png").stat().st_size > 5_000
    return found


def countries(path: Path) -> pd.DataFrame:
    """Series in the form of Eurostat's, made up."""
    rng = np.random.default_rng(0)
    years = np.arange(2004, 2020)
    parts = [
        pd.DataFrame(
            {
                "country": name,
                "year": years,
                "passengers": np.exp(13 + np.cumsum(rng.normal(0.03, 0.1, years.size))),
                "debt": rng.uniform(50, 90, years.size),
                "gdp": np.linspace(30_000, 38_000, years.size),
            }
        )
        for name in ("Austria", "Norway")
    ]
    table = pd.concat(parts, ignore_index=True)
    table.sample(frac=1, random_state=0).to_csv(path, index=False)
    return table
