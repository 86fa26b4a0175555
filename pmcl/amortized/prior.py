"""Yesterday's posterior as today's prior: a density learned from draws, inside a new PyMC model."""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from flowjax.bijections import RationalQuadraticSpline
from flowjax.distributions import AbstractDistribution, Normal
from flowjax.flows import masked_autoregressive_flow
from flowjax.train import fit_to_data
from jax import Array
from paramax import non_trainable, unwrap
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.amortized.prior_source import source_of
from pmcl.compile import CompiledModel, ValueSlice
from pmcl.compile.conversion import graphs
from pmcl.data.label_text import text
from pmcl.data.labels import is_turned
from pmcl.data.task import TaskLike
from pmcl.runtime import precision
from pmcl.runtime.arguments import seed_of

_FEWEST = 200  # draws that a density is learned from
_WORTH = 0.01  # nats per draw by which a flow has to beat the normal on held-back draws


def as_prior(
    source: AmortizedPosterior | MultilevelPosterior | xr.DataTree,
    data: TaskLike | None = None,
    *,
    dataset: str | int | None = None,
    vars: Sequence[str] | None = None,  # noqa: A002  (what users call them)
    model: pm.Model | None = None,
    name: str = "prior",
    flow: bool = True,
    random_seed: int | None = None,
) -> dict[str, TensorVariable]:
    """Use the posterior of one dataset as the prior of a new model, correlations kept.

    Called inside a ``with pm.Model():``. It adds one free vector, on the unconstrained scale, whose
    density is learned from the posterior's draws: a normal, and a spline flow on top where that
    describes held-back draws better. The old model's variables are made of it as deterministics,
    and are returned by name. NUTS samples the new model, and pmcl compiles and simulates it.

    Parameters
    ----------
    source : AmortizedPosterior, MultilevelPosterior or xarray.DataTree
        A posterior of pmcl, with `data`; or draws, of `sample`, `sample_reference` or `pm.sample`.
    data : dataset, optional
        What a posterior is conditioned on, in the forms of `AmortizedPosterior.sample`.
    dataset : str or int, optional
        Which dataset's posterior, by name or position; may be left out where there is one only.
    vars : sequence of str, optional
        Variables of the old model to hand over, free ones or deterministics that depend on no data;
        all of them by default, and of a multilevel posterior those that its groups share: groups of
        the new model are drawn from the same population where it says so, as in
        ``pm.Normal("theta", before["mu"], before["tau"])``. What is not needed is integrated out.
    model : pymc.Model, optional
        The old model, needed with draws that do not come from a posterior of pmcl: it has the
        transforms.
    name : str
        Name of the free vector.
    flow : bool
        False: the normal alone.
    random_seed : int, optional

    Returns
    -------
    dict of str to tensor variable
        The old model's variables by name.

    Raises
    ------
    TypeError
        Where `source` is neither, or no model is being built.
    ValueError
        Naming the variable or dataset that is missing, and those there are.

    References
    ----------
    Durkan et al. (2019), Neural spline flows.
    """
    new = pm.modelcontext(None)
    seed = seed_of(random_seed, 0)
    old, compiled, z, own, labels = source_of(source, data, dataset, model, seed)
    if new is old:
        raise ValueError("as_prior: expected a new model, got the one whose posterior this is.")
    names, needed = _chosen(old, vars, own)
    parts, index = _parts(compiled, needed)
    chosen = z[:, index]
    if len(chosen) < _FEWEST or not np.isfinite(chosen).all():
        raise ValueError(
            f"as_prior: expected at least {_FEWEST} finite draws of {sorted(needed)}, got "
            f"{int(np.isfinite(chosen).all(axis=1).sum())}."
        )
    density = _learn(chosen, seed, flow=flow)
    vector = _vector(name, density, chosen.shape[1])
    found = _variables(old, vector, parts, names)
    return {n: _added(new, n, v, old, labels) if n != name else v for n, v in found.items()}


def _chosen(
    old: pm.Model, names: Sequence[str] | None, own: set[str]
) -> tuple[list[str], set[str]]:
    """Variables to hand over, and the free variables they are made of: some of `own`, unasked."""
    free = {rv: rv.name for rv in old.free_RVs}
    made_of: dict[str, set[str]] = {name: {name} for name in free.values()}
    data = {*old.observed_RVs, *old.data_vars}
    for variable in old.deterministics:
        behind = {*ancestors([variable])}
        if not behind & data:
            made_of[variable.name] = {free[v] for v in behind if v in free}
    unasked = [n for n, behind in made_of.items() if behind <= own]
    wanted = unasked if names is None else list(names)
    if not wanted or any(n not in made_of for n in wanted):
        raise ValueError(
            "as_prior: expected variables of the model that depend on no data, "
            f"{list(made_of)}, got {names}."
        )
    return [n for n in made_of if n in wanted], set().union(*(made_of[n] for n in wanted))


def _parts(compiled: CompiledModel, needed: set[str]) -> tuple[list[ValueSlice], np.ndarray]:
    """Value variables laid one after another, and where they lie in the old z."""
    parts: list[ValueSlice] = []
    index, start = [], 0
    for where in compiled.values:
        if where.variable in needed:
            parts.append(where._replace(start=start))
            index.append(np.arange(where.start, where.start + where.size))
            start += where.size
    return parts, np.concatenate(index)


