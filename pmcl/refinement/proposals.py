"""Local proposals z = b + A v: a base distribution shifted and scaled for one dataset."""

from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import gammaln

from pmcl.search.scales import AbstractScale

_LOG_2PI = 1.8378770664093453


class Base(Protocol):
    """What a proposal bends: q(. | c) of the network, or a normal with shape parameters c."""

    @property
    def dim(self) -> int:
        """Length of z."""

    def transform(self, eps: Array, context: Array) -> tuple[Array, Array]:
        """Return u = T(eps; context) and log q(u | context)."""

    def log_prob(self, z: Array, context: Array) -> Array:
        """log q(u | context)."""


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
    """z = shift + scale v with u = loc + white v drawn from the base at `context`.

    `loc` and `white` are the base's own mean and scale: v is about standard, so the proposal lies
    where `shift` and `scale` say. None where it is standard as it is.
    """

    context: Array
    loc: Array | None
    white: AbstractScale | None
    shift: Array
    scale: AbstractScale

    def transform(self, base: Base, eps: Array) -> tuple[Array, Array]:
        """Return the reparametrised draw z and log q(z)."""
        v, log_q = base.transform(eps, self.context)
        if self.white is not None:
            assert self.loc is not None
            v, log_q = self.white.solve(v - self.loc), log_q + self.white.log_det()
        return self.shift + self.scale.multiply(v), log_q - self.scale.log_det()

    def log_prob(self, base: Base, z: Array) -> Array:
        """log q(z)."""
        v, log_det = self.scale.solve(z - self.shift), -self.scale.log_det()
        if self.white is not None:
            assert self.loc is not None
            v, log_det = self.loc + self.white.multiply(v), log_det + self.white.log_det()
        return base.log_prob(v, self.context) + log_det


class Student(eqx.Module):
    """A multivariate t at a mode: the defensive component, with tails wider than the target's."""

    shift: Array
    scale: AbstractScale
    degrees: int = eqx.field(static=True, default=5)

    def mixing(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Draw chi squared, by which normal draws are divided."""
        # squared normals: a sampler of gamma variables takes long to compile
        squares = jax.random.normal(key, (*shape, self.degrees), self.shift.dtype) ** 2
        return jnp.sum(squares, axis=-1)

    def draw(self, eps: Array, chi2: Array) -> Array:
        """Make z of standard normal `eps` and :meth:`mixing`."""
        return self.shift + self.scale.multiply(eps * jnp.sqrt(self.degrees / chi2))

    def log_prob(self, z: Array) -> Array:
        """log density."""
        v, n, d = self.scale.solve(z - self.shift), self.degrees, z.shape[0]
        constant = gammaln((n + d) / 2) - gammaln(n / 2) - 0.5 * d * jnp.log(n * jnp.pi)
        power = -0.5 * (n + d) * jnp.log1p(jnp.sum(v**2) / n)
        return constant + power - self.scale.log_det()


class Proposals(eqx.Module):
    """Places for all proposals of one dataset, in this order: as many for every dataset.

    The number of each kind is in the leading axis of its arrays. Which places hold a proposal is
    said beside it.

    Attributes
    ----------
    network : Component, optional
        The network's posterior and its alignment; None without a network.
    normal : Component
        A bent normal at every mode; then those after local steps.
    student : Student
        A t distribution at every mode; then those of population Monte Carlo.
    """

    network: Component | None
    normal: Component
    student: Student

    def draw(self, base: Base | None, which: Array, eps: Array, chi2: Array) -> Array:
        """Make draws of the proposals in the places `which`; all arrays have a leading dataset.

        Parameters
        ----------
        base : Base, optional
            Of the network's proposals.
        which : Array of int of shape (dataset, draw)
        eps : Array of shape (dataset, draw, dim)
        chi2 : Array of shape (dataset, draw)

        Returns
        -------
        Array of shape (dataset, draw, dim)
        """
        z = jnp.zeros_like(eps)
        for places, first, by in self._kinds(base, eps.shape[-1]):

            def one(part: Component | Student, eps: Array, chi2: Array, by=by) -> Array:  # noqa: ANN001
                if isinstance(part, Student):
                    return jax.vmap(part.draw)(eps, chi2)
                return jax.vmap(lambda e: part.transform(by, e)[0])(eps)

            def step(z: Array, place: tuple, one=one) -> tuple[Array, None]:  # noqa: ANN001
                part, number = place
                mine = which == number

                def drawn() -> Array:
                    new = jax.vmap(one)(part, eps, chi2).astype(z.dtype)
                    return jnp.where(mine[..., None], new, z)

                return jax.lax.cond(mine.any(), drawn, lambda: z), None

            number = first + jnp.arange(jax.tree.leaves(places)[0].shape[0])
            z, _ = jax.lax.scan(step, z, (places, number))
        return z

    def log_q(self, base: Base | None, z: Array, used: Array) -> Array:
        """Log density of the proposals in use: (dataset, place, draw), -inf for the others.

        `z` has shape (dataset, draw, dim), `used` (dataset, place). Places that no dataset uses
        cost nothing.
        """
        nothing = jnp.full(z.shape[:2], -jnp.inf, z.dtype)
        found = []
        for places, first, by in self._kinds(base, z.shape[-1]):

            def one(part: Component | Student, z: Array, by=by) -> Array:  # noqa: ANN001
                if isinstance(part, Student):
                    return jax.vmap(part.log_prob)(z)
                return jax.vmap(lambda u: part.log_prob(by, u))(z)

            def step(_: None, place: tuple, one=one) -> tuple[None, Array]:  # noqa: ANN001
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

    def _kinds(self, base: Base | None, dim: int) -> list[tuple[Any, int, Base | None]]:
        """List the kinds of places, the place in front, with the first's number and the base."""
        kinds, first = [], 0
        for part, by in (
            (self.network, base),
            (self.normal, ShapedNormal(dim)),
            (self.student, None),
        ):
            if part is not None:
                kinds.append((jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), part), first, by))
                first += part.shift.shape[1]
        return kinds


def _normal(eps: Array) -> Array:
    return -0.5 * jnp.sum(eps**2) - 0.5 * eps.shape[-1] * _LOG_2PI
