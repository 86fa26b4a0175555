"""Batches of rows that have local variables."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel
from pmcl.compile.local_variables import LocalVariables
from pmcl.online.gaussian import MeanField
from pmcl.online.latent.encoder import EncoderNetwork
from pmcl.online.latent.features import features, length
from pmcl.online.rows import AbstractRows, Data, Rows
from pmcl.runtime.jitting import jit

_CHUNK = 50  # draws that are weighed together
_INFORMATION = 10  # draws of local variables for one gradient of the bound


class LatentRows(eqx.Module, AbstractRows):
    """Lower bounds of the rows' log likelihoods, their local variables integrated out.

    Where :class:`Rows` has a likelihood, here is the bound of it that a draw of the encoder gives,
    so that searches and baselines do with one as with the other.

    Attributes
    ----------
    rows : Rows
        Of the model with its local variables observed.
    local : LocalVariables
    learning_rate : float
        Of the encoder.
    encoder : EncoderNetwork
    """

    rows: Rows = eqx.field(static=True)
    local: LocalVariables = eqx.field(static=True)
    learning_rate: float = eqx.field(static=True)
    encoder: EncoderNetwork

    @property
    def compiled(self) -> CompiledModel:  # type: ignore[override]
        """The model with its local variables observed."""
        return self.rows.compiled

    def narrow(self, shapes: tuple[tuple[int, ...], ...]) -> "LatentRows":
        """Rows of the model with variables of other shapes."""
        return replace(self, rows=self.rows.narrow(shapes))

    def widened(self, found: "LatentRows") -> "LatentRows":
        """These rows with the encoder that was trained in narrower ones."""
        return replace(self, encoder=found.encoder)

    def pace(self, rate: float) -> float:
        """Learning rate of the encoder, over that of z."""
        return self.learning_rate / rate

    def length(self, data: Mapping[str, Array] | Mapping[str, np.ndarray]) -> int:
        """Number of rows of a batch's data."""
        return length(self.rows, self.local, data)

    def take[T: (Array, np.ndarray)](self, data: Mapping[str, T], index: T) -> dict[str, T]:
        """Choose rows of a batch's data; what all rows share stays."""
        return self.rows.take(data, index)

    def total[T](self, function: Callable[[Array, Data], T], data: Data) -> T:
        """Sum a function of the position of every row and the row alone, one after another."""

        def one(i: Array) -> T:
            return function(i, self.take(data, i[None]))

        def add(so_far: T, i: Array) -> tuple[T, None]:
            return jax.tree.map(jnp.add, so_far, one(i)), None

        index = jnp.arange(self.length(data))
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, index[0]))
        return jax.lax.scan(add, nothing, index)[0]

    def encode(self, data: Data) -> tuple[Array, Array]:
        """Mean and log standard deviation of every row's u, each of shape (row, size)."""
        return self.encoder(*features(self.rows, self.local, data))

    def drawn(self, q: MeanField, data: Data, key: Array, sign: float = 1.0) -> Array:
        """Bound of every row's log likelihood at a draw of q and of the encoder (nats).

        The entropy of the encoder's normal is exact, the rest is at the draws.

        References
        ----------
        Nguyen et al. (2018), section 4, the sum in the bound of VCL.
        """
        encoder_key, key = jax.random.split(key)
        u, log_sd = self._encoded(data, encoder_key, sign)
        values = {**data, **self.local.constrain(u)}
        terms = self.rows.drawn_terms(q, values, key, sign)
        return self._bound(terms, data, u) + entropy(log_sd)

    def at(self, z: Array, data: Data, key: Array) -> Array:
        """Bound of every row's log likelihood at one z and a draw of the encoder (nats)."""
        u, log_sd = self._encoded(data, key)
        values = {**data, **self.local.constrain(u)}
        terms = self.compiled.log_likelihood_terms(z, values)
        return self._bound(terms, data, u) + entropy(log_sd)

    def squared_slope(self, z: Array, data: Data, key: Array) -> Array:
        """Squares of the gradient of one row's bound, an estimate that is right in the mean.

        The product of two means over draws of the encoder: the square of one would have its noise
        in it.
        """

        def slope(key: Array) -> Array:
            keys = jax.random.split(key, _INFORMATION // 2)
            return jax.grad(lambda z: jnp.mean(jax.vmap(lambda k: self.at(z, data, k)[0])(keys)))(z)

        one, two = jax.random.split(key)
        return slope(one) * slope(two)

    def log_ratio(self, q: MeanField, data: Data, key: Array) -> tuple[Array, Array]:
        """Draw a row's u and weigh it: log p(row, u | z) / q(u | row), with z drawn from q.

        Returns
        -------
        u : Array of shape (row, size)
        log_ratio : Array of shape (row,)
            Its mean, after exponentiation, is the row's predictive density.
        """
        encoder_key, key = jax.random.split(key)
        mean, log_sd = self.encode(data)
        u = mean + jnp.exp(log_sd) * jax.random.normal(encoder_key, mean.shape, mean.dtype)
        values = {**data, **self.local.constrain(u)}
        log_q = jax.vmap(lambda m, s, v: MeanField(m, s).log_density(v))(mean, log_sd, u)
        return u, self._bound(self.rows.drawn_terms(q, values, key), data, u) - log_q

    def fisher_data(
        self, z: Array, data: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Mapping[str, np.ndarray]:
        """Return the rows as they are: the encoder knows only such."""
        return data

    def _encoded(self, data: Data, key: Array, sign: float = 1.0) -> tuple[Array, Array]:
        mean, log_sd = self.encode(data)
        noise = sign * jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.exp(log_sd) * noise, log_sd

    def _bound(self, terms: Mapping[str, Array], data: Data, u: Array) -> Array:
        return self.rows.by_row(terms, data) + self.local.log_jacobian(u)


def entropy(log_sd: Array) -> Array:
    """Entropy of a normal of u with independent entries (nats, shape (row,))."""
    return jnp.sum(log_sd + (1 + jnp.log(2 * jnp.pi)) / 2, axis=-1)


@jit
def _weigh(rows: LatentRows, q: MeanField, data: Data, keys: Array) -> tuple[Array, Array]:
    return jax.lax.map(lambda key: rows.log_ratio(q, data, key), keys)


def weigh(
    rows: LatentRows, q: MeanField, data: Data, key: Array, draws: int, *, keep: bool = False
) -> tuple[np.ndarray | None, np.ndarray]:
    """Draw local variables and weigh them, some draws at a time.

    Returns
    -------
    u : ndarray of shape (draw, row, size), or None
        None unless `keep`.
    log_ratio : ndarray of shape (draw, row)
    """
    kept, ratios = [], []
    for i in range(-(-draws // _CHUNK)):
        keys = jax.random.split(jax.random.fold_in(key, i), _CHUNK)
        u, ratio = _weigh(rows, q, data, keys)
        ratios.append(np.asarray(ratio))
        if keep:
            kept.append(np.asarray(u))
    return (np.concatenate(kept)[:draws] if keep else None), np.concatenate(ratios)[:draws]
