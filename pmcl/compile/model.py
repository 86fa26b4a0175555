"""A PyMC model as pure JAX functions of the unconstrained vector z and the data."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from jax import Array
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pmcl.compile import causal, graphs, precision, refuse, variables
from pmcl.compile.jitting import compiling
from pmcl.compile.mask import Mask
from pmcl.compile.variables import ValueSlice, VariableInfo, fingerprint, one_after_another

Dataset = Mapping[str, Array]


class Function(NamedTuple):
    """A compiled graph, and the data it depends on beside its arguments."""

    call: graphs.ShapedFunction
    data: tuple[VariableInfo, ...]


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """Pure functions derived from one PyMC model, compiled by :func:`compile_model`.

    Every function acts on one z and one dataset, and can be passed to `jax.vmap`, `jax.jit` and
    `jax.grad`. A dataset is a mapping that holds every observed variable and every covariate;
    `covariates` is a mapping that holds the covariates alone (a dataset will do, and has to come
    where a parameter or a deterministic depends on an observed variable).

    Attributes
    ----------
    model : pymc.Model
    dim : int
        Length of z.
    values : tuple of ValueSlice
        The value variables in the order of `model.value_vars`; z is their concatenation.
    free, deterministics, observed, covariates : tuple of VariableInfo
    coords : dict
        The model's coordinates.
    data_dims : frozenset of str
        Dims of the data that are not dims of parameters: their length may differ from the model's,
        unless a constant `pm.Data` has them too.
    kept : dict
        What was compiled of the model elsewhere, for later calls. Two of these are equal where they
        share it.
    """

    model: pm.Model = field(repr=False)
    dim: int
    values: tuple[ValueSlice, ...]
    free: tuple[VariableInfo, ...]
    deterministics: tuple[VariableInfo, ...]
    observed: tuple[VariableInfo, ...]
    covariates: tuple[VariableInfo, ...]
    coords: dict[str, np.ndarray] = field(repr=False)
    data_dims: frozenset[str]
    _fixed: dict[str, int] = field(repr=False)
    _log_prior: Function = field(repr=False)
    _log_constrained_prior: Function = field(repr=False)
    _log_likelihood: Function = field(repr=False)
    _log_steps: Function = field(repr=False)
    _term_dims: dict[str, int] = field(repr=False)
    _constrain: Function = field(repr=False)
    _unconstrain: Function = field(repr=False)
    kept: dict[Hashable, Any] = field(repr=False, default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompiledModel) and self.kept is other.kept

    def __hash__(self) -> int:
        return id(self.kept)

    def keep[T](self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made under a key before, else make it; it must not hold the model."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def without_model(self) -> "CompiledModel":
        """Return the same functions, equal to these, which do not keep the model alive."""
        return replace(self, model=None)  # type: ignore[arg-type]

    def term_dims(self, name: str) -> int:
        """Give the number of an observed variable's first dims that its likelihood has terms of."""
        return self._term_dims[name]

    @property
    def data(self) -> tuple[VariableInfo, ...]:
        """Variables that make a dataset: the observed ones, then the covariates."""
        return (*self.observed, *self.covariates)

    def split(self, z: Array) -> list[Array]:
        """Split z of shape (dim,) into the model's value variables, in their order."""
        z = graphs.as_input(z, "float64")
        if z.shape != (self.dim,):
            raise ValueError(f"z: expected shape ({self.dim},), got {z.shape}.")
        if not self.values:
            return []
        # Its derivative joins the parts'; a slice's would be as long as z for every variable.
        parts = jax.lax.split(z, [v.size for v in self.values])
        return [part.reshape(v.shape) for part, v in zip(parts, self.values, strict=True)]

    def narrowed(self, shapes: Sequence[tuple[int, ...]]) -> "CompiledModel":
        """Return a model whose value variables have other shapes. Only its likelihood is of use.

        Raises
        ------
        TypeError, ValueError
            If an operation of the likelihood does not take such variables.
        """
        pairs = zip(self.values, shapes, strict=True)
        values = one_after_another(value._replace(shape=shape) for value, shape in pairs)
        call = self._log_likelihood.call.with_shapes(dict(enumerate(shapes)))
        return replace(
            self,
            dim=sum(value.size for value in values),
            values=values,
            _log_likelihood=self._log_likelihood._replace(call=call),
            kept={},
        )

    def unravel(self, z: Array) -> dict[str, Array]:
        """Split z of shape (dim,) into the model's value variables by name."""
        return {v.name: part for v, part in zip(self.values, self.split(z), strict=True)}

    def log_prior_terms(self, z: Array, covariates: Dataset | None = None) -> dict[str, Array]:
        """Log prior density of every free variable (nats, shape () each, Jacobian included)."""
        terms = self._run(self._log_prior, self.split(z), covariates)
        return {info.name: term for info, term in zip(self.free, terms, strict=True)}

    def log_constrained_prior_terms(
        self, z: Array, covariates: Dataset | None = None
    ) -> dict[str, Array]:
        """Log prior density of every free variable as the model states it: without Jacobian."""
        terms = self._run(self._log_constrained_prior, self.split(z), covariates)
        return {info.name: term for info, term in zip(self.free, terms, strict=True)}

    def log_prior(self, z: Array, covariates: Dataset | None = None) -> Array:
        """Log prior density of z, Jacobian of the transforms included (nats, shape ())."""
        return sum(self.log_prior_terms(z, covariates).values(), start=jnp.zeros(()))

    def log_likelihood_terms(self, z: Array, dataset: Dataset) -> dict[str, Array]:
        """Log likelihood of every observed variable: one term a value where PyMC has them."""
        # Observations and covariates are read together, to compare their lengths.
        observed = self._read([*self.observed, *self._log_likelihood.data], dataset)
        terms = self._log_likelihood.call(*self.split(z), *observed)
        return {info.name: term for info, term in zip(self.observed, terms, strict=True)}

    def log_likelihood(
        self, z: Array, dataset: Dataset, *, mask: Mask | None = None, dim: str | None = None
    ) -> Array:
        """Log likelihood of a dataset (nats, shape ()).

        Parameters
        ----------
        z : Array of shape (dim,)
        dataset : mapping
        mask : Mask, optional
            Padding of `dim`, and missing values. Both have to hold valid values here. The
            likelihood has to be elementwise, or, for padding alone, causal along `dim`.
        dim : str, optional
            The dim that padding belongs to.

        Raises
        ------
        ValueError
            If a variable is missing or has the wrong shape, or its likelihood has no term of its
            own for what the mask leaves out.
        """
        if mask is None:
            terms = self.log_likelihood_terms(z, dataset)
            return sum(map(jnp.sum, terms.values()), start=jnp.zeros(()))
        observed = self._read([*self.observed, *self._log_steps.data], dataset)
        found = self._log_steps.call(*self.split(z), *observed)
        total = jnp.zeros(())
        for info, term in zip(self.observed, found, strict=True):
            total = total + jnp.sum(_left_out(info, term, mask, dim))
        return total

    def log_joint(
        self, z: Array, dataset: Dataset, *, mask: Mask | None = None, dim: str | None = None
    ) -> Array:
        """log p(z) + log p(x | z)."""
        return self.log_prior(z, dataset) + self.log_likelihood(z, dataset, mask=mask, dim=dim)

    def constrain(self, z: Array, covariates: Dataset | None = None) -> dict[str, Array]:
        """Free variables and deterministics by name, from z."""
        results = self._run(self._constrain, self.split(z), covariates)
        names = [info.name for info in (*self.free, *self.deterministics)]
        return dict(zip(names, results, strict=True))

    @cached_property
    def constrain_alone(self) -> tuple[graphs.ShapedFunction, list[int]]:
        """The part of `constrain` that needs no data: a function of z's parts.

        And the positions of its results among the free variables and deterministics.
        """
        call = self._constrain.call
        data = {*call.inputs[len(self.values) :]}
        free = [i for i, v in enumerate(call.outputs) if not data & {*ancestors([v])}]
        inputs = call.inputs[: len(self.values)]
        return graphs.ShapedFunction(inputs, [call.outputs[i] for i in free]), free

    @property
    def needed_to_unconstrain(self) -> tuple[str, ...]:
        """Names of the data that :meth:`unconstrain` depends on."""
        return tuple(info.name for info in self._unconstrain.data)

    def unconstrain(self, parameters: Dataset, covariates: Dataset | None = None) -> Array:
        """Return z of shape (dim,) of the free variables' values by name."""
        missing = [info.name for info in self.free if info.name not in parameters]
        if missing:
            raise ValueError(
                f"unconstrain: expected a value for every free variable, none came for {missing}."
            )
        arguments = [graphs.as_input(parameters[i.name], i.dtype) for i in self.free]
        for info, value in zip(self.free, arguments, strict=True):
            if value.shape != info.shape:
                raise ValueError(
                    f"unconstrain: expected {info.name!r} of shape {info.shape}, got {value.shape}."
                )
        parts = self._run(self._unconstrain, arguments, covariates)
        return jnp.concatenate([jnp.ravel(p) for p in parts])

    def _run(self, function: Function, arguments: list[Array], data: Dataset | None) -> tuple:
        return function.call(*arguments, *self._read(function.data, data))

    def _read(self, infos: Sequence[VariableInfo], data: Dataset | None) -> list[Array]:
        data = {} if data is None else data
        missing = [info.name for info in infos if info.name not in data]
        if missing:
            raise ValueError(f"dataset: expected values for {missing}, none came.")
        found = [graphs.as_input(data[i.name], i.dtype) for i in infos]
        lengths = dict(self._fixed)
        for info, value in zip(infos, found, strict=True):
            # Left to broadcasting, a wrong shape would give a wrong density.
            if value.ndim != len(info.dims):
                raise ValueError(
                    f"Variable {info.name!r}: expected dims {info.dims}, got shape {value.shape}."
                )
            for dim, n in zip(info.dims, value.shape, strict=True):
                if lengths.setdefault(dim, n) != n:
                    why = (
                        "parameters or constants of the model have it; data that vary with the "
                        "dataset have to be covariates, and a series needs `dims=`"
                        if dim in self._fixed
                        else "another variable of the dataset has it too"
                    )
                    raise ValueError(
                        f"Variable {info.name!r}: expected length {lengths[dim]} along dim "
                        f"{dim!r}, got {n} ({why})."
                    )
        return found


