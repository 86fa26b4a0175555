"""Which values an observed variable can have at all, whatever the parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions import censored, continuous, discrete, mixture, truncated
from pymc.distributions.distribution import DiracDeltaRV, SymbolicRandomVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random import basic
from pytensor.tensor.random.op import RandomVariable

from pmcl.compile.conversion import graphs
from pmcl.compile.indices import is_random
from pmcl.compile.of_data import ByData, OfData

type Bound = Variable | np.ndarray | float | None


class Interval(NamedTuple):
    """Values from `low` to `high`; None where there is no bound, or it depends on parameters.

    Attributes
    ----------
    low, high : Variable, array or float, optional
    without_low, without_high : bool
        Whether the end is excluded.
    """

    low: Bound = None
    high: Bound = None
    without_low: bool = False
    without_high: bool = False

    def holds(self, value: np.ndarray) -> np.ndarray:
        """Say of each value whether it is inside; bounds have to be numbers."""
        good = np.ones(value.shape, bool)
        if self.low is not None:
            good = good & (value > self.low if self.without_low else value >= self.low)
        if self.high is not None:
            good = good & (value < self.high if self.without_high else value <= self.high)
        return good

    def at(self, index: tuple[int, ...], shape: tuple[int, ...]) -> "Interval":
        """Bounds of one value, by its position."""
        low, high = (
            None if b is None else float(np.broadcast_to(b, shape)[index])  # type: ignore[arg-type]
            for b in self[:2]
        )
        return self._replace(low=low, high=high)

    def words(self, *, whole: bool) -> str:
        """Describe the interval of one value."""
        kind = "whole numbers" if whole else "numbers"
        low, high = (None if b is None else f"{b:g}" for b in self[:2])
        if low is None and high is None:
            return kind
        if high is None:
            return f"{kind} above {low}" if self.without_low else f"{kind} from {low} up"
        if low is None:
            return f"{kind} below {high}" if self.without_high else f"{kind} up to {high}"
        if low == high:
            return low
        ends = {(True, True): " (ends excluded)", (True, False): f" ({low} excluded)"}
        ends[False, True] = f" ({high} excluded)"
        return f"{kind} from {low} to {high}{ends.get(self[2:], '')}"


class Outside(NamedTuple):
    """Values of a dataset that a distribution does not take.

    Attributes
    ----------
    variable : str
    position : tuple of int
        Position of the first one.
    value : float
    number : int
        How many there are.
    takes : str
        What the distribution takes, in words.
    hint : str
    """

    variable: str
    position: tuple[int, ...]
    value: float
    number: int
    takes: str
    hint: str
    what: str = ""

    def __str__(self) -> str:
        more = f", and {self.number - 1} more" if self.number > 1 else ""
        return (
            f"expected values that its distribution takes, {self.takes}, got {self.what}"
            f"{self.value:g}"
            f"{in_row(self.position)}{more}.{self.hint}"
        )


def in_row(index: Sequence[int]) -> str:
    """Say where a value is; rows are counted from 0."""
    if not len(index):
        return ""
    return f" in row {index[0]}" + "".join(f", entry {i}" for i in index[1:])


class Support:
    """Which values the observed variables of a model can have.

    Parameters
    ----------
    variables : mapping of str to Variable
        The observed variables of the model's graph, without values for the parameters.
    by_data : ByData
    """

    def __init__(self, variables: Mapping[str, Variable], by_data: ByData) -> None:
        found = {name: _intervals(var) for name, var in variables.items()}
        self._intervals = {k: [*map(_known, v)] for k, v in found.items() if v is not None}
        self._whole = {k for k, v in variables.items() if np.dtype(v.type.dtype).kind in "biu"}
        ops = {k: v.owner.op for k, v in variables.items() if v.owner is not None}
        self._shares = {k for k, op in ops.items() if isinstance(op, basic.DirichletRV)}
        every = [interval for one in self._intervals.values() for interval in one]
        self._graphs = [b for i in every for b in i[:2] if isinstance(b, Variable)]
        self._bounds = OfData(self._graphs, by_data)

    def __reduce__(self) -> tuple:
        return _nothing, ()  # whoever reads data compiles the model

    def knows(self, name: str) -> bool:
        """Whether the support of a variable is known."""
        return name in self._intervals

    def outside(self, dataset: Mapping[str, np.ndarray]) -> Outside | None:
        """Return the first values of a dataset that are impossible; gaps are none."""
        bounds = dict(zip(self._graphs, self._bounds(dataset), strict=True))

        def number(bound: Bound) -> Bound:
            return bounds[bound] if isinstance(bound, Variable) else bound

        for name, intervals in self._intervals.items():
            if name not in dataset:  # of a stream: latent variables of rows
                continue
            value = np.asarray(dataset[name], float)
            total = value.sum(axis=-1) if name in self._shares else np.ones(())
            apart = np.argwhere(np.abs(total - 1) > _ROUNDED)
            if len(apart):
                row, say = tuple(map(int, apart[0])), " Divide each row by its sum."
                about = ("entries that sum to 1", say, "a sum of ")
                return Outside(name, row, float(total[row]), len(apart), *about)
            given = [i._replace(low=number(i.low), high=number(i.high)) for i in intervals]
            good = np.any([np.isnan(value), *(i.holds(value) for i in given)], axis=0)
            if not good.all():
                index = tuple(map(int, np.argwhere(~good)[0]))
                whole = name in self._whole
                there = [i.at(index, value.shape).words(whole=whole) for i in given]
                return Outside(
                    name,
                    index,
                    float(value[index]),
                    int((~good).sum()),
                    " or ".join(dict.fromkeys(there)),
                    _hint(value, float(value[index]), given, whole=whole),
                )
        return None


def _nothing() -> Support:
    return Support({}, ByData())


# What stands for "missing" in files that know no NaN.
SENTINELS = frozenset(
    sign * float("9" * n) for n in (2, 3, 4, 5, 6) for sign in (-1, 1)
) | frozenset([-9.0, -32767.0, -32768.0, 2147483647.0, -2147483647.0, -2147483648.0])


def _hint(value: np.ndarray, first: float, intervals: Sequence[Interval], *, whole: bool) -> str:
    low, high = intervals[0][:2]
    if whole and len(intervals) == 1 and low is not None and high is not None:
        begin, end = np.max(low), np.max(high)  # type: ignore[arg-type]
        if np.nanmin(value) == begin + 1 and np.nanmax(value) == end + 1:
            return f" Numbers counted from {begin + 1:g} are the likely cause: subtract 1."
        if first == -1:
            return " A code of -1 is what pandas gives to a missing category: drop those rows."
    if first in SENTINELS:
        return f" {first:g} often stands for a missing value: write NaN."
    return " Correct them, leave them out, or give the model a distribution that takes them."


def _known(interval: Interval) -> Interval:
    """Take bounds that are constants as arrays, and none for those that follow from parameters."""

    def bound(given: Bound, nothing: float) -> Bound:
        given = _folded(given)
        if isinstance(given, Constant):
            given = np.asarray(given.data, float)
        if isinstance(given, Variable):
            return given if given.name == _SIZE or not _is_free(given) else None
        return None if given is None or np.all(np.asarray(given) == nothing) else given

    return interval._replace(low=bound(interval.low, -np.inf), high=bound(interval.high, np.inf))


def _folded(given: Bound) -> Bound:
    """Evaluate a graph of constants alone."""
    if not isinstance(given, Variable) or isinstance(given, Constant):
        return given
    inputs = [v for v in ancestors([given]) if v.owner is None]
    if not all(isinstance(v, Constant) for v in inputs):
        return given
    return pt.constant(graphs.to_host([], [given])(np.random.default_rng(0))()[0])


def _is_free(var: Variable) -> bool:
    return any(is_random(v) for v in ancestors([var]))


_ROUNDED = 0.02  # by which shares may miss a sum of one: they may be rounded to two digits
_SIZE = "number of categories, less one"


def _last(p: Variable) -> Bound:
    """Give the last category; their number does not depend on what the probabilities are."""
    if p.type.shape[-1] is not None:
        return p.type.shape[-1] - 1
    last = p.shape[-1] - 1
    last.name = _SIZE
    return last


def _not_one(shape: Variable) -> bool:
    """Whether a shape parameter is never 1, where the density has a value at the end."""
    known = _folded(shape)
    if isinstance(known, Constant):
        return bool((np.asarray(known.data) != 1).all())
    return _is_free(shape)


def _from_zero(*_: Variable) -> Interval:
    return Interval(0.0)


def _above_zero(*_: Variable) -> Interval:
    return Interval(0.0, without_low=True)


# By the op of a distribution: a function of its parameters.
_TABLE: dict[type[Op], Callable[..., Interval]] = {
    **dict.fromkeys(
        [
            basic.NormalRV,
            basic.StudentTRV,
            basic.CauchyRV,
            basic.LaplaceRV,
            basic.LogisticRV,
            basic.GumbelRV,
            continuous.SkewNormalRV,
        ],
        lambda *_: Interval(),
    ),
    **dict.fromkeys(
        [
            basic.ExponentialRV,
            basic.PoissonRV,
            basic.NegBinomialRV,
            continuous.HalfCauchyRV,
            continuous.HalfStudentTRV,
            discrete.DiscreteWeibullRV,
        ],
        _from_zero,
    ),
    **dict.fromkeys([basic.LogNormalRV, basic.InvGammaRV, continuous.RiceRV], _above_zero),
    **dict.fromkeys(
        [basic.GammaRV, continuous.WeibullBetaRV],
        lambda alpha, _: Interval(0.0, without_low=_not_one(alpha)),
    ),
    basic.BetaRV: lambda alpha, beta: Interval(0.0, 1.0, _not_one(alpha), _not_one(beta)),
    basic.DirichletRV: lambda alpha: Interval(0.0, 1.0, _not_one(alpha), _not_one(alpha)),
    basic.HalfNormalRV: lambda loc, _: Interval(loc),
    basic.ParetoRV: lambda _, m: Interval(m),
    continuous.WaldRV: lambda mu, lam, alpha: Interval(alpha, without_low=True),
    basic.UniformRV: Interval,
    continuous.TruncatedNormalRV: lambda mu, sigma, low, high: Interval(low, high),
    basic.VonMisesRV: lambda *_: Interval(-np.pi, np.pi),
    basic.BernoulliRV: lambda _: Interval(0.0, 1.0),
    basic.BinomialRV: lambda n, _: Interval(0.0, n),
    basic.BetaBinomialRV: lambda n, *_: Interval(0.0, n),
    basic.GeometricRV: lambda _: Interval(1.0),
    basic.CategoricalRV: lambda p: Interval(0.0, _last(p)),
    discrete.DiscreteUniformRV: Interval,
    DiracDeltaRV: lambda c: Interval(c, c),
}


def _intervals(var: Variable) -> list[Interval] | None:
    """Say what a variable's distribution takes: a union of intervals; None where unknown."""
    if var.owner is None:
        return None
    op, given = var.owner.op, var.owner.inputs
    if isinstance(op, censored.CensoredRV):
        inner = _intervals(given[0])
        return None if inner is None else [_cut(i, *given[1:3]) for i in inner]
    if isinstance(op, mixture._BaseMixtureRV):
        parts = [_intervals(v) for v in given[2:]]
        known = [part for part in parts if part is not None]
        return sum(known, []) if len(known) == len(parts) else None
    if isinstance(op, truncated.TruncatedRV):
        made = _TABLE.get(type(op.base_rv_op))
        return None if made is None else [_cut(made(*given[2:-2]), *given[-2:])]
    made = _TABLE.get(type(op))
    if made is None:
        return None
    if isinstance(op, RandomVariable):
        return [made(*op.dist_params(var.owner))]
    assert isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None
    kinds = op.extended_signature.split("->")[0].replace("),(", ");(").replace("],", "];")
    return [made(*(v for v, k in zip(given, kinds.split(";"), strict=True) if k[0] == "("))]


def _cut(interval: Interval, low: Variable, high: Variable) -> Interval:
    """Cut an interval at bounds that narrow it; they are values, too."""
    new, old = _known(Interval(low, high)), _known(interval)
    if _narrows(new.low, old.low, np.greater):
        old = old._replace(low=new.low, without_low=False)
    if _narrows(new.high, old.high, np.less):
        old = old._replace(high=new.high, without_high=False)
    return old


def _narrows(new: Bound, old: Bound, beyond: Callable) -> bool:
    if new is None or old is None or isinstance(new, Variable) or isinstance(old, Variable):
        return new is not None
    return bool(np.all(beyond(new, old)))
