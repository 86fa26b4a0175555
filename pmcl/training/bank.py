"""A bank of simulations that are made once, and what searches found of each."""

import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask, Simulator
from pmcl.compile.simulator import AT_ONCE
from pmcl.data.batching import over_chunks, over_datasets, taken
from pmcl.data.task import Batch
from pmcl.networks import Amortizer
from pmcl.networks.contexts import placed
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.runtime.progress import progress_bar
from pmcl.search.search import Place
from pmcl.training.checkpoint import read_checkpoint, write_checkpoint

FEWEST = 20  # simulations
_LONG = 600.0  # seconds of searching that are said before
_PART = 512  # simulations whose searches a checkpoint holds or not
_OFTEN = 60.0  # seconds between two of them


class Simulated(NamedTuple):
    """Simulations that are made once, with a leading dim.

    Attributes
    ----------
    z : Array of shape (simulation, dim)
    data : dict of arrays
    mask : Mask, optional
    place : Place, optional
        Where the posterior of each is, once that was searched for.
    """

    z: Array
    data: dict[str, Array]
    mask: Mask | None
    place: Place | None = None

    @classmethod
    def of(cls, simulator: Simulator, n: int, *, random_seed: int) -> "Simulated":
        """Make them; NumPy's arrays."""
        z, data = simulator.simulate(n, random_seed=random_seed)
        return cls(z, data, simulator.masks(n, random_seed=random_seed))  # type: ignore[arg-type]

    def take(self, index: Array | np.ndarray | slice) -> "Simulated":
        """Some of them."""
        return jax.tree.map(lambda x: x[index], self)


class Bank(NamedTuple):
    """Simulations that are made once.

    Attributes
    ----------
    simulated : Simulated
        Those with a finite density.
    left_out : int
        How many have none: parameters, data or density are not finite.
    density : Density
    """

    simulated: Simulated
    left_out: int
    density: Density


def bank_of(
    simulator: Simulator,
    amortizer: Amortizer,
    density: Density,
    number: int,
    *,
    seed: int,
    levelled: Callable[[Simulated], tuple[Simulated, Any]] | None = None,
    checkpoint: Path | None = None,
    progressbar: bool,
) -> Bank:
    """Simulations that are made once, with what searches found of each; finite ones alone.

    `levelled` gives what is learned of simulations of a multilevel model, and its density.
    A checkpoint holds parameters and what was found, not the data, which the seed makes again.

    Raises
    ------
    ValueError
        Where too few are finite.
    """
    made = Simulated.of(simulator, number, random_seed=seed)
    finite = _finite(density, made)
    if finite.sum() < min(FEWEST, number):
        raise ValueError(
            f"pretraining: {finite.sum()} of {number} simulations have a finite log density; "
            f"expected at least {FEWEST}. Look at draws of `pm.sample_prior_predictive`: narrow a "
            "prior that over- or underflows, or ask for more `simulations`."
        )
    made = jax.tree.map(lambda x: np.asarray(x)[finite], made)
    if levelled is not None:
        made, density = levelled(made)
    if amortizer.search is not None:
        label = {"searches of": number, "seed": seed, **identity(amortizer)}
        with progress_bar("Searching", len(made.z), enabled=progressbar) as bar:
            advance = _Slow(len(made.z), bar.advance)
            made = made._replace(place=_places(amortizer, made, checkpoint, label, advance))
    return Bank(made, number - len(made.z), density)


def _places(
    amortizer: Amortizer,
    made: Simulated,
    path: Path | None,
    label: dict[str, Any],
    advance: Callable[[int], None],
) -> Place:
    """Where the posterior of each simulation is; gone on with where a checkpoint has a part."""
    whole, n = Batch(made.data, made.mask), len(made.z)
    of_all = lambda x: np.zeros((n, *x.shape[1:]), x.dtype)  # noqa: E731
    found: Any = None
    done = np.asarray(0)
    if path is not None and path.exists():
        like = jax.eval_shape(lambda b: over_datasets(amortizer.search, b), whole)  # type: ignore[arg-type]
        like = (np.zeros_like(made.z), jax.tree.map(of_all, like), done)
        z, stored, ready = read_checkpoint(path, label, like)
        if np.allclose(z, made.z, rtol=1e-6):  # else another machine made other ones
            found, done = stored, ready
            advance(int(done))
    written = time.monotonic()
    for begin in range(int(done), n, _PART):
        part = taken(whole, np.arange(begin, min(begin + _PART, n)))
        new = placed(amortizer, part, advance=advance).place
        if found is None:  # and not by tracing the search once more
            found = jax.tree.map(of_all, new)
        for old, value in zip(jax.tree.leaves(found), jax.tree.leaves(new), strict=True):
            old[begin : begin + _PART] = value
        if path is not None and (time.monotonic() - written > _OFTEN or begin + _PART >= n):
            end = np.asarray(min(begin + _PART, n))
            write_checkpoint(path, label, (made.z, found, end))
            written = time.monotonic()
    return found


class _Slow:
    """Says so where searches are going to take long."""

    def __init__(self, number: int, advance: Callable[[int], None]):
        self.number, self.advance, self.done, self.begin = number, advance, 0, 0.0

    def __call__(self, n: int) -> None:
        if self.done == 0:
            self.begin = time.perf_counter()  # the first ones were compiled
        elif self.begin:
            each = (time.perf_counter() - self.begin) / self.done
            if each * self.number > _LONG:
                warnings.warn(
                    f"the searches of {self.number} simulations will take about "
                    f"{each * self.number / 60:.0f} minutes; fewer `simulations` take less.",
                    stacklevel=2,
                )
            self.begin = 0.0
        self.done += n
        self.advance(n)


@jit
def _log_densities(density: Density, z: Array, batch: Batch) -> Array:
    if density.compiled.implicit:  # the prior alone is known
        return over_datasets(lambda data, _, u: density.compiled.log_prior(u, data), batch, z)
    return over_datasets(lambda data, mask, u: density(u, data, mask), batch, z)


def _finite(density: Density, made: Simulated) -> np.ndarray:
    """Say of each simulation whether all of it is finite."""
    z = np.asarray(made.z)
    batch = Batch(made.data, made.mask)
    every = np.arange(len(z))
    found = np.isfinite(z).all(axis=1)
    for value in made.data.values():
        found &= np.isfinite(np.asarray(value, float)).reshape(len(z), -1).all(axis=1)
    log_p = over_chunks(
        lambda part, u: _log_densities(density, u, part),
        batch,
        every,
        z,
        size=devices.together(AT_ONCE),
    )
    return found & np.isfinite(log_p)


def identity(amortizer: Amortizer) -> dict:
    """What tells the networks of different models and sizes apart."""
    weights = jax.tree.leaves(eqx.filter(amortizer, amortizer.trainable()))
    scalings = (amortizer.row_scaling, amortizer.fixed_scaling, amortizer.z_scaling)
    # To three digits: another machine rounds simulations in another way.
    numbers = ",".join(f"{x:.3g}" for s in jax.tree.leaves(scalings) for x in np.ravel(s))
    return {
        "inputs": [name for name, _ in amortizer.inputs.shapes],
        "lengths": list(amortizer.inputs.lengths or ()),
        "weights": sum(w.size for w in weights),
        "shapes": zlib.crc32(str([w.shape for w in weights]).encode()),
        "standardisation": zlib.crc32(numbers.encode()),
    }
