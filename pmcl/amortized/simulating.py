"""The simulator of a model, as `fit_amortized` is asked for it."""

from typing import Any, Literal

import pymc as pm

from pmcl.compile import Masking, Simulator, compile_model, make_simulator, read_covariates
from pmcl.compile.covariates import MADE, SourcesLike, sources_of
from pmcl.compile.made import SimulatorFunction, names_made
from pmcl.compile.simulator import check_finite
from pmcl.data.sources import aligned_sources
from pmcl.networks import Structure
from pmcl.runtime.arguments import warn


def masking_of(structure: Structure, lengths: tuple[int, int] | None, missing: float) -> Masking:
    """Read the arguments `lengths` and `missing`."""
    if not 0 <= missing < 1:
        raise ValueError(f"missing: expected a fraction from 0 to less than 1, got {missing}.")
    if lengths is None:
        return Masking(missing=float(missing))
    if structure.row is None:
        raise ValueError(
            "lengths: expected a dim along which datasets may differ in length; name it by "
            "`exchangeable=` or `sequence=`."
        )
    pair = tuple(lengths)
    if len(pair) != 2 or any(int(n) != n for n in pair) or not 1 <= pair[0] <= pair[1]:
        raise ValueError(
            "lengths: expected the shortest and the longest number of rows, such as (20, 200), "
            f"got {lengths!r}."
        )
    return Masking(structure.row, (int(pair[0]), int(pair[1])), float(missing))


def all_sources(
    model: pm.Model, covariates: SourcesLike | None, function: SimulatorFunction | None
) -> dict[str, Any]:
    """Sources of the covariates, those that the user's simulator makes among them."""
    given = sources_of(model, covariates)
    made = [] if function is None else names_made(model, function)
    return {**dict.fromkeys((n for n in made if n not in given), MADE), **given}


def simulator_of(
    model: pm.Model,
    covariates: SourcesLike | None,
    *,
    backend: Literal["auto", "jax", "pytensor"] = "auto",
    function: SimulatorFunction | None = None,
) -> Simulator:
    """Compile a model and derive its simulator, with all that is refused refused.

    Raises
    ------
    UnsupportedModelError, ValueError
        As :func:`fit_amortized` does.
    """
    sources = all_sources(model, covariates, function)
    compiled = compile_model(model, covariates=tuple(sources))
    for copy in compiled.copies:
        warn(str(copy))
    read = read_covariates(aligned_sources(compiled, sources), compiled.covariates)
    simulator = make_simulator(compiled, read, backend=backend, function=function)
    check_finite(simulator)
    return simulator
