"""Data in the order in which they arrive: do they still come from where the first ones came?"""

import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.data.reading import as_task
from pmcl.data.task import DATASET, Task, TaskLike
from pmcl.draws.results import SAMPLE, flat_z
from pmcl.metrics import alarm, apart, unlike
from pmcl.metrics.change import LEAST_RATE
from pmcl.networks.familiarity import input_features
from pmcl.refinement.settings import RefineLike
from pmcl.runtime import precision
from pmcl.runtime.arguments import listed, positive, seed_of

# What is watched, and whether it may change to either side.
SERIES = {"parameters": False, "evidence": True, "inputs": False, "khat": False}
# Standard deviations below which a difference is none: k-hat itself is an estimate.
_LEAST = {"khat": 0.1}


def _as_normal(khat: np.ndarray) -> np.ndarray:
    """k-hat on a scale on which it is about normal, as far as measured: log(0.1 + k), and straight
    on below 0.2, where small ones differ by chance alone.
    """
    k = np.clip(khat, -1.0, 2.0)
    return np.where(k > 0.2, np.log(0.1 + np.maximum(k, 0.2)), np.log(0.3) + (k - 0.2) / 0.3)


def monitor(
    posterior: AmortizedPosterior | MultilevelPosterior,
    data: TaskLike | Sequence[TaskLike],
    *,
    baseline: int = 50,
    false_alarms: float = 1e-5,
    draws: int = 200,
    refine: RefineLike = "auto",
    random_seed: int | None = None,
    progressbar: bool = False,
) -> xr.Dataset:
    """Watch datasets in the order in which they arrive, and say when they have changed.

    The first ones are taken as they should be. Each later one is compared with them: where its
    posterior lies (`parameters`), how well the model explains it (`evidence`), what its values
    are like (`inputs`), and how well the network does (`khat`). Evidence of a change cumulates
    from dataset to dataset; a single odd one raises no alarm.

    Parameters
    ----------
    posterior : AmortizedPosterior or MultilevelPosterior
        Of the latter the global parameters are watched.
    data : xarray.Dataset, mapping, pandas.DataFrame, or list of these
        One after another, in order; a list of tasks is one sequence.
    baseline : int
        How many of the first datasets are as they should be; at least 10.
    false_alarms : float
        To be expected a dataset where nothing changes, over all that is watched. The threshold
        is set by simulated normal series; of values with heavier tails there are more.
    draws : int
    refine : "auto", bool or Refine
        As in :meth:`AmortizedPosterior.sample`.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    xarray.Dataset
        By `dataset`: `log_evidence` and `efficiency` of draws, `khat` of the network's,
        `parameter_distance` and `input_distance` from the first ones (log(0.3 + d), d mean
        squares that are about 1 without a change), and `alarm`. By `series` and dataset:
        `p_value`, the cumulated `evidence` of a change, in nats, and whether that has `raised`
        an alarm.

    Raises
    ------
    ValueError
        With fewer than 10 datasets in the baseline, or none after it.

    Warns
    -----
    UserWarning
        Naming the dataset at which the first alarm was raised, and by what.

    References
    ----------
    Page (1954), Continuous inspection schemes; Hawkins (1987), Self-starting CUSUM charts for
    location and scale.
    """
    tasks = [_read(posterior, d) for d in (data if isinstance(data, list | tuple) else [data])]
    names = [n for task in tasks for n in task.names]
    if not 10 <= baseline < len(names):
        raise ValueError(
            f"baseline: expected at least 10 datasets and fewer than there are ({len(names)}), "
            f"got {baseline}."
        )
    lowest = len(SERIES) * LEAST_RATE
    if not lowest <= false_alarms < 0.1:
        raise ValueError(
            f"false_alarms: expected a number of at least {lowest:g} (simulations tell of no rarer "
            f"ones) and below 0.1, got {false_alarms}."
        )
    count = np.concatenate([task.counts for task in tasks])
    even = bool(np.ptp(count) == 0)
    seed = seed_of(random_seed, posterior.seed + 3)
    parts: dict[str, list[np.ndarray]] = {
        k: [] for k in ("mean", "variance", "features", "log_evidence", "khat", "efficiency")
    }
    for i, task in enumerate(tasks):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what they say is in the result
            tree = posterior.sample(
                task,
                positive("draws", draws),
                refine=refine,
                fallback=None,
                var_names=[],
                random_seed=seed + i,
                progressbar=progressbar,
            )
        z = _watched(posterior, tree)
        stats = tree["dataset_stats"].to_dataset()
        parts["mean"].append(z.mean(axis=0))
        parts["variance"].append(z.var(axis=0, ddof=1))
        parts["log_evidence"].append(stats["log_evidence"].values)
        parts["efficiency"].append(stats["efficiency"].values)
        # k-hat of the network's own draws: what refinement has mended is a change, too
        parts["khat"].append(stats["khat_amortized"].values)
        with precision.scope():
            parts["features"].append(_features(posterior, task, even))
    found = {k: np.concatenate(v) for k, v in parts.items()}
    unknown = ~np.isfinite(found["log_evidence"][:baseline])
    if baseline - unknown.sum() < 10:
        raise ValueError(
            f"baseline: expected at least 10 datasets that the model can have made, got "
            f"{baseline - unknown.sum()} of {baseline}; the evidence is not finite for "
            f"{listed([n for n, u in zip(names, unknown, strict=False) if u], 10)}."
        )
    # Each value adds to the evidence: where numbers differ it is the mean that is compared.
    evidence = found["log_evidence"] / (1 if even else np.maximum(count, 1))
    values = {
        "parameters": apart(found["mean"], found["variance"], baseline),
        "evidence": evidence,
        "inputs": unlike(found["features"], baseline, None if even else count),
        "khat": _as_normal(found["khat"]),
    }
    watched = {
        k: alarm(
            v,
            baseline,
            rate=false_alarms / len(SERIES),
            two_sided=SERIES[k],
            least=_LEAST.get(k, 0.0),
        )
        for k, v in values.items()
    }
    raised = np.stack([a.raised for a in watched.values()])
    result = xr.Dataset(
        {
            "log_evidence": (DATASET, found["log_evidence"]),
            "khat": (DATASET, found["khat"]),
            "efficiency": (DATASET, found["efficiency"]),
            "parameter_distance": (DATASET, values["parameters"]),
            "input_distance": (DATASET, values["inputs"]),
            "p_value": (("series", DATASET), np.stack([a.p_value for a in watched.values()])),
            "evidence": (("series", DATASET), np.stack([a.evidence for a in watched.values()])),
            "raised": (("series", DATASET), raised),
            "alarm": (DATASET, raised.any(axis=0)),
        },
        coords={
            DATASET: names,
            "series": list(SERIES),
            "position": (DATASET, np.arange(len(names))),
            "task": (DATASET, np.repeat(np.arange(len(tasks)), [len(t) for t in tasks])),
        },
        attrs={"baseline": baseline, "false_alarms": false_alarms},
    )
    if raised.any():
        first = int(np.argmax(raised.any(axis=0)))
        which = [k for k, r in zip(SERIES, raised[:, first], strict=True) if r]
        warnings.warn(
            f"From about dataset {names[first]!r} on (number {first + 1} of {len(names)}) data are "
            f"not like the first {baseline}: {', '.join(which)}. Look at them, adapt to them as a "
            "task of their own, or fit again.",
            stacklevel=3,
        )
    return result


def _read(posterior: AmortizedPosterior | MultilevelPosterior, data: TaskLike) -> Task:
    if isinstance(posterior, MultilevelPosterior):
        return posterior.sampler.checked(data).task
    return as_task(data, posterior.layout)


def _watched(posterior: AmortizedPosterior | MultilevelPosterior, tree: xr.DataTree) -> np.ndarray:
    """Draws of what all datasets share the meaning of, (draw, dataset, number)."""
    if not isinstance(posterior, MultilevelPosterior):
        return flat_z(posterior.compiled, tree)[0]
    found, shared = tree["unconstrained_posterior"].to_dataset(), {*posterior.reading.shared}
    parts = [
        found[v.name].transpose(*SAMPLE, ...).values[0].reshape(*found[v.name].shape[1:3], -1)
        for v in posterior.compiled.values
        if v.start in shared
    ]
    return np.concatenate(parts, axis=-1)


def _features(
    posterior: AmortizedPosterior | MultilevelPosterior, task: Task, even: bool
) -> np.ndarray:
    """What datasets are like."""
    if isinstance(posterior, MultilevelPosterior):
        now = posterior.occasion(task, 0)
        return now.embed(now.task)
    return input_features(posterior.amortizer, task.batch(), extremes=even)
