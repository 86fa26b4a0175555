"""The rest of an amortized posterior, where some parameters are known."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pmcl.amortized.groups import Checked, Sized
from pmcl.amortized.level_sampler import LevelSampler, check_like, refuse
from pmcl.amortized.other import compiled_other
from pmcl.amortized.own_size import by_number, of_own_size
from pmcl.amortized.sampler import Sampler
from pmcl.compile import CompiledModel
from pmcl.compile.labelled import model_or_context
from pmcl.compile.resizing import resized
from pmcl.compile.variables import holders
from pmcl.data.task import Task, TaskLike
from pmcl.draws.densities import pick
from pmcl.draws.handed import UNCONSTRAINED
from pmcl.draws.network import draw
from pmcl.draws.prediction import Extra
from pmcl.draws.results import unconstrained_dataset
from pmcl.draws.side_by_side import side_by_side
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


class Elsewhere(NamedTuple):
    """Another posterior than that of a network: the arguments of `sample` of these names."""

    data: TaskLike | None
    model: pm.Model | CompiledModel | None
    given: Mapping[str, ArrayLike] | None
    var_names: Sequence[str] | None


def sample_levels(
    sampler: LevelSampler,
    read: Checked,
    asked: Asked,
    other: Elsewhere,
    *,
    store: str | os.PathLike | None,
    client: "Client | None",
    devices: DevicesLike,
    progressbar: bool,
) -> xr.DataTree:
    """Draw from a multilevel model under another prior, or where something is known.

    Refined from the network's draws of its own model, datasets of every number of groups in a model
    of that number, whose levels are looked for anew. Without refinement, by the network and the
    other model's density.

    Raises
    ------
    ValueError
        Where something is given and draws are not to be refined, where variables of the other model
        are not those of the network's, or where it has none of a name in `var_names`.
    NotImplementedError
        With `store` or `client`, where datasets have any number of groups or draws are not to be
        refined.
    """
    stored, groups = store is not None or client is not None, sampler.groups
    if groups is not None and stored:
        instead = "`pmcl.refine` takes them, of a model of the size"
        refuse("sample(model=, given=) with `store` or `client` and `groups`", instead)
    if asked.refine is None and (other.given is not None or other.model is None):
        raise ValueError(_ALL)
    if asked.refine is None and stored:
        refuse("sample(model=, refine=False) with `store` or `client`", "refine=True")
    shown: Any = {"devices": devices, "progressbar": progressbar}
    under, there = sampler, read
    if other.model is not None:
        under, there = _under(sampler, read, other)
        names = None if other.var_names is None else list(other.var_names)
        asked = asked._replace(names=pick(there.sized.compiled, names))
    if asked.refine is None:
        check_like(under, there)
        return under.sample(there, asked, **shown)
    alone = asked._replace(
        draws=FEWEST_STARTS, names=(), refine=None, correct=None, fallback=None, extra=Extra()
    )
    drawn = sampler.sample(read, alone, devices=devices)[UNCONSTRAINED].to_dataset()
    start = xr.DataTree.from_dict({UNCONSTRAINED: drawn})
    if groups is None:
        return refine(
            there.sized.compiled,
            there.task,
            start=start,
            store=store,
            client=client,
            **shown,
            **_arguments(asked, other.given),
        )
    trees: list[xr.DataTree] = []
    order: list[int] = []
    for rows in by_number(there):
        own = of_own_size(groups, there, rows)
        tree = refine(
            own.sized.compiled,
            own.task,
            start=own.cut(start),
            **shown,
            **_arguments(asked, own.known(other.given)),
        )
        trees.append(tree)
        order.extend(rows)
    return side_by_side(trees, order, under.row)


def _under(sampler: LevelSampler, read: Checked, other: Elsewhere) -> tuple[LevelSampler, Checked]:
    """Put another model of the same variables in the place of the network's, and read the data."""
    own, groups, model = sampler.sized, sampler.groups, other.model
    assert model is not None
    plain = model.model if isinstance(model, CompiledModel) else model_or_context(model)
    if groups is not None:
        dim = groups.grouping.dim
        size = len(own.compiled.coords[dim])
        if dim not in plain.coords or len(plain.coords[dim] or ()) != size:
            model = resized(plain, dim, size)
    more = only_in(model, own.compiled)
    data = read.task if other.data is None or not more else other.data
    under = sampler._replace(sized=Sized(compiled_other(own.compiled, model, data), own.reading))
    return under, under.checked(data)


def only_in(model: pm.Model | CompiledModel, own: CompiledModel) -> set[str]:
    """Names of the data of another model that the network's does not have."""
    plain = model.model if isinstance(model, CompiledModel) else model_or_context(model)
    known = {i.name for i in own.data} | {*holders(plain)}
    return {str(v.name) for v in plain.data_vars} - known


def _arguments(asked: Asked, given: Mapping[str, ArrayLike] | None) -> dict[str, Any]:
    """What was asked of draws, in the words of :func:`pmcl.refine`."""
    known = whole_names({} if given is None else given)
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