def _left_out(info: VariableInfo, term: Array, mask: Mask, dim: str | None) -> Array:
    """Put zero for the terms of padding and of missing values."""
    keep: Array | None = None
    if mask.rows is not None and dim in info.dims:
        axis, n = info.dims.index(dim), mask.rows.shape[0]
        if axis >= term.ndim or term.shape[axis] != n:
            raise ValueError(
                f"Variable {info.name!r}: expected a likelihood with a term for each of the {n} "
                f"elements of dim {dim!r}, got terms of shape {term.shape}; padding cannot be "
                "masked out of it."
            )
        keep = mask.rows.reshape([n if i == axis else 1 for i in range(term.ndim)])
    if info.name in mask.values:
        there = mask.values[info.name]
        if there.shape[: term.ndim] != term.shape:
            raise ValueError(
                f"Variable {info.name!r}: expected a likelihood with a term for each value, got "
                f"terms of shape {term.shape} for values of shape {there.shape}; missing values "
                "cannot be masked out of it."
            )
        there = jnp.all(there, axis=tuple(range(term.ndim, there.ndim)))
        keep = there if keep is None else keep & there
    return term if keep is None else jnp.where(keep, term, 0.0)


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
    """
    model = refuse.model_or_context(model)
    refuse.check_model(model)
    data = _covariate_variables(model, covariates)
    now = fingerprint(model, data)
    before = _compiled.setdefault(model, {}).get(tuple(covariates))
    if before is not None and before[0] == now:
        return replace(before[1], model=model)
    with compiling(), precision.scope():
        compiled = _compile(model, data)
    _compiled[model][tuple(covariates)] = now, compiled.without_model()
    return compiled


# By model, and by the names of covariates: what was compiled, and the fingerprint it was made at.
_compiled: WeakKeyDictionary[pm.Model, dict[tuple[str, ...], tuple[tuple, CompiledModel]]]
_compiled = WeakKeyDictionary()


def _compile(model: pm.Model, data: Sequence[SharedVariable]) -> CompiledModel:
    values, free = list(model.value_vars), list(model.free_RVs)
    slices = variables.value_slices(model)
    # Fresh values for the observations: the model's own have their length in their type.
    observed = {
        rv: pt.tensor(f"{rv.name}", dtype=rv.type.dtype, shape=(None,) * rv.type.ndim)
        for rv in model.observed_RVs
    }
    inputs = {var: var.type(name=var.name) for var in data}
    symbols = {**inputs, **observed}
    about = {
        **{inputs[var]: variables.describe_data(model, var) for var in data},
        **{observed[rv]: variables.describe_observed(model, rv) for rv in observed},
    }
    sized = variables.resize_observed(model, {rv: tuple(v.shape) for rv, v in observed.items()})
    fixed = variables.fixed_lengths(model, data, sized)
    lengths = variables.varying_lengths(model, symbols, fixed)
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
            raise refuse.UnsupportedModelError(
                f"The log density or the value of one of {list(names)} depends on a random draw "
                "that is not a variable of the model; give it a name (`pm.Normal(name, ...)`)."
            )
        reached = {*ancestors(bound)} - {*arguments}
        used = [symbol for symbol in symbols.values() if symbol in reached]
        call = graphs.ShapedFunction([*arguments, *used], bound)
        results = refuse.trace_or_name(call, [like[v] for v in call.inputs], names)
        return Function(call, tuple(about[symbol] for symbol in used)), results

    def gradient(term: Function, names: Sequence[str]) -> None:
        shapes = [like[v] for v in term.call.inputs]
        refuse.check_differentiable(term.call, shapes, names, len(values))

    rvs_to_values = {sized[rv]: observed.get(rv, v) for rv, v in model.rvs_to_values.items()}
    rvs_to_transforms = {sized[rv]: t for rv, t in model.rvs_to_transforms.items()}

    def densities(rvs: Sequence[Variable], *, jacobian: bool) -> list[Variable]:
        return transformed_conditional_logp(
            rvs=[sized[rv] for rv in rvs],
            rvs_to_values=rvs_to_values,
            rvs_to_transforms=rvs_to_transforms,
            jacobian=jacobian,
        )

    try:
        terms = densities([*free, *observed], jacobian=True)
    except NotImplementedError as error:
        raise refuse.UnsupportedModelError(
            f"PyMC derives no log density of one of {[rv.name for rv in model.basic_RVs]}: "
            f"{str(error).strip()} A `pm.CustomDist` needs both `logp=` and `random=`, or `dist=`."
        ) from error
    named = replace_rvs_by_values(
        [sized[var] for var in [*free, *model.deterministics]],
        rvs_to_values=rvs_to_values,
        rvs_to_transforms=rvs_to_transforms,
    )
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
    prior, _ = function(values, [term.sum() for term in terms[: len(free)]], names)
    gradient(prior, names)
    plain = [term.sum() for term in densities(free, jacobian=False)]
    constrained_prior, _ = function(values, plain, names)
    arguments, names_observed = [*values, *observed.values()], [rv.name for rv in observed]
    likelihood, by_term = function(arguments, terms[len(free) :], names_observed)
    gradient(likelihood, names_observed)
    by_step = []
    for rv in observed:
        node = sized[rv].owner
        given = replace_rvs_by_values(
            list(node.inputs), rvs_to_values=rvs_to_values, rvs_to_transforms=rvs_to_transforms
        )
        by_step.append(causal.steps(node.op, given, observed[rv]))
    steps = likelihood
    if any(step is not None for step in by_step):
        split = [
            term if step is None else step
            for term, step in zip(terms[len(free) :], by_step, strict=True)
        ]
        steps, by_term = function(arguments, split, names_observed)
    unconstrain, _ = function(list(parameters.values()), forward, names)
    return CompiledModel(
        model=model,
        dim=sum(where.size for where in slices),
        values=slices,
        free=tuple(described[: len(free)]),
        deterministics=tuple(described[len(free) :]),
        observed=tuple(about[symbol] for symbol in observed.values()),
        covariates=tuple(about[symbol] for symbol in inputs.values()),
        coords={k: np.asarray(v) for k, v in model.coords.items() if v is not None},
        data_dims=_data_dims(model, about.values()),
        _fixed=fixed,
        _log_prior=prior,
        _log_constrained_prior=constrained_prior,
        _log_likelihood=likelihood,
        _log_steps=steps,
        _term_dims={n: t.ndim for n, t in zip(names_observed, by_term, strict=True)},
        _constrain=constrain,
        _unconstrain=unconstrain,
    )


def _covariate_variables(model: pm.Model, names: Sequence[str]) -> list[SharedVariable]:
    known = {v.name: v for v in model.data_vars if isinstance(v, SharedVariable)}
    for name in names:
        if name not in known:
            raise ValueError(
                f"covariates: {name!r} is not a `pm.Data` of the model; expected some of "
                f"{sorted(known)}."
            )
        for rv in model.observed_RVs:
            if known[name] in ancestors([model.rvs_to_values[rv]]):
                raise ValueError(
                    f"covariates: {name!r} holds the observations of {rv.name!r}, which are data "
                    "anyway; leave it out."
                )
    return [known[name] for name in names]


def _data_dims(model: pm.Model, infos: Iterable[VariableInfo]) -> frozenset[str]:
    parameters = {d for rv in model.free_RVs for d in variables.dims_of(model, rv)}
    return frozenset(d for info in infos for d in info.dims if d not in parameters)
