"""Whether a prior integrates to one: a density that somebody wrote, or one that is cut."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV

from pmcl.compile.conversion import graphs
from pmcl.compile.drawing import truncated
from pmcl.compile.model import CompiledModel
from pmcl.compile.simulable import has_random
from pmcl.compile.variables import content, own_value, unconstrained

_STEP = 0.0025  # of asinh z
_RANGE = 40.0  # asinh of the farthest z that is integrated over, 1e17
_FAR = 300.0  # asinh of the z at which a density that still does not fall has no integral, 1e130
_FAR_INSIDE = 7.0  # of both where z is transformed: of larger ones values are 0 or infinite
_TAIL = 1e-4  # of an integrand's peak, that may be left at the ends of the range
_RESOLVED = 50  # steps under an integrand's peak; an edge is as exact as one of them
_NEAR_ONE = 0.05
_MOST = 5000  # dimensions, above which it takes too long
_ELEMENTS = 100  # of a variable, the first ones, which are integrated
_ROOM = 2_000_000  # numbers at a time
_DRAWN = 2**20  # numbers, of a prior that transforms cut
_FEWEST, _AT_ONCE = 1000, 2**12  # draws


def with_integrals(compiled: CompiledModel) -> CompiledModel:
    """Say which of the priors that are a `pm.CustomDist` with only `logp` are improper.

    And of which others the integral is not one. Elements are integrated over z each, the other
    variables at the initial point; nothing is said of a density whose integral is not found so: of
    elements that depend on one another, or with too narrow a peak or too long a tail.
    """
    model = compiled.model
    custom = [rv for rv in model.free_RVs if isinstance(rv.owner.op, CustomDistRV)]
    names = [rv.name for rv in custom if not has_random(rv.owner.op)]
    found = {name: _integrals(compiled, model, name) for name in names}
    return replace(
        compiled,
        improper=(*compiled.improper, *(k for k, v in found.items() if np.isinf(v).any())),
        unnormalised=tuple(
            k
            for k, v in found.items()
            if not np.isinf(v).any() and (np.abs(v - 1) > _NEAR_ONE).any()
        ),
    )


class OfPrior(NamedTuple):
    """What the evidence has to know of a prior.

    Attributes
    ----------
    without : str
        Why there is none; empty where there is.
    left : tuple of arrays of shape (1,)
        Share of the prior that transforms leave, and its error; see :func:`left_by_transforms`.
    besides : tuple of str
        Potentials that are part of it.
    """

    without: str
    left: tuple[np.ndarray, np.ndarray]
    besides: tuple[str, ...]


def of_prior(compiled: CompiledModel, whole: CompiledModel | None = None) -> OfPrior:
    """What the evidence has to know of a model's prior, made once.

    `whole`: the model of which some parameters are data here. Evidence is theirs, too, so that its
    prior counts.
    """
    return compiled.keep(
        "of prior", lambda: _of_prior(compiled) if whole is None else of_prior(whole)
    )


def _of_prior(compiled: CompiledModel) -> OfPrior:
    without = ""
    if compiled.improper:
        without = f"improper prior of {', '.join(compiled.improper)}"
    elif compiled.unnormalised:
        without = f"the prior of {', '.join(compiled.unnormalised)} does not integrate to 1"
    of_data = {p.name for p in compiled.potentials}
    besides = (str(p.name) for p in compiled.model.potentials if p.name not in of_data)
    left = (np.ones(1), np.zeros(1)) if without else left_by_transforms(compiled)
    return OfPrior(without, left, tuple(besides))


def left_by_transforms(
    compiled: CompiledModel, group: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Share of the prior that transforms (`ordered`, say) leave, and its error; made once.

    NaN where it cannot be told: by draws, in JAX, of what is cut.

    Parameters
    ----------
    compiled : CompiledModel
    group : array of int of shape (dim,), optional
        Group of each entry of z; -1 of what is common to all.

    Returns
    -------
    share, error : arrays of shape (1 + groups,)
        Of the prior of the first 0, 1, 2, ... groups; without `group` of shape (1,), of all.
    """
    if group is None:
        group = np.full(compiled.dim, -1)
    key = "left by transforms", group.tobytes()
    return compiled.keep(key, lambda: _left(compiled, group))


