"""Discrete variables of a model: which values they have, and the model in which they are data."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
from pymc.distributions.discrete import DiscreteUniformRV
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import BernoulliRV, BinomialRV, CategoricalRV
from pytensor.tensor.random.op import RandomVariable

from pmcl.compile.as_data import as_data
from pmcl.compile.compiling import compile_model
from pmcl.compile.conversion.graphs import host_mode
from pmcl.compile.marginal import is_discrete
from pmcl.compile.model import CompiledModel
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import fingerprint


class DiscreteModel(NamedTuple):
    """A model whose discrete variables are data.

    Attributes
    ----------
    compiled : CompiledModel
        Its z holds the continuous variables alone.
    values : dict of str to array of int
        What each discrete variable can be.
    """

    compiled: CompiledModel
    values: dict[str, np.ndarray]


# By model: what was compiled, and the fingerprint it was made at.
_COMPILED: WeakKeyDictionary[pm.Model, tuple[tuple, DiscreteModel]] = WeakKeyDictionary()


def discrete_model(model: pm.Model, came: set[str]) -> DiscreteModel:
    """Compile a model with its discrete variables as data; once, as long as it does not change.

    Parameters
    ----------
    model : pymc.Model
        With discrete free variables, or with such as pymc-extras has summed out.
    came : set of str
        Names of `pm.Data` that change with the dataset.

    Raises
    ------
    UnsupportedModelError
        Where there are none, or one that has no last value, naming it.
    """
    now = fingerprint(model, [v for v in model.data_vars if v.name in came])
    before = _COMPILED.get(model)
    if before is None or before[0] != now:
        before = _COMPILED[model] = now, _compiled(model, came)
    return before[1]


def _compiled(model: pm.Model, came: set[str]) -> DiscreteModel:
    if not any(map(is_discrete, model.free_RVs)):
        model = _whole(model)
    discrete = [rv for rv in model.free_RVs if is_discrete(rv)]
    if not discrete:
        raise UnsupportedModelError(
            "recover_discrete: expected the model with its discrete variables, as it was before "
            f"they were summed out by hand; all of {[rv.name for rv in model.free_RVs]} are "
            "continuous. (A mixture's is `pm.Categorical`, a change point's `pm.DiscreteUniform`.)"
        )
    values = {rv.name: _values(rv) for rv in discrete}
    new = as_data(model, [*values])
    names = [v.name for v in new.data_vars if v.name in came | {*values}]
    return DiscreteModel(compile_model(new, covariates=names), values)


def _whole(model: pm.Model) -> pm.Model:
    """Put back what pymc-extras has summed out, by its own function."""
    ops = {type(rv.owner.op).__module__.split(".")[0] for rv in model.basic_RVs}
    if "pymc_extras" not in ops:
        return model
    from pymc_extras.marginal import unmarginalize

    return unmarginalize(model)


def _values(rv: Variable) -> np.ndarray:
    op = rv.owner.op
    if isinstance(op, BernoulliRV):
        return np.arange(2)
    if isinstance(op, CategoricalRV):
        return np.arange(int(_known(_parameters(rv)[0].shape[-1], rv)))
    if isinstance(op, DiscreteUniformRV):
        low, high = (_known(p, rv) for p in _parameters(rv))
        return np.arange(np.min(low), np.max(high) + 1)
    if isinstance(op, BinomialRV):
        return np.arange(np.max(_known(_parameters(rv)[0], rv)) + 1)
    if type(op).__name__ == "DiscreteMarkovChainRV":
        return np.arange(int(_known(rv.owner.inputs[0].shape[-1], rv)))
    raise UnsupportedModelError(
        f"Variable {rv.name!r}: expected one of finitely many values (`pm.Bernoulli`, "
        "`pm.Categorical`, `pm.DiscreteUniform`, `pm.Binomial`, a `DiscreteMarkovChain`), got "
        f"{type(op).__name__.removesuffix('RV')}. Write it as a `pm.Categorical` with as many "
        "values as matter."
    )


def _parameters(rv: Variable) -> list[Variable]:
    op = rv.owner.op
    assert isinstance(op, RandomVariable)
    return list(op.dist_params(rv.owner))


def _known(value: Variable, rv: Variable) -> np.ndarray:
    try:
        return np.asarray(value.eval(mode=host_mode()))
    except Exception as error:
        raise UnsupportedModelError(
            f"Variable {rv.name!r}: expected bounds that are constants, they depend on other "
            "variables. Write it as a `pm.Categorical` over all values."
        ) from error
