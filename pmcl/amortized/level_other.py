"""Other posteriors than that of a network for groups: of another model, of known parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pmcl.amortized.groups import Checked, Sized
from pmcl.amortized.level_sampler import LevelSampler
from pmcl.amortized.other import compiled_other
from pmcl.amortized.own_size import check_number
from pmcl.compile import CompiledModel, Density
from pmcl.compile.labelled import model_or_context
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.variables import holders
from pmcl.data.task import Task, TaskLike
from pmcl.draws.densities import pick
from pmcl.draws.prior import prior_draws
from pmcl.levels.beside import Beside
from pmcl.levels.reading import term_shapes, without_zeros
from pmcl.levels.sizes import Groups, check_padding
from pmcl.levels.structure import NoLevels
from pmcl.refinement.known import known_in, whole_names
from pmcl.refinement.settings import FEWEST_STARTS, Asked
from pmcl.runtime import precision
from pmcl.search.search import Search


class Elsewhere(NamedTuple):
    """Another posterior than that of a network: the arguments of `sample` of these names."""

    data: TaskLike | None
    model: pm.Model | CompiledModel | None
    given: Mapping[str, ArrayLike] | None
    var_names: Sequence[str] | None

    def of(
        self, sampler: LevelSampler, read: Checked, asked: Asked
    ) -> tuple[LevelSampler, Checked, Asked]:
        """What draws from it: a sampler, the data, and what is asked.

        Raises
        ------
        ValueError
            Where variables of the other model are not those of the network's, or it has none of a
            name in `var_names`; where it has other levels, and draws are not to be refined; naming
            the known variable whose values do not fit.
        """
        if self.model is not None:
            sampler, read = self._under(sampler, read)
            names = None if self.var_names is None else list(self.var_names)
            asked = asked._replace(names=pick(read.sized.compiled, names))
            if sampler.prior is not None and asked.refine is None:
                raise ValueError(
                    "model: expected one with the levels of the network's "
                    f"({sampler.sized.reading.like}), or refinement (refine=True or 'auto'): the "
                    "network has no draws of groups that are others."
                )
        if self.given is not None:
            read = _knowing(sampler, read, self.given)
            whole = whole_names(read.task.known.values)
            asked = asked._replace(names=tuple(n for n in asked.names if n not in whole))
        return sampler, read, asked

    def _under(self, sampler: LevelSampler, read: Checked) -> tuple[LevelSampler, Checked]:
        """Put another model of the same variables in the place of the network's; read the data."""
        own, groups, model = sampler.sized, sampler.groups, self.model
        assert model is not None
        more = only_in(model, own.compiled)
        data = read.task if self.data is None or not more else self.data
        dim = None if groups is None else groups.grouping.dim
        compiled = compiled_other(own.compiled, model, data, dim=dim)
        under = sampler._replace(sized=Sized(compiled, own.reading))
        there, search = under.checked(data), sampler.amortizer.search
        assert search is not None
        shared, like = own.reading.shared, there.sized
        dataset = there.task.dataset(0)
        prior = prior_draws(like.compiled, dataset, FEWEST_STARTS, seed=0)
        with precision.scope():
            initial, some = compiled.initial[shared], prior[:, like.reading.shared]
            new = Search.of(search.density, initial, some, starts=len(search.starts))  # type: ignore[arg-type]
            new = replace(new, modes=search.modes, exact=search.exact)
            amortizer = replace(sampler.amortizer, search=new)
            return _as_it_can(under._replace(amortizer=amortizer), there, prior)


def only_in(model: pm.Model | CompiledModel, own: CompiledModel) -> set[str]:
    """Names of the data of another model that the network's does not have."""
    plain = model.model if isinstance(model, CompiledModel) else model_or_context(model)
    known = {i.name for i in own.data} | {*holders(plain)}
    return {str(v.name) for v in plain.data_vars} - known


