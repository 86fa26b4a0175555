"""One page that says what a posterior is, what it was trained on, and how far to trust it."""

import base64
import io
import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import pmcl
from pmcl.correction import RefineLike
from pmcl.data import DATASET, listed
from pmcl.extras import need
from pmcl.files import written_whole
from pmcl.metrics import khat_threshold
from pmcl.posterior import AmortizedPosterior
from pmcl.report.calibration import calibrate
from pmcl.report.comparison import compare
from pmcl.report.graph import draw_model
from pmcl.report.plots import (
    plot_agreement,
    plot_khat_by_dataset,
    plot_losses,
    plot_memory,
    plot_retention,
)
from pmcl.results import one

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = ("pymc", "jax", "flowjax", "arviz", "numpy")
_LEVEL = 0.01  # of the page's verdict on calibration, over all variables together
_LOST = 0.5  # of a task's efficiency: less of it left is said to be forgotten
_ROWS = 500  # of a table; a page with more is slow on a phone
_SUMMARIES = 12  # datasets whose posterior is summarised
_PANELS = 16  # of a figure


@dataclass(frozen=True)
class Table:
    """Rows of text; `sortable` ones have a search box, and headings that sort."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    sortable: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture as a data URI, and what it shows, for those who do not see it."""

    source: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading, what to know before reading, and what there is to see."""

    id: str
    title: str
    text: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


@dataclass(frozen=True)
class Verdict:
    """A sentence for the top of the page; not `good` ones are to be acted upon."""

    good: bool
    text: str


def report(
    posterior: AmortizedPosterior,
    path: str | os.PathLike,
    idata: xr.DataTree | None,
    *,
    reference: xr.DataTree | None,
    calibration: xr.DataTree | bool,
    title: str | None,
    refine: RefineLike,
    random_seed: int | None,
    progressbar: bool,
) -> Path:
    """Write the page; see `AmortizedPosterior.report`."""
    need("report", "the report", "jinja2", "matplotlib")
    from jinja2 import Environment, PackageLoader

    path = Path(path)
    if idata is None and reference is not None:
        raise ValueError(
            "report: expected `idata`, draws of the datasets that `reference` has draws of, got "
            "None. Pass the result of `sample`."
        )
    of_memory = idata is None and len(posterior.memory) > 0
    if of_memory:
        idata = posterior.sample(
            posterior.memory.stored(),
            refine=refine,
            random_seed=random_seed,
            progressbar=progressbar,
        )
    if calibration is True:
        calibration = calibrate(
            posterior,
            simulations=200,
            draws=100,
            random_seed=random_seed,
            progressbar=progressbar,
        )
    verdicts: list[Verdict] = []
    with _pictures():
        sections = [_model(posterior), _training(posterior)]
        if posterior.records:
            sections.append(_retention(posterior, verdicts))
        if idata is not None:
            sections.append(_datasets(idata, of_memory, verdicts))
            sections.append(_posteriors(idata))
        if isinstance(calibration, xr.DataTree):
            sections.append(_calibration(calibration, verdicts))
        if idata is not None and reference is not None:
            sections.append(_comparison(idata, reference, verdicts))
    names = ", ".join(i.name for i in posterior.compiled.free)
    environment = Environment(
        loader=PackageLoader("pmcl.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("page.html").render(
        title=title or f"Amortized posterior of {names}",
        verdicts=verdicts,
        sections=sections,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        versions=[f"pmcl {pmcl.__version__}", *(f"{n} {version(n)}" for n in _PACKAGES)],
    )
    with written_whole(path) as file:
        file.write(text.encode())
    return path


# --- what the page is made of -------------------------------------------------------------------


def _model(posterior: AmortizedPosterior) -> Section:
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
    figure = draw_model(compiled.model)
    return Section(
        "model",
        "The model",
        "What was written in PyMC: a dataset has its own value of every parameter. Sizes are those "
        "of the model as it was written; datasets may have others where it says so below.",
        [Figure(_svg(figure), f"Graph of the model: {_edges(posterior)}")],
        [
            Table(["variable", "is", "dims and sizes"], rows),
            Table(["", ""], [["a dataset", str(posterior.structure)]]),
        ],
        [Table(["as PyMC writes it"], [[line] for line in _written(posterior)])],
    )


def _edges(posterior: AmortizedPosterior) -> str:
    from pymc.model_graph import ModelGraph

    parents = ModelGraph(posterior.compiled.model).make_compute_graph()
    parts = [f"{c} from {', '.join(sorted(p))}" for c, p in parents.items() if p]
    return "; ".join(parts) or "no variable depends on another"


def _written(posterior: AmortizedPosterior) -> list[str]:
    return posterior.compiled.model.str_repr(formatting="plain").splitlines()


def _training(posterior: AmortizedPosterior) -> Section:
    pretraining = posterior.pretraining
    facts = [
        ["network", f"{posterior.network.summary!r}, {posterior.network.flow!r}"],
        ["simulations", repr(posterior.simulator)],
        [
            "pretraining",
            "; ".join(
                f"{r.steps} steps of {posterior.settings.batch_size} simulations, "
                f"{r.skipped} skipped, loss on new ones {float(np.min(r.validation)):.3f} nats"
                for r in pretraining
            )
            or "none",
        ],
        ["strategy", repr(posterior.strategy)],
        ["stored datasets", str(len(posterior.memory))],
    ]
    tables = [Table(["", ""], facts)]
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
        tables.append(Table(head, rows, "Tasks, in the order in which they came"))
        some = [str(t) for t in done["task"].values[-_PANELS:]]
        whose = "each task" if len(some) == len(rows) else f"the last {len(some)} tasks"
        figures += [
            Figure(
                _svg(plot_losses(posterior, tasks=some)),
                f"Loss by step of {whose}: blue at training draws, orange at draws held back from "
                "training.",
            ),
            Figure(
                _svg(plot_losses(posterior, measure="efficiency", tasks=some)),
                f"Efficiency of the network's own draws by step of {whose} (1 is perfect).",
            ),
        ]
        entries = history["datasets"].to_dataset()
        rows = [
            [str(t), str(d), _number(k), _number(e)]
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
                rows[:_ROWS],
                "Datasets that were adapted to: the network's own draws right after the task"
                + _cut(len(rows)),
                sortable=True,
            )
        )
    text = (
        "The network was pretrained on simulations from the model, and then adapted to real "
        "datasets, of which only the data are used: there are no true parameters in them."
        if posterior.records
        else "The network was trained on simulations from the model, and on no real data."
    )
    return Section("training", "What it was trained on", text, figures, tables, folded)


def _retention(posterior: AmortizedPosterior, verdicts: list[Verdict]) -> Section:
    history = posterior.history
    table = history["retention"].to_dataset()
    transfer = history["transfer"].to_dataset()
    efficiency = table["efficiency"].transpose("after", "task").values
    tasks = [str(t) for t in table["task"].values]
    # Rows are moments: 0 is pretraining, i + 1 is right after task i.
    lost = [
        t
        for i, t in enumerate(tasks)
        if np.isfinite(efficiency[-1, i]) and efficiency[-1, i] < _LOST * efficiency[i + 1, i]
    ]
    kept = [t for i, t in enumerate(tasks) if np.isfinite(efficiency[-1, i]) and t not in lost]
    if lost:
        verdicts.append(
            Verdict(
                False,
                f"Of {listed(lost)} the network has forgotten more than half of what it knew "
                "(efficiency on its stored datasets). Refinement still corrects single datasets.",
            )
        )
    elif kept:
        verdicts.append(Verdict(True, f"No forgetting on the stored datasets of {listed(kept)}."))
    figures = [
        Figure(
            _svg(plot_retention(posterior)),
            "Efficiency of the network's own draws (1 is perfect), after each moment (rows) on the "
            "stored datasets of each task (columns).",
        )
    ]
    if len(posterior.memory) >= 3:
        figures.append(
            Figure(
                _svg(plot_memory(posterior)),
                "Stored datasets, as the network sees them; those close to each other are alike.",
            )
        )
    rows = [
        [str(m), *(_number(float(transfer[k].sel(measure=m))) for k in ("backward", "forward"))]
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


def _datasets(idata: xr.DataTree, of_memory: bool, verdicts: list[Verdict]) -> Section:
    stats = idata["dataset_stats"].to_dataset()
    draws = idata["sample_stats"].to_dataset().sizes["draw"]
    names = [str(n) for n in stats[DATASET].values]
    warned = [n for n, w in zip(names, stats["warning"].values, strict=True) if str(w)]
    whose = "stored datasets" if of_memory else "datasets"
    if warned:
        verdicts.append(
            Verdict(
                False,
                f"Draws for {len(warned)} of {len(names)} {whose} should not be trusted: "
                f"{listed(warned)}. Sample them with fallback='nuts', or adapt to data like these.",
            )
        )
    else:
        verdicts.append(
            Verdict(True, f"Draws can be trusted for all {len(names)} {whose} (k-hat).")
        )
    columns = {
        "engine": "sampled by",
        "khat": "k-hat",
        "khat_amortized": "k-hat of the network",
        "efficiency": "efficiency",
        "sc_variance": "SC variance",
        "log_evidence": "log evidence",
        "log_evidence_error": "± ",
        "warning": "warning",
        "note": "note",
    }
    there = [c for c in columns if c in stats]
    order = np.argsort(-np.nan_to_num(stats["khat"].values, nan=np.inf, neginf=-9.0))
    rows = [[names[i], *(_cell(stats[c].values[i]) for c in there)] for i in order[:_ROWS]]
    return Section(
        "datasets",
        "Each dataset",
        "Pareto k-hat judges the draws of each dataset against the model's own density: below "
        f"{khat_threshold(max(draws, 2)):.2f} they can be trusted, and the lower, the better. "
        "Efficiency is how many of the draws count; the evidence says how well the model explains "
        "the dataset.",
        [
            Figure(
                _svg(plot_khat_by_dataset(idata)),
                "k-hat of every dataset, of the network and of what is returned; the line is the "
                "threshold.",
            )
        ],
        [
            Table(
                ["dataset", *(columns[c] for c in there)],
                rows,
                f"{len(names)} {whose}, the most doubtful first" + _cut(len(names)),
                sortable=True,
            )
        ],
    )


def _posteriors(idata: xr.DataTree) -> Section:
    from arviz_stats import summary

    names = [str(n) for n in idata["posterior"].to_dataset()[DATASET].values]
    folded = []
    for name in names[:_SUMMARIES]:
        # r-hat and effective sample sizes are of chains, and these draws are independent
        table = summary(one(idata, name), kind="stats")
        rows = [
            [str(k), *(_cell(v) for v in row)]
            for k, row in zip(table.index, table.values.tolist(), strict=True)
        ]
        folded.append(
            Table(
                ["", *map(str, table.columns)], rows[:_ROWS], name + _cut(len(rows)), sortable=True
            )
        )
    some = "" if len(names) <= _SUMMARIES else f" The first {_SUMMARIES} of {len(names)} datasets."
    return Section(
        "posteriors",
        "Posteriors",
        "Means, standard deviations and intervals of every parameter." + some,
        folded=folded,
    )


def _calibration(tree: xr.DataTree, verdicts: list[Verdict]) -> Section:
    import arviz_plots

    group = "prior_sbc" if "prior_sbc" in tree.children else "posterior_sbc"
    tests = tree["uniformity"].to_dataset()
    engines = {str(e) for e in tree["dataset_stats"].to_dataset()["engine"].values.ravel()}
    what = "The network alone is" if engines == {"amortized"} else "What `sample` returns is"
    lowest = {str(k): float(np.min(v.values)) for k, v in tests.items()}
    count = sum(v.size for v in tests.values())
    wrong = [k for k, p in lowest.items() if p < _LEVEL / count]
    whose = "simulations" if group == "prior_sbc" else "simulations around the data"
    verdicts.append(
        Verdict(
            not wrong,
            f"{what} not calibrated on {whose}: {listed(wrong)}."
            if wrong
            else f"{what} calibrated on {whose}.",
        )
    )
    coverage = tree["coverage"].to_dataset()
    levels = [float(v) for v in coverage["level"].values]
    rows = [
        [
            name,
            _number(lowest[name]),
            *(_range(coverage[name].sel(level=level)) for level in levels),
        ]
        for name in lowest
    ]
    tables = [
        Table(
            ["parameter", "p of uniformity", *(f"{level:.0%} intervals" for level in levels)],
            rows,
            "How many intervals hold the truth; for each parameter the range over its elements",
        ),
        Table(
            ["all parameters at once (TARP)"],
            [[f"p = {_number(float(np.min(tree['tarp']['p_value'])))}"]],
        ),
    ]
    shown = _few(tree[group].to_dataset())
    figures = [
        Figure(
            _svg(
                arviz_plots.plot_ecdf_pit(tree, group=group, var_names=shown)  # type: ignore[arg-type]
            ),
            "Where the truth lies among posterior draws, less what it would be in a calibrated "
            "posterior: lines within the band are as they should be."
            + ("" if len(shown) == len(lowest) else f" Shown: {', '.join(shown)}."),
        )
    ]
    n = tree[group].to_dataset().sizes["draw"]
    return Section(
        "calibration",
        "Calibration",
        f"Parameters were drawn, {n} datasets simulated from them, and their posteriors asked for: "
        "in a calibrated posterior, 90 % intervals hold the truth nine times of ten.",
        figures,
        tables,
    )


def _comparison(idata: xr.DataTree, reference: xr.DataTree, verdicts: list[Verdict]) -> Section:
    found = compare(idata, reference)
    names = [str(n) for n in found[DATASET].values]
    agrees = bool(found.attrs["agrees"])
    above = [n for n, a in zip(names, found["above_null"].values, strict=True) if a]
    verdicts.append(
        Verdict(
            agrees,
            f"In agreement with the reference on {len(names)} datasets."
            if agrees
            else f"Draws differ from the reference's, most on {listed(above)}.",
        )
    )
    worst = names[int(np.argmax(found["mmd2"].values - found["null_mmd2"].values))]
    shown = _few(one(idata, worst)["posterior"].to_dataset())
    columns = ["mmd2", "null_mmd2", "bias_mean", "bias_sd"]
    order = np.argsort(-found["mmd2"].values)
    rows = [
        [names[i], *(_number(float(found[c].values[i])) for c in columns)] for i in order[:_ROWS]
    ]
    return Section(
        "comparison",
        "Compared with a reference",
        "Draws of the same datasets by another sampler, usually NUTS. MMD² is a distance between "
        "the two sets of draws; its null is the same between two halves of the reference's chains. "
        "Biases of means and sds are in standard deviations of the reference.",
        [
            Figure(
                _svg(plot_agreement(idata, reference, worst, var_names=shown)),
                f"The dataset that differs most, {worst}: draws of pmcl and of the reference.",
            )
        ],
        [
            Table(
                ["dataset", "MMD²", "null", "bias of means", "bias of sds"],
                rows,
                f"{len(names)} datasets, the most different first" + _cut(len(names)),
                sortable=True,
            )
        ],
    )


# --- how it is shown ----------------------------------------------------------------------------


@contextmanager
def _pictures() -> "Iterator[None]":
    """Set matplotlib up for pictures in a page: names are not mathematics, no window opens."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False, "svg.fonttype": "path"}):
        yield


def _svg(picture: Any) -> str:
    """Return a matplotlib figure, or a plot of arviz-plots, as a data URI."""
    figure = picture.viz["figure"].item() if hasattr(picture, "viz") else picture
    buffer = io.BytesIO()
    # Ids are made from the salt: the same page twice is the same file.
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "pmcl"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _few(data: xr.Dataset) -> list[str]:
    """Name the first variables whose elements still fit in one figure; at least one."""
    shown: list[str] = []
    panels = 0
    for name, array in data.data_vars.items():
        panels += int(np.prod([n for d, n in array.sizes.items() if d not in ("chain", "draw")]))
        if shown and panels > _PANELS:
            break
        shown.append(str(name))
    return shown


def _number(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{value:.3g}"


def _cell(value: Any) -> str:
    return _number(float(value)) if isinstance(value, int | float | np.number) else str(value)


def _range(values: xr.DataArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"


def _cut(rows: int) -> str:
    return f" (the first {_ROWS} of {rows})" if rows > _ROWS else ""