class _Learned(eqx.Module):
    """A distribution on whitened draws: z = mean + factor u."""

    mean: Array
    factor: Array
    base: AbstractDistribution | None

    def log_prob(self, z: Array) -> Array:
        u = jax.scipy.linalg.solve_triangular(self.factor, z - self.mean, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diag(self.factor)))
        base = Normal(jnp.zeros(u.shape)) if self.base is None else self.base
        return base.log_prob(u) - log_det

    def transform(self, noise: Array) -> Array:
        """Turn standard normal noise into a draw."""
        u = noise if self.base is None else self.base.bijection.transform(noise)
        return self.mean + self.factor @ u


def _learn(z: np.ndarray, seed: int, *, flow: bool) -> _Learned:
    """Learn a density from draws of shape (draw, dim)."""
    mean, spread = z.mean(axis=0), z.std(axis=0)
    covariance = np.cov(z.T).reshape(len(mean), len(mean))
    # a direction along which the draws do not differ still has to have some width
    factor = np.linalg.cholesky(covariance + np.diag(1e-10 * spread**2 + 1e-20))
    with precision.scope():
        normal = _Learned(jnp.asarray(mean), jnp.asarray(factor), None)
        if not flow:
            return normal
        order = np.random.default_rng(seed).permutation(len(z))
        held, rest = order[: len(z) // 5], order[len(z) // 5 :]
        white = np.linalg.solve(factor, (z - mean).T).T
        make, fit = jax.random.split(jax.random.key(seed))
        start = masked_autoregressive_flow(
            make,
            # what is trained is the bijection: its noise stays standard normal
            base_dist=non_trainable(Normal(jnp.zeros(z.shape[1]))),
            transformer=RationalQuadraticSpline(knots=6, interval=5),
            flow_layers=2,
            nn_width=32,
        )
        trained, _ = fit_to_data(
            fit, start, jnp.asarray(white[rest]), learning_rate=1e-3, max_epochs=200,
            max_patience=20, batch_size=128, show_progress=False,
        )  # fmt: skip
        learned = _Learned(normal.mean, normal.factor, unwrap(trained))
        left = jnp.asarray(z[held])
        gain = jnp.mean(jax.vmap(learned.log_prob)(left) - jax.vmap(normal.log_prob)(left))
    return learned if float(gain) > _WORTH else normal


def _vector(name: str, density: _Learned, dim: int) -> TensorVariable:
    """The free vector, with its density and its draws: JAX functions that PyTensor runs."""
    if density.base is None:
        return pm.MvNormal(name, np.asarray(density.mean), chol=np.asarray(density.factor))
    log_prob, transform = pytensor.wrap_jax(density.log_prob), pytensor.wrap_jax(density.transform)

    def logp(value: TensorVariable, mean: TensorVariable) -> TensorVariable:
        return log_prob(pt.specify_shape(value, (dim,)))

    def dist(mean: TensorVariable, size: TensorVariable) -> TensorVariable:
        return transform(pt.specify_shape(pm.Normal.dist(pt.zeros(dim), 1), (dim,)))

    def support_point(
        rv: TensorVariable, size: TensorVariable, mean: TensorVariable
    ) -> TensorVariable:
        return mean

    return pm.CustomDist(
        name,
        np.asarray(density.mean),
        dist=dist,
        logp=logp,
        support_point=support_point,
        signature="(n)->(n)",
    )


def _variables(
    old: pm.Model, vector: TensorVariable, parts: Sequence[ValueSlice], names: Sequence[str]
) -> dict[str, TensorVariable]:
    """The old model's variables as functions of the vector."""
    where = {p.name: p for p in parts}
    swap = {
        v: vector[p.start : p.start + p.size].reshape(p.shape).astype(v.type.dtype)
        for v in old.value_vars
        if (p := where.get(v.name)) is not None
    }
    graphs_of = replace_rvs_by_values(
        [old[n] for n in names],
        rvs_to_values=old.rvs_to_values,
        rvs_to_transforms=old.rvs_to_transforms,
    )
    others = {v for v in old.value_vars if v not in swap}
    found = {}
    for variable, graph in zip(names, graphs_of, strict=True):
        needed = sorted(v.name for v in others & {*ancestors([graph])})
        if needed:
            raise ValueError(
                f"as_prior: the bounds of {variable!r} depend on {needed}; expected those in "
                "`vars` too."
            )
        (bound,), _ = graphs.bind(graph_replace([graph], swap, strict=False), {})
        found[variable] = bound
    return found


def _added(
    new: pm.Model,
    name: str,
    bound: TensorVariable,
    old: pm.Model,
    labels: Mapping[str, list[str]],
) -> TensorVariable:
    """Add a variable to the new model, in the order of its labels where it has the same."""
    dims = old.named_vars_to_dims.get(name)
    fits = dims is not None
    for axis, dim in enumerate(dims or ()):
        ours, theirs = text(new.coords.get(dim) or ()), labels.get(dim, [])
        if is_turned(theirs, ours):
            bound = pt.take(bound, [theirs.index(label) for label in ours], axis=axis)
        elif dim not in new.coords or ours != theirs:
            fits = False
    return pm.Deterministic(name, bound, dims=dims if fits else None)
