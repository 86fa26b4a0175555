"""One dataset: its density by groups, their modes, integrals and draws given global parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from pmcl.compile import Density, Mask
from pmcl.levels.blocks import Factor
from pmcl.levels.climb import TOL, Peak, climb, newton_step
from pmcl.levels.points import grid
from pmcl.levels.proposals import log_density, spread, standardised
from pmcl.levels.structure import KEY, Anchor, Split

_LOG_2PI = float(np.log(2 * np.pi))
_BY_NODES = 2  # parameters of a group up to which quadrature is used, where it is not exact
_NODES = 5  # of each parameter
_EXACT_NODES = 3  # integrate what second derivatives of a quadratic density need
_FOR_PRIOR = 8  # one in so many proposals is about the prior's mode, where there may be others
_NEAR = 1e-2  # nats that a last step gains where proposals are made, whose weights mend the rest
_NEAR_BLOCK = 0.1  # by many parameters together
_APART = 1e-6  # relative difference from a quadratic density that rounding does not make
_DIGITS = 1e-14  # of a double


def parts_of(
    density: Density,
    data: dict[str, Any],
    mask: Mask | None,
    split: Split,
    z: Array | list[Array],
) -> tuple[Array, Array]:
    """log p(g, x_0), and f_j of shape (group,); they sum to the density."""
    groups = split.groups
    elements = density.elements(z, data, mask)
    total = jax.ops.segment_sum(elements, split.owner, groups + 1)
    return total[groups], total[:groups]


def sums(
    density: Density, data: dict[str, Any], mask: Mask | None, split: Split, z: Array
) -> tuple[Array, Array]:
    """Log prior and log likelihood, without groups that are padding."""
    terms = density.compiled.log_prior_elements(z, data).values()
    prior = sum(t.size for t in terms)
    elements = density.elements(z, data, mask)
    elements = jnp.where(split.owner <= split.groups, elements, 0.0)
    scale = 0.0 if split.known is None else split.known.log_jacobian
    return jnp.sum(elements[:prior]) - scale, jnp.sum(elements[prior:])


class _Marginal(Protocol):
    """What is the same for all datasets; see :class:`pmcl.levels.integrals.Marginal`."""

    density: Density
    shared: int
    exact: bool
    concave: bool
    places: tuple[int, ...]


class OneDataset(NamedTuple):
    """One dataset, and the functions of it that follow from its parts."""

    marginal: _Marginal
    data: dict[str, Any]
    mask: Mask | None

    @property
    def split(self) -> Split:
        return self.data[KEY].split

    @property
    def near(self) -> float:
        """Nats that a last step gains where proposals are made."""
        return _NEAR_BLOCK if self.split.block else _NEAR

    @property
    def nodes(self) -> int:
        """Places at which a group's integral needs its density."""
        return _NODES**self.split.width if self.by_quadrature else 1

    @property
    def by_quadrature(self) -> bool:
        """Whether groups are integrated by quadrature, and not as the normals at their modes."""
        return self.split.width <= _BY_NODES and not self.marginal.exact

    def whole(self, g: Array, l: Array) -> Array:  # noqa: E741
        """z of its parts, and of what is known."""
        z, known = jnp.concatenate([g, l.ravel()])[self.split.place], self.split.known
        return z if known is None else jnp.where(jnp.isnan(known.z), z, known.z)

    def values(self, g: Array, l: Array) -> list[Array]:  # noqa: E741
        """The same by value variables: what depends on g alone has no derivative by l."""
        z, marginal = self.whole(g, l), self.marginal
        compiled = marginal.density.compiled
        found = compiled.split(z)
        if self.split.known is not None:
            return found
        for i, (v, place) in enumerate(zip(compiled.values, marginal.places, strict=True)):
            if place >= 0:
                found[i] = g[place : place + v.size].reshape(v.shape)
        return found

    def separated(self, z: Array) -> tuple[Array, Array]:
        """Global and local parameters of z; what is padding is zero."""
        real = self.split.real
        found = jnp.zeros(self.marginal.shared + real.size).at[self.split.place].set(z)
        return found[: self.marginal.shared], found[self.marginal.shared :].reshape(real.shape)

    def beside(self, g: Array) -> Array:
        """What known parameters add to log p(g, x_0): normals in the places of global ones."""
        known = self.split.known
        if known is None:
            return jnp.zeros(())
        there = jnp.zeros(g.shape, bool).at[self.split.place].set(~jnp.isnan(known.z), mode="drop")
        return jnp.sum(jnp.where(there, -0.5 * (g**2 + _LOG_2PI), 0.0)) - known.log_jacobian

    def parts(self, g: Array, l: Array) -> tuple[Array, Array]:  # noqa: E741
        """log p(g, x_0), and f_j of every group; what is padding is standard normal."""
        density, z = self.marginal.density, self.values(g, l)
        rest, value = parts_of(density, self.data, self.mask, self.split, z)
        normal = jnp.where(self.split.real, 0.0, -0.5 * (l**2 + _LOG_2PI))
        return rest + self.beside(g), value + jnp.sum(normal, axis=0)

    def prior_alone(self, g: Array, l: Array) -> tuple[Array, Array]:  # noqa: E741
        """The same without the rows."""
        z, groups = self.values(g, l), self.split.groups
        compiled = self.marginal.density.compiled
        terms = [jnp.ravel(t) for t in compiled.log_prior_elements(z, self.data).values()]
        elements = jnp.concatenate(terms)
        total = jax.ops.segment_sum(elements, self.split.owner[: len(elements)], groups + 1)
        normal = jnp.where(self.split.real, 0.0, -0.5 * (l**2 + _LOG_2PI))
        return total[groups], total[:groups] + jnp.sum(normal, axis=0)

    def log_density(self, g: Array) -> Array:
        """log p(g, x_0) + sum_j log Z_j(g), whose derivatives are those of the integrals."""
        peak = jax.lax.stop_gradient(self.peak(g))
        width = self.split.width
        if width > _BY_NODES:
            rest, value = self.laplace(g, peak)
        else:
            nodes = _EXACT_NODES if self.marginal.exact else _NODES
            rest, value = self.by_nodes(g, peak, nodes)
        return rest + jnp.sum(value)

    def integrated(self, g: Array) -> tuple[Array, Array]:
        """log p(g, x_0) and sum_j log Z_j(g), without derivatives."""
        peak = self.peak(g)
        if self.by_quadrature:
            rest, value = self.by_nodes(g, peak, _NODES)
            return rest, jnp.sum(value)
        rest, _ = self.parts(g, peak.l)
        value = peak.value - peak.factor.log_det() + 0.5 * len(peak.l) * _LOG_2PI
        return rest, jnp.sum(value)

    def by_nodes(self, g: Array, peak: Peak, number: int) -> tuple[Array, Array]:
        """Integrals by adaptive Gauss-Hermite quadrature.

        The nodes do not move with g: derivatives are averages over them, as those of an integral
        are, and need no more of f than their own order.

        References
        ----------
        Naylor & Smith (1982), Applications of a method for the efficient computation of posterior
        distributions.
        """
        x, log_w = grid(number, len(peak.l))

        def at(node: Array) -> tuple[Array, Array]:
            l = peak.l + peak.factor.solve_transposed(node[:, None] + jnp.zeros_like(peak.l))  # noqa: E741
            return self.parts(g, l)

        rest, value = jax.vmap(at)(x)
        value = value + (log_w + 0.5 * jnp.sum(x**2, axis=1))[:, None]
        return rest[0], log_sum(value) - peak.factor.log_det()

    def laplace(self, g: Array, peak: Peak) -> tuple[Array, Array]:
        """Integrals of the normals at the modes, which move with g: exact for normal groups.

        Two steps by one curvature follow the modes up to their second derivatives.
        """
        l, slope = peak.l, jax.grad(lambda v: jnp.sum(self.parts(g, v)[1]))  # noqa: E741
        for _ in range(2):
            l = l + peak.factor.solve_transposed(peak.factor.solve(slope(l)))  # noqa: E741
        factor = Factor.of(self.curvature(lambda v: self.parts(g, v), l)[2])
        rest, value = self.parts(g, l)
        return rest, value - factor.log_det() + 0.5 * len(l) * _LOG_2PI

    def peak(self, g: Array, tol: float = TOL) -> Peak:
        """Mode of every group given g; `tol` is that of `climb`."""
        f = lambda l: self.parts(g, l)  # noqa: E731, E741
        start = jnp.zeros(self.split.real.shape)
        if not self.marginal.exact:
            return climb(lambda l: self.curvature(f, l), self.start(g), tol)  # noqa: E741
        _, gradient, matrix = self.curvature(f, start)
        factor = Factor.of(matrix)
        mode = start + factor.solve_transposed(factor.solve(gradient))
        # there, and not from where it began: far from the mode little is left of a density's digits
        return Peak(mode, f(mode)[1], factor)

    def start(self, g: Array) -> Array:
        """Where a search begins: the prior's mean where that is normal, or near the anchor.

        Or at the anchor itself, of a block, whose curvature is dear.
        """
        anchor = self.data[KEY].anchor
        if anchor is not None and self.split.block:
            other = anchor.l
        else:
            l = jnp.zeros(self.split.real.shape)  # noqa: E741
            _, gradient, matrix = self.curvature(lambda v: self.prior_alone(g, v), l)
            move = newton_step(gradient, matrix, jnp.zeros(l.shape[1]))
            other = jnp.where(jnp.isfinite(move), move, 0.0)
        if anchor is None:
            return other
        near = anchor.l + anchor.slope @ (g - anchor.g)
        both = jnp.stack([near, other])
        value = jax.vmap(lambda v: self.parts(g, v)[1])(both)
        return jnp.where(value[0] > value[1], near, other)

    def prior_peak(self, g: Array) -> Peak:
        """Where the prior of every group has its mode given g."""
        f = lambda l: self.prior_alone(g, l)  # noqa: E731, E741
        return climb(lambda l: self.curvature(f, l), jnp.zeros(self.split.real.shape))  # noqa: E741

    def anchor(self, g: Array) -> Anchor:
        """Modes at g, and their derivatives by g."""
        peak = self.peak(g)
        slope = jax.jacfwd(lambda u: jax.grad(lambda v: jnp.sum(self.parts(u, v)[1]))(peak.l))(g)
        solve = lambda v: peak.factor.solve_transposed(peak.factor.solve(v))  # noqa: E731
        return Anchor(g, peak.l, jax.vmap(solve, in_axes=-1, out_axes=-1)(slope))

    def curvature(
        self,
        f: Callable[[Array], tuple[Array, Array]],
        l: Array,  # noqa: E741
    ) -> tuple[Array, Array, Array]:
        """f_j, its gradient (width, group) and -Hessian (width, width, group) in l.

        Groups are independent: one direction serves all of them at once.
        """

        def slope(v: Array) -> tuple[Array, tuple[Array, Array]]:
            gradient, value = jax.grad(lambda u: _summed(f(u)[1]), has_aux=True)(v)
            return gradient, (value, gradient)

        _, along, (value, gradient) = jax.linearize(slope, l, has_aux=True)
        axes = jnp.eye(len(l))[:, :, None] + jnp.zeros_like(l)
        hessian = jax.vmap(along)(axes)
        return value, gradient, -0.5 * (hessian + jnp.swapaxes(hessian, 0, 1))

    def draw(self, g: Array, key: Array, points: int) -> tuple[Array, Array, Array]:
        """z, log weight, and whether that is no integral, of one g (see `Marginal.draw`)."""
        peak = self.peak(g, self.near)
        noise_key, choice_key = jax.random.split(key)
        if self.marginal.exact:
            eps = jax.random.normal(noise_key, peak.l.shape, peak.l.dtype)
            l = peak.l + peak.factor.solve_transposed(eps)  # noqa: E741
            rest, value = self.parts(g, l)
            value, apart = _compared(peak, l, eps, value)
            value = jnp.where(apart, value, peak.value) - peak.factor.log_det()
            return self.whole(g, l), rest + jnp.sum(value + 0.5 * len(l) * _LOG_2PI), apart.any()
        rest, l, log_w = self.proposed(g, peak, noise_key, points)  # noqa: E741
        chosen = _choice(log_w, jax.random.uniform(choice_key, log_w.shape[1:], log_w.dtype))
        picked = jnp.take_along_axis(l, chosen[None, None], axis=0)[0]
        total = jnp.sum(log_sum(log_w) - jnp.log(points))
        return self.whole(g, picked), rest + total, jnp.zeros((), bool)

    def apart(self, z: Array) -> Array:
        """Whether some group that counts as exact is not normal at z."""
        g, l = self.separated(z)  # noqa: E741
        peak = self.peak(g, self.near)
        return _compared(peak, l, standardised(peak, l[None])[0], self.parts(g, l)[1])[1].any()

    def proposed(self, g: Array, peak: Peak, key: Array, points: int) -> tuple[Array, Array, Array]:
        """log p(g, x_0), proposals (point, width, group) and their log weights (point, group)."""
        if self.marginal.concave:
            l, e = spread(peak, key, points)  # noqa: E741
            log_q = log_density(peak, e)
        else:
            prior, some = self.prior_peak(g), max(1, points // _FOR_PRIOR)
            keys, both = jax.random.split(key), (peak, prior)
            numbers = (points - some, some)
            parts = [spread(p, k, n)[0] for p, k, n in zip(both, keys, numbers, strict=True)]
            l = jnp.concatenate(parts)  # noqa: E741
            each = jnp.stack([log_density(p, standardised(p, l)) for p in both])
            each = jnp.where(jnp.isnan(each), -jnp.inf, each)  # a flat prior proposes nothing
            share = jnp.asarray(numbers)[:, None, None] / points
            log_q = logsumexp(each, axis=0, b=share)
        rest, value = jax.vmap(lambda v: self.parts(g, v))(l)
        log_w = value - log_q
        return rest[0], l, jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)


