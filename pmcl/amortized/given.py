"""The rest of an amortized posterior, where some parameters are known."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.amortized.sampler import Sampler
from pmcl.data.task import Task, TaskLike
from pmcl.draws.network import draw
from pmcl.draws.results import unconstrained_dataset
from pmcl.networks.contexts import placed
from pmcl.refinement.known import whole_names
from pmcl.refinement.settings import FEWEST_STARTS, Asked
from pmcl.refinement.standalone import refine
from pmcl.runtime import precision
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.devices import scope as device_scope

if TYPE_CHECKING:
    from distributed import Client

_ALL = (
    "given: expected refinement (refine=True or 'auto'): the network's own draws are of all "
    "parameters."
)


def sample_given(
    sampler: Sampler,
    data: TaskLike,
    given: Mapping[str, ArrayLike],
    asked: Asked,
    *,
    store: str | os.PathLike | None,
    client: "Client | None",
    devices: DevicesLike,
    progressbar: bool,
) -> xr.DataTree:
    """Refine what is left, from the network's draws given what is known.

    The network has the posterior of all parameters; its draws are moved to what is known as those
    of a normal would be, and the search begins there.

    Raises
    ------
    ValueError
        Without refinement: the network alone knows no conditional.
    """
    if asked.refine is None:
        raise ValueError(_ALL)
    task = sampler.checked(data)
    with device_scope(devices), precision.scope():
        start = _network_draws(sampler, task, asked.seed)
    return refine(
        sampler.target,
        task,
        start=start,
        store=store,
        client=client,
        devices=devices,
        progressbar=progressbar,
        **_arguments(asked, given),
    )


def _arguments(asked: Asked, given: Mapping[str, ArrayLike]) -> dict[str, Any]:
    """What was asked of draws, in the words of :func:`pmcl.refine`."""
    known = whole_names(given)
    return {
        "draws": asked.draws,
        "given": given,
        "refine": asked.refine,
        "correct": asked.correct,
        "fallback": asked.fallback,
        "var_names": [n for n in asked.names if n not in known],
        "random_seed": asked.seed,
        **asked.extra._asdict(),
    }


def _network_draws(sampler: Sampler, task: Task, seed: int) -> xr.DataTree:
    task = replace(task, place=placed(sampler.amortizer, task.batch()).place)
    drawn = draw(
        sampler.amortizer,
        sampler.density,
        task,
        draws=FEWEST_STARTS,
        seed=seed,
        progressbar=False,
    )
    z = np.moveaxis(np.asarray(drawn.z), 0, 1)[None]
    group = unconstrained_dataset(sampler.target, task, z)
    return xr.DataTree.from_dict({"unconstrained_posterior": group})
