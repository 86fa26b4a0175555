"""What of a model's graph follows from data alone."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from pmcl.compile.conversion import graphs
from pmcl.compile.variables import VariableInfo


class ByData(NamedTuple):
    """How a model's graph depends on data.

    Attributes
    ----------
    inputs, lengths : mapping of Variable to Variable
        Covariates, and lengths of dims, as functions of the data.
    symbols : mapping of Variable to VariableInfo
        Data as inputs of that graph.
    """

    inputs: Mapping[Variable, Variable] = {}
    lengths: Mapping[Variable, Variable] = {}
    symbols: Mapping[Variable, VariableInfo] = {}

    @property
    def data(self) -> dict[Variable, Variable]:
        """All variables that are data."""
        return {**self.inputs, **{symbol: symbol for symbol in self.symbols}}


class OfData:
    """What of a model's graph follows from data alone, evaluated on the host.

    Parameters
    ----------
    outputs : sequence of Variable
    by_data : ByData
    """

    def __init__(self, outputs: Sequence[Variable], by_data: ByData) -> None:
        self._symbols = dict(by_data.symbols)
        known = {**by_data.inputs, **by_data.lengths}
        self._outputs = graphs.bind(outputs, known)[0] if outputs else []

    def part(self, which: slice) -> "OfData":
        """Some of the outputs."""
        found = OfData([], ByData(symbols=self._symbols))
        found._outputs = self._outputs[which]
        return found

    @cached_property
    def _function(self) -> Callable[..., list[np.ndarray]]:
        return graphs.to_host(list(self._symbols), self._outputs)(np.random.default_rng(0))

    def __call__(self, dataset: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Evaluate the outputs at one dataset; zero stands for what is missing."""
        if not self._outputs:
            return []
        lengths = {
            dim: n
            for info in self._symbols.values()
            if info.name in dataset
            for dim, n in zip(info.dims, np.shape(dataset[info.name]), strict=True)
        }

        def given(info: VariableInfo) -> np.ndarray:
            if info.name in dataset:
                return np.nan_to_num(np.asarray(dataset[info.name])).astype(info.dtype)
            # local variables are no data; only how many there are may count
            shape = zip(info.dims, info.shape, strict=True)
            return np.zeros([lengths.get(d, n) for d, n in shape], info.dtype)

        return self._function(*map(given, self._symbols.values()))