def _compared(peak: Peak, l: Array, e: Array, value: Array) -> tuple[Array, Array]:  # noqa: E741
    """What f_j of `value` at l says of its mode's, e scales away, and whether no normal does so."""
    value = value + 0.5 * jnp.sum(e**2, axis=0)  # as of any proposal
    value = jnp.where(jnp.isnan(value), -jnp.inf, value)
    # what is left of digits where a group's scale is tiny, in units of that
    rounded = jnp.einsum("jig,jg->ig", jnp.abs(peak.factor.lower), jnp.abs(l)) * _DIGITS
    allowed = jnp.sum(rounded * (jnp.abs(e) + rounded), axis=0)
    allowed = allowed + _APART * (1.0 + jnp.abs(peak.value))
    return value, jnp.abs(value - peak.value) > allowed


def _summed(value: Array) -> tuple[Array, Array]:
    return jnp.sum(value), value


def _choice(log_w: Array, u: Array) -> Array:
    """One point of each group by weights (point, group), by the place of u (group,) among them."""
    total = jnp.cumsum(jnp.exp(log_w - jnp.max(log_w, axis=0)), axis=0)
    return jnp.minimum(jnp.sum(total <= u * total[-1], axis=0), len(log_w) - 1)


def log_sum(value: Array) -> Array:
    """Logarithm of the sum over the first axis; what is not finite is zero."""
    return logsumexp(jnp.where(jnp.isnan(value), -jnp.inf, value), axis=0)
