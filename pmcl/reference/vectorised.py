"""NUTS for many datasets in one program: blackjax, in coordinates in which posteriors are round."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from pmcl.compile import Density, Mask
from pmcl.data.batching import over_chunks, over_datasets, over_items
from pmcl.data.task import Batch, Task
from pmcl.draws.prior import prior_draws
from pmcl.reference.backends import Begin, Chains, NutsSettings
from pmcl.reference.whitened import Metric
from pmcl.runtime import devices, precision
from pmcl.runtime.jitting import jit
from pmcl.runtime.progress import progress_bar
from pmcl.search.many import searched, several
from pmcl.search.newton import Mode
from pmcl.search.search import Search, evidence_of

_TOGETHER = 8  # datasets that a device works on together: each waits for the longest trajectory
_DOUBLINGS = 10  # of a trajectory, as elsewhere
_SEARCHED = 16  # datasets
_PRIOR = 200  # draws of the prior that searches start from
_BEGINS = 64  # draws of which each chain begins at one
_WIDE = 2.0  # times the scale of a mode's normal: chains that agree should have met


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
        An equal share of what all took: chunks run beside one another.

    References
    ----------
    Phan, Pradhan & Jankowiak (2019), Composable effects for flexible and accelerated probabilistic
    programming in NumPyro, for the trajectory without recursion; Cabezas et al. (2024), BlackJAX.
    """
    pairs = list(zip(begins, seeds, strict=True))
    starts = (
        np.stack([b.metric.centre for b in begins]),
        np.stack([b.metric.scale for b in begins]),
        np.stack([[b.start(seed + i) for i in range(settings.chains)] for b, seed in pairs]),
        np.asarray(seeds),
    )
    how = {"draws": settings.draws, "tune": settings.tune, "target": settings.target_accept}
    with precision.scope():
        begin = perf_counter()
        with progress_bar("NUTS", len(which), enabled=progressbar) as bar:
            u, stats = over_chunks(
                lambda batch, *start: _run(density, batch, Start(*start), **how),
                task.batch()._replace(place=None),
                which,
                *starts,
                size=devices.together(_TOGETHER),
                advance=bar.advance,
            )
        seconds = np.full(len(which), (perf_counter() - begin) / len(which))
    z = np.stack([b.metric.back(v) for b, v in zip(begins, u, strict=True)])
    return Chains(z, stats), seconds


def begins(density: Density, task: Task) -> list[Begin]:
    """Where chains begin when no draws are at hand: at the modes that a search finds.

    They walk in the coordinates of the best one, and begin at draws spread twice as wide as the
    normals at all modes, in numbers as their evidence.
    """
    compiled = density.compiled
    with precision.scope():
        prior = prior_draws(compiled, task.dataset(0), _PRIOR, seed=0)
        search = Search.of(density, compiled.initial, prior)
        modes: Any
        modes, number, _ = several(searched(search, task.batch()))
        evidence = over_items(_evidence, modes, size=_SEARCHED)
        spread = np.asarray(search.spread)
    there = np.arange(modes.z.shape[1]) < number[:, None]
    weight = np.exp(np.where(there, evidence - evidence.max(axis=1, keepdims=True), -np.inf))
    found = []
    for i, z in enumerate(modes.z):
        rng = np.random.default_rng([0, task.position[i]])
        wide = modes.scale.lower[i] if search.exact else modes.scale.diagonal[i]
        total = weight[i].sum()
        if not (np.isfinite(wide[0]).all() and total > 0):  # no mode: the prior, or about a point
            about = np.asarray(prior)[:_BEGINS]
            if not (about.shape[1:] == z.shape[1:] and np.isfinite(about).all()):
                about = compiled.initial + spread * rng.normal(size=(_BEGINS, z.shape[1]))
            found.append(Begin(Metric(compiled.initial, _shaped(spread, wide[0])), about))
            continue
        at = rng.choice(len(z), _BEGINS, p=weight[i] / total)
        eps = _WIDE * rng.normal(size=(_BEGINS, z.shape[1]))
        draws = np.stack([Metric(z[k], wide[k]).back(e) for k, e in zip(at, eps, strict=True)])
        found.append(Begin(Metric(z[0], wide[0]), draws))
    return found


def _shaped(spread: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.diag(spread) if like.ndim == 2 else spread


@jit
def _evidence(modes: Mode) -> Array:
    return jax.vmap(evidence_of)(modes)


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

            def step(state: Any, key: Array) -> tuple[Any, tuple[Array, dict[str, Array]]]:
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
