"""Draws from exactly the model's joint: inside jit where JAX can, on the host where it cannot."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.covariates import Covariates
from pmcl.compile.drawing import Draws, Z, host_draw, jax_draw
from pmcl.compile.made import SimulatorFunction, made_draw
from pmcl.compile.mask import Mask, Masking
from pmcl.compile.model import CompiledModel
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.simulable import check_simulable
from pmcl.runtime import precision
from pmcl.runtime.jitting import jit


def check_finite(simulator: "Simulator", *, n: int = 200, random_seed: int = 0) -> None:
    """Look whether the log density of a model is finite at its own draws.

    Simulations where it is not are left out of training, which is said.

    Parameters
    ----------
    simulator : Simulator
    n : int
        Number of joint draws to try.
    random_seed : int

    Raises
    ------
    UnsupportedModelError
        Where it is finite at none, naming the variable whose term is not finite most often.
    """
    terms = simulator.finite_terms(n=n, random_seed=random_seed)
    wrong = 1.0 - float(np.mean(np.all(list(terms.values()), axis=0)))
    if wrong == 0.0:
        return
    observed = {info.name for info in simulator.compiled.observed}
    # The first of equals: what comes later in the model may only inherit the trouble.
    worst = min(terms, key=lambda name: terms[name].mean())
    part = "log likelihood" if worst in observed else "log prior"
    found = (
        f"the log density of the model is not finite at {wrong:.1%} of {n} draws of the prior; "
        f"most often it is the {part} of {worst!r}, at {1 - terms[worst].mean():.1%}."
    )
    if wrong == 1.0:
        raise UnsupportedModelError(
            f"{found} Check its parameters and support at `pm.sample_prior_predictive` draws: "
            "narrow a prior that over- or underflows, and write densities that stay finite "
            "wherever the model can simulate."
        )
    warnings.warn(f"{found} Such simulations are left out of training.", stacklevel=2)


AT_ONCE = 128  # simulations made together outside training


@dataclass(frozen=True, eq=False)
class Simulator:
    """Simulated datasets of one compiled model, at its own sizes or at others.

    Attributes
    ----------
    compiled : CompiledModel
    covariates : Covariates
        Where those of simulated datasets come from.
    backend : {"jax", "pytensor"}
        Whether a simulation is part of the jitted training step, or made by PyTensor on the host
        and prefetched in the background.
    reason : str
        Why PyTensor's backend is in use ("" for JAX).
    masking : Masking
        Lengths and missing values of what is simulated; everything is drawn whole, and :meth:`mask`
        says what of it counts.
    function : callable, optional
        The user's, which makes the data.
    """

    compiled: CompiledModel = field(repr=False)
    covariates: Covariates
    backend: Literal["jax", "pytensor"]
    reason: str
    _draw: Callable = field(repr=False)
    masking: Masking = Masking()  # noqa: RUF009  (immutable)
    function: SimulatorFunction | None = field(repr=False, default=None)

    def mask(self, key: Array) -> Mask | None:
        """Draw what of one simulation counts; None for all of it."""
        if not self.masking:
            return None
        observed = self.masking.sized(self.compiled.observed)
        terms = self.compiled.term_dims
        return self.masking.draw(key, {v.name: (v.shape, terms(v.name)) for v in observed})

    def masks(self, n: int, *, random_seed: int) -> Mask | None:
        """Draw masks of `n` simulations, with a leading dim."""
        if not self.masking:
            return None
        return _at_once(lambda index: self._masks(np.asarray(random_seed), index), n)

    def prefetch(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Whatever has to be made outside jit for `n` simulations: arrays of shape (n, ...)."""
        if self.backend == "pytensor":
            return self._draw(n, rng)
        drawn = [self.covariates.host(rng) for _ in range(n)] if self.covariates.functions else []
        return {k: np.stack([d[k] for d in drawn]) for k in self.covariates.functions}

    def draw(self, key: Array, host: Mapping[str, Array]) -> tuple[Array, Draws]:
        """One simulation (z, dataset), pure JAX; `host` is one element of :meth:`prefetch`."""
        if self.backend == "pytensor":
            return host[Z], {k: v for k, v in host.items() if k != Z}
        key, table_key = jax.random.split(key)
        given = {**host, **self.covariates.tables(table_key)}
        return self._draw(key, given)

    def simulate(self, n: int, *, random_seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Draw `n` datasets from the model's joint.

        Parameters
        ----------
        n : int
        random_seed : int

        Returns
        -------
        z : array of shape (n, dim)
        datasets : dict of arrays with a leading dim of length n
        """
        host = self.prefetch(n, np.random.default_rng(random_seed))
        if self.backend == "pytensor":
            return host.pop(Z), host
        seed = np.asarray(random_seed)
        with precision.scope():
            return _at_once(
                lambda index: self._many(seed, index, {k: v[index] for k, v in host.items()}), n
            )

    def finite_terms(self, *, n: int, random_seed: int) -> dict[str, np.ndarray]:
        """Say of each term of the log density whether it is finite at joint draws.

        Returns
        -------
        dict of arrays of bool of shape (n,)
            By variable: the free ones' log prior, then the observed ones' log likelihood.
        """
        z, data = self.simulate(n, random_seed=random_seed)
        with precision.scope():
            return _at_once(
                lambda index: self._finite(z[index], {k: v[index] for k, v in data.items()}), n
            )

    @cached_property
    def _many(self) -> Callable:
        def many(seed: Array, index: Array, host: Mapping[str, Array]) -> tuple[Array, Draws]:
            return jax.vmap(self.draw)(_keys(jax.random.key(seed), index), host)

        return jit(many)

    @cached_property
    def _masks(self) -> Callable:
        def masks(seed: Array, index: Array) -> Mask | None:
            key = jax.random.fold_in(jax.random.key(seed), 1)
            return jax.vmap(self.mask)(_keys(key, index))

        return jit(masks, once=True)

    @cached_property
    def _finite(self) -> Callable:
        def finite(z: Array, data: Draws) -> Draws:
            prior = self.compiled.log_prior_terms(z, data)
            known = not self.compiled.implicit
            terms = {**prior, **(self.compiled.log_likelihood_terms(z, data) if known else {})}
            return {name: jnp.isfinite(jnp.sum(term)) for name, term in terms.items()}

        return jit(jax.vmap(finite), once=True)

    def __repr__(self) -> str:
        where = "inside jit (JAX)" if self.backend == "jax" else "on PyTensor, prefetched"
        because = f", because {self.reason}" if self.reason else ""
        m = self.masking
        lengths = f"; lengths {m.lengths[0]} to {m.lengths[1]}" if m.lengths else ""
        missing = f"; {m.missing:.0%} missing" if m.missing else ""
        return f"Simulator({where}{because}; covariates: {self.covariates!r}{lengths}{missing})"


def _keys(key: Array, index: Array) -> Array:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def _at_once(function: Callable, n: int) -> Any:
    """Call function(index) for some at a time, always as many: compiled once, whatever `n`."""
    parts = []
    for begin in range(0, n, AT_ONCE):
        found = function(np.minimum(begin + np.arange(AT_ONCE), n - 1))
        parts.append(jax.tree.map(lambda v, m=n - begin: np.asarray(v)[:m], found))
    return jax.tree.map(lambda *v: np.concatenate(v), *parts)


def make_simulator(
    compiled: CompiledModel,
    covariates: Covariates,
    *,
    backend: Literal["auto", "jax", "pytensor"] = "auto",
    masking: Masking | None = None,
    function: SimulatorFunction | None = None,
) -> Simulator:
    """Derive the simulator of a compiled model.

    A transform that truncates a prior (`pm.Normal(..., transform=ordered)`) truncates it here too:
    the whole simulation is drawn again until the transform is defined.

    Parameters
    ----------
    compiled : CompiledModel
    covariates : Covariates
    backend : {"auto", "jax", "pytensor"}
        "auto" takes JAX where it has samplers for all of the model's variables.
    masking : Masking, optional
        Lengths other than the model's own (`covariates` have to be of the longest), and missing
        values.
    function : callable, optional
        Makes the data from the parameters; then the model needs no simulator of its own.

    Raises
    ------
    UnsupportedModelError
        If the model has a density and no simulator.
    ValueError
        If there is no such backend.
    NotImplementedError
        If JAX was asked for and has no sampler.
    """
    if backend not in ("auto", "jax", "pytensor"):
        raise ValueError(f"backend: expected 'auto', 'jax' or 'pytensor', got {backend!r}.")
    if function is not None:
        masking, reason = Masking() if masking is None else masking, "a function makes the data"
        draw = made_draw(compiled, covariates, masking, function)
        return Simulator(compiled, covariates, "pytensor", reason, draw, masking, function)
    check_simulable(compiled.model)
    reason = "it was asked for"
    masking = Masking() if masking is None else masking
    if backend != "pytensor":
        try:
            with precision.scope():
                draw = jax_draw(compiled, covariates, masking)
                simulator = Simulator(compiled, covariates, "jax", "", draw, masking)
                # Trace it once: a missing sampler shows when JAX sees the graph, not before.
                host = simulator.prefetch(1, np.random.default_rng(0))
                jax.eval_shape(
                    simulator.draw, jax.random.key(0), {k: v[0] for k, v in host.items()}
                )
            return simulator
        except (NotImplementedError, TypeError, jax.errors.JAXTypeError) as error:
            if backend == "jax":
                raise
            reason = _reason(compiled, str(error))
    draw = host_draw(compiled, covariates, masking, reason)
    return Simulator(compiled, covariates, "pytensor", reason, draw, masking)


def _reason(compiled: CompiledModel, message: str) -> str:
    names = [
        rv.name
        for rv in compiled.model.basic_RVs
        if getattr(rv.owner.op, "name", None) and rv.owner.op.name in message
    ]
    who = " and ".join(map(repr, names)) or "the model"
    return f"JAX cannot sample {who}: {message.strip().splitlines()[0][:160]}"


def prefetched(
    simulator: Simulator, plan: Iterable[tuple[int, np.random.Generator]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield host arrays for blocks of simulations, the next block made while one is used.

    Each block has a number of simulations and a generator of its own, so that a block is the same
    wherever a run starts.
    """
    made = (simulator.prefetch(n, rng) for n, rng in plan)
    at_once = simulator.backend == "jax" and not simulator.covariates.functions
    yield from made if at_once else ahead(made)


def ahead[T](items: Iterator[T]) -> Iterator[T]:
    """Make the next item in the background while one is used."""
    end = object()
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]


def finite_fraction(simulator: Simulator, *, n: int = 200, random_seed: int = 0) -> float:
    """Fraction of joint draws whose log density is finite."""
    terms = simulator.finite_terms(n=n, random_seed=random_seed)
    return float(np.mean(np.all(list(terms.values()), axis=0)))
