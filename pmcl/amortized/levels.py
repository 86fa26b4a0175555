"""From simulations to a pretrained posterior of a multilevel model."""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from pmcl.amortized.groups import Checked, Prepared, Sized
from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.own_size import check_number
from pmcl.compile import Density, Simulator
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.data.task import Batch
from pmcl.levels.reading import Reading, read
from pmcl.levels.sizes import check_padding, reading_at
from pmcl.levels.structure import NoLevels
from pmcl.networks import AbstractSummary, InputLayout, Network, Structure, build_amortizer
from pmcl.networks.summary import Flatten
from pmcl.search.many import narrowed
from pmcl.search.search import Search
from pmcl.training import PretrainingSettings, Simulated
from pmcl.training.levels import Levelled, simulated

_LOOKED_AT = 4  # simulations whose levels are looked for
_STARTS = 8  # of searches, of which those that find something are kept


class Fit(NamedTuple):
    """What a network is made for."""

    source: Simulator
    structure: Structure
    network: Network
    settings: PretrainingSettings
    seed: int
    prepared: Prepared | None = None


def reading_of(
    fit: Fit, first: Simulated, network: Network | AbstractSummary | None, wanted: bool | None
) -> Reading | None:
    """The levels of a model; None where it has none, or they are not wanted.

    Parameters
    ----------
    fit : Fit
    first : Simulated
    network : Network or AbstractSummary, optional
        As the user gave it: one that reads rows is one without levels.
    wanted : bool, optional

    Raises
    ------
    UnsupportedModelError
        Where there have to be some.
    ValueError
        Where there have to be some, and a summary network was asked for.
    """
    flow = network is None or (
        isinstance(network, Network) and network.whiten and network.summary == Network().summary
    )
    if (wanted or fit.prepared) and not flow:
        raise ValueError(
            "network: a posterior with levels sees of a dataset what the search found of it, and "
            "has no summary network; expected none, or pmcl.Network(flow=...). levels=False fits "
            "a network that reads all of a dataset as one block."
        )
    if fit.prepared is not None:
        return _prepared(fit, fit.prepared, first)
    if wanted is False or not flow:
        return None
    compiled = fit.source.compiled
    density = Density(compiled, fit.structure.row)
    some = [i for i in range(len(first.z)) if np.isfinite(first.z[i]).all()][:_LOOKED_AT]
    if compiled.implicit or not some:
        found = None
    else:
        whole = first.take(np.asarray(some))._replace(mask=None)
        found = read(density, simulated(density, whole))
    if isinstance(found, Reading):
        return found
    if wanted:
        raise UnsupportedModelError(f"levels=True: expected a multilevel model; {found}.")
    return None


def _prepared(fit: Fit, prepared: Prepared, first: Simulated) -> Reading:
    """Levels of a model made for any number of groups, checked."""
    compiled, grouping = fit.source.compiled, prepared.groups.grouping
    density = Density(compiled, fit.structure.row)
    reading = reading_at(prepared.reading, compiled, grouping)
    some = np.flatnonzero(np.isfinite(first.z).all(axis=1))[:2]
    task = simulated(density, first.take(some)._replace(mask=None))
    found = reading.of(density, task)
    if isinstance(found, NoLevels) or found.groups != reading.like.groups:
        raise UnsupportedModelError(
            f"groups: expected one group an element of {grouping.dim!r}, whatever their number; "
            f"{found}."
        )
    check_padding(density, reading, task, grouping.dim)
    check_number(prepared.groups, Checked(task, Sized(compiled, reading)))
    return reading


def untrained(fit: Fit, reading: Reading, first: Simulated) -> MultilevelPosterior:
    """A posterior whose network is as it was made: normal at the mode of the global parameters."""
    compiled, network = fit.source.compiled, Network(Flatten(), fit.network.flow)
    groups = None if fit.prepared is None else fit.prepared.groups
    levelled = Levelled(Density(compiled, fit.structure.row), reading, groups)
    some, marginal = levelled.of(first)
    prior = np.asarray(some.z)
    search = Search.of(marginal, compiled.initial[reading.shared], prior, starts=_STARTS)  # type: ignore[arg-type]
    search = narrowed(replace(search, exact=True), Batch(some.data, some.mask))
    inputs = InputLayout((), (), ())
    key = jax.random.key(fit.seed)
    plain = {k: np.asarray(v) for k, v in first.data.items()}
    amortizer = build_amortizer(network, inputs, prior, plain, key=key, search=search)
    return MultilevelPosterior(
        compiled,
        fit.source,
        fit.structure,
        network,
        amortizer,
        fit.settings,
        fit.seed,
        reading,
        groups,
    )
