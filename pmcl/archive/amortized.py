"""Save and load: an amortized posterior as one DataTree, and back."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import equinox as eqx
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive import fingerprint, records, sources, weights
from pmcl.archive.adapted import (
    adapted_to_groups,
    in_force,
    memory_from,
    with_adapted,
)
from pmcl.archive.attributes import check_schema, in_order, whole_number
from pmcl.archive.configuration import check_sizes, decode, dumps, encode, loads
from pmcl.archive.errors import StateError
from pmcl.archive.fingerprint import check
from pmcl.archive.zipped import group
from pmcl.compile import (
    CompiledModel,
    Masking,
    Simulator,
    compile_model,
    make_simulator,
    read_covariates,
)
from pmcl.compile.covariates import SourcesLike, sources_of
from pmcl.compile.labelled import model_or_context
from pmcl.compile.made import SimulatorFunction
from pmcl.data.task import Batch
from pmcl.networks import Amortizer, Network, Structure
from pmcl.networks.familiarity import Familiar, describe_inputs
from pmcl.networks.structure import skeleton
from pmcl.runtime import precision
from pmcl.training import PretrainingRecord, PretrainingSettings

SCHEMA = 1
_LONGEST = 10**5  # rows of a dataset
_MOST_SEARCHES = 1000  # of one dataset
_PACKAGES = ("pymc", "pytensor", "jax", "equinox", "flowjax", "xarray", "numpy")


def to_datatree(posterior: AmortizedPosterior, *, include_memory: bool = True) -> xr.DataTree:
    """Return everything needed to go on on another machine, as one DataTree.

    Parameters
    ----------
    posterior : AmortizedPosterior
    include_memory : bool
        Whether stored datasets are in it: they are raw data.

    Returns
    -------
    xarray.DataTree
        Groups `model` (fingerprint), `search`, `covariates`, `network`, `pretrained`,
        `pretraining`, `memory`, `strategies` and `history`.

    Raises
    ------
    StateError
        Naming what cannot be stored, such as a strategy of the user's own.
    """
    p, probe = posterior, probe_of(posterior)
    groups: dict[str, xr.Dataset] = {
        "/": xr.Dataset(attrs={**attributes_of(p), **in_force(p)}),
        "/model": probe,
        "/covariates": sources.to_dataset(p.simulator.covariates),
        "/network": weights.to_dataset(p.amortizer),
    }
    if p.amortizer.search is not None:
        groups["/search"] = fingerprint.searched(p.amortizer, p.compiled, probe)
    if p.familiar is not None:
        groups["/familiar"] = _familiar_to_dataset(p.familiar)
    for i, record in enumerate(p.pretraining):
        groups[f"/pretraining/{i}"] = records.pretraining_to_dataset(record)
    groups |= adapted_to_groups(p, include_memory=include_memory)
    return xr.DataTree.from_dict(groups)


def from_datatree(
    tree: xr.DataTree,
    model: pm.Model | None = None,
    *,
    covariates: SourcesLike | None = None,
    simulator: SimulatorFunction | None = None,
    where: str = "state",
) -> AmortizedPosterior:
    """Make the posterior again of which :func:`to_datatree` gave the state."""
    model = model_or_context(model)
    attrs = tree.attrs
    check_schema(attrs, SCHEMA, where)
    with precision.scope():
        compiled, probe = compiled_from(tree, model, where)
        structure = structure_from(attrs, compiled, where)
        given = None if covariates is None else sources_of(model, covariates)
        source = simulator_from(tree, compiled, structure, given, simulator, where=where)
        masking = source.masking
        if compiled.implicit:
            fingerprint.check_simulated(
                source, probe, seed=whole_number(attrs, "seed", where), where=where
            )
        network, sizes = network_from(tree, where)
        like = skeleton(network, compiled, structure, masking, **sizes)
        amortizer = weights.from_dataset(
            group(tree, "network", where), like, where=f"{where}: network"
        )
        if amortizer.search is not None:
            found_then = group(tree, "search", where)
            fingerprint.check_search(amortizer, compiled, probe, found_then, where=where)
        posterior = AmortizedPosterior(
            compiled,
            source,
            structure,
            network,
            amortizer,
            settings_from(attrs, where),
            whole_number(attrs, "seed", where),
            pretraining=pretraining_from(tree, where),
            familiar=_familiar(tree, amortizer, compiled, where),
        )
        layout = posterior.layout
        return with_adapted(posterior, tree, like, lambda t, w: memory_from(t, layout, w), where)


def compiled_from(
    tree: xr.DataTree, model: pm.Model, where: str
) -> tuple[CompiledModel, xr.Dataset]:
    """Compile the model, which has to be that of the state; and what tells it."""
    probe = group(tree, "model", where)
    described = loads(probe.attrs.get("model"), where=f"{where}: model")
    given = described.get("covariates") if isinstance(described, dict) else None
    if not isinstance(given, dict):
        raise StateError(f"{where}: expected a description of a model.")
    compiled = compile_model(model, covariates=[n for n in given if n in model.named_vars])
    check(compiled, probe, where=where)
    return compiled, probe


def probe_of(p: AmortizedPosterior | MultilevelPosterior) -> xr.Dataset:
    """What tells the model of a posterior from others: its densities at simulated data."""
    with precision.scope():
        z, data = p.simulator.simulate(64, random_seed=p.seed)
        values = {i.name: np.asarray(data[i.name]) for i in p.compiled.data}
        finite = np.isfinite(z).all(axis=1) & np.all(
            [np.isfinite(v).reshape(len(z), -1).all(axis=1) for v in values.values()], axis=0
        )
        points = {k: v[finite] for k, v in values.items()}
        return fingerprint.fingerprint(p.compiled, z[finite], points)


def attributes_of(p: AmortizedPosterior | MultilevelPosterior) -> dict[str, Any]:
    """What a posterior was made with."""
    return {
        "schema": SCHEMA,
        "pmcl_version": version("pmcl"),
        "versions": dumps({name: version(name) for name in _PACKAGES}),
        "created_at": datetime.now(UTC).isoformat(),
        "seed": p.seed,
        "simulator": p.simulator.backend if p.simulator.function is None else "function",
        "structure": dumps(list(p.structure)),
        "lengths": dumps(p.simulator.masking.lengths),
        "missing": p.simulator.masking.missing,
        "network": dumps(encode(p.network, where="network")),
        "settings": dumps(dataclasses.asdict(p.settings)),
    }


def network_from(tree: xr.DataTree, where: str) -> tuple[Network, dict[str, int]]:
    """Specification of the network, and the sizes of its search."""
    found = decode(
        loads(tree.attrs.get("network"), where=where), where=f"{where}: network", expected=Network
    )
    check_sizes(found, f"{where}: network")
    sizes = {"starts": 1, "modes": 1}
    if found.whiten:
        about = group(tree, "search", where).attrs
        more = [name for name in ("searches",) if name in about]
        sizes = {name: whole_number(about, name, where) for name in (*sizes, *more)}
        if not all(1 <= n <= _MOST_SEARCHES for n in sizes.values()):
            raise StateError(f"{where}: search: {sizes} are no numbers of starts and of modes.")
    return found, sizes


def pretraining_from(tree: xr.DataTree, where: str) -> tuple[PretrainingRecord, ...]:
    """What happened in pretraining."""
    return tuple(
        records.pretraining_from_dataset(node.to_dataset(), where=f"{where}: pretraining")
        for node in in_order(tree, "pretraining", where)
    )


def settings_from(attrs: Mapping[Any, Any], where: str) -> PretrainingSettings:
    found = loads(attrs.get("settings"), where=where)
    names = {f.name for f in dataclasses.fields(PretrainingSettings)}
    if not isinstance(found, dict) or set(found) != names:
        raise StateError(f"{where}: expected the settings {sorted(names)}.")
    optional = ("patience", "simulations")
    numbers = [v for k, v in found.items() if not (k in optional and v is None)]
    if not all(isinstance(v, int | float) for v in numbers):
        raise StateError(f"{where}: expected numbers in the settings.")
    return PretrainingSettings(**found)


def simulator_from(
    tree: xr.DataTree,
    compiled: CompiledModel,
    structure: Structure,
    covariates: Mapping[str, Any] | None,
    simulator: SimulatorFunction | None,
    *,
    where: str,
) -> Simulator:
    """Make the simulator again; `covariates` are the user's sources, those of the state else."""
    masking = _masking(tree.attrs, structure, where)
    infos = masking.sized(compiled.covariates)
    if covariates is None:
        stored = group(tree, "covariates", where)
        covariates = sources.from_dataset(stored, infos, where=where)
    backend = tree.attrs.get("simulator")
    if backend not in ("jax", "pytensor", "function"):
        raise StateError(
            f"{where}: expected a simulator 'jax', 'pytensor' or 'function', got {backend!r}."
        )
    if (backend == "function") != (simulator is not None):
        raise StateError(
            f"{where}: simulator: expected "
            + (
                "the function that made the data, which a state does not hold."
                if simulator is None
                else "none: the model's own distributions made the data."
            )
        )
    return make_simulator(
        compiled,
        read_covariates(covariates, infos),
        backend="auto" if backend == "function" else backend,
        masking=masking,
        function=simulator,
    )


