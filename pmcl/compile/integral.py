"""Whether a density that somebody wrote as a prior integrates to one, by numbers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV

from pmcl.compile.model import CompiledModel
from pmcl.compile.variables import own_value

_STEP = 0.01  # of asinh z
_FAR = 40.0  # asinh of the farthest z, 1e17
_FAR_INSIDE = 7.0  # where z is transformed: of larger ones values are 0 or infinite
_TAIL = 1e-4  # of an integrand's peak, that is left at the ends of a density without an integral
_NEAR_ONE = 0.02


def with_integrals(compiled: CompiledModel) -> CompiledModel:
    """Say which of the priors that are a `pm.CustomDist` with `logp` are improper.

    And which others are not known to integrate to one. Elements are integrated over z each, the
    other variables at the initial point.
    """
    model = compiled.model
    custom = [rv for rv in model.free_RVs if isinstance(rv.owner.op, CustomDistRV)]
    found = {rv.name: _integrals(compiled, model, rv.name) for rv in custom}
    improper = [k for k, v in found.items() if v is not None and np.isinf(v).any()]
    left = [k for k in found if k not in improper]
    return replace(
        compiled,
        improper=(*compiled.improper, *improper),
        unnormalised=tuple(k for k in left if found[k] is None or not _are_one(found[k])),
    )


def _are_one(values: np.ndarray | None) -> bool:
    return bool(np.allclose(values, 1.0, rtol=0, atol=_NEAR_ONE))  # type: ignore[arg-type]


def _integrals(compiled: CompiledModel, model: pm.Model, name: str) -> np.ndarray | None:
    """Integrals of a variable's elements, infinite where there is none; None: cannot be told."""
    where = next(v for v in compiled.values if v.variable == name)
    far = _FAR if model.rvs_to_transforms[model[name]] is None else _FAR_INSIDE
    data = {i.name: jnp.asarray(own_value(model, i.name)) for i in compiled.data}
    s = np.arange(-far, far + _STEP, _STEP)

    def terms(u: jax.Array) -> jax.Array:
        z = jnp.asarray(compiled.initial)
        z = z.at[where.start : where.start + where.size].set(u)
        return compiled.log_prior_elements(z, data)[name]

    if jax.eval_shape(terms, s[0]).size != where.size:
        return None
    log_p = np.asarray(jax.lax.map(terms, np.sinh(s), batch_size=len(s))).reshape(len(s), -1)
    height = np.exp(np.where(np.isnan(log_p), -np.inf, log_p)) * np.cosh(s)[:, None]
    before, last = height[[len(s) // 10, -len(s) // 10]], height[[0, -1]]
    left = last > _TAIL * height.max(axis=0)
    known = np.where(left.any(axis=0), np.nan, height.sum(axis=0) * _STEP)
    return np.where((left & (last > before / 2)).any(axis=0), np.inf, known)
