"""Whether data are like what the network was trained on."""

import numpy as np
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.data.simulated import simulated_task
from pmcl.data.task import DATASET, TaskLike
from pmcl.draws.network import embed
from pmcl.networks.familiarity import Familiar, input_features
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive, seed_of


def check_data(
    posterior: AmortizedPosterior | MultilevelPosterior,
    data: TaskLike,
    *,
    simulations: int = 1000,
    random_seed: int | None = None,
) -> xr.Dataset:
    """Say of every dataset how far it lies outside what the posterior was trained on.

    Amortized draws are right where data look like simulations. Covariates of another distribution,
    or observations that no draw of the prior would give, are what makes a network extrapolate:
    adapt to such data, and look at k-hat. Distances are Mahalanobis distances to the centre of
    fresh simulations, over the root of the number of features; a simulation's own is about 1.

    Parameters
    ----------
    posterior : AmortizedPosterior or MultilevelPosterior
    data : xarray.Dataset, mapping or pandas.DataFrame
        See :func:`pmcl.as_task`.
    simulations : int
        Fresh ones to compare with; half of them give the centre, half the quantiles.
    random_seed : int, optional

    Returns
    -------
    xarray.Dataset
        By `dataset`: `input_distance` (of the values, whatever the network makes of them; of
        where the global parameters are, and how sure, where the model has levels),
        `summary_distance` (of what the network sees), the `input_quantile` and `summary_quantile`
        of both among simulations, and `far`: whether either is well beyond (a quarter) the
        farthest simulation.

    Raises
    ------
    DataError
        Where the data do not fit the model.
    ValueError
        For fewer than 20 simulations.

    References
    ----------
    Schmitt et al. (2024), Detecting model misspecification in amortized Bayesian inference with
    neural networks: distances of summaries to those of simulations.
    """
    if positive("simulations", simulations) < 20:
        raise ValueError(f"simulations: expected at least 20, got {simulations}.")
    seed = seed_of(random_seed, posterior.seed + 2)
    found: dict[str, tuple] = {}
    with precision.scope():
        names, features = _features(posterior, data, simulations, seed)
    far = np.zeros(len(names), bool)
    for kind, (mine, fresh) in features.items():
        familiar = Familiar.of(fresh)
        distance = familiar.distance(mine)
        far |= familiar.far(distance)
        found[f"{kind}_distance"] = (DATASET, distance)
        found[f"{kind}_quantile"] = (DATASET, familiar.quantile(distance))
    found["far"] = (DATASET, far)
    return xr.Dataset(found, coords={DATASET: list(names)})


def _features(
    posterior: AmortizedPosterior | MultilevelPosterior, data: TaskLike, simulations: int, seed: int
) -> tuple[tuple[str, ...], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Names of the datasets; what they are like, and what fresh simulations are."""
    if isinstance(posterior, MultilevelPosterior):
        now = posterior.occasion(data, seed)
        pair = now.task, now.simulate(simulations)
        embedded = tuple(embed(now.amortizer, t).astype(float) for t in pair)
        where = tuple(now.embed(t) for t in pair)
        return now.task.names, {"input": where, "summary": embedded}  # type: ignore[dict-item]
    task, row = posterior.sampler.checked(data), posterior.structure.row
    _, fresh = simulated_task(posterior.simulator, row, simulations, random_seed=seed)
    of_values = tuple(input_features(posterior.amortizer, t.batch()) for t in (task, fresh))
    of_summary = tuple(np.asarray(embed(posterior.amortizer, t), float) for t in (task, fresh))
    return task.names, {"input": of_values, "summary": of_summary}  # type: ignore[dict-item]
