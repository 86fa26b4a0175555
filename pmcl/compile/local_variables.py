"""Local variables of a model, one value a row: apart from the parameters, as if they were data.

Given the parameters and its local variables, a row is independent of the others. So the local
variables are observed here, which makes their log prior a term of each row beside its likelihood;
what their values are is for somebody else to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from jax import Array
from pymc.distributions.transforms import CircularTransform
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pmcl.compile import variables
from pmcl.compile.conversion import graphs
from pmcl.compile.labelled import initial_values, set_initial_values, without_initial_values
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import ValueSlice


@dataclass(frozen=True, eq=False)
class LocalVariables:
    """Where local variables lie in u, the unconstrained vector of one row, and the way to them.

    Attributes
    ----------
    parts : tuple of ValueSlice
        With the shape of one row's unconstrained value.
    """

    parts: tuple[ValueSlice, ...]
    _backward: graphs.ShapedFunction = field(repr=False)
    _log_jacobian: graphs.ShapedFunction = field(repr=False)
    _forward: graphs.ShapedFunction = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables."""
        return tuple(p.variable for p in self.parts)

    @property
    def size(self) -> int:
        """Length of u."""
        return sum(p.size for p in self.parts)

    def constrain(self, u: Array) -> dict[str, Array]:
        """Values of the variables by name, from u of shape (row, size)."""
        return dict(zip(self.names, self._backward(*self._split(u)), strict=True))

    def log_jacobian(self, u: Array) -> Array:
        """Log determinant of the variables by u (nats, shape (row,))."""
        terms = self._log_jacobian(*self._split(u))
        return sum((t.reshape(len(u), -1).sum(axis=1) for t in terms), start=jnp.zeros(len(u)))

    def unconstrain(self, values: Mapping[str, Array] | Mapping[str, np.ndarray]) -> Array:
        """Return u of shape (row, size) of values by name."""
        found = self._forward(*(graphs.as_input(values[n], "float64") for n in self.names))
        return jnp.concatenate([v.reshape(len(v), -1) for v in found], axis=1)

    def _split(self, u: Array) -> list[Array]:
        u = graphs.as_input(u, "float64")
        return [u[:, p.start : p.start + p.size].reshape(len(u), *p.shape) for p in self.parts]


def separate(model: pm.Model, names: Sequence[str]) -> tuple[pm.Model, LocalVariables]:
    """Return the model with local variables observed, and the local variables.

    Parameters
    ----------
    model : pymc.Model
    names : sequence of str
        Free variables whose first dim is that of the rows.

    Raises
    ------
    ValueError
        If there is no such free variable.
    UnsupportedModelError
        If one is discrete, if its transform depends on other variables, or if another free variable
        has a value a row, too.
    """
    free = {rv.name: rv for rv in model.free_RVs}
    if len({*names}) < len(names):
        raise ValueError(f"local: expected every name once, got {list(names)}.")
    unknown = [n for n in names if n not in free]
    if unknown or not names:
        raise ValueError(f"local: expected names of free variables, {[*free]}, got {list(names)}.")
    rows = {n: variables.dims_of(model, free[n])[:1] for n in names}
    row = rows[names[0]]
    for name, dims in rows.items():
        if not dims or dims != row:
            raise ValueError(
                f"local: expected the first dim of {name!r} to be that of the rows, {row}, got "
                f"dims {variables.dims_of(model, free[name])}."
            )
    if model.named_vars_to_dims.get(names[0], (None,))[0] is None:
        raise ValueError(
            f"local: expected {names[0]!r} to name the dim of the rows, which the observed "
            f'variables have too: `dims=("row", ...)`. It has no dims.'
        )
    for name, rv in free.items():
        if name not in names and row[0] in variables.dims_of(model, rv):
            raise UnsupportedModelError(
                f"Variable {name!r}: expected no values along {row[0]!r}, the dim of the rows, but "
                f"for {list(names)}. Is it local too? Then name it: local={[*names, name]}."
            )
    lengths = {v.name: v for v in variables.value_slices(model)}
    parts: list[ValueSlice] = []
    inputs, backward, jacobians, values, forward = [], [], [], [], []
    for name in names:
        rv = free[name]
        if rv.type.dtype.startswith(("int", "uint", "bool")):
            raise UnsupportedModelError(
                f"Variable {name!r}: expected a continuous local variable, got {rv.type.dtype}; "
                "sum it out (pymc_extras.marginalize), or write a mixture."
            )
        value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
        shape = lengths[value.name].shape[1:]
        start = sum(p.size for p in parts)
        parts.append(ValueSlice(value.name, name, start, shape))
        u = pt.TensorType("float64", (None, *shape))(f"u of {name}")
        x = pt.TensorType("float64", (None, *rv.type.shape[1:]))(name)
        inputs.append(u)
        values.append(x)
        if transform is None:
            backward.append(u)
            jacobians.append(pt.zeros_like(u))
            forward.append(x)
            continue
        if isinstance(transform, CircularTransform):
            raise UnsupportedModelError(
                f"Variable {name!r}: a circular variable is no one-to-one map of an unconstrained "
                "one, and no normal tells it. Use two normals as a direction, or a Uniform."
            )
        given = rv.owner.inputs
        made = [
            transform.backward(u, *given),
            transform.log_jac_det(u, *given),
            transform.forward(x, *given),
        ]
        # The data would be those of the model, and not a batch's.
        others = {*ancestors(made)} & {*model.basic_RVs, *model.data_vars}
        if others or _by_row(u, made[0]):
            on = sorted(str(v.name) for v in others) or "a constant with a value a row"
            raise UnsupportedModelError(
                f"Variable {name!r}: expected a transform that depends on nothing, but its bounds "
                f"depend on {on}. Write it as a standard variable that is scaled."
            )
        for found, one in zip((backward, jacobians, forward), made, strict=True):
            found.append(one)
    placeholders = {n: np.zeros(_shape(free[n]), free[n].type.dtype) for n in names}
    observed = pm.observe(without_initial_values(model), placeholders)
    set_initial_values(observed, initial_values(model))
    local = LocalVariables(
        tuple(parts),
        _function(inputs, backward),
        _function(inputs, jacobians),
        _function(values, forward),
    )
    return observed, local


def _shape(rv: Variable) -> tuple[int, ...]:
    lengths = pytensor.function([], rv.shape, mode=graphs.host_mode())()
    return tuple(map(int, lengths))


def _by_row(u: Variable, made: Variable) -> bool:
    """Whether a transform takes no other number of rows than the model has."""
    like = jax.ShapeDtypeStruct((7, *u.type.shape[1:]), "float64")
    try:
        jax.eval_shape(_function([u], [made]), like)
    except (TypeError, ValueError, AssertionError):
        return True
    return False


def _function(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> graphs.ShapedFunction:
    return graphs.ShapedFunction(inputs, graphs.bind(outputs, {})[0])
