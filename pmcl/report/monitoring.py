"""Data in the order in which they arrive: do they still come from where the first ones came?"""

import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr

from pmcl.compile import precision
from pmcl.correction import RefineLike
from pmcl.data import DATASET, TaskLike, as_task, listed
from pmcl.metrics import alarm, apart, unlike
from pmcl.metrics.alarm import LEAST_RATE
from pmcl.networks.familiarity import input_features
from pmcl.posterior import AmortizedPosterior, positive, seed_of
from pmcl.results import flat_z

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
    posterior: AmortizedPosterior,
    data: TaskLike | Sequence[TaskLike],
    *,
    baseline: int,
    false_alarms: float,
    draws: int,
    refine: RefineLike,
    random_seed: int | None,
    progressbar: bool,
) -> xr.Dataset:
    """Watch a sequence of datasets for a change; see `AmortizedPosterior.monitor`."""
    tasks = [
        as_task(d, posterior.layout) for d in (data if isinstance(data, list | tuple) else [data])
    ]
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
                var_names=[],
                random_seed=seed + i,
                progressbar=progressbar,
            )
        z = flat_z(posterior.compiled, tree)[0]
        stats = tree["dataset_stats"].to_dataset()
        parts["mean"].append(z.mean(axis=0))
        parts["variance"].append(z.var(axis=0, ddof=1))
        parts["log_evidence"].append(stats["log_evidence"].values)
        parts["efficiency"].append(stats["efficiency"].values)
        # k-hat of the network's own draws: what refinement has mended is a change, too
        parts["khat"].append(stats["khat_amortized"].values)
        with precision.scope():
            parts["features"].append(
                input_features(posterior.amortizer, task.batch(), extremes=even)
            )
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
