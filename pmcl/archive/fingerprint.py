"""Which model a state belongs to, told by behaviour: log densities at stored points."""

import jax
import numpy as np
import xarray as xr

from pmcl.archive.configuration import dumps, loads
from pmcl.archive.errors import StateError
from pmcl.compile import CompiledModel, Simulator
from pmcl.compile.description import describe
from pmcl.data.task import Batch, Layout, Task
from pmcl.draws.densities import densities
from pmcl.networks import Amortizer
from pmcl.networks.contexts import placed
from pmcl.runtime import precision

_POINTS = 8
_TOLERANCE = 1e-6  # relative; other machines round in other ways
_SIMILAR = 1e-3  # relative, of summaries of the same simulations on another machine
_SAME = 0.01  # nats of evidence, which a search that ends one step later still finds


def fingerprint(compiled: CompiledModel, z: np.ndarray, data: dict[str, np.ndarray]) -> xr.Dataset:
    """Points, and the log prior and log likelihood that the model gives there."""
    z, data = z[:_POINTS], {k: v[:_POINTS] for k, v in data.items()}
    log_prior, log_likelihood = _at(compiled, z, data)
    found: dict[str, tuple] = {
        "z": (("point", "parameter"), z),
        "log_prior": (("point",), log_prior, {"units": "nats"}),
        "log_likelihood": (("point",), log_likelihood, {"units": "nats"}),
    }
    for info in compiled.data:
        dims = tuple(f"{info.name}: {d}" for d in info.dims)
        found[f"data {info.name}"] = (("point", *dims), data[info.name])
    return xr.Dataset(found, attrs={"model": dumps(describe(compiled))})


def check(compiled: CompiledModel, stored: xr.Dataset, *, where: str) -> None:
    """Compare a model with the one that a state was made with.

    Raises
    ------
    StateError
        Saying what differs.
    """
    before = loads(stored.attrs.get("model"), where=f"{where}: model")
    now = describe(compiled)
    if not isinstance(before, dict) or set(before) != set(now):
        raise StateError(f"{where}: expected a description of a model.")
    for part, values in now.items():
        old = before[part]
        if old != values:
            different = [k for k in {**values, **old} if values.get(k) != old.get(k)]
            shown = "; ".join(
                f"{k!r}: stored {_short(old.get(k))}, the model has {_short(values.get(k))}"
                for k in different[:3]
            )
            raise StateError(f"{where}: the state is of another model; {part} differ: {shown}.")
    names = ("z", "log_prior", "log_likelihood", *(f"data {i.name}" for i in compiled.data))
    missing = [n for n in names if n not in stored]
    if missing:
        raise StateError(f"{where}: the fingerprint lacks {missing}.")
    z = stored["z"].values
    data = {i.name: stored[f"data {i.name}"].values for i in compiled.data}
    fits = all(
        len(data[i.name].shape) == 1 + len(i.shape)
        and len(data[i.name]) == len(z)
        # lengths that may differ are compared when the densities are evaluated
        and all(
            n == m or d in compiled.data_dims
            for d, n, m in zip(i.dims, data[i.name].shape[1:], i.shape, strict=True)
        )
        for i in compiled.data
    )
    if z.shape != (len(z), compiled.dim) or not fits:
        raise StateError(f"{where}: the fingerprint has points of another shape.")
    for name, value in zip(("log_prior", "log_likelihood"), _at(compiled, z, data), strict=True):
        old = stored[name].values
        if not np.allclose(value, old, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            worst = int(np.nanargmax(np.abs(value - old)))
            raise StateError(
                f"{where}: the state is of another model: {name} at a stored point is "
                f"{value[worst]:.6g}, it was {old[worst]:.6g}. Names and shapes are the same; look "
                "at priors, likelihood and constant data."
            )


def check_simulated(simulator: Simulator, stored: xr.Dataset, *, seed: int, where: str) -> None:
    """Compare what a simulator makes with what it made, where no likelihood tells models apart.

    Raises
    ------
    StateError
        Saying what differs.
    """
    n = stored.sizes["point"]
    _, data = simulator.simulate(n, random_seed=seed)
    for name, value in data.items():
        old = stored[f"data {name}"].values
        now = np.asarray(value)
        for what in (np.mean, np.std):
            if not np.allclose(what(now), what(old), rtol=_SIMILAR):
                raise StateError(
                    f"{where}: the state is of another simulator: the {what.__name__} of {n} "
                    f"simulations of {name!r} is {what(now):.6g}, it was {what(old):.6g}."
                )


def searched(amortizer: Amortizer, compiled: CompiledModel, probe: xr.Dataset) -> xr.Dataset:
    """What the search of a whitened network finds at the data of the fingerprint, and how.

    `evidence` is log density plus log determinant of the scale at the mode: a function of the
    dataset alone, whichever of two equal modes is taken.
    """
    assert amortizer.search is not None
    data: dict = {i.name: probe[f"data {i.name}"].values for i in compiled.data}
    with precision.scope():
        place = placed(amortizer, Batch(data, None)).place
        first, scale = jax.tree.map(lambda x: np.asarray(x)[:, 0], (place.loc, place.scale))
        log_prior, log_likelihood = _at(compiled, first, data)
        log_det = np.asarray(jax.vmap(lambda a: a.log_det())(scale))
    found = {
        "loc": (("point", "parameter"), first),
        "evidence": (("point",), log_prior + log_likelihood + log_det, {"units": "nats"}),
        "status": (("point",), np.asarray(place.status)),
    }
    search = amortizer.search
    attrs = {
        "starts": len(search.starts),
        "modes": search.modes,
        "steps": search.steps,
        "tol": search.tol,
    }
    if search.searches is not None:
        attrs["searches"] = search.searches
    return xr.Dataset(found, attrs=attrs)


def check_search(
    amortizer: Amortizer,
    compiled: CompiledModel,
    probe: xr.Dataset,
    stored: xr.Dataset,
    *,
    where: str,
) -> None:
    """Compare what a network's search finds with what it found when its state was stored.

    Raises
    ------
    StateError
        Saying what differs: the network would get other inputs than those it was trained with.
    """
    now = searched(amortizer, compiled, probe)
    missing = [n for n in now.data_vars if n not in stored]
    if missing or dict(stored.attrs) != dict(now.attrs):
        raise StateError(f"{where}: expected a search with {now.attrs}; lacks {missing}.")
    for name, value in now.data_vars.items():
        if stored[name].shape != value.shape:
            raise StateError(f"{where}: search: {name} has another shape.")
    check_ends(now, stored, _SAME, where)


def check_ends(now: xr.Dataset, stored: xr.Dataset, same: float, where: str) -> None:
    """Refuse a state whose searches end elsewhere than they did, or by more than `same` nats apart.

    Raises
    ------
    StateError
        Naming the data, and where its search ends and ended.
    """
    apart = np.abs(now["evidence"].values - stored["evidence"].values)
    other = (apart > same) | (now["status"].values != stored["status"].values)
    if other.any():
        i = int(np.argmax(other))
        raise StateError(
            f"{where}: at stored data {i} the search ends with status {int(now['status'][i])} and "
            f"evidence {float(now['evidence'][i]):.6g}, it ended with {int(stored['status'][i])} "
            f"and {float(stored['evidence'][i]):.6g}. Train the network again with this version."
        )


def _at(
    compiled: CompiledModel, z: np.ndarray, data: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    task = Task(Layout.of(compiled, None), data, tuple(map(str, range(len(z)))), None)
    with precision.scope():
        log_prior, log_likelihood = densities(compiled, z[:, None], task)
    return log_prior[:, 0], log_likelihood[:, 0]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."
