"""Local proposals z = b + A v: a base distribution shifted and scaled for one dataset."""

from abc import abstractmethod
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln, logsumexp

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


class AbstractScale(eqx.Module):
    """An invertible matrix A, and the ways a proposal uses it."""

    @abstractmethod
    def multiply(self, v: Array) -> Array:
        """A v for v of shape (dim,)."""

    @abstractmethod
    def solve(self, x: Array) -> Array:
        """A^-1 x for x of shape (dim,)."""

    @abstractmethod
    def log_det(self) -> Array:
        """log |det A|."""

    @abstractmethod
    def neutral(self) -> tuple[Array, ...]:
        """Parameters at which `adjust` changes nothing."""

    @abstractmethod
    def adjust(self, by: tuple[Array, ...]) -> "AbstractScale":
        """Return A changed by parameters that are of order one, whatever the size of A."""


class Dense(AbstractScale):
    """A lower triangular matrix, kept with its inverse."""

    lower: Array
    inverse: Array

    @classmethod
    def of(cls, lower: Array) -> "Dense":
        """Invert once: the matrix is used for many draws."""
        eye = jnp.eye(lower.shape[0], dtype=lower.dtype)
        return cls(lower, solve_triangular(lower, eye, lower=True))

    def multiply(self, v: Array) -> Array:
        """A v."""
        return self.lower @ v

    def solve(self, x: Array) -> Array:
        """A^-1 x."""
        return self.inverse @ x

    def log_det(self) -> Array:
        """log |det A|."""
        return jnp.sum(jnp.log(jnp.diagonal(self.lower)))

    def neutral(self) -> tuple[Array, ...]:
        """Return zeros."""
        return (jnp.zeros_like(self.lower),)

    def adjust(self, by: tuple[Array, ...]) -> "Dense":
        """A T with T lower triangular, its diagonal in logs."""
        return Dense.of(self.lower @ _triangular(by[0]))


class LowRank(AbstractScale):
    """diag(d) (I + Q (C - I) Q'): Q (dim, k) orthonormal, C (k, k) lower triangular."""

    diagonal: Array
    directions: Array
    core: Array

    @classmethod
    def diag(cls, diagonal: Array) -> "LowRank":
        """A diagonal matrix."""
        return cls(diagonal, jnp.zeros((diagonal.shape[0], 0)), jnp.zeros((0, 0)))

    def multiply(self, v: Array) -> Array:
        """A v."""
        along = self.directions.T @ v
        return self.diagonal * (v + self.directions @ (self.core @ along - along))

    def solve(self, x: Array) -> Array:
        """A^-1 x."""
        v = x / self.diagonal
        along = self.directions.T @ v
        inner = solve_triangular(self.core, along, lower=True) if along.size else along
        return v + self.directions @ (inner - along)

    def log_det(self) -> Array:
        """log |det A|."""
        return jnp.sum(jnp.log(self.diagonal)) + jnp.sum(jnp.log(jnp.diagonal(self.core)))

    def neutral(self) -> tuple[Array, ...]:
        """Return zeros."""
        return jnp.zeros_like(self.diagonal), jnp.zeros_like(self.core)

    def adjust(self, by: tuple[Array, ...]) -> "LowRank":
        """Scale the diagonal, and C as a dense matrix."""
        return LowRank(
            self.diagonal * jnp.exp(by[0]), self.directions, self.core @ _triangular(by[1])
        )


class Component(eqx.Module):
    """z = shift + scale v with u = loc + white v drawn from the base at `context`.

    `loc` and `white` are the base's own mean and scale: v is about standard, so the proposal lies
    where `shift` and `scale` say.
    """

    context: Array
    loc: Array
    white: AbstractScale
    shift: Array
    scale: AbstractScale

    def transform(self, base: Base, eps: Array) -> tuple[Array, Array]:
        """Return the reparametrised draw z and log q(z)."""
        u, log_q = base.transform(eps, self.context)
        z = self.shift + self.scale.multiply(self.white.solve(u - self.loc))
        return z, log_q + self.white.log_det() - self.scale.log_det()

    def log_prob(self, base: Base, z: Array) -> Array:
        """log q(z)."""
        u = self.loc + self.white.multiply(self.scale.solve(z - self.shift))
        log_q = base.log_prob(u, self.context)
        return log_q + self.white.log_det() - self.scale.log_det()


