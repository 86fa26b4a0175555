"""How soon `posterior.monitor` sees a change, and how often it sees one where there is none.

    python experiments/monitoring.py            # 100 streams of 200 datasets of each kind

Linear regression, 100 rows a dataset, parameters of a stream drawn once from the prior. From the
hundredth dataset on the noise is twice as large, or the first slope has moved by two prior standard
deviations, or the predictors have Student's t with three degrees of freedom; or nothing happens.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import regression
import xarray as xr
from continual import kept

import pmcl

HERE = Path(__file__).parent
CHANGES = ("none", "noise", "slope", "predictors")
DATASETS, CHANGE, ROWS, PREDICTORS = 200, 100, 100, 5


def stream(change: str, seed: int) -> xr.Dataset:
    """Datasets of one stream, in their order."""
    rng = np.random.default_rng([seed, 1])
    alpha, beta = rng.normal(), rng.normal(size=PREDICTORS)
    sigma = np.full(DATASETS, abs(rng.normal()))
    slopes = np.tile(beta, (DATASETS, 1))
    X = rng.normal(size=(DATASETS, ROWS, PREDICTORS))
    if change == "noise":
        sigma[CHANGE:] *= 2
    elif change == "slope":
        slopes[CHANGE:, 0] += 2 * rng.choice([-1, 1])
    elif change == "predictors":
        X[CHANGE:] = rng.standard_t(3, size=X[CHANGE:].shape)
    noise = sigma[:, None] * rng.normal(size=(DATASETS, ROWS))
    y = alpha + np.einsum("drp,dp->dr", X, slopes) + noise
    return xr.Dataset({"X": (("dataset", "obs", "predictor"), X), "y": (("dataset", "obs"), y)})


def watched(posterior: pmcl.AmortizedPosterior, change: str, streams: int, *, refine: bool) -> dict:
    """Positions of the first alarm of each stream, and what raised it."""
    first, by = [], []
    for seed in range(streams):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = pmcl.monitor(
                posterior,
                stream(change, seed),
                refine="auto" if refine else False,
                random_seed=seed,
            )
        alarm = found["alarm"].values
        at = int(np.argmax(alarm)) if alarm.any() else None
        first.append(at)
        raised = [] if at is None else found["series"].values[found["raised"].values[:, at]]
        by.append([str(r) for r in raised])
    # Datasets from the change on until the alarm, the one that raised it counted.
    delay = [np.inf if f is None else f - CHANGE + 1 for f in first]
    late = [d for d in delay if d > 0] or [np.inf]
    return {
        "first": first,
        "by": by,
        "before": sum(d <= 0 for d in delay),
        "alarms": sum(f is not None for f in first),
        "median_delay": float(np.median(late)) if np.isfinite(np.median(late)) else None,
        "within_5": float(np.mean([0 < d <= 5 for d in delay])),
    }


def main() -> None:
    """Run what has not run, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "monitoring")
    parser.add_argument(
        "--network", type=Path, default=HERE.parent / "out" / "regression",
        help="where the pretrained network of experiment 1 is, or will be, kept",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument(
        "--plain", action="store_true", help="the network's own draws: many times as fast"
    )
    given = parser.parse_args()
    posterior = regression.pretrained(given.network)
    rows = {}
    for change in CHANGES:
        rows[change] = kept(
            given.out, f"plain {change}" if given.plain else change,
            lambda c=change: watched(posterior, c, given.streams, refine=not given.plain),
            lambda r: f"{r['alarms']} alarms, median delay {r['median_delay']}",
        )  # fmt: skip
    lines = [
        "# A change in a stream of datasets", "",
        f"`python experiments/monitoring.py{' --plain' * given.plain}`: {given.streams} streams "
        f"of {DATASETS} datasets each, a change at number {CHANGE}; the first 50 are the "
        "baseline.", "",
        "| change | streams with an alarm before it | median datasets until the alarm | within 5 |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for change, row in rows.items():
        early = row["alarms"] if change == "none" else row["before"]
        delay = "" if row["median_delay"] is None else f"{row['median_delay']:g}"
        within = "" if change == "none" else f"{row['within_5']:.0%}"
        lines.append(f"| {change} | {early} | {delay} | {within} |")
    stem = "monitoring_plain" if given.plain else "monitoring"
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / f"{stem}.md").write_text("\n".join(lines) + "\n")
    (given.results / f"{stem}.json").write_text(json.dumps(rows) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
