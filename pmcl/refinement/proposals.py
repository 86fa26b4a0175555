"""Proposals for one dataset: the network's posterior, bent normals z = b + A v, t distributions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from pmcl.networks import Amortizer
from pmcl.networks.amortizer import Context
from pmcl.search.scales import AbstractScale
from pmcl.search.student import Student

_LOG_2PI = 1.8378770664093453


class ShapedNormal(eqx.Module):
    """A standard normal whose margins have skewness and tails of their own; no network needed.

    The context holds skewness d and log tail weight t of each margin, zero for the normal:
    u = sinh(exp(t) (asinh(eps) + d)).

    References
    ----------
    Jones & Pewsey (2009), Sinh-arcsinh distributions, eq. 1.
    """

    dim: int = eqx.field(static=True)

    def transform(self, eps: Array, context: Array) -> tuple[Array, Array]:
        """Return u = T(eps; context) and log q(u | context)."""
        skew, tail = context[: self.dim], context[self.dim :]
        inner = jnp.exp(tail) * (jnp.arcsinh(eps) + skew)
        log_det = tail + jnp.log(jnp.cosh(inner)) - 0.5 * jnp.log1p(eps**2)
        return jnp.sinh(inner), _normal(eps) - jnp.sum(log_det)

    def log_prob(self, z: Array, context: Array) -> Array:
        """log q(u | context)."""
        skew, tail = context[: self.dim], context[self.dim :]
        inner = jnp.arcsinh(z)
        eps = jnp.sinh(jnp.exp(-tail) * inner - skew)
        log_det = tail + 0.5 * jnp.log1p(z**2) - 0.5 * jnp.log1p(eps**2)
        return _normal(eps) - jnp.sum(log_det)


class Component(eqx.Module):
    """A bent normal z = shift + scale v, v drawn with the shape parameters `context`."""

    context: Array
    shift: Array
    scale: AbstractScale

    def transform(self, eps: Array) -> tuple[Array, Array]:
        """Return the reparametrised draw z and log q(z)."""
        v, log_q = ShapedNormal(eps.shape[0]).transform(eps, self.context)
        return self.shift + self.scale.multiply(v), log_q - self.scale.log_det()

    def log_prob(self, z: Array) -> Array:
        """log q(z)."""
        v = self.scale.solve(z - self.shift)
        return ShapedNormal(z.shape[0]).log_prob(v, self.context) - self.scale.log_det()


type Kind = Context | Component | Student


class Proposals(eqx.Module):
    """Places for all proposals of one dataset, in this order: as many for every dataset.

    The number of each kind is in the leading axis of its arrays. Which places hold a proposal is
    said beside it.

    Attributes
    ----------
    network : Context, optional
        Of the network's posterior, in one place; None without a network.
    normal : Component
        A bent normal at every mode; then those after local steps.
    student : Student
        A t distribution at every mode; then those of population Monte Carlo.
    """

    network: Context | None
    normal: Component
    student: Student

    def draw(self, base: Amortizer | None, which: Array, eps: Array, chi2: Array) -> Array:
        """Make draws of the proposals in the places `which`; all arrays have a leading dataset.

        Parameters
        ----------
        base : Amortizer, optional
            The network.
        which : Array of int of shape (dataset, draw)
        eps : Array of shape (dataset, draw, dim), or longer by what a network needs
        chi2 : Array of shape (dataset, draw)

        Returns
        -------
        Array of shape (dataset, draw, dim)
        """
        z = jnp.zeros_like(eps[..., : self.student.shift.shape[-1]])

        def one(part: Kind, eps: Array, chi2: Array) -> Array:
            if isinstance(part, Context):
                assert base is not None
                return jax.vmap(lambda e: base.transform(e, part)[0])(eps)
            eps = eps[:, : part.shift.shape[0]]
            if isinstance(part, Student):
                return jax.vmap(part.draw)(eps, chi2)
            return jax.vmap(lambda e: part.transform(e)[0])(eps)

        for places, first in self._kinds():

            def step(z: Array, place: tuple) -> tuple[Array, None]:
                part, number = place
                mine = which == number

                def drawn() -> Array:
                    new = jax.vmap(one)(part, eps, chi2).astype(z.dtype)
                    return jnp.where(mine[..., None], new, z)

                return jax.lax.cond(mine.any(), drawn, lambda: z), None

            number = first + jnp.arange(jax.tree.leaves(places)[0].shape[0])
            z, _ = jax.lax.scan(step, z, (places, number))
        return z

    def log_q(self, base: Amortizer | None, z: Array, used: Array) -> Array:
        """Log density of the proposals in use: (dataset, place, draw), -inf for the others.

        `z` has shape (dataset, draw, dim), `used` (dataset, place). Places that no dataset uses
        cost nothing.
        """
        nothing = jnp.full(z.shape[:2], -jnp.inf, z.dtype)
        found = []

        def one(part: Kind, z: Array) -> Array:
            if isinstance(part, Context):
                assert base is not None
                return jax.vmap(lambda u: base.log_prob(u, part))(z)
            return jax.vmap(part.log_prob)(z)

        for places, first in self._kinds():

            def step(_: None, place: tuple) -> tuple[None, Array]:
                part, mine = place

                def density() -> Array:
                    return jnp.where(mine[:, None], jax.vmap(one)(part, z), nothing)

                return None, jax.lax.cond(
                    mine.any(), lambda: density().astype(z.dtype), lambda: nothing
                )

            number = jax.tree.leaves(places)[0].shape[0]
            _, each = jax.lax.scan(step, None, (places, used.T[first : first + number]))
            found.append(each)
        return jnp.moveaxis(jnp.concatenate(found), 0, 1)

    def _kinds(self) -> list[tuple[Any, int]]:
        """List the kinds of places, the place in front, with the first's number."""
        kinds, first = [], 0
        for part in (self.network, self.normal, self.student):
            if part is not None:
                places = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), part)
                kinds.append((places, first))
                first += jax.tree.leaves(places)[0].shape[0]
        return kinds


def _normal(eps: Array) -> Array:
    return -0.5 * jnp.sum(eps**2) - 0.5 * eps.shape[-1] * _LOG_2PI
