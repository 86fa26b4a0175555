"""Sections of the report: forgetting, datasets, posteriors."""

import numpy as np
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.data.task import DATASET
from pmcl.diagnostics.by_dataset import counted_alike, weighted
from pmcl.diagnostics.page.elements import (
    PANELS,
    ROWS,
    Figure,
    Section,
    Table,
    Verdict,
    cell,
    cut,
    number,
    svg,
)
from pmcl.diagnostics.plots import (
    plot_khat_by_dataset,
    plot_memory,
    plot_retention,
)
from pmcl.draws.results import doubts, one
from pmcl.metrics import khat_threshold
from pmcl.runtime.arguments import listed

_LOST = 0.5  # of a task's efficiency: less of it left is said to be forgotten
_SUMMARIES = 12  # datasets whose posterior is summarised


def _left(posterior: AmortizedPosterior | MultilevelPosterior) -> dict[str, float]:
    """Efficiency now over efficiency right after the task, on the stored datasets of earlier ones.

    A dataset is stored as task/name, so that the same ones are compared.
    """
    then = {
        f"{r.name}/{name}": value
        for r in posterior.records[:-1]
        for name, value in zip(r.after.names, r.after.efficiency, strict=True)
    }
    last = posterior.records[-1]
    found = {}
    for task, quality in last.stored.items():
        both = [
            (now, then[name])
            for name, now in zip(quality.names, quality.efficiency, strict=True)
            if name in then
        ]
        if both and task != last.name:
            now, before = np.mean(both, axis=0)
            found[task] = float(now / max(before, 1e-12))
    return found


def about_retention(
    posterior: AmortizedPosterior | MultilevelPosterior, verdicts: list[Verdict]
) -> Section:
    history = posterior.history
    table = (
        history["retention"]
        .to_dataset()
        .isel(task=slice(-PANELS, None), after=slice(-PANELS - 1, None))
    )
    transfer = history["transfer"].to_dataset()
    left = _left(posterior)
    lost = [t for t, share in left.items() if share < _LOST]
    if lost:
        verdicts.append(
            Verdict(
                False,
                f"The network has forgotten {listed(lost)}: on their stored datasets less than "
                "half of the efficiency is left that it had right after the task. Refinement "
                "still corrects single datasets.",
            )
        )
    elif left:
        verdicts.append(
            Verdict(
                True,
                f"On the stored datasets of {len(left)} earlier tasks the network has kept at "
                "least half of the efficiency that it had right after the task.",
            )
        )
    elif len(posterior.records) > 1:
        verdicts.append(
            Verdict(
                False,
                "Whether earlier tasks are forgotten cannot be said: none of their datasets is "
                "stored.",
            )
        )
    figures = [
        Figure(
            svg(plot_retention(table).figure),
            "Efficiency of the network's own draws (1 is perfect), after each moment (rows) on the "
            "stored datasets of each task (columns)"
            f"{cut(len(posterior.records), 'last', PANELS)}.",
        )
    ]
    if len(posterior.memory) >= 3:
        figures.append(
            Figure(
                svg(plot_memory(posterior)),
                "Stored datasets, as the network sees them; those close to each other are alike.",
            )
        )
    rows = [
        [str(m), *(number(float(transfer[k].sel(measure=m))) for k in ("backward", "forward"))]
        for m in transfer["measure"].values
    ]
    return Section(
        "retention",
        "What it remembers",
        "After every task the network is judged on the stored datasets of all earlier ones, by the "
        "compiled density: no reference is needed, and nothing is refined here.",
        figures,
        [
            Table(
                ["measure", "backward transfer", "forward transfer"],
                rows,
                "What later tasks did to earlier ones, and earlier ones to later ones",
            )
        ],
    )


