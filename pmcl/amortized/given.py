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
from pmcl.amortized.level_sample import sample_stored
from pmcl.amortized.level_sampler import LevelSampler, alike, refuse
from pmcl.amortized.other import compiled_other
from pmcl.amortized.own_size import OwnSize, by_number, of_own_size
from pmcl.amortized.sampler import Sampler
from pmcl.compile import CompiledModel
from pmcl.compile.labelled import model_or_context
from pmcl.compile.variables import holders
from pmcl.data.task import Task, TaskLike
from pmcl.draws.densities import pick
from pmcl.draws.handed import z_of
from pmcl.draws.network import draw
from pmcl.draws.prediction import Extra
from pmcl.draws.prior import prior_draws
from pmcl.draws.results import unconstrained_dataset, warn_of_doubts
from pmcl.draws.side_by_side import side_by_side
from pmcl.networks.contexts import placed
from pmcl.parts.job import need_store
from pmcl.refinement.known import conditioned, whole_names
from pmcl.refinement.settings import FEWEST_STARTS, Asked
from pmcl.refinement.standalone import refine, refined_task, starts_of
from pmcl.runtime import precision
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.devices import scope as device_scope
from pmcl.search.search import Search

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
    """Draw from a multilevel model under another prior, or where something is known; named.

    Under a model with the levels of the network's, by the network and that model's density. Else
    refined from the network's draws of its own model, datasets of every number of groups in a model
    of that number, whose levels are looked for anew.

    Raises
    ------
    ValueError
        Where something is given and draws are not to be refined, where variables of the other model
        are not those of the network's, or where it has none of a name in `var_names`.
    NotImplementedError
        With `given`, or groups that depend on others' terms, and `store` or `client`, where
        datasets have any number of groups; with such groups and no refinement.
    """
    stored, groups = store is not None or client is not None, sampler.groups
    shown: Any = {"devices": devices, "progressbar": progressbar}
    under, there = sampler, read
    if other.model is not None:
        under, there = _under(sampler, read, other)
        names = None if other.var_names is None else list(other.var_names)
        asked = asked._replace(names=pick(there.sized.compiled, names))
        if other.given is None and alike(under, there):
            return _under_the_network(under, there, asked, store=store, client=client, **shown)
    if asked.refine is None:
        if other.given is not None or other.model is None:
            raise ValueError(_ALL)
        what = "sample(model=, refine=False) of a model whose groups depend on others' terms"
        refuse(what, "with refinement levels are looked for anew")
    if groups is not None and stored:
        what = "sample(given=) with `store` or `client` and `groups`"
        if other.given is None:
            what = "sample(model=) of a model with other groups with `store` or `client`"
        refuse(what, "`pmcl.refine` takes them, of a model of the size")
    alone = asked._replace(
        draws=FEWEST_STARTS,
        # values, too: the other model may have other transforms
        names=tuple(i.name for i in sampler.sized.compiled.free),
        refine=None,
        correct=None,
        fallback=None,
        extra=Extra(),
    )
    drawn = sampler.sample(read, alone, devices=devices)
    if groups is None:
        return refine(
            there.sized.compiled,
            there.task,
            start=drawn,
            store=store,
            client=client,
            **shown,
            **_arguments(asked, other.given),
        )
    start = np.moveaxis(z_of(there.sized.compiled, drawn, "start")[0], 0, 1)
    trees: list[xr.DataTree] = []
    order: list[int] = []
    for rows in by_number(there):
        own = of_own_size(groups, there, rows)
        trees.append(_of_one_size(own, start, asked, own.known(other.given), **shown))
        order.extend(rows)
    tree = under.named(side_by_side(trees, order, under.row), there)
    warn_of_doubts(there.task.names, tree, above=4)
    return tree


def _under_the_network(
    under: LevelSampler,
    there: Checked,
    asked: Asked,
    *,
    store: str | os.PathLike | None,
    client: "Client | None",
    **shown: Any,
) -> xr.DataTree:
    """Draw by the network and another model's density, as by its own."""
    if store is not None:
        tree = sample_stored(under, there, asked, store=store, client=client, **shown)
    else:
        need_store(client)
        tree = under.named(under.sample(there, asked, **shown), there)
    warn_of_doubts(there.task.names, tree, above=5)
    return tree


def _of_one_size(
    own: OwnSize,
    start: np.ndarray,
    asked: Asked,
    given: Mapping[str, ArrayLike] | None,
    *,
    devices: DevicesLike,
    progressbar: bool,
) -> xr.DataTree:
    """Refine datasets of one number of groups, from draws (dataset, draw, dim) of all that come."""
    compiled, task, names = own.sized.compiled, own.task, list(asked.names)
    known = None if given is None else conditioned(compiled, task, given)
    z = starts_of(start[own.rows][:, :, own.places], compiled, known)
    if given is not None and known is not None:
        compiled, task = known.compiled, known.task
        names = [n for n in names if n not in whole_names(given)]
    asked = asked._replace(names=pick(compiled, names), everywhere=True)
    return refined_task(compiled, task, z, asked, devices=devices, progressbar=progressbar)


def _under(sampler: LevelSampler, read: Checked, other: Elsewhere) -> tuple[LevelSampler, Checked]:
    """Put another model of the same variables in the place of the network's, and read the data."""
    own, groups, model = sampler.sized, sampler.groups, other.model
    assert model is not None
    more = only_in(model, own.compiled)
    data = read.task if other.data is None or not more else other.data
    dim = None if groups is None else groups.grouping.dim
    compiled = compiled_other(own.compiled, model, data, dim=dim)
    under = sampler._replace(sized=Sized(compiled, own.reading))
    there, search = under.checked(data), sampler.amortizer.search
    assert search is not None
    shared, like = own.reading.shared, there.sized
    dataset = there.task.dataset(0)
    prior = prior_draws(like.compiled, dataset, FEWEST_STARTS, seed=0)[:, like.reading.shared]
    with precision.scope():
        initial, starts = compiled.initial[shared], len(search.starts)
        new = Search.of(search.density, initial, prior, starts=starts)  # type: ignore[arg-type]
    new = replace(new, modes=search.modes, exact=search.exact)
    return under._replace(amortizer=replace(sampler.amortizer, search=new)), there


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
