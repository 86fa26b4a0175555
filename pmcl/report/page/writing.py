"""The report: sections put into one HTML file."""

import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import xarray as xr

import pmcl
from pmcl.correction import RefineLike
from pmcl.extras import need
from pmcl.files import written_whole
from pmcl.posterior import AmortizedPosterior
from pmcl.report.by_dataset import unconstrained_alike
from pmcl.report.calibration import calibrate
from pmcl.report.comparison import compare
from pmcl.report.page.parts import Verdict, pictures
from pmcl.report.page.sections import (
    about_calibration,
    about_comparison,
    about_datasets,
    about_model,
    about_posteriors,
    about_retention,
    about_training,
    of_parameters,
)

_PACKAGES = ("pymc", "jax", "flowjax", "arviz", "numpy")


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
    if idata is not None:
        _check(idata)
    compared = None
    if idata is not None and reference is not None:
        compared = compare(unconstrained_alike(idata), reference)
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
    with pictures():
        sections = [about_model(posterior), about_training(posterior)]
        if posterior.records:
            sections.append(about_retention(posterior, verdicts))
        if idata is not None:
            sections.append(about_datasets(idata, of_memory, verdicts))
            sections.append(about_posteriors(of_parameters(posterior, idata)))
        if isinstance(calibration, xr.DataTree):
            sections.append(about_calibration(calibration, verdicts))
        if idata is not None and reference is not None and compared is not None:
            ours, theirs = (of_parameters(posterior, t) for t in (idata, reference))
            sections.append(about_comparison(ours, theirs, compared, verdicts))
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


def _check(idata: xr.DataTree) -> None:
    """Refuse what is not a result of `sample`, before minutes are spent."""
    there = idata["dataset_stats"].to_dataset() if "dataset_stats" in idata.children else ()
    missing = [k for k in ("khat", "engine", "warning") if k not in there]
    if missing:
        raise ValueError(
            "report: expected `idata` to be a result of `sample`, got a tree whose `dataset_stats` "
            f"lacks {missing}. Results of `sample_reference` go to `reference`."
        )
