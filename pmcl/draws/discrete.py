"""Which terms of a density depend on which discrete variables, and the exact draws that follow."""

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from pmcl.compile import CompiledModel, Density, Mask
from pmcl.compile.discrete import DiscreteModel
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.metrics.elimination import Scope, TooEntangled, eliminate, elimination_order
from pmcl.runtime import precision
from pmcl.runtime.jitting import jit

_BLOCK = 64  # draws that are evaluated together
_CONFIGURATIONS = 64  # of discrete values, evaluated together
_MOST = 4096  # entries of a table
_PROBED = 3  # draws, and values of all other variables, at which dependence is looked for
_RTOL = 1e-9


class Element(NamedTuple):
    """One number of a discrete variable: its name, its place there, and what it can be."""

    name: str
    place: int
    values: np.ndarray


class Structure(NamedTuple):
    """How the terms of a density depend on discrete variables.

    Attributes
    ----------
    elements : list of Element
    scopes : list of tuple of int
        Elements that a factor depends on; its terms all depend on these.
    factor : array of int of shape (term,)
        Of each term; those that depend on none are of the last one, which is no factor.
    order : list
        In which elements are summed out.
    colours : array of int of shape (element,)
        Those of one factor have different ones: elements of one colour can change together.
    shapes : dict of tuple of int
        Of the variables.
    """

    elements: list[Element]
    scopes: list[Scope]
    factor: np.ndarray
    order: list[tuple[int, Scope]]
    colours: np.ndarray
    shapes: dict[str, tuple[int, ...]]


class Recovered(NamedTuple):
    """Discrete variables of one dataset.

    Attributes
    ----------
    values : dict of arrays of int of shape (draw, ...)
    probability : dict of arrays of shape (..., value)
        Averages over draws of exact probabilities.
    """

    values: dict[str, np.ndarray]
    probability: dict[str, np.ndarray]


def recovered(
    model: DiscreteModel,
    z: np.ndarray,
    data: Mapping[str, np.ndarray],
    weight: np.ndarray,
    rng: np.random.Generator,
    *,
    like: "Structure | None" = None,
) -> tuple[Recovered, "Structure"]:
    """Draw the discrete variables of one dataset given each draw z, of shape (draw, dim).

    Parameters
    ----------
    model : DiscreteModel
    z : array
    data : mapping of arrays
        Observed values and covariates, NaN where one is missing.
    weight : array of shape (draw,)
        That sum to one, for the probabilities.
    rng : numpy.random.Generator
    like : Structure, optional
        Of another dataset: looked for anew where this one's density is no sum of such terms.

    Raises
    ------
    UnsupportedModelError
        Where the variables depend on each other in too large groups, or not by terms of a sum.
    """
    shapes = shapes_of(model, data)
    trying = np.random.default_rng(0)  # what is tried out is no part of the draws
    work = _Work.of(model.compiled, data)
    with precision.scope():
        structure, apart = like, np.inf
        tables: dict[Scope, np.ndarray] = {}
        if structure is not None and structure.shapes == shapes:
            tables, apart = _factored(structure, shapes, work, z, trying)
        if structure is None or apart:
            structure = _structure(model, shapes, work, z, trying)
            tables, apart = _factored(structure, shapes, work, z, trying)
    if apart:
        raise UnsupportedModelError(
            f"recover_discrete: the density is no sum of terms of {[*shapes]} (off by {apart:.2g} "
            "nats); please report the model."
        )
    sizes = [len(e.values) for e in structure.elements]
    drawn, chance = eliminate(tables, sizes, structure.order, rng)
    values, probability = {}, {}
    for name, shape in shapes.items():
        at = [i for i, e in enumerate(structure.elements) if e.name == name]
        options = model.values[name]
        small = np.min_scalar_type(-int(options.max()) - 1)  # signed, and with room for -1
        values[name] = options.astype(small)[drawn[:, at]].reshape(len(z), *shape)
        share = [weight @ chance[i] for i in at]
        probability[name] = np.stack(share).reshape(*shape, len(options))
    return Recovered(values, probability), structure


