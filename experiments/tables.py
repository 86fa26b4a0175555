"""Tables and figures of experiment 1, from the runs that there are."""

import json
from pathlib import Path

import numpy as np

MEASURES = (
    "adapted_ratio",
    "unadapted_ratio",
    "adapted_mmd2",
    "adapted_bias_mean",
    "adapted_bias_sd",
)


def write(runs: Path, results: Path) -> None:
    """Read all runs; write `linear_regression.json`, `.md` and the figures."""
    found = {p.stem: json.loads(p.read_text()) for p in sorted(runs.glob("*.json"))}
    if not found:
        return
    results.mkdir(parents=True, exist_ok=True)
    methods: dict[str, dict[str, list[dict]]] = {"paper": {}, "ours": {}}
    for stem, run in found.items():
        settings, _, rest = stem.partition("_")
        name, _, seed = rest.rpartition("_")
        if settings in methods and seed.isdigit():
            methods[settings].setdefault(name.replace("_", " "), []).append(run)
    compact: dict = {
        "command": "python experiments/linear_regression.py continual (strength, capacity, long)",
        "versions": sorted({r["version"] for r in found.values()}),
        "methods": {s: {n: _over_seeds(runs) for n, runs in m.items()} for s, m in methods.items()},
        "strength": _sweep(found, "strength_"),
        "capacity": _sweep(found, "capacity_"),
        "option": _sweep(found, "option_"),
    }
    for single in ("long", "test-time"):
        if single in found:
            compact[single] = found[single]
    (results / "linear_regression.json").write_text(json.dumps(compact, indent=1) + "\n")
    (results / "linear_regression.md").write_text(_markdown(compact))
    _figures(compact, results)


def _over_seeds(runs: list[dict]) -> dict:
    """Mean over seeds of each measure by task, and the figures that targets are about."""
    names = list(runs[0]["tasks"])
    table = {
        m: {t: float(np.mean([r["tasks"][t][m] for r in runs])) for t in names} for m in MEASURES
    }
    found: dict = {"seeds": len(runs), "tasks": table}
    for kind in ("adapted", "unadapted"):
        ratios = table[f"{kind}_ratio"]
        found[f"{kind}_median"] = float(np.median(list(ratios.values())))
        found[f"{kind}_worst_real"] = max(v for k, v in ratios.items() if k != "simulated")
        found[f"{kind}_simulated"] = ratios["simulated"]
    if all("seconds" in r for r in runs):
        found["seconds_a_task"] = float(np.median([s for r in runs for s in r["seconds"]]))
    if all("refined" in r for r in runs):
        found["refined_worst"] = max(max(r["refined"].values()) for r in runs)
    return found


def _sweep(found: dict[str, dict], prefix: str) -> dict[str, dict]:
    return {
        k.removeprefix(prefix).replace("_", " "): _over_seeds([v])
        for k, v in found.items()
        if k.startswith(prefix)
    }


def _markdown(compact: dict) -> str:
    """All tables, for people."""
    parts = ["# Experiment 1, measured\n"]
    parts.append(f"`{compact['command']}`, pmcl {', '.join(compact['versions'])}.\n")
    for settings, methods in compact["methods"].items():
        for measure in MEASURES:
            if not methods:
                continue
            tasks = list(next(iter(methods.values()))["tasks"][measure])
            parts.append(f"## {settings} settings: {measure}\n")
            parts.append(_table(methods, tasks, measure))
    for sweep in ("strength", "capacity", "option"):
        if compact[sweep]:
            parts.append(f"## by {sweep}: adapted_ratio\n")
            tasks = list(next(iter(compact[sweep].values()))["tasks"]["adapted_ratio"])
            parts.append(_table(compact[sweep], tasks, "adapted_ratio"))
    return "\n".join(parts)


def _table(rows: dict[str, dict], tasks: list[str], measure: str) -> str:
    lines = [
        "| method | seeds | " + " | ".join(tasks) + " | median |",
        "|" + "---|" * (len(tasks) + 3),
    ]
    for name, row in rows.items():
        values = row["tasks"][measure]
        middle = np.median(list(values.values()))
        cells = " | ".join(f"{values[t]:.3g}" for t in tasks)
        lines.append(f"| {name} | {row['seeds']} | {cells} | {middle:.3g} |")
    return "\n".join(lines) + "\n"


def _figures(compact: dict, results: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    for settings, methods in compact["methods"].items():
        if not methods:
            continue
        figure, axis = plt.subplots(figsize=(9, 4.5), layout="constrained")
        for name, row in methods.items():
            ratios = row["tasks"]["adapted_ratio"]
            axis.plot(range(len(ratios)), list(ratios.values()), marker="o", label=name)
        axis.axhline(1, color="0.6", linewidth=1)
        axis.set_yscale("log")
        axis.set_xticks(range(len(ratios)), list(ratios), rotation=30, ha="right")
        axis.set_ylabel("MMD² relative to the baseline")
        axis.set_title(f"After the tenth task, {settings} settings")
        axis.legend(fontsize="small", ncols=2)
        figure.savefig(results / f"ratio_{settings}.png", dpi=120)
        plt.close(figure)
    for sweep, label in (("strength", "strength"), ("capacity", "stored datasets")):
        rows = compact[sweep]
        if not rows:
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for key, row in rows.items():
            name, _, value = key.rpartition(" ")
            lines.setdefault(name or "replay", []).append((float(value), row["adapted_median"]))
        figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
        for name, points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            axis.plot(x, y, marker="o", label=name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.set_ylabel("median ratio over the ten tasks")
        axis.legend()
        figure.savefig(results / f"{sweep}.png", dpi=120)
        plt.close(figure)
