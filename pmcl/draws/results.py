"""Arrays -> DataTree: the labelled results that users see."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import xarray as xr

from pmcl.compile import CompiledModel, VariableInfo
from pmcl.data.label_text import few, numbers, text
from pmcl.data.labels import is_turned
from pmcl.data.one_dataset import LENGTH, OF_MODEL, dims_of, one_dataset
from pmcl.data.task import DATASET, Task
from pmcl.draws.drawn import Drawn
from pmcl.metrics import ImportanceDiagnostics
from pmcl.runtime.arguments import listed


class Draws(NamedTuple):
    """Posterior draws of the datasets of one task.

    Attributes
    ----------
    z : array of shape (chain, draw, dataset, dim)
    constrained : dict of arrays of shape (chain, draw, dataset, ...)
    sample_stats : dict of arrays of shape (chain, draw, dataset)
    dataset_stats : dict of arrays of shape (dataset,)
    seconds : float
    """

    z: np.ndarray
    constrained: dict[str, np.ndarray]
    sample_stats: dict[str, np.ndarray]
    dataset_stats: dict[str, np.ndarray]
    seconds: float


SAMPLE = ("chain", "draw", DATASET)


def _coords(compiled: CompiledModel, task: Task, dims: set[str]) -> dict[str, np.ndarray]:
    """Coordinates of the model's dims; those of the data are numbered, since lengths differ."""
    found: dict[str, np.ndarray] = {DATASET: np.asarray(task.names, dtype=object).astype(str)}
    for dim in dims:
        if dim in compiled.coords and not (
            dim in compiled.data_dims and len(compiled.coords[dim]) != _length(task, dim)
        ):
            found[dim] = compiled.coords[dim]
    return found


def _length(task: Task, dim: str) -> int:
    for info in task.layout.variables:
        if dim in info.dims and info.name in task.values:
            return task.values[info.name].shape[1 + info.dims.index(dim)]
    return -1


def labelled(
    compiled: CompiledModel,
    task: Task,
    infos: Mapping[str, VariableInfo],
    arrays: Mapping[str, np.ndarray],
    leading: tuple[str, ...],
) -> xr.Dataset:
    """Label arrays of shape (leading..., *variable) with dims, coords and padding as NaN.

    A deterministic that is not as long as the model's dim of its has an axis without that name.
    """
    variables = {}
    for name, value in arrays.items():
        dims = infos[name].dims
        row = task.layout.row
        if task.ragged and row in dims and np.issubdtype(value.dtype, np.floating):
            rows = task.rows
            assert rows is not None
            shape = [1] * value.ndim
            shape[leading.index(DATASET)] = rows.shape[0]
            shape[len(leading) + dims.index(row)] = rows.shape[1]
            value = np.where(rows.reshape(shape), value, np.nan)
        variables[name] = ((*leading, *dims), value)
    used = {d for dims, _ in variables.values() for d in dims}
    coords = _coords(compiled, task, used)
    lengths = {d: len(labels) for d, labels in coords.items()}
    for name, (dims, value) in variables.items():
        variables[name] = (_fitting(name, dims, value.shape, len(leading), lengths), value)
    found = xr.Dataset(variables, coords=coords)
    for name in arrays:
        if name.endswith(LENGTH):
            found[name].attrs[OF_MODEL] = 1
    return found


def _fitting(
    name: str, dims: tuple[str, ...], shape: tuple[int, ...], leading: int, lengths: dict[str, int]
) -> tuple[str, ...]:
    """Dims of one array, nameless where they are of another length: PyMC checks only draws'."""
    each = enumerate(zip(dims, shape, strict=True), start=-leading)
    return tuple(d if lengths.setdefault(d, n) == n else f"{name}_dim_{i}" for i, (d, n) in each)


def data_groups(compiled: CompiledModel, task: Task) -> dict[str, xr.Dataset]:
    """Return the groups observed_data and constant_data of a task."""
    groups = {}
    for group, infos in (
        ("observed_data", compiled.observed),
        ("constant_data", compiled.covariates),
    ):
        by_name = {i.name: i for i in infos}
        arrays = {i.name: task.with_nan(i.name) for i in infos}
        if arrays:
            groups[group] = labelled(compiled, task, by_name, arrays, (DATASET,))
            if task.lengths is not None and task.ragged:
                groups[group][f"{task.layout.row}{LENGTH}"] = (DATASET, task.lengths)
    if task.known is not None:
        free = {i.name: i for i in compiled.free}
        known = labelled(compiled, task, free, task.known.values, (DATASET,))
        groups["constant_data"] = known.merge(groups.get("constant_data", xr.Dataset()))
    return groups


def attributes(engine: str, seconds: float) -> dict[str, str | float]:
    """Attributes of a group of draws, as ArviZ names them."""
    return {
        "inference_library": "pmcl",
        "inference_library_version": version("pmcl"),
        "created_at": datetime.now(UTC).isoformat(),
        "sampling_time": seconds,
        "engine": engine,
    }


