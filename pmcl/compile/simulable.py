"""What has a density and cannot be simulated, and the way out."""

from collections.abc import Sequence

import pymc as pm
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.simulator import SimulatorRV
from pymc.logprob.abstract import _logprob_helper
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pmcl.compile.model import CompiledModel
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import content

_DENSITY_IS_ENOUGH = (
    "(`pmcl.refine` and `pmcl.sample_reference` need no simulator, and `fit_amortized` takes a "
    "function of yours: `simulator=`.)"
)


def check_simulable(model: pm.Model, variables: Sequence[Variable] | None = None) -> None:
    """Refuse models that have a density and cannot be simulated.

    Parameters
    ----------
    model : pymc.Model
    variables : sequence of random variables, optional
        Those that have to be drawn, given the others; the whole joint by default.

    Raises
    ------
    UnsupportedModelError
        Naming the variable, what is wrong with it and what to do.
    """
    if variables is None:
        _check_potentials(model)
        if not model.observed_RVs:
            raise UnsupportedModelError(
                "The model has no observed variable: nothing says which are simulated. Give the "
                f"likelihood `observed=` (placeholder values will do). {_DENSITY_IS_ENOUGH}"
            )
    for rv in model.observed_RVs:
        if variables is None or rv in variables:
            _check_own_data(model, rv)
    for rv in model.basic_RVs if variables is None else variables:
        if not can_draw(rv):
            _refuse_to_draw(rv)


def has_density(rv: Variable) -> bool:
    """Whether a random variable has a log density, given its parameters."""
    if isinstance(rv.owner.op, SimulatorRV):
        return False  # PyMC's is a distance to one simulation
    if not isinstance(rv.owner.op, CustomDistRV):
        return True
    try:
        _logprob_helper(rv, rv.type())
    except NotImplementedError:
        return False
    return True


def need_density(compiled: CompiledModel, what: str) -> None:
    """Refuse what needs a likelihood that nobody knows.

    Raises
    ------
    UnsupportedModelError
        Naming the observed variables without one.
    """
    if compiled.implicit:
        raise UnsupportedModelError(
            f"{what}: expected a likelihood, but {', '.join(map(repr, compiled.implicit))} can "
            "only be simulated. `fit_amortized`, `sample(refine=False)`, `calibrate` and "
            "`check_data` need none; else use a distribution, or `pm.CustomDist` with `logp=`."
        )


def can_draw(rv: Variable) -> bool:
    """Whether a random variable has a sampler, given its parameters."""
    op = rv.owner.op
    return not (isinstance(op, CustomDistRV) and not has_random(op)) and not is_improper(rv)


def is_improper(rv: Variable) -> bool:
    """Whether a random variable's density has no finite integral."""
    return isinstance(rv.owner.op, FlatRV | HalfFlatRV)


def _check_potentials(model: pm.Model) -> None:
    if model.potentials:
        names = ", ".join(repr(p.name) for p in model.potentials)
        raise UnsupportedModelError(
            f"Potential {names} adds to the log density but cannot be simulated from. Write it as "
            "a distribution (`pm.CustomDist` with `dist=` or `random=`, `pm.Truncated`, "
            f"`pm.Censored`) so that the simulator knows it too. {_DENSITY_IS_ENOUGH}"
        )


def _check_own_data(model: pm.Model, rv: Variable) -> None:
    """Refuse observations that the model's distributions depend on: draws would not follow them."""
    own = {v for v in ancestors([model.rvs_to_values[rv]]) if v in model.data_vars}
    for data in own & content([*model.basic_RVs, *model.potentials]):
        raise UnsupportedModelError(
            f"`pm.Data` {data.name!r} holds the observations of {rv.name!r} and also enters the "
            "model's distributions, which cannot be simulated. Write the dependence as a "
            "distribution (`pm.AR`, or `pm.CustomDist` with `dist=`), or put what is known "
            "beforehand in a `pm.Data` of its own and name it as a covariate. "
            f"{_DENSITY_IS_ENOUGH}"
        )


def _refuse_to_draw(rv: Variable) -> None:
    op, name = rv.owner.op, rv.name
    if is_improper(rv):
        raise UnsupportedModelError(
            f"Variable {name!r} has an improper prior (`{op.name}`): it cannot be simulated. Give "
            f"it a proper one, however wide. {_DENSITY_IS_ENOUGH}"
        )
    raise UnsupportedModelError(
        f"Variable {name!r} is a `pm.CustomDist` with only `logp`: it cannot be simulated. "
        "Give it `random=` (a function of the parameters, `rng` and `size`), or write it with "
        f"`dist=`. {_DENSITY_IS_ENOUGH}"
    )


def has_random(op: CustomDistRV) -> bool:
    # PyMC puts a function of its own, which raises, in the place of a missing `random`.
    random = getattr(op, "_random_fn", None)
    return random is not None and "default_not_implemented" not in getattr(
        random, "__qualname__", ""
    )
