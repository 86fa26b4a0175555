"""Experiment 3 in full: nine attentional tasks, one after another, and what the paper leaves out.

    python experiments/racing_diffusion.py continual   # all methods, the paper's settings, ours
    python experiments/racing_diffusion.py unseen      # four sources that are never adapted to
    python experiments/racing_diffusion.py recovery    # drifts by condition: is the model any good?
    python experiments/racing_diffusion.py timing      # 400 participants beside NUTS
    python experiments/racing_diffusion.py fallback    # the pretrained network, NUTS where it must
    python experiments/racing_diffusion.py tables      # tables and figures of what there is

Set PMCL_DATA to the folder with `stroop/`. Every run is kept in `--out`, one file each, so that a
command that was cut off goes on where it stopped. `--short` computes as little as shows that all of
it works.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import stroop
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
from pmcl.metrics import agreement

CONDITIONS = pmcl.models.find("racing_diffusion_conditions")
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
COMMAND = "python experiments/racing_diffusion.py continual (unseen, recovery, ...)"
NOTE = (
    "The paper's settings here: its flow (six couplings of 2 x 256, mish), 200 steps a task and "
    "the best weights kept, five participants stored of each task; but {draws} draws in place of "
    "128, minibatches of 64 participants in place of all, and our deep set of 30 outputs in place "
    "of its equivariant one. The priors are ours."
)


def methods(size: stroop.Size) -> dict[str, tuple[Method, ...]]:
    """All methods by their settings."""
    stored = size.per_task * size.tasks
    replay = pmcl.Replay(capacity=stored, per_task=size.per_task)
    options = {
        **paper_options(steps=size.paper_steps, draws=size.paper_draws),
        "restore_best": True,
    }
    return {
        "paper": paper_methods(paper_replay(stored, size.per_task), options, strength=1e2),
        "ours": our_methods(replay, size.adapt_steps),
    }


def adapted(runs: Runs) -> pmcl.AmortizedPosterior:
    """Return the posterior after the last task, by replay."""
    path = runs.state("ours", "adapt", 0)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run `continual` first.")
    return stroop.DEFINITION.load(path)


def people(source: str, size: stroop.Size) -> dict[str, xr.Dataset]:
    """Answers of each participant of a source."""
    everyone = stroop.everyone(source, number=size.participants)
    return {name: d[["y"]] for name, d in everyone.items()}


def unseen(runs: Runs, size: stroop.Size) -> None:
    """Sources that were never adapted to, with other numbers of trials: refined, against NUTS."""

    model = stroop.DEFINITION.model()

    def one(source: str) -> dict:
        data = people(source, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the result
            tree = adapted(runs).sample(data, 1000, refine=True, random_seed=7)
        compared = pmcl.compare(
            tree, pmcl.sample_reference(model, data, draws=1000, tune=1000, random_seed=0)
        )
        stats = tree["dataset_stats"].to_dataset()
        trials = [d.sizes["trial"] for d in data.values()]
        return {
            "names": list(data),
            "trials": [min(trials), max(trials)],
            **{k: stats[k].values.tolist() for k in ("khat", "efficiency")},
            **{k: compared[k].values.tolist() for k in ("mmd2", "null_mmd2")},
        }

    def make() -> dict:
        found: dict[str, Any] = {"sources": {}}
        parts = {}
        for source in stroop.UNSEEN:
            # Each is kept: NUTS of all takes half an hour.
            part = parts[source] = runs.kept(f"part {source}", lambda s=source: one(s))
            khat = np.asarray(part["khat"])
            found["sources"][source] = {
                "participants": len(khat),
                "trials": part["trials"],
                "khat_below_0.7": float((khat < 0.7).mean()),
                "khat_above_0.7": np.asarray(part["names"])[khat > 0.7].tolist(),
                "efficiency": float(np.mean(part["efficiency"])),
                "mmd2": float(np.mean(part["mmd2"])),
                "null_mmd2": float(np.mean(part["null_mmd2"])),
            }
        khat, mmd2, null = (
            np.concatenate([p[k] for p in parts.values()]) for k in ("khat", "mmd2", "null_mmd2")
        )
        verdict = agreement(mmd2, null)
        return {
            **found,
            "khat_below_0.7": float((khat < 0.7).mean()),
            "above_99_percent_of_null": verdict.exceptions,
            "allowed_above": verdict.allowed,
            "agrees_with_reference": verdict.agrees,
        }

    runs.kept("unseen", make)


def alone(runs: Runs, size: stroop.Size) -> None:
    """The same people by the network that was only pretrained: nothing refined or adapted.

    With more draws, too: k-hat of a thousand is an estimate of what the shape of the tail is.
    """

    def one(posterior: pmcl.AmortizedPosterior, draws: int) -> dict:
        parts: dict[str, list] = {"khat": [], "efficiency": []}
        for source in stroop.UNSEEN:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # k-hat is in the result
                data = people(source, size)
                tree = posterior.sample(data, draws, refine=False, fallback=None, random_seed=7)
            for name, part in parts.items():
                part.extend(tree["dataset_stats"][name].values.tolist())
        khat, efficiency = map(np.asarray, parts.values())
        return {
            "participants": len(khat),
            "khat_below_0.7": float((khat < 0.7).mean()),
            "median_efficiency": float(np.median(efficiency)),
            "least_efficiency": float(efficiency.min()),
        }

    def make() -> dict:
        posterior = stroop.start(runs.out, "ours", 0, size)
        return {f"{n} draws": one(posterior, n) for n in (1000, 10_000)}

    runs.kept("alone", make)


def quantiles(y: np.ndarray, incongruent: np.ndarray) -> np.ndarray:
    """Quantiles of the times of correct answers and the error rate, by condition.

    Parameters
    ----------
    y : array of shape (..., trial)
    incongruent : array of shape (trial,)

    Returns
    -------
    array of shape (..., 2, 6)
    """
    parts = []
    for condition in (0, 1):
        some = y[..., incongruent == condition]
        right = np.where(some > 0, some, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a person without a correct answer
            times = np.nanquantile(right, QUANTILES, axis=-1)
        parts.append(np.stack([*times, (some < 0).mean(axis=-1)], axis=-1))
    return np.stack(parts, axis=-2)


def recovery(runs: Runs, size: stroop.Size) -> None:
    """The model with drifts by condition: recovery, calibration, and whom it does not fit."""

    def make() -> dict:
        posterior = CONDITIONS.fit(
            lengths=stroop.LENGTHS,
            steps=size.steps,
            batch_size=size.batch_size,
            random_seed=0,
            checkpoint=runs.out / "conditions-0.checkpoint",
            progressbar=False,
        )
        found: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # k-hat is in the result
            tree = pmcl.calibrate(
                posterior, simulations=min(500, 20 * size.simulated), refine=True, random_seed=1
            )
        found["uniformity"] = {
            str(k): np.asarray(v).tolist() for k, v in tree["uniformity"].data_vars.items()
        }
        found["recovered"] = recovered(posterior, size.simulated)
        found["sources"] = {}
        for source in stroop.SOURCES[: size.tasks]:
            data = stroop.participants(source, number=size.participants)
            found["sources"][source] = fitted(posterior, data)
        return found

    runs.kept("recovery", make)


def recovered(posterior: pmcl.AmortizedPosterior, number: int) -> dict[str, dict[str, float]]:
    """Simulate people; return how their parameters are found again."""
    prior = CONDITIONS.model(trials=2 * stroop.EACH)
    import pymc as pm

    names = ["boundary", "correct", "effect", "error", "t0"]
    with prior:
        pm.set_data({"incongruent": np.arange(2 * stroop.EACH) % 2})
        drawn = pm.sample_prior_predictive(number, random_seed=2)
    y = drawn["prior_predictive"]["y"].values[0]
    data = {"y": y, "incongruent": np.tile(np.arange(y.shape[1]) % 2, (len(y), 1))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = posterior.sample(data, 1000, refine=True, random_seed=3)
    found = {}
    for name in names:
        truth = drawn["prior"][name].values[0]
        draws = tree["posterior"][name].stack(sample=("chain", "draw"))
        draws = draws.transpose("dataset", ..., "sample").values
        low, high = np.quantile(draws, (0.05, 0.95), axis=-1)
        found[name] = {
            "correlation": float(np.corrcoef(draws.mean(axis=-1).ravel(), truth.ravel())[0, 1]),
            "coverage of 90 %": float(((truth >= low) & (truth <= high)).mean()),
        }
    return found


def fitted(posterior: pmcl.AmortizedPosterior, data: xr.Dataset) -> dict:
    """Compare quantiles by condition with the posterior predictive; name whom it does not fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = posterior.predict(data, draws=400, random_seed=4)
    names = data["dataset"].values
    drawn = tree["predictions"]["y"].stack(sample=("chain", "draw"))
    drawn = drawn.transpose("dataset", "sample", ...).values
    off, wrong = [], []
    for i, name in enumerate(names):
        incongruent = data["incongruent"].values[i]
        seen = quantiles(data["y"].values[i], incongruent)
        predicted = quantiles(drawn[i], incongruent)
        off.append(seen - np.nanmedian(predicted, axis=0))
        # Twelve statistics: an interval that a right model leaves with one person in fifty.
        outer = 0.02 / seen.size
        low, high = np.nanquantile(predicted, (outer / 2, 1 - outer / 2), axis=0)
        if ((seen < low - 1e-9) | (seen > high + 1e-9)).any():
            wrong.append(str(name))
    labels = [*(f"{q:.0%} quantile, s" for q in QUANTILES), "error rate"]
    checked = pmcl.check_data(posterior, data)
    stats = tree["dataset_stats"]
    return {
        "mean_difference": {
            condition: dict(zip(labels, np.nanmean(off, axis=0)[i].tolist(), strict=True))
            for i, condition in enumerate(("congruent", "incongruent"))
        },
        "quantiles_off": wrong,
        "far": [str(n) for n in names[checked["far"].values]],
        "khat_above_0.7": [str(n) for n in names[stats["khat"].values > 0.7]],
        "participants": len(names),
    }


