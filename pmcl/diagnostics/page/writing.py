"""The report: sections put into one HTML file."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.diagnostics.by_dataset import unconstrained_alike
from pmcl.diagnostics.calibration import calibrate
from pmcl.diagnostics.comparison import compare
from pmcl.diagnostics.page.about_checks import about_calibration, about_comparison
from pmcl.diagnostics.page.about_training import about_model, about_training
from pmcl.diagnostics.page.about_trust import (
    about_datasets,
    about_posteriors,
    about_retention,
    of_parameters,
)
from pmcl.diagnostics.page.elements import Section, Verdict, pictures
from pmcl.refinement.settings import RefineLike
from pmcl.runtime.extras import need
from pmcl.runtime.files import written_whole

_PACKAGES = ("pymc", "jax", "flowjax", "arviz", "numpy")


class AtHand(NamedTuple):
    """What a page can be about; `of_memory`: draws are of the stored datasets."""

    posterior: AmortizedPosterior | MultilevelPosterior
    idata: xr.DataTree | None
    of_memory: bool
    reference: xr.DataTree | None
    compared: xr.Dataset | None
    calibration: xr.DataTree | None


def _posteriors(of: AtHand, verdicts: list[Verdict]) -> Section | None:
    if of.idata is None:
        return None
    return about_posteriors(of_parameters(of.posterior, of.idata))


def _comparison(of: AtHand, verdicts: list[Verdict]) -> Section | None:
    if of.idata is None or of.reference is None or of.compared is None:
        return None
    ours, theirs = (of_parameters(of.posterior, t) for t in (of.idata, of.reference))
    return about_comparison(ours, theirs, of.compared, verdicts)


# in the order of the page; each gives a section, or None where there is nothing to say, and adds
# what has to be known to the verdicts
SECTIONS: list[Callable[[AtHand, list[Verdict]], Section | None]] = [
    lambda of, verdicts: about_model(of.posterior),
    lambda of, verdicts: about_training(of.posterior),
    lambda of, v: about_retention(of.posterior, v) if of.posterior.records else None,
    lambda of, v: None if of.idata is None else about_datasets(of.idata, of.of_memory, v),
    _posteriors,
    lambda of, v: None if of.calibration is None else about_calibration(of.calibration, v),
    _comparison,
]


def report(
    posterior: AmortizedPosterior | MultilevelPosterior,
    path: str | os.PathLike,
    idata: xr.DataTree | None = None,
    *,
    reference: xr.DataTree | None = None,
    calibration: xr.DataTree | bool = True,
    title: str | None = None,
    refine: RefineLike = "auto",
    random_seed: int | None = None,
    progressbar: bool = True,
) -> Path:
    """Write one HTML page that says what the posterior is, and how far to trust it.

    The page needs no network and no other file. It has the model's graph, what the network was
    trained on, what it remembers of each task, k-hat of every dataset, posteriors, calibration,
    and the comparison with a reference; but no data, nor anything that is computed row by row.
    Needs the extra "report".

    Parameters
    ----------
    posterior : AmortizedPosterior or MultilevelPosterior
    path : path
        Of the page, such as "report.html"; written whole or not at all.
    idata : xarray.DataTree, optional
        Result of `sample`; of the stored datasets, where there are any, if not given.
    reference : xarray.DataTree, optional
        Result of :func:`pmcl.sample_reference` for the same datasets.
    calibration : xarray.DataTree or bool
        Result of :func:`pmcl.calibrate`; True: of the network alone, on 200 simulations; False:
        left out.
    title : str, optional
        By default the names of the parameters.
    refine : "auto", bool or Refine
        As in :meth:`AmortizedPosterior.sample`, for the stored datasets.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    Path
        Of the page.

    Raises
    ------
    ImportError
        Where the extra is not installed.
    ValueError
        With a reference, but without `idata` to compare; or where it is not of `sample`.
    """
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
    calibrated = calibration if isinstance(calibration, xr.DataTree) else None
    at_hand = AtHand(posterior, idata, of_memory, reference, compared, calibrated)
    with pictures():
        sections = [s for about in SECTIONS if (s := about(at_hand, verdicts)) is not None]
    names = ", ".join(i.name for i in posterior.compiled.free)
    environment = Environment(
        loader=PackageLoader("pmcl.diagnostics"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(
        title=title or f"Amortized posterior of {names}",
        verdicts=verdicts,
        sections=sections,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        versions=[f"pmcl {version('pmcl')}", *(f"{n} {version(n)}" for n in _PACKAGES)],
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
