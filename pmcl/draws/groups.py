"""Results of datasets with different groups: their names, and padding for what is not there."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from pmcl.data.one_dataset import LABEL, LENGTH, PREDICTIONS, check_length
from pmcl.data.task import DATASET


class Named(NamedTuple):
    """Names of groups, dataset by dataset.

    Attributes
    ----------
    dim : str
    labels : tuple of tuple of str
        Of all datasets, of which a tree may have some.
    """

    dim: str
    labels: tuple[tuple[str, ...], ...]

    def about(self) -> int:
        """Tell these names from others."""
        return zlib.crc32("\n".join("\t".join(names) for names in self.labels).encode())

    def of(self, tree: xr.DataTree, labels: Sequence[tuple[str, ...]]) -> xr.DataTree:
        """Give groups their names, and cut what is padding for all datasets.

        Where all datasets have the same groups their names are the dim's coordinate. Else this
        counts them, a coordinate ``{dim}_label`` has the names by dataset, and `constant_data` (or
        `observed_data`) the number of each, as ``{dim}_length``.

        Parameters
        ----------
        tree : xarray.DataTree
        labels : sequence of tuple of str
            Of each of its datasets.
        """
        dim, most = self.dim, max(map(len, self.labels))
        same, numbers = len({*self.labels}) == 1, np.array([len(names) for names in labels])
        there = xr.DataArray(np.arange(most) < numbers[:, None], dims=(DATASET, dim))
        padded = np.array([[*names, *[""] * (most - len(names))] for names in labels])
        groups = {name: node.to_dataset() for name, node in tree.children.items()}
        for name, data in groups.items():
            if dim not in data.dims:
                continue
            data = data.isel({dim: slice(most)}).drop_vars(dim, errors="ignore")
            if same:
                groups[name] = data.assign_coords({dim: np.array(labels[0])})
                continue
            # predictions of padding would look like those of a group, whole numbers too
            kinds = "fiub" if name in (PREDICTIONS, "posterior_predictive") else "f"
            data = data.map(
                lambda v, kinds=kinds: (
                    v.where(there).transpose(*v.dims)
                    if {DATASET, dim} <= {*v.dims} and v.dtype.kind in kinds
                    else v
                )
            )
            groups[name] = data.assign_coords(
                {dim: np.arange(most), f"{dim}{LABEL}": ((DATASET, dim), padded)}
            )
        where = next((k for k in ("constant_data", "observed_data") if k in groups), None)
        if not same and where is not None:
            check_length(dim, [str(n) for n in groups[where].data_vars])
            groups[where] = groups[where].assign({f"{dim}{LENGTH}": (DATASET, numbers)})
        found = xr.DataTree.from_dict(groups)
        for name, node in tree.children.items():
            found[name].attrs.update(node.attrs)
        return found
