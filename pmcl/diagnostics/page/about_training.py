"""The sections of a report: each says a few sentences, shows figures and tables, and may judge."""

import numpy as np

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.diagnostics.graph import draw_model
from pmcl.diagnostics.page.elements import (
    PANELS,
    ROWS,
    Figure,
    Section,
    Table,
    cut,
    number,
    svg,
)
from pmcl.diagnostics.plots import (
    plot_losses,
)


def about_model(posterior: AmortizedPosterior | MultilevelPosterior) -> Section:
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


def about_training(posterior: AmortizedPosterior | MultilevelPosterior) -> Section:
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
                    "over the datasets that it was trained on: new and stored ones.",
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
