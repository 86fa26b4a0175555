"""A situation: a model, data as somebody has them, and what has to come of it."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pmcl
from pmcl.compile import CompiledModel
from pmcl.data.covariates import covariates_among
from pmcl.data.masked import check_masked
from pmcl.data.possible import check_possible
from pmcl.data.reading import task_of
from pmcl.data.task import Task


class Refused(NamedTuple):
    """An error with a message like this."""

    message: str
    kind: type[Exception] = pmcl.DataError


class Warned(NamedTuple):
    """A warning with a message like this."""

    message: str


class Read(NamedTuple):
    """These values, by variable, with a leading dim of datasets; and their names."""

    values: Mapping[str, Any]
    names: tuple[str, ...] | None = None


class Situation(NamedTuple):
    """A model, by its function, data or what makes them, and the outcome."""

    model: Callable[[], pm.Model]
    data: Any
    outcome: Refused | Warned | Read


@cache
def built(model: Callable[[], pm.Model]) -> pm.Model:
    return model()


@cache
def compiled(model: Callable[[], pm.Model], covariates: tuple[str, ...]) -> CompiledModel:
    return pmcl.compile_model(built(model), covariates=covariates)


def read(model: Callable[[], pm.Model], data: Any) -> Task:
    """Read data as `refine` and `sample_reference` do, before anything is drawn."""
    found = compiled(model, covariates_among(built(model), data))
    return check_possible(found, check_masked(found, task_of(found, data)))


def one_row_each(likelihood: Callable[[], object], rows: int = 4) -> Callable[[], pm.Model]:
    """A model whose likelihood has the dim `obs`."""

    def model() -> pm.Model:
        with pm.Model(coords={"obs": range(rows)}) as made:
            likelihood()
        return made

    return model


def counts(rows: int = 4) -> dict[str, Any]:
    return {"observed": np.ones(rows, int), "dims": "obs"}


def reals(rows: int = 4) -> dict[str, Any]:
    return {"observed": np.full(rows, 0.5), "dims": "obs"}
