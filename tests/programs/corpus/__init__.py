"""Models after the kinds that PyMC's users are taught, in the form in which they are written.

Written anew, with data of the same shape made by a simulator; one function a model, which returns
it with its data. Names are those of the kind, not of a page.
"""

from collections.abc import Callable

import pymc as pm

from . import (
    causal,
    generalised,
    hierarchies,
    labelled,
    latent,
    mixtures,
    rethinking,
    series,
    survival,
)

PROGRAMS: dict[str, Callable[[], pm.Model]] = {
    name.replace("_", " "): function
    for module in (
        generalised, rethinking, hierarchies, mixtures, survival, series, latent, causal,
        labelled,
    )
    for name, function in vars(module).items()
    if callable(function) and getattr(function, "__module__", None) == module.__name__
    and not name.startswith("_")
}  # fmt: skip