def _left(compiled: CompiledModel, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cut, groups = truncated(compiled), 1 + int(group.max(initial=-1))
    if not cut.any():
        return np.ones(1 + groups), np.zeros(1 + groups)
    model, itself = compiled.model, {rv: rv for rv in compiled.model.free_RVs}
    slices = [slice(v.start, v.start + v.size) for v in compiled.values]
    parts = [
        (unconstrained(model, value, itself).ravel(), group[own])
        for value, own in zip(model.value_vars, slices, strict=True)
        if cut[own].any()
    ]
    there = pt.isfinite(pt.concatenate([z for z, _ in parts]))
    owner = 1 + np.concatenate([g for _, g in parts])
    above, nothing = content([there]), (np.full(1 + groups, np.nan),) * 2
    size = sum(v.size for v in compiled.values if model[v.variable] in above)
    draws = _DRAWN // size
    if draws < _FEWEST or {model[i.name] for i in compiled.covariates} & above:
        return nothing
    bound, generators = graphs.bind([there], {})
    try:
        drawn = graphs.to_jax(generators, bound)

        def one(key: jax.Array) -> jax.Array:
            finite = drawn(*graphs.random_states(key, len(generators)))[0]
            return jnp.cumprod(jnp.ones(1 + groups).at[owner].min(finite.astype(float)))

        keys = jax.random.split(jax.random.key(0), draws)
        at_once = max(min(_AT_ONCE, _ROOM // size**2), 1)  # a covariance has size**2 numbers
        share = np.asarray(jax.lax.map(one, keys, batch_size=at_once).mean(axis=0))
    except (NotImplementedError, TypeError, ValueError, IndexError):  # no sampler in JAX
        return nothing
    share = np.where(share > 0, share, np.nan)
    return share, np.sqrt(share * (1 - share) / draws)


def _integrals(compiled: CompiledModel, model: pm.Model, name: str) -> np.ndarray:
    """Integrals of a variable's elements, infinite where there is none; NaN: cannot be told."""
    where = next(v for v in compiled.values if v.variable == name)
    inside = model.rvs_to_transforms[model[name]] is not None
    far, end = (_FAR_INSIDE, _FAR_INSIDE) if inside else (_RANGE, _FAR)
    data = {i.name: jnp.asarray(own_value(model, i.name)) for i in compiled.data}
    begin = jnp.asarray(compiled.initial)

    def terms(u: jax.Array) -> jax.Array:
        z = jax.lax.dynamic_update_slice(begin, jnp.broadcast_to(u, (where.size,)), (where.start,))
        return compiled.log_prior_elements(z, data)[name].ravel()

    def at(points: np.ndarray) -> np.ndarray:
        size = min(len(points), max(_ROOM // compiled.dim, 1))
        return np.asarray(jax.lax.map(lambda u: terms(u)[:_ELEMENTS], points, batch_size=size))

    nothing = np.full(1, np.nan)
    if compiled.dim > _MOST or jax.eval_shape(terms, 0.0).size != where.size:
        return nothing
    own = np.asarray(begin)[where.start : where.start + where.size]
    if where.size > 1 and not _apart(at, own):
        return nothing
    n = int(far / _STEP)
    s = np.concatenate([np.arange(-n, n + 1) * _STEP, [-end, 1 - end, end, end - 1]])
    log_p = at(np.sinh(s))
    log_p = np.where(np.isnan(log_p), -np.inf, log_p)
    # A power of z has an integral where z p(z) falls, an exponential function of it where p does.
    log_end = log_p[-4:] + (0.0 if inside else np.abs(s[-4:, None]))
    with np.errstate(all="ignore"):
        diverges = (np.isfinite(log_end[::2]) & (log_end[::2] - log_end[1::2] > -1e-6)).any(axis=0)
        height = np.exp(log_p[:-4]) * np.cosh(s[:-4, None])
        whole, half, peak = height.sum(axis=0), 2 * height[::2].sum(axis=0), height.max(axis=0)
        told = (whole > _RESOLVED * peak) & (np.abs(half / whole - 1) < 0.01)
        told &= (height[[0, -1]] < _TAIL * peak).all(axis=0) & np.isfinite(whole)
    return np.where(diverges, np.inf, np.where(told, whole * _STEP, np.nan))


def _apart(at: Callable[[np.ndarray], np.ndarray], own: np.ndarray) -> bool:
    """Whether each element has a density of its own: nothing else moves it."""
    rng = np.random.default_rng(0)
    n = len(own)
    bits = (np.arange(n) >> np.arange(n.bit_length())[:, None]) & 1 == 1  # any two differ in one
    moved = np.concatenate([bits, ~bits])
    for scale in (0.1, 1.0):
        base = own + scale * np.abs(rng.normal(size=n))
        others = base + moved * scale * np.abs(rng.normal(size=moved.shape))
        first, *found = at(np.concatenate([base[None], others]))
        same = np.isclose(found, first, rtol=1e-9, atol=1e-9, equal_nan=True)
        if not same[~moved[:, : same.shape[1]]].all():
            return False
    return True
