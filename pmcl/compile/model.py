"""A PyMC model as pure JAX functions of the unconstrained vector z and the data."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from jax import Array
from pytensor.graph.traversal import ancestors

from pmcl.compile.bases import Bases
from pmcl.compile.conversion import graphs
from pmcl.compile.copies import Copy
from pmcl.compile.function import Dataset, Function, before_sums, read
from pmcl.compile.indices import Indices
from pmcl.compile.mask import Mask
from pmcl.compile.support import Support
from pmcl.compile.variables import ValueSlice, VariableInfo, initial_point, one_after_another

type Parameters = Array | list[Array]  # z of shape (dim,), or split into value variables


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
    potentials : tuple of VariableInfo
        Terms of the likelihood: they hold data, or nothing is observed. Others are the prior's.
    implicit : tuple of str
        Observed variables that can only be simulated: their likelihood is NaN.
    improper, unnormalised : tuple of str
        Free variables whose prior has no finite integral, and others where it is not one.
    indices : Indices
        Where data index something.
    bases : Bases
        Functions of data that are of use for some values only.
    support : Support
        Which values the observed variables can have.
    copies : tuple of Copy
        Observed values that are also constants of the likelihood.
    holders : dict of str to str
        The `pm.Data` that hold observations, and the observed variables.
    counted : dict of str to str
        Dims of observations whose length is in a prior, and of which variable.
    constants : dict of str to array
        Any other `pm.Data` that are no covariates, with the values that were compiled.
    joined : str
        Which axes without dims are read as one, in words.
    kept : dict
        What was compiled of the model elsewhere; two of these are equal where they share it.
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
    potentials: tuple[VariableInfo, ...]
    implicit: tuple[str, ...]
    improper: tuple[str, ...]
    _prior_names: tuple[str, ...] = field(repr=False)
    _fixed: dict[str, int] = field(repr=False)
    _log_prior: Function = field(repr=False)
    _log_constrained_prior: Function = field(repr=False)
    _log_likelihood: Function = field(repr=False)
    _log_potentials: Function = field(repr=False)
    _log_steps: Function = field(repr=False)
    _term_dims: dict[str, int] = field(repr=False)
    _constrain: Function = field(repr=False)
    _unconstrain: Function = field(repr=False)
    indices: Indices = field(repr=False)
    bases: Bases = field(repr=False)
    support: Support = field(repr=False)
    copies: tuple[Copy, ...] = field(repr=False)
    holders: Mapping[str, str] = field(repr=False, default_factory=dict)
    counted: Mapping[str, str] = field(repr=False, default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    joined: str = ""
    unnormalised: tuple[str, ...] = ()
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

    def keep_few[T](self, kind: str, key: Hashable, make: Callable[[], T], *, most: int) -> T:
        """Do the same, of a kind of which `most` are kept: the one not used for longest goes."""
        few: dict[Hashable, T] = self.keep(("few", kind), dict)
        found = few[key] = few.pop(key) if key in few else make()
        for old in [*few][:-most]:
            del few[old]
        return found

    @property
    def initial(self) -> np.ndarray:
        """PyMC's initial point as z of shape (dim,), made once."""
        return self.keep("initial point", lambda: initial_point(self.model))

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

    @property
    def shared_dims(self) -> list[str]:
        """Dims of all observed variables whose length may differ from the model's.

        Sorted by name; those last along which a draw of one (a vector, shares) lies.
        """
        dims = [{*i.dims} & self.data_dims for i in self.observed]
        within = {d for i in self.observed for d in i.dims[self.term_dims(i.name) :]}
        return sorted(set.intersection(*dims), key=lambda d: (d in within, d)) if dims else []

    def split(self, z: Parameters) -> list[Array]:
        """Split z of shape (dim,) into the model's value variables, in their order.

        A list is taken to be split.

        Raises
        ------
        ValueError
            Where z has another shape.
        """
        if isinstance(z, list):
            return z
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
        """Log prior density of every free variable (nats, shape () each, Jacobian included).

        And every Potential that is no term of the likelihood.
        """
        terms = self._run(self._log_prior, self.split(z), covariates)
        return dict(zip(self._prior_names, terms, strict=True))

    def log_constrained_prior_terms(
        self, z: Array, covariates: Dataset | None = None
    ) -> dict[str, Array]:
        """Log prior density of every free variable as the model states it: without Jacobian."""
        terms = self._run(self._log_constrained_prior, self.split(z), covariates)
        return dict(zip(self._prior_names, terms, strict=True))

    def log_prior(self, z: Array, covariates: Dataset | None = None) -> Array:
        """Log prior density of z, Jacobian of the transforms included (nats, shape ())."""
        return sum(self.log_prior_terms(z, covariates).values(), start=jnp.zeros(()))

    def log_likelihood_terms(
        self, z: Parameters, dataset: Dataset, *, mask: Mask | None = None, dim: str | None = None
    ) -> dict[str, Array]:
        """Log likelihood of every observed variable: one term a value where PyMC has them.

        What is padding along `dim` has terms of its own, if there is one a row; the one term of a
        series is that of the steps that the mask leaves.
        """
        # Observations and covariates are read together, to compare their lengths.
        observed = self._read([*self.observed, *self._log_likelihood.data], dataset)
        if self.implicit:  # NaN is the sum of what is known and what is not
            return {info.name: jnp.full((), jnp.nan) for info in self.observed}
        terms = self._log_likelihood.call(*self.split(z), *observed)
        found = {info.name: term for info, term in zip(self.observed, terms, strict=True)}
        if mask is None or mask.rows is None or not self.has_series:
            return found
        for info, step in zip(self.observed, self._steps(z, dataset), strict=True):
            first = found[info.name].ndim
            if step.ndim > first:
                kept = Mask(mask.rows).kept(info, step, dim)
                found[info.name] = jnp.sum(kept, axis=tuple(range(first, kept.ndim)))
        return found

    def _steps(self, z: Parameters, dataset: Dataset) -> Sequence[Array]:
        """Log likelihood of every observed variable by the steps of a series, else by its terms."""
        observed = self._read([*self.observed, *self._log_steps.data], dataset)
        return self._log_steps.call(*self.split(z), *observed)

    @property
    def has_series(self) -> bool:
        """Whether an observed variable's one term is a sum over steps, which are known."""
        return self._log_steps is not self._log_likelihood

    def log_potential_terms(self, z: Parameters, dataset: Dataset) -> dict[str, Array]:
        """Every Potential that is a term of the likelihood (nats), in its own shape."""
        terms = self._run(self._log_potentials, self.split(z), dataset)
        return {info.name: term for info, term in zip(self.potentials, terms, strict=True)}

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
        terms = self._likelihood_elements(z, dataset, mask, dim)
        return sum(map(jnp.sum, terms), start=jnp.zeros(()))

    def _likelihood_elements(
        self, z: Parameters, dataset: Dataset, mask: Mask | None, dim: str | None
    ) -> list[Array]:
        potentials = self.log_potential_terms(z, dataset) if self.potentials else {}
        if mask is None or self.implicit:
            return [*self.log_likelihood_terms(z, dataset).values(), *potentials.values()]
        found = (*self._steps(z, dataset), *potentials.values())
        pairs = zip((*self.observed, *self.potentials), found, strict=True)
        return [mask.kept(info, term, dim) for info, term in pairs]

    def log_prior_elements(
        self, z: Parameters, covariates: Dataset | None = None, *, constrained: bool = False
    ) -> dict[str, Array]:
        """Log prior density of every free variable, by its elements where PyMC has a term each.

        `constrained`: as the model states it, without Jacobian.
        """
        elements = self._log_constrained_elements if constrained else self._log_prior_elements
        terms = self._run(elements, self.split(z), covariates)
        return dict(zip(self._prior_names, terms, strict=True))

    def log_elements(
        self, z: Parameters, dataset: Dataset, *, mask: Mask | None = None, dim: str | None = None
    ) -> list[Array]:
        """Elements of all free variables' priors, then of all likelihoods, whose sum is the joint.

        Parameters are those of :meth:`log_likelihood`.
        """
        prior = self.log_prior_elements(z, dataset).values()
        return [*prior, *self._likelihood_elements(z, dataset, mask, dim)]

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

    @cached_property
    def _log_prior_elements(self) -> Function:
        """The log prior before it is summed."""
        return before_sums(self._log_prior)

    @cached_property
    def _log_constrained_elements(self) -> Function:
        return before_sums(self._log_constrained_prior)

    @property
    def needed_to_unconstrain(self) -> tuple[str, ...]:
        """Names of the data that :meth:`unconstrain` depends on."""
        return tuple(info.name for info in self._unconstrain.data)

    def unconstrain(self, parameters: Dataset, covariates: Dataset | None = None) -> Array:
        """Return z of shape (dim,) of the free variables' values by name.

        Raises
        ------
        ValueError
            Naming a variable without a value, or with one of another shape.
        """
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
        return read(infos, {} if data is None else data, self._fixed)


# By model, and by the names of covariates: what was compiled, and the fingerprint it was made at.
COMPILED: WeakKeyDictionary[pm.Model, dict[tuple[str, ...], tuple[tuple, CompiledModel]]]
COMPILED = WeakKeyDictionary()