def _as_it_can(
    sampler: LevelSampler, given: Checked, prior: np.ndarray
) -> tuple[LevelSampler, Checked]:
    """How another model is drawn from: padded, at each number of groups, or without the network.

    Told of the data at hand, each time: others may show what these hide, as groups that are equal.
    """
    compiled, reading = given.sized.compiled, given.sized.reading
    density = Density(compiled, sampler.row)
    task = without_zeros(density, replace(given.task, beside=None, labels=None, place=None))
    if reading.rules is not None and len(term_shapes(density, task)) != len(reading.rules):
        reading = replace(reading, rules=None)
    found = reading.of(density, task)
    if isinstance(found, NoLevels):
        return sampler._replace(padding=False, prior=prior), given
    like = replace(reading.like, exact=found.exact, concave=found.concave, text=found.text)
    sized = Sized(compiled, replace(reading, like=like))
    padding = sampler.groups is None or _stands_padding(
        sampler.groups, Checked(task, sized), given.numbers
    )
    return sampler._replace(sized=sized, padding=padding), given._replace(sized=sized)


def _stands_padding(groups: Groups, given: Checked, numbers: np.ndarray) -> bool:
    """Whether groups depend on their own data alone, and not on how many there are."""
    (task, sized), dim = given, groups.grouping.dim
    if sized.reading.rules is None:
        return False
    try:
        two = _turned(task, dim, numbers)
        check_padding(Density(sized.compiled, task.layout.row), sized.reading, two, dim)
        check_number(groups, Checked(two.select([0]), sized))
    except UnsupportedModelError:
        return False
    return True


def _knowing(sampler: LevelSampler, read: Checked, given: Mapping[str, ArrayLike]) -> Checked:
    """The same datasets, of which some parameters are known."""
    density, levels = Density(read.sized.compiled, sampler.row), None
    with precision.scope():
        if sampler.prior is None:
            levels = Beside(density, read.sized.reading).levels(read.task)
        values = given if sampler.groups is None else _filled(sampler.groups, read, given)
        known = known_in(density, read.task, levels, values)
    return read._replace(task=replace(read.task, known=known))


def _filled(groups: Groups, read: Checked, given: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Known values with as many groups as the model has: of those that are padding, the last again.

    Raises
    ------
    ValueError
        Where values have labels, or are of another number of datasets or groups than there are.
    """
    infos, found = {i.name: i for i in read.sized.compiled.free}, {}
    size, dim = read.sized.reading.like.groups, groups.grouping.dim
    last = np.minimum(np.arange(size), read.numbers[:, None] - 1)
    most = int(read.numbers.max())
    for name, value in given.items():
        array, info = np.asarray(value), infos.get(name)
        if array.ndim and hasattr(value, "reindex"):  # its labels would be passed over
            raise ValueError(
                f"given: {name!r}: expected an array without labels, in the order of the "
                f"data, where datasets have groups of their own; got a "
                f"{type(value).__name__}. Pass its values, put in that order."
            )
        if info is not None and dim in info.dims and array.ndim >= len(info.dims):
            axis = 1 + info.dims.index(dim)
            array = array if array.ndim > len(info.dims) else array[None]
            if len(array) not in (1, len(last)):
                raise ValueError(
                    f"given[{name!r}]: expected values of {len(last)} datasets along the leading "
                    f"dim, got {len(array)}."
                )
            came, array = array.shape[axis], np.asarray(array, float)
            beyond = array.take(np.arange(most, max(came, most)), axis=axis, mode="clip")
            if came < most or not np.isnan(beyond).all():
                raise ValueError(
                    f"given[{name!r}]: expected values of {most} groups along {dim!r}, and NaN "
                    f"beyond these, got {came}."
                )
            array = np.broadcast_to(array, (len(last), *array.shape[1:]))
            pairs = zip(array, last, strict=True)
            array = np.stack([one.take(index, axis=axis - 1) for one, index in pairs])
        found[name] = array
    return found


def _turned(task: Task, dim: str, numbers: np.ndarray) -> Task:
    """The dataset with most groups, and the same whose groups have data of others."""
    most = int(np.argmax(numbers))
    two, real = task.select([most, most]), np.arange(numbers[most])
    for k, info in enumerate(task.layout.variables):
        if dim in info.dims:
            value = np.array(two.values[info.name])
            turned = np.moveaxis(value[1], info.dims.index(dim), 0)  # a view
            turned[real] = np.roll(turned[real], 1, axis=0)
            if k >= task.layout.n_observed and value.dtype.kind == "f":
                value[1] *= 0.9
            two.values[info.name] = value
    return two
