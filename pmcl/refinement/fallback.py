"""NUTS for the datasets whose draws cannot be trusted, from the best draws that there are."""

import os
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from pmcl.compile import CompiledModel, Density
from pmcl.data.task import Task
from pmcl.draws.densities import densities
from pmcl.draws.drawn import Drawn
from pmcl.reference.backends import Begin, Chains, NutsSettings
from pmcl.reference.nuts import Warm, kept, nuts
from pmcl.reference.sample import convergence
from pmcl.reference.vectorised import vectorised
from pmcl.refinement.treatment import replaced

_CHAINS = 4
_THIN = 2
_TUNE = 500  # the metric is given: the step size is what is left to tune
_TARGET_ACCEPT = 0.9  # what refinement did not manage is curved
MOST_RHAT = 1.05
_STUCK = 10  # effective draws of a chain alone: below, it says nothing of where a posterior is
_FEWEST_ESS = 100  # or a quarter of the draws, where that is less


class Fallen(NamedTuple):
    """Draws of NUTS for some datasets, and how well its chains agree.

    Attributes
    ----------
    drawn : Drawn
        Without densities under the network (NaN).
    rhat, ess : array of shape (dataset,)
        The worst over z.
    divergences : array of shape (dataset,)
    gradients : array of shape (dataset,)
        Evaluations after tuning.
    warning : array of str, shape (dataset,)
        Empty where the chains agree.
    """

    drawn: Drawn
    rhat: np.ndarray
    ess: np.ndarray
    divergences: np.ndarray
    gradients: np.ndarray
    warning: np.ndarray

    def but(self, failures: Mapping[int, str]) -> "Fallen":
        """The same, with what the sampler said of datasets on which it failed, by position."""
        warning = self.warning.copy()
        for i, said in failures.items():
            warning[i] = said
        return self._replace(warning=warning)


def by_nuts(
    compiled: CompiledModel,
    task: Task,
    z: np.ndarray,
    which: np.ndarray,
    *,
    draws: int,
    seed: int,
    progressbar: bool,
) -> Fallen:
    """Sample some datasets of a task by NUTS, all with one compilation.

    Where chains do not agree they run once more: from what they found, or from the model's initial
    point where they did not move at all. A dataset on which NUTS fails keeps the others from
    nothing: its draws are NaN, and the warning says why.

    Parameters
    ----------
    compiled, task
    z : array of shape (dataset, draw, dim)
        Draws to start from, of the datasets `which`: each chain begins at one of them, and their
        moments are the metric.
    which : array of int
        Positions in the task.
    draws : int
        In all; four chains share them, which take twice as many.
    seed : int
        The draws depend on it and on the datasets' positions among all.
    progressbar : bool
    """
    found = nuts(
        compiled.model,
        [task.dataset(int(i)) for i in which],
        names=[task.names[i] for i in which],
        settings=_settings(draws),
        warm=Warm([Begin.at(v) for v in z], partial(_again, compiled.initial, draws)),
        cache=kept(compiled),
        random_seed=_seeds(task, which, seed),
        progressbar=progressbar,
    )
    return _fallen(compiled, task, which, Chains(found.unconstrained, found.stats), draws).but(
        found.failures
    )


def together(
    density: Density,
    task: Task,
    z: np.ndarray,
    which: np.ndarray,
    *,
    draws: int,
    seed: int,
    progressbar: bool,
) -> Fallen:
    """As :func:`by_nuts`, the chains of several datasets at a time, in one compiled program."""

    def sampled(rows: np.ndarray, begins: list[Begin], salt: int) -> Chains:
        seeds = [s ^ salt for s in _seeds(task, which[rows], seed)]
        return vectorised(
            density, task, which[rows], begins, _settings(draws), seeds, progressbar=progressbar
        )[0]

    chains = sampled(np.arange(len(which)), [Begin.at(v) for v in z], 0)
    anew = {i: _again(density.compiled.initial, draws, v) for i, v in enumerate(chains.z)}
    again = {i: begin for i, begin in anew.items() if begin is not None}
    if again:
        rows = np.asarray(list(again))
        chains = replaced(chains, rows, sampled(rows, list(again.values()), 1))
    return _fallen(density.compiled, task, which, chains, draws)


def _settings(draws: int) -> NutsSettings:
    each = -(-draws // _CHAINS)
    return NutsSettings(max(_THIN * each, 4), _TUNE, _CHAINS, os.cpu_count(), _TARGET_ACCEPT)


def _again(initial: np.ndarray, draws: int, chains: np.ndarray) -> Begin | None:
    """Where chains (chain, draw, dim) that do not agree begin once more; None where they do."""
    said = convergence(chains[None], {}, np.zeros(1))
    if not _warning(said["rhat"][0], said["ess"][0], 0, draws):
        return None
    alone = convergence(chains[:, None], {}, np.zeros(len(chains)))["ess"]
    # chains that walk well and do not meet have found modes, which they keep
    if np.median(alone) < _STUCK:
        return Begin.about(initial)
    return Begin.at(chains.reshape(-1, chains.shape[-1]))


def _fallen(
    compiled: CompiledModel, task: Task, which: np.ndarray, chains: Chains, draws: int
) -> Fallen:
    """What chains with a leading dataset are worth, and `draws` of them."""
    stats = {k: np.moveaxis(v, 0, 2) for k, v in chains.stats.items()}
    agreed = convergence(chains.z, stats, np.zeros(len(which)))
    flat = chains.z[:, :, ::_THIN].reshape(len(which), -1, compiled.dim)[:, :draws]
    log_prior, log_likelihood = densities(compiled, flat, task.select(which))
    drawn = Drawn(flat, np.full(log_prior.shape, np.nan), log_prior, log_likelihood)
    columns = (agreed["rhat"], agreed["ess"], agreed["divergences"])
    warning = [_warning(r, e, d, draws) for r, e, d in zip(*columns, strict=True)]
    gradients = chains.stats["n_steps"].sum(axis=(1, 2))
    return Fallen(drawn, *columns, gradients, np.asarray(warning, dtype=object))


def _seeds(task: Task, which: np.ndarray, seed: int) -> list[int]:
    return [_seed(seed, int(i)) for i in task.position[which]]


def _seed(seed: int, position: int) -> int:
    return int(np.random.SeedSequence([seed, position]).generate_state(1)[0] >> 1)


def _warning(rhat: float, ess: float, divergences: int, draws: int) -> str:
    """Say what is wrong with the chains of one dataset; empty: nothing."""
    found = []
    if not rhat <= MOST_RHAT:
        found.append(f"r-hat of NUTS {rhat:.2f} is above {MOST_RHAT}")
    fewest = min(_FEWEST_ESS, draws // 4)
    if not ess >= fewest:
        found.append(f"effective sample size of NUTS {ess:.0f} is below {fewest}")
    if divergences:
        found.append(f"{divergences} divergences of NUTS")
    return "; ".join(found)
