"""Tables and figures of an experiment, from the runs that there are."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from continual import simulated

MEASURES = (
    "adapted_ratio",
    "unadapted_ratio",
    "adapted_mmd2",
    "unadapted_mmd2",
    "adapted_efficiency",
    "unadapted_efficiency",
    "adapted_bias_mean",
    "adapted_bias_sd",
    "refined_ratio",
)
WORST = {"adapted_mmd2": max, "adapted_efficiency": min}  # of any seed and task
SWEEPS = ("strength",)
ALONE = ("long", "test-time", "forecast", "unseen", "alone", "recovery", "timing", "fallback")


def write(
    runs: Path,
    results: Path,
    name: str,
    command: str,
    *,
    note: str = "",
) -> None:
    """Read all runs; write the experiment's `.json`, `.md` and figures.

    `note` says what differs from the paper. What was measured before, over more seeds or with runs
    that are no longer there, stays in the tables.
    """
    found = {p.stem: json.loads(p.read_text()) for p in sorted(runs.glob("*.json"))}
    if not found:
        return
    results.mkdir(parents=True, exist_ok=True)
    methods: dict[str, dict[str, list[dict]]] = {"paper": {}, "ours": {}}
    for stem, run in found.items():
        settings, _, rest = stem.partition("_")
        method, _, seed = rest.rpartition("_")
        if settings in methods and seed.isdigit():
            methods[settings].setdefault(method.replace("_", " "), []).append(run)
    compact: dict = {
        "command": command,
        "note": note,
        "versions": sorted({r["version"] for r in found.values()}),
        "with": next((r["with"] for r in found.values() if "with" in r), {}),
        "made": max((r["made"] for r in found.values() if "made" in r), default=""),
        "methods": {s: {n: _over_seeds(runs) for n, runs in m.items()} for s, m in methods.items()},
        **{sweep: _sweep(found, sweep) for sweep in SWEEPS},
    }
    compact |= {single: found[single] for single in ALONE if single in found}
    path = results / f"{name}.json"
    if path.exists():
        compact = _merged(json.loads(path.read_text()), compact)
    path.write_text(json.dumps(compact, indent=1) + "\n")
    (results / f"{name}.md").write_text(_markdown(compact, name.replace("_", " ").capitalize()))
    # The first experiment's figures were there before others'.
    _figures(compact, results, "" if name == "linear_regression" else f"{name}_")


def _merged(old: dict, new: dict) -> dict:
    """Keep what was measured elsewhere, or over more seeds."""
    rows = of_more_seeds(old["methods"], new["methods"], lambda row: row["seeds"])
    sweeps = {sweep: {**old.get(sweep, {}), **new[sweep]} for sweep in SWEEPS}
    versions = sorted({*old["versions"], *new["versions"]})
    return {**old, **new, "versions": versions, "methods": rows, **sweeps}


def of_more_seeds(old: dict, new: dict, seeds: Callable[[dict], int]) -> dict:
    """Take the row of more seeds, the new one of two alike; rows by group and name."""
    found = {group: {**old.get(group, {})} for group in [*old, *new]}
    for group, rows in new.items():
        for name, row in rows.items():
            if seeds(row) >= seeds(found[group].get(name, row)):
                found[group][name] = row
    return found


def _over_seeds(runs: list[dict]) -> dict:
    """Mean over seeds of each measure by task, and the figures that targets are about."""
    names = list(runs[0]["tasks"])
    table = {
        m: {t: float(np.mean([r["tasks"][t][m] for r in runs])) for t in names}
        for m in MEASURES
        if m in runs[0]["tasks"][names[0]]
    }
    found: dict = {"seeds": len(runs), "tasks": table}
    for kind in ("adapted", "unadapted"):
        ratios = table.get(f"{kind}_ratio")
        if ratios:
            found[f"{kind}_median"] = float(np.median(list(ratios.values())))
            for label, which in (("worst_real", False), ("simulated", True)):
                some = [v for k, v in ratios.items() if simulated(k) == which]
                found[f"{kind}_{label}"] = max(some, default=None)
    for measure, worst in WORST.items():
        every = [r["tasks"][t].get(measure) for r in runs for t in names]
        if None not in every:
            found[f"worst_{measure}"] = worst(every)
    if all("seconds" in r for r in runs):
        found["seconds_a_task"] = float(np.median([s for r in runs for s in r["seconds"]]))
    if all("refined" in r for r in runs):
        refined = {t: float(np.mean([r["refined"][t] for r in runs])) for t in runs[0]["refined"]}
        table["refined_ratio"] = refined
        found["refined_median"] = float(np.median(list(refined.values())))
        found["refined_worst"] = max(max(r["refined"].values()) for r in runs)
    return found


def _sweep(found: dict[str, dict], sweep: str) -> dict[str, dict]:
    rows = {
        k.removeprefix(f"{sweep}_").replace("_", " "): v
        for k, v in found.items()
        if k.startswith(f"{sweep}_")
    }
    return {name: _over_seeds([run]) for name, run in rows.items()}


def _markdown(compact: dict, title: str) -> str:
    """All tables, for people."""
    made = ", ".join([f"pmcl {v}" for v in compact["versions"]])
    made += "".join(f", {name} {v}" for name, v in compact["with"].items())
    parts = [f"# {title}, measured\n", f"`{compact['command']}`, {made}, {compact['made']}.\n"]
    if compact.get("note"):
        parts.append(compact["note"] + "\n")
    for settings, methods in compact["methods"].items():
        for measure in MEASURES:
            rows = {n: r for n, r in methods.items() if measure in r["tasks"]}
            if rows:
                parts.append(f"## {settings} settings: {measure}\n")
                parts.append(_table(rows, measure))
        worst = [
            f"- {name}: " + ", ".join(f"{m} {row[f'worst_{m}']:.3g}" for m in WORST)
            for name, row in methods.items()
            if all(f"worst_{m}" in row for m in WORST)
        ]
        if worst:
            parts.append(f"## {settings} settings: the worst of any seed and task\n")
            parts.append("\n".join(worst) + "\n")
    timed = {
        f"{name}, {settings}": row["seconds_a_task"]
        for settings, methods in compact["methods"].items()
        for name, row in methods.items()
        if "seconds_a_task" in row
    }
    if timed:
        parts.append("## seconds a task, median\n")
        parts.append("\n".join(f"- {name}: {value:.0f}" for name, value in timed.items()) + "\n")
    for sweep in SWEEPS:
        if compact[sweep]:
            parts.append(f"## by {sweep}: adapted_ratio\n")
            parts.append(_table(compact[sweep], "adapted_ratio"))
    for name in ALONE:
        if name in compact and "tasks" not in compact[name]:
            told = {k: v for k, v in compact[name].items() if k not in _ABOUT}
            parts.append(f"## {name}\n\n" + "\n".join(_listed(told)) + "\n")
    return "\n".join(parts)


_ABOUT = ("version", "with", "made", "took")


def _listed(value: dict, depth: int = 0) -> list[str]:
    """Nested figures as a list for people."""
    lines = []
    for key, one in value.items():
        if isinstance(one, dict):
            lines += [f"{'  ' * depth}- {key}", *_listed(one, depth + 1)]
        else:
            text = f"{one:.4g}" if isinstance(one, float) else one
            if isinstance(one, list):
                text = ", ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in one)
            lines.append(f"{'  ' * depth}- {key}: {text if text != '' else 'none'}")
    return lines


def _table(rows: dict[str, dict], measure: str) -> str:
    tasks = list(next(iter(rows.values()))["tasks"][measure])
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


def _figures(compact: dict, results: Path, prefix: str) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    for settings, methods in compact["methods"].items():
        if not methods:
            continue
        figure, axis = plt.subplots(figsize=(10, 4.5), layout="constrained")
        for name, row in methods.items():
            ratios = row["tasks"]["adapted_ratio"]
            axis.plot(range(len(ratios)), list(ratios.values()), marker="o", label=name)
        axis.axhline(1, color="0.6", linewidth=1)
        axis.set_yscale("log")
        axis.set_xticks(range(len(ratios)), list(ratios), rotation=30, ha="right")
        axis.set_ylabel("MMD² relative to the baseline")
        whose = {"ours": "our", "paper": "the paper's"}[settings]
        axis.set_title(f"After the last task, {whose} settings")
        figure.legend(loc="outside right upper", fontsize="small")
        figure.savefig(results / f"{prefix}ratio_{settings}.png", dpi=120)
        plt.close(figure)
    for sweep, label in (("strength", "strength"),):
        rows = compact[sweep]
        if not rows:
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for key, row in rows.items():
            name, _, value = key.rpartition(" ")
            lines.setdefault(name or "replay", []).append((float(value), row["adapted_median"]))
        figure, axis = plt.subplots(figsize=(7.5, 4), layout="constrained")
        for name, points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            axis.plot(x, y, marker="o", label=name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.set_ylabel("median ratio over the tasks")
        if len(lines) > 1:
            figure.legend(loc="outside right upper", fontsize="small")
        figure.savefig(results / f"{prefix}{sweep}.png", dpi=120)
        plt.close(figure)
