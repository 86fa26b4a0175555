"""Which family of normals follows a stream."""

from typing import TYPE_CHECKING, Literal

from pmcl.compile import CompiledModel
from pmcl.compile.predictors import predictors
from pmcl.online.families import LARGEST
from pmcl.online.families.search import GaussNewton
from pmcl.online.search.search import Search

if TYPE_CHECKING:
    from pmcl.online.options import Options

type Family = Literal["mean_field", "low_rank", "full", "auto"]
_NAMES = ("mean_field", "low_rank", "full", "auto")


def chosen(compiled: CompiledModel, asked: "Options") -> tuple[str, Search | GaussNewton]:
    """Return the family, and how it is searched for.

    Raises
    ------
    ValueError
        If the family is not known, or does not fit the model or the other options.
    """
    family, search = asked.family, asked.search
    if family not in _NAMES:
        raise ValueError(f"family: expected one of {list(_NAMES)}, got {family!r}.")
    why = "" if family == "mean_field" else _why_not(compiled, asked)
    if family == "auto":
        fits = [name for name, most in LARGEST.items() if compiled.dim <= most]
        family = fits[0] if fits and not why and not isinstance(search, Search) else "mean_field"
    elif why:
        raise ValueError(
            f"family: {family!r} cannot follow this stream: {why}. Use family='mean_field'."
        )
    if family == "full" and compiled.dim > LARGEST["full"]:
        raise ValueError(
            f"family: 'full' holds up to {LARGEST['full']} parameters, the model has "
            f"{compiled.dim}; use 'low_rank' or 'mean_field'."
        )
    kind = Search if family == "mean_field" else GaussNewton
    if search is not None and not isinstance(search, kind):
        raise ValueError(f"search: family {family!r} needs a {kind.__name__}, got {search!r}.")
    return family, kind() if search is None else search


def _why_not(compiled: CompiledModel, asked: "Options") -> str:
    """Say what stands against normals with covariances; empty where nothing does."""
    if asked.method is not None:
        return "`method` follows one value of the parameters"
    if asked.local:
        return "local variables need a mean field"
    if asked.strength != 1:
        return "`strength` is for a mean field"
    if asked.precision != "double":
        return "covariances need precision='double'"
    found = predictors(compiled)
    return found if isinstance(found, str) else ""
