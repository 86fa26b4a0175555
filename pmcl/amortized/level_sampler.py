"""What draws from the posterior of a multilevel model, at any number of groups."""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from pmcl.amortized.groups import Checked, Sized, skeleton
from pmcl.amortized.own_size import (
    by_known,
    by_number,
    finished_by_size,
    of_own_size,
    of_real_groups,
    too_many,
)
from pmcl.compile import Density
from pmcl.compile.integral import left_by_transforms, of_prior
from pmcl.data.grouped import Grouped, GroupedReader
from pmcl.data.masked import check_masked
from pmcl.data.new_rows import new_rows
from pmcl.data.possible import check_possible
from pmcl.data.reading import as_task
from pmcl.data.task import Layout, Task, TaskLike
from pmcl.draws.densities import prior_terms
from pmcl.draws.groups import Named
from pmcl.draws.prediction import predictions_groups, scalars_group
from pmcl.draws.results import data_groups, flat_z
from pmcl.draws.side_by_side import side_by_side
from pmcl.levels.beside import Beside
from pmcl.levels.sizes import Groups, group_of
from pmcl.networks import Amortizer, Network
from pmcl.networks.structure import with_arrays
from pmcl.parts.job import packed, unpacked
from pmcl.refinement.correction import as_tree, weigh
from pmcl.refinement.multilevel import levels_told
from pmcl.refinement.settings import Asked, Beginning
from pmcl.runtime import precision
from pmcl.runtime.devices import DevicesLike
from pmcl.runtime.devices import scope as device_scope

MODEL_INSTEAD = "the PyMC model in its place, which is refined without a network, levels found"


