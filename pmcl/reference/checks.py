"""Datasets as a reference sampler takes them: checked arrays, by variable name."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph import Constant

from pmcl.compile.variables import holder_of
from pmcl.data.stacking import filled
from pmcl.reference.shared_model import Arrays, SharedModel, there_of

# compiles at once, for functions that are called a few times
_PLAIN = Mode(linker="py", optimizer="fast_compile")


class Checked(NamedTuple):
    """Arrays and dim lengths of every dataset, in the model's dtypes.

    Where values of an observed variable are missing they are filled, and an array beside it, by the
    name that :func:`there_of` gives, is False for them.
    """

    arrays: list[Arrays]
    lengths: list[dict[str, int]]


def check_datasets(
    model: pm.Model, datasets: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]
) -> Checked:
    """Check datasets against a model before anything is compiled.

    Parameters
    ----------
    model
        The user's model; it is read, never written.
    datasets
        One mapping a dataset, from every observed variable's name, and from covariates' names
        (each a ``pm.Data`` of the model), to an array.
    names
        Names of the datasets, which errors cite.

    Returns
    -------
    Checked

    Raises
    ------
    ValueError
        If a dataset lacks a variable, has an unknown one, or one of a wrong rank, dtype or length,
        or a covariate with missing values; or if the model is not one that NUTS can sample.
    """
    if len(names) != len(datasets):
        raise ValueError(
            f"Expected one name for every dataset, got {len(names)} for {len(datasets)} datasets."
        )
    if not datasets:
        raise ValueError("Expected at least one dataset, got none.")
    _check_model(model)
    # a covariate that any dataset has, all must have: the last one's would otherwise linger
    covariates = {key for dataset in datasets for key in dataset if key in _covariates(model)}
    arrays = [
        _check_variables(model, dataset, name, covariates)
        for dataset, name in zip(datasets, names, strict=True)
    ]
    for rv in model.observed_RVs:
        _flag(arrays, rv.name, np.dtype(rv.type.dtype))
    lengths = [
        _dim_lengths(model, dataset, name) for dataset, name in zip(arrays, names, strict=True)
    ]
    return Checked(arrays, lengths)


def _flag(arrays: Sequence[Arrays], name: str, dtype: np.dtype) -> None:
    """Fill the gaps of an observed variable and say where they were, in all datasets if in one."""
    gaps = [np.isnan(one[name]) if one[name].dtype.kind == "f" else None for one in arrays]
    if any(gap is not None and gap.any() for gap in gaps):
        for one, gap in zip(arrays, gaps, strict=True):
            one[there_of(name)] = np.ones(one[name].shape, bool) if gap is None else ~gap
            one[name] = filled(one[name][None].astype(float), dtype.kind in "bui")[0]
    for one in arrays:
        one[name] = one[name].astype(dtype)


def _check_model(model: pm.Model) -> None:
    if not model.observed_RVs and not model.potentials:
        raise ValueError(
            "The model has no observed variable, so there is no posterior to sample. Give one "
            "`observed=`."
        )
    if not model.free_RVs:
        raise ValueError("The model has no free variable: there is nothing to sample.")
    discrete = [rv.name for rv in model.free_RVs if np.dtype(rv.dtype).kind in "bui"]
    if discrete:
        raise ValueError(
            f"The free variables {discrete} are discrete, which NUTS cannot sample. Marginalize "
            "them out of the model."
        )
    holders = [holder for rv in model.observed_RVs if (holder := holder_of(model, rv.name))]
    twice = {holder for holder in holders if holders.count(holder) > 1}
    if twice:
        raise ValueError(
            f"Several observed variables have the pm.Data {sorted(twice)} for their value. Give "
            "each observed variable a pm.Data of its own."
        )


def _covariates(model: pm.Model) -> set[str]:
    holders = {holder_of(model, rv.name) for rv in model.observed_RVs}
    return {data.name for data in model.data_vars} - holders


def _check_variables(
    model: pm.Model, dataset: Mapping[str, np.ndarray], name: str, covariates: set[str]
) -> Arrays:
    observed = [rv.name for rv in model.observed_RVs]
    expected = [*observed, *sorted(covariates)]
    allowed = f"observed variables {observed} and covariates {sorted(_covariates(model))}"
    for key in dataset:
        if key in expected:
            continue
        holds = [rv for rv in observed if holder_of(model, rv) == key]
        hint = f" It holds the values of {holds[0]!r}: give them by that name." if holds else ""
        raise ValueError(
            f"Dataset {name!r} has {key!r}, which is not a variable that data can be given for."
            f"{hint} The model has {allowed}."
        )
    for key in expected:
        if key not in dataset:
            why = "other datasets have it" if key in covariates else "it is observed in the model"
            raise ValueError(f"Dataset {name!r} lacks {key!r}: {why}. Add it to the dataset.")
    return {key: _check_array(model, key, dataset[key], name) for key in expected}


def _check_array(model: pm.Model, key: str, value: np.ndarray, name: str) -> np.ndarray:
    what = f"Variable {key!r} of dataset {name!r}"
    variable = model[key]
    target = np.dtype(variable.type.dtype)
    if np.ma.is_masked(value):
        raise ValueError(f"{what} has masked values. The reference needs complete data.")
    array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what}: expected dtype {target}, got {array.dtype}.")
    if array.ndim != variable.type.ndim:
        raise ValueError(
            f"{what}: expected {variable.type.ndim} dimensions, as in the model (and no dataset "
            f"dimension), got shape {array.shape}."
        )
    gaps = np.isnan(array)
    observed = key in {rv.name for rv in model.observed_RVs}
    if gaps.any() and not observed:
        raise ValueError(
            f"{what} has {gaps.sum()} NaN. A covariate has to be complete: drop those entries."
        )
    cast = np.where(gaps, 0, array).astype(target)
    if target.kind in "bui" and not np.array_equal(cast, np.where(gaps, 0, array)):
        raise ValueError(f"{what}: expected whole numbers ({target}), got {array.dtype} values.")
    if not observed:
        for axis, length in enumerate(variable.type.shape):
            if length not in (None, array.shape[axis]):
                raise ValueError(
                    f"{what}: expected shape {variable.type.shape}, fixed in the model, got "
                    f"{array.shape}."
                )
    return array if gaps.any() else cast


def _dim_lengths(model: pm.Model, arrays: Arrays, name: str) -> dict[str, int]:
    """Length of every named dim of the dataset's variables, on which all of them must agree."""
    shapes = {key: array.shape for key, array in arrays.items()}
    given = set(shapes)
    for rv in model.observed_RVs:
        if (holder := holder_of(model, rv.name)) is not None:
            shapes[holder] = shapes[rv.name]
            given.add(holder)
    for data in model.data_vars:  # what no dataset gives keeps its shape
        if data.name not in shapes:
            constant = isinstance(data, Constant)
            shapes[data.name] = np.shape(data.data if constant else data.get_value(borrow=True))

    lengths: dict[str, int] = {}
    source: dict[str, str] = {}
    for key, shape in shapes.items():
        for dim, length in zip(model.named_vars_to_dims.get(key) or (), shape, strict=False):
            if dim is None:
                continue
            if lengths.setdefault(dim, int(length)) != length:
                how = "" if key in given else " (a constant of the model: give it as well)"
                raise ValueError(
                    f"Dataset {name!r}: variables disagree on dim {dim!r}, which has length "
                    f"{lengths[dim]} in {source[dim]!r} and {int(length)} in {key!r}{how}."
                )
            source.setdefault(dim, key)
    return lengths


