"""Save and load an online posterior: one DataTree, and back."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import pymc as pm
import xarray as xr

from pmcl.archive import fingerprint
from pmcl.archive.attributes import check_schema, flag, number
from pmcl.archive.configuration import check_sizes, decode, dumps, encode, loads
from pmcl.archive.errors import StateError
from pmcl.archive.fingerprint import check
from pmcl.archive.normals import anchors_of, dims_of, entries_of, normal_of, scores_of
from pmcl.archive.weights import from_dataset, to_dataset
from pmcl.archive.zipped import group
from pmcl.compile import CompiledModel, compile_model, localise
from pmcl.compile.local_variables import separate
from pmcl.compile.predictive import lengths_of, predict
from pmcl.online.drift import AbstractDrift, LearnedDrift
from pmcl.online.families import FAMILIES
from pmcl.online.families.search import GaussNewton
from pmcl.online.gaps import THERE
from pmcl.online.gaussian import MeanField
from pmcl.online.latent.encoder import Encoder, EncoderNetwork, Latents
from pmcl.online.latent_posterior import LatentPosterior
from pmcl.online.memory import AbstractMemory, Stored
from pmcl.online.one_point import METHODS
from pmcl.online.posterior import OnlinePosterior
from pmcl.online.records import UpdateRecord
from pmcl.online.rows import Rows
from pmcl.online.search.search import Search
from pmcl.online.search.start import AbstractStart
from pmcl.online.state import Info, RowModel, Settings, State, no_anchors
from pmcl.online.stream import AbstractStream
from pmcl.runtime.precision import scope_of

SCHEMA = 7
KIND = "online"

_SETTINGS: dict[str, tuple[type, ...]] = {
    "memory": (AbstractMemory, type(None)),
    "drift": (AbstractDrift,),
    "search": (Search, GaussNewton),
    "start": (AbstractStart,),
    "method": (*METHODS, type(None)),
    "power": (float,),
    "strength": (float,),
    "family": (str,),
}

_ROWS = 3  # of the data at which log densities tell one model from another


def to_datatree(stream: AbstractStream, *, include_memory: bool = True) -> xr.DataTree:
    """Return everything needed to go on on another machine, as one DataTree.

    Groups `model` (fingerprint), `prior`, `q`, `predictive`, `memory` and `history`.
    """
    s, state = stream, stream.state
    if not include_memory and len(state.memory):
        # What is known without them.
        nothing = Stored({}, np.zeros(0), np.zeros(0, "U1"))
        seen = state.seen - len(state.memory)
        anchors = state.anchors
        if state.whole:  # they came of these rows
            anchors = no_anchors(s.problem, s.settings.family)
        state = state._replace(predictive=state.q, memory=nothing, seen=seen, anchors=anchors)
    memory = state.memory
    groups = {
        "/": xr.Dataset(
            attrs={
                "kind": KIND,
                "schema": SCHEMA,
                "pmcl_version": version("pmcl"),
                "created_at": datetime.now(UTC).isoformat(),
                "seed": s.seed,
                "row": s.row,
                "covariates": dumps([i.name for i in s.compiled.covariates]),
                "precision": s.precision,
                "local": s.problem.rows.local is not None,
                **_about_latents(s),
                "gaussian": s.problem.gaussian,
                "settings": dumps([encode(v, where="settings") for v in s.settings]),
                "time": float(state.time),
                "seen": state.seen,
                "updates": state.updates,
                "scores": dumps(list(state.scores)),
            }
        ),
        "/model": _probe(s.compiled, s.row),
    }
    branches = [(f"branch {i}", q) for i, q in enumerate(state.branches)]
    known = [("prior", s.problem.prior), ("q", state.q), ("predictive", state.predictive)]
    for name, q in (*known, *branches):
        groups[f"/{name}"] = xr.Dataset(
            {k: (dims_of(k), np.asarray(v)) for k, v in q._asdict().items()}
        )
    if state.anchors is not None:
        at, since = (np.asarray(v) for v in state.anchors)
        groups["/anchors"] = xr.Dataset({"at": (("anchor", "z"), at), "since": ("z", since)})
    groups["/prior"]["normal"] = ("z", s.problem.normal)
    if len(memory):
        infos = {i.name: i for i in s.compiled.data}
        values = {
            k: (infos[k.removesuffix(THERE)].dims, np.asarray(v)) for k, v in memory.data.items()
        }
        groups["/memory"] = xr.Dataset(values).assign_coords(
            batch=(s.row, memory.tasks), time=(s.row, memory.times)
        )
    if s.records:
        groups["/history"] = s.history
    if isinstance(s, LatentPosterior):
        for i, network in enumerate(s.latents.networks):
            shape = {"features": len(network.location), "masked": network.masked}
            groups[f"/encoder {i}"] = to_dataset(network).assign_attrs(shape)
    return xr.DataTree.from_dict(groups)


def from_datatree(
    tree: xr.DataTree, model: pm.Model, *, where: str, like: AbstractStream | None = None
) -> AbstractStream:
    """Make the online posterior again of which :func:`to_datatree` gave the state.

    `like` is another of the same model: what was compiled for it serves again.
    """
    attrs = tree.attrs
    check_schema(attrs, SCHEMA, where)
    names = loads(attrs.get("covariates"), where=where)
    row, precision = attrs.get("row"), attrs.get("precision")
    if not isinstance(names, list) or not isinstance(row, str):
        raise StateError(f"{where}: expected a row dim and names of covariates.")
    if precision not in ("double", "single"):
        raise StateError(f"{where}: expected precision 'double' or 'single', got {precision!r}.")
    latents = None
    with scope_of("double"):
        locals_, encoder = _encoder(attrs, where)
        if locals_:
            model, variables = separate(model, locals_)
            latents = Latents(variables, encoder)
        if like is None:
            compiled = compile_model(model, covariates=[n for n in names if n in model.named_vars])
        else:
            compiled = like.compiled
        check(compiled, group(tree, "model", where), where=where)
    settings = _settings(attrs, where)
    with scope_of(precision):
        if like is None:
            rows = Rows(compiled, row, localise(compiled) if flag(attrs, "local", where) else None)
        else:
            rows = like.problem.rows
        prior = normal_of(group(tree, "prior", where), MeanField, compiled.dim, f"{where}: prior")
        kind = FAMILIES[settings.family]
        q, predictive = (
            normal_of(group(tree, name, where), kind, compiled.dim, f"{where}: {name}")
            for name in ("q", "predictive")
        )
        problem = RowModel(
            rows,
            prior,
            normal=entries_of(group(tree, "prior", where), compiled.dim, f"{where}: prior"),
            gaussian=flag(attrs, "gaussian", where),
        )
        anchors = no_anchors(problem, settings.family)
        if anchors is not None:
            anchors = anchors_of(group(tree, "anchors", where), compiled.dim, f"{where}: anchors")
        state = State(
            q,
            predictive,
            _memory(tree, rows, where),
            number(attrs, "time", where),
            int(number(attrs, "seen", where)),
            int(number(attrs, "updates", where)),
            anchors,
            scores := scores_of(attrs, settings, where),
            tuple(
                normal_of(
                    group(tree, f"branch {i}", where), kind, compiled.dim, f"{where}: branch {i}"
                )
                for i in range(len(scores) if isinstance(settings.drift, LearnedDrift) else 0)
            ),
        )
        if latents is not None:
            latents = latents._replace(networks=_networks(tree, latents, state.updates, where))
            if problem.gaussian:
                raise StateError(f"{where}: expected no exact updates with local variables.")
    seed, records = int(number(attrs, "seed", where)), _records(tree, where)
    if latents is not None:
        return LatentPosterior(
            compiled, problem, settings, precision, state, seed, records, latents=latents
        )
    return OnlinePosterior(compiled, problem, settings, precision, state, seed, records)


def _about_latents(stream: AbstractStream) -> dict[str, str]:
    if not isinstance(stream, LatentPosterior):
        return {}
    return {
        "latents": dumps(list(stream.local)),
        "encoder": dumps(encode(stream.encoder, where="encoder")),
    }


def _encoder(attrs: Mapping[Any, Any], where: str) -> tuple[list[str], Encoder]:
    """Names of the local variables, none where there is no such attribute, and their encoder."""
    if "latents" not in attrs:
        return [], Encoder()
    names = loads(attrs["latents"], where=where)
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or not names:
        raise StateError(f"{where}: expected names of local variables, got {names!r}.")
    found = loads(attrs.get("encoder"), where=where)
    encoder = decode(found, where=f"{where}: encoder", expected=Encoder)
    check_sizes(encoder, f"{where}: encoder")
    return names, encoder


def _networks(
    tree: xr.DataTree, latents: Latents, updates: int, where: str
) -> tuple[EncoderNetwork, ...]:
    expected = updates if latents.encoder.per_task else min(updates, 1)
    found: list[EncoderNetwork] = []
    for i in range(expected):
        data = group(tree, f"encoder {i}", where)
        at = f"{where}: encoder {i}"
        features, masked = int(number(data.attrs, "features", at)), flag(data.attrs, "masked", at)
        if "location" not in data or data["location"].shape != (features,):
            raise StateError(f"{at}: expected the location of {features} numbers of a row.")
        # Looked at before anything of that size is made.
        deepest, width = latents.encoder.depth, latents.encoder.width
        for layer in (0, deepest) if deepest else ():
            name = f"network.layers.{layer}.weight"
            if name not in data or width not in data[name].shape:
                raise StateError(f"{at}: {name}: expected {width} units.")
        like = latents.encoder.build(
            features, latents.variables.size, masked=masked, key=jax.random.key(0)
        )
        network = from_dataset(data, like, where=at)
        for name in ("scale", "spread"):
            if not (np.asarray(getattr(network, name)) > 0).all():
                raise StateError(f"{at}: {name}: expected numbers above 0.")
        if found and len(network.location) != len(found[0].location):
            raise StateError(f"{at}: expected rows as long as the first encoder's.")
        found.append(network)
    return tuple(found)


def _probe(compiled: CompiledModel, row: str) -> xr.Dataset:
    """Log densities at points of no meaning; rows are made up, so that none is given away."""
    rng = np.random.default_rng(0)
    with scope_of("double"):
        z = 0.1 * rng.normal(size=(4, compiled.dim))
        covariates = {}
        for info in compiled.covariates:
            shape = [_ROWS if d == row else n for d, n in zip(info.dims, info.shape, strict=True)]
            whole = np.issubdtype(np.dtype(info.dtype), np.floating)
            # Between 0 and 1: most models take that of any covariate.
            value = rng.uniform(0.1, 0.9, size=shape) if whole else np.zeros(shape)
            covariates[info.name] = np.asarray(value, info.dtype)
        lengths = lengths_of(compiled, covariates) | {row: _ROWS}
        drawn = predict(compiled, z, covariates, lengths, rng=rng)
        data = {k: np.broadcast_to(v, (len(z), *v.shape)) for k, v in covariates.items()} | drawn
        return fingerprint.fingerprint(compiled, z, data)


def _settings(attrs: Mapping[Any, Any], where: str) -> Settings:
    found = loads(attrs.get("settings"), where=where)
    if not isinstance(found, list) or len(found) != len(Settings._fields):
        raise StateError(f"{where}: expected the settings {list(Settings._fields)}.")
    settings = Settings(*(decode(v, where=f"{where}: settings") for v in found))
    for name, kinds in _SETTINGS.items():
        value = getattr(settings, name)
        if not isinstance(value, kinds):
            raise StateError(f"{where}: settings: expected a {name}, got {value!r}.")
    kind = Search if settings.family == "mean_field" else GaussNewton
    if settings.family not in FAMILIES or not isinstance(settings.search, kind):
        raise StateError(
            f"{where}: settings: expected a family of {list(FAMILIES)} and its search, got "
            f"{settings.family!r} and {settings.search!r}."
        )
    if not settings.power > 0:
        raise StateError(f"{where}: settings: expected a power above 0, got {settings.power}.")
    if not settings.strength >= 0:
        raise StateError(
            f"{where}: settings: expected a strength of at least 0, got {settings.strength}."
        )
    return settings


def _memory(tree: xr.DataTree, rows: Rows, where: str) -> Stored:
    if "memory" not in tree.children:
        return Stored({}, np.zeros(0), np.zeros(0, "U1"))
    data = group(tree, "memory", where)
    infos = rows.compiled.data
    there = {i.name + THERE: i for i in rows.compiled.observed if i.name + THERE in data}
    if {str(v) for v in data.data_vars} - there.keys() != {i.name for i in infos}:
        raise StateError(f"{where}: memory: expected {[i.name for i in infos]}.")
    for name, info in there.items():
        if data[name].dtype != bool or data[name].dims != info.dims:
            raise StateError(f"{where}: memory: {name!r}: expected booleans along {info.dims}.")
    for info in infos:
        value = data[info.name]
        if value.dims != info.dims or any(
            n != m and d not in rows.compiled.data_dims
            for d, n, m in zip(info.dims, value.shape, info.shape, strict=True)
        ):
            raise StateError(
                f"{where}: memory: {info.name!r}: expected dims {info.dims}, got {value.dims} of "
                f"shape {value.shape}."
            )
        if not np.isfinite(value.values).all():
            raise StateError(f"{where}: memory: {info.name!r}: expected finite numbers.")
    if any(c not in data.coords or data[c].dims != (rows.row,) for c in ("batch", "time")):
        raise StateError(f"{where}: memory: expected the batch and the time of every row.")
    if not np.isfinite(data["time"].values.astype(float)).all():
        raise StateError(f"{where}: memory: expected finite times.")
    values = {name: data[name].values for name in (*(i.name for i in infos), *there)}
    return Stored(values, data["time"].values.astype(float), data["batch"].values.astype(str))


def _records(tree: xr.DataTree, where: str) -> tuple[UpdateRecord, ...]:
    if "history" not in tree.children:
        return ()
    data = group(tree, "history", where)
    wanted = (*(f for f in Info._fields if f not in Info._field_defaults), "time", "seconds")
    columns = {n: v.values.tolist() for n, v in data.items() if v.dims == ("update",)}
    if any(n not in columns for n in wanted):
        raise StateError(f"{where}: history: expected {list(wanted)} by update.")
    return tuple(
        UpdateRecord(
            str(name),
            columns["time"][i],
            Info(**{f: columns[f][i] for f in Info._fields if f in columns}),
            columns["seconds"][i],
        )
        for i, name in enumerate(data["update"].values)
    )