def value_infos(compiled: CompiledModel) -> dict[str, VariableInfo]:
    """Describe value variables, with the model's dims where their length is kept."""
    shapes = {i.name: i for i in compiled.free}
    found = {}
    for v in compiled.values:
        free = shapes[v.variable]
        dims = [f"{v.name}_dim_{i}" for i in range(len(v.shape))]
        if len(free.shape) == len(v.shape):
            each = zip(free.dims, free.shape, v.shape, dims, strict=True)
            dims = [dim if size == n else own for dim, size, n, own in each]
        found[v.name] = VariableInfo(v.name, tuple(dims), v.shape, "float64")
    return found


def unconstrained_dataset(
    compiled: CompiledModel, task: Task, z: np.ndarray, leading: tuple[str, ...] = SAMPLE
) -> xr.Dataset:
    """Split z into the model's value variables, with the model's dims where lengths are kept."""
    arrays = {
        v.name: z[..., v.start : v.start + v.size].reshape(*z.shape[:-1], *v.shape)
        for v in compiled.values
    }
    return labelled(compiled, task, value_infos(compiled), arrays, leading)


def flat_z(compiled: CompiledModel, tree: xr.DataTree | xr.Dataset) -> np.ndarray:
    """Return z of shape (chain, draw, dataset, dim) of a results tree."""
    group = tree["unconstrained_posterior"].to_dataset() if isinstance(tree, xr.DataTree) else tree
    group = in_order(group, compiled.coords)
    parts = []
    for v in compiled.values:
        value = group[v.name].transpose(*SAMPLE, ...)
        parts.append(value.values.reshape(*value.shape[:3], -1))
    return np.concatenate(parts, axis=-1)


def in_order(group: xr.Dataset, labels: Mapping[str, Sequence | np.ndarray]) -> xr.Dataset:
    """Put elements in the order of these labels, by dim, where it has the same in another one."""
    for dim in {*labels} & {*group.dims} & {*group.coords}:
        ours, theirs = text(labels[str(dim)]), text(group[dim].values)
        if is_turned(theirs, ours):
            position = {label: i for i, label in enumerate(theirs)}
            group = group.isel({dim: [position[label] for label in ours]})
    return group


def log_q_at(
    compiled: CompiledModel,
    parameters: xr.DataTree | xr.Dataset,
    names: Sequence[str],
    log_q: Callable[[np.ndarray], np.ndarray],
) -> xr.DataArray:
    """Log density, by chain, draw and dataset, that `log_q` gives for z (dataset, draw, dim)."""
    if isinstance(parameters, xr.DataTree):  # of results, or the group itself
        parameters = parameters.children.get("unconstrained_posterior", parameters).to_dataset()
    if not isinstance(parameters, xr.Dataset):
        raise TypeError(
            "log_prob: expected results of `sample`, or their group `unconstrained_posterior`, got "
            f"{type(parameters).__name__}."
        )
    missing = [v.name for v in compiled.values if v.name not in parameters]
    if missing:
        raise ValueError(
            f"log_prob: expected the variables of the group `unconstrained_posterior`, {missing} "
            "are not there."
        )
    if DATASET not in parameters.dims:
        alone = DATASET if DATASET in parameters.coords else {DATASET: [*names[:1]]}
        parameters = parameters.expand_dims(alone)
    z = flat_z(compiled, in_order(parameters, {DATASET: names}))
    if z.shape[2] != len(names):
        raise ValueError(f"log_prob: expected draws of {len(names)} datasets, got {z.shape[2]}.")
    came = text(parameters[DATASET].values) if DATASET in parameters.coords else [*names]
    if {*came} != {*names} and numbers(len(names)) not in (came, [*names]):
        raise ValueError(
            f"log_prob: expected draws of the datasets {few([*names])}, got those of {few(came)}."
        )
    chains, draws = z.shape[:2]
    value = log_q(np.moveaxis(z.reshape(chains * draws, *z.shape[2:]), 0, 1))
    return xr.DataArray(
        np.moveaxis(value, 0, 1).reshape(chains, draws, len(names)),
        dims=SAMPLE,
        coords={DATASET: list(names)},
        name="log_q",
    )


def posterior_tree(
    compiled: CompiledModel,
    task: Task,
    draws: Draws,
    *,
    engine: str,
    extra: Mapping[str, xr.Dataset] | None = None,
) -> xr.DataTree:
    """Build the results of one task: the groups of ArviZ, and `dataset_stats`."""
    infos = {i.name: i for i in (*compiled.free, *compiled.deterministics)}
    names = _coords(compiled, task, set())
    groups = {
        "posterior": labelled(compiled, task, infos, draws.constrained, SAMPLE),
        "unconstrained_posterior": unconstrained_dataset(compiled, task, draws.z),
        "sample_stats": xr.Dataset(
            {k: (SAMPLE, v) for k, v in draws.sample_stats.items()}, coords=names
        ),
        "dataset_stats": xr.Dataset(
            {k: ((DATASET,), v) for k, v in draws.dataset_stats.items()}, coords=names
        ),
        **data_groups(compiled, task),
        **(extra or {}),
    }
    attrs = attributes(engine, draws.seconds)
    for name in ("posterior", "unconstrained_posterior", "sample_stats", *(extra or {})):
        data = groups[name]
        for dim in ("chain", "draw"):
            if dim in data.dims:
                data = data.assign_coords({dim: np.arange(data.sizes[dim])})
        groups[name] = data
    groups["posterior"] = groups["posterior"].assign_attrs(attrs)
    return xr.DataTree.from_dict(groups)