class LevelSampler(NamedTuple):
    """A posterior of a multilevel model without its past: enough to draw with it.

    Attributes
    ----------
    sized : Sized
        The model at the size that the network was trained at.
    row : str, optional
        The dim of the rows.
    amortizer : Amortizer
        Of the global parameters.
    groups : Groups, optional
        None: all datasets have the model's own.
    network : Network
        Specification of the amortizer, which travels as its weights.
    padding : bool
        Whether datasets of several numbers of groups can be in one model: in another model than the
        network's own groups may depend on the data of all.
    prior : array of shape (draw, dim), optional
        Of another model whose levels are not those of the network: what refinement begins at.
    """

    sized: Sized
    row: str | None
    amortizer: Amortizer
    groups: Groups | None
    network: Network
    padding: bool = True
    prior: np.ndarray | None = None

    def checked(self, data: TaskLike, others: Collection[str] = ()) -> Checked:
        """Read datasets, and refuse those that the model cannot have made.

        Data called as in `others` are passed over: those of another model.

        Raises
        ------
        DataError
            Naming the variable and the dataset.
        """
        groups, sized = self.groups, self.sized
        layout = replace(Layout.of(sized.compiled, self.row), others=frozenset(others))
        if groups is None or (isinstance(data, Task) and _alike(data.layout, layout)):
            task = as_task(data, layout)
        else:
            dim = groups.grouping.dim
            if isinstance(data, Task) and data.labels is not None:
                found = Grouped.of(data, dim)
            else:
                found = GroupedReader(layout, dim, groups.grouping.by)(data)
            sized = sized.at(groups, int(found.numbers.max()))
            layout = replace(Layout.of(sized.compiled, self.row), others=layout.others)
            task = as_task(found.padded(layout, dim, len(sized.compiled.coords[dim])), layout)
            task = replace(task, labels=found.labels)
        task = replace(task, beside=None)
        return Checked(check_possible(sized.compiled, check_masked(sized.compiled, task)), sized)

    def sample(
        self,
        given: Checked,
        asked: Asked,
        *,
        devices: DevicesLike = None,
        progressbar: bool = False,
    ) -> xr.DataTree:
        """Draw from the posterior of every dataset; groups are counted, and padded."""
        shown: Any = {"devices": devices, "progressbar": progressbar}
        if not self.padding:
            return self._by_number(given, asked, **shown)
        (task, sized), begin = given, time.perf_counter()
        beside = Beside(Density(sized.compiled, self.row), sized.reading)
        wanted = asked.extra.log_prior and given.padded
        if given.padded:  # of the groups that there are
            asked = asked._replace(extra=asked.extra._replace(log_prior=False))
        with device_scope(devices), precision.scope():
            levels = beside.levels(task, check=True)
            amortizer = sized.amortizer(self.amortizer, self.row)
            assert amortizer.search is not None
            weighed = weigh(
                beside.density,
                amortizer,
                task,
                None,
                Beginning(amortizer.search),
                asked,
                levels=levels,
                progressbar=progressbar,
            )
            corrected = finished_by_size(
                self.groups, given, weighed, asked, progressbar=progressbar
            )
            z = np.asarray(corrected.drawn.z)
            found = of_real_groups(self.groups, given, z, asked.names)
            if task.known is not None:
                found = task.known.put_in(found)
            left = None
            cut = (of_prior(sized.compiled).left[0] != 1).any()
            if cut and given.padded and self.groups is not None:  # of the groups that there are
                dim, _, local = self.groups.grouping
                share, error = left_by_transforms(
                    sized.compiled, group_of(sized.compiled, dim, local)
                )
                left = share[given.numbers], error[given.numbers]
                if task.known is not None:  # what is known is cut, too
                    left = (np.full(len(task), np.nan),) * 2
            tree = as_tree(
                sized.compiled, task, corrected, asked, begin=begin, constrained=found, left=left
            )
            if wanted:
                whole = replace(task, beside=beside)
                terms = prior_terms(sized.compiled, z, whole)
                tree["log_prior"] = xr.DataTree(scalars_group(sized.compiled, task, terms))
        tree["posterior"].attrs["levels"] = levels_told(levels, tree)
        return tree

    def _by_number(self, given: Checked, asked: Asked, **shown: Any) -> xr.DataTree:
        """Draw from the datasets of every number of groups in a model of that number."""
        alike = by_number(given) if self.prior is None else by_known(given)
        if too_many(asked, len(by_known(given))):
            asked = asked._replace(fallback=None)
        size = given.sized.reading.like.groups
        trees: list[xr.DataTree] = []
        order: list[int] = []
        for rows in alike:
            own = of_own_size(self.groups, given, rows)
            if self.prior is None:
                alone = self.at(own.sized)._replace(padding=True)
                tree = alone.sample(Checked(own.task, own.sized), asked, **shown)
            else:
                tree = own.refined(self.prior, asked, **shown)
            trees.append(own.whole(tree, size))
            order.extend(rows)
        tree = side_by_side(trees, order, self.row)
        for name, data in data_groups(given.sized.compiled, given.task).items():
            tree[name] = xr.DataTree(data)
        return tree

    def named(self, tree: xr.DataTree, given: Checked) -> xr.DataTree:
        """Results whose groups have their names."""
        if self.groups is None or given.labels is None:
            return tree
        return Named(self.groups.grouping.dim, given.labels).of(tree, given.labels)

    def predicted(
        self, tree: xr.DataTree, given: Checked, new: Any, *, seed: int
    ) -> dict[str, xr.Dataset]:
        """Predictive draws at new covariates, of what :meth:`sample` gave."""
        task, sized = given
        if new is not None and self.groups is not None and given.labels is not None:
            dim, by, _ = self.groups.grouping
            new = new_rows(new, task, dim, by)
        z = np.moveaxis(flat_z(sized.compiled, tree)[0], 0, 1)
        with precision.scope():
            return predictions_groups(sized.compiled, task.layout, task, z, new, seed=seed)

    def at(self, sized: Sized) -> "LevelSampler":
        """The same, of datasets of another size."""
        return self._replace(sized=sized, amortizer=sized.amortizer(self.amortizer, self.row))

    def __reduce__(self) -> tuple:
        search = self.amortizer.search
        assert search is not None
        parts = {
            "compiled": packed(self.sized.compiled),
            "reading": self.sized.reading,
            "rest": (self.row, self.groups, self.network, self.padding, self.prior),
        }
        weights = [*map(np.asarray, jax.tree.leaves(eqx.filter(self.amortizer, eqx.is_array)))]
        return _arrived, (parts, weights, {"starts": len(search.starts), "modes": search.modes})


def _arrived(
    parts: dict[str, Any], weights: list[np.ndarray], sizes: dict[str, int]
) -> LevelSampler:
    """Build the network again, with the weights that it had."""
    sized = Sized(unpacked(parts["compiled"]), parts["reading"])
    row, groups, network, padding, prior = parts["rest"]
    with precision.scope():
        like = skeleton(
            network, Beside(Density(sized.compiled, row), sized.reading).marginal, **sizes
        )
        amortizer = with_arrays(like, weights)
    return LevelSampler(sized, row, amortizer, groups, network, padding, prior)


def _alike(one: Layout, other: Layout) -> bool:
    """Whether two layouts are of models of one size."""
    sizes = [{d: len(c) for d, c in layout.coords.items()} for layout in (one, other)]
    return one.variables == other.variables and sizes[0] == sizes[1]


def refuse(what: str, instead: str) -> NoReturn:
    """Say by name what is not there, and what to do.

    Raises
    ------
    NotImplementedError
    """
    raise NotImplementedError(f"{what} is not there for a posterior with levels yet: {instead}.")
