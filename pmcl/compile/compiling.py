"""Compile a PyMC model."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.transforms import CircularTransform
from pymc.logprob.basic import logp, transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pmcl.compile import causal, variables
from pmcl.compile.bases import Bases
from pmcl.compile.conversion import graphs
from pmcl.compile.conversion.parameters import without_checks
from pmcl.compile.copies import copies_in, copies_in_deterministics, follow_data, summaries_in
from pmcl.compile.function import Function
from pmcl.compile.indices import Indices
from pmcl.compile.integral import with_integrals
from pmcl.compile.joining import joined
from pmcl.compile.labelled import model_or_context
from pmcl.compile.model import COMPILED, CompiledModel
from pmcl.compile.of_data import ByData
from pmcl.compile.refuse import (
    UnsupportedModelError,
    check_differentiable,
    check_model,
    check_terms,
    trace_or_name,
)
from pmcl.compile.simulable import has_density, is_improper
from pmcl.compile.size import say_graph
from pmcl.compile.support import Support
from pmcl.compile.variables import VariableInfo, fingerprint
from pmcl.runtime import precision
from pmcl.runtime.arguments import warn
from pmcl.runtime.jitting import compiling


def compile_model(
    model: pm.Model | None = None, *, covariates: Sequence[str] = ()
) -> CompiledModel:
    """Compile a PyMC model's log prior, log likelihood and transforms to pure JAX functions.

    Called again with a model that has not changed it returns what it made before: the model's
    variables, coordinates and constants are compared. Nothing is kept of a model that is gone.

    Importing PyTensor's JAX backend, which this does, switches `jax_enable_x64` on for the process.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context when not given.
    covariates : sequence of str
        Names of the `pm.Data` that change from dataset to dataset; any other is a constant.

    Returns
    -------
    CompiledModel

    Raises
    ------
    UnsupportedModelError
        If the model cannot be compiled, naming the variable and the way out.

    Warns
    -----
    UserWarning
        Where its graph is so large that this takes minutes.
    """
    model = model_or_context(model)
    check_model(model)
    data = _covariate_variables(model, covariates)
    now = fingerprint(model, data)
    before = COMPILED.setdefault(model, {}).get(tuple(covariates))
    if before is not None and before[0] == now:
        return replace(before[1], model=model)
    say_graph(model)
    with compiling(), precision.scope():
        compiled = with_integrals(joined(_compile(model, data)))
    COMPILED[model][tuple(covariates)] = now, compiled.without_model()
    return compiled


def _compile(model: pm.Model, data: Sequence[SharedVariable]) -> CompiledModel:
    values, free = list(model.value_vars), list(model.free_RVs)
    slices = variables.value_slices(model)
    # Fresh values for the observations: the model's own have their length in their type.
    observed = {
        rv: pt.TensorType(rv.type.dtype, (None,) * rv.type.ndim)(f"{rv.name}")
        for rv in model.observed_RVs
    }
    explicit = [rv for rv in observed if has_density(rv)]
    inputs = {var: var.type(name=var.name) for var in data}
    symbols = {**inputs, **observed}
    about = {
        **{inputs[var]: variables.describe_data(model, var) for var in data},
        **{observed[rv]: variables.describe_observed(model, rv) for rv in observed},
    }
    sized = variables.resize_observed(model, {rv: tuple(v.shape) for rv, v in observed.items()})
    fixed = variables.fixed_lengths(model, data, sized)
    lengths = variables.varying_lengths(model, symbols, fixed)
    held = variables.held_as(model, {rv.name: v for rv, v in observed.items()})
    lengths |= held
    like = {
        value: jax.ShapeDtypeStruct(where.shape, value.type.dtype)
        for value, where in zip(values, slices, strict=True)
    }
    like |= {v: jax.ShapeDtypeStruct(info.shape, info.dtype) for v, info in about.items()}

    def function(
        arguments: Sequence[Variable], outputs: Sequence[Variable], names: Sequence[str]
    ) -> tuple[Function, list[jax.ShapeDtypeStruct]]:
        # Observations give a dim its length only where they are an argument.
        sources = {*inputs.values(), *(v for v in arguments if v in about)}
        known = {k: v for k, v in lengths.items() if sources & {*ancestors([v])}}
        bound, generators = graphs.bind(outputs, {**inputs, **known})
        if generators:
            raise UnsupportedModelError(
                f"The log density or the value of one of {list(names)} depends on a random draw "
                "that is not a variable of the model; give it a name (`pm.Normal(name, ...)`)."
            )
        reached = {*ancestors(bound)} - {*arguments}
        used = [symbol for symbol in symbols.values() if symbol in reached]
        call = graphs.ShapedFunction([*arguments, *used], bound)
        results = trace_or_name(call, [like[v] for v in call.inputs], names)
        return Function(call, tuple(about[symbol] for symbol in used)), results

    def gradient(term: Function, names: Sequence[str]) -> None:
        shapes = [like[v] for v in term.call.inputs]
        check_differentiable(term.call, shapes, names, len(values))

    rvs_to_values = {
        sized[rv]: observed.get(rv, v)
        for rv, v in model.rvs_to_values.items()
        if rv not in observed or rv in explicit
    }
    rvs_to_transforms = {sized[rv]: t for rv, t in model.rvs_to_transforms.items()}

    def densities(rvs: Sequence[Variable], *, jacobian: bool) -> list[Variable]:
        found = transformed_conditional_logp(
            rvs=[sized[rv] for rv in rvs],
            rvs_to_values=rvs_to_values,
            rvs_to_transforms=rvs_to_transforms,
            jacobian=jacobian,
        )
        return found if model.check_bounds else without_checks(found)

    # Angles come round and round; one turn of them is a density.
    turns = {
        rv: pt.switch(pt.abs(model.rvs_to_values[rv]) <= np.pi, 0.0, -np.inf).sum()
        for rv in free
        if isinstance(model.rvs_to_transforms[rv], CircularTransform)
    }
    try:
        terms = densities([*free, *explicit], jacobian=True)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"PyMC derives no log density of one of {[rv.name for rv in model.basic_RVs]}: "
            f"{str(error).strip()} A `pm.CustomDist` needs `logp=`, or `dist=`."
        ) from error

    def at_values(graph: Sequence[Variable]) -> list[Variable]:
        return replace_rvs_by_values(
            graph, rvs_to_values=rvs_to_values, rvs_to_transforms=rvs_to_transforms
        )

    potentials = dict(
        zip(model.potentials, at_values([sized[p] for p in model.potentials]), strict=True)
    )
    followed = follow_data(
        model,
        at_values([sized[var] for var in model.deterministics]),
        [*terms, *potentials.values()],
        observed,
    )
    named = [*at_values([sized[var] for var in free]), *followed]
    names = [rv.name for rv in free]
    constrain, shapes = function(values, named, [*names, *(d.name for d in model.deterministics)])
    described = [
        variables.describe(model, var, like.shape)
        for var, like in zip([*free, *model.deterministics], shapes, strict=True)
    ]

    parameters = {rv: rv.type(name=rv.name) for rv in free}
    like |= dict(zip(parameters.values(), shapes[: len(free)], strict=True))
    forward = graph_replace(
        [variables.unconstrained(model, value, sized) for value in values],
        {sized[rv]: value for rv, value in {**parameters, **observed}.items()},
        strict=False,
    )
    # Those that hold data, and where nothing is observed all, are of the likelihood.
    given = {*data, *observed.values()}
    on_data = [p for p, v in potentials.items() if not observed or given & {*ancestors([v])}]
    restricting = [p for p in potentials if p not in on_data]
    restrictions = [potentials[p].sum() for p in restricting]
    names_prior = [*names, *(p.name for p in restricting)]
    own = dict(zip(free, (term.sum() for term in terms[: len(free)]), strict=True))
    own |= {rv: own[rv] + turn for rv, turn in turns.items()}
    before = [*own.values(), *restrictions]
    prior, _ = function(values, before, names_prior)
    gradient(prior, names_prior)
    counted = variables.counted(
        model, lengths, {*inputs.values()}, dict(zip(names_prior, before, strict=True))
    )
    plain = [*(term.sum() for term in densities(free, jacobian=False)), *restrictions]
    constrained_prior, _ = function(values, plain, names_prior)
    names_potential = [p.name for p in on_data]
    extra, by_potential = function(values, [potentials[p] for p in on_data], names_potential)
    gradient(extra, names_potential)
    arguments, names_observed = [*values, *observed.values()], [rv.name for rv in explicit]
    likelihood, by_term = function(arguments, terms[len(free) :], names_observed)
    check_terms(
        [
            (about[observed[rv]], term)
            for rv, term in zip(explicit, by_term, strict=True)
            if not isinstance(rv.owner.op, CustomDistRV)
        ]
    )
    gradient(likelihood, names_observed)
    by_step = []
    for rv in explicit:
        node = sized[rv].owner
        by_step.append(causal.steps(node.op, at_values(list(node.inputs)), observed[rv]))
    steps = likelihood
    if any(step is not None for step in by_step):
        split = [
            term if step is None else step
            for term, step in zip(terms[len(free) :], by_step, strict=True)
        ]
        steps, by_term = function(arguments, split, names_observed)
    by_data = ByData(inputs, lengths, {symbol: about[symbol] for symbol in symbols.values()})
    custom = [rv for rv in explicit if isinstance(rv.owner.op, CustomDistRV)]
    places = [
        *(sized[v] for v in (*free, *model.deterministics, *model.potentials, *model.observed_RVs)),
        *(logp(sized[rv], observed[rv]) for rv in custom),  # data may index there, too
    ]
    nodes = [sized[rv].owner for rv in observed]
    likelihoods = [
        *(v for node in nodes for v in (*node.inputs, *getattr(node.op, "inner_outputs", ()))),
        *(sized[p] for p in on_data),
        *places[len(places) - len(custom) :],
    ]
    indices = Indices(places, by_data, model.named_vars_to_dims)
    if indices.doubtful:
        warn(
            f"An array of the model indexes {', '.join(indices.doubtful)} by -1, which is the last "
            "element. A code of -1 is what pandas gives to a missing category: drop those rows."
        )
    support = Support({rv.name: sized[rv] for rv in model.observed_RVs}, by_data)
    unconstrain, _ = function(list(parameters.values()), forward, names)
    densities_of = [v for f in (likelihood, extra, prior) for v in f.call.outputs]
    computed = zip(model.deterministics, constrain.call.outputs[len(free) :], strict=True)
    return CompiledModel(
        model=model,
        dim=sum(where.size for where in slices),
        values=slices,
        free=tuple(described[: len(free)]),
        deterministics=tuple(described[len(free) :]),
        observed=tuple(about[symbol] for symbol in observed.values()),
        covariates=tuple(about[symbol] for symbol in inputs.values()),
        coords={k: variables.labels(v) for k, v in model.coords.items() if v is not None},
        data_dims=_data_dims(model, about.values()),
        counted=counted,
        _fixed=fixed,
        potentials=tuple(
            variables.describe(model, p, like.shape)
            for p, like in zip(on_data, by_potential, strict=True)
        ),
        implicit=tuple(rv.name for rv in observed if rv not in explicit),
        improper=tuple(rv.name for rv in free if is_improper(rv)),
        _prior_names=tuple(names_prior),
        _log_prior=prior,
        _log_constrained_prior=constrained_prior,
        _log_likelihood=likelihood,
        _log_potentials=extra,
        _log_steps=steps,
        _term_dims={
            **{rv.name: rv.type.ndim - variables.core_ndim(rv) for rv in observed},
            **{n: t.ndim for n, t in zip(names_observed, by_term, strict=True)},
        },
        _constrain=constrain,
        _unconstrain=unconstrain,
        indices=indices,
        bases=Bases([*places, *terms], by_data),
        support=support,
        copies=(
            *copies_in(model, densities_of),
            *copies_in_deterministics(model, {d.name: v for d, v in computed}, densities_of),
            *summaries_in(model, likelihoods, [sized[rv] for rv in model.basic_RVs]),
        ),
        holders=(held_by := variables.holders(model)),
        constants={
            v.name: variables.own_value(model, v.name)
            for v in model.data_vars
            if v not in data and v.name not in held_by
        },
    )


def _covariate_variables(model: pm.Model, names: Sequence[str]) -> list[SharedVariable]:
    known = {v.name: v for v in model.data_vars if isinstance(v, SharedVariable)}
    for name in names:
        if name not in known:
            frozen = {v.name for v in model.data_vars} - {*known}
            how = " It is frozen: take the model before `freeze_dims_and_data`." * (name in frozen)
            raise ValueError(
                f"covariates: {name!r} is not a `pm.Data` of the model; expected some of "
                f"{sorted(known)}.{how}"
            )
        for rv in model.observed_RVs:
            if known[name] in ancestors([model.rvs_to_values[rv]]):
                if variables.holder_of(model, rv.name) != name:  # a part of it, the rest are lags
                    raise UnsupportedModelError(
                        f"`pm.Data` {name!r}: the observations of {rv.name!r} are computed from "
                        "it, so that other values of it cannot be read as data. Make a `pm.Data` "
                        f"of what is observed, and others of what {rv.name!r} depends on (lags): "
                        "these come with each dataset. Or build a model for each dataset, with "
                        "its values."
                    )
                raise ValueError(
                    f"covariates: {name!r} holds the observations of {rv.name!r}, which are data "
                    "anyway; leave it out."
                )
    reached = variables.content([*model.basic_RVs, *model.deterministics, *model.potentials])
    nothing = [name for name in names if known[name] not in reached]
    if nothing:
        raise UnsupportedModelError(
            f"covariates: nothing in the model depends on {nothing}; it may use the array that the "
            "`pm.Data` was made from. Use the `pm.Data` itself in the model, or leave it out."
        )
    return [known[name] for name in names]


def _data_dims(model: pm.Model, infos: Iterable[VariableInfo]) -> frozenset[str]:
    parameters = {d for rv in model.free_RVs for d in variables.dims_of(model, rv)}
    return frozenset(d for info in infos for d in info.dims if d not in parameters)
