"""The mode of a log density and the curvature there, from one starting point."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pmcl.search.scales import AbstractScale, Dense, LowRank

LogDensity = Callable[[Array], Array]
_HOPELESS = 1e12  # damping, relative to the curvature, that ends a search
MEMORY = 10  # pairs of steps and gradients that L-BFGS keeps
_AT_ONCE = 16  # products with the Hessian
_STEEPEST = 1e12  # curvature, in units of the spread


class Status(IntEnum):
    """How a search ended."""

    CONVERGED = 0
    OUT_OF_STEPS = 1
    FLAT = 2  # in some direction there is hardly a curvature
    NOT_FINITE = 3  # the density where the search began
    SADDLE = 4  # in some direction it rises


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


def _status(finite: Array, done: Array, least: Array) -> Array:
    """How a search ended where the least curvature is this, in units of the spread."""
    found = jnp.where(least < -_FLATTEST, Status.SADDLE, Status.FLAT)
    found = jnp.where(least > _FLATTEST, Status.CONVERGED, found)
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


def newton(
    log_density: LogDensity,
    z: Array,
    spread: Array,
    *,
    steps: int,
    tol: float,
    proper: bool = True,
) -> Mode:
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
    proper : bool
        Whether the spread is that of a prior: what is flat is no wider, then.

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
        gain = jnp.where(state.step < 0, jnp.inf, 0.5 * jnp.sum(slope * move))
        flat = (gain < tol) & (values > -_FLATTEST).all()  # but no saddle
        new = _Newton(
            trial,
            log_p,
            gradient,
            values,
            vectors,
            jnp.where(state.damping > 1e-3, state.damping / 10.0, 0.0),
            state.step + 1,
            better & (flat | ~jnp.isfinite(log_p)),
        )
        raised = jnp.maximum(10.0 * state.damping, 1.0)
        old = state._replace(
            damping=raised,
            step=state.step + 1,
            # So small a step that rounding decides: this is the top, or nothing can be done.
            done=(gain < tol) | (raised > _HOPELESS),
        )
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)

    # The first step goes nowhere: the density is looked at in one place, and compiled once.
    v, zero, lowest = z / spread, jnp.zeros(()), jnp.full((), -jnp.inf)
    before = jnp.full((), -1, jnp.int32)
    first = _Newton(
        v, lowest, jnp.zeros_like(v), jnp.ones(dim), jnp.eye(dim), zero, before, zero > 0
    )
    end = jax.lax.while_loop(lambda s: ~s.done & (s.step < steps), step, first)
    status = _status(jnp.isfinite(end.log_p), end.done, end.values.min())
    size = jnp.maximum(jnp.abs(end.values), _FLATTEST)
    if proper:  # what is flat is no wider than the prior; what is curved is as wide as it is
        flat = (status == Status.FLAT) & (end.values <= _FLATTEST)
        size = jnp.where(flat, jnp.maximum(size, 1.0), size)
    covariance = (end.vectors / size) @ end.vectors.T
    covariance = covariance * spread[:, None] * spread[None, :]
    lower = jnp.linalg.cholesky(0.5 * (covariance + covariance.T))
    lower = jnp.where(jnp.isfinite(lower).all(), lower, jnp.diag(spread))
    gradients = (1 + end.step) * (1 + dim)
    return Mode(spread * end.z, end.log_p, Dense.of(lower), status, end.step, gradients)


_FLATTEST = 1e-2  # least curvature, in units of the spread: scales of at most ten times it


def lbfgs(log_density: LogDensity, z: Array, spread: Array, *, steps: int, tol: float) -> Mode:
    """Maximise by L-BFGS; the scale is diagonal plus low rank.

    For long z, where a Hessian at each step is too dear. Steps are taken twice, each time in units
    of the curvature along each parameter where they begin: it differs by orders of magnitude from
    one parameter to the next. Parameters are those of :func:`newton`; so many `steps` each time.

    The scale is diag(d) (I + Q (C - I) Q'), d from the diagonal of the Hessian H at the end, Q and
    C C' = (Q' diag(d) (-H) diag(d) Q)^-1 from the directions of Lanczos' space in which
    diag(d) (-H) diag(d) differs most from I.

    References
    ----------
    Nocedal & Wright (2006), Numerical Optimization, algorithm 7.5; Golub & Van Loan (2013), Matrix
    Computations, section 10.3, with full orthogonalisation.
    """

    log_density = jax.jit(log_density)  # traced once, wherever it is looked at

    def times(z: Array, v: Array) -> Array:
        return -jax.jvp(jax.grad(log_density), (z,), (v,))[1]

    def units(z: Array) -> tuple[Array, Array]:
        along = lambda axis: jnp.vdot(axis, times(z, axis))  # noqa: E731
        curved = jax.lax.map(along, jnp.eye(len(z)), batch_size=_AT_ONCE)
        size = jnp.nan_to_num(jnp.abs(curved) * spread**2, nan=1.0)
        return spread / jnp.sqrt(jnp.clip(size, _FLATTEST, _STEEPEST)), curved

    def climb(carry: tuple, _: None) -> tuple[tuple, None]:
        z, count, _ = carry
        scale = units(z)[0]
        v, n, done = _ascend(lambda v: log_density(scale * v), z / scale, steps=steps, tol=tol)
        return (scale * v, count + n, done), None

    start = (z, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    end, _ = jax.lax.scan(climb, start, length=2)
    z, count, done = end
    scale, curved = units(z)
    low_rank, lowest = _low_rank(lambda v: scale * times(z, scale * v), scale)
    log_p = log_density(z)
    # in units of the spread along each parameter alone: of all directions only the sign is sure
    least = jnp.where(lowest > 0, jnp.min(curved * spread**2), jnp.minimum(lowest, 0.0))
    # The line search looks at two or three points a step.
    gradients = 3 * (count + 2) + 3 * len(z) + 4 * MEMORY
    return Mode(
        z,
        jnp.where(jnp.isfinite(log_p), log_p, -jnp.inf),
        low_rank,
        _status(jnp.isfinite(log_p), done, least),
        count,
        gradients,
    )


def _ascend(
    log_density: LogDensity, v: Array, *, steps: int, tol: float
) -> tuple[Array, Array, Array]:
    """L-BFGS steps from v: the end, how many there were, whether the last gained less than tol."""

    def loss(v: Array) -> Array:
        value = -log_density(v)
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

    start = (v, solver.init(v), jnp.zeros((), jnp.int32), ~jnp.isfinite(log_density(v)))
    v, _, count, done = jax.lax.while_loop(lambda c: ~c[3] & (c[2] < steps), step, start)
    return v, count, done


def _low_rank(times: Callable[[Array], Array], diagonal: Array) -> tuple[LowRank, Array]:
    """Scale whose inverse square is a matrix near I, times the diagonal; its least curvature."""
    dim = len(diagonal)
    number = min(dim, 4 * MEMORY)
    # any vector that is not orthogonal to what is sought
    first = jnp.cos(1.0 + jnp.arange(dim) * 2.399963)

    def step(basis: Array, i: Array) -> tuple[Array, Array]:
        image = times(basis[i])
        for _ in range(2):
            rest = image - basis.T @ (basis @ image)
            image = rest
        size = jnp.linalg.norm(rest)
        rest = jnp.where(size > 1e-10, rest / jnp.maximum(size, 1e-300), 0.0)
        return basis.at[i + 1].set(rest), size

    basis = jnp.zeros((number + 1, dim)).at[0].set(first / jnp.linalg.norm(first))
    basis, _ = jax.lax.scan(step, basis, jnp.arange(number))
    basis = basis[:number]
    there = jnp.linalg.norm(basis, axis=1) > 0.5
    projected = basis @ jax.lax.map(times, basis).T
    projected = jnp.where(jnp.isfinite(projected), projected, 0.0) + jnp.diag(1.0 * ~there)
    values, vectors = jnp.linalg.eigh(0.5 * (projected + projected.T))
    size = jnp.maximum(jnp.abs(values), _FLATTEST)
    logs = jnp.log(size)
    most = jnp.argsort(-jnp.abs(logs - jnp.median(logs)))[: min(dim, 2 * MEMORY)]
    # the diagonal is one, so that the trace says what is left for the other directions
    others = (dim - jnp.sum(size[most])) / max(dim - len(most), 1)
    level = jnp.clip(others, 0.1, 1.0) if dim > len(most) else jnp.ones(())
    directions = (vectors[:, most].T @ basis).T
    core = jnp.diag(jnp.sqrt(level / size[most]))
    return LowRank(diagonal / jnp.sqrt(level), directions, core), jnp.min(values)
