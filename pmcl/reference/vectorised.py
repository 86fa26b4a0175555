"""NUTS for many datasets in one program: blackjax, in coordinates in which posteriors are round."""

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.task import Batch, Task
from pmcl.reference.backends import Begin, Chains, NutsSettings
from pmcl.runtime import devices, precision
from pmcl.runtime.jitting import jit
from pmcl.runtime.progress import progress_bar

_TOGETHER = 8  # datasets that a device works on together: each waits for the longest trajectory
_DOUBLINGS = 10  # of a trajectory, as elsewhere


class Start(NamedTuple):
    """Where chains walk, and from where: centre and scale of z, u (chain, dim), seed."""

    centre: Array
    scale: Array
    u: Array
    seed: Array


def vectorised(
    density: Density,
    task: Task,
    which: np.ndarray,
    begins: Sequence[Begin],
    settings: NutsSettings,
    seeds: Sequence[int],
    *,
    progressbar: bool,
) -> tuple[Chains, np.ndarray]:
    """Sample some datasets of a task by NUTS, all chains of several datasets at a time.

    Steps and the scale of each coordinate are tuned by each chain (Stan's windows).

    Parameters
    ----------
    density : Density
    task : Task
    which : array of int
        Positions in the task.
    begins : sequence of Begin
        Each dataset's coordinates, and draws that its chains begin at.
    settings : NutsSettings
        `cores` and `sampler` mean nothing here.
    seeds : sequence of int
        Of each dataset, whose draws depend on nothing else.
    progressbar : bool

    Returns
    -------
    chains : Chains
        With a leading dataset.
    seconds : array of shape (dataset,)
        An equal share of what each chunk took.

    References
    ----------
    Phan, Pradhan & Jankowiak (2019), Composable effects for flexible and accelerated probabilistic
    programming in NumPyro, for the trajectory without recursion; Cabezas et al. (2024), BlackJAX.
    """
    with precision.scope():
        start = Start(
            np.stack([b.metric.centre for b in begins]),
            np.stack([b.metric.scale for b in begins]),
            np.stack(
                [
                    [b.start(seed + chain) for chain in range(settings.chains)]
                    for b, seed in zip(begins, seeds, strict=True)
                ]
            ),
            np.asarray(seeds),
        )
        run = partial(_run, density, draws=settings.draws, tune=settings.tune)
        begin = [perf_counter()]
        seconds: list[float] = []
        with progress_bar("NUTS", len(which), enabled=progressbar) as bar:

            def advance(n: int) -> None:
                now = perf_counter()
                seconds.extend([(now - begin[0]) / n] * n)
                begin[0] = now
                bar.advance(n)

            u, stats = over_chunks(
                lambda batch, start: run(batch, start, target=settings.target_accept),
                task.batch()._replace(place=None),
                which,
                start,
                size=devices.together(_TOGETHER),
                advance=advance,
            )
    z = np.stack([b.metric.back(v) for b, v in zip(begins, u, strict=True)])
    return Chains(z, stats), np.asarray(seconds)


@jit
def _run(
    density: Density, batch: Batch, start: Start, *, draws: int, tune: int, target: float
) -> tuple[Array, dict[str, Array]]:
    import blackjax  # takes seconds
    from blackjax.adaptation.base import get_filter_adapt_info_fn

    kernel = blackjax.nuts.build_kernel()
    nothing = get_filter_adapt_info_fn()

    def one(
        data: dict[str, Array], mask: Mask | None, start: Start
    ) -> tuple[Array, dict[str, Array]]:
        def log_density(u: Array) -> Array:
            moved = start.scale * u if start.scale.ndim == 1 else start.scale @ u
            return density(start.centre + moved, data, mask)

        def chain(key: Array, u: Array) -> tuple[Array, dict[str, Array]]:
            tuning, walking = jax.random.split(key)
            warmup = blackjax.window_adaptation(
                blackjax.nuts,
                log_density,
                target_acceptance_rate=target,
                adaptation_info_fn=nothing,
                max_num_doublings=_DOUBLINGS,
            )
            (state, tuned), _ = warmup.run(tuning, u, num_steps=tune)

            def step(state: Array, key: Array) -> tuple[Array, tuple[Array, dict[str, Array]]]:
                state, info = kernel(key, state, log_density, **tuned)
                said = {
                    "lp": state.logdensity,
                    "acceptance_rate": info.acceptance_rate,
                    "diverging": info.is_divergent,
                    "energy": info.energy,
                    "n_steps": info.num_integration_steps,
                    "step_size": tuned["step_size"],
                    "tree_depth": info.num_trajectory_expansions,
                }
                return state, (state.position, said)

            _, walked = jax.lax.scan(step, state, jax.random.split(walking, draws))
            return walked

        keys = jax.random.split(jax.random.key(start.seed), start.u.shape[0])
        return jax.vmap(chain)(keys, start.u)

    return over_datasets(one, batch, start)