def check_rebuilt(shared: SharedModel, checked: Checked, names: Sequence[str]) -> None:
    """Check the datasets in the rebuilt model, before the long compilation.

    Raises
    ------
    ValueError
        If the size of a free variable changes between datasets, or if the log density cannot be
        evaluated for the shapes of one.
    """
    _check_sizes(shared, checked, names)
    _check_density(shared, checked, names)


def _check_sizes(shared: SharedModel, checked: Checked, names: Sequence[str]) -> None:
    """Refuse datasets between which the length of a free variable changes."""
    if not shared.free_depend_on_data(checked.arrays[0], checked.lengths[0]):
        return
    free = shared.model.free_RVs
    shapes = pytensor.function([], [rv.shape for rv in free], mode=_PLAIN)
    first = None
    for i, (arrays, lengths) in enumerate(zip(checked.arrays, checked.lengths, strict=True)):
        shared.set(arrays, lengths)
        sizes = [tuple(int(n) for n in shape) for shape in shapes()]
        first = first or sizes
        for rv, expected, got in zip(free, first, sizes, strict=True):
            if got != expected:
                raise ValueError(
                    f"The free variable {rv.name!r} has shape {got} for dataset {names[i]!r} and "
                    f"{expected} for {names[0]!r}: z must have one size. Sample datasets of "
                    "different size apart."
                )


def _check_density(shared: SharedModel, checked: Checked, names: Sequence[str]) -> None:
    """Evaluate the log density once a shape; nutpie would only report an error code."""
    shared.set(checked.arrays[0], checked.lengths[0])
    start = shared.model.initial_point()
    logp = shared.model.compile_logp(mode=_PLAIN)
    seen = set()
    for arrays, lengths, name in zip(checked.arrays, checked.lengths, names, strict=True):
        shapes = {key: array.shape for key, array in arrays.items()}
        if (signature := tuple(sorted(shapes.items()))) in seen:
            continue
        seen.add(signature)
        shared.set(arrays, lengths)
        try:
            logp(start)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"The model's log density cannot be evaluated for dataset {name!r} with shapes "
                f"{shapes}: {reason} If the model's code fixes a length, let it follow named dims "
                "or a pm.Data."
            ) from error
