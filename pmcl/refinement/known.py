"""Parameters that are known: the model of what is left, given them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from pmcl.compile import CompiledModel, Density, compile_model
from pmcl.compile.as_data import as_data
from pmcl.compile.integral import of_prior
from pmcl.compile.parting import KNOWN, LEFT, parted
from pmcl.data.batching import over_chunks
from pmcl.data.labels import as_the_model
from pmcl.data.plain import plain
from pmcl.data.task import DATASET, Layout, Task
from pmcl.draws.densities import constrain
from pmcl.levels.structure import Known, Levels, Split
from pmcl.runtime import precision
from pmcl.runtime.jitting import jit

_TOGETHER = 16  # datasets
_LOOKED_AT = 2  # places of what is not known
_ROUNDED = 1e-3  # of the largest entry: what a sum of entries may be off by
_SETS = 16  # of known parameters, whose models are kept


class Conditioned(NamedTuple):
    """What is left to refine, given some parameters.

    Attributes
    ----------
    compiled : CompiledModel
        Of the parameters that are left.
    task : Task
        The datasets, known parameters beside them.
    known : array of shape (dataset, known)
        Unconstrained values of these.
    places, left : array of int of shape (known,) and (dim,)
        Where they lie in the z of the whole model, and where what is left does.
    """

    compiled: CompiledModel
    task: Task
    known: np.ndarray
    places: np.ndarray
    left: np.ndarray

    def starts(self, z: np.ndarray) -> np.ndarray:
        """Move draws of all parameters, (dataset, draw, dim), to those that are left.

        As for a normal of the draws' covariance: by a regression on what is known.
        """
        left, moved = self.left, np.empty((*z.shape[:2], len(self.left)))
        for i, own in enumerate(z):
            centred = own - own.mean(axis=0)
            slope = np.linalg.lstsq(centred[:, self.places], centred[:, left], rcond=1e-6)[0]
            moved[i] = own[:, left] - (own[:, self.places] - self.known[i]) @ slope
        return moved


def conditioned(compiled: CompiledModel, task: Task, given: Mapping[str, ArrayLike]) -> Conditioned:
    """Condition a model on parameters that are known.

    Known parameters become data: whatever depends on them sees their values, and their own
    density, which may depend on what is left, is a term of the likelihood.

    Parameters
    ----------
    compiled : CompiledModel
    task : Task
        Of that model.
    given : mapping of str to array
        Free variables, on the scale of the model: one value for all datasets, or a leading dim
        `dataset`; NaN where an entry is not known, the same ones in all datasets.

    Raises
    ------
    ValueError
        Naming the variable that there is not, whose shape is wrong or which cannot have the value.
    """
    values = values_of(compiled, task, given)
    for name, value in values.items():
        if (np.isnan(value) != np.isnan(value[:1])).any():
            raise ValueError(
                f"given[{name!r}]: expected the same entries known in all datasets, NaN elsewhere; "
                "they differ. Call once for each set of entries."
            )
    there = {i.name: np.isfinite(values[i.name][0]) for i in compiled.free if i.name in values}
    rest = conditional_model(compiled, there)
    known = known_z(compiled, task, values)
    places = np.flatnonzero(np.isfinite(known[0]))
    known = known[:, places]
    as_they_are = {n: v for n, v in values.items() if there[n].all()}
    some = {KNOWN.format(n): v[:, there[n]] for n, v in values.items() if n not in as_they_are}
    layout, held = Layout.of(rest, task.layout.row), {**task.values, **as_they_are, **some}
    task = replace(task, layout=layout, values=held, place=None, known=None)
    whole = {v.variable: np.arange(v.start, v.start + v.size) for v in compiled.values}
    for name in values:
        if name not in as_they_are:
            whole[LEFT.format(name)] = whole[name][~there[name].ravel()]
    left = np.concatenate([whole[v.variable] for v in rest.values])
    return Conditioned(rest, task, known, places, left)


def whole_names(given: Mapping[str, ArrayLike]) -> set[str]:
    """Names of variables all of whose entries are known."""
    return {n for n, v in given.items() if not np.isnan(_numbers(n, plain(v), "float64")).any()}


def _numbers(name: str, value: np.ndarray, kind: str) -> np.ndarray:
    if value.dtype.kind not in "biuf":
        raise ValueError(
            f"given[{name!r}]: expected numbers, or labelled ones (a Series, a DataArray), got "
            f"{value.dtype}."
        )
    return value.astype(kind)


def conditional_model(compiled: CompiledModel, known: Mapping[str, np.ndarray]) -> CompiledModel:
    """Compile the model in which entries of free variables are data; once for each of a few sets.

    `known` says which entries, by variable.
    """
    partly = {n: v for n, v in known.items() if not v.all()}
    names = [KNOWN.format(n) if n in partly else n for n in known]
    covariates = {i.name for i in compiled.covariates}

    def make() -> CompiledModel:
        model = as_data(parted(compiled.model, partly) if partly else compiled.model, names)
        data = [v.name for v in model.data_vars if v.name in {*covariates, *names}]
        rest = compile_model(model, covariates=data)
        of_prior(rest, compiled)
        return rest

    key = tuple((n, v.tobytes()) for n, v in known.items())
    return compiled.keep_few("given", key, make, most=_SETS)


def values_of(
    compiled: CompiledModel, task: Task, given: Mapping[str, ArrayLike]
) -> dict[str, np.ndarray]:
    """Values by name, of shape (dataset, ...), with labels in the model's order.

    Raises
    ------
    ValueError
        Where names, shapes or values are none that can be known, or all variables have one.
    """
    infos = {i.name: i for i in compiled.free}
    unknown = [n for n in given if n not in infos]
    if unknown or not given:
        raise ValueError(
            f"given: expected values of some free variables, {[*infos]}, got {list(given)}."
        )
    found = {}
    for name, value in given.items():
        info = infos[name]
        where = f"given[{name!r}]"
        array = as_the_model(value, info, task.layout, task.names, where)
        array = _numbers(name, array, info.dtype)
        if array.shape == info.shape:
            array = np.broadcast_to(array, (len(task), *info.shape))
        if array.shape != (len(task), *info.shape):
            raise ValueError(
                f"given[{name!r}]: expected shape {info.shape}, or {(len(task), *info.shape)} with "
                f"a leading dim {DATASET!r}, got {np.shape(value)}."
            )
        if np.isinf(array).any() or np.isnan(array).all():
            raise ValueError(
                f"given[{name!r}]: expected finite numbers, or NaN for entries that are not known, "
                f"got {np.array2string(array[0], threshold=5)}."
            )
        found[name] = array
    if {*given} == {*infos} and all(np.isfinite(v).all() for v in found.values()):
        raise ValueError("given: expected some free variable without a value, all have one.")
    return found


def known_z(compiled: CompiledModel, task: Task, given: Mapping[str, np.ndarray]) -> np.ndarray:
    """Unconstrained values of known parameters, (dataset, dim), NaN where an entry is not known.

    Where a bound depends on other parameters these are at the model's initial point.

    Raises
    ------
    ValueError
        Naming a variable whose values its prior does not allow.
    """
    batch, n = task.batch(), len(task)
    with precision.scope():
        z, back = over_chunks(
            lambda part, values: _there_and_back(compiled, part.values, values),
            batch,
            np.arange(n),
            dict(given),
            size=_TOGETHER,
        )
    which = np.zeros(z.shape, bool)
    for v in (v for v in compiled.values if v.variable in given):
        at, there = slice(v.start, v.start + v.size), np.isfinite(given[v.variable]).reshape(n, -1)
        # what is known in part has an unconstrained value for each entry; a simplex has fewer
        which[:, at] = there if there.shape[1] == v.size else there.all(axis=1, keepdims=True)
        value = given[v.variable].reshape(n, -1)
        nearest = back[v.variable].reshape(n, -1)
        close = abs(value - nearest) <= _ROUNDED * abs(nearest).max(axis=1, keepdims=True)
        outside = ~np.isfinite(z[:, at]).all(axis=1)
        wrong = outside | ~(close | ~there).all(axis=1)  # or entries that do not sum to 1, or to 0
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            got, way = np.array2string(np.asarray(given[v.variable][i]), threshold=5), ""
            if not outside[i]:
                way = f" {np.array2string(back[v.variable][i], precision=6, threshold=5)} is one."
            raise ValueError(
                f"given[{v.variable!r}]: expected values that its prior allows, got {got} for "
                f"dataset {task.names[i]!r}.{way}"
            )
    return np.where(which, z, np.nan)


@jit
def _there_and_back(
    compiled: CompiledModel, data: dict[str, Array], known: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Unconstrained values, and what they are of the known variables."""
    initial = jnp.asarray(compiled.initial)

    def one(data: dict[str, Array], known: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        start = compiled.constrain(initial, data)
        filled = {n: jnp.where(jnp.isnan(v), start[n], v) for n, v in known.items()}
        z = compiled.unconstrain({**start, **filled}, data)
        back = compiled.constrain(z, data)
        return z, {n: back[n] for n in known}

    return jax.vmap(one)(data, known)


class KnownValues(NamedTuple):
    """What is known of the parameters of each dataset of a task.

    Attributes
    ----------
    values : dict of str to array of shape (dataset, ...)
        NaN where an entry is not known.
    of_z : Known
        The same of z, with a leading dataset.
    """

    values: dict[str, np.ndarray]
    of_z: Known

    def put_in(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Draws (dataset, draw, ...) by name, in which is what is known, to the last digit."""
        held = {n: v[:, None] for n, v in self.values.items() if n in found}
        return {**found, **{n: np.where(np.isnan(v), found[n], v) for n, v in held.items()}}


def known_in(
    density: Density, task: Task, levels: Levels | None, given: Mapping[str, ArrayLike]
) -> KnownValues:
    """What is known, for densities that go by z: nothing is compiled for which parameters it is.

    Parameters
    ----------
    density : Density
    task : Task
    levels : Levels, optional
        Of the task: groups that are padding count for nothing. None: no density goes by z.
    given : mapping of str to array
        As of :func:`conditioned`, but that each dataset may have other entries known.

    Raises
    ------
    ValueError
        As :func:`conditioned`, and where entries that are known do not follow from their own z.
    """
    compiled = density.compiled
    values = values_of(compiled, task, given)
    z = known_z(compiled, task, values)
    if levels is None:
        return KnownValues(values, Known(z, np.zeros(len(task))))  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    about = compiled.initial + 0.3 * rng.normal(size=(len(task), _LOOKED_AT, compiled.dim))
    about = np.where(np.isnan(z)[:, None], about, z[:, None])
    for name, found in constrain(compiled, about, task, tuple(values)).items():
        value = values[name][:, None]
        if not np.allclose(np.where(np.isnan(value), found, value), found, rtol=1e-6, atol=1e-9):
            if np.isnan(value).any():
                raise ValueError(
                    f"given[{name!r}]: expected all entries, some are NaN: they depend on each "
                    "other. Give it as a whole, or write it as two variables."
                )
            raise ValueError(
                f"given[{name!r}]: expected a variable whose bounds are known, they depend on "
                "other parameters: `pmcl.refine(given=)` takes it, without a network."
            )
    scale = over_chunks(
        lambda part, u, split: _log_jacobian(compiled, part.values, u, split),
        task.batch(),
        np.arange(len(task)),
        z,
        levels.split,
        size=_TOGETHER,
    )
    return KnownValues(values, Known(z, scale))  # type: ignore[arg-type]


@jit
def _log_jacobian(compiled: CompiledModel, data: dict[str, Array], z: Array, split: Split) -> Array:
    """Of the transforms of what is known of each dataset, without groups that are padding."""
    slices = {v.variable: slice(v.start, v.start + v.size) for v in compiled.values}

    def one(data: dict[str, Array], z: Array, split: Split) -> Array:
        known, begin, total = ~jnp.isnan(z), 0, jnp.zeros(())
        at = jnp.where(known, z, jnp.asarray(compiled.initial))
        stated = compiled.log_prior_elements(at, data, constrained=True)
        for name, term in compiled.log_prior_elements(at, data).items():
            there = split.owner[begin : begin + term.size] <= split.groups
            begin += term.size
            if name in slices and term.shape == stated[name].shape:  # else of angles, which have 0
                mine = known[slices[name]]
                mine = mine if mine.size == term.size else mine.all()
                apart = jnp.ravel(term - stated[name])
                total += jnp.sum(jnp.where(mine & there, apart, 0.0))
        return total

    return jax.vmap(one)(data, z, split)