def timing(runs: Runs, size: stroop.Size) -> None:
    """Time 1,000 draws for each of 400 participants, warm, beside NUTS of some of them."""

    def make() -> dict:
        people = stroop.simulated_participants(400 if size.participants is None else 8)
        some = people.isel(dataset=slice(20 if size.participants is None else 2))
        found: dict[str, Any] = {"participants": people.sizes["dataset"]}
        for settings in ("paper", "ours"):
            posterior = runs.start(settings, 0)
            for refine in (False, True):
                label = f"{settings} network{', refined' if refine else ''}"
                for _ in range(2):  # the first one compiles
                    begin = time.perf_counter()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UserWarning)
                        posterior.sample(
                            people, 1000, refine=refine, random_seed=1, progressbar=False
                        )
                    found[label] = time.perf_counter() - begin
        model = stroop.DEFINITION.model()
        for data in (some.isel(dataset=slice(1)), some):  # the first one compiles
            begin = time.perf_counter()
            pmcl.sample_reference(model, data, draws=1000, tune=1000, random_seed=0)
            seconds = time.perf_counter() - begin
        found["NUTS, a participant"] = seconds / some.sizes["dataset"]
        return found

    runs.kept("timing", make)


def fallback(runs: Runs, size: stroop.Size) -> None:
    """Sample all studies by the network that was only pretrained, with NUTS where k-hat is high.

    The time of NUTS for all is that of twenty people of the first study, in the same run.
    """

    def make() -> dict:
        posterior = runs.start("ours", 0)
        found: dict[str, Any] = {"sources": {}}
        mmd2, null, people = [], [], 0
        for task in runs.tasks[1:]:
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                tree = posterior.sample(task.adapted, 1000, fallback="nuts", random_seed=7)
            seconds = time.perf_counter() - begin
            compared = pmcl.compare(tree, task.reference["adapted"])
            engines = tree["dataset_stats"]["engine"].values
            names, counts = np.unique(engines, return_counts=True)
            found["sources"][task.name] = {
                "seconds": seconds,
                "engines": {str(n): int(c) for n, c in zip(names, counts, strict=True)},
                "mmd2": float(compared["mean_mmd2"]),
                "null_mmd2": float(compared["mean_null_mmd2"]),
            }
            mmd2.append(compared["mmd2"].values)
            null.append(compared["null_mmd2"].values)
            people += len(engines)
        verdict = agreement(np.concatenate(mmd2), np.concatenate(null))
        some = runs.tasks[1].adapted.isel(dataset=slice(20))
        model = stroop.DEFINITION.model()
        for data in (some.isel(dataset=slice(1)), some):  # the first one compiles
            begin = time.perf_counter()
            pmcl.sample_reference(model, data, draws=1000, tune=1000, random_seed=0)
            each = (time.perf_counter() - begin) / data.sizes["dataset"]
        return {
            **found,
            "participants": people,
            "seconds, with compilation": sum(s["seconds"] for s in found["sources"].values()),
            "seconds of NUTS for all": each * people,
            "above_99_percent_of_null": verdict.exceptions,
            "allowed_above": verdict.allowed,
            "agrees_with_reference": verdict.agrees,
        }

    runs.kept("fallback", make)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = ["continual", "unseen", "alone", "recovery", "timing", "fallback", "tables", "all"]
    parser.add_argument("part", choices=parts)
    parser.add_argument("--out", type=Path, help="of runs; out/race by default")
    parser.add_argument("--results", type=Path, help="of tables; experiments/results by default")
    parser.add_argument("--methods", nargs="+", help="names of some; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    size = stroop.SHORT if given.short else stroop.FULL
    choose_folders(given, "race")
    if given.part != "tables":
        runs = stroop.runs(given.out, size, references=given.part != "alone")
        if given.part in ("continual", "all"):
            runs.continual(methods(size), given.seeds, given.methods)
        others = {
            "unseen": unseen, "alone": alone, "recovery": recovery, "timing": timing,
            "fallback": fallback,
        }  # fmt: skip
        for part, function in others.items():
            if given.part in (part, "all"):
                function(runs, size)
    note = NOTE.format(draws=size.paper_draws)
    tables.write(given.out / "runs", given.results, "racing_diffusion", COMMAND, note=note)


if __name__ == "__main__":
    main()
