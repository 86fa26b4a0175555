"""Places and contexts of many datasets."""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_chunks, over_datasets, taken
from pmcl.data.task import Batch
from pmcl.networks.amortizer import Amortizer, Context
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit
from pmcl.runtime.precision import NETWORK
from pmcl.search.many import places
from pmcl.search.search import Place

_TOGETHER = 8  # datasets that a device works on together
_DRAWS = 64  # of each mode, by which modes are weighed
_EM = 20  # steps of expectation-maximisation
_LEAN = 10.0  # draws' worth of what the search and the network say of the weights


@jit
def _contexts(amortizer: Amortizer, batch: Batch) -> Context:
    def one(data: dict[str, Array], mask: Mask | None, place: Place | None) -> Context:
        context = amortizer.context(data, mask, place)
        # where groups are integrated out a density is too dear
        if amortizer.search is None or not isinstance(amortizer.search.density, Density):
            return context
        if amortizer.modes == 1:
            return context
        density = amortizer.search.density
        return weighed(amortizer, lambda z: density(z, data, mask), context)

    return over_datasets(one, batch, batch.place)


def weighed(
    amortizer: Amortizer, log_density: Callable[[Array], Array], context: Context
) -> Context:
    """The context with modes weighed by the density, at draws of the network from each.

    The evidence of a normal at a mode says little of how much of a posterior is there, where it is
    no normal: the weights are those of the mixture that fits the density best. They are the same
    each time.

    References
    ----------
    Cappe, Douc, Guillin, Marin & Robert (2008), Adaptive importance sampling in general mixture
    classes, section 3.
    """
    own = jnp.exp(amortizer.log_weights(context))
    z, each = amortizer.of_modes(jnp.asarray(_points(amortizer.dim)), context)
    log_q = jax.nn.logsumexp(each, axis=1) - jnp.log(each.shape[1])
    log_p = jax.vmap(log_density)(z)
    usable = jnp.isfinite(log_p) & jnp.isfinite(log_q)
    ratio = jnp.where(usable, log_p - log_q, -jnp.inf)
    top = jnp.max(ratio)
    weight = jnp.exp(ratio - jnp.where(jnp.isfinite(top), top, 0.0))
    weight = jnp.minimum(weight, jnp.mean(weight) * len(weight) ** 0.5)
    weight = weight / jnp.maximum(jnp.sum(weight), 1e-300)

    def step(share: Array, _: None) -> tuple[Array, None]:
        owned = jax.nn.softmax(each + jnp.log(share), axis=1)
        return weight @ jnp.where(usable[:, None], owned, 0.0), None

    share, _ = jax.lax.scan(step, own, length=_EM)
    worth = 1.0 / jnp.maximum(jnp.sum(weight**2), 1e-300)
    share = jnp.where(usable.any(), (worth * share + _LEAN * own) / (worth + _LEAN), own)
    return amortizer.with_weights(context, jnp.log(share))


@cache
def _points(dim: int) -> np.ndarray:
    """Normal draws of shape (draw, dim) that lie evenly, so that few do."""
    from scipy.stats import norm, qmc

    even = qmc.Sobol(dim, rng=np.random.default_rng(0)).random(_DRAWS)
    return norm.ppf(np.clip(even, 1e-6, 1 - 1e-6)).astype(NETWORK)


def placed(
    amortizer: Amortizer, batch: Batch, *, advance: Callable[[int], None] | None = None
) -> Batch:
    """Search for the posterior of every dataset, where the network needs it and nobody has.

    Parameters
    ----------
    amortizer : Amortizer
    batch : Batch
    advance : callable, optional
        Told how many datasets are done.
    """
    if amortizer.search is None or batch.place is not None:
        return batch
    return batch._replace(place=places(amortizer.search, batch, advance=advance))


def contexts(amortizer: Amortizer, batch: Batch, index: np.ndarray) -> Context:
    """Contexts of the datasets `index` of a batch: NumPy arrays with a leading dataset."""
    some = placed(amortizer, taken(batch, index))
    size = devices.together(_TOGETHER)
    return over_chunks(
        lambda part: _contexts(amortizer, part), some, np.arange(len(index)), size=size
    )
