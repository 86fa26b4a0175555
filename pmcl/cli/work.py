"""Commands that work with a posterior: fit, adapt, report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

import pmcl
from pmcl.cli.common import Flag, Json, ModelName, Quiet, answer, apart, label_columns, loaded
from pmcl.cli.settings import SettingsFile

if TYPE_CHECKING:
    from pmcl.amortized.multilevel import MultilevelPosterior
    from pmcl.amortized.posterior import AmortizedPosterior


Strategies = Literal["replay", "naive", "ewc", "replay+ewc", "si", "laplace"]


def fit(
    *,
    model: ModelName,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    steps: int = 4000,
    lengths: tuple[int, int] | None = None,
    missing: float | None = None,
    checkpoint: Path | None = None,
    seed: int = 0,
    json: Json = False,
    quiet: Quiet = False,
    settings: SettingsFile = None,
) -> None:
    """Train an amortized posterior of a model and save it.

    Parameters
    ----------
    model
        Name of a published model, or file.py:function. Beside the function, the file may define
        covariates() and the names exchangeable or sequence, lengths and missing.
    out
        State file to write, such as state.zarr.zip; none that is there already.
    steps
        Training steps.
    lengths
        Shortest and longest dataset to train over; by default the model file's, or its own length.
    missing
        Mean fraction of missing observed values to train over; by default the model file's.
    checkpoint
        Written while training; where it is there, training goes on from it.
    seed
        Random seed.
    json
        As JSON.
    quiet
        No progress.
    settings
        YAML, JSON or TOML file of these options by name; those of the command line come first.
    """
    from pmcl.cli.files import check_new
    from pmcl.models.definition import named

    check_new(out)
    over = {"lengths": lengths, "missing": missing}
    with apart():
        posterior = named(model).fit(
            **{name: value for name, value in over.items() if value is not None},
            checkpoint=checkpoint,
            random_seed=seed,
            steps=steps,
            progressbar=not quiet,
        )
        pmcl.save(posterior, out)
    record = posterior.pretraining[-1]
    facts = {
        "state": str(out),
        "steps": record.steps,
        "validation_loss": float(min(record.validation)),
    }
    answer(facts, json, f"{out}: trained for {record.steps} steps")


def adapt(
    state: Path,
    /,
    *tasks: Path,
    model: ModelName,
    name: tuple[str, ...] = (),
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    strategy: Strategies | None = None,
    steps: int = 2000,
    checkpoint: Path | None = None,
    dataset: str = "dataset",
    no_memory: Annotated[bool, Flag] = False,
    seed: int | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Adapt a saved posterior to data, one file a task, one after another.

    After every task the state is written, so that a task that was done stays done.

    Parameters
    ----------
    state
        State file.
    tasks
        Data files, each a task: CSV or Parquet with a column that names the dataset, netCDF, Zarr.
    model
        The model of the state: name of a published model, or file.py:function.
    name
        Name of each task; the files' names by default.
    out
        State file to write, none that is there already; by default the one that was read.
    strategy
        What protects earlier tasks; by default what is in force, replay at first.
    steps
        Most steps of a task.
    checkpoint
        Written while adapting. Run again after an interruption, the command goes on with the
        state that it wrote, leaves out the tasks that are done, by name and data, and goes on with
        the one that was half done.
    dataset
        Column or dim that tells datasets apart.
    no_memory
        Do not write stored datasets to the state.
    seed
        Random seed.
    json
        As JSON.
    quiet
        No progress.
    """
    from pmcl.cli.files import check_new, read_data
    from pmcl.data.task import DataError

    if not tasks:
        raise DataError("adapt: expected at least one data file, none came.")
    if name and len(name) != len(tasks):
        raise DataError(f"--name: expected {len(tasks)} names, got {len(name)}.")
    names = name or [_stem(p) for p in tasks]
    if len({*names}) < len(names):
        raise DataError(
            f"--name: expected tasks with names of their own, got {', '.join(names)} (by default "
            "the files'); `--name a --name b` gives others."
        )
    target = state if out is None else out
    another = target.resolve() != state.resolve()
    further = another and checkpoint is not None and target.exists()
    if another and not further:
        check_new(target)
    found = []
    with apart():
        posterior = loaded(state, model)
        if further:
            posterior = _gone_on(posterior, loaded(target, model), target)
        labels = label_columns(posterior.compiled.model, getattr(posterior, "groups", None))
        for i, (label, path) in enumerate(zip(names, tasks, strict=True)):
            part = None
            data = read_data(path, dataset=dataset, labels=labels)
            if checkpoint is not None:
                part = checkpoint.with_name(f"{checkpoint.name}.{i}")
                try:
                    done = posterior.learned(data, label)  # type: ignore[arg-type]
                except DataError as error:
                    raise DataError(f"{path}: {error} `--name` gives one.") from None
                if done:
                    print(f"{label}: done before")
                    part.unlink(missing_ok=True)
                    continue
            posterior = posterior.adapt(
                data,  # type: ignore[arg-type]
                name=label,
                strategy=_strategy(strategy),
                checkpoint=part,
                random_seed=seed,
                steps=steps,
                progressbar=not quiet,
            )
            pmcl.save(posterior, target, include_memory=not no_memory)
            if part is not None:
                part.unlink(missing_ok=True)
            found.append(_told(posterior))
    lines = [
        f"{t['task']}: {t['datasets']} datasets, {t['steps']} steps, mean efficiency "
        f"{t['efficiency_before']:.2f} before and {t['efficiency']:.2f} after"
        for t in found
    ]
    answer({"state": str(target), "tasks": found}, json, "\n".join([*lines, f"wrote {target}"]))


