"""Sources of covariates, brought in the model's order of labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pmcl.compile import CompiledModel
from pmcl.data.labels import aligned, with_labels
from pmcl.data.plain import plain
from pmcl.data.task import Layout
from pmcl.data.values import check_decoded


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
            elif isinstance(source, np.ndarray | list | tuple):
                source = plain(source)  # a mask is a gap
        found[str(name)] = source
    return found
