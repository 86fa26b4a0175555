"""The likelihood of every row of a batch: what is weighted, remembered and forgotten."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel, LocalLikelihood, Mask, UnsupportedModelError
from pmcl.compile.predictive import lengths_of, predict
from pmcl.online.gaps import THERE, values_alone
from pmcl.online.gaussian import MeanField
from pmcl.runtime.jitting import jit

_TOGETHER = 2**24  # numbers that gradients by z of some rows may take while they are made
type Data = Mapping[str, Array]


class RowBatch(NamedTuple):
    """Rows that arrive together.

    Attributes
    ----------
    data : dict of arrays
        Observed variables and covariates, and which values of the observed are there.
    weights : Array of shape (row,)
        Of each row's log likelihood: 0 for padding, less than 1 for what is old.
    """

    data: Data
    weights: Array


class AbstractRows(ABC):
    """What searches and baselines ask of the rows of a batch, with local variables or without.

    Attributes
    ----------
    compiled : CompiledModel
        Whose z is searched for.
    """

    compiled: CompiledModel

    @abstractmethod
    def length(self, data: Mapping[str, Array] | Mapping[str, np.ndarray]) -> int:
        """Number of rows of a batch's data."""

    @abstractmethod
    def take[T: (Array, np.ndarray)](self, data: Mapping[str, T], index: T) -> dict[str, T]:
        """Choose rows of a batch's data; what all rows share stays."""

    @abstractmethod
    def drawn(self, q: MeanField, data: Data, key: Array, sign: float = 1.0) -> Array:
        """Log likelihood of every row, or a bound of it, at a draw of q (nats, shape (row,))."""

    @abstractmethod
    def at(self, z: Array, data: Data, key: Array) -> Array:
        """Log likelihood of every row, or a bound of it, at one z (nats, shape (row,))."""

    @abstractmethod
    def squared_slope(self, z: Array, data: Data, key: Array) -> Array:
        """Squares of the gradient of one row's log likelihood."""

    @abstractmethod
    def total[T](self, function: Callable[[Array, Data], T], data: Data) -> T:
        """Sum a function of the position of every row and the row alone."""

    @abstractmethod
    def fisher_data(
        self, z: Array, data: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Mapping[str, np.ndarray]:
        """Observations for an estimate of the Fisher information at z."""

    @abstractmethod
    def narrow(self, shapes: tuple[tuple[int, ...], ...]) -> Self:
        """Rows of the model with variables of other shapes; equal for the same shapes."""

    def widened(self, found: Self) -> Self:
        """These rows with what was trained in narrower ones."""
        return self

    def pace(self, rate: float) -> float:
        """Learning rate of what is trained beside z, over that of z."""
        return 1.0

    def part(self, batch: RowBatch, index: Array | None) -> RowBatch:
        """Choose rows of a batch, with their weights; None: all."""
        if index is None:
            return batch
        return RowBatch(self.take(batch.data, index), batch.weights[index])


@dataclass(frozen=True)  # those of one model are equal, so that its streams share what is compiled
class Rows(AbstractRows):
    """Log likelihoods of the rows of a batch.

    Attributes
    ----------
    compiled : CompiledModel
    row : str
        The dim along which data arrive.
    local : LocalLikelihood or None
        The model with noise of linear layers' outputs in place of their weights'.

    Raises
    ------
    UnsupportedModelError
        If the likelihood of an observed variable has no term for each row.
    """

    compiled: CompiledModel
    row: str
    local: LocalLikelihood | None = None

    def __post_init__(self) -> None:
        outputs = self.compiled._log_likelihood.call.outputs
        for info, output in zip(self.compiled.observed, outputs, strict=True):
            terms = info.dims[: output.type.ndim]
            if self.row not in terms:
                raise UnsupportedModelError(
                    f"Variable {info.name!r}: expected a likelihood with a term for each row along "
                    f"dim {self.row!r}, got terms along {list(terms)}. Data can only arrive row by "
                    "row where rows are independent given the parameters."
                )

    def narrow(self, shapes: tuple[tuple[int, ...], ...]) -> "Rows":
        """Rows of the model with variables of other shapes; the same object for the same shapes.

        They are kept with the model, so that its streams share what is compiled for them.
        """

        def make() -> Rows:
            compiled = self.compiled.without_model().narrowed(shapes)
            local = None if self.local is None else self.local.narrowed(compiled)
            return Rows(compiled, self.row, local)

        # layers' noise has the precision in which it was found
        about = (self.row, self.local is None, jax.config.jax_enable_x64)
        return self.compiled.keep(("narrowed", shapes, *about), make)

    def axis(self, name: str) -> int | None:
        """Where a variable of the data has its rows; None where all rows share it."""
        name = name.removesuffix(THERE)
        dims = next(info.dims for info in self.compiled.data if info.name == name)
        return dims.index(self.row) if self.row in dims else None

    def __call__(self, z: Array, data: Data) -> Array:
        """Log likelihood of every row (nats, shape (row,))."""
        return self.by_row(self.compiled.log_likelihood_terms(z, data), data)

    def drawn(self, q: MeanField, data: Data, key: Array, sign: float = 1.0) -> Array:
        """Log likelihood of every row at a draw of q (nats, shape (row,)).

        By local reparametrisation every row has noise of its own: the rows' sum is no likelihood at
        one z, but its expectation is that of the likelihood.

        Parameters
        ----------
        q : MeanField
        data : mapping
        key : Array
        sign : float
            Of the noise: a pair of draws of opposite signs is antithetic.
        """
        return self.by_row(self.drawn_terms(q, data, key, sign), data)

    def drawn_terms(
        self, q: MeanField, data: Data, key: Array, sign: float = 1.0
    ) -> dict[str, Array]:
        """Log likelihood terms of every observed variable at a draw of q, as :meth:`drawn`."""
        if self.local is None:
            z = q.at(sign * jax.random.normal(key, q.mean.shape, q.mean.dtype))
            return self.compiled.log_likelihood_terms(z, data)
        noise = [sign * n for n in self.local.noise(data, key)]
        return self.local.log_likelihood_terms(q.mean, jnp.exp(q.log_sd), data, noise)

    def at(self, z: Array, data: Data, key: Array) -> Array:
        """Log likelihood of every row; there is nothing here that `key` would draw."""
        return self(z, data)

    def squared_slope(self, z: Array, data: Data, key: Array) -> Array:
        """Squares of the gradient of one row's log likelihood."""
        return jax.grad(lambda z: self(z, data)[0])(z) ** 2

    def fisher_data(
        self, z: Array, data: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Draw observations from the model, given z, at the covariates of some rows."""
        c = self.compiled
        covariates = {i.name: data[i.name].astype(i.dtype) for i in c.covariates}
        at = np.asarray(z, np.float64)[None]
        drawn = predict(c, at, covariates, lengths_of(c, data), rng=rng)
        gaps = {k: v for k, v in data.items() if k.endswith(THERE)}
        return {**covariates, **{k: v[0] for k, v in drawn.items()}, **gaps}

    def take[T: (Array, np.ndarray)](self, data: Mapping[str, T], index: T) -> dict[str, T]:
        """Choose rows of a batch's data; what all rows share stays."""
        axes = {name: self.axis(name) for name in data}
        return {k: v if axes[k] is None else v.take(index, axis=axes[k]) for k, v in data.items()}

    def map[T](self, function: Callable[[Array, Data], T], data: Data) -> T:
        """Apply a function to the position of every row and the row alone, some rows at a time."""
        n = self.length(data)
        together = max(1, min(n, _TOGETHER // self.compiled.dim))

        def one(i: Array) -> T:
            return function(i, self.take(data, i[None]))

        return jax.lax.map(one, jnp.arange(n), batch_size=together)

    def total[T](self, function: Callable[[Array, Data], T], data: Data) -> T:
        """Sum a function of the position of every row and the row alone."""
        return jax.tree.map(lambda v: v.sum(axis=0), self.map(function, data))

    def length(self, data: Mapping[str, Array] | Mapping[str, np.ndarray]) -> int:
        """Number of rows of a batch's data."""
        first = self.compiled.observed[0]
        return data[first.name].shape[first.dims.index(self.row)]

    def by_row(self, terms: Mapping[str, Array], data: Data) -> Array:
        """Sum the terms of every row over all variables, without those of what is missing."""
        mask = Mask(values={n: data[n + THERE] for n in terms if n + THERE in data})
        infos = {info.name: info for info in self.compiled.observed}
        parts = [
            jnp.moveaxis(mask.kept(infos[name], term, None), self.axis(name) or 0, 0)
            for name, term in terms.items()
        ]
        return sum(
            (part.reshape(part.shape[0], -1).sum(axis=1) for part in parts),
            start=jnp.zeros((), parts[0].dtype),
        )


def check_separate(
    rows: Rows, q: MeanField, data: Data | Mapping[str, np.ndarray], key: Array
) -> bool:
    """Test at the first rows of a batch that a row's likelihood depends on that row alone.

    Returns
    -------
    bool
        Whether that holds of the noise of linear layers too, and so they may be localised.

    Raises
    ------
    UnsupportedModelError
        Where the likelihood of a row changes with the covariates of another.
    """
    # Rows that are the same tell as well, where there is only one.
    index = np.arange(3) % rows.length(data)
    few = {k: jnp.asarray(v) for k, v in values_alone(rows.take(data, index)).items()}  # type: ignore[type-var]
    axes = {name: rows.axis(name) for name in few}
    smooth = {
        k: v
        for k, v in few.items()
        if axes[k] is not None and jnp.issubdtype(v.dtype, jnp.floating)
    }
    n = rows.length(few)

    def others(jacobian: Array, axis: int) -> bool:
        """Whether a row's likelihood has a derivative by something of another row."""
        size = np.abs(np.moveaxis(np.asarray(jacobian), axis + 1, 1)).reshape(n, n, -1).sum(axis=2)
        return bool((size[~np.eye(n, dtype=bool)] > 0).any())

    # At a draw: at a network's prior mean nothing depends on anything.
    draw_key, key = jax.random.split(key)
    z = q.at(jax.random.normal(draw_key, q.mean.shape, q.mean.dtype))

    def refuse(name: str) -> None:
        raise UnsupportedModelError(
            f"Variable {name!r}: expected that a row's likelihood depends on that row alone, "
            f"but along dim {rows.row!r} rows depend on one another (a mean over rows in the "
            "model?). Prepare such values of data before they become data; local variables of "
            "other rows cannot be in it."
        )

    if smooth:
        by_data = _by_data(rows, z, few, smooth)
        for name, jacobian in by_data.items():
            if others(jacobian, axes[name] or 0):
                refuse(name)
    else:  # counts and codes have no derivatives: a row takes the place of another
        counted = {k: v for k, v in few.items() if axes[k] is not None}
        places = np.arange(n)
        orders = [np.where(places == i, (i + 1) % n, places) for i in range(n)]
        found = np.stack([_exchanged(rows, z, few, counted, order) for order in orders])
        same = found == np.asarray(_exchanged(rows, z, few, counted, places))
        if not same[~np.eye(n, dtype=bool)].all():
            refuse(next(iter(counted)))
    local = rows.local
    if local is None:
        return False
    noise = local.noise(few, key)
    sd = jnp.exp(q.log_sd)

    if any(layer.ndim == 0 or layer.shape[0] != n for layer in noise[:-1]):
        return False
    by_noise = _by_noise(rows, z, sd, few, noise)
    return not any(others(jacobian, 0) for jacobian in by_noise)


@partial(jit, once=True)
def _by_data(rows: Rows, z: Array, data: Data, smooth: Data) -> dict[str, Array]:
    """Derivatives of every row's likelihood by data, of all rows."""
    return jax.jacobian(lambda x: rows(z, {**data, **x}))(smooth)


@partial(jit, once=True)
def _exchanged(rows: Rows, z: Array, data: Data, counted: Data, order: Array) -> Array:
    """Every row's likelihood with others' data in the rows' places."""
    return rows(z, {**data, **rows.take(counted, order)})


@partial(jit, once=True)
def _by_noise(rows: Rows, z: Array, sd: Array, data: Data, noise: list[Array]) -> list[Array]:
    """Derivatives of every row's likelihood by the noise of layers' outputs in all rows."""
    local = rows.local
    assert local is not None

    def at(layers: list[Array]) -> Array:
        return rows.by_row(local.log_likelihood_terms(z, sd, data, [*layers, noise[-1]]), data)

    return jax.jacobian(at)(noise[:-1])


def padding(n: int) -> np.ndarray:
    """Positions of n rows, and of the first again up to a length of which there are few.

    What was compiled for it serves again.
    """
    return np.concatenate([np.arange(n), np.zeros(padded(n) - n, int)])


def padded(n: int) -> int:
    """Round up to a number of at most three binary digits, and zeros."""
    unit = 1 << max(n.bit_length() - 3, 0)
    return -(-n // unit) * unit
