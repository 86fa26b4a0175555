"""Publish a model: train it, check it against simulations and NUTS, and write its card."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.amortized.simulating import simulator_of
from pmcl.archive.files import save
from pmcl.compile import Simulator
from pmcl.compile.covariates import sources_of
from pmcl.data.simulated import simulated_task
from pmcl.data.task import DATASET
from pmcl.diagnostics import calibrate, compare
from pmcl.levels.sizes import Members
from pmcl.models.card import card_text
from pmcl.models.definition import LARGEST_STATE, STATE, ModelDefinition
from pmcl.reference import sample_reference
from pmcl.runtime.arguments import seed_of
from pmcl.runtime.files import written_whole

# Of each model's verdict, if it is calibrated: uniformity is tested for every number of it.
_LEVEL = 0.01
_COMPARED = 10  # simulated datasets that NUTS samples, too


class Published(NamedTuple):
    """What publishing found.

    Attributes
    ----------
    definition : ModelDefinition
    posterior : AmortizedPosterior or MultilevelPosterior
    problems : list of str
        What did not pass; the card says it too.
    figures : dict
        All that was measured, as in the card.
    """

    definition: ModelDefinition
    posterior: AmortizedPosterior | MultilevelPosterior
    problems: list[str]
    figures: dict[str, Any]


def publish(
    definition: ModelDefinition,
    *,
    adapt: bool = False,
    state: bool = False,
    simulations: int = 200,
    draws: int = 4000,
    random_seed: int | None = None,
    progressbar: bool = True,
    **options: Any,
) -> Published:
    """Train a model, check it by calibration and against NUTS, and write its card.

    Parameters
    ----------
    definition : ModelDefinition
    adapt : bool
        Adapt to the example data, too, after pretraining.
    state : bool
        Publish the trained state where it is at most 2 MB; it never holds stored datasets.
    simulations : int
        Datasets for calibration.
    draws : int
        Draws for each dataset of the example; a thousand of them are compared, so that draws that
        resampling gave twice hardly count.
    random_seed : int, optional
    progressbar : bool
    **options
        Of :func:`pmcl.fit_amortized`, such as `steps` and `network`.

    Returns
    -------
    Published
        What was found; the card lies beside the definition.
    """
    seed = seed_of(random_seed, None)
    posterior = definition.fit(random_seed=seed, progressbar=progressbar, **options)
    example = definition.example()
    if adapt and example is not None:
        posterior = posterior.adapt(example, name="example", progressbar=progressbar)
    figures: dict[str, Any] = {"calibration": {}, "simulated": None, "example": None}
    for kind, refine in (("network", False), ("refined", "auto")):
        tree = calibrate(
            posterior,
            simulations=simulations,
            refine=refine,  # type: ignore[arg-type]
            random_seed=seed + 1,
            progressbar=progressbar,
        )
        figures["calibration"][kind] = _calibration(tree)
    _, some = simulated_task(
        _simulator(definition, posterior),
        posterior.structure.row,
        _COMPARED,
        random_seed=seed + 2,
    )
    for kind, data in (("simulated", some), ("example", example)):
        if data is not None:
            figures[kind] = _compared(
                definition, posterior, data, draws, seed=seed, progressbar=progressbar
            )
    problems = _problems(figures)
    kept = _keep_state(posterior, definition) if state else "not published"
    if not state:
        (definition.path.parent / STATE).unlink(missing_ok=True)
    facts = {
        **definition.sources(),
        "pmcl": version("pmcl"),
        "published": datetime.now(UTC).date().isoformat(),
        "random_seed": seed,
        "network": _network_alone(figures),
    }
    text = card_text(definition, posterior, figures, problems, facts, kept)
    with written_whole(definition.card) as file:
        file.write(text.encode())
    return Published(definition, posterior, problems, figures)


def _simulator(
    definition: ModelDefinition, posterior: AmortizedPosterior | MultilevelPosterior
) -> Simulator:
    """What makes datasets of the size of the model, with which NUTS is compared."""
    groups = posterior.groups if isinstance(posterior, MultilevelPosterior) else None
    if groups is None:
        return posterior.simulator
    model = definition.model()
    number = len(model.coords[groups.grouping.dim])  # type: ignore[arg-type]
    index = {groups.grouping.by: Members(number, number)} if groups.grouping.by else {}
    return simulator_of(model, {**sources_of(model, definition.covariates()), **index})


def _keep_state(
    posterior: AmortizedPosterior | MultilevelPosterior, definition: ModelDefinition
) -> str:
    """Write the state beside the definition, without memory, if it is small; say what was done."""
    path = definition.path.parent / STATE
    save(posterior, path, include_memory=False)
    size = path.stat().st_size
    if size <= LARGEST_STATE:
        return f"published, {size / 2**20:.1f} MB"
    path.unlink()
    return f"left out, because of its {size / 2**20:.1f} MB"


def _calibration(tree: xr.DataTree) -> dict[str, Any]:
    tests = tree["uniformity"].to_dataset()
    stats = tree["dataset_stats"].to_dataset()
    return {
        "p": {str(k): np.atleast_1d(v.values).ravel().tolist() for k, v in tests.items()},
        "khat_above_0.7": float(np.mean(stats["khat"] > 0.7)),
        "efficiency": float(stats["efficiency"].mean()),
    }


def _network_alone(figures: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """How good the network's own draws are: nothing refined, nothing corrected."""
    found = {}
    for kind in ("simulated", "example"):
        if (compared := figures[kind]) is not None:
            alone = compared["network"]
            found[kind] = {k: round(float(np.mean(alone[k])), 5) for k in ("efficiency", "mmd2")}
    found["simulated"]["efficiency"] = round(figures["calibration"]["network"]["efficiency"], 5)
    return found