def structure_from(attrs: Mapping[Any, Any], compiled: CompiledModel, where: str) -> Structure:
    found = loads(attrs.get("structure"), where=where)
    if not (isinstance(found, list) and len(found) in (3, 4) and isinstance(found[2], str)):
        raise StateError(f"{where}: expected the structure of the data.")
    kind, row, why, *more = found
    times = tuple(more[0]) if more else ()
    if not {*times} <= {i.name for i in compiled.covariates if i.dims == (row,)}:
        raise StateError(f"{where}: expected times of the rows, got {list(times)}.")
    fits = (
        row in compiled.shared_dims
        if kind in ("exchangeable", "sequence")
        else kind == "fixed" and row is None
    )
    if not fits:
        raise StateError(f"{where}: {kind!r} along {row!r} does not fit the model.")
    return Structure(kind, row, why, times)


def _masking(attrs: Mapping[Any, Any], structure: Structure, where: str) -> Masking:
    """Read lengths and missing values of training; states before these have neither."""
    lengths = loads(attrs.get("lengths", "null"), where=where)
    missing = attrs.get("missing", 0.0)
    whole = isinstance(lengths, list) and [type(n) for n in lengths] == [int, int]
    if lengths is not None and not (
        whole and structure.row is not None and 1 <= lengths[0] <= lengths[1] <= _LONGEST
    ):
        raise StateError(f"{where}: {lengths!r} are no lengths of datasets.")
    if not isinstance(missing, float | int) or not 0 <= missing < 1:
        raise StateError(f"{where}: expected a fraction of missing values, got {missing!r}.")
    row = None if lengths is None else structure.row
    return Masking(row, None if lengths is None else tuple(lengths), float(missing))


