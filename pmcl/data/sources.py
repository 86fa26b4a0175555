"""Sources of covariates, brought in the model's order of labels."""

from collections.abc import Mapping
from typing import Any

import pymc as pm
import xarray as xr

from pmcl.compile import CompiledModel
from pmcl.data.labels import aligned, with_labels
from pmcl.data.task import Layout
from pmcl.data.values import check_decoded


def sources_in(
    model: pm.Model, covariates: Mapping[str, Any] | xr.Dataset | None
) -> dict[str, Any]:
    """Sources by name; those of a Dataset may be coordinates that the model has as `pm.Data`."""
    if not isinstance(covariates, xr.Dataset):
        return {str(name): source for name, source in (covariates or {}).items()}
    names = {v.name for v in model.data_vars} & {*map(str, covariates.coords)}
    found = covariates.reset_coords([n for n in names if n not in covariates.dims])
    return {str(name): source for name, source in found.data_vars.items()}


def aligned_sources(compiled: CompiledModel, sources: Mapping[str, Any]) -> dict[str, Any]:
    """Put the columns of labelled tables in the model's order; all else stays as it is.

    Raises
    ------
    DataError
        Where labels differ from the model's, or values are as a file codes them.
    """
    layout = Layout.of(compiled, None)
    infos = {info.name: info for info in compiled.covariates}
    found = {}
    for name, source in sources.items():
        info = infos.get(str(name))
        if info is not None:
            source = with_labels(source, info)
            if isinstance(source, xr.DataArray):
                where = f"covariates[{info.name!r}]"
                check_decoded(source, where)
                source = aligned(source, info, layout, where)
        found[str(name)] = source
    return found