def report(
    state: Path,
    /,
    *,
    model: ModelName,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    results: Path | None = None,
    reference: Path | None = None,
    title: str | None = None,
    no_calibration: Annotated[bool, Flag] = False,
    seed: int | None = None,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page that says what a posterior is, and how far to trust it.

    Needs the extra "report".

    Parameters
    ----------
    state
        State file.
    model
        The model of the state: name of a published model, or file.py:function.
    out
        The page, such as report.html; none that is there already.
    results
        Draws that `pmcl sample` wrote; by default the stored datasets are sampled.
    reference
        Draws that `pmcl reference` wrote of the same datasets.
    title
        Of the page.
    no_calibration
        Leave calibration out, which takes some seconds.
    seed
        Random seed.
    quiet
        No progress.
    """
    from pmcl.cli.files import check_new, read_results

    check_new(out)
    with apart():
        page = pmcl.report(
            loaded(state, model),
            out,
            None if results is None else read_results(results),
            reference=None if reference is None else read_results(reference),
            calibration=not no_calibration,
            title=title,
            random_seed=seed,
            progressbar=not quiet,
        )
    print(page)


def _gone_on(
    begun: "AmortizedPosterior | MultilevelPosterior",
    found: "AmortizedPosterior | MultilevelPosterior",
    path: Path,
) -> "AmortizedPosterior | MultilevelPosterior":
    """What an interrupted command wrote, which has to come from the state that it read."""
    import jax
    import numpy as np

    from pmcl.data.task import DataError
    from pmcl.training.loop import weights_of

    first, then = (jax.tree.leaves(weights_of(p.pretrained or p.amortizer)) for p in (begun, found))
    tasks, before = ([(r.name, r.content) for r in p.records] for p in (found, begun))
    if tasks[: len(before)] != before or not all(map(np.array_equal, first, then)):
        raise DataError(
            f"{path}: expected what this command wrote before it was interrupted, got a state that "
            "does not come from the one given. Choose another --out, or remove it."
        )
    return found


def _strategy(name: Strategies | None) -> Any:
    made = {
        "replay": lambda: pmcl.Replay(),
        "naive": lambda: pmcl.Naive(),
        "ewc": lambda: pmcl.ElasticWeightConsolidation(),
        "replay+ewc": lambda: (pmcl.Replay(), pmcl.ElasticWeightConsolidation(100.0)),
        "si": lambda: pmcl.SynapticIntelligence(),
        "laplace": lambda: pmcl.OnlineLaplace(),
    }
    return None if name is None else made[name]()


def _told(posterior: "AmortizedPosterior | MultilevelPosterior") -> dict[str, Any]:
    """What there is to say of the last adaptation."""
    last = posterior.records[-1]
    return {
        "task": last.name,
        "datasets": len(last.after.khat),
        "steps": last.record.steps,
        "skipped": last.record.skipped,
        "stored": len(posterior.memory),
        "efficiency_before": float(last.before.efficiency.mean()),
        "efficiency": float(last.after.efficiency.mean()),
    }


def _stem(path: Path) -> str:
    return path.name.split(".")[0]
