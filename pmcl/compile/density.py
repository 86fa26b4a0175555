"""The unnormalised log posterior of one dataset, as networks and refinement use it."""

import equinox as eqx
from jax import Array

from pmcl.compile.mask import Mask
from pmcl.compile.model import CompiledModel


class Density(eqx.Module):
    """log p(z) + log p(x | z) of one dataset, padding and missing values left out."""

    compiled: CompiledModel = eqx.field(static=True)
    row: str | None = eqx.field(static=True)

    def __call__(self, z: Array, data: dict[str, Array], mask: Mask | None) -> Array:
        return self.compiled.log_joint(z, data, mask=mask, dim=self.row)
