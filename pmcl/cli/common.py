"""What the commands share: options, where answers and progress go."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pmcl.runtime.files import to_json

if TYPE_CHECKING:
    import pymc as pm
    from rich.console import Console

    from pmcl.amortized.multilevel import MultilevelPosterior
    from pmcl.amortized.posterior import AmortizedPosterior
    from pmcl.levels.sizes import Groups


Flag = Parameter(negative="")
Json = Annotated[bool, Parameter(name="--json", negative="")]
ModelName = Annotated[str, Parameter(name=["--model", "-m"])]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")]


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Send progress, and whatever else is said on the way, to standard error."""
    import rich

    rich.reconfigure(stderr=True)
    with contextlib.redirect_stdout(sys.stderr):
        yield


def answer(facts: Any, as_json: bool, text: str) -> None:
    """Print an answer: as JSON for a program, as text for a person."""
    print(to_json(facts, indent=1) if as_json else text)


def console() -> "Console":
    """Where usage and errors go."""
    from rich.console import Console

    return Console(stderr=True)


def loaded(state: Path, model: str) -> "AmortizedPosterior | MultilevelPosterior":
    """Read a state by the model of that name, or of that file."""
    from pmcl.models.definition import named

    return named(model).load(state)


def label_columns(model: "pm.Model", groups: "Groups | None" = None) -> dict[str, Any]:
    """Columns of a text file that hold names: dims of a model, with the labels that it has.

    Groups of any number have names of their own, in the column of their dim or in that of the
    rows' groups.
    """
    data = {str(v.name) for v in [*model.observed_RVs, *model.data_vars]}
    found: dict[str, Any] = {str(d): c for d, c in model.coords.items() if d not in data}
    if groups is not None:
        found |= {n: None for n in (groups.grouping.dim, groups.grouping.by) if n}
    return found
