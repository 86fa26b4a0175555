"""The likelihood of every row of a batch: what is weighted, remembered and forgotten."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax import Array

from pmcl.compile import CompiledModel, UnsupportedModelError

type Rows = Callable[[Array, Mapping[str, Array]], Array]


def row_likelihood(compiled: CompiledModel, row: str) -> Rows:
    """Make the function of z and a batch that gives the log likelihood of each of its rows.

    Parameters
    ----------
    compiled : CompiledModel
    row : str
        The dim along which data arrive.

    Raises
    ------
    UnsupportedModelError
        If the likelihood of an observed variable has no term for each row.
    """
    axes = {}
    for info in compiled.observed:
        terms = info.dims[: compiled.term_dims(info.name)]
        if row not in terms:
            raise UnsupportedModelError(
                f"Variable {info.name!r}: expected a likelihood with a term for each row along dim "
                f"{row!r}, got terms along {list(terms)}. Data can only arrive row by row where "
                "rows are independent given the parameters."
            )
        axes[info.name] = terms.index(row)

    def rows(z: Array, batch: Mapping[str, Array]) -> Array:
        found = compiled.log_likelihood_terms(z, batch)
        parts = [jnp.moveaxis(term, axes[name], 0) for name, term in found.items()]
        total = jnp.zeros(parts[0].shape[0], parts[0].dtype)
        for part in parts:
            total = total + part.reshape(part.shape[0], -1).sum(axis=1)
        return total

    return rows
