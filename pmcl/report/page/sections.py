"""The sections of a report: each says a few sentences, shows figures and tables, and may judge."""

import numpy as np
import xarray as xr

from pmcl.data import DATASET, listed
from pmcl.metrics import khat_threshold
from pmcl.posterior import AmortizedPosterior
from pmcl.report.by_dataset import counted_alike, weighted
from pmcl.report.graph import draw_model
from pmcl.report.page.parts import (
    PANELS,
    ROWS,
    Figure,
    Section,
    Table,
    Verdict,
    cell,
    cut,
    fitting,
    number,
    span,
    svg,
    what_fits,
)
from pmcl.report.plots import (
    plot_agreement,
    plot_khat_by_dataset,
    plot_losses,
    plot_memory,
    plot_retention,
)
from pmcl.results import doubts, one

_LEVEL = 0.01  # of the page's verdict on calibration, over all tests together
_LOST = 0.5  # of a task's efficiency: less of it left is said to be forgotten
_SUMMARIES = 12  # datasets whose posterior is summarised


def about_model(posterior: AmortizedPosterior) -> Section:
    compiled = posterior.compiled
    kinds = {
        "parameter": compiled.free,
        "computed from parameters": compiled.deterministics,
        "observed": compiled.observed,
        "covariate": compiled.covariates,
    }
    rows = [
        [
            i.name,
            kind,
            " × ".join(f"{d} {n}" for d, n in zip(i.dims, i.shape, strict=True)) or "one",
        ]
        for kind, infos in kinds.items()
        for i in infos
    ]
    written = compiled.model.str_repr(formatting="plain").splitlines()
    return Section(
        "model",
        "The model",
        "What was written in PyMC: a dataset has its own value of every parameter. Sizes are those "
        "of the model as it was written; datasets may have others where it says so below.",
        [Figure(svg(draw_model(compiled.model)), "Graph of the model: blue is observed.")],
        [
            Table(["variable", "is", "dims and sizes"], rows),
            Table((), [["a dataset", str(posterior.structure)]]),
        ],
        [Table((), [[line] for line in written], "As PyMC writes it")],
    )


def about_training(posterior: AmortizedPosterior) -> Section:
    pretraining = posterior.pretraining
    facts = [
        ["network", f"{posterior.network.summary!r}, {posterior.network.flow!r}"],
        ["simulations", repr(posterior.simulator)],
        [
            "pretraining",
            "; ".join(
                f"{r.steps} steps of {posterior.settings.batch_size} simulations, "
                f"{r.skipped} skipped, loss on new ones {float(np.nanmin(r.validation)):.3f} nats"
                for r in pretraining
            )
            or "none",
        ],
        ["strategy", repr(posterior.strategy)],
        ["stored datasets", str(len(posterior.memory))],
    ]
    tables = [Table((), facts)]
    figures, folded = [], []
    if posterior.records:
        history = posterior.history
        done = history["adaptation"].to_dataset()
        rows = [
            [
                str(t),
                str(int(done["n_datasets"].values[i])),
                str(done["strategy"].values[i]),
                str(int(done["steps"].values[i])),
                str(int(done["skipped"].values[i])),
                f"{float(done['seconds'].values[i]):.0f}",
                str(done["excluded"].values[i]) or "–",
                str(done["untrusted"].values[i]) or "–",
            ]
            for i, t in enumerate(done["task"].values)
        ]
        head = [
            "task", "datasets", "strategy", "steps", "skipped", "seconds", "left out", "not trusted"
        ]  # fmt: skip
        tables.append(
            Table(head, rows[-ROWS:], "Tasks, in the order in which they came; those removed by "
                  "`forget` are not among them" + cut(len(rows), "last"))
        )  # fmt: skip
        some = [str(t) for t in done["task"].values[-PANELS:]]
        whose = "each task" if len(some) == len(rows) else f"the last {len(some)} tasks"
        figures.append(
            Figure(
                svg(plot_losses(posterior, tasks=some)),
                f"Loss by step of {whose}: blue at training draws, orange at draws held back from "
                "training.",
            )
        )
        by_step = history["losses"].to_dataset()["efficiency"].values[-len(some) :]
        if np.isfinite(by_step).any():
            figures.append(
                Figure(
                    svg(plot_losses(posterior, measure="efficiency", tasks=some)),
                    f"Efficiency of the network's own draws (1 is perfect) by step of {whose}, "
                    "over the datasets that it was trained on: new, stored and pseudo-datasets.",
                )
            )
        entries = history["datasets"].to_dataset()
        rows = [
            [str(t), str(d), number(k), number(e)]
            for t, d, k, e in zip(
                entries["task"].values,
                entries["dataset"].values,
                entries["khat"].values,
                entries["efficiency"].values,
                strict=True,
            )
        ]
        folded.append(
            Table(
                ["task", "dataset", "k-hat", "efficiency"],
                rows[:ROWS],
                "Datasets that were adapted to: the network's own draws right after the task"
                + cut(len(rows)),
                sortable=True,
            )
        )
    if posterior.records:
        text = (
            "The network was pretrained on simulations from the model, and then adapted to real "
            "datasets, of which only the data are used: there are no true parameters in them."
        )
    elif posterior.pretrained is not None:
        text = (
            "The network was pretrained on simulations from the model, and then adapted to real "
            "datasets whose records were removed by `forget`."
        )
    else:
        text = "The network was trained on simulations from the model, and on no real data."
    return Section("training", "What it was trained on", text, figures, tables, folded)


def _left(posterior: AmortizedPosterior) -> dict[str, float]:
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


