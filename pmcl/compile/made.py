"""Data that a user's function makes, in place of the model's own distributions."""

from collections.abc import Callable, Mapping

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pmcl.compile.conversion import graphs
from pmcl.compile.covariates import Covariates
from pmcl.compile.drawing import Z
from pmcl.compile.mask import Masking
from pmcl.compile.model import CompiledModel
from pmcl.compile.simulable import check_simulable
from pmcl.compile.variables import own_value, unconstrained

type Made = Mapping[str, np.ndarray]
type SimulatorFunction = Callable[[Made, np.random.Generator], Made]

_POOL = 64  # candidates at least, and
_TIMES = 8  # times as many as are wanted, where Potentials weigh the prior


def names_made(model: pm.Model, function: SimulatorFunction) -> list[str]:
    """Names of the `pm.Data` that a function makes, beside the observed variables.

    Raises
    ------
    UnsupportedModelError, TypeError, ValueError
        If the parameters have no prior that can be drawn, or the function makes something else.
    """
    if not callable(function):
        raise TypeError(
            "simulator: expected a function of the parameters by name and a numpy.random.Generator "
            f"that returns the data by name, got {type(function).__name__}. Where simulations are "
            "made is `backend`."
        )
    check_simulable(model, model.free_RVs)
    rng = np.random.default_rng(0)
    drawn = graphs.to_host([], list(model.free_RVs))(rng)()
    given = {rv.name: value for rv, value in zip(model.free_RVs, drawn, strict=True)}
    data = [v.name for v in model.data_vars]
    found = function({**{n: own_value(model, n) for n in data}, **given}, rng)
    if not isinstance(found, Mapping):
        raise TypeError(
            f"simulator: expected a mapping of the data by name, got {type(found).__name__}."
        )
    observed = [rv.name for rv in model.observed_RVs]
    missing = [n for n in observed if n not in found]
    unknown = [n for n in found if n not in observed and n not in data]
    if missing or unknown:
        raise ValueError(
            f"simulator: expected values for {observed}, and for `pm.Data` that hold data "
            f"({data}); {missing} did not come, {unknown} are neither."
        )
    return [n for n in found if n not in observed]


def made_draw(
    compiled: CompiledModel, covariates: Covariates, masking: Masking, function: SimulatorFunction
) -> Callable[[int, np.random.Generator], dict[str, np.ndarray]]:
    """Draw parameters from the prior, and data from a function of them.

    Potentials of parameters alone weigh the prior: draws are chosen among several times as many.
    """
    model = compiled.model
    infos = {i.name: i for i in masking.sized(compiled.data)}
    shared: dict[SharedVariable, Variable] = {}
    explicit: dict[str, Variable] = {}
    for info in compiled.covariates:
        if info.name in covariates.made:
            continue
        if info.name in covariates.distributions:
            shared[model[info.name]] = covariates.distributions[info.name].astype(info.dtype)
        else:
            shape = infos[info.name].shape
            explicit[info.name] = pt.TensorType(info.dtype, shape)(info.name)
            shared[model[info.name]] = explicit[info.name]
    itself = {rv: rv for rv in model.basic_RVs}
    parts = [unconstrained(model, v, itself).astype("float64") for v in model.value_vars]
    z = pt.concatenate([part.ravel() for part in parts])
    known = [i.name for i in compiled.covariates if i.name not in covariates.made]
    on_data = {i.name for i in compiled.potentials}
    weigh = [p.sum() for p in model.potentials if p.name not in on_data]
    weight = sum(weigh, start=pt.constant(0.0))
    free = [model[i.name] for i in compiled.free]
    outputs = [z, weight, *free, *(shared[model[n]] for n in known)]
    bound, generators = graphs.bind(outputs, shared)
    seeded = graphs.to_host(list(explicit.values()), bound, generators)

    def checked(name: str, value: np.ndarray) -> np.ndarray:
        info = infos[name]
        if np.shape(value) != info.shape:
            raise ValueError(
                f"simulator: expected {name!r} of shape {info.shape}, got {np.shape(value)}."
            )
        return np.asarray(value, info.dtype)

    def of_row(row: list[np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        parameters = dict(zip([i.name for i in compiled.free], row[2:], strict=False))
        given = dict(zip(known, row[2 + len(free) :], strict=True))
        found = function({**given, **parameters}, rng)
        mine = {k: checked(k, v) for k, v in found.items()}
        return {Z: row[0], **{k: {**given, **mine}[k] for k in infos}}

    def draw(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        call, candidates = seeded(rng), []
        with np.errstate(all="ignore"):  # values that are not finite are counted, not announced
            for _ in range(max(_POOL, _TIMES * n) if weigh else n):
                given = {**covariates.host(rng), **covariates.host_tables(rng)}
                arguments = [np.asarray(given[k], v.type.dtype) for k, v in explicit.items()]
                candidates.append(call(*arguments))
            rows = candidates
            if weigh:
                log = np.nan_to_num([c[1] for c in candidates], nan=-np.inf)
                share = np.exp(log - log.max())
                rows = [candidates[i] for i in rng.choice(len(log), n, p=share / share.sum())]
            made = [of_row(r, rng) for r in rows]
        return {name: np.stack([m[name] for m in made]) for name in made[0]}

    return draw
