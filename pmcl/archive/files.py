"""A posterior as one file: save and load."""

import os

import pymc as pm
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive import amortized, mixtures, multilevel, online
from pmcl.archive.errors import StateError
from pmcl.archive.zipped import read_archive, write_archive
from pmcl.compile import (
    UnsupportedModelError,
)
from pmcl.compile.covariates import SourcesLike
from pmcl.compile.labelled import model_or_context
from pmcl.compile.made import SimulatorFunction
from pmcl.online.mixture import OnlineMixture
from pmcl.online.stream import AbstractStream


def save(
    posterior: AmortizedPosterior | MultilevelPosterior | AbstractStream | OnlineMixture,
    path: str | os.PathLike,
    *,
    include_memory: bool = True,
) -> None:
    """Write the state of a posterior to one file, a zipped Zarr archive; :func:`load` reads it.

    Parameters
    ----------
    posterior : AmortizedPosterior, MultilevelPosterior, or what :func:`fit_online` gives
    path : path
        Written whole or not at all: a crash leaves what was there before.
    include_memory : bool
        Whether stored datasets, or rows, are in it: they are raw data.

    Raises
    ------
    TypeError
        Of draws, which are no posterior.
    StateError
        Where the disk does not take it, or something in the posterior cannot be stored.
    """
    if isinstance(posterior, xr.DataTree | xr.Dataset):
        raise TypeError(
            f"save: expected a posterior, as `fit_amortized` or `fit_online` gives it, got a "
            f"{type(posterior).__name__}. Draws have files of their own: "
            "`draws.to_netcdf(path)`, `draws.to_zarr(path)`."
        )
    if isinstance(posterior, MultilevelPosterior):
        tree = multilevel.to_datatree(posterior, include_memory=include_memory)
    elif isinstance(posterior, OnlineMixture):
        tree = mixtures.to_datatree(posterior, include_memory=include_memory)
    elif isinstance(posterior, AbstractStream):
        tree = online.to_datatree(posterior, include_memory=include_memory)
    else:
        tree = amortized.to_datatree(posterior, include_memory=include_memory)
    write_archive(path, tree)


def load(
    path: str | os.PathLike,
    model: pm.Model | None = None,
    *,
    covariates: SourcesLike | None = None,
    simulator: SimulatorFunction | None = None,
) -> AmortizedPosterior | MultilevelPosterior | AbstractStream | OnlineMixture:
    """Read a posterior that was saved; the file holds data only, and is checked before use.

    Parameters
    ----------
    path : path
        Written by :func:`save`.
    model : pymc.Model, optional
        The model, taken from the context when not given: its log densities must be those that the
        state was made with.
    covariates : mapping or xarray.Dataset, optional
        Sources as in :func:`fit_amortized`, needed where one was a function.
    simulator : callable, optional
        As in :func:`fit_amortized`, needed where a function made the data.

    Returns
    -------
    AmortizedPosterior, MultilevelPosterior, OnlinePosterior, LatentPosterior or OnlineMixture
        Its draws with the same seed, and what further adaptation or updates give, are those of the
        posterior that was saved.

    Raises
    ------
    StateError
        Where the file is damaged or no state, of a schema that is not known, or of another model,
        saying what differs.
    """
    model = model_or_context(model)
    tree = read_archive(path)
    try:
        if tree.attrs.get("kind") == online.KIND:
            return online.from_datatree(tree, model, where=str(path))
        if tree.attrs.get("kind") == mixtures.KIND:
            return mixtures.from_datatree(tree, model, where=str(path))
        if tree.attrs.get("kind") == multilevel.KIND:
            if simulator is not None:
                raise StateError(f"{path}: simulator: expected none for a model with levels.")
            return multilevel.from_datatree(tree, model, covariates=covariates, where=str(path))
        return amortized.from_datatree(
            tree, model, covariates=covariates, simulator=simulator, where=str(path)
        )
    except (StateError, UnsupportedModelError):
        raise
    except Exception as error:  # whatever a file made by somebody else may hold
        raise StateError(f"{path}: not a pmcl state of this model ({error!r}).") from error
