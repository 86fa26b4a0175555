"""The unnormalised log posterior of one dataset, as networks and refinement use it."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from pmcl.compile.mask import Mask
from pmcl.compile.model import CompiledModel, Parameters


class Density(eqx.Module):
    """log p(z) + log p(x | z) of one dataset, padding and missing values left out."""

    compiled: CompiledModel = eqx.field(static=True)
    row: str | None = eqx.field(static=True)

    @property
    def dim(self) -> int:
        """Length of z."""
        return self.compiled.dim

    def parts(self, z: Array, data: dict[str, Array], mask: Mask | None) -> tuple[Array, Array]:
        """log p(z) and log p(x | z) at draws: z of shape (draw, dim), values of shape (draw,)."""
        log_likelihood = partial(self.compiled.log_likelihood, mask=mask, dim=self.row)
        return (
            jax.vmap(lambda u: self.compiled.log_prior(u, data))(z),
            jax.vmap(lambda u: log_likelihood(u, data))(z),
        )

    def __call__(self, z: Array, data: dict[str, Array], mask: Mask | None) -> Array:
        return self.compiled.log_joint(z, data, mask=mask, dim=self.row)

    def elements(self, z: Parameters, data: dict[str, Array], mask: Mask | None) -> Array:
        """Terms of the density, of shape (element,): those of priors, then those of likelihoods."""
        terms = self.compiled.log_elements(z, data, mask=mask, dim=self.row)
        return jnp.concatenate([jnp.ravel(t) for t in terms])
