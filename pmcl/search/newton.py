"""The mode of a log density and the curvature there, from one starting point."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from pmcl.search.scales import AbstractScale, Dense, LowRank

LogDensity = Callable[[Array], Array]
_HOPELESS = 1e12  # damping, relative to the curvature, that ends a search
MEMORY = 10  # pairs of steps and gradients that L-BFGS keeps


class Status(IntEnum):
    """How a search ended."""

    CONVERGED = 0
    OUT_OF_STEPS = 1
    FLAT = 2  # or a saddle: some curvature there is not that of a mode
    NOT_FINITE = 3  # the density where the search began


class Mode(NamedTuple):
    """Where a search ended.

    Attributes
    ----------
    z : Array of shape (dim,)
    log_p : Array of shape ()
        -inf where the density was not finite at the start.
    scale : AbstractScale
        A with A A' the inverse of -Hessian, made positive definite where it was not.
    status : Array of int
        A `Status`.
    steps, gradients : Array of int
        Steps, and evaluations of a gradient (a Hessian counts `dim`).
    """

    z: Array
    log_p: Array
    scale: AbstractScale
    status: Array
    steps: Array
    gradients: Array

    @property
    def converged(self) -> Array:
        """Whether it is a mode."""
        return self.status == Status.CONVERGED


def _status(finite: Array, done: Array, curved: Array) -> Array:
    found = jnp.where(curved, Status.CONVERGED, Status.FLAT)
    found = jnp.where(done, found, Status.OUT_OF_STEPS)
    return jnp.where(finite, found, Status.NOT_FINITE).astype(jnp.int32)


class _Newton(NamedTuple):
    z: Array
    log_p: Array
    gradient: Array
    values: Array
    vectors: Array
    damping: Array
    step: Array
    done: Array


def newton(log_density: LogDensity, z: Array, spread: Array, *, steps: int, tol: float) -> Mode:
    """Maximise by damped Newton steps with the exact Hessian.

    Where the Hessian is indefinite its eigenvalues are taken by their size, so that saddle points
    repel (saddle-free Newton); a step that does not improve the density is taken back and the
    damping raised tenfold.

    Parameters
    ----------
    log_density : callable
    z : Array of shape (dim,)
    spread : Array of shape (dim,)
        Sd of the draws at hand: the search goes at most ten of it away in a step, and no direction
        is given a scale beyond ten times this.
    steps : int
    tol : float
        Ends when a step would raise the log density by less, in nats.

    References
    ----------
    Levenberg (1944); Dauphin et al. (2014), Identifying and attacking the saddle point problem.
    """
    dim = z.shape[0]

    def inside(v: Array) -> Array:
        return log_density(spread * v)

    def curvature(v: Array) -> tuple[Array, ...]:
        def slope(v: Array) -> tuple[Array, tuple[Array, Array]]:
            log_p, gradient = jax.value_and_grad(inside)(v)
            return gradient, (log_p, gradient)

        hessian, (log_p, gradient) = jax.jacfwd(slope, has_aux=True)(v)
        usable = jnp.isfinite(log_p) & jnp.isfinite(gradient).all() & jnp.isfinite(hessian).all()
        safe = jnp.where(usable, -0.5 * (hessian + hessian.T), jnp.eye(dim))
        values, vectors = jnp.linalg.eigh(safe)
        return jnp.where(usable, log_p, -jnp.inf), gradient, values, vectors

    def step(state: _Newton) -> _Newton:
        size = jnp.maximum(jnp.abs(state.values), _FLATTEST)
        slope = state.vectors.T @ state.gradient
        move = slope / (size * (1.0 + state.damping))
        # Flat directions would be followed for ever.
        move = move * jnp.minimum(1.0, 10.0 / jnp.maximum(jnp.linalg.norm(move), 1e-300))
        trial = state.z + state.vectors @ move
        log_p, gradient, values, vectors = curvature(trial)
        better = log_p >= state.log_p
        gain = 0.5 * jnp.sum(slope * move)
        new = _Newton(
            trial,
            log_p,
            gradient,
            values,
            vectors,
            jnp.where(state.damping > 1e-3, state.damping / 10.0, 0.0),
            state.step + 1,
            better & (gain < tol) & (values > 0).all(),
        )
        raised = jnp.maximum(10.0 * state.damping, 1.0)
        old = state._replace(
            damping=raised,
            step=state.step + 1,
            # So small a step that rounding decides: this is the top, or nothing can be done.
            done=(gain < tol) | (raised > _HOPELESS),
        )
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)

    log_p, gradient, values, vectors = curvature(z / spread)
    zero = jnp.zeros((), jnp.int32)
    first = _Newton(
        z / spread, log_p, gradient, values, vectors, jnp.zeros(()), zero, ~jnp.isfinite(log_p)
    )
    end = jax.lax.while_loop(lambda s: ~s.done & (s.step < steps), step, first)
    size = jnp.maximum(jnp.abs(end.values), _FLATTEST)
    covariance = (end.vectors / size) @ end.vectors.T
    covariance = covariance * spread[:, None] * spread[None, :]
    lower = jnp.linalg.cholesky(0.5 * (covariance + covariance.T))
    lower = jnp.where(jnp.isfinite(lower).all(), lower, jnp.diag(spread))
    status = _status(jnp.isfinite(end.log_p), end.done, (end.values > _FLATTEST).all())
    gradients = (1 + end.step) * (1 + dim)
    return Mode(spread * end.z, end.log_p, Dense.of(lower), status, end.step, gradients)


_FLATTEST = 1e-2  # least curvature, in units of the spread: scales of at most ten times it


def lbfgs(log_density: LogDensity, z: Array, spread: Array, *, steps: int, tol: float) -> Mode:
    """Maximise by L-BFGS; the curvature is diagonal plus low rank.

    For long z, where a Hessian is too dear. Parameters are those of :func:`newton`.

    References
    ----------
    Byrd, Nocedal & Schnabel (1994), Representations of quasi-Newton matrices, eq. 2.6; Zhang et al.
    (2022), Pathfinder, section 2.2, for the factor.
    """

    def loss(v: Array) -> Array:
        value = -log_density(spread * v)
        return jnp.where(jnp.isfinite(value), value, 1e100)

    solver = optax.lbfgs(memory_size=MEMORY)
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry: tuple) -> tuple:
        v, state, count, _ = carry
        value, gradient = value_and_grad(v, state=state)
        gradient = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
        updates, state = solver.update(
            gradient, state, v, value=value, grad=gradient, value_fn=loss
        )
        new = optax.apply_updates(v, updates)
        usable = jnp.isfinite(new).all()
        gain = 0.5 * jnp.abs(jnp.sum(updates * gradient))
        return jnp.where(usable, new, v), state, count + 1, (gain < tol) | ~usable

    v = z / spread
    start = (v, solver.init(v), jnp.zeros((), jnp.int32), ~jnp.isfinite(log_density(z)))
    v, state, count, done = jax.lax.while_loop(lambda c: ~c[3] & (c[2] < steps), step, start)
    moves = optax.tree.get(state, "diff_params_memory")
    changes = optax.tree.get(state, "diff_updates_memory")
    # The next update would write the pair of the step before it over the oldest one.
    oldest = (count - 1) % MEMORY
    scale = _factor(moves, changes, jnp.roll(jnp.arange(MEMORY), -oldest))
    scale = eqx.tree_at(lambda s: s.diagonal, scale, scale.diagonal * spread)
    log_p = log_density(spread * v)
    # The line search looks at two or three points a step.
    return Mode(
        spread * v,
        jnp.where(jnp.isfinite(log_p), log_p, -jnp.inf),
        scale,
        _status(jnp.isfinite(log_p), done, jnp.asarray(True)),
        count,
        3 * (count + 1),
    )


def _factor(moves: Array, changes: Array, order: Array) -> LowRank:
    """Factor of the inverse Hessian from pairs s, y of shape (memory, dim), oldest first."""
    s, y = moves[order], changes[order]
    curved = jnp.sum(s * y, axis=1)
    valid = curved > 1e-10 * jnp.sqrt(jnp.sum(s**2, axis=1) * jnp.sum(y**2, axis=1))
    s, y = jnp.where(valid[:, None], s, 0.0), jnp.where(valid[:, None], y, 0.0)
    ratio = jnp.where(valid, curved / jnp.maximum(jnp.sum(y**2, axis=1), 1e-300), jnp.nan)
    last = jnp.max(jnp.where(valid, jnp.arange(len(valid)), -1))
    gamma = jnp.where(last >= 0, ratio[last], 1.0)
    gamma = jnp.clip(jnp.nan_to_num(gamma, nan=1.0), 1e-12, 1.0 / _FLATTEST)
    upper = jnp.triu(s @ y.T) + jnp.diag(jnp.where(valid, 0.0, 1.0))
    inverse = jax.scipy.linalg.solve_triangular(upper, jnp.eye(len(valid)))
    middle = inverse.T @ (jnp.diag(jnp.where(valid, curved, 0.0)) + gamma * y @ y.T) @ inverse
    block = jnp.block([[middle, -inverse.T], [-inverse, jnp.zeros_like(inverse)]])
    directions, r = jnp.linalg.qr(jnp.concatenate([s, gamma * y]).T)
    small = jnp.eye(r.shape[0]) + r @ block @ r.T / gamma
    values, vectors = jnp.linalg.eigh(0.5 * (small + small.T))
    small = (vectors * jnp.clip(values, 1e-10, 1.0 / (gamma * _FLATTEST))) @ vectors.T
    core = jnp.linalg.cholesky(small)
    core = jnp.where(jnp.isfinite(core).all(), core, jnp.eye(r.shape[0]))
    return LowRank(jnp.full(s.shape[1], jnp.sqrt(gamma)), directions, core)
