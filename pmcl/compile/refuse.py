"""What cannot be compiled, and the way out: one clear error each."""

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.simulator import SimulatorRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors


class UnsupportedModelError(ValueError):
    """A PyMC model that pmcl cannot compile; the message names the variable and the way out."""


def check_model(model: pm.Model) -> None:
    """Refuse models whose density or simulator cannot be derived.

    Raises
    ------
    UnsupportedModelError
        Naming the variable, what is wrong with it and what to do.
    """
    _check_imputed(model)  # first: imputation also changes the free and the observed variables
    _check_observed(model)
    _check_discrete(model)
    _check_potentials(model)
    for rv in model.basic_RVs:
        _check_operation(rv)


def _check_imputed(model: pm.Model) -> None:
    for rv in model.observed_RVs:
        op = rv.owner.op if rv.owner is not None else None
        if isinstance(op, PartialObservedRV):
            name = str(rv.name).removesuffix("_observed")
            raise UnsupportedModelError(
                f"Variable {name!r} has missing values in `observed`, which PyMC turns into free "
                "parameters. Build the model with complete placeholder values (for example "
                f"`observed=np.zeros(...)`) and pass the real data to pmcl instead."
            )
        value = model.rvs_to_values[rv]
        data = next(
            (
                v.data if isinstance(v, Constant) else v.get_value(borrow=True)
                for v in ancestors([value])
                if isinstance(v, Constant | SharedVariable) and v.type.ndim == value.type.ndim
            ),
            None,
        )
        if data is not None and np.issubdtype(np.asarray(data).dtype, np.floating):
            missing = int(np.isnan(data).sum())
            if missing:
                raise UnsupportedModelError(
                    f"Variable {rv.name!r} has {missing} missing values (NaN) in `observed`. Build "
                    "the model with complete placeholder values and pass the real data to pmcl."
                )


def _check_observed(model: pm.Model) -> None:
    if not model.observed_RVs:
        raise UnsupportedModelError(
            "The model has no observed variable: nothing says which variables are data. Give the "
            "likelihood `observed=` (placeholder values of the right shape will do)."
        )
    if not model.free_RVs:
        raise UnsupportedModelError("The model has no free variable: there is nothing to infer.")


def _check_discrete(model: pm.Model) -> None:
    for rv in model.free_RVs:
        if np.issubdtype(np.dtype(rv.type.dtype), np.integer) or rv.type.dtype == "bool":
            raise UnsupportedModelError(
                f"Free variable {rv.name!r} is discrete ({rv.type.dtype}); its posterior has no "
                "density with gradients. Sum it out of the likelihood (`pm.Mixture`, "
                "`pm.ZeroInflated*`, or pymc-extras' `marginalize`)."
            )


def _check_potentials(model: pm.Model) -> None:
    if model.potentials:
        names = ", ".join(repr(p.name) for p in model.potentials)
        raise UnsupportedModelError(
            f"Potential {names} adds to the log density but cannot be simulated from. Write it as "
            "a distribution (`pm.CustomDist` with `dist=` or `random=`, `pm.Truncated`, "
            "`pm.Censored`) so that the simulator knows it too."
        )


def _check_operation(rv: object) -> None:
    op = rv.owner.op  # type: ignore[attr-defined]
    name = rv.name  # type: ignore[attr-defined]
    if isinstance(op, MinibatchRandomVariable):
        raise UnsupportedModelError(
            f"Variable {name!r} uses `total_size` (`pm.Minibatch`), which rescales the likelihood "
            "of a random part of the data. Remove it: pmcl batches over datasets by itself."
        )
    if isinstance(op, SimulatorRV):
        raise UnsupportedModelError(
            f"Variable {name!r} is a `pm.Simulator`: it has no log density. Use a distribution, or "
            "`pm.CustomDist` with both `logp` and `random` (or `dist`)."
        )
    if isinstance(op, CustomDistRV) and not _has_random(op):
        raise UnsupportedModelError(
            f"Variable {name!r} is a `pm.CustomDist` with only `logp`: it cannot be simulated. "
            "Give it `random=` (a function of the parameters, `rng` and `size`), or write it with "
            "`dist=`."
        )


def _has_random(op: CustomDistRV) -> bool:
    # PyMC puts a function of its own, which raises, in the place of a missing `random`.
    random = getattr(op, "_random_fn", None)
    return random is not None and "default_not_implemented" not in getattr(
        random, "__qualname__", ""
    )
