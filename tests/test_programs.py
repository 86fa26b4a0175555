"""Models as their authors write them, by the shortest call there is, against NUTS.

``PMCL_WRITE_TABLE=1 pytest -m slow tests/test_programs.py`` writes the table of the docs anew.
"""

import os
import re
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest

import pmcl

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from corpus import PROGRAMS  # noqa: E402

PAGE = Path(__file__).resolve().parents[1] / "docs" / "programs.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
QUIET = {"random_seed": 1, "progressbar": False}
# a kind each: constants beside rows, potentials, observed data without dims, groups, a scan
QUICK = (
    "linear regression", "weibull by potential", "out of sample predictions", "schools not centred",
    "flat priors", "imputed brains",
)  # fmt: skip
MEAN, WIDTH = 0.25, 1.3  # what a mean may be off in sd, and a central 90 % by a factor


_DRAWS = ("chain", "draw")


NO_REFERENCE = "no reference"  # chains of NUTS that cannot be trusted
NOT_YET = "not run yet"  # by the slow test, which writes the table


class Found(NamedTuple):
    """What came of one model."""

    verdict: str
    bias: float
    said: str

    def row(self, name: str) -> str:
        bias = "" if np.isnan(self.bias) else f"{self.bias:.2f}"
        return f"| {name} | {self.verdict} | {bias} | {self.said} |\n"


def outcome(name: str) -> Found:
    """Refine a model on its own data, and compare with NUTS."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC's, of what it imputes
        model = PROGRAMS[name]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = pmcl.refine(model, **QUIET)
    except (pmcl.UnsupportedModelError, pmcl.DataError) as error:
        return Found("refused", np.nan, str(error).split(". ")[0])
    stats = tree["dataset_stats"].to_dataset()
    said = str(stats["warning"].item())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = pmcl.sample_reference(model, chains=4, target_accept=0.95, **QUIET)
    bias, ratio = 0.0, 1.0
    for key, value in reference["unconstrained_posterior"].to_dataset().items():
        ours = tree["unconstrained_posterior"][key]
        apart = abs(ours.mean(_DRAWS) - value.mean(_DRAWS)) / value.std(_DRAWS)
        widths = [np.ptp(v.quantile([0.05, 0.95], _DRAWS).values, axis=0) for v in (ours, value)]
        bias = max(bias, float(apart.max()))
        ratio = max(ratio, float(np.exp(np.abs(np.log(widths[0] / widths[1])).max())))
    right = bias < MEAN and ratio < WIDTH
    verdict = "warned of" if said else ("agrees" if right else "wrong")
    chains = reference["dataset_stats"].to_dataset()
    if verdict == "wrong" and (chains["divergences"].item() or chains["rhat"].item() > 1.01):
        text = (
            f"{chains['divergences'].item()} divergences of NUTS, r-hat {chains['rhat'].item():.3f}"
        )
        return Found(NO_REFERENCE, bias, text)
    return Found(verdict, bias, said)


@pytest.mark.parametrize("name", QUICK)
def test_the_table_is_of_this_code(name: str) -> None:
    found = outcome(name)
    assert found.verdict == verdicts()[name]
    assert found.verdict != "wrong"


def verdicts() -> dict[str, str]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", PAGE.read_text().split(BEGIN)[1], re.M)
    return {name: verdict for name, verdict in rows if name in PROGRAMS}


def test_every_program_is_in_the_table() -> None:
    assert [*verdicts()] == [*PROGRAMS]
    assert len(PROGRAMS) >= 60
    assert {*verdicts().values()} <= {"agrees", "warned of", "refused", NO_REFERENCE, NOT_YET}


@pytest.mark.slow
def test_the_table_of_the_docs_is_true() -> None:
    rows = "".join(outcome(name).row(name) for name in PROGRAMS)
    lines = f"| model | verdict | bias, in sd | what is said |\n|---|---|---|---|\n{rows}"
    if os.environ.get("PMCL_WRITE_TABLE"):
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{lines}{END}{rest.split(END)[1]}")
    told = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", lines, re.M))
    assert {n: told[n] for n in PROGRAMS} == verdicts()


def test_models_are_made_anew() -> None:
    assert all(isinstance(build, type(outcome)) for build in PROGRAMS.values())
    assert isinstance(PROGRAMS["linear regression"](), pm.Model)
