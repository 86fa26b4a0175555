"""Labels of simulated datasets, drawn again by the density."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.networks import Amortizer
from pmcl.search.search import Place


def label_log_q(
    amortizer: Amortizer,
    density: Density,
    z: Array,
    data: dict[str, Array],
    mask: Mask | None,
    place: Place | None,
    key: Array,
    *,
    labels: int,
) -> Array:
    """Mean of log q(z' | h(x)) over a label z' of one simulated dataset, drawn again.

    Given (z, x) from the model's joint and draws z_1 .. z_S of q, to pick one of the S + 1 with
    probability proportional to p(z_s, x) / q(z_s | x) leaves the joint as it is, whatever q is. So
    the mean over the pick is maximum likelihood on simulations as before; but where q is near the
    posterior each dataset counts with S draws in place of one, and nothing is learned by heart.
    Where q misses a part of the posterior, the simulated z keeps its weight.

    Parameters
    ----------
    amortizer, density
    z : Array of shape (dim,)
        The parameters that made the data.
    data, mask, place
    key : Array
    labels : int
        S + 1; 1: the simulated z alone.

    Returns
    -------
    Array of shape ()

    References
    ----------
    Andrieu, Doucet & Holenstein (2010), Particle Markov chain Monte Carlo methods, and Andrieu, Lee
    & Vihola (2018), Uniform ergodicity of the iterated conditional SMC, for the invariance of the
    pick (iterated sampling importance resampling).
    """
    context = amortizer.context(data, mask, place)
    if labels == 1:
        return amortizer.log_prob(z, context)
    still = jax.lax.stop_gradient(eqx.filter(amortizer, eqx.is_array))
    drawn, _ = eqx.combine(still, amortizer).draw(key, labels - 1, jax.lax.stop_gradient(context))
    drawn = jnp.concatenate([z[None].astype(drawn.dtype), jax.lax.stop_gradient(drawn)])
    log_q = jax.vmap(amortizer.log_prob, in_axes=(0, None))(drawn, context)
    log_p = jax.vmap(lambda u: density(u.astype(jnp.float64), data, mask))(drawn)
    ratio = jax.lax.stop_gradient(log_p - log_q)
    ratio = jnp.where(jnp.isfinite(ratio), ratio, -jnp.inf)
    # the simulated z stays where no ratio is finite
    weight = jnp.where(jnp.isfinite(ratio).any(), jax.nn.softmax(ratio), jnp.eye(labels)[0])
    return jnp.sum(jnp.where(weight > 0, weight * log_q, 0.0))
