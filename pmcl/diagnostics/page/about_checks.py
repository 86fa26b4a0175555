"""Sections of the report: calibration and comparison with NUTS."""

import numpy as np
import xarray as xr

from pmcl.data.task import DATASET
from pmcl.diagnostics.by_dataset import counted_alike
from pmcl.diagnostics.page.elements import (
    ROWS,
    Figure,
    Section,
    Table,
    Verdict,
    cut,
    fitting,
    number,
    span,
    svg,
    what_fits,
)
from pmcl.diagnostics.plots import (
    plot_agreement,
)
from pmcl.draws.results import one
from pmcl.runtime.arguments import listed

_LEVEL = 0.01  # of the page's verdict on calibration, over all tests together


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
