"""What adaptation has stored, as data: datasets in memory, and the states of strategies."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import numpy as np
import xarray as xr

from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive import records, weights
from pmcl.archive.attributes import in_order
from pmcl.archive.configuration import KNOWN, decode, dumps, encode, loads
from pmcl.archive.errors import StateError
from pmcl.archive.zipped import group
from pmcl.continual import AbstractStrategy, Memory, Occasion, StrategyState, memory_of
from pmcl.data.reading import as_task
from pmcl.data.task import DATASET, Layout, Task
from pmcl.networks import Amortizer

GROUPS = "groups"  # names of each stored dataset's groups


def in_force(posterior: AmortizedPosterior | MultilevelPosterior) -> dict[str, Any]:
    """Attributes that say which strategies the next task goes on with."""
    strategy = posterior.strategy
    if strategy is not None and not isinstance(strategy, tuple):
        strategy = (strategy,)
    found = None if strategy is None else encode(strategy, where="strategy")
    return {"strategy": dumps(found)}


def adapted_to_groups(
    posterior: AmortizedPosterior | MultilevelPosterior, *, include_memory: bool
) -> dict[str, xr.Dataset]:
    """Write all that adaptation left, as groups of a tree."""
    p = posterior
    groups: dict[str, xr.Dataset] = {}
    if p.pretrained is not None:
        groups["/pretrained"] = weights.to_dataset(p.pretrained)
    memory = memory_of(p.states)
    if include_memory and len(memory):
        groups["/memory"] = memory_to_dataset(memory)
    kept = [s for s in p.states if include_memory or not isinstance(s.state, Memory)]
    for i, state in enumerate(kept):
        groups[f"/strategies/{i}"] = state_to_dataset(state)
    for i, task in enumerate(p.records):
        for name, part in records.task_to_tree(task).items():
            groups[f"/history/{i}" + (f"/{name}" if name else "")] = part
    return groups


def with_adapted[P: (AmortizedPosterior, MultilevelPosterior)](
    posterior: P,
    tree: xr.DataTree,
    like: Amortizer,
    stored: Callable[[xr.DataTree, str], Memory],
    where: str,
) -> P:
    """Give a posterior all that adaptation left.

    Parameters
    ----------
    posterior : AmortizedPosterior or MultilevelPosterior
    tree : xarray.DataTree
    like : Amortizer
        A network of the right shapes.
    stored : callable
        Reads stored datasets, where there are any.
    where : str
    """
    pretrained = None
    if "pretrained" in tree.children:
        pretrained = weights.from_dataset(
            group(tree, "pretrained", where), like, where=f"{where}: pretrained"
        )
    posterior = dataclasses.replace(
        posterior,
        strategy=strategy_in_force(tree.attrs, where),
        pretrained=pretrained,
        records=tuple(
            records.task_from_tree(node, where=f"{where}: history")
            for node in in_order(tree, "history", where)
        ),
    )
    memory = stored(tree, where) if "memory" in tree.children else Memory()
    states = tuple(
        state_from(node, posterior, memory, f"{where}: strategies")
        for node in in_order(tree, "strategies", where)
    )
    return dataclasses.replace(posterior, states=states)


def strategy_in_force(attrs: Mapping[Any, Any], where: str) -> Any:
    """Read the strategies that the next task goes on with; states of before may have none."""
    if "strategy" not in attrs:
        return None
    found = decode(loads(attrs.get("strategy"), where=where), where=f"{where}: strategy")
    if found is None:
        return None
    if not isinstance(found, tuple) or not all(isinstance(s, AbstractStrategy) for s in found):
        raise StateError(f"{where}: expected strategies.")
    return found if len(found) > 1 else found[0]


def memory_to_dataset(memory: Memory) -> xr.Dataset:
    """Write stored datasets, each with its task and time."""
    stored = memory.stored()
    data = stored.labelled()
    # Values past the end of a dataset say nothing; its length says where that is.
    data["task"] = (DATASET, np.asarray(memory.tasks, dtype=str))
    data["time"] = (DATASET, np.asarray(memory.times, dtype=str))
    if stored.lengths is not None:
        data["length"] = (DATASET, stored.lengths)
    if stored.labels is not None:
        data[GROUPS] = (DATASET, [dumps(list(names)) for names in stored.labels])
    return data.assign_coords({DATASET: np.asarray(stored.names, dtype=str)})


def memory_from(tree: xr.DataTree, layout: Layout, where: str) -> Memory:
    """Read stored datasets."""
    data = group(tree, "memory", where)
    labels = None
    if GROUPS in data:
        labels = tuple(labels_of(str(v), where) for v in data[GROUPS].values)
        data = data.drop_vars(GROUPS)
    names = [str(n) for n in data[DATASET].values]
    extra = {"task", "time", *(("length",) if layout.row is not None else ())}
    if set(map(str, data.data_vars)) != {*layout.names, *extra}:
        raise StateError(f"{where}: memory: expected {sorted({*layout.names, *extra})}.")
    parts = {}
    for i, name in enumerate(names):
        one = data.isel({DATASET: i}, drop=True).drop_vars(["task", "time"])
        if layout.row is not None:
            n = int(one["length"])
            one = one.drop_vars("length").isel({layout.row: slice(0, n)})
        parts[name] = one
    task = dataclasses.replace(as_task(parts, layout), labels=labels)
    tasks, times = (tuple(str(v) for v in data[k].values) for k in ("task", "time"))
    return Memory(task, tasks, times)


def labels_of(text: str, where: str) -> tuple[str, ...]:
    found = loads(text, where=f"{where}: memory")
    if not isinstance(found, list) or not found or len({*map(str, found)}) != len(found):
        raise StateError(f"{where}: memory: expected names of a dataset's groups.")
    return tuple(map(str, found))


def state_to_dataset(state: StrategyState) -> xr.Dataset:
    """Write what one strategy has stored, but for datasets."""
    kind = KNOWN.get(state.kind)
    if kind is None:
        raise StateError(
            f"strategy {state.kind}: a state holds data and no code, so that of a strategy of your "
            "own is not stored; keep the posterior in memory, or use one of pmcl's."
        )
    found = weights.to_dataset(None if isinstance(state.state, Memory) else state.state)
    label = getattr(state.state, "kind", "")
    return found.assign_attrs(
        kind=state.kind, tasks=dumps(list(state.tasks)), label=label if label else ""
    )


def state_from(
    node: xr.DataTree,
    posterior: AmortizedPosterior | MultilevelPosterior,
    memory: Memory,
    where: str,
) -> StrategyState:
    """Read what one strategy has stored."""
    data = node.to_dataset(inherit=False)
    kind = KNOWN.get(str(data.attrs.get("kind")))
    tasks = loads(data.attrs.get("tasks"), where=where)
    if kind is None or not issubclass(kind, AbstractStrategy) or not isinstance(tasks, list):
        raise StateError(f"{where}: expected the state of a strategy that is known.")
    names = tuple(map(str, tasks))
    # The structure of a state is that with which its strategy begins, at no cost.
    fresh = _cheap(kind)
    nothing = Task(posterior.layout, {}, (), None)
    now = Occasion(
        "", nothing, posterior.amortizer, posterior.density, posterior.simulator,
        posterior.structure, 0,
    )  # fmt: skip
    like = fresh.begin(None, now)
    if isinstance(like, Memory):
        return StrategyState(kind.__name__, names, memory)
    state = weights.from_dataset(data, like, where=where)
    label = str(data.attrs.get("label", ""))
    if hasattr(state, "kind"):
        if label not in ("fisher", "self_consistency", "synaptic"):
            raise StateError(f"{where}: {label!r} is no importance.")
        state = state._replace(kind=label)
    return StrategyState(kind.__name__, names, state)


def _cheap(kind: type[eqx.Module]) -> AbstractStrategy:
    """A strategy of a kind that needs no simulations to begin."""
    fields = {f.name for f in dataclasses.fields(kind)}
    found = kind(simulations=0) if "simulations" in fields else kind()
    assert isinstance(found, AbstractStrategy)
    return found