class _Work(NamedTuple):
    """The density of one dataset, elementwise."""

    density: Density
    data: dict[str, np.ndarray]
    mask: Mask

    @classmethod
    def of(cls, compiled: CompiledModel, data: Mapping[str, np.ndarray]) -> "_Work":
        filled, there = dict(data), {}
        for info in compiled.observed:
            value = np.asarray(data[info.name])
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                there[info.name] = np.isfinite(value)
                some = value[there[info.name]]
                value = np.where(there[info.name], value, some[0] if len(some) else 0.0)
            filled[info.name] = value.astype(info.dtype)
        return cls(Density(compiled, None), filled, Mask(None, there))  # type: ignore[arg-type]

    def terms(self, z: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
        """Terms at draws z (draw, dim) and configurations: (draw, configuration, term)."""
        some = _padded(z, 1 if len(z) == 1 else _BLOCK)
        found = []
        number = len(next(iter(values.values())))
        for begin in range(0, number, _CONFIGURATIONS):
            part = {k: v[begin : begin + _CONFIGURATIONS] for k, v in values.items()}
            part = {k: _padded(v, _CONFIGURATIONS) for k, v in part.items()}
            terms = np.asarray(_terms(self.density, some, self.data, self.mask, part))
            found.append(terms[: len(z), : min(_CONFIGURATIONS, number - begin)])
        return np.concatenate(found, axis=1)


@jit
def _terms(
    density: Density,
    z: Array,
    data: dict[str, Array],
    mask: Mask,
    values: dict[str, Array],
) -> Array:
    def one(u: Array, known: dict[str, Array]) -> Array:
        return density.elements(u, {**data, **known}, mask)

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(z, values)


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    """Fill up with the first: all are of one size."""
    index = np.arange(size)
    return array[np.where(index < len(array), index, 0)]


def shapes_of(model: DiscreteModel, data: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Shape of each discrete variable, with the lengths of this dataset's dims."""
    lengths = {
        d: n
        for i in model.compiled.data
        if i.name in data
        for d, n in zip(i.dims, np.shape(data[i.name]), strict=True)
    }
    infos = {i.name: i for i in model.compiled.covariates}
    return {
        name: tuple(
            lengths.get(d, n) for d, n in zip(infos[name].dims, infos[name].shape, strict=True)
        )
        for name in model.values
    }


def _configured(
    elements: list[Element], shapes: Mapping[str, tuple[int, ...]], which: np.ndarray
) -> dict[str, np.ndarray]:
    """Values of the variables of which each element has its value `which` (configuration, element).

    What is past the last value of an element is that value.
    """
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        at = [i for i, e in enumerate(elements) if e.name == name]
        options = elements[at[0]].values if at else np.zeros(1, int)
        index = np.minimum(which[:, at], len(options) - 1)
        found[name] = options[index].reshape(len(which), *shape)
    return found


def _structure(
    model: DiscreteModel,
    shapes: Mapping[str, tuple[int, ...]],
    work: _Work,
    z: np.ndarray,
    rng: np.random.Generator,
) -> Structure:
    """Find out what each term depends on, by changing one element at a time."""
    elements = [
        Element(name, i, model.values[name])
        for name, shape in shapes.items()
        for i in range(int(np.prod(shape, dtype=int)))
    ]
    sizes = np.array([len(e.values) for e in elements])
    depends: np.ndarray | None = None
    change = [(i, step) for i, n in enumerate(sizes) for step in range(1, n)]
    for k in range(_PROBED):
        base = rng.integers(sizes)
        which = np.repeat(base[None], 1 + len(change), axis=0)
        for row, (i, step) in enumerate(change, start=1):
            which[row, i] = (base[i] + step) % sizes[i]
        terms = work.terms(z[[k * (len(z) - 1) // _PROBED]], _configured(elements, shapes, which))
        differs = ~np.isclose(terms[0, 1:], terms[0, :1], rtol=_RTOL, atol=0, equal_nan=True)
        found = np.zeros((terms.shape[2], len(elements)), bool)
        for row, (i, _) in enumerate(change):
            found[:, i] |= differs[row]
        depends = found if depends is None else depends | found
    assert depends is not None
    named: dict[Scope, int] = {}
    factor = np.empty(len(depends), int)
    for t, row in enumerate(depends):
        scope = tuple(np.flatnonzero(row).tolist())
        factor[t] = named.setdefault(scope, len(named)) if scope else -1
    scopes = [*named]
    alone = {i for scope in scopes for i in scope}
    # an element that nothing depends on has no prior either: it has one value
    assert alone or not len(elements) or sizes.max() == 1
    factor[factor < 0] = len(scopes)
    try:
        order = elimination_order(scopes, sizes.tolist(), most=_MOST)
    except TooEntangled as error:
        raise UnsupportedModelError(
            f"recover_discrete: {[*shapes]} depend on each other in too large groups ({error}): "
            "expected independent ones, chains, or a few that belong to all rows."
        ) from None
    colours = _colours(scopes, len(elements))
    return Structure(elements, scopes, factor, order, colours, dict(shapes))


def _colours(scopes: list[Scope], number: int) -> np.ndarray:
    """Give elements of one factor different colours, few in all."""
    beside: list[set[int]] = [set() for _ in range(number)]
    for scope in scopes:
        for v in scope:
            beside[v] |= {*scope} - {v}
    found = np.full(number, -1)
    for v in range(number):
        taken = {int(found[u]) for u in beside[v]}
        found[v] = next(c for c in range(number + 1) if c not in taken)
    return found


def _tables(
    structure: Structure, shapes: Mapping[str, tuple[int, ...]], work: _Work, z: np.ndarray
) -> dict[Scope, np.ndarray]:
    """Log of every factor at all values of its elements, of shape (draw, value, ...)."""
    sizes = np.array([len(e.values) for e in structure.elements])
    number = int(structure.colours.max(initial=-1)) + 1
    largest = [int(sizes[structure.colours == c].max()) for c in range(number)]
    if np.prod(largest, dtype=float) > _MOST:
        raise UnsupportedModelError(
            f"recover_discrete: {[*shapes]} have {np.prod(largest, dtype=float):.3g} combinations "
            f"of values that have to be looked at together; expected at most {_MOST}."
        )
    combinations = np.array([*product(*map(range, largest))], int).reshape(-1, number)
    which = combinations[:, structure.colours]
    values = _configured(structure.elements, shapes, which)
    sums = np.empty((len(z), len(which), len(structure.scopes)))
    order = np.argsort(structure.factor, kind="stable")
    edges = np.searchsorted(structure.factor[order], np.arange(len(structure.scopes)))
    for begin in range(0, len(z), _BLOCK):
        terms = work.terms(z[begin : begin + _BLOCK], values)
        ordered = terms[..., order]
        if len(structure.scopes):
            last = np.searchsorted(structure.factor[order], len(structure.scopes))
            sums[begin : begin + _BLOCK] = np.add.reduceat(ordered[..., :last], edges, axis=-1)
    found = {}
    for f, scope in enumerate(structure.scopes):
        shape = tuple(int(sizes[v]) for v in scope)
        grid = np.indices(shape).reshape(len(scope), -1)
        at = np.zeros((grid.shape[1], number), int)
        for v, own in zip(scope, grid, strict=True):
            at[:, structure.colours[v]] = own
        index = np.ravel_multi_index(tuple(at.T), tuple(largest))
        table = sums[:, index, f].reshape(len(z), *shape)
        found[scope] = np.where(np.isnan(table), -np.inf, table)
    return found


def _factored(
    structure: Structure,
    shapes: Mapping[str, tuple[int, ...]],
    work: _Work,
    z: np.ndarray,
    rng: np.random.Generator,
) -> tuple[dict[Scope, np.ndarray], float]:
    """Tables of all factors, and by how much the density differs from their sum; 0: not.

    Up to a constant, and looked at for one draw and random values.
    """
    tables = _tables(structure, shapes, work, z)
    sizes = np.array([len(e.values) for e in structure.elements])
    which = rng.integers(sizes, size=(8, len(sizes)))
    truth = work.terms(z[:1], _configured(structure.elements, shapes, which))[0].sum(axis=1)
    own = np.zeros(len(which))
    for scope, table in tables.items():
        own += table[(0, *(which[:, v] for v in scope))]
    usable = np.isfinite(own) & np.isfinite(truth)
    if not usable.any():
        return tables, 0.0
    apart = (truth - own)[usable]
    off = float(np.ptp(apart))
    return tables, off if off > 1e-6 * (1 + np.abs(truth[usable]).max()) else 0.0


def weights_of(log_weight: np.ndarray) -> np.ndarray:
    """Weights that sum to one."""
    weight = np.exp(log_weight - np.max(log_weight))
    return weight / weight.sum()