def one(tree: xr.DataTree, dataset: str | int | None = None) -> xr.DataTree:
    """Return the results of one dataset as a plain ArviZ tree, without the dim `dataset`.

    Parameters
    ----------
    tree : xarray.DataTree
        From `sample`, `sample_reference` or `predict`.
    dataset : str or int, optional
        The dataset's name, or its position; the only one where there is one.

    Returns
    -------
    xarray.DataTree
        With padding dropped.

    Raises
    ------
    KeyError
        If there is no such dataset; the message names those there are. If a number is the name of
        one, and the position of another.
    """
    names = [str(n) for n in tree["posterior"].to_dataset()[DATASET].values]
    if dataset is None:
        if len(names) != 1:
            raise KeyError(
                f"one: expected the name of a dataset, as there are {len(names)} "
                f"({listed(names, 10)})."
            )
        position = 0
    elif said := ambiguous(names, dataset):
        raise KeyError(f"one: {said}")
    elif isinstance(dataset, str):
        if dataset not in names:
            raise KeyError(
                f"one: expected the name of a dataset ({listed(names, 10)}), got {dataset!r}."
            )
        position = names.index(dataset)
    elif -len(names) <= dataset < len(names):
        position = range(len(names))[dataset]
    else:
        raise KeyError(f"one: expected a position below {len(names)}, got {dataset}.")
    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    return xr.DataTree.from_dict(one_dataset(groups, position, dims_of(tree)))


def ambiguous(names: Sequence[str], dataset: str | int) -> str:
    """What to say of a number that is a dataset's name, and not its position; else nothing."""
    name = str(dataset)
    if isinstance(dataset, str) or name not in names or names[dataset : dataset + 1] == [name]:
        return ""
    return f"expected a name as text, or a position; {dataset} is no position of {name!r}."


def warn_of_doubts(names: Sequence[str], tree: xr.DataTree, *, above: int = 3) -> None:
    """Warn of datasets whose posterior should not be trusted, by name.

    `above`: levels to the user's call.
    """
    stats = tree["dataset_stats"].to_dataset()
    for said in doubts(names, {k: stats[k].values for k in ("warning", "engine")}):
        warnings.warn(said, stacklevel=above)


def doubts(names: Sequence[str], stats: Mapping[str, np.ndarray]) -> list[str]:
    """Say which datasets' posteriors should not be trusted, and what to do."""
    rows = [*zip(names, stats["warning"], stats["engine"], strict=True)]
    chains = [n for n, warning, engine in rows if warning and engine == "nuts"]
    weights = {n: warning for n, warning, engine in rows if warning and engine != "nuts"}
    found = []
    if weights:
        found.append(
            f"The posterior of {len(weights)} of {len(names)} datasets should not be trusted "
            f"({listed([*weights])}; of {next(iter(weights))!r}: {next(iter(weights.values()))}): "
            "adapt to data like these, or sample them with `fallback='nuts'`. `dataset_stats` has "
            "the cause of each as `warning`."
        )
    if chains:
        found.append(
            f"NUTS, too, is not to be trusted for {len(chains)} of {len(names)} datasets "
            f"({listed(chains)}): `dataset_stats` says why. Look at how the model is parametrised, "
            "or take more draws with `sample_reference`."
        )
    return found


def assemble(
    drawn: Drawn,
    diagnostics: ImportanceDiagnostics,
    constrained: Mapping[str, np.ndarray],
    dataset_stats: Mapping[str, np.ndarray],
    *,
    log_weights: np.ndarray,
    seconds: float,
) -> Draws:
    """Put draws of shape (dataset, draw, ...) in ArviZ's order, with importance diagnostics."""

    def ordered(value: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.asarray(value), 0, 1)[None]

    return Draws(
        z=ordered(drawn.z),
        constrained={k: ordered(v) for k, v in constrained.items()},
        sample_stats={
            "log_prior": ordered(drawn.log_prior),
            "log_likelihood": ordered(drawn.log_likelihood),
            "log_q": ordered(drawn.log_q),
            "log_weight": ordered(log_weights),
        },
        dataset_stats={
            "khat": np.asarray(diagnostics.khat),
            "efficiency": np.asarray(diagnostics.efficiency),
            "log_evidence": np.asarray(diagnostics.log_evidence),
            "log_evidence_error": np.asarray(diagnostics.log_evidence_error),
            "finite_fraction": np.asarray(diagnostics.finite_fraction),
            "sc_variance": np.asarray(diagnostics.sc_variance),
            **dataset_stats,
        },
        seconds=seconds,
    )
