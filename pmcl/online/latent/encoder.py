"""Encoders: the posterior of a row's local variables from the row."""

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.local_variables import LocalVariables
from pmcl.compile.predictive import lengths_of, predict
from pmcl.online.gaps import has_gaps, values_alone
from pmcl.online.latent.features import features, length
from pmcl.online.rows import Rows
from pmcl.online.state import RowModel

FARTHEST = 10.0  # standard deviations: an encoder does not see beyond
_QUARTILES = 1.349  # standard deviations from one to the other
_FEW = 100  # rows at which the prior of local variables is looked at
_PARAMETERS = 16  # and draws of the parameters
_ENOUGH = 1000  # rows by which rows are standardised
_ROUNDING = 1e-6  # standard deviation over location: what counts as no change


class Encoder(eqx.Module):
    """How the local variables of a row are told from its data: a network gives their normal.

    The network is fully connected; beside it there is a linear map, which is all that is needed
    where the model is linear and Gaussian.

    Attributes
    ----------
    width, depth : int
        Hidden units and layers.
    per_task : bool
        Whether every update has an encoder of its own, as in the paper; else there is one, which is
        trained on.
    warm : bool
        Whether a new one begins with the last one's weights.
    learning_rate : float
        At first; it falls to zero by a cosine.

    References
    ----------
    Kingma & Welling (2014), Auto-encoding variational Bayes; Nguyen et al. (2018), section 4.
    """

    width: int = 200
    depth: int = 2
    per_task: bool = False
    warm: bool = True
    learning_rate: float = 1e-3

    def __check_init__(self) -> None:
        if self.width < 1 or self.depth < 0:
            raise ValueError(
                "Encoder: expected a width of at least 1 and a depth of at least 0, got "
                f"{self.width} and {self.depth}."
            )
        if not self.learning_rate > 0:
            raise ValueError(
                f"Encoder: expected a learning_rate above 0, got {self.learning_rate}."
            )

    def build(self, features: int, size: int, *, masked: bool, key: Array) -> "EncoderNetwork":
        """Build the network for rows of `features` numbers and u of length `size`.

        With `masked`, it is told of each number whether it is there.
        """
        deep, straight = jax.random.split(key)
        inputs = 2 * features if masked else features
        return EncoderNetwork(
            eqx.nn.MLP(inputs, 2 * size, self.width, self.depth, jax.nn.silu, key=deep),
            eqx.nn.Linear(inputs, 2 * size, use_bias=False, key=straight),
            jnp.zeros(features),
            jnp.zeros(features),
            jnp.ones(features),
            jnp.zeros(size),
            jnp.ones(size),
        )

    def told_of_gaps(self, network: "EncoderNetwork") -> "EncoderNetwork":
        """Return a network that is told what is missing, and as yet does not care."""
        size = len(network.centre)
        wide = self.build(len(network.location), size, masked=True, key=jax.random.key(0))
        arrays, rest = eqx.partition(wide, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        filled = [
            old if old.shape == new.shape else jnp.concatenate([old, jnp.zeros_like(old)], axis=1)
            for old, new in zip(
                jax.tree.leaves(eqx.filter(network, eqx.is_array)), leaves, strict=True
            )
        ]
        return eqx.combine(jax.tree.unflatten(structure, filled), rest)


class EncoderNetwork(eqx.Module):
    """A built encoder: rows -> mean and log standard deviation of u.

    Attributes
    ----------
    network, straight : eqx.nn.MLP, eqx.nn.Linear
    count, location, scale : Array of shape (features,)
        Of the rows, from how many; they are not trained.
    centre, spread : Array of shape (size,)
        Of u a priori; they are not trained.
    """

    network: eqx.nn.MLP
    straight: eqx.nn.Linear
    count: Array
    location: Array
    scale: Array
    centre: Array
    spread: Array

    @property
    def masked(self) -> bool:
        """Whether it is told what is missing."""
        return self.straight.in_features != len(self.location)

    def __call__(self, rows: Array, there: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation of u, each of shape (row, size)."""
        scaled = jnp.clip(self._standardised(rows), -FARTHEST, FARTHEST)
        scaled = jnp.where(there, scaled, 0.0)
        if self.masked:
            scaled = jnp.concatenate([scaled, there.astype(scaled.dtype)], axis=1)
        found = jax.vmap(self.network)(scaled) + jax.vmap(self.straight)(scaled)
        mean, log_sd = jnp.split(found, 2, axis=1)
        spread = jax.lax.stop_gradient(self.spread)
        return jax.lax.stop_gradient(self.centre) + spread * mean, jnp.log(spread) + log_sd

    def beyond(self, rows: Array, there: Array) -> Array:
        """Which rows have a value so far out that the network does not see how far: (row,)."""
        return jnp.any(there & (jnp.abs(self._standardised(rows)) > FARTHEST), axis=1)

    def _standardised(self, rows: Array) -> Array:
        return (rows - jax.lax.stop_gradient(self.location)) / jax.lax.stop_gradient(self.scale)


class Latents(NamedTuple):
    """What is known of local variables.

    Attributes
    ----------
    variables : LocalVariables
    encoder : Encoder
    networks : tuple of EncoderNetwork
        One, or one an update.
    """

    variables: LocalVariables
    encoder: Encoder
    networks: tuple[EncoderNetwork, ...] = ()


class Imagined(NamedTuple):
    """What the prior says that rows are like.

    Attributes
    ----------
    local : dict of arrays of shape (draw, row, ...)
        Local variables.
    data : dict of arrays of shape (draw, row, ...)
        Observed variables.
    """

    local: dict[str, np.ndarray]
    data: dict[str, np.ndarray]


def imagine(
    problem: RowModel, local: LocalVariables, data: Mapping[str, np.ndarray], key: Array
) -> Imagined:
    """Draw a few rows from the prior, at the covariates of a batch."""
    rows = problem.rows
    few = rows.take(data, np.arange(min(length(rows, local, data), _FEW)))
    c = rows.compiled
    z = problem.prior.at(jax.random.normal(key, (_PARAMETERS, c.dim)))
    covariates = {i.name: few[i.name].astype(i.dtype) for i in c.covariates}
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    drawn = predict(c, np.asarray(z, np.float64), covariates, lengths_of(c, few), rng=rng)
    return Imagined(
        {n: drawn[n] for n in local.names},
        {n: v for n, v in drawn.items() if n not in local.names},
    )


def encoder_for(
    latents: Latents,
    problem: RowModel,
    data: Mapping[str, np.ndarray],
    imagined: Imagined,
    key: Array,
) -> EncoderNetwork:
    """Return the encoder that an update begins with: the last one, or a new one.

    Rows are standardised by those that came, as long as these are few, and where they say nothing,
    by those that the prior imagines. What is zero or one has no unit: by its standard deviation
    what is rare would be far out, and all that an encoder has learned of it is noise.
    """
    spec, local, rows = latents.encoder, latents.variables, problem.rows
    masked = has_gaps(data)
    last = latents.networks[-1] if latents.networks else None
    seen, there = (np.asarray(v, np.float64) for v in features(rows, local, data))
    count = np.zeros(seen.shape[1])
    if last is not None and masked and not last.masked:
        last = spec.told_of_gaps(last)
    if last is not None and not spec.per_task:
        count = np.asarray(last.count, np.float64)
        if count.min() >= _ENOUGH:
            return last
    if last is None or (spec.per_task and not spec.warm):
        last = spec.build(seen.shape[1], local.size, masked=masked, key=key)
    # Moments of what came before and of this batch together.
    new = there.sum(axis=0)
    total = count + new
    safe = np.maximum(total, 1)
    before, width = np.asarray(last.location, np.float64), np.asarray(last.scale, np.float64)
    mean = (seen * there).sum(axis=0) / np.maximum(new, 1)
    squares = (((seen - mean) * there) ** 2).sum(axis=0)
    location = (count * before + new * mean) / safe
    squares += count * width**2 + count * new / safe * (mean - before) ** 2
    scale = np.sqrt(squares / safe)
    thought = _imagined_features(rows, local, data, imagined)
    imagined_location, imagined_scale = _robust_moments(thought)
    location = np.where(total > 0, location, imagined_location)
    constant = (total < 2) | (scale <= _ROUNDING * np.maximum(np.abs(location), 1e-30))
    scale = np.where(constant, imagined_scale, scale)
    scale = np.where(_binary(seen, there) & _binary(thought, np.isfinite(thought)), 0.5, scale)
    draws = {k: v.reshape(-1, *v.shape[2:]) for k, v in imagined.local.items()}
    u = np.asarray(local.unconstrain(draws), np.float64)
    low, centre, high = np.nanquantile(np.where(np.isfinite(u), u, np.nan), (0.25, 0.5, 0.75), 0)
    spread = (high - low) / _QUARTILES
    if latents.networks and not spec.per_task:
        centre, spread = np.asarray(last.centre), np.asarray(last.spread)
    values = (total, location, scale, centre, np.where(spread > 0, spread, 1.0))
    dtype = last.location.dtype
    return eqx.tree_at(
        lambda e: (e.count, e.location, e.scale, e.centre, e.spread),
        last,
        tuple(jnp.asarray(v, dtype) for v in values),
    )


def _imagined_features(
    rows: Rows, local: LocalVariables, data: Mapping[str, np.ndarray], imagined: Imagined
) -> np.ndarray:
    """Features of rows that the prior draws, shape (row, features); of covariates, as they are."""
    few = len(next(iter(imagined.local.values()))[0])
    drawn = []
    for i in range(_PARAMETERS):
        some = rows.take(values_alone(data), np.arange(few))
        some |= {k: v[i] for k, v in imagined.data.items()}
        drawn.append(np.asarray(features(rows, local, some)[0], np.float64))
    return np.concatenate(drawn)


def _robust_moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Location and scale of every feature, by quartiles."""
    values = np.where(np.isfinite(values), values, np.nan)
    low, middle, high = np.nan_to_num(np.nanquantile(values, (0.25, 0.5, 0.75), axis=0))
    scale = (high - low) / _QUARTILES
    return middle, np.where(scale > 0, scale, np.maximum(np.abs(middle), 1.0))


def _binary(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which features are zero or one wherever they are there: (features,)."""
    return ((values == 0) | (values == 1) | (there == 0)).all(axis=0)