def about_datasets(idata: xr.DataTree, of_memory: bool, verdicts: list[Verdict]) -> Section:
    stats = idata["dataset_stats"].to_dataset()
    draws = idata["sample_stats"].to_dataset().sizes["draw"]
    names = [str(n) for n in stats[DATASET].values]
    warned = np.array([str(w) != "" for w in stats["warning"].values])
    whose = "stored datasets" if of_memory else "datasets"
    found = doubts(names, {k: stats[k].values for k in ("warning", "engine")})
    verdicts += [Verdict(False, text) for text in found]
    judged = np.isfinite(stats["khat"].values) | np.isneginf(stats["khat"].values)
    judged |= np.array([str(e) == "nuts" for e in stats["engine"].values])
    if not judged.all():
        verdicts.append(
            Verdict(
                False,
                f"k-hat cannot be computed for {int((~judged).sum())} of {len(names)} {whose}: "
                "there are too few draws, or none with a finite density.",
            )
        )
    elif not found:
        verdicts.append(Verdict(True, f"No doubt about the draws for all {len(names)} {whose}."))
    if weighted(idata).any():
        verdicts.append(
            Verdict(
                False,
                "Draws are the proposal's, and count by their weights (`log_weight`). The "
                "summaries below take the weights in.",
            )
        )
    columns = {
        "engine": "sampled by",
        "khat": "k-hat",
        "khat_amortized": "k-hat of the network",
        "efficiency": "efficiency",
        "sc_variance": "SC variance",
        "log_evidence": "log evidence",
        "log_evidence_error": "±",
        "rhat": "r-hat (NUTS)",
        "ess": "ESS (NUTS)",
        "divergences": "divergences (NUTS)",
        "warning": "warning",
        "note": "note",
    }
    there = [c for c in columns if c in stats]
    khat = np.nan_to_num(stats["khat"].values, nan=np.inf, neginf=-9.0)
    order = np.lexsort((-khat, ~warned))
    rows = [[names[i], *(cell(stats[c].values[i]) for c in there)] for i in order[:ROWS]]
    return Section(
        "datasets",
        "Each dataset",
        "Pareto k-hat judges importance sampling of each dataset against the model's own density: "
        f"below {khat_threshold(max(draws, 2)):.2f} it can be trusted, and the lower, the better. "
        "It looks where there are draws: a mode that none has met goes unnoticed. Where NUTS took "
        "over, its own diagnostics count instead. Efficiency is how many of the draws count; the "
        "evidence says how well the model explains the dataset.",
        [
            Figure(
                svg(plot_khat_by_dataset(idata)),
                "k-hat of every dataset, of the network and of what sampled it; the line is the "
                "threshold.",
            )
        ],
        [
            Table(
                ["dataset", *(columns[c] for c in there)],
                rows,
                f"{len(names)} {whose}, the most doubtful first" + cut(len(names)),
                sortable=True,
            )
        ],
    )


def about_posteriors(idata: xr.DataTree) -> Section:
    from arviz_stats import summary

    names = [str(n) for n in idata["posterior"].to_dataset()[DATASET].values]
    folded = []
    for name in names[:_SUMMARIES]:
        # r-hat and effective sample sizes are of chains, and these draws are independent
        table = summary(counted_alike(one(idata, name)), kind="stats")
        rows = [
            [str(k), *(cell(v) for v in row)]
            for k, row in zip(table.index, table.values.tolist(), strict=True)
        ]
        folded.append(
            Table(["", *map(str, table.columns)], rows[:ROWS], name + cut(len(rows)), sortable=True)
        )
    some = "" if len(names) <= _SUMMARIES else f" The first {_SUMMARIES} of {len(names)} datasets."
    return Section(
        "posteriors",
        "Posteriors",
        "Means, standard deviations and intervals of every parameter." + some,
        folded=folded,
    )


def of_parameters(
    posterior: AmortizedPosterior | MultilevelPosterior, tree: xr.DataTree
) -> xr.DataTree:
    """Leave out what is computed row by row: it may be the data under another name."""
    rows = posterior.compiled.data_dims
    computed = {i.name for i in posterior.compiled.deterministics if rows & set(i.dims)}
    kept = tree["posterior"].to_dataset().drop_vars(computed, errors="ignore")
    groups = {"posterior": kept}
    if "sample_stats" in tree.children:
        groups["sample_stats"] = tree["sample_stats"].to_dataset()
    return xr.DataTree.from_dict(groups)
