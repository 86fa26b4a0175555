"""Variables of one dataset's draws on the host: at any length, without compiling for it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytensor
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors

from pmcl.compile.conversion import graphs
from pmcl.compile.model import CompiledModel
from pmcl.compile.variables import VariableInfo

type Run = Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]]
type Evaluate = Callable[[np.ndarray, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def told_by_data(compiled: CompiledModel, which: Callable[[VariableInfo], bool]) -> tuple[str, ...]:
    """Names of the deterministics that depend on some of the data."""
    call, infos = compiled._constrain.call, compiled._constrain.data
    data = zip(call.inputs[len(compiled.values) :], infos, strict=True)
    of_these = {v for v, i in data if which(i)}
    names = [i.name for i in (*compiled.free, *compiled.deterministics)]
    pairs = [*zip(names, call.outputs, strict=True)][len(compiled.free) :]
    return tuple(n for n, v in pairs if of_these & {*ancestors([v])})


def on_host(compiled: CompiledModel, names: tuple[str, ...]) -> Evaluate:
    """Free variables and deterministics as NumPy computes them, of z (draw, dim) and a dataset."""
    return compiled.keep(("on host", names), lambda: _made(compiled.without_model(), names))


def _made(compiled: CompiledModel, names: tuple[str, ...]) -> Evaluate:
    call, infos = compiled._constrain.call, compiled._constrain.data
    position = {i.name: k for k, i in enumerate((*compiled.free, *compiled.deterministics))}
    values, symbols = call.inputs[: len(compiled.values)], call.inputs[len(compiled.values) :]
    outputs = [call.outputs[position[n]] for n in names]
    run = _together(values, symbols, outputs) or _in_turn(values, symbols, outputs)

    def evaluate(z: np.ndarray, dataset: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        parts = [
            z[:, w.start : w.start + w.size].reshape(-1, *w.shape).astype(v.type.dtype)
            for w, v in zip(compiled.values, values, strict=True)
        ]
        pairs = zip(infos, symbols, strict=True)
        data = [np.asarray(dataset[i.name], v.type.dtype) for i, v in pairs]
        return dict(zip(names, run(parts, data), strict=True))

    return evaluate


def _together(
    values: Sequence[Variable], data: Sequence[Variable], outputs: Sequence[Variable]
) -> Run | None:
    """All draws at once; None: PyTensor cannot do so with all operations."""
    several = [v.type.clone(shape=(None, *v.type.shape))(name=v.name) for v in values]
    try:
        drawn = vectorize_graph(outputs, dict(zip(values, several, strict=True)))
        function = _function([*several, *data], drawn)
    except Exception:  # noqa: BLE001 (any operation's own)
        return None
    changing = {*several}
    every = [bool(changing & {*ancestors([v])}) for v in drawn]

    def run(parts: list[np.ndarray], given: list[np.ndarray]) -> list[np.ndarray]:
        found = zip(function(*parts, *given), every, strict=True)
        n = len(parts[0])
        return [np.asarray(v) if own else np.broadcast_to(v, (n, *v.shape)) for v, own in found]

    return run


def _in_turn(
    values: Sequence[Variable], data: Sequence[Variable], outputs: Sequence[Variable]
) -> Run:
    function = _function([*values, *data], outputs)

    def run(parts: list[np.ndarray], given: list[np.ndarray]) -> list[np.ndarray]:
        rows = [function(*one, *given) for one in zip(*parts, strict=True)]
        return [np.stack(v) for v in zip(*rows, strict=True)]

    return run


def _function(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
    return pytensor.function(
        list(inputs), list(outputs), mode=graphs.host_mode(), on_unused_input="ignore"
    )
