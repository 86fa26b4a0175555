"""Rows with local variables of their own, told by an encoder: the bound and the updates."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel, jit
from pmcl.compile.latent import LocalVariables
from pmcl.compile.predictive import lengths_of, predict
from pmcl.online import projection
from pmcl.online.gaussian import MeanField
from pmcl.online.inference import (
    Info,
    Problem,
    Settings,
    State,
    a_point,
    begin,
    drifted,
    follow,
)
from pmcl.online.rows import Batch, Data, Rows, padding

_THERE = " is there"  # after a variable's name: which of its values are not missing
FARTHEST = 10.0  # standard deviations: an encoder does not see beyond
_QUARTILES = 1.349  # standard deviations from one to the other
_FEW = 100  # rows at which the prior of local variables is looked at
_PARAMETERS = 16  # and draws of the parameters
_ENOUGH = 1000  # rows by which rows are standardised
_ROUNDING = 1e-6  # standard deviation over location: what counts as no change
_CHUNK = 50  # draws that are weighed together
_INFORMATION = 10  # draws of local variables for one gradient of the bound


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


class LatentRows(eqx.Module):
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
    def compiled(self) -> CompiledModel:
        """The model with its local variables observed."""
        return self.rows.compiled

    def length(self, data: Mapping[str, Array] | Mapping[str, np.ndarray]) -> int:
        """Number of rows of a batch's data."""
        return length(self.rows, self.local, data)

    def take[T: (Array, np.ndarray)](self, data: Mapping[str, T], index: T) -> dict[str, T]:
        """Choose rows of a batch's data; what all rows share stays."""
        return take(self.rows, data, index)

    def part(self, batch: Batch, index: Array | None) -> Batch:
        """Choose rows of a batch, with their weights; None: all."""
        if index is None:
            return batch
        return Batch(self.take(batch.data, index), batch.weights[index])

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
        """Sum the terms of every row, without those of what is missing."""
        found = dict(terms)
        for name, term in terms.items():
            there = data.get(name + _THERE)
            if there is not None:
                there = jnp.all(there, axis=tuple(range(term.ndim, there.ndim)))
                found[name] = jnp.where(there, term, 0.0)
        return self.rows.by_row(found) + self.local.log_jacobian(u)


def entropy(log_sd: Array) -> Array:
    """Entropy of a normal of u with independent entries (nats, shape (row,))."""
    return jnp.sum(log_sd + (1 + jnp.log(2 * jnp.pi)) / 2, axis=-1)


def with_gaps(
    values: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Put what is missing beside the values."""
    return {**values, **{name + _THERE: v for name, v in there.items()}}


def values_alone(data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take the values, without what says which are missing."""
    return {name: v for name, v in data.items() if not name.endswith(_THERE)}


def has_gaps(data: Mapping[str, object]) -> bool:
    """Whether anything is missing."""
    return any(name.endswith(_THERE) for name in data)


def take[T: (Array, np.ndarray)](rows: Rows, data: Mapping[str, T], index: T) -> dict[str, T]:
    """Choose rows of a batch's data, with what is missing of them."""
    axes = {name: rows.axis(name.removesuffix(_THERE)) for name in data}
    return {k: v if axes[k] is None else v.take(index, axis=axes[k]) for k, v in data.items()}


def lengthened(
    rows: Rows, data: Mapping[str, np.ndarray], n: int
) -> tuple[dict[str, Array], np.ndarray]:
    """Add copies of the first of n rows (:func:`pmcl.online.rows.padding`); say which are not."""
    index = padding(n)
    filled = take(rows, {k: np.asarray(v) for k, v in data.items()}, index)
    return {k: jnp.asarray(v) for k, v in filled.items()}, np.arange(len(index)) < n


def length(
    rows: Rows, local: LocalVariables, data: Mapping[str, Array] | Mapping[str, np.ndarray]
) -> int:
    """Number of rows of a batch's data."""
    first = next(i for i in rows.compiled.observed if i.name not in local.names)
    return data[first.name].shape[first.dims.index(rows.row)]


def features(
    rows: Rows, local: LocalVariables, data: Data | Mapping[str, np.ndarray]
) -> tuple[Array, Array]:
    """What an encoder sees: numbers of shape (row, features), and which of them are there.

    All observed variables and covariates that rows do not share.
    """
    named = [i.name for i in rows.compiled.data if i.name not in local.names]
    parts, there = [], []
    for name in named:
        axis = rows.axis(name)
        if axis is None:
            continue
        value = jnp.moveaxis(jnp.asarray(data[name], jnp.result_type(float)), axis, 0)
        seen = data.get(name + _THERE)
        seen = jnp.ones(value.shape, bool) if seen is None else jnp.moveaxis(seen, axis, 0)
        parts.append(value.reshape(len(value), -1))
        there.append(seen.reshape(len(value), -1))
    return jnp.concatenate(parts, axis=1), jnp.concatenate(there, axis=1)


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
    problem: Problem, local: LocalVariables, data: Mapping[str, np.ndarray], key: Array
) -> Imagined:
    """Draw a few rows from the prior, at the covariates of a batch."""
    rows = problem.rows
    few = take(rows, data, np.arange(min(length(rows, local, data), _FEW)))
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
    problem: Problem,
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
        some = take(rows, values_alone(data), np.arange(few))
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


def update(
    problem: Problem,
    latents: Latents,
    state: State,
    data: Mapping[str, np.ndarray],
    imagined: Imagined,
    time: float,
    settings: Settings,
    key: Array,
    advance: Callable[[int, str], None] = lambda n, note: None,
) -> tuple[State, Latents, Info]:
    """Return what is known after a batch of rows with local variables of their own.

    References
    ----------
    Nguyen et al. (2018), section 4.
    """
    network_key, start_key, key = jax.random.split(key, 3)
    network = encoder_for(latents, problem, data, imagined, network_key)
    rows = LatentRows(problem.rows, latents.variables, latents.encoder.learning_rate, network)
    n = rows.length(data)
    filled, there = lengthened(problem.rows, data, n)
    batch = Batch(filled, jnp.asarray(settings.power * there, jnp.result_type(float)))
    first = not state.updates
    moved = state.q
    if not first:
        moved = drifted(problem, settings.drift, state.q, time - state.time)
    if settings.method is None:
        begun = begin(
            problem, rows, moved, batch, settings, None if first else moved, start_key, advance
        )
        remainder = problem.remainder if first else None
        climbed = projection.climb(
            rows, begun.q, moved, batch, settings.search, key,
            remainder=remainder, more=settings.more(moved, problem.prior), narrow=begun.narrow,
            first=first, advance=advance,
        )  # fmt: skip
        steps = begun.steps + len(climbed.lower_bound)
        q = predictive = climbed.q
        trained, skipped = climbed.rows, climbed.skipped
        bound = float(np.mean(climbed.lower_bound[-max(len(climbed.lower_bound) // 10, 1) :]))
    else:
        q, found, steps = follow(
            problem, rows, state, moved, batch, settings, settings.method, (start_key, key), advance
        )
        predictive = a_point(found.mean)
        trained, skipped = found.rows, found.skipped
        bound = np.nan
    assert isinstance(trained, LatentRows)
    info = Info(
        n, 0, exact=False, steps=steps, skipped=skipped,
        lower_bound=bound, clamped=0, khat=np.nan,
    )  # fmt: skip
    kept = latents.networks if latents.encoder.per_task else ()
    networks = (*kept, trained.encoder)
    now = State(q, predictive, state.memory, time, state.seen + n, state.updates + 1)
    return now, latents._replace(networks=networks), info


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
