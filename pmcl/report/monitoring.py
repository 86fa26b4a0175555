"""Data in the order in which they arrive: do they still come from where the first ones came?"""

import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr

from pmcl import sampling
from pmcl.compile import precision
from pmcl.correction import RefineLike
from pmcl.data import DATASET, TaskLike, as_task, listed
from pmcl.metrics import alarm, apart, unlike
from pmcl.posterior import AmortizedPosterior, positive, seed_of
from pmcl.results import flat_z

# What is watched, and whether it may change to either side.
SERIES = {"parameters": False, "evidence": True, "inputs": False, "khat": False}


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
    seed = seed_of(random_seed, posterior.seed + 3)
    parts: dict[str, list[np.ndarray]] = {
        k: []
        for k in ("mean", "variance", "features", "log_evidence", "khat", "efficiency", "count")
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
        parts["count"].append(task.counts)
        parts["efficiency"].append(stats["efficiency"].values)
        # k-hat of the network's own draws: what refinement has mended is a change, too
        parts["khat"].append(stats["khat_amortized"].values)
        with precision.scope():
            parts["features"].append(sampling.features(posterior.amortizer, task))
    found = {k: np.concatenate(v) for k, v in parts.items()}
    unknown = ~np.isfinite(found["log_evidence"][:baseline])
    if baseline - unknown.sum() < 10:
        raise ValueError(
            f"baseline: expected at least 10 datasets that the model can have made, got "
            f"{baseline - unknown.sum()} of {baseline}; the evidence is not finite for "
            f"{listed([n for n, u in zip(names, unknown, strict=False) if u], 10)}."
        )
    # Each value adds to the evidence: where numbers differ it is the mean that is compared.
    even = np.ptp(found["count"]) == 0
    evidence = found["log_evidence"] / (1 if even else np.maximum(found["count"], 1))
    values = {
        "parameters": apart(found["mean"], found["variance"], baseline),
        "evidence": evidence,
        "inputs": unlike(found["features"], baseline),
        # on this scale about normal, as far as measured
        "khat": np.log(0.1 + np.clip(found["khat"], 0.0, 2.0)),
    }
    watched = {
        k: alarm(v, baseline, rate=false_alarms / len(SERIES), two_sided=SERIES[k])
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