def about_retention(posterior: AmortizedPosterior, verdicts: list[Verdict]) -> Section:
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
            svg(plot_retention(table)),
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


def about_calibration(tree: xr.DataTree, verdicts: list[Verdict]) -> Section:
    import arviz_plots

    group = "prior_sbc" if "prior_sbc" in tree.children else "posterior_sbc"
    tests = tree["uniformity"].to_dataset()
    stats = tree["dataset_stats"].to_dataset()
    engines = {str(e) for e in stats["engine"].values.ravel()}
    what = "the network alone" if engines == {"amortized"} else "what `sample` returns"
    prior = group == "prior_sbc"
    n = tree[group].to_dataset().sizes["draw"]
    whose = f"{n} simulations" if prior else f"{n} simulations around each dataset"
    ball = tree["tarp"].to_dataset()["p_value"]
    count = sum(v.size for v in tests.values()) + ball.size
    # of the smallest of a variable's elements (and datasets), for as many tests as there are
    p = {str(k): _adjusted(v, count) for k, v in tests.items()}
    jointly = _adjusted(ball, count)
    wrong = [k for k, value in p.items() if not value > _LEVEL]
    wrong += [] if jointly > _LEVEL else ["all parameters together (TARP)"]
    verdicts.append(
        Verdict(
            not wrong,
            f"Of {what}: not calibrated on {whose}: {listed(wrong)}."
            if wrong
            else f"Of {what}: no miscalibration found in {whose}.",
        )
    )
    coverage = tree["coverage"].to_dataset()
    levels = [float(v) for v in coverage["level"].values]
    rows = [
        [
            name,
            number(p[name]),
            *(span(coverage[name].sel(level=level)) for level in levels),
        ]
        for name in p
    ]
    over = "elements" if prior else "elements and datasets"
    tables = [
        Table(
            ["parameter", "p of uniformity", *(f"{level:.0%} intervals" for level in levels)],
            [*rows, ["all together (TARP)", number(jointly), *["–" for _ in levels]]],
            f"How many intervals hold the truth; for each parameter the range over its {over}. "
            f"p-values are the smallest, adjusted for {count} tests",
        )
    ]
    values = tree[group].to_dataset()
    shown = fitting(values)
    figures = [
        Figure(
            svg(arviz_plots.plot_ecdf_pit(xr.DataTree.from_dict({group: shown}), group=group)),
            "Where the truth lies among posterior draws, less what it would be in a calibrated "
            "posterior; points in another colour depart from it." + what_fits(shown, values),
        )
    ]
    how = (
        f"Parameters were drawn from the prior, and {n} datasets simulated from them."
        if prior
        else f"Around each dataset, parameters were drawn from its posterior, and {n} datasets of "
        "as many more rows simulated from them."
    )
    return Section(
        "calibration",
        "Calibration",
        f"{how} In a calibrated posterior, 90 % intervals hold the truth nine times of ten.",
        figures,
        tables,
    )


def _adjusted(p: xr.DataArray, tests: int) -> float:
    """Give the smallest p-value for as many tests (Bonferroni); NaN where one is."""
    return float(np.minimum(1.0, tests * p.min(skipna=False)))


def about_comparison(
    idata: xr.DataTree, reference: xr.DataTree, found: xr.Dataset, verdicts: list[Verdict]
) -> Section:
    order = np.argsort(-found["mmd2"].values)
    names = [str(n) for n in found[DATASET].values]
    above = [names[i] for i in order if found["above_null"].values[i]]
    verdicts.append(
        Verdict(
            bool(found.attrs["agrees"]),
            f"In agreement with the reference on {len(names)} datasets."
            if found.attrs["agrees"]
            else f"Draws differ from the reference's, most on {listed(above)}.",
        )
    )
    worst = names[order[0]]
    ours = counted_alike(one(idata, worst))["posterior"].to_dataset()
    shown = fitting(ours)
    theirs = one(reference, worst)["posterior"].to_dataset()[list(shown)]
    pair = [
        xr.DataTree.from_dict({"posterior": d.expand_dims({DATASET: [worst]})})
        for d in (shown, fitting(theirs))
    ]
    columns = ["mmd2", "null_mmd2", "bias_mean", "bias_sd"]
    rows = [[names[i], *(number(float(found[c].values[i])) for c in columns)] for i in order[:ROWS]]
    return Section(
        "comparison",
        "Compared with a reference",
        "Draws of the same datasets by another sampler, usually NUTS. MMD² is a distance between "
        "the two sets of draws; its null is the same between two halves of the reference's chains. "
        "Biases of means and sds are in standard deviations of the reference.",
        [
            Figure(
                svg(plot_agreement(pair[0], pair[1])),
                f"The dataset that differs most, {worst}: draws of pmcl and of the reference."
                + what_fits(shown, ours),
            )
        ],
        [
            Table(
                ["dataset", "MMD²", "null", "bias of means", "bias of sds"],
                rows,
                f"{len(names)} datasets, the most different first" + cut(len(names)),
                sortable=True,
            )
        ],
    )


def of_parameters(posterior: AmortizedPosterior, tree: xr.DataTree) -> xr.DataTree:
    """Leave out what is computed row by row: it may be the data under another name."""
    rows = posterior.compiled.data_dims
    computed = {i.name for i in posterior.compiled.deterministics if rows & set(i.dims)}
    kept = tree["posterior"].to_dataset().drop_vars(computed, errors="ignore")
    groups = {"posterior": kept}
    if "sample_stats" in tree.children:
        groups["sample_stats"] = tree["sample_stats"].to_dataset()
    return xr.DataTree.from_dict(groups)
