"""Publish a model: train it, check it against simulations and NUTS, and write its card."""

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import pmcl
from pmcl.compile.variables import VariableInfo
from pmcl.data import DATASET
from pmcl.files import written_whole
from pmcl.models import LARGEST_STATE, STATE, ModelDefinition
from pmcl.posterior import AmortizedPosterior, seed_of
from pmcl.reference import sample_reference
from pmcl.report import calibrate, compare

# Of each model's verdict, if it is calibrated: uniformity is tested for every number of it.
_LEVEL = 0.01
_PACKAGES = ("pymc", "jax", "flowjax", "nutpie")


class Published(NamedTuple):
    """What publishing found.

    Attributes
    ----------
    definition : ModelDefinition
    posterior : AmortizedPosterior
    problems : list of str
        What did not pass; the card says it too.
    figures : dict
        All that was measured, as in the card.
    """

    definition: ModelDefinition
    posterior: AmortizedPosterior
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
    figures: dict[str, Any] = {"calibration": {}, "example": None}
    for kind, refine in (("network", False), ("refined", "auto")):
        tree = calibrate(
            posterior,
            simulations=simulations,
            refine=refine,  # type: ignore[arg-type]
            random_seed=seed + 1,
            progressbar=progressbar,
        )
        figures["calibration"][kind] = _calibration(tree)
    if example is not None:
        figures["example"] = _example(
            definition, posterior, example, draws, seed=seed, progressbar=progressbar
        )
    problems = _problems(figures)
    kept = _keep_state(posterior, definition) if state else "not published"
    if not state:
        (definition.path.parent / STATE).unlink(missing_ok=True)
    facts = {
        **definition.sources(),
        "pmcl": pmcl.__version__,
        "published": datetime.now(UTC).date().isoformat(),
        "random_seed": seed,
    }
    text = _card(definition, posterior, figures, problems, facts, kept)
    with written_whole(definition.card) as file:
        file.write(text.encode())
    return Published(definition, posterior, problems, figures)


def _keep_state(posterior: AmortizedPosterior, definition: ModelDefinition) -> str:
    """Write the state beside the definition, without memory, if it is small; say what was done."""
    path = definition.path.parent / STATE
    posterior.save(path, include_memory=False)
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


def _example(
    definition: ModelDefinition,
    posterior: AmortizedPosterior,
    example: Any,
    draws: int,
    *,
    seed: int,
    progressbar: bool,
) -> dict[str, Any]:
    """Compare the network's draws and those that `sample` gives with NUTS, dataset by dataset."""
    reference = sample_reference(
        definition.model(), example, random_seed=seed, progressbar=progressbar
    )
    found: dict[str, Any] = {}
    for kind, refine in (("network", False), ("refined", "auto")):
        tree = posterior.sample(
            example,
            draws,
            refine=refine,  # type: ignore[arg-type]
            random_seed=seed,
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
    example = figures["example"]
    if example is not None and not example["refined"]["agrees"]:
        problems.append("draws for the example differ from those of NUTS")
    return problems


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shape(info: VariableInfo) -> str:
    return ", ".join(f"{d} {n}" for d, n in zip(info.dims, info.shape, strict=True)) or "a number"


def _card(
    definition: ModelDefinition,
    posterior: AmortizedPosterior,
    figures: Mapping[str, Any],
    problems: Sequence[str],
    facts: Mapping[str, Any],
    state: str,
) -> str:
    """Write the card: Markdown, with the facts that `check` reads in its first line."""
    compiled = posterior.compiled
    model = definition.model()
    network, refined = (figures["calibration"][k] for k in ("network", "refined"))
    verdict = "; ".join(problems) if problems else "calibrated, and in agreement with NUTS"
    parts = [
        f"<!-- pmcl {json.dumps(dict(facts))} -->",
        f"# {definition.name}",
        definition.description,
        f"**Checks: {verdict}.** Generated by `pmcl publish {definition.name}`; do not edit.",
        "## Model",
        "```\n" + model.str_repr(formatting="plain") + "\n```",
        _table(
            ["observed or covariate", "dims and sizes"],
            [[f"`{i.name}`", _shape(i)] for i in compiled.data],
        ),
        f"Data: {posterior.structure}. Covariates are simulated from: "
        f"{_doc(definition, 'covariates') or 'none'}",
        "## Network",
        f"`{posterior.network.summary!r}`, `{posterior.network.flow!r}`; pretrained for "
        f"{sum(r.steps for r in posterior.pretraining)} steps of "
        f"{posterior.settings.batch_size} simulations, made by {posterior.simulator.backend}. "
        f"Adapted to: {', '.join(r.name for r in posterior.records) or 'no data'}. "
        f"State: {state}.",
        "## Calibration on simulations",
        "p-values of the test that truths are uniform among draws (the smallest of a variable's "
        "elements): of the network alone, and of what `sample` gives.",
        _table(
            ["variable", "network", "refined where poor"],
            [
                [f"`{k}`", f"{min(v):.3f}", f"{min(refined['p'][k]):.3f}"]
                for k, v in network["p"].items()
            ]
            + [
                ["*k-hat above 0.7*"]
                + [f"{100 * f['khat_above_0.7']:.0f} %" for f in (network, refined)],
                ["*mean efficiency*"] + [f"{f['efficiency']:.2f}" for f in (network, refined)],
            ],
        ),
    ]
    example = figures["example"]
    if example is not None:
        parts += [
            "## Example, compared with NUTS",
            _doc(definition, "example"),
            _table(
                ["dataset", "k-hat of the network", "sampled by", "k-hat", "efficiency",
                 "MMD² to NUTS: network", "refined where poor", "between NUTS's own chains"],
                [
                    [
                        name,
                        f"{example['network']['khat'][i]:.2f}",
                        example["refined"]["engine"][i],
                        f"{example['refined']['khat'][i]:.2f}",
                        f"{example['refined']['efficiency'][i]:.2f}",
                        *(
                            f"{v:.4f}"
                            for v in (
                                example["network"]["mmd2"][i],
                                example["refined"]["mmd2"][i],
                                example["refined"]["null_mmd2"][i],
                            )
                        ),
                    ]
                    for i, name in enumerate(example["refined"]["datasets"])
                ],
            ),
            f"Mean bias of means and of sds, in sds: {example['refined']['bias_mean']:.3f} and "
            f"{example['refined']['bias_sd']:.3f}. Divergences of NUTS: {example['divergences']}.",
        ]  # fmt: skip
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    parts.append(
        f"Published {facts['published']} with pmcl {facts['pmcl']}, {versions}, Python "
        f"{platform.python_version()}, random seed {facts['random_seed']}."
    )
    return "\n\n".join(p for p in parts if p) + "\n"


def _doc(definition: ModelDefinition, function: str) -> str:
    text = getattr(getattr(definition.module, function, None), "__doc__", None) or ""
    return text.strip().split("\n")[0]