def _compared(
    definition: ModelDefinition,
    posterior: AmortizedPosterior | MultilevelPosterior,
    data: Any,
    draws: int,
    *,
    seed: int,
    progressbar: bool,
) -> dict[str, Any]:
    """Compare the network's draws and those that `sample` gives with NUTS, dataset by dataset."""
    reference = sample_reference(
        definition.model(), data, random_seed=seed, progressbar=progressbar
    )
    found: dict[str, Any] = {}
    for kind, refine in (("network", False), ("refined", "auto")):
        tree = posterior.sample(
            data,
            draws,
            refine=refine,  # type: ignore[arg-type]
            fallback=None,
            random_seed=seed,
            progressbar=progressbar,
        )
        compared = compare(tree, reference)
        stats = tree["dataset_stats"].to_dataset()
        found[kind] = {
            "datasets": [str(n) for n in stats[DATASET].values],
            "engine": [str(e) for e in stats["engine"].values],
            **{k: stats[k].values.tolist() for k in ("khat", "efficiency")},
            **{k: compared[k].values.tolist() for k in ("mmd2", "null_mmd2")},
            "bias_mean": float(compared["mean_bias_mean"]),
            "bias_sd": float(compared["mean_bias_sd"]),
            "agrees": bool(compared.attrs["agrees"]),
        }
    stats = reference["dataset_stats"].to_dataset()
    found["divergences"] = int(stats["divergences"].sum())
    return found


def _problems(figures: Mapping[str, Any]) -> list[str]:
    """Say what of a model that is sampled with the defaults should not be trusted."""
    problems = []
    p = figures["calibration"]["refined"]["p"]
    count = sum(len(v) for v in p.values())
    low = [k for k, v in p.items() if min(v) < _LEVEL / count]
    if low:
        problems.append(f"not calibrated on simulations: {', '.join(low)}")
    for kind, what in (("simulated", "simulations"), ("example", "the example")):
        if (found := figures[kind]) is not None and not found["refined"]["agrees"]:
            problems.append(f"draws for {what} differ from those of NUTS")
    return problems