class Student(eqx.Module):
    """A multivariate t at a mode: the defensive component, with tails wider than the target's."""

    shift: Array
    scale: AbstractScale
    degrees: float = eqx.field(static=True, default=5.0)

    def draw(self, eps: Array, key: Array) -> Array:
        """Make z of standard normal `eps`."""
        chi2 = 2.0 * jax.random.gamma(key, self.degrees / 2.0, dtype=self.shift.dtype)
        return self.shift + self.scale.multiply(eps * jnp.sqrt(self.degrees / chi2))

    def log_prob(self, z: Array) -> Array:
        """log density."""
        v, n, d = self.scale.solve(z - self.shift), self.degrees, z.shape[0]
        constant = gammaln((n + d) / 2) - gammaln(n / 2) - 0.5 * d * jnp.log(n * jnp.pi)
        power = -0.5 * (n + d) * jnp.log1p(jnp.sum(v**2) / n)
        return constant + power - self.scale.log_det()


class Pool(eqx.Module):
    """All proposals of one dataset: components (stacked) by their base, in this order.

    The number of each kind is in the leading axis of its arrays; a kind that is not there is None.
    """

    network: Component | None
    normal: Component | None
    student: Student | None

    def draw(self, base: Base | None, key: Array, n: int, dim: int) -> Array:
        """`n` draws of every component: z of shape (components, n, dim)."""
        keys = jax.random.split(key, 3)
        found = []
        for part, by, k in ((self.network, base, 0), (self.normal, ShapedNormal(dim), 1)):
            if part is not None and by is not None:
                m = part.shift.shape[0]
                eps = jax.random.normal(keys[k], (m, n, dim), jnp.float64)
                found.append(_many(by, part, eps))
        if self.student is not None:
            m = self.student.shift.shape[0]
            eps = jax.random.normal(keys[2], (m, n, dim), jnp.float64)
            mixing = jax.random.split(jax.random.fold_in(key, 1), (m, n))
            found.append(
                jax.vmap(lambda s, e, k: jax.vmap(s.draw)(e, k))(self.student, eps, mixing)
            )
        return jnp.concatenate(found)

    def log_q(self, base: Base | None, z: Array) -> Array:
        """Log density of every component at z of shape (n, dim): (components, n)."""
        found = []
        for part, by in ((self.network, base), (self.normal, ShapedNormal(z.shape[1]))):
            if part is not None and by is not None:
                found.append(_densities(by, part, z))
        if self.student is not None:
            found.append(jax.vmap(lambda s: jax.vmap(s.log_prob)(z))(self.student))
        return jnp.concatenate([f.astype(jnp.float64) for f in found])


def mixture_log_q(log_q: Array, weights: Array) -> Array:
    """log sum_k weights_k q_k(z) for `log_q` of shape (components, n)."""
    safe = jnp.where(jnp.isfinite(log_q), log_q, -jnp.inf)
    return logsumexp(safe, axis=0, b=weights[:, None])


def identity(context: Array, dim: int, *, dense: bool) -> Component:
    """Return the component that is the base itself."""
    zero, one = jnp.zeros(dim), jnp.ones(dim)
    eye = Dense.of(jnp.diag(one)) if dense else LowRank.diag(one)
    return Component(context, zero, eye, zero, eye)


def _many(base: Base, part: Component, eps: Array) -> Array:
    def one(component: Component, eps: Array) -> Array:
        return jax.vmap(lambda e: component.transform(base, e)[0])(eps)

    return jax.vmap(one)(part, eps).astype(jnp.float64)


def _densities(base: Base, part: Component, z: Array) -> Array:
    def one(component: Component) -> Array:
        return jax.vmap(lambda u: component.log_prob(base, u))(z)

    return jax.vmap(one)(part)


def _triangular(by: Array) -> Array:
    return jnp.tril(by, -1) + jnp.diag(jnp.exp(jnp.diagonal(by)))


def _normal(eps: Array) -> Array:
    return -0.5 * jnp.sum(eps**2) - 0.5 * eps.shape[-1] * _LOG_2PI
