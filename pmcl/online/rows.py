"""The likelihood of every row of a batch: what is weighted, remembered and forgotten."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from pmcl.compile import CompiledModel, UnsupportedModelError

type Data = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Rows:
    """Log likelihoods of the rows of a batch, as functions of z.

    Attributes
    ----------
    compiled : CompiledModel
    row : str
        The dim along which data arrive.

    Raises
    ------
    UnsupportedModelError
        If the likelihood of an observed variable has no term for each row.
    """

    compiled: CompiledModel
    row: str

    def __post_init__(self) -> None:
        for info in self.compiled.observed:
            terms = info.dims[: self.compiled.term_dims(info.name)]
            if self.row not in terms:
                raise UnsupportedModelError(
                    f"Variable {info.name!r}: expected a likelihood with a term for each row along "
                    f"dim {self.row!r}, got terms along {list(terms)}. Data can only arrive row by "
                    "row where rows are independent given the parameters."
                )

    def axis(self, name: str) -> int | None:
        """Where a variable of the data has its rows; None where all rows share it."""
        dims = next(info.dims for info in self.compiled.data if info.name == name)
        return dims.index(self.row) if self.row in dims else None

    def __call__(self, z: Array, data: Data) -> Array:
        """Log likelihood of every row (nats, shape (row,))."""
        terms = self.compiled.log_likelihood_terms(z, data)
        parts = [jnp.moveaxis(term, self.axis(name) or 0, 0) for name, term in terms.items()]
        return sum(
            (part.reshape(part.shape[0], -1).sum(axis=1) for part in parts),
            start=jnp.zeros((), z.dtype),
        )

    def slopes(self, z: Array, data: Data) -> tuple[Array, Array]:
        """Log likelihood of every row and its gradient, shapes (row,) and (row, dim)."""
        axes = {name: self.axis(name) for name in data}

        def one(z: Array, datum: Data) -> Array:
            kept = {}
            for name, value in datum.items():
                axis = axes[name]
                kept[name] = value if axis is None else jnp.expand_dims(value, axis)
            return self(z, kept)[0]

        return jax.vmap(jax.value_and_grad(one), in_axes=(None, axes))(z, dict(data))