def _familiar_to_dataset(familiar: Familiar) -> xr.Dataset:
    dims = {"mean": "feature", "factor": ("feature", "direction"), "distances": "simulation"}
    return xr.Dataset({name: (dims[name], value) for name, value in familiar._asdict().items()})


def _familiar(
    tree: xr.DataTree, amortizer: Amortizer, compiled: CompiledModel, where: str
) -> Familiar | None:
    """Read what simulated inputs are like; states of before have nothing of it."""
    if "familiar" not in tree.children:
        return None
    data = group(tree, "familiar", where)
    if set(data.data_vars) != set(Familiar._fields):
        raise StateError(f"{where}: familiar: expected {list(Familiar._fields)}.")
    found = Familiar(*(data[name].values for name in Familiar._fields))
    one = {i.name: np.zeros((1, *i.shape), i.dtype) for i in compiled.data}
    k = eqx.filter_eval_shape(describe_inputs, amortizer, Batch(one, None)).shape[1]  # type: ignore[arg-type]
    shapes = ((k,), (k, k), (len(found.distances),))
    numbers = all(v.dtype.kind == "f" and np.isfinite(v).all() for v in found)
    if tuple(v.shape for v in found) != shapes or not numbers or not len(found.distances):
        raise StateError(f"{where}: familiar: expected finite numbers of {k} features.")
    return found
