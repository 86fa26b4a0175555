"""Save and load: the posterior of a multilevel model as one DataTree, and back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr
from jax import Array

from pmcl.amortized.groups import largest, skeleton
from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.archive import records, sources, weights
from pmcl.archive.adapted import (
    GROUPS,
    adapted_to_groups,
    in_force,
    labels_of,
    memory_from,
    with_adapted,
)
from pmcl.archive.amortized import (
    SCHEMA,
    attributes_of,
    compiled_from,
    network_from,
    pretraining_from,
    probe_of,
    settings_from,
    simulator_from,
    structure_from,
)
from pmcl.archive.attributes import check_schema, whole_number
from pmcl.archive.configuration import dumps, loads
from pmcl.archive.errors import StateError
from pmcl.archive.fingerprint import check_ends
from pmcl.archive.zipped import group
from pmcl.compile import CompiledModel, Density
from pmcl.compile.covariates import SourcesLike, sources_of
from pmcl.continual import Memory
from pmcl.data.batching import over_datasets
from pmcl.data.task import Batch, Layout
from pmcl.levels.beside import Beside
from pmcl.levels.integrals import Marginal
from pmcl.levels.reading import Reading, Rule
from pmcl.levels.sizes import Grouping, Groups, Members
from pmcl.levels.structure import Levels, Split
from pmcl.networks.contexts import placed
from pmcl.runtime import precision
from pmcl.runtime.jitting import jit
from pmcl.training.bank import Simulated
from pmcl.training.levels import Levelled

KIND = "multilevel"
_MOST = 10**5  # groups
_MOST_STORED = 10**4  # groups of a stored dataset
_SAME = 1e-3  # nats


def to_datatree(posterior: MultilevelPosterior, *, include_memory: bool = True) -> xr.DataTree:
    """Return everything needed to go on on another machine, as one DataTree.

    Parameters
    ----------
    posterior : MultilevelPosterior
    include_memory : bool
        Whether stored datasets are in it: they are raw data.

    Returns
    -------
    xarray.DataTree
        Groups `model` (fingerprint), `levels`, `search`, `covariates`, `network`, `pretraining`,
        and those of adaptation.
    """
    p, probe = posterior, probe_of(posterior)
    groups: dict[str, xr.Dataset] = {
        "/": xr.Dataset(attrs={**attributes_of(p), **in_force(p), "kind": KIND}),
        "/model": probe,
        "/levels": _levels_to_dataset(p.reading, p.groups),
        "/covariates": sources.to_dataset(p.simulator.covariates),
        "/network": weights.to_dataset(p.amortizer),
        "/search": _searched(p, probe),
    }
    for i, record in enumerate(p.pretraining):
        groups[f"/pretraining/{i}"] = records.pretraining_to_dataset(record)
    groups |= adapted_to_groups(p, include_memory=include_memory)
    return xr.DataTree.from_dict(groups)


def from_datatree(
    tree: xr.DataTree,
    model: pm.Model,
    *,
    covariates: SourcesLike | None = None,
    where: str = "state",
) -> MultilevelPosterior:
    """Make the posterior again of which :func:`to_datatree` gave the state."""
    attrs = tree.attrs
    check_schema(attrs, SCHEMA, where)
    stored = group(tree, "levels", where)
    groups = _groups(stored.attrs, where)
    with precision.scope():
        given = None if covariates is None else sources_of(model, covariates)
        if groups is not None:
            if groups.grouping.dim not in model.coords:
                raise StateError(f"{where}: expected a model with the dim {groups.grouping.dim!r}.")
            model = largest(model, groups)
            if given is not None and groups.grouping.by:
                given = {**given, groups.grouping.by: Members(groups.low, groups.high)}
        compiled, probe = compiled_from(tree, model, where)
        structure = structure_from(attrs, compiled, where)
        reading = _reading(stored, compiled, where)
        network, sizes = network_from(tree, where)
        if "searches" in sizes:
            raise StateError(f"{where}: search: expected one of groups, which is never pooled.")
        density = Density(compiled, structure.row)
        like = skeleton(network, Levelled(density, reading).marginal, **sizes)
        posterior = MultilevelPosterior(
            compiled,
            simulator_from(tree, compiled, structure, given, None, where=where),
            structure,
            network,
            weights.from_dataset(group(tree, "network", where), like, where=f"{where}: network"),
            settings_from(attrs, where),
            whole_number(attrs, "seed", where),
            reading,
            groups,
            pretraining_from(tree, where),
        )
        _check_search(posterior, probe, group(tree, "search", where), where)
        return with_adapted(posterior, tree, like, lambda t, w: _memory(posterior, t, w), where)


def _memory(posterior: MultilevelPosterior, tree: xr.DataTree, where: str) -> Memory:
    """Stored datasets, at the size at which they were stored."""
    sized, row, groups = posterior.sampler.sized, posterior.structure.row, posterior.groups
    if groups is not None:
        data = group(tree, "memory", where)
        size = data.sizes.get(groups.grouping.dim, 0)
        if not size and GROUPS in data:  # an index alone tells: as many as there are names
            size = max([2, *(len(labels_of(str(v), where)) for v in data[GROUPS].values)])
        if not 2 <= size <= _MOST_STORED:
            raise StateError(f"{where}: memory: expected groups along {groups.grouping.dim!r}.")
        sized = sized.at(groups, size)
    memory = memory_from(tree, Layout.of(sized.compiled, row), where)
    stored, beside = memory.stored(), Beside(Density(sized.compiled, row), sized.reading)
    if groups is not None and stored.labels is not None:
        if max(map(len, stored.labels)) > sized.reading.like.groups:
            raise StateError(f"{where}: memory: datasets have more groups than there are.")
    return replace(memory, datasets=replace(stored, beside=beside))


def _levels_to_dataset(reading: Reading, groups: Groups | None) -> xr.Dataset:
    split = reading.like.split
    rules = reading.rules
    found = {
        "shared": ("parameter", np.asarray(reading.shared)),
        "place": ("entry", np.asarray(split.place)[0]),
        "real": (("width", "group"), np.asarray(split.real)[0]),
    }
    attrs = {
        "exact": int(reading.like.exact),
        "concave": int(reading.like.concave),
        "text": reading.like.text,
        "rules": dumps(
            None if rules is None else [[r.axis, r.table.tolist(), r.by] for r in rules]
        ),
        "groups": dumps(None if groups is None else [groups.low, groups.high, *groups.grouping]),
    }
    return xr.Dataset(found, attrs=attrs)


def _reading(stored: xr.Dataset, compiled: CompiledModel, where: str) -> Reading:
    """Levels as they were found: what they say of a dataset is checked when it is sampled."""
    where = f"{where}: levels"
    names, attrs = ("shared", "place", "real"), stored.attrs
    if set(stored.data_vars) != {*names}:
        raise StateError(f"{where}: expected {list(names)}.")
    shared, place, real = (stored[name].values for name in names)
    whole = all(v.dtype.kind == "i" for v in (shared, place)) and real.dtype.kind in "bi"
    good = whole and real.ndim == 2 and place.shape == (compiled.dim,) and shared.ndim == 1
    if not good or len({*place}) != len(place) or place.min() < 0:
        raise StateError(f"{where}: expected the places of {compiled.dim} parameters.")
    inside = place.max() < len(shared) + real.size and {*shared} <= {*range(compiled.dim)}
    if not inside or real.sum() != compiled.dim - len(shared):
        raise StateError(f"{where}: expected places of all parameters, of groups and of all.")
    found = loads(attrs.get("rules"), where=where)
    rules = None if found is None else tuple(_rule(one, compiled, where) for one in found)
    split = Split(place[None], np.zeros((1, 0), int), real.astype(bool)[None])  # type: ignore[arg-type]
    exact, concave = (bool(attrs.get(name)) for name in ("exact", "concave"))
    like = Levels(shared, split, exact, str(attrs.get("text")), concave=concave)
    return Reading(like, rules)


def _rule(found: Any, compiled: CompiledModel, where: str) -> Rule:
    match found:
        case [int(axis), list(table), str(by)] if (
            0 <= axis < 10 and 0 < len(table) <= _MOST and all(type(v) is int for v in table)
        ):
            if not by or by in {i.name for i in compiled.covariates}:
                return Rule(axis, np.asarray(table), by)
    raise StateError(f"{where}: not a rule by which terms belong to groups.")


def _groups(attrs: Mapping[Any, Any], where: str) -> Groups | None:
    found = loads(attrs.get("groups"), where=where)
    if found is None:
        return None
    match found:
        case [int(low), int(high), str(dim), str(by), list(local)] if 2 <= low <= high <= _MOST:
            return Groups(low, high, Grouping(dim, by, tuple(map(str, local))))
    raise StateError(f"{where}: levels: not numbers of groups.")


def _searched(p: MultilevelPosterior, probe: xr.Dataset) -> xr.Dataset:
    """What the search finds at the data of the fingerprint, and how."""
    search = p.amortizer.search
    assert search is not None
    data: dict = {i.name: probe[f"data {i.name}"].values for i in p.compiled.data}
    n = len(next(iter(data.values())))
    with precision.scope():
        levelled = Levelled(p.density, p.reading)
        made, _ = levelled.of(Simulated(np.zeros((n, p.compiled.dim)), data, None))  # type: ignore[arg-type]
        batch = placed(p.amortizer, Batch(made.data, made.mask))
        place = jax.tree.map(jnp.asarray, batch.place)
        evidence = _evidence(levelled.marginal, batch._replace(place=None), place)
    attrs = {
        "starts": len(search.starts),
        "modes": search.modes,
        "steps": search.steps,
        "tol": search.tol,
    }
    found = {
        "evidence": (("point",), np.asarray(evidence), {"units": "nats"}),
        "status": (("point",), np.asarray(place.status)),
    }
    return xr.Dataset(found, attrs=attrs)


@jit
def _evidence(marginal: Marginal, batch: Batch, place: Any) -> Array:
    def one(data: dict, mask: Any, place: Any) -> Array:
        first = jax.tree.map(lambda x: x[0], place.scale)
        return marginal(place.loc[0], data, mask) + first.log_det()

    return over_datasets(one, batch, place)


def _check_search(p: MultilevelPosterior, probe: xr.Dataset, then: xr.Dataset, where: str) -> None:
    """Refuse a state whose network would get other inputs than those it was trained with."""
    now = _searched(p, probe)
    if dict(then.attrs) != dict(now.attrs) or {*then.data_vars} != {*now.data_vars}:
        raise StateError(f"{where}: expected a search with {now.attrs}.")
    if then["evidence"].shape != now["evidence"].shape:
        raise StateError(f"{where}: search: evidence has another shape.")
    check_ends(now, then, _SAME, where)
