"""A stream whose model gets more entries: a new level, a new predictor, a new head."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from jax import Array

from pmcl.compile import CompiledModel, localise
from pmcl.compile.compiling import compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.compile.simulable import check_simulable, need_density
from pmcl.draws.results import value_infos
from pmcl.online.families import LARGEST, AnyNormal
from pmcl.online.gaps import values_alone
from pmcl.online.gaussian import MeanField
from pmcl.online.options import covariates_along
from pmcl.online.rows import RowBatch, Rows
from pmcl.online.search.bound import Remainder, Target
from pmcl.online.search.climb import climb
from pmcl.online.search.search import Way
from pmcl.online.state import PRIOR, RowModel, init, no_anchors, prepare
from pmcl.online.stream import AbstractStream
from pmcl.runtime.precision import scope_of

_SAME = 1e-5  # of two priors' densities, and over that
_LOOKS = 2


class Place(NamedTuple):
    """Where old entries of z are in a longer one."""

    at: np.ndarray
    new: np.ndarray  # bool, of the longer one


def grown[S: AbstractStream](stream: S, model: pm.Model) -> S:
    """Return a stream of a model with more entries; see :meth:`OnlinePosterior.grow`."""
    return lengthened(stream, *longer(stream, model))


def longer(stream: AbstractStream, model: pm.Model) -> tuple[RowModel, Place]:
    """Read a model with more entries, and find the old ones in it."""
    old = stream.compiled
    model = model_or_context(model)
    check_simulable(model)
    named = [i.name for i in old.covariates if i.name in model]
    named += [n for n in covariates_along(model, stream.row) if n not in named]
    with scope_of("double"):
        compiled = compile_model(model, covariates=named)
        need_density(compiled, "grow")
    place = _placed(old, compiled)
    most = LARGEST.get(stream.settings.family)
    if stream.settings.family == "full" and most is not None and compiled.dim > most:
        raise ValueError(
            f"model: family 'full' holds up to {most} parameters, the model has {compiled.dim}."
        )
    _check_stored(stream, compiled)
    with scope_of(stream.precision):
        before = stream.problem
        local = localise(compiled) if before.rows.local is not None else None
        rows = Rows(compiled, stream.row, local)
        problem = prepare(rows, _keys(stream)[0])
        _check_prior(problem.prior, old, compiled, place)
        prior = before.prior.grown(problem.prior, jnp.asarray(place.at))
        return replace(problem, prior=prior, gaussian=before.gaussian), place


def lengthened[S: AbstractStream](stream: S, problem: RowModel, place: Place) -> S:
    """Return a stream of a model with more entries, which :func:`longer` has read."""
    state = stream.state
    index = jnp.asarray(place.at)
    with scope_of(stream.precision):
        problem = replace(problem, gaussian=stream.problem.gaussian)
        found = _population(problem, state.predictive, place, _keys(stream)[1])
        anchors = no_anchors(problem, stream.settings.family)
        if anchors is not None and state.anchors is not None:
            anchors = state.anchors.grown(found.mean, index)
        memory = state.memory if len(state.memory) else init(problem).memory
        state = state._replace(
            memory=memory,
            q=state.q.grown(found, index),
            predictive=state.predictive.grown(found, index),
            anchors=anchors,
            branches=tuple(branch.grown(found, index) for branch in state.branches),
        )
    return replace(stream, compiled=problem.rows.compiled, problem=problem, state=state)


def _keys(stream: AbstractStream) -> Array:
    return jax.random.split(jax.random.key((stream.seed + stream.state.updates) % 2**32))


def _placed(old: CompiledModel, new: CompiledModel) -> Place:
    """Match the entries of two models by the names of variables and the labels of dims."""
    parts = {value.name: value for value in new.values}
    before, after = value_infos(old), value_infos(new)
    index = []
    for value in old.values:
        if value.name not in parts:
            raise ValueError(
                f"model: expected the variable {value.name!r}, which something is known of; got "
                f"{sorted(parts)}."
            )
        other = parts[value.name]
        whole = np.arange(other.size).reshape(other.shape) + other.start
        dims = before[value.name].dims
        if len(other.shape) != len(value.shape):
            raise ValueError(
                f"model: variable {value.name!r}: expected {len(value.shape)} axes, got "
                f"{len(other.shape)}."
            )
        picks = []
        for axis, dim in enumerate(dims):
            n, m = value.shape[axis], other.shape[axis]
            labelled = dim in old.coords and len(old.coords[dim]) == n
            if labelled and after[value.name].dims[axis] == dim and dim in new.coords:
                picks.append(_positions(value.name, dim, old.coords[dim], new.coords[dim]))
            elif n == m:
                picks.append(np.arange(n))
            else:
                raise ValueError(
                    f"model: variable {value.name!r}: axis {axis} had {n} entries and has {m}: "
                    "give it a dim with coords, by which old entries are found again. (Where a "
                    "transform joins entries, as a simplex does, none can be added.)"
                )
        index.append(whole[np.ix_(*picks)].ravel() if picks else whole.ravel())
    found = np.concatenate(index) if index else np.zeros(0, int)
    fresh = np.ones(new.dim, bool)
    fresh[found] = False
    return Place(found, fresh)


def _positions(name: str, dim: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    where = {label: i for i, label in enumerate(new.tolist())}
    missing = [label for label in old.tolist() if label not in where]
    if missing:
        raise ValueError(
            f"model: variable {name!r}: expected all labels of dim {dim!r} that there were, "
            f"{missing} are missing. Entries can be added, not taken away."
        )
    return np.asarray([where[label] for label in old.tolist()], int)


def _check_prior(prior: MeanField, old: CompiledModel, new: CompiledModel, place: Place) -> None:
    """Refuse a model that changes what was assumed of old entries: it is in what is known.

    Densities tell, at a few z: with the Jacobians of transforms and without, which bounds change.
    """
    rng, parts = np.random.default_rng(0), {value.name: value for value in new.values}
    for _ in range(_LOOKS):
        with scope_of("double"):
            z = jnp.asarray(prior.at(jnp.asarray(rng.normal(size=new.dim))), float)
            before, after = (
                [c.log_prior_elements(u, constrained=how) for how in (False, True)]
                for c, u in ((old, z[place.at]), (new, z))
            )
        for value, info in zip(old.values, old.free, strict=True):
            other = parts[value.name]
            at = place.at[value.start : value.start + value.size] - other.start
            for one, two in zip(before, after, strict=True):
                a, b = np.asarray(one[info.name]), np.asarray(two[info.name])
                if (a.shape, b.shape) == (value.shape, other.shape):  # a term each
                    a, b = a.ravel(), b.ravel()[at]
                elif value.shape != other.shape:  # one term for old entries and new ones
                    continue
                if not np.allclose(a, b, rtol=_SAME, atol=_SAME, equal_nan=True):
                    raise ValueError(
                        f"model: variable {info.name!r}: expected the prior that it had: it is "
                        "part of what is known. Start a new stream for another prior."
                    )


def _check_stored(stream: AbstractStream, compiled: CompiledModel) -> None:
    """Refuse models by which stored rows could not be read, or would be read as others."""
    memory = stream.state.memory
    if not len(memory):
        return
    infos = {i.name: i for i in compiled.data}
    data = values_alone(memory.data)
    if set(infos) != set(data):
        raise ValueError(
            f"model: rows are stored with {sorted(data)}, and the model has data "
            f"{sorted(infos)}: a stream with a memory cannot get other ones."
        )
    for name, stored in data.items():
        row = stream.problem.rows.axis(name)
        for axis, dim in enumerate(infos[name].dims):
            n, m = stored.shape[axis], infos[name].shape[axis]
            if axis != row and dim not in compiled.data_dims and n != m:
                raise ValueError(
                    f"model: variable {name!r}: rows are stored with {n} values along {dim!r}, the "
                    f"model has {m}, and nobody knows the stored rows' new ones. A stream that is "
                    "to get predictors needs no memory."
                )
    for dim, labels in stream.compiled.coords.items():
        now = compiled.coords.get(dim)
        if now is None or dim in compiled.data_dims:
            continue
        if list(now[: len(labels)]) != list(labels):
            raise ValueError(
                f"model: expected the labels of dim {dim!r} that there were first, and new ones "
                "after them: stored rows may hold positions along it."
            )


def _population(problem: RowModel, q: AnyNormal, place: Place, key: Array) -> MeanField:
    """Normal of new entries given what is known of the others: the population's, if there is one.

    Where their prior depends on nothing else, it is their prior.
    """
    free = place.new & ~problem.normal
    index = jnp.asarray(place.at)
    start = problem.prior
    if not free.any():
        return start
    known = MeanField(start.mean.at[index].set(q.mean), start.log_sd.at[index].set(q.log_sd))
    lacking = Remainder(known, ~free)
    nothing = RowBatch({}, jnp.zeros(0))
    found = climb(problem.rows, known, Target(known, nothing, lacking), Way(PRIOR), key).q
    return MeanField(*(jnp.where(free, a, b) for a, b in zip(found, start, strict=True)))
