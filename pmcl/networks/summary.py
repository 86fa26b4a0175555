"""Summary networks: a dataset's rows -> one vector. Specifications are public, modules private."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


class AbstractSummaryNetwork(eqx.Module):
    """A built summary network: rows (n, features) and a mask (n,) -> vector of length outputs."""

    @abstractmethod
    def __call__(self, rows: Array, mask: Array | None) -> Array:
        """Summarise the rows of one dataset; rows where `mask` is False are padding."""


class AbstractSummary(eqx.Module):
    """A specification of a summary network: hyper-parameters only, built once data are known."""

    @abstractmethod
    def build(self, features: int, *, key: Array) -> AbstractSummaryNetwork:
        """Build the network for rows of `features` numbers."""


def _mean(values: Array, mask: Array | None) -> Array:
    if mask is None:
        return jnp.mean(values, axis=0)
    weights = mask.astype(values.dtype)[:, None]
    return jnp.sum(values * weights, axis=0) / jnp.maximum(jnp.sum(weights), 1.0)


class _DeepSetNetwork(AbstractSummaryNetwork):
    inner: eqx.nn.MLP
    outer: eqx.nn.MLP

    def __call__(self, rows: Array, mask: Array | None) -> Array:
        return self.outer(_mean(jax.vmap(self.inner)(rows), mask))


class DeepSet(AbstractSummary):
    """Permutation-invariant summary: the mean of a network over the rows, then another network.

    Attributes
    ----------
    outputs : int
        Length of the summary.
    width, depth : int
        Hidden units and hidden layers of both networks.
    pooled : int
        Length of the vector that is averaged over rows.

    References
    ----------
    Zaheer et al. (2017), Deep Sets, theorem 2.
    """

    outputs: int = 32
    width: int = 64
    depth: int = 2
    pooled: int = 64

    def build(self, features: int, *, key: Array) -> AbstractSummaryNetwork:
        inner, outer = jax.random.split(key)
        return _DeepSetNetwork(
            eqx.nn.MLP(features, self.pooled, self.width, self.depth, jax.nn.silu, key=inner),
            eqx.nn.MLP(self.pooled, self.outputs, self.width, self.depth, jax.nn.silu, key=outer),
        )


class _AttentionBlock(eqx.Module):
    """Multihead attention block MAB(x, y), eq. 6 of Lee et al. (2019)."""

    attention: eqx.nn.MultiheadAttention
    feedforward: eqx.nn.MLP
    norm_attention: eqx.nn.LayerNorm
    norm_feedforward: eqx.nn.LayerNorm

    def __init__(self, width: int, heads: int, hidden: int, depth: int, *, key: Array):
        attention, feedforward = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=attention)
        self.feedforward = eqx.nn.MLP(width, width, hidden, depth, jax.nn.gelu, key=feedforward)
        self.norm_attention = eqx.nn.LayerNorm(width)
        self.norm_feedforward = eqx.nn.LayerNorm(width)

    def __call__(self, x: Array, y: Array, mask: Array | None) -> Array:
        pairs = None if mask is None else jnp.broadcast_to(mask, (x.shape[0], y.shape[0]))
        h = jax.vmap(self.norm_attention)(x + self.attention(x, y, y, mask=pairs))
        return jax.vmap(self.norm_feedforward)(h + jax.vmap(self.feedforward)(h))


class _InducedBlock(eqx.Module):
    """Induced set attention ISAB, eqs. 9 and 10: cost linear in the rows."""

    points: Array
    gather: _AttentionBlock
    spread: _AttentionBlock

    def __call__(self, x: Array, mask: Array | None) -> Array:
        return self.spread(x, self.gather(self.points, x, mask), None)


class _SetTransformerNetwork(AbstractSummaryNetwork):
    embed: eqx.nn.Linear
    blocks: tuple[_InducedBlock, ...]
    seed: Array
    pool: _AttentionBlock
    project: eqx.nn.Linear

    def __call__(self, rows: Array, mask: Array | None) -> Array:
        x = jax.vmap(self.embed)(rows)
        for block in self.blocks:
            x = block(x, mask)
        return self.project(self.pool(self.seed, x, mask)[0])


class SetTransformer(AbstractSummary):
    """Permutation-invariant summary by induced set attention; cost is linear in the rows.

    Attributes
    ----------
    outputs : int
        Length of the summary.
    width, heads : int
        Embedding and attention heads.
    hidden, depth : int
        Hidden units and layers of the feed-forward parts.
    blocks : int
        Number of induced attention blocks.
    inducing : int
        Number of inducing points.

    References
    ----------
    Lee et al. (2019), Set Transformer, sections 3.1 and 3.2.
    """

    outputs: int = 50
    width: int = 64
    heads: int = 4
    hidden: int = 128
    depth: int = 1
    blocks: int = 2
    inducing: int = 16

    def build(self, features: int, *, key: Array) -> AbstractSummaryNetwork:
        embed, blocks, seed, pool, project = jax.random.split(key, 5)

        def attention(k: Array) -> _AttentionBlock:
            return _AttentionBlock(self.width, self.heads, self.hidden, self.depth, key=k)

        def induced(k: Array) -> _InducedBlock:
            points, gather, spread = jax.random.split(k, 3)
            return _InducedBlock(
                jax.random.normal(points, (self.inducing, self.width)) / jnp.sqrt(self.width),
                attention(gather),
                attention(spread),
            )

        return _SetTransformerNetwork(
            eqx.nn.Linear(features, self.width, key=embed),
            tuple(induced(k) for k in jax.random.split(blocks, self.blocks)),
            jax.random.normal(seed, (1, self.width)) / jnp.sqrt(self.width),
            attention(pool),
            eqx.nn.Linear(self.width, self.outputs, key=project),
        )


class _RecurrentNetwork(AbstractSummaryNetwork):
    cell: eqx.nn.GRUCell | eqx.nn.LSTMCell
    head: eqx.nn.MLP

    def __call__(self, rows: Array, mask: Array | None) -> Array:
        zero = jnp.zeros(self.cell.hidden_size, rows.dtype)
        lstm = isinstance(self.cell, eqx.nn.LSTMCell)
        start = (zero, zero) if lstm else zero
        keep = jnp.ones(rows.shape[0], bool) if mask is None else mask

        def step(state: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
            row, valid = inputs
            new = self.cell(row, state)
            # Padding leaves the state alone, so the last state is that of the last real row.
            return jax.tree.map(lambda a, b: jnp.where(valid, a, b), new, state), None

        state, _ = jax.lax.scan(step, start, (rows, keep))
        return self.head(state[0] if lstm else state)


class Recurrent(AbstractSummary):
    """Summary of a sequence: the last state of a recurrent cell, then a network.

    Attributes
    ----------
    outputs : int
        Length of the summary.
    cell : {"gru", "lstm"}
    state : int
        Length of the recurrent state.
    width, depth : int
        Hidden units and layers of the network after it.

    References
    ----------
    Cho et al. (2014) for the GRU; Hochreiter & Schmidhuber (1997) for the LSTM.
    """

    outputs: int = 64
    cell: Literal["gru", "lstm"] = "gru"
    state: int = 64
    width: int = 128
    depth: int = 1

    def build(self, features: int, *, key: Array) -> AbstractSummaryNetwork:
        cell, head = jax.random.split(key)
        kinds: dict[str, Callable] = {"gru": eqx.nn.GRUCell, "lstm": eqx.nn.LSTMCell}
        if self.cell not in kinds:
            raise ValueError(f"Recurrent: expected cell 'gru' or 'lstm', got {self.cell!r}.")
        return _RecurrentNetwork(
            kinds[self.cell](features, self.state, key=cell),
            eqx.nn.MLP(self.state, self.outputs, self.width, self.depth, jax.nn.silu, key=head),
        )


class _FlattenNetwork(AbstractSummaryNetwork):
    def __call__(self, rows: Array, mask: Array | None) -> Array:
        return jnp.ravel(rows)


class Flatten(AbstractSummary):
    """No summary: the flow sees all values of a dataset of fixed size."""

    def build(self, features: int, *, key: Array) -> AbstractSummaryNetwork:
        return _FlattenNetwork()
