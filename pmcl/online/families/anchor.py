"""Predictors of a network that are linear in what is known, each where its first rows left it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile.function import Dataset
from pmcl.compile.predictors import Predictor, Predictors

MOST = 8  # anchors


class Anchors(NamedTuple):
    """Where predictors are linearised: at the latest anchor of the entries that they depend on.

    Attributes
    ----------
    at : Array of shape (anchor, dim)
        Beside the modes of the updates that were the first to tell of some entries of z.
    since : Array of int of shape (dim,)
        Of each entry, which of them that was; as many as there are where none was yet.
    """

    at: Array
    since: Array

    @classmethod
    def none(cls, mean: Array) -> "Anchors":
        """No anchor yet."""
        return cls(jnp.zeros((0, len(mean)), mean.dtype), jnp.zeros(len(mean), int))

    @property
    def waiting(self) -> Array:
        """Entries that no predictor has depended on yet; shape (dim,)."""
        return self.since == len(self.at)

    def joined(self, place: Array, new: Array, *, own: bool) -> "Anchors":
        """Linearise what depends on new entries at a place: in all entries, or in these alone."""
        last = len(self.at)
        if own:
            since = jnp.where(self.waiting & ~new, last + 1, self.since)
            return Anchors(jnp.concatenate([self.at, place[None]]), since)
        at = jnp.where(new, place, self.at)
        return Anchors(at, jnp.where(new, 0, self.since))

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether new entries get an anchor of their own, all that may be tried."""
        if not len(self.at):
            return (True,)
        return (False, True) if len(self.at) < MOST else (False,)

    @property
    def settled(self) -> "Anchors":
        """The same with nothing that waits, if there is an anchor."""
        return Anchors(self.at, jnp.where(self.waiting, 0, self.since)) if len(self.at) else self

    def grown(self, mean: Array, index: Array) -> "Anchors":
        """The same among more entries, `index` those that there were; the others at a mean."""
        at = jnp.tile(mean, (len(self.at), 1)).at[:, index].set(self.at)
        return Anchors(at, jnp.full(len(mean), len(at)).at[index].set(self.since))


class Anchored(eqx.Module):
    """Predictors linearised at anchors.

    Attributes
    ----------
    told : Predictors
        Of the model.
    anchors : Anchors
    new : Array of bool of shape (dim,), optional
        Entries of z whose place is searched for.
    own : bool
        Whether these have an anchor of their own: what depends on them is as in the model, in all
        entries of z. Else it is as in the model in them alone.
    """

    told: Predictors
    anchors: Anchors
    new: Array | None = None
    own: bool = eqx.field(static=True, default=True)

    @property
    def parts(self) -> tuple[Predictor, ...]:
        """What is told of each observed variable."""
        return self.told.parts

    def __call__(self, z: Array, dataset: Dataset) -> list[tuple[Array, tuple[Array, ...]]]:
        """Predictors and other parameters at z, as :class:`Predictors` gives them."""
        places, since = list(self.anchors.at), self.anchors.since
        if not places:
            return self.told(z, dataset)
        if self.new is not None and self.own:
            since = jnp.where(self.new, len(places), since)
            places.append(z)
        elif self.new is not None:
            since = jnp.where(self.new, 0, since)
            places = [jnp.where(self.new, z, place) for place in places]

        def told(z: Array) -> list[Array]:
            return [eta for eta, _ in self.told(z, dataset)]

        # in no direction of these is a slope zero but by accident
        along = jnp.asarray(np.random.default_rng(0).normal(size=len(z)), z.dtype)
        found: list[Array] = []
        for i, place in enumerate(places):
            values, changes = jax.jvp(told, (place,), (z - place,))
            here = [v + c for v, c in zip(values, changes, strict=True)]
            if found:
                entries = jnp.where(since == i, along, 0.0)
                slopes = jax.jvp(told, (jax.lax.stop_gradient(place),), (entries,))[1]
                here = [
                    jnp.where((s != 0).any(axis=-1, keepdims=True), h, f)
                    for s, h, f in zip(slopes, here, found, strict=True)
                ]
            found = here
        return [(eta, rest) for eta, (_, rest) in zip(found, self.told(z, dataset), strict=True)]


type Told = Predictors | Anchored
